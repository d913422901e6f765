"""The processes of an mpirun before the job runs: which of them are gone already?

A rank that never calls ``ftrt.init()`` keeps all others waiting in theirs, and mpirun, told to
bear the loss of processes, says nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from ftrt.launch.leftovers import start_time

_RANKS = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")


class Children:
    """Children of one mpirun.

    Parameters
    ----------
    pid : int
        The mpirun.
    processes : collection of int
        World ranks of those that it starts on this host.
    """

    def __init__(self, pid: int, processes: Collection[int]) -> None:
        self._mpirun = pid
        self._processes = set(processes)

    def missing(self) -> list[int]:
        """World ranks that have no living process, none before mpirun has started any."""
        ranks = self._ranks_below(self._mpirun)
        if not ranks or None in ranks:  # it is about to start them
            return []
        return sorted(self._processes - ranks)

    def _ranks_below(self, parent: int) -> set[int | None]:
        """Ranks of the processes under ``parent``; None for one that is not a rank yet."""
        found: set[int | None] = set()
        for pid in filter(start_time, _children(parent)):
            rank = _world_rank(pid)
            if rank is None and _children(pid):  # a daemon that starts them for mpirun
                found |= self._ranks_below(pid)
            else:
                found.add(rank)
        return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # gone, or a kernel without these files
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found


def _world_rank(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(_RANKS):
                return int(entry.partition(b"=")[2])
    return None
