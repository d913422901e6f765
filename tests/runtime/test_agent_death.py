"""The host's agent dies: nobody repairs any more, so the attempt ends soon, and nothing is lost."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import run_job

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
