"""The processes of an mpirun before the job runs: which of them are gone already?

A rank that never calls ``ftrt.init()`` keeps all others waiting in theirs, and mpirun, told to
bear the loss of processes, says nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

from ftrt.host import libc
from ftrt.launch.judge import Verdict
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
        self._descriptors: dict[int, int] = {}

    def missing(self) -> list[int]:
        """World ranks that have no living process, none before mpirun has started any."""
        ranks = self._ranks_below(self._mpirun)
        if not ranks or None in ranks:  # it is about to start them
            return []
        return sorted(self._processes - ranks)

    def verdict(self, process: int) -> Verdict:
        """What the end of a process means that the others now wait for.

        A signal is nobody's decision: another attempt may not meet it. Where the kernel does not
        tell how it ended, it is taken for one, unless it ended before anybody had seen it.
        """
        name = f"process {process}"
        status = self._wait_status(process)
        if status is None and process in self._descriptors:
            what = "was killed, or left without a word,"
        elif status is not None and os.WIFSIGNALED(status):
            what = f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        else:
            return Verdict(
                "error",
                f"{name} ended without ftrt.init(), and the others wait for it: every process "
                "calls it, and the spares among them wait inside",
            )
        return Verdict(
            "failed",
            f"{name} {what} before it had joined the job in ftrt.init(), where the others wait "
            "for it; nothing that was committed is lost: --restarts R begins again, and so does "
            "the same command with --resume",
        )

    @property
    def all_seen(self) -> bool:
        """Whether each of them was there at some time."""
        return self._processes <= self._descriptors.keys()

    def close(self) -> None:
        """Forget the processes."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def _wait_status(self, process: int) -> int | None:
        descriptor = self._descriptors.get(process)
        return None if descriptor is None else libc.wait_status(descriptor)

    def _ranks_below(self, parent: int) -> set[int | None]:
        """Ranks of the processes under ``parent``; None for one that is not a rank yet."""
        found: set[int | None] = set()
        for pid in filter(start_time, _children(parent)):
            rank = _world_rank(pid)
            if rank is None and _children(pid):  # a daemon that starts them for mpirun
                found |= self._ranks_below(pid)
            else:
                found.add(rank)
                self._remember(rank, pid)
        return found

    def _remember(self, rank: int | None, pid: int) -> None:
        """Keep hold of a process: how it ended is told for as long as somebody does."""
        if rank is not None and rank not in self._descriptors:
            with contextlib.suppress(OSError):  # gone already
                self._descriptors[rank] = os.pidfd_open(pid)


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
