"""What a rank refuses before it starts."""

from __future__ import annotations

import pytest

from ftrt.errors import UsageError
from ftrt.runtime.config import Config

GOOD = {"FTRT_JOB": "j", "FTRT_LEDGER": "/tmp/l", "FTRT_RANKS": "2"}


def test_reads_what_the_launcher_sets():
    config = Config.from_environment({**GOOD, "FTRT_SPARES": "1", "FTRT_STALL_TIMEOUT_S": "7"})
    assert (config.processes, config.stall_timeout_s) == (3, 7.0)


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_a_program_without_its_launcher_is_told_what_to_type(missing):
    with pytest.raises(UsageError, match=f"{missing}.*ftrt run"):
        Config.from_environment({k: v for k, v in GOOD.items() if k != missing})


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "soon"])
@pytest.mark.parametrize("name", ["STALL", "SUSPECT", "EVICT", "INIT", "CALL"])
def test_no_timeout_is_zero_or_endless(name, value):
    with pytest.raises(UsageError, match=f"FTRT_{name}_TIMEOUT_S"):
        Config.from_environment({**GOOD, f"FTRT_{name}_TIMEOUT_S": value})


def test_suspicion_comes_before_eviction():
    with pytest.raises(UsageError, match="suspect"):
        Config.from_environment({**GOOD, "FTRT_SUSPECT_TIMEOUT_S": "9"})


@pytest.mark.parametrize("stable", ["host", "moon"])
def test_a_class_that_is_not_kept_is_refused(stable):
    with pytest.raises(UsageError, match="--stable process"):
        Config.from_environment({**GOOD, "FTRT_STABLE": stable})
