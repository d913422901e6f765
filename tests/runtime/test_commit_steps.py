"""Real jobs in which a rank dies at every point of a ledger commit; the oracle counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ftrt.oracle import check_effects

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "ledger"))
from kill_points import AT_THE_END_OF_AN_EPOCH, all_points
from runtime_job import ROOT, run_job

PROGRAM = ROOT / "tests" / "ledger" / "killed_stream.py"

# name:n is the n-th time that a life of the victim passes the point; @other kills the other end.
RECEIVER = [
    "segment.claimed:1",
    "stream.filled:1",
    "stream.registered:1",
    "base.stored:1",
    "page.owned:1",
    "state.file:1",
    "state.cleared:1",
    "state.copied:1",
]
RECEIVER_LATER = [
    "state.described:1",
    "state.written:2",
    "commit.stored:1",
    "commit.swap:9",
    "commit.swapped:9",
    "state.linked:1",  # from here on the first state file of a life was made beforehand
    "file.probed:1",
    "file.written:1",
    "file.named:1",
]
GROWTH = [
    "commit.ended:1",
    "blank.taken:1",
    "blank.filled:1",
    "blank.linked:1",
    "segment.counted:1",
]
CLOSED_UNDER_IT = [
    "state.cleared:3@other",
    "state.written:2@other",
    "commit.swap:9@other",
    "commit.swapped:9@other",
    "commit.stored:1@other",
    "commit.refused:1",
    "segment.claimed:2@other",
    "segment.late:1",
    "segment.counted:1@other",
]
SENDER = [
    *("commit.stored:1", "commit.swapped:1", "commit.swap:7"),
    *("commit.extended:1", "commit.extended:2"),  # a pair, a triple
]
SPOOL = [
    "spool.packed:5",
    "spool.written:1",
    "spool.freed:1",
    "last.stored:1",
    "last.published:1",
]
SYNC = ["sync.taken:2", "sync.data:2", "sync.marked:2"]
JOBS = {
    "sync": (SYNC, ["--messages", 1500, "--delay-us", 500]),
    "receiver": (RECEIVER, []),
    "receiver later": (RECEIVER_LATER, []),
    "growth": (GROWTH, ["--rough", "--messages", 4500]),
    "closed under it": (CLOSED_UNDER_IT, ["--rough", "--messages", 2500]),
    "sender": (SENDER, ["--victim", 0, "--packed"]),
    "spool": (SPOOL, ["--victim", 0, "--spool", "--size", 4096]),
}


@pytest.mark.parametrize("name", JOBS)
def test_all_or_nothing_at_every_point(tmp_path, name):
    points, arguments = JOBS[name]
    effects, struck = tmp_path / "effects", tmp_path / "struck"
    effects.mkdir()
    struck.mkdir()
    arguments = [*arguments, "--effects", effects, "--struck", struck]
    for point in points:
        arguments += ["--point", point]
    stable = "power" if name == "sync" else "process"
    options = ["-n", 2, "--spares", len(points), "--stable", stable]
    ended = run_job(tmp_path, options, PROGRAM, *arguments)
    assert ended.status == 0, ended.output
    found = [path.name[4:] for path in sorted(struck.iterdir())]
    assert found == [point.partition(":")[0] for point in points]
    audit = ended.report["audit"]
    messages = next(
        (a for b, a in zip(arguments, arguments[1:], strict=False) if b == "--messages"), 300
    )
    assert audit["ok"] and audit["sent"] == audit["consumed"] == messages
    oracle = check_effects(effects, {(1, "numbers", 0): messages})
    assert not oracle["losses"] and not oracle["duplicates"], oracle


def test_no_point_is_left_out():
    exercised = {point.partition(":")[0] for points, _ in JOBS.values() for point in points}
    assert exercised | AT_THE_END_OF_AN_EPOCH == all_points()
