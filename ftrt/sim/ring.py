"""The shared-memory ring and its two ends, in the shape of the production plane.

The ring outlives both ends: sealed when its sender is replaced, its receiver generation bumped
when its receiver is.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ftrt.agree.marks import Marks

if TYPE_CHECKING:
    from ftrt.sim.plan import Stream
    from ftrt.sim.process import Process
    from ftrt.sim.storage import Record


class RingRetired(Exception):
    """This end belongs to a successor now."""


class Ring:
    """Slots in the memory of a host; frame ``f`` is ``frames[f - 1]``."""

    __slots__ = ("closed", "frames", "generation", "released", "sealed", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.frames: list[int] = []
        self.released = 0
        self.generation = 0
        self.sealed: int | None = None
        self.closed: int | None = None

    def seal(self) -> int:
        """Fix what counts; return one past the last number that the ring ever held, 0 if none."""
        if self.sealed is None:
            self.sealed = len(self.frames)
        return self.frames[self.sealed - 1] + 1 if self.sealed else 0

    def retire_receiver(self) -> None:
        """Let the old receiver release nothing any more."""
        self.generation += 1

    @property
    def readable(self) -> int:
        """How many frames count."""
        return len(self.frames) if self.sealed is None else self.sealed


class RingSender:
    """The sending end of a stream."""

    __slots__ = ("have", "next_seq", "process", "ring", "spool", "stream", "todo")

    def __init__(self, process: Process, stream: Stream, record: Record) -> None:
        world = process.world
        self.process, self.stream = process, stream
        entry = record.marks.get(stream.key)
        self.have = entry.marks.copy() if entry else Marks()
        delivered = record.delivered.get(stream.key, 0)
        highest = max(delivered, self.have.highest)
        if delivered:
            self.have.add(1, delivered)
        self.spool = world.storage.spool(stream.number) if stream.kind == "spool" else None
        in_spool = self.spool.last if self.spool else 0
        self.next_seq = max(in_spool, highest) + 1
        self.todo: deque[int] = deque()
        for first, last in self.have.missing(self.next_seq - 1):
            if stream.kind == "volatile":
                world.checks.once.allow_loss(stream.number, first, last)
                continue
            if self.spool is not None and first <= self.spool.freed:
                world.checks.retention.gone(process, stream, first)
            self.todo.extend(range(first, last + 1))
        self.ring = Ring(stream.window)
        world.rings.setdefault((process.attempt, stream.number), []).append(self.ring)

    @property
    def done(self) -> bool:
        """Whether all has been published and the end announced."""
        return self.ring.closed is not None

    def enter(self, record: Record) -> None:
        """Go on in a new epoch: the ring stays as it is."""
        if self.done:
            self.process.ledgers[self.stream.source].finish(self.stream.number, self.stream.last)

    def turn(self) -> bool:
        """Send one message, or close; False if that must wait."""
        if self.ring.closed is not None:
            return False
        if not self.todo and self.next_seq > self.stream.last:
            self.process.ledgers[self.stream.source].finish(self.stream.number, self.stream.last)
            self.ring.closed = len(self.ring.frames)
            self._wake()
            return True
        ring = self.ring
        if ring.sealed is not None:
            raise RingRetired
        if len(ring.frames) - ring.released >= ring.slots:
            return False
        seq = self.todo[0] if self.todo else self.next_seq
        if not self.todo and not self.process.may_send(self.stream, seq):
            return False
        if self.spool is not None and seq > self.spool.last:
            self.spool.last = seq
        self.process.ledgers[self.stream.source].record_sent(self.stream.number, seq)
        if self.todo:
            self.todo.popleft()
        else:
            self.next_seq += 1
        self.process.hand(self.publish, seq)
        return True

    def publish(self, seq: int) -> None:
        """Store the message in its slot, after its number was recorded."""
        ring = self.ring
        if ring.sealed is not None:
            raise RingRetired
        ring.frames.append(seq)
        self.process.world.checks.bounds.ring(ring, self.stream)
        self._wake()

    def free_spool(self, upto: int) -> None:
        """Forget what is stable at the receiver."""
        if self.spool is not None and upto > self.spool.freed:
            self.process.world.checks.retention.free(self.process, self.stream, upto)
            self.spool.free(upto, self.process.epoch)

    def _wake(self) -> None:
        peer = self.process.peer(self.stream.dest)
        if peer is not None:
            peer.wake()


class RingReceiver:
    """The receiving end: frames of one ring after the other, of which each number counts once."""

    __slots__ = (
        "at",
        "count",
        "finished",
        "marks",
        "next",
        "open",
        "process",
        "queue",
        "ring",
        "stream",
    )

    def __init__(self, process: Process, stream: Stream, record: Record) -> None:
        self.process, self.stream = process, stream
        entry = record.marks.get(stream.key)
        self.marks = entry.marks.copy() if entry else Marks()
        self.count = self.marks.count
        self.ring: tuple[Ring, int] | None = None
        self.at = -1
        self.next = 0
        self.queue: list[tuple[Ring, int, int]] = []
        self.open: set[int] = set()
        self.finished = False

    @property
    def done(self) -> bool:
        """Whether the sender closed and all was consumed."""
        return self.finished

    def enter(self, record: Record) -> None:
        """Go on in a new epoch: what was delivered stays so."""

    def turn(self) -> bool:
        """Consume a batch; False if there is none."""
        if self.finished:
            return False
        self._poll()
        if not self.queue:
            return False
        for _ in range(min(self.stream.batch, len(self.queue))):
            place = 0
            if not self.stream.ordered:
                place = int(self.process.world.random() * len(self.queue))
            self._consume(*self.queue.pop(place))
        return True

    def _at_end(self, ring: Ring) -> bool:
        return ring.closed is not None and self.next >= ring.closed

    def _poll(self) -> None:
        while True:
            if self.ring is None and not self._next_ring():
                return
            if self.ring is None:
                return
            ring, generation = self.ring
            while self.next < ring.readable:
                self.next += 1
                seq = ring.frames[self.next - 1]
                if self.marks.contains(seq) or any(seq == q[2] for q in self.queue):
                    self._release()
                else:
                    self.open.add(self.next)
                    self.queue.append((ring, self.next, seq))
            if self._at_end(ring) and not self.queue:
                self.finished = True
                return
            if ring.sealed is None or self.next < ring.sealed or not self._next_ring():
                return

    def _next_ring(self) -> bool:
        rings = self.process.world.rings.get((self.process.attempt, self.stream.number), [])
        if self.at + 1 >= len(rings):
            return False
        self.at += 1
        ring = rings[self.at]
        self.ring = (ring, ring.generation)
        self.next = ring.released
        self.open = set()
        return True

    def _consume(self, ring: Ring, frame: int, seq: int) -> None:
        process = self.process
        try:
            process.commit(self.stream, self.marks, seq, 1)
        except BaseException:
            self.queue.append((ring, frame, seq))
            self.queue.sort(key=lambda entry: rings_order(entry, self.ring))
            raise
        self.count += 1
        if self.ring is not None and ring is self.ring[0]:
            self.open.discard(frame)
            process.hand(self._release)

    def _release(self) -> None:
        """Give slots back in order, up to the first that is open."""
        if self.ring is None:
            return
        ring, generation = self.ring
        upto = min(self.open) - 1 if self.open else self.next
        if upto <= ring.released:
            return
        if ring.generation != generation:
            raise RingRetired
        ring.released = upto
        sender = self.process.peer(self.stream.source)
        if sender is not None:
            sender.wake()


def rings_order(entry: tuple[Ring, int, int], current: tuple[Ring, int] | None) -> tuple[bool, int]:
    """Sort frames of an older ring before those of the current one."""
    return (current is not None and entry[0] is current[0], entry[1])
