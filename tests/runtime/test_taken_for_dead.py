"""Processes that live and are taken for dead: it costs a recovery, never a message."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import run_job
from taken_for_dead import HELD, MESSAGES

from ftrt.oracle import check_effects

PROGRAM = Path(__file__).parent / "taken_for_dead.py"


def replaced(folder: Path, mode: str):
    """Run it; whatever became of the first process, each message has one effect."""
    options = ["-n", 2, "--spares", 1, "--evict-timeout-s", 0.6]
    ended = run_job(folder, options, PROGRAM, mode, folder, limit_s=50)
    assert ended.status == 0, ended.output
    audit = ended.report["audit"]
    assert audit["ok"] and audit["sent"] == audit["consumed"] == MESSAGES
    oracle = check_effects(folder / "effects", {(1, "numbers", 0): MESSAGES})
    assert not oracle["losses"] and not oracle["duplicates"], oracle
    (death,) = ended.named("died")
    assert death["rank"] == 1 and ended.report["attempts"] == 1
    return ended, death


def test_a_commit_that_is_stopped_and_continued_in_a_later_epoch_is_fenced(tmp_path):
    """A false suspicion as bad as can be: the process goes on, inside a commit of the old epoch."""
    ended, death = replaced(tmp_path, "fenced")
    assert death["layer"] == "heartbeat"
    # It was alive and stopped when its successor had consumed far beyond it, and was told then.
    assert (tmp_path / "before").read_text() == "T 2"
    assert "was replaced in epoch 2" in (tmp_path / "fenced").read_text()
    first = next(p for p in (tmp_path / "effects").iterdir() if f"-p{held(tmp_path)}-" in p.name)
    assert first.read_text().splitlines()[-1] == f"B numbers 0 {HELD}"
    assert ended.records[1]["marks"][0]["hwm"] == HELD - 1


def test_a_process_that_goes_on_as_another_program_is_told_from_one_that_died(tmp_path):
    """And a rank whose init() was called in a thread that has ended is not taken for dead."""
    _, death = replaced(tmp_path, "exec")
    assert death["layer"] == death["by"] == "exec"
    assert not os.path.exists(f"/proc/{held(tmp_path)}/exe")


def held(folder: Path) -> int:
    """Process id of the first rank 1."""
    return int((folder / "held").read_text())
