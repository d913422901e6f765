"""The launcher: starts an attempt, hears how it ends, starts the next one from the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.agree import events as ev
from ftrt.agree.epoch import EpochId, Membership
from ftrt.agree.events import State
from ftrt.agree.recovery import Recovery
from ftrt.sim.agent import Agent, first_record
from ftrt.sim.process import Process

if TYPE_CHECKING:
    from ftrt.sim.world import World

JOB = "sim"


class Attempt:
    """All processes and agents that were started together."""

    def __init__(self, launcher: Launcher, number: int) -> None:
        plan = launcher.world.plan
        self.launcher, self.world, self.number = launcher, launcher.world, number
        everybody = plan.ranks + plan.spares
        base = (number - 1) * everybody
        self.membership = Membership(
            tuple((rank, base + rank) for rank in range(plan.ranks)),
            tuple(range(base + plan.ranks, base + everybody)),
        )
        self.agents: dict[int, Agent] = {}
        self.processes: dict[int, Process] = {}
        self.first_agent: Agent | None = None
        self.reason = ""
        self.entered_first = number == 1

    def start(self, core: Recovery, hosts: range) -> None:
        """Start the agents of these hosts and all processes."""
        for host in hosts:
            if host not in self.agents:
                mine = core if not self.agents else Recovery(core.epoch, core.membership)
                self.agents[host] = Agent(self.world, self, host, mine)
        self.first_agent = self.first_agent or self.agents[0]
        plan = self.world.plan
        for index in sorted(self.membership.processes):
            host = plan.host_of(index)
            self.processes[index] = Process(self.world, index, host, self.number, self.agents[host])
            self.processes[index].wake()

    def enter_first(self, epoch: EpochId) -> None:
        """Make the job's first record and let everybody in."""
        hosts = tuple(self.agents)
        record = first_record(epoch, self.membership, hosts)
        self.world.storage.create(record)
        for agent in self.agents.values():
            self._admit(agent)

    def _admit(self, agent: Agent) -> None:
        """Let a host into the epoch that its core begins with."""
        record = self.world.storage.records[agent.core.epoch.counter]
        agent.record = record
        agent.board.epoch = record.epoch.counter
        for rank, process in record.members:
            if self.processes[process].host == agent.host:
                agent.board.assigned[process] = rank
                self.processes[process].wake()
        if not agent.alone:
            self.world.after(self.world.span(500, 2500), agent.peers.tick)

    def entered(self) -> None:
        """The first agent recorded the attempt's first epoch: the other hosts join."""
        first = self.first_agent
        if first is None or self.entered_first:
            return
        self.entered_first = True
        record = self.world.storage.records[first.core.epoch.counter]
        members = Membership(record.members, record.spares)
        for agent in self.agents.values():
            if agent is not first and agent.alive:
                agent.core = Recovery(record.epoch, members, record.marks)
                self._admit(agent)
                # Deaths that were seen before there was an epoch to tell them of.
                for process in agent.own():
                    if not process.alive:
                        agent.saw_death(process.index, "pidfd")
        if not first.alone:
            self.world.after(self.world.span(500, 2500), first.peers.tick)

    # -- ends --------------------------------------------------------------------------------

    def agent_gone(self, agent: Agent) -> None:
        """An agent died: on one host that ends the attempt."""
        if not self.running() or (agent is self.first_agent and not self.entered_first):
            self.launcher.lost(self, "the agent died")

    def agent_over(self, agent: Agent) -> None:
        """An agent came to an end."""
        if self.ended() and self is self.launcher.now:
            self.launcher.done = True
        elif agent.outcome.startswith("failed"):
            self.launcher.lost(self, agent.outcome)
        elif agent.outcome == "fenced" and not self.running() and not self.ended():
            self.launcher.lost(self, "all hosts are fenced")

    def running(self) -> bool:
        """Whether an agent still works."""
        return any(not agent.over for agent in self.agents.values())

    def ended(self) -> bool:
        """Whether every agent that is in ended well, and there is one."""
        outcomes = {a.outcome for a in self.agents.values() if a.alive and a.outcome != "fenced"}
        return outcomes == {"ended"}


