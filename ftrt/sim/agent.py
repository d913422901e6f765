"""A host's agent: the production recovery with the world around it simulated.

It carries effects out one by one, each taking a while in which processes go on and die.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from ftrt.agree import effects as fx
from ftrt.agree import events as ev
from ftrt.agree.agreement import AgreedRecord
from ftrt.agree.epoch import EpochId, Membership
from ftrt.agree.events import State
from ftrt.agree.heirs import Heirs, candidates
from ftrt.agree.marks import Key, StreamMarks
from ftrt.agree.recovery import Recovery
from ftrt.agree.steps import GONE
from ftrt.sim.peers import Peers
from ftrt.sim.storage import Ledger, Record, marks_of, state_after

if TYPE_CHECKING:
    from ftrt.sim.launcher import Attempt
    from ftrt.sim.world import World


class Board:
    """What the processes of a host can see."""

    __slots__ = ("assigned", "epoch", "failed", "over", "stable")

    def __init__(self) -> None:
        self.epoch = 0
        self.assigned: dict[int, int] = {}
        self.over = self.failed = False
        self.stable: dict[int, int] = {}


class Agent:
    """One attempt's agent on one host."""

    def __init__(self, world: World, attempt: Attempt, host: int, core: Recovery) -> None:
        self.world, self.attempt, self.host, self.core = world, attempt, host, core
        self.board = Board()
        self.alive, self.stopped = True, False
        self.alone = world.plan.hosts == 1
        self.outcome = ""
        self.record: Record
        self.seals: dict[int, int] = {}
        self.delivered: dict[Key, int] = {}
        self.inbox: deque[ev.Event] = deque()
        self.effects: deque[fx.Effect] = deque()
        self.peers = Peers(self)
        self._scheduled = self._woken = False
        self._closing: EpochId | None = None

    # -- events ------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether it has come to an end, whatever that is."""
        return bool(self.outcome) or not self.alive

    def tell(self, event: ev.Event) -> None:
        """Queue an event for the core."""
        self.inbox.append(event)
        self.world.checks.bounds.inbox(self)
        self._soon()

    def _soon(self) -> None:
        if not self._scheduled and self.alive:
            self._scheduled = True
            self.world.after(self.world.span(5, 60), self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if self.over:
            return
        if self.stopped:
            self._woken = True
            return
        while self.effects or self.inbox:
            if self.effects:
                self._perform(self.effects.popleft())
            else:
                self._handle(self.inbox.popleft())
            if self.world.plan.stepwise or self.stopped or not self.alive:
                break
        if self.effects or self.inbox:
            self._soon()

    def _handle(self, event: ev.Event) -> None:
        core, state = self.core, self.core.state
        if isinstance(event, ev.RecordFound) and self._knows(event.epoch.counter):
            return
        if isinstance(event, ev.CloseAsked) and event.epoch != core.epoch:
            return
        if isinstance(event, ev.RecordFailed) and event.epoch != core.now.target:
            return  # somebody else's record was found meanwhile
        process = getattr(event, "process", None)
        if process is not None and process not in core.now.acting.processes | core.now.dead:
            return  # of another attempt
        self.world.count("recovery", state.name, type(event).__name__)
        before = core.epoch
        if isinstance(event, ev.LedgersClosed) and core.state is State.CLOSING:
            event = replace(event, heirs=self._heirs(event.marks))
        self.effects.extend(core.handle(event))
        if core.epoch != before and core.state is State.PUBLISHING:
            self.world.checks.agreement.entered(self)

    def _heirs(self, marks: dict[Key, StreamMarks]) -> Heirs:
        """Who could take over what no spare does; none of them finishes before it is decided."""
        core = self.core
        lost = core.orphans()
        if not lost:
            return Heirs()
        willing = frozenset(
            p.index for p in self.own() if p.alive and not p.over and not p.finished
        )
        for index in willing:
            self.attempt.processes[index].held = True
        now, policy = core.now, self.world.plan.policy
        able = candidates(now.acting, now.dead, now.finished, willing)
        if not policy or not able:
            return Heirs(willing)
        if policy == "dead":
            return Heirs(willing, tuple((rank, lost[0]) for rank in lost))
        if policy == "raises":
            return Heirs(willing, None, "raised an error")
        living = [rank for process in able for rank in now.acting.ranks_of(process)]
        return Heirs(willing, tuple((r, living[r % len(living)]) for r in lost))

    def _knows(self, counter: int) -> bool:
        """Whether a record is behind us, or the core cannot be told of it now."""
        core = self.core
        running = core.state in (State.RUNNING, State.CLOSING, State.RECORDING)
        return counter <= core.epoch.counter or not running

    def _perform(self, effect: fx.Effect) -> None:
        if self.world.tracing:
            self.world.note(f"agent {self.attempt.number}.{self.host}: {told(effect)}")
        getattr(self, f"_do_{type(effect).__name__}")(effect)

    def stop(self) -> None:
        """Hold the agent."""
        self.stopped = True

    def resume(self) -> None:
        """Let it go on."""
        self.stopped = False
        if self._woken or self.inbox or self.effects:
            self._woken = False
            self._soon()

    def kill(self) -> None:
        """End the agent: its processes notice the silence and leave."""
        if not self.alive:
            return
        self.alive = False
        if self.world.tracing:
            self.world.note(f"agent {self.attempt.number}.{self.host} is killed")
        for process in self.own():
            self.world.after(self.world.span(2000, 6000), process.leave, "the agent is silent")
        self.attempt.agent_gone(self)

    def own(self) -> list:
        """Processes of this host."""
        return [p for p in self.attempt.processes.values() if p.host == self.host]

    # -- what it sees ------------------------------------------------------------------------

    def saw_death(self, process: int, by: str) -> None:
        """A process is gone, or must go."""
        if self.over or (process in self.core.now.dead and self.world.chance(0.7)):
            return
        self.tell(ev.ProcessDied(process, by))

    def saw_finish(self, process: int) -> None:
        """A process says that it is done."""
        if not self.over:
            self.world.faults.finishing(self)
            self.tell(ev.ProcessFinished(process))
            self.peers.gossip()

    def saw_silence(self, process: int, lives: bool) -> None:
        """A heartbeat stands still, or goes on again."""
        if not self.over:
            self.tell(ev.Cleared(process) if lives else ev.Suspected(process))

    # -- effects -----------------------------------------------------------------------------

    def _do_Kill(self, effect: fx.Kill) -> None:
        process = self.attempt.processes.get(effect.process)
        if process is not None and process.host == self.host:
            self.world.after(self.world.lag(900), process.kill)

    def _do_Note(self, effect: fx.Note) -> None:
        pass

    def _do_CloseLedgers(self, effect: fx.CloseLedgers) -> None:
        self.world.faults.moment("closing", self)
        self.seals = {}
        if self.alone or self.attempt.first_agent is self and self.core.now.fresh is not None:
            self._closing = effect.epoch
            self._close_next(effect.epoch, list(effect.ranks), {})
        else:
            self.peers.close(effect.epoch)

    def _close_next(self, epoch: EpochId, ranks: list[int], marks: dict[Key, StreamMarks]) -> None:
        """Close one ledger after the other while the ranks go on."""
        if not self.alive or epoch != self._closing:
            return
        if self.stopped:
            self.world.after(300, self._close_next, epoch, ranks, marks)
            return
        self.world.storage.fence_spools(epoch.counter + 1)
        while ranks:
            self.close_ledger(epoch.counter, ranks.pop(0), marks)
            if self.world.plan.stepwise and ranks:
                self.world.after(self.world.span(1, 40), self._close_next, epoch, ranks, marks)
                return
        # Another host's ledger we can only read: what was sent last of all, since its ranks go on
        # and what is consumed here must have been recorded as sent.
        for rank in self.seals:
            marks_of(self.world, self.world.storage.ledger(epoch.counter, rank), 0, marks)
        self.world.faults.moment("closed", self)
        self.tell(ev.LedgersClosed(epoch, marks))
        if self.world.chance(0.15):  # answered twice, the second time late
            self.world.after(self.world.span(0, 600), self.tell, ev.LedgersClosed(epoch, marks))

    def close_ledger(self, epoch: int, rank: int, marks: dict[Key, StreamMarks]) -> None:
        """Close a ledger and add what counts in it; of another host's only what is written."""
        ledger = self.world.storage.ledger(epoch, rank)
        here = ledger.home in (-1, self.host)
        if here:
            ledger.closed = True
            ledger.write(len(ledger.events))
        self.seal(ledger, ledger.durable, marks)

    def seal(self, ledger: Ledger, length: int, marks: dict[Key, StreamMarks]) -> None:
        """Say how much of a ledger counts."""
        self.seals[ledger.rank] = length
        marks_of(self.world, ledger, length, marks)

    def _do_CreateRecord(self, effect: fx.CreateRecord) -> None:
        self.world.faults.moment("recording", self)
        if self.world.faults.disk_full(self):
            self.tell(ev.RecordFailed(effect.epoch, "no space left on device"))
            return
        if self.world.plan.plane == "ring":
            self._fence_rings({rank for rank, _ in (*effect.promotions, *effect.inherited)})
        delay = self.world.span(500, 4000) if self.world.plan.slow else self.world.span(10, 120)
        self.world.after(delay, self._create, effect)

    def _create(self, effect: fx.CreateRecord) -> None:
        """Link the record into place; a killed agent's last request may still be carried out."""
        if not self.alive and self.world.chance(0.5):
            return
        if self.stopped and self.alive:
            self.world.after(300, self._create, effect)
            return
        record = self._make_record(effect)
        made = self.world.storage.create(record)
        if not self.alive:
            return
        self.world.faults.moment("recorded", self)
        if made:
            self.record = record
            if self.world.tracing:
                self.world.note(f"record of epoch {effect.epoch} exists: {consumed(record)}")
            self.tell(ev.RecordCreated(effect.epoch))
            self.world.after(self.world.span(5, 150), self.peers.created, record)
        else:
            self.find(effect.epoch.counter)

    def _make_record(self, effect: fx.CreateRecord) -> Record:
        storage = self.world.storage
        agents, agreed = self.peers.proposal(effect)
        record = Record(
            effect.epoch,
            effect.parent.counter,
            effect.members,
            effect.spares,
            effect.marks,
            agents,
            agreed,
        )
        parent = storage.records[effect.parent.counter]
        record.seals = dict(self.seals)
        for rank, length in self.seals.items():
            ledger = storage.ledger(effect.parent.counter, rank)
            record.states[rank] = state_after(parent.states.get(rank, {}), ledger, length)
        record.dead = effect.dead
        record.delivered = {k: n for k, n in self.delivered.items() if n}
        return record

    def _fence_rings(self, replaced: set[int]) -> None:
        for stream in self.world.plan.streams:
            for ring in self.world.rings.get((self.attempt.number, stream.number), ()):
                if stream.dest in replaced:
                    ring.retire_receiver()
                if stream.source in replaced:
                    upto = ring.seal() - 1
                    self.delivered[stream.key] = max(self.delivered.get(stream.key, 0), upto)

    def find(self, counter: int) -> None:
        """Read the record that exists, and tell the core."""
        record = self.world.storage.records[counter]
        self.peers.found(record)
        if not self._knows(counter):
            self.record = record
            self.tell(ev.RecordFound(record.epoch, record.members, record.spares, record.marks))

    def _do_Publish(self, effect: fx.Publish) -> None:
        self.world.faults.moment("publishing", self)
        counter = effect.epoch.counter
        self.world.checks.agreement.published(self, effect.epoch)
        self.world.recoveries += 1
        self.board.epoch = counter
        for process in self.own():
            process.held = False
            process.wake()
        self.tell(ev.EpochPublished(effect.epoch))
        self.peers.published(counter)
        if self.attempt.first_agent is self:
            self.attempt.entered()

    def _do_Promote(self, effect: fx.Promote) -> None:
        process = self.attempt.processes.get(effect.process)
        self.world.checks.history.promoted(self, effect)
        if process is not None and process.host == self.host:
            self.board.assigned[effect.process] = effect.rank
            process.wake()

    def _do_Inherit(self, effect: fx.Inherit) -> None:
        self.world.checks.history.promoted(self, effect)
        self.world.inherited += 1
        self.attempt.processes[effect.process].wake()

    def _late_signs(self) -> None:
        """Once it is over signs of its processes still come in; the core answers nothing."""
        if not self.world.chance(0.2):
            return
        core = self.core
        process = self.world.dice.choice(sorted(core.now.acting.processes))
        for event in (
            ev.Suspected(process),
            ev.Cleared(process),
            ev.ProcessDied(process, "mutex"),
            ev.ProcessFinished(process),
            ev.CloseAsked(core.epoch),
            ev.LedgersClosed(core.epoch),
        ):
            self.world.count("recovery", core.state.name, type(event).__name__)
            self.world.checks.history.quiet(self, core.handle(event))

    def _do_End(self, effect: fx.End) -> None:
        self.end("ended")

    def _do_Fail(self, effect: fx.Fail) -> None:
        self.end("fenced" if effect.fenced else f"failed: {effect.reason}")

    def end(self, outcome: str) -> None:
        """Come to an end; every process of the host sees it."""
        if self.outcome:
            return
        self.outcome = outcome
        if self.core.state in (State.ENDED, State.FAILED):
            self._late_signs()
        self.board.over = True
        self.board.failed = outcome != "ended"
        if self.world.tracing:
            self.world.note(f"agent {self.attempt.number}.{self.host} {outcome}")
        for process in self.own():
            process.wake()
        self.attempt.agent_over(self)


def first_record(epoch: EpochId, members: Membership, hosts: tuple[int, ...]) -> Record:
    """Record of a job's first epoch."""
    agreed = AgreedRecord(epoch, hosts[0], hosts)
    record = Record(epoch, 0, members.members, members.spares, {}, hosts, agreed)
    return record


def consumed(record: Record) -> str:
    """Say what a record has of each stream."""
    marks = (
        f"{stream} {source}->{dest} consumed {entry.marks.count}"
        + (f" to {entry.marks.highest}" if entry.marks.above else "")
        + f", sent {entry.sent}"
        + (f", delivered {record.delivered[key]}" if key in record.delivered else "")
        for key, entry in sorted(record.marks.items())
        for stream, source, dest in [key]
    )
    return "; ".join(marks) or "nothing consumed yet"


def told(effect: fx.Effect) -> str:
    """Name an effect in a line, without its marks."""
    if isinstance(effect, fx.Note):
        return f"# {effect.text}"
    if isinstance(effect, fx.Fail):
        return f"Fail: {effect.reason}"
    shown = ("process", "rank", "ranks", "members", "spares", "dead")
    parts = [f"{name}={vars(effect)[name]}" for name in shown if name in vars(effect)]
    epoch = getattr(effect, "epoch", None)
    head = type(effect).__name__ + (f" epoch {epoch.counter}" if epoch is not None else "")
    return " ".join([head, *parts])


__all__ = ["GONE", "Agent", "Board", "first_record", "told"]
