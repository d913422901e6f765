"""A declared phase has a limit of its own: longer than the common one, or shorter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import run_job

PROGRAM = """
import sys, time
import ftrt

limit_s, nap_s = float(sys.argv[1]), float(sys.argv[2])
with ftrt.init() as rt:
    if rt.rank == 1 and rt.role is ftrt.Role.INITIAL:
        with rt.phase("checkpoint", limit_s=limit_s):
            time.sleep(nap_s)
"""


def run(tmp_path, limit_s, nap_s, *options):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return run_job(tmp_path, ["-n", 2, "--spares", 1, *options], program, limit_s, nap_s)


def test_a_long_phase_is_no_stall(tmp_path):
    ended = run(tmp_path, 20, 2, "--stall-timeout-s", 0.5)
    assert ended.status == 0, ended.output
    assert not ended.named("recovery")


def test_a_phase_that_outlasts_its_limit_is_replaced(tmp_path):
    ended = run(tmp_path, 0.5, 30)
    assert ended.status == 0, ended.output
    (recovery,) = ended.named("recovery")
    assert recovery["rank"] == 1 and "0.5 s" in recovery["by"]


@pytest.mark.parametrize("limit", ["0", "inf", "nan"])
def test_a_phase_must_end(tmp_path, limit):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = run_job(tmp_path, ["-n", 2], program, limit, 0)
    assert ended.status == 1
    assert "finite" in ended.output
