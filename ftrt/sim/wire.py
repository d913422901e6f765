"""The message plane and its two ends: packets that may be late, reordered or lost, the budgets of
the core, and marks that come back out of band. Nothing in it outlives a process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ftrt.agree.marks import Marks
from ftrt.agree.retention import Budget

if TYPE_CHECKING:
    from ftrt.sim.plan import Stream
    from ftrt.sim.process import Process
    from ftrt.sim.storage import Record

_RESEND_US = 1500


class WireSender:
    """The sending end: what is not stable is kept, what is not consumed is sent again."""

    __slots__ = (
        "_acked",
        "_timer",
        "_heard",
        "budget",
        "epoch_process",
        "kept",
        "next_seq",
        "process",
        "spool",
        "stream",
        "todo",
    )

    def __init__(self, process: Process, stream: Stream, record: Record) -> None:
        world = process.world
        self.process, self.stream = process, stream
        entry = record.marks.get(stream.key)
        have = entry.marks if entry else Marks()
        self.budget = Budget(stream.window, stream.retention, stream.batch, stream.stable_every)
        self.budget.go_on_from(have)
        self.spool = world.storage.spool(stream.number) if stream.kind == "spool" else None
        in_spool = self.spool.last if self.spool else 0
        self.next_seq = max(in_spool, have.highest) + 1
        self.todo: deque[int] = deque()
        for first, last in have.missing(self.next_seq - 1):
            if self.spool is not None and first <= self.spool.freed:
                world.checks.retention.gone(process, stream, first)
            self.todo.extend(range(first, last + 1))
        self.kept: set[int] = set()
        self.epoch_process = record.by_rank[stream.dest]
        self._timer = False
        self._acked = self._heard = 0

    @property
    def done(self) -> bool:
        """Whether everything is sent and stable at the receiver."""
        return self.budget.stable.hwm >= self.stream.last

    def enter(self, record: Record) -> None:
        """Go on in a new epoch: a dead receiver's successor has what is stable, no more."""
        process, stream = self.process, self.stream
        if self.next_seq > stream.last:
            process.ledgers[stream.source].finish(stream.number, stream.last)
        replaced = record.by_rank[stream.dest] != self.epoch_process
        self.epoch_process = record.by_rank[stream.dest]
        self._heard = 0
        if replaced:
            self.budget.receiver_replaced()
        entry = record.marks.get(stream.key)
        if entry is not None:
            for first, last in entry.marks.ranges:
                self._consumed(first, last)
                self._stable(first, last)
        self._again(self.budget.resend_set("survivor"))

    def _again(self, ranges: list[tuple[int, int]]) -> None:
        """Send what the budget names: it must still be kept."""
        queued = set(self.todo)
        for first, last in ranges:
            for seq in range(first, last + 1):
                if seq in queued:
                    continue
                if seq not in self.kept:
                    self.process.world.checks.retention.gone(self.process, self.stream, seq)
                self.todo.append(seq)

    def turn(self) -> bool:
        """Send a frame of one or more messages; False if that must wait."""
        return self._send_again() if self.todo else self._send_next()

    def _send_next(self) -> bool:
        stream, process, budget = self.stream, self.process, self.budget
        seq = self.next_seq
        count = min(stream.batch, stream.last + 1 - seq)
        if count < 1:
            return False
        if count > 1 and not (budget.can_send(count) and process.may_send(stream, seq + count - 1)):
            count = 1
        if not budget.can_send() or not process.may_send(stream, seq):
            return False
        last = seq + count - 1
        if self.spool is not None and last > self.spool.last:
            self.spool.last = last
        self._record(last)
        self.next_seq = last + 1
        budget.on_sent(seq, count)
        process.world.checks.bounds.credit(budget, stream)
        self._keep(seq, count)
        process.hand(self.publish, seq, count)
        return True

    def _send_again(self) -> bool:
        """Send what has a number already; to a successor's budget it is new all the same."""
        seq = self.todo[0]
        fresh = not self.budget.sent.contains(seq)
        if fresh and not self.budget.can_send():
            return False
        self._record(seq)
        self.todo.popleft()
        if fresh:
            self.budget.on_sent(seq)
            self.process.world.checks.bounds.credit(self.budget, self.stream)
            self._keep(seq, 1)
        self.process.hand(self.publish, seq, 1)
        return True

    def _record(self, last: int) -> None:
        """Record numbers in the ledger before they leave."""
        ledger, stream = self.process.ledgers[self.stream.source], self.stream
        ledger.record_sent(stream.number, last)
        if last == stream.last:
            ledger.finish(stream.number, last)

    def _keep(self, seq: int, count: int) -> None:
        self.kept.update(range(seq, seq + count))
        self.process.world.checks.bounds.kept(len(self.kept), self.stream)

    def publish(self, seq: int, count: int) -> None:
        """Put a frame on the network, after its numbers were recorded."""
        process = self.process
        peer = process.peer(self.stream.dest)
        if peer is not None and not self.budget.stable.contains(seq):
            process.world.network.send(
                process.host,
                peer.host,
                peer.on_message,
                self.stream.number,
                seq,
                count,
                process.epoch,
                process.index,
            )
        if not self._timer:
            self._timer = True
            process.world.after(_RESEND_US, self._look)

    def _look(self) -> None:
        """Send again what nobody confirmed for a while; the answer carries the marks."""
        process = self.process
        self._timer = False
        if not process.alive or process.over or self.done:
            return
        self._timer = True
        process.world.after(_RESEND_US, self._look)
        if self.stream.dest in process.agent.core.now.finished and process.agent.alive:
            self._all_took_effect()
            return
        progress = self.budget.consumed.count + self.budget.stable.count
        if progress == self._acked and not process.stopped:
            fresh, self.todo = self.todo, deque()
            self._again(self.budget.resend_set("survivor"))
            if not self.todo and self.budget.sent.highest:
                self.todo.append(self._probe())
            again = set(self.todo)
            self.todo.extend(seq for seq in fresh if seq not in again)
            process.wake()
        self._acked = progress

    def _all_took_effect(self) -> None:
        """The receiver said that it is done, so it has all; it may be gone and tell no more.

        After our own ledger was closed that is as void as its marks are.
        """
        process = self.process
        closed = process.waiting or process.ledgers[self.stream.source].closed
        if not closed and process.epoch == process.agent.core.epoch.counter:
            for first, last in self.budget.sent.ranges:
                self._consumed(first, last)
                self._stable(first, last)
            process.wake()

    def _probe(self) -> int:
        """Name a message whose receipt makes the receiver tell its marks again."""
        gaps = self.budget.stable.missing(self.budget.sent.highest)
        return gaps[0][0] if gaps else self.budget.sent.highest

    def on_marks(self, epoch: int, consumed: Marks, stable: Marks, news: int) -> None:
        """Take the receiver's marks in; `news` grows with them."""
        process = self.process
        # Once our own ledger is closed the record of the next epoch may be made from what was
        # written until then: what a receiver that is left out writes later is void.
        if epoch != process.epoch or process.waiting or process.ledgers[self.stream.source].closed:
            return
        if news <= self._heard:
            return
        self._heard = news
        for first, last in consumed.ranges:
            self._consumed(first, last)
        for first, last in stable.ranges:
            self._stable(first, last)
        process.wake()

    def _consumed(self, first: int, last: int) -> None:
        if last > self.budget.consumed.hwm:
            self.budget.on_consumed(first, last - first + 1)

    def _stable(self, first: int, last: int) -> None:
        budget = self.budget
        if last <= budget.stable.hwm:
            return
        budget.on_stable(first, last - first + 1)
        self.process.world.checks.retention.free_range(self.process, self.stream, first, last)
        self.kept.difference_update(range(first, last + 1))
        if self.spool is not None:
            self.spool.free(budget.stable.hwm, self.process.epoch)


