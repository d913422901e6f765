"""Carries the plan's faults out, and takes them back when the world heals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.sim.plan import FINISHING, Fault

if TYPE_CHECKING:
    from ftrt.sim.agent import Agent
    from ftrt.sim.process import Process
    from ftrt.sim.world import World

_SUSPECT_US = 500
_EVICT_US = 3000


class Faults:
    """What is still to come, and what has to be taken back."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._waiting = [f for f in world.plan.faults if isinstance(f.when, str)]
        self._full_disk = False
        self.fired = self.inside = 0

    def arm(self) -> None:
        """Put the faults that have a time on the clock."""
        for fault in self.world.plan.faults:
            if isinstance(fault.when, int):
                self.world.after(fault.when, self.fire, fault)

    def moment(self, name: str, agent: Agent) -> None:
        """A recovery has come to a step: faults tied to it fire there."""
        if not self._waiting or self.world.healed:
            return
        names = (name, f"late-{name}") if self._ending() else (name,)
        for fault in [f for f in self._waiting if f.when in names]:
            self._waiting.remove(fault)
            self.world.after(self.world.span(0, 30), self.fire, fault)

    def finishing(self, agent: Agent) -> None:
        """A rank is done: faults that wait for it fire once only one host has others."""
        if self._waiting and len(self._unfinished()) == 1:
            self.moment(FINISHING, agent)

    def _unfinished(self) -> set[int]:
        """Hosts with ranks that are not done."""
        storage, now = self.world.storage, self.world.launcher.now
        acting = (now.processes.get(p) for _, p in storage.records[storage.latest].members)
        return {process.host for process in acting if process and not process.finished}

    def _ending(self) -> bool:
        processes = self.world.launcher.now.processes.values()
        return 2 * sum(process.finished for process in processes) >= self.world.plan.ranks

    def fire(self, fault: Fault) -> None:
        """Let it happen, unless the world has healed meanwhile."""
        if self.world.healed or self.world.launcher.done:
            return
        self.fired += 1
        self.inside += isinstance(fault.when, str) and fault.when != FINISHING
        if self.world.tracing:
            self.world.note(f"fault {fault}")
        getattr(self, "_" + fault.kind.replace("-", "_"))(fault)

    def _process(self, fault: Fault) -> Process | None:
        """Find the process that stands at the fault's place in the latest attempt."""
        processes = list(self.world.launcher.now.processes.values())
        return processes[fault.target % len(processes)] if processes else None

    def _agent(self, fault: Fault) -> Agent:
        agents = self.world.launcher.now.agents
        return agents[fault.target % len(agents)]

    def _kill(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is not None:
            process.kill()

    def _stop(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is None or not process.alive:
            return
        process.stop()
        world, agent = self.world, process.agent
        world.after(fault.length, process.resume)
        if fault.length > _SUSPECT_US:
            world.after(_SUSPECT_US, agent.saw_silence, process.index, False)
            world.after(fault.length + 100, agent.saw_silence, process.index, True)
        if fault.length > _EVICT_US:
            world.after(_EVICT_US, agent.saw_death, process.index, "no heartbeat")

    def _evict(self, fault: Fault) -> None:
        """The detector is wrong: the process runs."""
        process = self._process(fault)
        if process is not None:
            process.agent.saw_death(process.index, "no heartbeat")

    def _suspect(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is not None:
            process.agent.saw_silence(process.index, False)
            self.world.after(fault.length, process.agent.saw_silence, process.index, True)

    def _late(self, fault: Fault) -> None:
        """A process dies and its agent hears of it very late, then twice."""
        process = self._process(fault)
        if process is None or not process.alive:
            return
        process.alive = False
        if self.world.tracing:
            self.world.note(f"process {process.index} dies unseen")
        for delay in (fault.length, fault.length + 700):
            self.world.after(delay, process.agent.saw_death, process.index, "pidfd")

    def _agent_stop(self, fault: Fault) -> None:
        agent = self._agent(fault)
        agent.stop()
        self.world.after(fault.length, agent.resume)
        if fault.length > _EVICT_US:
            self._others_doubt(agent.host, fault.length)

    def _agent_kill(self, fault: Fault) -> None:
        agent = self._agent(fault)
        agent.kill()
        self._others_doubt(agent.host, 0)

    def _requeue(self, fault: Fault) -> None:
        """The job is started again while it runs."""
        launcher = self.world.launcher
        if len(launcher.attempts) <= self.world.plan.restarts:
            launcher.restart(launcher.now)

    def _full(self, fault: Fault) -> None:
        self._full_disk = True

    def disk_full(self, agent: Agent) -> bool:
        """Whether this agent's record cannot be written."""
        full, self._full_disk = self._full_disk, False
        return full and not self.world.healed

    def _cut(self, fault: Fault) -> None:
        """Part of the hosts cannot be reached; each side doubts the other some time."""
        hosts = self.world.plan.hosts
        side = {host for host in range(hosts) if fault.target >> host & 1}
        if not side or len(side) == hosts:
            side = {fault.target % hosts}
        self.world.network.cut(side)
        for agent in list(self.world.launcher.now.agents.values()):
            for host in range(hosts):
                if (host in side) != (agent.host in side):
                    self._doubts(agent, host, self.world.span(200, 3000), fault.length)
        self.world.after(fault.length, self.world.network.heal)

    def _doubt(self, fault: Fault) -> None:
        """One agent holds a living host for dead, for a while; one of the two coordinates."""
        agents = self.world.launcher.now.agents
        first = min((a.host for a in agents.values() if not a.over), default=0)
        other = (first + 1 + fault.length % (len(agents) - 1)) % len(agents)
        by, doubted = (first, other) if fault.target % 2 else (other, first)
        self._doubts(agents[by], doubted, 0, fault.length)

    def _silent(self, fault: Fault) -> None:
        """A host is not heard of by the other agents, though it runs and its messages arrive."""
        self._others_doubt(fault.target % self.world.plan.hosts, fault.length + 2000)

    def _forsaken(self, fault: Fault) -> None:
        """The others lose the host that they wait for, and go on without it at once."""
        for host in self._unfinished():
            for agent in list(self.world.launcher.now.agents.values()):
                if agent.host != host:
                    agent.peers.lost(host)
                    self.world.after(self.world.span(0, 1000), agent.peers.evict, host)
                    self.world.after(fault.length, agent.peers.back, host)

    def _others_doubt(self, host: int, length: int) -> None:
        for agent in list(self.world.launcher.now.agents.values()):
            if agent.host != host:
                self._doubts(agent, host, self.world.span(300, 3000), length)

    def _doubts(self, agent: Agent, host: int, delay: int, length: int) -> None:
        """Let an agent lose a host, and find it again where it lives."""
        self.world.after(delay, agent.peers.lost, host)
        self.world.after(delay + self.world.span(500, _EVICT_US), agent.peers.evict, host)
        if length:
            back = max(delay + 1, length + self.world.span(50, 800))
            self.world.after(back, agent.peers.back, host)

    def _host(self, fault: Fault) -> None:
        """A host goes down with all that runs on it and all that it had not written."""
        host = fault.target % self.world.plan.hosts
        for attempt in self.world.launcher.attempts:
            for process in attempt.processes.values():
                if process.host == host:
                    process.alive = False
        self.world.storage.crash({host}, power=False)
        for attempt in self.world.launcher.attempts:
            attempt.agents[host].kill()
        self._others_doubt(host, 0)

    def _power(self, fault: Fault) -> None:
        """All hosts go down at once."""
        launcher = self.world.launcher
        for attempt in launcher.attempts:
            for process in attempt.processes.values():
                process.alive = False
        self.world.storage.crash(set(range(self.world.plan.hosts)), power=True)
        self.world.rings.clear()
        for attempt in launcher.attempts:
            for agent in attempt.agents.values():
                agent.kill()

    def heal(self) -> None:
        """End all faults: nothing is cut, held or doubted any more, nothing new is lost."""
        world = self.world
        world.network.heal()
        world.network.loss = 0.0
        for attempt in world.launcher.attempts:
            for process in attempt.processes.values():
                process.resume()
                if not process.alive and not process.agent.over:
                    process.agent.saw_death(process.index, "pidfd")
            for agent in attempt.agents.values():
                agent.resume()
                for host, other in attempt.agents.items():
                    if other.alive:
                        agent.peers.back(host)
                    else:
                        agent.peers.lost(host)
