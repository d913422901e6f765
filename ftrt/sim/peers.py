"""What an agent does with the agents of other hosts: gather with them, adopt, tell, remind.

The production agreement decides who is in; the recovery decides who acts. The coordinator, once
everybody alive has reported, reads all ledgers: those of whoever reported are closed and written,
of the others what is written counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.agree import agreement as ag
from ftrt.agree import effects as fx
from ftrt.agree import events as ev
from ftrt.agree.agreement import AgreedRecord, Agreement
from ftrt.agree.epoch import EpochId
from ftrt.agree.events import State
from ftrt.agree.exchange import Exchange, Told
from ftrt.agree.marks import Key, StreamMarks

if TYPE_CHECKING:
    from ftrt.sim.agent import Agent
    from ftrt.sim.storage import Record

_TICK_US = 2500


class Peers:
    """The other agents, as one agent knows them."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.world = agent.world
        self.meetings: dict[int, Agreement] = {}
        self.exchanges: dict[int, Exchange] = {}
        self.held_dead: set[int] = set()
        self.finished: dict[int, int] = {}
        self._told_finished: set[int] = set()
        self._ticks = 0
        self._reminders = 0
        self.early: list[
            tuple[int, int, ag.Report | ag.Call | ag.Announce, int, frozenset[int]]
        ] = []
        self.depth: dict[int, int] = {}
        self.handled: dict[int, int] = {}
        self._last: AgreedRecord | None = None

    # -- gathering ---------------------------------------------------------------------------

    def close(self, epoch: EpochId) -> None:
        """Close our own ledgers of an epoch, then take part in making its successor."""
        agent, storage = self.agent, self.world.storage
        if agent.over or self.meetings.get(epoch.counter + 1) is not None:
            return
        record = storage.records[epoch.counter]
        if agent.host not in record.agents or record.epoch.attempt != agent.attempt.number:
            self._left_out()
            return
        marks: dict[Key, StreamMarks] = {}
        home = {rank: self.world.plan.host_of(process) for rank, process in record.members}
        for rank, host in home.items():
            if host == agent.host:
                agent.close_ledger(epoch.counter, rank, marks)
        target = EpochId(epoch.job, agent.attempt.number, epoch.counter + 1)
        exchange = Exchange(agent.host, target, marks, home)
        self.world.faults.moment("closed", agent)
        delay = self.world.span(40, 500)  # what is closed is written before it is told
        self.world.after(delay, self._meet, epoch, tuple(record.agents), exchange)

    def _meet(self, epoch: EpochId, agents: tuple[int, ...], exchange: Exchange) -> None:
        agent = self.agent
        if agent.over or epoch != agent.core.epoch:
            return
        if agent.stopped:
            self.world.after(300, self._meet, epoch, agents, exchange)
            return
        target = exchange.epoch
        dead = self.held_dead & set(agents) - {agent.host}
        meeting = Agreement(agent.host, agents, target, dead)
        self.meetings[target.counter] = meeting
        self.exchanges[target.counter] = exchange
        self.depth[target.counter] = self.handled[target.counter] = 0
        self._reminders = 3
        self._exchange(exchange)
        self._tell(meeting, ag.Tick())
        early, self.early = self.early, []
        for packet in early:
            self.on_packet(*packet)

    def _exchange(self, exchange: Exchange) -> None:
        """Tell the agents at the other ends of our streams what our closed ledgers hold."""
        for to, told in exchange.begin():
            other = self.agent.attempt.agents.get(to)
            if other is not None:
                self.world.network.send(self.agent.host, to, other.peers.on_told, told)

    def on_told(self, told: Told) -> None:
        """Take marks in; who has not begun reads them from storage later."""
        exchange = self.exchanges.get(told.epoch.counter)
        if exchange is not None and self.agent.alive and exchange.epoch == told.epoch:
            exchange.handle(told)

    def _tell(self, meeting: Agreement, event: ag.Event) -> None:
        self.world.count("agreement", meeting.phase.name, type(event).__name__)
        for effect in meeting.handle(event):
            self._perform(meeting, effect)

    def _perform(self, meeting: Agreement, effect: ag.Effect) -> None:
        if isinstance(effect, ag.Send):
            self._send(meeting.now.epoch.counter, effect.to, effect.message)
        elif isinstance(effect, ag.TryRecord):
            delay = self.world.span(10, 200)
            self.world.after(delay, self._try_record, effect.record, meeting.now.have)
        elif isinstance(effect, ag.Adopt):
            self.world.checks.agreement.agreed(self.agent, effect.record)
            self.world.checks.marks.exchanged(self.exchanges[effect.record.epoch.counter])
        elif isinstance(effect, ag.Fence):
            self.world.checks.agreement.agreed(self.agent, effect.record)
            if effect.record.epoch.counter in self.world.storage.records:
                self.agent.find(effect.record.epoch.counter)
                self.world.after(self.world.span(50, 300), self._left_out)

    def _left_out(self) -> None:
        """The epoch goes on without this host: nobody here may act any more."""
        if self.agent.alive:
            self.agent.end("fenced")
            for process in self.agent.own():
                self.world.after(self.world.span(0, 900), process.kill)

    def _try_record(self, wanted: AgreedRecord, reported: frozenset[int]) -> None:
        """Everybody alive has closed: read what the others wrote, and let the core decide."""
        agent = self.agent
        core = agent.core
        if agent.over or core.epoch.counter + 1 != wanted.epoch.counter:
            return
        if agent.stopped:
            self.world.after(300, self._try_record, wanted, reported)
            return
        counter = core.epoch.counter
        record = self.world.storage.records[counter]
        marks: dict[Key, StreamMarks] = {}
        self.world.storage.fence_spools(wanted.epoch.counter)  # first: then nothing read is freed
        for rank, process in record.members:
            ledger = self.world.storage.ledger(counter, rank)
            whole = self.world.plan.host_of(process) in reported
            agent.seal(ledger, len(ledger.events) if whole else ledger.durable, marks)
        living = sorted(core.now.acting.processes - core.now.dead)
        left_out = tuple(
            process for process in living if self.world.plan.host_of(process) not in wanted.members
        )
        if core.state is State.RUNNING:
            agent.tell(ev.CloseAsked(core.epoch))
        self._last = wanted
        agent.tell(ev.LedgersClosed(core.epoch, marks, left_out))

    def proposal(self, effect: fx.CreateRecord) -> tuple[tuple[int, ...], AgreedRecord]:
        """Agents of a record that we make, and what the agreement says of it."""
        wanted = self._last
        if wanted is not None and wanted.epoch == effect.epoch:
            return wanted.members, wanted
        hosts = tuple(range(self.world.plan.hosts))
        return hosts, AgreedRecord(effect.epoch, self.agent.host, hosts)

    # -- a record exists -----------------------------------------------------------------------

    def created(self, record: Record) -> None:
        """Our record exists."""
        meeting = self.meetings.get(record.epoch.counter)
        if meeting is not None:
            self._tell(meeting, ag.RecordCreated(record.agreed))

    def found(self, record: Record) -> None:
        """Somebody's record exists."""
        meeting = self.meetings.get(record.epoch.counter)
        if meeting is not None:
            self._tell(meeting, ag.RecordFound(record.agreed))

    def published(self, counter: int) -> None:
        """Our host is in an epoch: count what it took, forget what is long past."""
        if counter in self.handled:
            self.world.messages.append(self.handled[counter])
        for old in [c for c in self.meetings if c < counter - 2]:
            del self.meetings[old], self.exchanges[old]
        self._pass_on()

    # -- messages ------------------------------------------------------------------------------

    def _send(self, counter: int, to: int, message: ag.Report | ag.Call | ag.Announce) -> None:
        other = self.agent.attempt.agents.get(to)
        self.handled[counter] = self.handled.get(counter, 0) + 1
        if other is not None:
            self.world.network.send(
                self.agent.host,
                to,
                other.peers.on_packet,
                self.agent.host,
                counter,
                message,
                self.depth.get(counter, 0) + 1,
                self.agent.core.now.dead,
            )

    def on_packet(
        self,
        sender: int,
        counter: int,
        message: ag.Report | ag.Call | ag.Announce,
        depth: int,
        dead: frozenset[int],
    ) -> None:
        """Take a message of the agreement; one for an epoch that we have not reached waits."""
        agent = self.agent
        core = agent.core
        if not agent.alive or agent.outcome not in ("", "ended", "fenced"):
            return
        meeting = self.meetings.get(counter)
        if meeting is None:
            if agent.outcome or counter <= core.epoch.counter:
                return
            if len(self.early) < 64:
                self.early.append((sender, counter, message, depth, dead))
            self._catch_up()
            if counter == core.epoch.counter + 1 and not self._closing(counter):
                agent.tell(ev.CloseAsked(core.epoch))
            return
        self.depth[counter] = max(self.depth[counter], depth)
        self.world.depth = max(self.world.depth, depth)
        self.handled[counter] += 1
        for process in sorted(dead - core.now.dead):
            if counter == core.epoch.counter + 1 and process in core.now.acting.processes:
                agent.tell(ev.ProcessDied(process, "another host"))
        if isinstance(message, ag.Announce) and counter not in self.world.storage.records:
            self.world.checks.agreement.announced_early(agent, counter)
        if isinstance(message, ag.Announce):
            self._tell(meeting, message)
            if counter > core.epoch.counter:
                agent.find(counter)
        else:
            self._tell(meeting, message)

    def _closing(self, counter: int) -> bool:
        return counter in self.meetings

    def _catch_up(self) -> None:
        """Storage knows of a later epoch than we do: go with it."""
        agent = self.agent
        counter = agent.core.epoch.counter + 1
        if not agent.over and counter in self.world.storage.records:
            record = self.world.storage.records[counter]
            agent.find(counter)
            if agent.host not in record.agents or record.epoch.attempt != agent.attempt.number:
                self.world.after(self.world.span(50, 300), self._left_out)

    # -- detectors and reminders ---------------------------------------------------------------

    def lost(self, host: int) -> None:
        """The detector holds a host for dead; it may be wrong."""
        if self.agent.over or host == self.agent.host:
            return
        self.held_dead.add(host)
        meeting = self._open_meeting()
        if meeting is not None and host in meeting.now.agents:
            self._tell(meeting, ag.Died(host))

    def back(self, host: int) -> None:
        """The detector was wrong."""
        other = self.agent.attempt.agents.get(host)
        if host not in self.held_dead or other is None or not other.alive or self._left_early(host):
            return
        self.held_dead.discard(host)
        meeting = self._open_meeting()
        if meeting is not None and host in meeting.now.agents:
            self._tell(meeting, ag.Cleared(host))

    def _left_early(self, host: int) -> bool:
        """Whether a host ended its job in an epoch that has a successor: it takes no more part.

        It knew that all ranks were done, but a host that is left out of the successor may have told
        it so too late to count. Its agent's connections are closed, so the others notice.
        """
        other = self.agent.attempt.agents.get(host)
        if other is None or other.outcome != "ended":
            return False
        return other.core.epoch.counter < self.agent.core.epoch.counter

    def evict(self, host: int) -> None:
        """A host is held for dead long enough to go on without it."""
        core = self.agent.core
        living = core.now.acting.processes - core.now.dead
        inside = any(self.world.plan.host_of(process) == host for process in living)
        entered = self.agent.board.epoch > 0
        if entered and not self.agent.over and host in self.held_dead and inside:
            self.agent.tell(ev.CloseAsked(core.epoch))

    def _open_meeting(self) -> Agreement | None:
        return self.meetings.get(max(self.meetings, default=0))

    def tick(self) -> None:
        """Remind the others, look at storage; every now and then."""
        agent = self.agent
        if not agent.alive or agent.outcome not in ("", "ended", "fenced"):
            return
        self.world.after(_TICK_US, self.tick)
        if agent.stopped:
            return
        meeting = self._open_meeting()
        settled = meeting is not None and meeting.phase in (ag.Phase.ADOPTED, ag.Phase.FENCED)
        if meeting is not None and (not settled or self._reminders > 0):
            self._reminders -= settled
            self._tell(meeting, ag.Tick())
        self._catch_up()
        for host in agent.attempt.agents:
            if host not in self.held_dead and self._left_early(host):
                self.lost(host)
        for host in sorted(self.held_dead):
            self.evict(host)
        self._ticks += 1
        if self._ticks % 4 == 0:
            self.gossip()

    def gossip(self) -> None:
        """Tell the others which processes are done."""
        agent = self.agent
        if agent.alone:
            return
        for process in agent.own():
            if process.finished:
                self.finished.setdefault(process.index, process.epoch)
                self._told_finished.add(process.index)
        self._pass_on()
        if self.finished:
            for host, other in agent.attempt.agents.items():
                if host != agent.host:
                    told = dict(self.finished)
                    self.world.network.send(agent.host, host, other.peers.on_finished, told)

    def on_finished(self, processes: dict[int, int]) -> None:
        """Hear which processes of other hosts are done, and in which epoch they were."""
        for process, epoch in processes.items():
            self.finished.setdefault(process, epoch)
        self._pass_on()

    def _pass_on(self) -> None:
        """Tell the core, once it is in that epoch: before, the process may be a spare to it."""
        agent = self.agent
        for process, epoch in self.finished.items():
            if process in self._told_finished or epoch > agent.core.epoch.counter or agent.over:
                continue
            self._told_finished.add(process)
            if process in agent.core.now.acting.processes:
                agent.tell(ev.ProcessFinished(process))
