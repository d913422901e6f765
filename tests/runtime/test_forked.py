"""Children that a program forks share a rank's memory, and say nothing of the rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import run_job

PROGRAM = """
import multiprocessing, os, sys
import numpy as np
import ftrt
from ftrt.errors import UsageError

how, MESSAGES = sys.argv[1], 200

def make(seq):
    return np.full(4, seq)

def refused(calls):
    for call in calls:
        try:
            call()
        except UsageError as error:
            assert "forked child" in str(error), error
        else:
            os._exit(9)

def consume(message):
    with message.consume() as effect:
        effect["sum"] = 10**6

def child(*calls):
    pid = os.fork()
    if pid == 0:
        if how == "leaves":
            sys.exit(0)
        if how == "raises":
            raise ValueError("of a child")
        if how == "falls through":
            return
        refused(calls)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == (0 if how in ("leaves", "tries") else 1), status

with ftrt.init() as rt:
    if rt.rank == 0:
        with rt.sender("s", to=1, replay=make) as out:
            while out.next_seq <= MESSAGES:
                out.send(make(out.next_seq))
                if out.next_seq == 100:
                    child(lambda: out.send(make(7)), lambda: out.send_batch(np.ones((2, 4))),
                          lambda: rt.sender("t", to=1, spool=True))
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    else:
        state = rt.restore() or {"sum": 0}
        end = rt.receiver("s", 0)
        for message in end:
            if message.seq == 50:
                child(lambda: consume(message), message.drop, lambda: [end.receive() for _ in end])
            state["sum"] += int(message.array[0])
            with message.consume() as effect:
                effect["sum"] = state["sum"]
        assert state["sum"] == rt.restore()["sum"] == MESSAGES * (MESSAGES + 1) // 2
"""


@pytest.mark.parametrize("how", ["leaves", "raises", "falls through", "tries"])
def test_a_child_is_not_the_rank(tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["-n", 2, "--spares", 1, "--fault", "kill:1@150msg"]
    ended = run_job(tmp_path, options, program, how, limit_s=30)
    assert ended.status == 0, ended.output
    assert ended.report["audit"]["consumed"] == ended.report["audit"]["sent"] == 200
    assert ended.report["audit"]["ok"] and len(ended.named("recovery")) == 1
    assert len(ended.named("died")) == 1
