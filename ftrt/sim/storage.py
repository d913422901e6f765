"""Shared storage in memory: ledgers with closing, exclusive records, spools, and what a crash
takes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.agree.agreement import AgreedRecord
from ftrt.agree.epoch import EpochId
from ftrt.agree.marks import Key, Marks, StreamMarks

if TYPE_CHECKING:
    from ftrt.sim.world import World

State = dict[int, tuple[int, int]]


class LedgerClosed(Exception):
    """The epoch of this ledger has ended; nothing was applied."""


class Ledger:
    """One rank's ledger of one epoch: a list of commits, the first `durable` of them safe.

    An event is ``(stream index, first number, count, sum of values)``: mark and effect are one
    thing here, as they are in the file.
    """

    __slots__ = (
        "closed",
        "durable",
        "epoch",
        "events",
        "home",
        "last",
        "owner",
        "rank",
        "sent",
        "written",
    )

    def __init__(self, epoch: int, rank: int) -> None:
        self.epoch, self.rank = epoch, rank
        self.closed = False
        self.owner: int | None = None
        self.home = -1
        self.events: list[tuple[int, int, int, int]] = []
        self.durable = 0
        self.written: dict[int, Marks] = {}
        self.sent: dict[int, int] = {}
        self.last: dict[int, int] = {}

    def append(self, stream: int, seq: int, count: int, value: int) -> None:
        """Commit consumed messages."""
        if self.closed:
            raise LedgerClosed
        self.events.append((stream, seq, count, value))

    def write(self, length: int) -> None:
        """Have the first `length` commits on storage."""
        for stream, seq, count, _ in self.events[self.durable : length]:
            marks = self.written.get(stream)
            if marks is None:
                marks = self.written[stream] = Marks()
            marks.add(seq, count)
        self.durable = max(self.durable, length)

    def record_sent(self, stream: int, seq: int) -> None:
        """Record a number before its message leaves."""
        if self.closed:
            raise LedgerClosed
        if seq > self.sent.get(stream, 0):
            self.sent[stream] = seq

    def finish(self, stream: int, last: int) -> None:
        """Record the last number of a stream."""
        if self.closed:
            raise LedgerClosed
        self.last[stream] = last


class Record:
    """The record of one epoch, as it lies on storage."""

    __slots__ = (
        "agents",
        "agreed",
        "by_rank",
        "dead",
        "delivered",
        "durable",
        "epoch",
        "marks",
        "members",
        "parent",
        "seals",
        "spares",
        "states",
    )

    def __init__(
        self,
        epoch: EpochId,
        parent: int,
        members: tuple[tuple[int, int], ...],
        spares: tuple[int, ...],
        marks: dict[Key, StreamMarks],
        agents: tuple[int, ...],
        agreed: AgreedRecord,
    ) -> None:
        self.epoch, self.parent, self.members, self.spares = epoch, parent, members, spares
        self.marks, self.agents, self.agreed = marks, agents, agreed
        self.by_rank = dict(members)
        self.dead: tuple[int, ...] = ()
        self.seals: dict[int, int] = {}
        self.states: dict[int, State] = {}
        self.delivered: dict[Key, int] = {}
        self.durable = True


class Spool:
    """Payloads of one stream: all of ``freed + 1 .. last``.

    It has a fence of its own: two processes that were cut off together may go on consuming in an
    epoch that is over, and what they free would be missing in its successor.
    """

    __slots__ = ("durable", "epoch", "freed", "last")

    def __init__(self) -> None:
        self.last = self.freed = self.durable = self.epoch = 0

    def free(self, upto: int, epoch: int) -> None:
        """Forget payloads, unless the epoch of whoever asks was ended."""
        if epoch >= self.epoch and upto > self.freed:
            self.freed = upto


class Storage:
    """The ledger directory of a job."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records: dict[int, Record] = {}
        self.latest = 0
        self.ledgers: dict[tuple[int, int], Ledger] = {}
        self.spools: dict[int, Spool] = {}

    def ledger(self, epoch: int, rank: int) -> Ledger:
        """Return the ledger, made beforehand for whoever opens it."""
        found = self.ledgers.get((epoch, rank))
        if found is None:
            found = self.ledgers[epoch, rank] = Ledger(epoch, rank)
        return found

    def spool(self, stream: int) -> Spool:
        """Return the spool of a stream."""
        return self.spools.setdefault(stream, Spool())

    def fence_spools(self, epoch: int) -> None:
        """Let nobody free anything by what was consumed before `epoch`."""
        for spool in self.spools.values():
            spool.epoch = max(spool.epoch, epoch)

    def create(self, record: Record) -> bool:
        """Create a record exclusively."""
        counter = record.epoch.counter
        if counter in self.records:
            return False
        self.put(record)
        return True

    def put(self, record: Record) -> None:
        """Store a record under its counter."""
        counter = record.epoch.counter
        self.records[counter] = record
        self.latest = max(self.latest, counter)
        self.world.checks.on_record(record)

    def crash(self, hosts: set[int], power: bool) -> None:
        """Lose what these hosts had not written: a part of it may have reached the disk."""
        dice = self.world.dice
        for ledger in self.ledgers.values():
            if ledger.home in hosts and len(ledger.events) > ledger.durable:
                del ledger.events[dice.randint(ledger.durable, len(ledger.events)) :]
        if power:
            for spool in self.spools.values():
                spool.last = dice.randint(spool.durable, max(spool.durable, spool.last))
            for counter in [c for c, record in self.records.items() if not record.durable]:
                del self.records[counter]
            self.latest = max(self.records, default=0)
        self.world.checks.on_crash(self)


def marks_of(world: World, ledger: Ledger, length: int, table: dict[Key, StreamMarks]) -> None:
    """Add the first `length` commits of a ledger, and what it says of sending, to a table."""
    streams = world.plan.streams
    for index, seq, count, _ in ledger.events[:length]:
        key = streams[index].key
        entry = table.get(key)
        if entry is None:
            entry = table[key] = StreamMarks(*key, Marks())
        entry.marks.add(seq, count)
    for index, seq in ledger.sent.items():
        key = streams[index].key
        entry = table.setdefault(key, StreamMarks(*key))
        entry.sent = max(entry.sent, seq)
    for index, last in ledger.last.items():
        key = streams[index].key
        entry = table.setdefault(key, StreamMarks(*key))
        entry.last = max(entry.last, last)


def state_after(before: State, ledger: Ledger, length: int) -> State:
    """Return the effects of a rank after the first `length` commits of a ledger."""
    state = dict(before)
    for index, _, count, value in ledger.events[:length]:
        have, total = state.get(index, (0, 0))
        state[index] = (have + count, total + value)
    return state
