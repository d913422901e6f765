"""A stream from rank 0 to rank 1 in which one rank meets its end at chosen points of the ledger.

A point is ``name:n``, the n-th time that a life of the victim passes ``name``; each life takes the
next one. At ``name:n@other`` it is the other end that dies, and the victim goes on only when the
next epoch is in force: its commit is then one that the ledger was closed under.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from kill_points import open_commit

import ftrt
from ftrt.host.board import Field
from ftrt.ledger import steps
from ftrt.ledger.state import blank_path
from ftrt.oracle import Effects
from ftrt.runtime import hot  # noqa: F401 (it has to know the compiled commit beforehand)
from ftrt.runtime import job as runtime_job

STREAM = "numbers"


class Points:
    """Strikes at the points of a list, one after the other over all lives of a rank."""

    def __init__(self, points: list[str], struck: Path):
        self._points, self._struck = points, struck
        self._seen: dict[str, int] = {}
        self.job = None

    def begin(self, job) -> None:
        """Count from here on, once the next life will find the state file made beforehand."""
        self.job = job
        if str(job.rank) in job.record["states"]:
            wait_for(blank_path(job.config.ledger, job.epoch + 1, job.rank).exists)
        steps.install(self)

    def __call__(self, name: str) -> None:
        number = len(list(self._struck.iterdir()))
        if number == len(self._points):
            return
        self._seen[name] = self._seen.get(name, 0) + 1
        here, _, other = self._points[number].partition("@")
        if here != f"{name}:{self._seen[name]}":
            return
        (self._struck / f"{number:03d}-{name}").touch()
        self._seen.clear()
        if not other:
            os.kill(os.getpid(), signal.SIGKILL)
        self._end_the_other()

    def _end_the_other(self) -> None:
        job = self.job
        other = job.processes[1 - job.rank]
        with contextlib.suppress(ProcessLookupError):  # it died just now
            os.kill(job.board.get(other, Field.PID), signal.SIGKILL)
        wait_for(lambda: job.moved_on)


def wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what this death waits for did not come")
        time.sleep(0.001)


def arm(points: Points, victim: int) -> None:
    """Begin as soon as this process has the victim's rank, before it opens its ledger."""
    original = runtime_job.Job.await_assignment

    def await_assignment(self, get_ready):
        original(self, get_ready)
        if self.rank == victim:
            points.begin(self)

    runtime_job.Job.await_assignment = await_assignment


def state_after(seq: int) -> np.ndarray:
    """What the effect of message ``seq`` leaves behind, at times much larger than before."""
    return np.full(500 + (seq % 50 == 0) * seq * 50, seq, np.float64)


def payload(seq: int, size: int) -> np.ndarray:
    return np.full(size, seq, np.uint64)


def send(rt, messages: int, size: int, spool: bool, delay_us: int) -> None:
    def make(seq):
        return payload(seq, size)

    how = {"spool": True} if spool else {"replay": make}
    with rt.sender(STREAM, to=1, slot_bytes=max(64, size * 8), window=16, **how) as out:
        while out.next_seq <= messages:
            out.send(make(out.next_seq))
            if delay_us:
                time.sleep(delay_us * 1e-6)


def receive(rt, messages: int, effects: Effects) -> None:
    state = rt.restore() or {"sum": 0}
    total = state["sum"]
    if total:
        last = int(state["array"][0])
        assert np.array_equal(state["array"], state_after(last))
        assert total == last * (last + 1) // 2, "one effect of a commit without the other"
    for message in rt.receiver(STREAM, source=0):
        effects.begin(STREAM, 0, message.seq)
        assert (message.array == message.seq).all()
        with message.consume() as effect:
            total = effect["sum"] = total + message.seq
            effect["array"] = state_after(message.seq)
        effects.committed(STREAM, 0, message.seq)
    assert total == messages * (messages + 1) // 2
    print("digest", hashlib.sha256(str(total).encode()).hexdigest(), flush=True)


@click.command()
@click.option("--messages", type=int, default=300)
@click.option("--size", type=int, default=8, help="Words of a message.")
@click.option("--effects", required=True)
@click.option("--victim", type=int, default=1)
@click.option("--point", "points", multiple=True)
@click.option("--struck", type=Path)
@click.option("--delay-us", type=int, default=0)
@click.option("--rough", is_flag=True)
@click.option("--packed", is_flag=True)
@click.option("--spool", is_flag=True)
def main(messages, size, effects, victim, points, struck, delay_us, rough, packed, spool):
    if points:
        open_commit(rough, packed)
        if rough:
            one_page_segments()
        arm(Points(list(points), struck), victim)
    with ftrt.init() as rt:
        if rt.rank == 0:
            send(rt, messages, size, spool, delay_us)
        elif rt.rank == 1:
            with Effects(effects, rt.rank) as oracle:
                receive(rt, messages, oracle)


def one_page_segments() -> None:
    """Take only the first page of every segment, so that 512 run words fill it."""
    from ftrt.ledger.log import _Part

    _Part.free_pages = property(lambda part: 1 - part.pages)


if __name__ == "__main__":
    main()
