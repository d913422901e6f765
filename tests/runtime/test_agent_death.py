"""The host's agent dies: nobody repairs any more, so the attempt ends soon, and nothing is lost."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import ROOT, STREAM, run_job

from ftrt.oracle import check_effects

PROGRAM = """
import os, signal, sys
import numpy as np
import ftrt
from ftrt.host.board import Word

MESSAGES = 400

def make(seq):
    return np.full(4, seq)

with ftrt.init() as rt:
    if rt.rank == 0:
        with rt.sender("numbers", to=1, replay=make) as out:
            while out.next_seq <= MESSAGES:
                out.send(make(out.next_seq))
    else:
        total = (rt.restore() or {"total": 0})["total"]
        for message in rt.receiver("numbers", source=0):
            with message.consume() as effect:
                total = effect["total"] = total + int(message.array[0])
            if message.seq == 200 and rt.config.attempt == 1:
                os.kill(int(rt.job.board.words[Word.AGENT_PID]), signal.%s)
        assert total == MESSAGES * (MESSAGES + 1) // 2, total
"""


@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_the_next_attempt_goes_on(tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM % how)
    ended = run_job(tmp_path, ["-n", 2, "--spares", 1, "--restarts", 1], program)
    assert ended.status == 0, ended.output
    assert ended.report["attempts"] == 2
    audit = ended.report["audit"]
    assert audit["ok"] and audit["consumed"] == 400
    job = ended.report["job"][:8]
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"ftrt-{job}")]


def test_without_a_restart_the_reason_is_told(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM % "SIGKILL")
    start = time.monotonic()
    ended = run_job(tmp_path, ["-n", 2], program)
    assert ended.status == 3, ended.output
    assert "agent" in ended.output and "--resume" in ended.output
    assert time.monotonic() - start < 12


POINTS = ["seal.segment", "seal.closed", "record.written", "record.linked", "told", "published"]
#: Loaded by every Python process; makes the agent of attempt A die at the A-th point of a recovery.
DIES_AT = f"""
import os, signal, sys

def mortal():
    from ftrt.host import board, evidence
    from ftrt.ledger import steps

    attempt, calls = int(os.environ["FTRT_ATTEMPT"]), []
    point = dict(enumerate({POINTS}, 1)).get(attempt)
    close, set_header = evidence.Ledgers.close, board.Board.set_header

    def reach(name):
        if name == point and len(calls) == 1 + (attempt > 1):  # a restart closes ledgers, too
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(*args):
        calls.append(args)
        return close(*args)

    def told(self, word, value):
        reach("told" if word == 4 else "")
        set_header(self, word, value)
        reach("published" if word == 4 else "")

    evidence.Ledgers.close, board.Board.set_header = counted, told
    steps.install(reach)

if sys.orig_argv[-1] == "ftrt.host.agent":
    mortal()
"""


@pytest.mark.long
def test_it_dies_at_each_step_of_a_recovery(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(DIES_AT)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    options = ["-n", 2, "--spares", 1, "--restarts", len(POINTS)]
    options += ["--fault", "kill:1@20msg"] * len(POINTS)
    effects = tmp_path / "effects"
    arguments = ["--messages", 200, "--effects", effects]
    ended = run_job(tmp_path, options, STREAM, *arguments, limit_s=90, env={"PYTHONPATH": path})
    assert ended.status == 0, ended.output
    assert ended.report["attempts"] == 1 + len(POINTS)
    assert ended.report["audit"]["ok"] and ended.report["audit"]["consumed"] == 200
    oracle = check_effects(effects, {(1, "numbers", 0): 200})
    assert not oracle["losses"] and not oracle["duplicates"], oracle
    # The record was linked in half of them: the next attempt goes on from that epoch.
    assert len(ended.records) == 1 + len(POINTS) + 3


DOOMED = """
import os, pathlib, signal, time
import ftrt

def agent():
    mark = f"FTRT_JOB={os.environ['FTRT_JOB']}".encode()
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            is_agent = b"ftrt.host.agent" in (path / "cmdline").read_bytes()
            if is_agent and mark in (path / "environ").read_bytes():
                return int(path.name)
        except OSError:
            pass  # gone meanwhile

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    deadline = time.monotonic() + 20
    while (pid := agent()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
with ftrt.init():
    pass
"""


def test_an_agent_that_never_began_is_no_long_wait(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(DOOMED)
    ended = run_job(tmp_path, ["-n", 2], program, limit_s=40)
    assert ended.status == 3, ended.output
    assert "agent" in ended.output and "agent.log" in ended.output
    assert "Traceback" not in ended.output
