"""Taking over the ranks of dead processes when no spare is left.

A process that can do so says *willing* on the board. While the agent decides it holds the word, so
that no heir leaves between the choice and the epoch that names it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ftrt import atomics
from ftrt.errors import RecoveryImpossible, UsageError
from ftrt.host.board import Field, Phase
from ftrt.host.words import Heir
from ftrt.runtime.receiver import Message, Receiver
from ftrt.runtime.seat import InheritedSeat, Seat

if TYPE_CHECKING:
    from ftrt.runtime.runtime import Runtime

Sources = Iterable[int] | Callable[[int], Iterable[int]]

_EVER = float("inf")
_HELD_LOOK_S = 0.0005
_DONE = (Phase.LEAVING, Phase.FINISHED)


class Inheritance:
    """The seats of one process, and what it says on the board about taking more."""

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._inherited: dict[int, InheritedSeat] = {}
        job = runtime.job
        self._word = job.board.index(job.process, Field.HEIR)
        self._idle = False

    @property
    def all_seats(self) -> list[Seat]:
        """The process's own rank, then those that it inherited."""
        return [self._runtime, *self._inherited.values()]

    def enter_epoch(self) -> None:
        """Open the ledgers of all inherited ranks in the epoch in force; LedgerClosed if it ended.

        A rank that is new is taken only then.
        """
        job = self._runtime.job
        for seat in self._inherited.values():
            seat._open_ledger()
        for rank, process in sorted(job.inherited.items()):
            if process == job.process and rank not in self._inherited:
                seat = InheritedSeat(self._runtime, rank)
                seat._open_ledger()
                self._inherited[rank] = seat
                self._say_idle(False)
                self._runtime.note("inherited", inherited=rank)

    # -- willing -----------------------------------------------------------------------------

    def offer(self) -> None:
        """Say that this process takes over ranks."""
        words = self._runtime.job.board.words
        if self._runtime.config.least:
            atomics.swap_if(words, self._word, Heir.NO.value, Heir.WILLING.value)

    def withdraw(self) -> None:
        """Say that it does not any more: the program has left its work.

        Raises
        ------
        RecoveryImpossible
            It inherited a rank whose work nobody has taken up.
        """
        runtime, words = self._runtime, self._runtime.job.board.words
        no, willing = Heir.NO.value, Heir.WILLING.value
        while int(atomics.swap_if(words, self._word, willing, no)) == Heir.HELD:
            runtime.job.check()
            time.sleep(_HELD_LOOK_S)
        if runtime.job.moved_on:
            runtime.advance()
        for seat in self._inherited.values():
            if not seat.served and (left := seat.unfinished):
                raise RecoveryImpossible(
                    f"rank {runtime.rank} had left its work when it inherited rank {seat.rank}, "
                    f"whose stream {left[0]} is not at its end; nothing that was committed is lost"
                )

    # -- work --------------------------------------------------------------------------------

    def seats(self) -> Iterator[Seat]:
        """See :meth:`ftrt.Runtime.seats`."""
        self.offer()
        yield self._runtime
        while (seat := self._next_seat()) is not None:
            seat.served = True
            yield seat

    def _next_seat(self) -> InheritedSeat | None:
        found = self._runtime.wait(self._new_or_over, "the end of the others' work", _EVER)
        return found if isinstance(found, InheritedSeat) else None

    def _new_or_over(self) -> InheritedSeat | bool:
        for seat in self._inherited.values():
            if not seat.served:
                return seat
        return self.is_over()

    def to_serve(self, stream: str) -> Iterator[InheritedSeat]:
        """Inherited ranks that nobody serves yet and that consume a stream."""
        for seat in self._inherited.values():
            if not seat.served and any(name == stream for name, _ in seat.sources):
                seat.served = True
                yield seat

    def is_over(self) -> bool:
        """Say that there is nothing to do here now; whether that is so everywhere."""
        job = self._runtime.job
        if not self._runtime.config.least:
            return True  # nobody can inherit anything
        self._say_idle(True)
        return not job.moved_on and all(map(self._has_nothing_to_do, set(job.processes.values())))

    def _has_nothing_to_do(self, process: int) -> bool:
        board = self._runtime.job.board
        return bool(board.get(process, Field.IDLE)) or board.get(process, Field.PHASE) in _DONE

    def _say_idle(self, idle: bool) -> None:
        if idle != self._idle:
            job, self._idle = self._runtime.job, idle
            job.board.put(job.process, Field.IDLE, int(idle))
            job.board.ring_all()


class Inbox:
    """See :meth:`ftrt.Runtime.inbox`."""

    def __init__(self, runtime: Runtime, stream: str, sources: Sources):
        self._runtime, self.stream = runtime, stream
        if not callable(sources):
            fixed = list(sources)
            self._sources: Callable[[int], Iterable[int]] = lambda rank: fixed
        else:
            self._sources = sources
        self._open: deque[Receiver] = deque()
        if not self._serve(runtime):
            raise UsageError(
                f"inbox {stream!r}: sources name no rank that sends to rank {runtime.rank}"
            )
        runtime.heirs.offer()

    def __iter__(self) -> Inbox:
        return self

    def __next__(self) -> Message:
        what = f"a message of stream {self.stream!r} from anybody"
        while True:
            # Whoever has no stream left waits for the others, whose own waits are bounded.
            found = self._runtime.wait(self._look, what, None if self._open else _EVER)
            if isinstance(found, Message):
                return found
            if found is self:
                raise StopIteration

    def _look(self) -> Message | Inbox | bool | None:
        for seat in self._runtime.heirs.to_serve(self.stream):
            if self._serve(seat):
                return True  # another wait, with its limit
        for _ in range(len(self._open)):
            found = self._open[0].look()
            if isinstance(found, Message):
                self._open.rotate(-1)
                return found
            if found is not None:
                self._open.popleft()
                if not self._open:
                    return True
            else:
                self._open.rotate(-1)
        return self if not self._open and self._runtime.heirs.is_over() else None

    def _serve(self, seat: Seat) -> bool:
        sources = set(self._sources(seat.rank)) - {seat.rank}
        if isinstance(seat, InheritedSeat):
            sources |= {source for name, source in seat.sources if name == self.stream}
        self._open.extend(seat.receiver(self.stream, source) for source in sorted(sources))
        return bool(sources)
