"""The processes of an mpirun before the job runs: which of them are gone already?

A rank that never calls ``ftrt.init()`` keeps all others waiting in theirs, and mpirun, told to
bear the loss of processes, says nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from ftrt.launch.leftovers import start_time

_RANK = b"OMPI_COMM_WORLD_RANK="


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
        self._threads = Path(f"/proc/{pid}/task")
        self._processes = set(processes)

    def missing(self) -> list[int]:
        """World ranks that have no living process, none before mpirun has started any."""
        living = [pid for pid in self._now() if start_time(pid) is not None]
        ranks = {_world_rank(pid) for pid in living}
        if not living or None in ranks:  # it is about to start them
            return []
        return sorted(self._processes - ranks)

    def _now(self) -> list[int]:
        found: list[int] = []
        with contextlib.suppress(OSError):  # gone, or a kernel without these files
            for path in self._threads.glob("*/children"):
                found += map(int, path.read_text().split())
        return found


def _world_rank(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(_RANK):
                return int(entry[len(_RANK) :])
    return None
