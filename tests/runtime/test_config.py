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


@pytest.mark.parametrize(
    ("stall", "evict", "call", "says"),
    [
        ("4", "5", "", "stall time-out 4 s must not be below the evict time-out 5 s"),
        ("", "", "5", "FTRT_CALL_TIMEOUT_S=5 must be above the evict time-out 5 s"),
        ("", "30", "20", "FTRT_CALL_TIMEOUT_S=20 must be above the evict time-out 30 s"),
        ("700", "", "650", "FTRT_CALL_TIMEOUT_S=650 must be above the stall time-out 700 s"),
    ],
)
def test_timeouts_that_contradict_each_other(stall, evict, call, says):
    named = {"STALL": stall, "EVICT": evict, "CALL": call}
    given = {f"FTRT_{name}_TIMEOUT_S": value for name, value in named.items()}
    with pytest.raises(UsageError, match=says):
        Config.from_environment({**GOOD, **given})


@pytest.mark.parametrize(
    ("given", "call_s"),
    [
        ({}, 660.0),
        ({"STALL": "2.5"}, 660.0),
        ({"STALL": "900"}, 960.0),
        ({"EVICT": "800"}, 860.0),
        ({"CALL": "88"}, 88.0),
    ],
)
def test_a_wait_outlasts_what_replaces_the_rank(given, call_s):
    chosen = {f"FTRT_{name}_TIMEOUT_S": value for name, value in given.items()}
    assert Config.from_environment({**GOOD, **chosen}).call_timeout_s == call_s


@pytest.mark.parametrize("stable", ["moon", ""])
def test_a_class_that_is_not_kept_is_refused(stable):
    with pytest.raises(UsageError, match="--stable process"):
        Config.from_environment({**GOOD, "FTRT_STABLE": stable})
