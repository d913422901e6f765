"""What a rank does for every message beside moving it, in as few instructions as it takes."""

from __future__ import annotations

from typing import Any

from numba import njit, types

from ftrt.atomics import fetch_add
from ftrt.host.board import Field
from ftrt.ledger import commit
from ftrt.ledger.log import StreamLog
from ftrt.transport.direct import ADDRESS, direct, place, state_at, words_at

_I64 = types.int64
# What the kernel here calls; a test that puts its own commit in its place gets it called.
_COMPILED = commit.append
_ANY_LENGTH = 1 << 40  # the kernel stays inside by itself


@njit(_I64(ADDRESS, ADDRESS, ADDRESS, _I64, _I64, _I64, _I64), cache=True)
def _record(whole, cursor, board, counter, seq, count, dropped):
    status = commit.append(
        words_at(place(whole), _ANY_LENGTH),
        state_at(place(cursor), _ANY_LENGTH),
        seq,
        count,
        dropped,
    )
    if status == commit.DONE:
        fetch_add(words_at(place(board), _ANY_LENGTH), counter, types.uint64(count))
    return status


_record_directly = direct(_record)


class Recorder:
    """Commits numbers of one stream end to the ledger and counts them on the board.

    One compiled call does both, unless a fault waits for its message: it must strike right after
    the commit that it was ordered for.
    """

    __slots__ = ("_board", "_counter", "_faults", "_runtime", "counts", "log")

    def __init__(self, runtime, log: StreamLog, counts: bool = True):
        self._runtime, self.log, self.counts = runtime, log, counts
        self._board = runtime.job.board.words
        self._counter = runtime.job.board.counter_index(runtime.rank)
        self._faults = runtime._injector.pending

    def record(self, seq: int, count: int, dropped: bool = False) -> None:
        """Commit ``count`` numbers from ``seq`` on; LedgerClosed if the epoch has ended."""
        log = self.log
        if self._faults or not self.counts or commit.append is not _COMPILED:
            log.append(seq, count, dropped)
            if self.counts:
                self._runtime.count(count)
            return
        status = _record_directly(
            log._whole, log._cursor, self._board, self._counter, seq, count, dropped
        )
        if status:
            log.append(seq, count, dropped)
            self._runtime.count(count)


class Bell:
    """Wakes the process that acts as one rank, if it sleeps."""

    __slots__ = ("_epoch", "_index", "_job", "_rank", "_words")

    def __init__(self, job, rank: int):
        self._job, self._rank = job, rank
        self._words: Any = memoryview(job.board.words.data)
        self._epoch, self._index = -1, 0

    def ring(self) -> None:
        """Wake it, after a store that it may be waiting for."""
        job = self._job
        if job.epoch != self._epoch:
            self._epoch = job.epoch
            self._index = job.board.index(job.processes[self._rank], Field.SLEEPING)
        if self._words[self._index]:
            job.wake(self._rank)
