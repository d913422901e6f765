"""The application's own collectives on ``rt.comm`` while ranks die."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import run_job

PROGRAM = """
import os, signal, time
import ftrt
from ftrt.errors import PeerFailed

STEPS, DEATHS = 400, {100: 2, 200: 0}

with ftrt.init() as rt:
    from mpi4py import MPI

    first, step, raised = rt.epoch, 0, 0
    while step < STEPS:
        try:
            comm = rt.comm
            step = comm.allreduce(step if rt.role.value != "recovered" or step else STEPS, MPI.MIN)
            if DEATHS.get(step) == rt.rank and rt.epoch == sorted(DEATHS).index(step) + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            assert comm.allreduce(1) == 4 and comm.rank == rt.rank
            step += 1
        except (MPI.Exception, PeerFailed):
            raised += 1
            before = time.monotonic()
            while not rt.job.moved_on and rt.job.epoch == rt.epoch:
                rt.job.check()
                assert time.monotonic() - before < 10
                time.sleep(0.001)
    print("rank", rt.rank, "raised", raised, "epoch", rt.epoch, flush=True)
"""


@pytest.mark.long  # test_situations.py has its shorter form
@pytest.mark.parametrize("spares", [2, 3])
def test_a_collective_ends_when_a_member_dies_and_goes_on_in_the_next_epoch(tmp_path, spares):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = run_job(tmp_path, ["-n", 4, "--spares", spares], program, limit_s=40)
    assert ended.status == 0, ended.output
    assert len(ended.named("recovery")) == 2
    assert ended.output.count("epoch 3") >= 4


def test_a_collective_ends_when_nobody_can_take_over(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = run_job(tmp_path, ["-n", 4], program, limit_s=30)
    assert ended.status == 3, ended.output
    assert "rank 2 of 4 died and no spare is left" in ended.output