class Launcher:
    """Starts attempts one after the other, at times while the one before still runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.attempts: list[Attempt] = []
        self.given_up = ""
        self.done = False
        self._planned = False

    @property
    def now(self) -> Attempt:
        """The latest attempt."""
        return self.attempts[-1]

    @property
    def over(self) -> bool:
        """Whether the job has come to an end."""
        return bool(self.given_up) or self.done

    def start(self) -> None:
        """Start the first attempt."""
        attempt = Attempt(self, 1)
        self.attempts.append(attempt)
        epoch = EpochId(JOB, 1, 1)
        plan = self.world.plan
        core = Recovery(epoch, attempt.membership, restarts=plan.restarts, least=plan.least)
        attempt.start(core, range(self.world.plan.hosts))
        attempt.enter_first(epoch)

    def lost(self, attempt: Attempt, reason: str) -> None:
        """An attempt cannot go on."""
        if attempt is not self.now or self._planned or self.over:
            return
        attempt.reason = reason
        if len(self.attempts) > self.world.plan.restarts:
            self.given_up = reason
            for agent in attempt.agents.values():
                agent.end(reason)
            return
        self._planned = True
        self.world.after(self.world.span(200, 2500), self.restart, attempt)

    def restart(self, old: Attempt) -> None:
        """Start the next attempt; the old one's processes may live a little longer."""
        if old is not self.now or self.over:
            return
        self._planned = False
        world = self.world
        attempt = Attempt(self, old.number + 1)
        self.attempts.append(attempt)
        if world.tracing:
            world.note(f"attempt {attempt.number} starts from epoch {world.storage.latest}")
        for agent in old.agents.values():
            world.after(world.lag(3000), self._see_off, agent)
        core = self._core_for(old)
        attempt.start(core, range(world.plan.hosts))
        first = attempt.agents[0]
        first.record = world.storage.records[core.epoch.counter]
        first.tell(ev.Restarted(attempt.number, attempt.membership))

    def _core_for(self, old: Attempt) -> Recovery:
        """Take the core of an agent that lived through its failure, or one from the record."""
        storage = self.world.storage
        agent = old.first_agent
        kept = agent is not None and agent.alone and agent.alive and not agent.inbox
        if agent is not None and kept and not agent.effects and self.world.chance(0.8):
            latest = agent.core.epoch.counter == storage.latest
            if latest and agent.core.state in (State.FAILED, State.RUNNING):
                agent.kill()
                return agent.core
        record = storage.records[storage.latest]
        members = Membership(record.members, record.spares)
        plan = self.world.plan
        left = max(0, plan.restarts - old.number)
        return Recovery(record.epoch, members, record.marks, restarts=left, least=plan.least)

    def _see_off(self, agent: Agent) -> None:
        """End what is left of an old attempt on a host that can be reached."""
        if not self.world.network.reaches(0, agent.host):
            self.world.after(1000, self._see_off, agent)
            return
        agent.kill()
        for process in agent.own():
            process.kill()

    def standing(self) -> list[str]:
        """Say where everybody stands."""
        lines = []
        for attempt in self.attempts[-2:]:
            for agent in attempt.agents.values():
                where = agent.outcome or agent.core.state.name
                life = "" if agent.alive else ", dead"
                epoch = agent.core.epoch.counter
                lines.append(f"agent {attempt.number}.{agent.host} {where} epoch {epoch}{life}")
        for process in self.now.processes.values():
            if process.alive and not process.over and process.rank is not None:
                lines.append(_stuck(process))
        return lines


def _stuck(process: Process) -> str:
    """Say what a process waits for."""
    ends = [f"sends {s.stream.name} next {s.next_seq}" for s in process.senders if not s.done]
    ends += [f"reads {r.stream.name} has {r.marks!r}" for r in process.receivers if not r.done]
    what = ", ".join(ends) or ("finished" if process.finished else "nothing to do")
    waits = " waits for an epoch" if process.waiting else ""
    return f"rank {process.rank} (process {process.index}) epoch {process.epoch}{waits}: {what}"
