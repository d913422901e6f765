"""A short storm, and what it would say of a job that is not as it should be."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ftrt.cli import main
from ftrt.launch.faults import parse_fault
from ftrt.storm.check import Ended, complaints
from ftrt.storm.plan import plan_job
from ftrt.storm.run import Storm

PLAN = plan_job(0, 0, ("stream",))
RIGHT = {"job": "0" * 36, "digest": "d", "audit": {"ok": True}}


def job(directory, **changes):
    report = {**RIGHT, **changes.pop("report", {})}
    lines = changes.pop("effects", "B s 0 1\nC s 0 1\n")
    (directory / "effects").mkdir()
    (directory / "effects" / "effects-r0001-p1-1.txt").write_text(lines)
    made = {"status": 0, "output": "", "report": report, **changes}
    return Ended(PLAN, directory, **made)


def test_every_plan_is_one_that_can_be_run():
    kinds = set()
    for number in range(300):
        plan = plan_job(7, number)
        assert plan == plan_job(7, number)
        kinds |= {parse_fault(spec).kind for spec in plan.faults}
        kinds |= {strike.kind for strike in plan.strikes}
    assert kinds >= {"kill", "segv", "exit", "abort", "stop", "link", "corrupt", "hang", "freeze"}
    assert kinds >= {"throttle", "eio", "pair", "spare", "suspend", "agent", "mpirun"}


DEATH = {"event": "died", "attempt": 1, "process": 1, "rank": 1, "by": "mutex"}
FAULT = {"event": "fault", "attempt": 1, "rank": 1, "kind": "kill"}


@pytest.mark.parametrize(
    "changes, said",
    [
        ({}, None),
        ({"status": None}, "hangs"),
        ({"status": 3, "output": "why"}, "failed"),
        ({"report": {"digest": "another"}}, "wrong"),
        ({"report": {"audit": {"ok": False}}}, "wrong"),
        ({"effects": ""}, "lost"),
        ({"effects": "B s 0 1\nC s 0 1\nB s 0 1\nC s 0 1\n"}, "duplicated"),
        ({"events": [DEATH]}, "crashes"),
        ({"events": [FAULT, DEATH]}, None),
        ({"events": [FAULT, {**DEATH, "by": "no heartbeat for 1 s"}]}, "crashes"),
    ],
)
def test_what_it_complains_of(tmp_path, changes, said):
    found = complaints(job(tmp_path, **changes), "d", {(1, "s", 0): 1})
    assert list(found) == ([] if said is None else [said]), found


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_short_storm(tmp_path):
    storm = Storm(1)
    for number in (0, 9, 25):
        storm.run(0, number)
    report = storm.report
    assert report.ok, report.bad
    assert report.jobs == 3 and report.faults >= 12 and report.recoveries >= 6


def test_minutes_out_of_range():
    for minutes in ("0", "-1", "inf"):
        ended = CliRunner().invoke(main, ["storm", "--minutes", minutes, "--json"])
        assert ended.exit_code != 0
