"""The ranks of the agreement benchmark: MPI's own calls and ours by turns, in one start of mpirun.

``_agree_job.py host|hosts BLOCKS DIR`` prints a JSON object {name: [microseconds a call, ...]}.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ftrt.agree.epoch import EpochId
from ftrt.agree.exchange import Table, Told
from ftrt.agree.marks import Marks, StreamMarks, merged
from ftrt.agree.tree import Tree
from ftrt.errors import InvariantBroken
from ftrt.host.gathering import Gathering
from ftrt.hosts.meeting import Meeting
from ftrt.hosts.packets import decode, encode
from ftrt.hosts.register import Register
from ftrt.hosts.sweep import Sweep, as_bytes, as_words
from ftrt.mpi import World

#: Words that everybody brings, room for more, and how long a block of calls shall take.
_CAPACITY, _BLOCK_S = 64, 0.03
_SWEEP_TAG, _MEETING_TAG = 5, 6
_LIMIT_S = 20.0


def table_of(rank: int, ranks: int) -> Table:
    """Marks of a rank: a stream from the rank before, with gaps, and one to the next."""
    gaps = Marks(100 + rank, [(110 + rank, 112 + rank), (120 + rank, 120 + rank)])
    consumed = StreamMarks("ring", (rank - 1) % ranks, rank, gaps)
    sent = StreamMarks("ring", rank, (rank + 1) % ranks, sent=200)
    return {consumed.key: consumed, sent.key: sent}


class Bench:
    """What one rank calls."""

    def __init__(self, world: World, directory: Path) -> None:
        self.comm, self.rank, self.ranks = world.comm, world.rank, world.size
        self.epoch, self.swept = EpochId("bench", 1, 1), 0
        self.table = table_of(self.rank, self.ranks)
        told = encode(Told(self.rank, self.epoch, self.table), self.rank, self.epoch)
        self.words = as_words(told)
        self.all = np.zeros((self.ranks, len(self.words)), np.uint64)
        self.directory = directory
        self.wire: Any = world.wire

    def agree(self) -> None:
        """MPI's own agreement, on one integer."""
        self.comm.Agree(1)

    def allgather_agree(self) -> None:
        """What MPI needs to carry what ours carries."""
        self.comm.Allgather(self.words, self.all)
        self.comm.Agree(1)

    def host(self) -> dict[str, Callable[[], None]]:
        """Calls of the ranks of one host."""
        path = self.directory / "gathering"
        if self.rank == 0:
            Gathering.create(path, self.ranks, _CAPACITY)
        self.comm.Barrier()
        self.gathering = Gathering(path, self.rank)

        def ours() -> None:
            self.gathering.agree(self.words, _LIMIT_S)

        calls = {"agree": self.agree, "allgather_agree": self.allgather_agree}
        return {**calls, "shared memory": ours}

    def hosts(self) -> dict[str, Callable[[], None]]:
        """Calls of agents, one a host."""
        register = Register(self.directory)

        def read(agent: int, epoch: EpochId) -> Table:
            full = table_of(agent, self.ranks)
            return {key: entry for key, entry in full.items() if self.rank in key[1:]}

        everybody = range(self.ranks)
        self.sweep = Sweep(self.wire, everybody, _CAPACITY, _SWEEP_TAG)
        own = Sweep(self.wire, everybody, _CAPACITY, _MEETING_TAG + 1)
        meeting = Meeting(self.wire, everybody, _MEETING_TAG, register, read, own)
        tree, home = Tree(tuple(everybody)), {rank: rank for rank in everybody}

        def sweep() -> None:
            self.swept += 1
            self.sweep.gather(self.words, self.swept, _LIMIT_S)

        def uniform() -> None:
            self.epoch = self.epoch.next()
            self.agreed = meeting.agree(self.epoch, tree, self.table, home, _LIMIT_S)
            if self.rank == 0:
                register.forget(EpochId("bench", 1, self.epoch.counter - 2))

        calls = {"agree": self.agree, "allgather_agree": self.allgather_agree}
        return {**calls, "sweep": sweep, "uniform": uniform}

    def check(self) -> None:
        """Everybody has what everybody brought."""
        tables = [table_of(rank, self.ranks) for rank in range(self.ranks)]
        everything = merged(*tables)
        ours = self.gathering if hasattr(self, "gathering") else self.sweep
        found = [self._table(ours.of(rank)) for rank in range(self.ranks)]
        same = found == tables and [self._table(row) for row in self.all] == tables
        if hasattr(self, "agreed"):
            record, marks = self.agreed
            mine = {key: entry for key, entry in everything.items() if self.rank in key[1:]}
            same = same and record.members == tuple(range(self.ranks)) and marks == mine
        if not same:
            raise InvariantBroken(f"rank {self.rank} has other marks than were brought")

    def _table(self, words: np.ndarray) -> Table:
        told: Any = decode(as_bytes(words), "bench", range(self.ranks))
        return told.marks


def measure(bench: Bench, calls: dict[str, Callable[[], None]], blocks: int) -> dict[str, list]:
    """Time blocks of each call by turns; all ranks make the same calls."""
    comm = bench.comm
    times: dict[str, list[float]] = {name: [] for name in calls}
    counts: dict[str, int] = {}
    for name, call in calls.items():
        _timed(comm, call, 20)
        counts[name] = comm.bcast(max(20, int(_BLOCK_S / _timed(comm, call, 20))))
    for _ in range(blocks):
        for name, call in calls.items():
            times[name].append(_timed(comm, call, counts[name]) * 1e6)
    return times


def _timed(comm: Any, call: Callable[[], None], count: int) -> float:
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def main(arguments: list[str]) -> None:
    """One rank's part."""
    form, blocks, directory = arguments[0], int(arguments[1]), Path(arguments[2])
    world = World(data_over_mpi=form == "hosts")
    bench = Bench(world, directory)
    calls = bench.host() if form == "host" else bench.hosts()
    gc.collect()
    gc.freeze()  # as the agent does: no collection goes through all that was imported
    times = measure(bench, calls, blocks)
    bench.check()
    bench.comm.Barrier()
    if bench.rank == 0:
        print(json.dumps(times), flush=True)
    time.sleep(0.1)  # MPI takes whoever leaves for dead, and a barrier ends at each at its own time
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
