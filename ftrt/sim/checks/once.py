"""Exactly once, against a plain model: of what counts in the ledgers each number is there once,
and every rank's state is the sum over all its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.agree.marks import Marks
from ftrt.sim.checks.base import Violation
from ftrt.sim.process import value_of

if TYPE_CHECKING:
    from ftrt.sim.storage import Ledger, Record, Storage
    from ftrt.sim.world import World


class ExactlyOnce:
    """Counts what each record seals; at the end what the last epoch's ledgers hold."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._counted = [Marks() for _ in world.plan.streams]
        self._sealed: list[tuple[Ledger, int]] = []
        self._lost_allowed = [Marks() for _ in world.plan.streams]

    def allow_loss(self, stream: int, first: int, last: int) -> None:
        """A volatile sender died with these."""
        self._lost_allowed[stream].add(first, last - first + 1)

    def counted(self, stream: int) -> Marks:
        """What of a stream has taken effect, as far as records and `at_end` have counted."""
        return self._counted[stream]

    def recorded(self, record: Record) -> None:
        """Count what the record seals of the epoch before."""
        storage = self.world.storage
        for rank, length in record.seals.items():
            ledger = storage.ledger(record.parent, rank)
            self._count(ledger, length)
            self._sealed.append((ledger, length))
        for index, counted in enumerate(self._counted):
            key = self.world.plan.streams[index].key
            marks = record.marks[key].marks if key in record.marks else Marks()
            if marks != counted:
                raise Violation(
                    "once",
                    f"the record of epoch {record.epoch.counter} has {marks!r} of {key}, its "
                    f"ledgers {counted!r}",
                )

    def _count(self, ledger: Ledger, length: int) -> None:
        for index, seq, count, value in ledger.events[:length]:
            new = self._counted[index].add(seq, count)
            if new != count:
                name = self.world.plan.streams[index].name
                raise Violation(
                    "once",
                    f"message {seq} of {name} took effect twice, again at rank {ledger.rank} in "
                    f"epoch {ledger.epoch}",
                )
            if value != value_of(index, seq, count):
                raise Violation("once", f"message {seq} of stream {index} had a wrong payload")

    def crashed(self, storage: Storage) -> None:
        """What a record seals must have been written."""
        for ledger, length in self._sealed:
            if len(ledger.events) < length:
                raise Violation(
                    "once",
                    f"rank {ledger.rank}'s ledger of epoch {ledger.epoch} was sealed at {length} "
                    f"and has {len(ledger.events)} events after a crash",
                )

    def at_end(self) -> None:
        """Every message took effect once, and the states say so too."""
        world = self.world
        if world.launcher.given_up:
            return
        storage = world.storage
        for rank in range(world.plan.ranks):
            ledger = storage.ledger(storage.latest, rank)
            self._count(ledger, len(ledger.events))
        for index, stream in enumerate(world.plan.streams):
            self._lost_allowed[index].merge(self._counted[index])
            missing = self._lost_allowed[index].missing(stream.last)
            if missing or self._counted[index].highest > stream.last:
                raise Violation("once", f"messages {missing} of {stream.name} never took effect")
        self._states()

    def _states(self) -> None:
        """Compare the memory of the ranks that finished with the plain model."""
        world = self.world
        record = world.storage.records[world.storage.latest]
        for rank, process in record.members:
            found = world.launcher.now.processes.get(process)
            if found is None or not found.finished or found.epoch != world.storage.latest:
                continue
            for stream in world.plan.streams:
                if stream.dest != rank:
                    continue
                want = _model(self._counted[stream.number], stream.number)
                have = found.state.get(stream.number, (0, 0))
                if have != want:
                    raise Violation(
                        "once", f"rank {rank} has {have} of {stream.name}, the plain model {want}"
                    )


def _model(counted: Marks, index: int) -> tuple[int, int]:
    total = sum(value_of(index, a, b - a + 1) for a, b in counted.ranges)
    return counted.count, total
