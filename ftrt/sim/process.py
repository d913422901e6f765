"""A rank's process: its streams, its state, and the ways in which it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftrt.sim.ring import RingReceiver, RingRetired, RingSender
from ftrt.sim.storage import Ledger, LedgerClosed, Record
from ftrt.sim.wire import WireReceiver, WireSender

if TYPE_CHECKING:
    from ftrt.agree.marks import Marks
    from ftrt.sim.agent import Agent
    from ftrt.sim.plan import Stream
    from ftrt.sim.world import World

_STEP_US = (60, 260)


def value_of(stream: int, seq: int, count: int = 1) -> int:
    """Sum of the payloads of consecutive messages, as the plain model has them."""
    return count * ((stream + 1) * 1_000_003 + seq * 7919) + 7919 * count * (count - 1) // 2


class Process:
    """One incarnation: a rank, a spare, or a zombie that does not know it yet."""

    def __init__(self, world: World, index: int, host: int, attempt: int, agent: Agent) -> None:
        self.world, self.index, self.host, self.attempt = world, index, host, attempt
        self.agent = agent
        self.alive, self.stopped, self.over = True, False, False
        self.finished = False
        self.rank: int | None = None
        self.epoch = 0
        self.record: Record
        self.ledgers: dict[int, Ledger] = {}
        self.held = False
        self.waiting = False
        self.state: dict[int, tuple[int, int]] = {}
        self.senders: list[RingSender | WireSender] = []
        self.receivers: list[RingReceiver | WireReceiver] = []
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = False
        self._woken = False

    # -- life --------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let it look around soon."""
        if not self._scheduled and self.alive and not self.over:
            self._scheduled = True
            self.world.after(self.world.span(*_STEP_US), self._step)

    def kill(self) -> None:
        """End it at once; its host's agent hears of it some time."""
        if not self.alive or self.over:
            return
        self.alive = False
        if self.world.tracing:
            self.world.note(f"process {self.index} is killed")
        world = self.world
        world.after(world.span(100, 1200), self.agent.saw_death, self.index, "mutex")
        if world.chance(0.3):
            world.after(world.span(100, 2000), self.agent.saw_death, self.index, "pidfd")

    def stop(self) -> None:
        """Hold it, as SIGSTOP does."""
        self.stopped = True

    def resume(self) -> None:
        """Let it go on where it was."""
        if self.stopped:
            self.stopped = False
            if self._woken:
                self._woken = False
                self.wake()

    def leave(self, why: str) -> None:
        """End by itself."""
        if not self.over:
            self.over = True
            if self.world.tracing:
                self.world.note(f"process {self.index} ends: {why}")

    # -- steps -------------------------------------------------------------------------------

    def _step(self) -> None:
        self._scheduled = False
        if not self.alive or self.over:
            return
        if self.stopped:
            self._woken = True
            return
        try:
            if self._held:
                self._release_held()
                self.wake()
            elif self.rank is None:
                self._await_rank()
            elif self.waiting:
                self._await_epoch()
            elif self._work():
                self.wake()
            else:
                self._look_around()
        except LedgerClosed:
            self.waiting = True
            self.wake()
        except RingRetired:
            self._retired()

    def _release_held(self) -> None:
        held, self._held = self._held, []
        for call, args in held:
            call(*args)

    def hand(self, call: Callable[..., None], *args: Any) -> None:
        """Do the second half of a step, now or (a process may stop or die between) later."""
        if self._held or self.world.chance(0.1):
            self._held.append((call, args))
        else:
            call(*args)

    def _await_rank(self) -> None:
        board = self.agent.board
        rank = board.assigned.get(self.index)
        if rank is not None:
            self.rank = rank
            self._adopt()
            self.wake()
        elif board.over:
            self.leave("not needed")

    def _await_epoch(self) -> None:
        board = self.agent.board
        if board.epoch != self.epoch:
            self._adopt()
            self.wake()
        elif board.over:
            self.leave("the attempt is over")

    def _look_around(self) -> None:
        board = self.agent.board
        if board.epoch != self.epoch:
            self._adopt()
            self.wake()
        elif board.failed or (board.over and self.finished):
            self.leave("the attempt is over")
        elif not self.finished and not self.held and self._complete():
            self.finished = True
            self.agent.saw_finish(self.index)

    def _retired(self) -> None:
        """Another process has our place: what the epoch says decides."""
        self.waiting = True
        self.wake()

    def _complete(self) -> bool:
        return all(end.done for end in self.senders) and all(end.done for end in self.receivers)

    def _adopt(self) -> None:
        """Take the epoch in force as ours, or end if we are not in it."""
        counter = self.agent.board.epoch
        record = self.world.storage.records[counter]
        if self.rank is None or record.by_rank.get(self.rank) != self.index:
            self.leave(f"rank {self.rank} was replaced in epoch {counter}")
            return
        ranks = [rank for rank, process in record.members if process == self.index]
        ledgers = {rank: self.world.storage.ledger(counter, rank) for rank in ranks}
        entered = self.epoch > 0
        self.record, self.epoch = record, counter
        if any(ledger.closed for ledger in ledgers.values()):
            self.waiting = True
            if not entered:
                self.epoch = 0  # as if it had not entered: it has no streams yet
            return
        for ledger in ledgers.values():
            self.world.checks.history.opened(self, ledger)
            ledger.owner, ledger.home = self.index, self.host
        new = ledgers.keys() - self.ledgers.keys()
        self.ledgers, self.waiting = ledgers, False
        for end in (*self.senders, *self.receivers):
            end.enter(record)
        for rank in sorted(new):
            self._begin(rank, record)

    def _begin(self, rank: int, record: Record) -> None:
        """Act for a rank: its own at first, later those that it inherits."""
        self.state.update(record.states.get(rank, {}))
        ring = self.world.plan.plane == "ring"
        for stream in self.world.plan.streams:
            if stream.source == rank:
                make = RingSender if ring else WireSender
                self.senders.append(make(self, stream, record))
            if stream.dest == rank:
                take = RingReceiver if ring else WireReceiver
                self.receivers.append(take(self, stream, record))

    def _work(self) -> bool:
        """Let every end do what it can, a few messages at most; then tell what was consumed."""
        try:
            return self._turns()
        finally:
            for receiver in self.receivers:
                if isinstance(receiver, WireReceiver) and receiver.news:
                    receiver.tell()

    def _turns(self) -> bool:
        busy = False
        for receiver in self.receivers:
            for _ in range(6):
                if self._held:
                    return True
                if not receiver.turn():
                    break
                busy = True
        for sender in self.senders:
            for _ in range(8):
                if self._held:
                    return True
                if not sender.turn():
                    break
                busy = True
            if isinstance(sender, RingSender) and sender.spool is not None:
                sender.free_spool(self.agent.board.stable.get(sender.stream.number, 0))
        return busy

    # -- used by the ends ----------------------------------------------------------------------

    def peer(self, rank: int) -> Process | None:
        """The process that acts for a rank in our epoch."""
        return self.agent.attempt.processes.get(self.record.by_rank[rank])

    def may_send(self, stream: Stream, seq: int) -> bool:
        """Whether the application has what this message is made from."""
        if stream.needs < 0:
            return True
        for receiver in self.receivers:
            if receiver.stream.number == stream.needs:
                return receiver.count + stream.lead >= seq
        return True

    def commit(self, stream: Stream, marks: Marks, seq: int, count: int) -> None:
        """Consume: effect and mark in one store."""
        value = value_of(stream.number, seq, count)
        ledger = self.ledgers[stream.dest]
        ledger.append(stream.number, seq, count, value)
        self.world.checks.history.committed(self, ledger)
        marks.add(seq, count)
        have, total = self.state.get(stream.number, (0, 0))
        self.state[stream.number] = (have + count, total + value)
        if self.world.plan.plane == "ring":
            self._stable_ring(stream, marks)

    def _stable_ring(self, stream: Stream, marks: Marks) -> None:
        """Announce on the board what is stable; beyond the process class after a sync."""
        if self.world.plan.stable == "process":
            ledger = self.ledgers[stream.dest]
            ledger.write(len(ledger.events))
            self.agent.board.stable[stream.number] = marks.hwm
        elif marks.hwm % 8 == 0:
            self.sync(stream.dest, self._announce, stream.number, marks.hwm, self.epoch)

    def _announce(self, index: int, hwm: int, epoch: int) -> None:
        if epoch == self.epoch:
            stable = self.agent.board.stable
            stable[index] = max(hwm, stable.get(index, 0))

    def sync(self, rank: int, then: Callable[..., None], *args: Any) -> None:
        """Write a rank's ledger out, then go on; at once where a stored word is stable already."""
        ledger = self.ledgers[rank]
        length = len(ledger.events)
        if self.world.plan.stable == "process":
            ledger.write(length)
            then(*args)
            return
        self.world.after(self.world.span(40, 700), self._synced, ledger, length, then, args)

    def _synced(
        self, ledger: Ledger, length: int, then: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if not self.alive:
            return
        if self.stopped:
            self.world.after(200, self._synced, ledger, length, then, args)
            return
        ledger.write(length)
        then(*args)

    def on_message(self, index: int, seq: int, count: int, epoch: int, sender: int) -> None:
        """Take a message off the network: those of another epoch are refused."""
        if not self.alive or self.over or self.waiting or epoch != self.epoch:
            return
        for receiver in self.receivers:
            if receiver.stream.number == index and isinstance(receiver, WireReceiver):
                receiver.on_message(seq, count, epoch, sender)

    def on_marks(self, index: int, epoch: int, consumed: Marks, stable: Marks, news: int) -> None:
        """Take marks off the network."""
        if not self.alive or self.over:
            return
        for sender in self.senders:
            if sender.stream.number == index and isinstance(sender, WireSender):
                sender.on_marks(epoch, consumed, stable, news)