class WireReceiver:
    """The receiving end: slots of this epoch, marks of all."""

    __slots__ = (
        "buffer",
        "count",
        "marks",
        "news",
        "process",
        "safe",
        "stable",
        "stream",
        "syncing",
    )

    def __init__(self, process: Process, stream: Stream, record: Record) -> None:
        self.process, self.stream = process, stream
        entry = record.marks.get(stream.key)
        self.marks = entry.marks.copy() if entry else Marks()
        self.stable = self.marks.copy()
        self.buffer: list[int] = []
        self.syncing = self.news = False
        self.count = self.safe = self.marks.count

    @property
    def done(self) -> bool:
        """Whether all was consumed and is stable."""
        return self.stable.hwm >= self.stream.last

    def enter(self, record: Record) -> None:
        """Go on in a new epoch: slots of the old one are void, its record is stable."""
        self.buffer.clear()
        self.syncing = False
        entry = record.marks.get(self.stream.key)
        if entry is not None:
            stable = self.stable.copy()  # replaced, never changed: a packet under way has it
            stable.merge(entry.marks)
            self.stable, self.safe = stable, stable.count

    def on_message(self, first: int, count: int, epoch: int, sender: int) -> None:
        """Take a frame that passed the epoch check into slots."""
        process = self.process
        process.world.checks.epochs.accepted(process, self.stream, epoch, sender)
        for seq in range(first, first + count):
            if self.marks.contains(seq) or seq in self.buffer:
                self.tell()
            else:
                self.buffer.append(seq)
        process.world.checks.bounds.slots(len(self.buffer), self.stream)
        process.wake()

    def turn(self) -> bool:
        """Consume a batch; False if there is none."""
        stream = self.stream
        left = stream.last - self.count
        take = min(stream.batch, left)
        if take == 0 or len(self.buffer) < take:
            if not left and not self.done and not self.syncing:
                self._sync()
            return False
        if stream.ordered:
            self.buffer.sort()
        while take:
            take -= self._consume(take)
        due = self.count - self.safe >= stream.stable_every or self.count == stream.last
        self.news = True
        if due and not self.syncing:
            self._sync()
        return True

    def _consume(self, most: int) -> int:
        """Commit one message, or in order as many as follow each other; how many."""
        buffer, place, count = self.buffer, 0, 1
        if self.stream.ordered:
            while count < most and buffer[count] == buffer[0] + count:
                count += 1
        else:
            place = int(self.process.world.random() * len(buffer))
        self.process.commit(self.stream, self.marks, buffer[place], count)
        del buffer[place : place + count]
        self.count += count
        return count

    def _sync(self) -> None:
        """Make what is consumed so far stable, which takes a while beyond the process class."""
        self.syncing = True
        self.process.sync(
            self.stream.dest, self._synced, self.marks.copy(), self.count, self.process.epoch
        )

    def _synced(self, marks: Marks, count: int, epoch: int) -> None:
        if epoch != self.process.epoch or self.process.waiting:
            return
        self.syncing = False
        self.stable, self.safe = marks, count
        self.tell()
        if self.count - self.safe >= self.stream.stable_every:
            self._sync()
        self.process.wake()

    def tell(self) -> None:
        """Tell the sender what is consumed and what is stable."""
        self.news = False
        process = self.process
        peer = process.peer(self.stream.source)
        if peer is not None:
            process.world.network.send(
                process.host,
                peer.host,
                peer.on_marks,
                self.stream.number,
                process.epoch,
                self.marks.copy(),
                self.stable,
                self.count + self.safe,
            )
