"""What a rank does for every message beside moving it, in as few instructions as it takes."""

from __future__ import annotations

from typing import Any

from numba import njit, types

from ftrt.host.board import Field
from ftrt.ledger import commit
from ftrt.ledger.log import StreamLog
from ftrt.transport import entries
from ftrt.transport.direct import ADDRESS, direct, place, state_at

_I64 = types.int64
# What the kernel here calls; a test that puts its own commit in its place gets it called.
_COMPILED = commit.append


@njit(_I64(ADDRESS, _I64, _I64, _I64), cache=True)
def _record(entry, seq, count, dropped):
    return entries.record(state_at(place(entry), entries.ENTRY), seq, count, dropped)


_record_directly = direct(_record)


class Recorder:
    """Commits numbers of one stream end to the ledger and counts them on the board.

    One compiled call does both, unless a fault waits for its message: it must strike right after
    the commit that it was ordered for.
    """

    __slots__ = (
        *("_board", "_counter", "_cursor", "_faults", "_runtime", "_stages"),
        *("counts", "entry", "log"),
    )

    def __init__(self, runtime, log: StreamLog, counts: bool = True):
        self._runtime, self.log, self.counts = runtime, log, counts
        self._board = runtime.job.board
        self._counter = runtime.job.board.counter_index(runtime.rank)
        self._faults = runtime._injector.pending
        self._stages = runtime.stages
        self.entry = entries.blank()
        self._cursor: object = None

    @property
    def direct(self) -> bool:
        """Whether a kernel may do all of it, with :attr:`entry` as it is now."""
        if self._faults or not self.counts or commit.append is not _COMPILED:
            return False
        if self._stages is not None:  # the first message after a take-over is timed
            return False
        log, entry = self.log, self.entry
        if log._cursor is not self._cursor:  # another segment, or another epoch
            entry[entries.E_WHOLE] = log._whole.ctypes.data
            entry[entries.E_CURSOR] = log._cursor.ctypes.data
            entry[entries.E_COUNTER] = self._board.address + 8 * self._counter
            self._cursor = log._cursor
        return True

    def record(self, seq: int, count: int, dropped: bool = False) -> None:
        """Commit ``count`` numbers from ``seq`` on; LedgerClosed if the epoch has ended."""
        if self.direct and _record_directly(self.entry, seq, count, dropped) == commit.DONE:
            return
        self.log.append(seq, count, dropped)
        if self.counts:
            if self._stages is not None:
                self._stages.end(Field.FIRST)
                self._stages = None
            self._runtime.count(count)


class Bell:
    """Wakes the process that acts as one rank, if it sleeps."""

    __slots__ = ("_epoch", "_index", "_job", "_rank", "_words")

    def __init__(self, job, rank: int):
        self._job, self._rank = job, rank
        self._words: Any = memoryview(job.board.words.data)
        self._epoch, self._index = -1, 0

    def address(self) -> int:
        """Where the word lies, in the epoch in force, that says whether it sleeps."""
        board = self._job.board
        return board.address + 8 * board.index(self._job.processes[self._rank], Field.SLEEPING)

    def ring(self) -> None:
        """Wake it, after a store that it may be waiting for."""
        job = self._job
        if job.epoch != self._epoch:
            self._epoch = job.epoch
            self._index = job.board.index(job.processes[self._rank], Field.SLEEPING)
        if self._words[self._index]:
            job.wake(self._rank)
