"""No wait of the launcher is without an end, whoever stops, hangs or never goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
from runtime_job import run_job

from ftrt.launch.mpirun import find_mpirun
from ftrt.launch.patience import AGENT_SILENT_S, AgentPatience

HEAD = """
import os, pathlib, signal, sys, time
import ftrt
from ftrt.host.board import Field, Phase, Word

def process_of(rt, rank):
    return rt.job.board.get(rt.job.processes[rank], Field.PID)

"""
STOPPED_AFTERWARDS = """
with ftrt.init() as rt:
    pass
os.kill(os.getpid(), signal.SIGSTOP if rt.rank else signal.SIGCONT)
"""
RUNS_ON = """
with ftrt.init() as rt:
    pass
while rt.rank:
    time.sleep(1)
"""
STOPPED_BEFORE_THE_END = """
with ftrt.init() as rt:
    if rt.rank == 1:
        board = rt.job.board
        while board.get(rt.job.processes[0], Field.PHASE) != Phase.FINISHED:
            time.sleep(0.01)
        os.kill(process_of(rt, 0), signal.SIGSTOP)
"""
AGENT_GONE = """
with ftrt.init() as rt:
    if rt.rank == 0:
        os.kill(int(rt.job.board.words[Word.AGENT_PID]), signal.SIGKILL)
        os.kill(process_of(rt, 1), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)
"""
STUCK_IN_ITS_LAST_SYNC = """
with ftrt.init() as rt:
    if rt.rank == 1:
        rt._syncer._lock.acquire()  # as a sync that never comes back
"""
ENDS_AND_STAYS = """#!{python}
import os, subprocess, sys, time
status = subprocess.call(["{mpirun}", *sys.argv[1:]])
if "FTRT_ATTEMPT" in os.environ:
    time.sleep(60)
sys.exit(status)
"""
GOES_AWAY = """#!/bin/sh
echo "mpirun (Open MPI) 5.0.11"
rm "$0"
"""


def job(tmp_path, text, *options, ranks=2):
    program = tmp_path / "program.py"
    program.write_text(HEAD + text)
    begin = time.monotonic()
    ended = run_job(tmp_path, ["-n", ranks, *options], program, limit_s=40)
    assert "Traceback" not in ended.output, ended.output
    left = [name for name in os.listdir("/dev/shm") if str(ended.report.get("job"))[:8] in name]
    assert not left
    return ended, time.monotonic() - begin


@pytest.mark.parametrize(
    "text, option, sentence",
    [
        (STOPPED_AFTERWARDS, "--evict-timeout-s", "was stopped for 1 s"),
        (RUNS_ON, "--stall-timeout-s", "still ran 1 s"),
    ],
)
def test_a_process_that_stays_after_the_work_is_ended(tmp_path, text, option, sentence):
    ended, _ = job(tmp_path, text, option, 1)
    assert ended.status == 0, ended.output
    assert sentence in ended.output and "after the job's work was done" in ended.output


def test_a_finished_rank_that_was_stopped_is_spoken_for(tmp_path):
    ended, took_s = job(tmp_path, STOPPED_BEFORE_THE_END)
    assert ended.status == 0, ended.output
    assert took_s < 15 and not ended.named("recovery")


@pytest.mark.long
def test_a_last_sync_that_never_ends_is_told(tmp_path):
    ended, _ = job(tmp_path, STUCK_IN_ITS_LAST_SYNC, "--stable", "power", "--stall-timeout-s", 6)
    assert ended.status == 3, ended.output
    assert "rank 1: its last sync did not end within 6 s" in ended.output
    assert "--resume" in ended.output


@pytest.mark.long
def test_stopped_ranks_without_an_agent_are_ended(tmp_path):
    ended, took_s = job(tmp_path, AGENT_GONE)
    assert ended.status == 3, ended.output
    assert "the host agent" in ended.output and "--resume" in ended.output
    assert took_s < 15


def test_an_agent_that_stands_still_is_given_up_after_its_time():
    class Board:
        agent_beat = 7

    agent = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(agent.pid, signal.SIGSTOP)
        patience = AgentPatience(agent, Board)
        assert not patience.overdue(100.0) and not patience.overdue(100.0 + AGENT_SILENT_S)
        Board.agent_beat += 1
        assert not patience.overdue(101.0 + AGENT_SILENT_S)
        assert "stands still" in patience.overdue(102.0 + 2 * AGENT_SILENT_S)
    finally:
        agent.kill()
        agent.wait()


KILLS_MPIRUN = """
with ftrt.init():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""


def test_an_mpirun_that_is_killed_is_named(tmp_path):
    ended, took_s = job(tmp_path, KILLS_MPIRUN, "--spares", 1)
    assert ended.status == 3, ended.output
    assert ended.report["reason"].startswith("mpirun was ended by SIGKILL, and its ranks with it")
    assert took_s < 15


def test_an_mpirun_that_is_killed_leaves_no_session(tmp_path, monkeypatch):
    """One that gets its process id later would find it, and could not start."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    ended, _ = job(tmp_path, KILLS_MPIRUN)
    assert ended.status == 3
    assert not list(temporary.glob("ompi.*"))
    assert not list(Path("/dev/shm").glob(f"ftrt-{ended.report['job'][:8]}*"))


def test_an_mpirun_that_does_not_exit_is_ended(tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(ENDS_AND_STAYS.format(python=sys.executable, mpirun=find_mpirun()))
    mpirun.chmod(0o755)
    ended, took_s = job(tmp_path, "with ftrt.init():\n    pass\n", "--mpirun", mpirun)
    assert ended.status == 0, ended.output
    assert took_s < 15


def test_an_mpirun_that_cannot_be_started_any_more_is_one_sentence(tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(GOES_AWAY)
    mpirun.chmod(0o755)
    ended, took_s = job(tmp_path, "with ftrt.init():\n    pass\n", "--mpirun", mpirun)
    assert ended.status == 2, ended.output
    assert f"{mpirun} cannot be started (No such file or directory)" in ended.output
    assert took_s < 10
