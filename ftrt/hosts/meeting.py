"""Carries the agreement of several hosts' agents over messages: the production core on a real wire.

One agent a host. What decides is :mod:`ftrt.agree.agreement`; who is dead and how a record is
created comes from outside. Where everybody comes, a sweep brings to all what the tree would have
brought to the coordinator, so each of them may try to create the record, which is the same
whoever makes it: nobody waits for an announcement. Whatever goes wrong in the sweep, the messages
of the tree take over, and the record stays the arbiter.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ftrt.agree.agreement import (
    AgreedRecord,
    Agreement,
    Call,
    Died,
    Effect,
    Event,
    Phase,
    RecordCreated,
    RecordFound,
    Send,
    Tick,
    TryRecord,
)
from ftrt.agree.epoch import EpochId
from ftrt.agree.exchange import Exchange, Table, Told
from ftrt.agree.tree import Tree
from ftrt.errors import DeadlineExceeded, Fenced, PeerFailed
from ftrt.hosts.packets import Message, decode, encode, head_of, joined, split, told_of
from ftrt.hosts.register import Register
from ftrt.hosts.sweep import Sweep, as_bytes, as_words

if TYPE_CHECKING:
    from ftrt.mpi import Wire

#: What may have been lost with a process is sent again this often.
TICK_S = 0.05
_MOST_EARLY = 4096
#: Looks for a message before the detector is asked, and those are called in who have not come.
_LOOKS = 32
#: How long a sweep may take before the tree's messages do its work.
_PATIENCE_S = 0.25


class Meeting:
    """One agent's part in the agreements of an attempt, one after the other.

    Parameters
    ----------
    wire : Wire
    processes : sequence of int
        Process of each agent, by the agent's number.
    tag : int
        Of the agents' own.
    register : Register
    read : callable
        Gives what the closed ledgers of an agent hold of our streams, in case it died too early
        to tell, or told in a sweep that we left.
    sweep : Sweep, optional
        Of the same processes.
    """

    def __init__(
        self,
        wire: Wire,
        processes: Sequence[int],
        tag: int,
        register: Register,
        read: Callable[[int, EpochId], Table],
        sweep: Sweep | None = None,
    ) -> None:
        self._wire, self._processes, self._tag = wire, tuple(processes), tag
        self._register, self._read, self._sweep = register, read, sweep
        self.me = self._processes.index(wire.process)
        self.dead: set[int] = set()
        self._machine: Agreement | None = None
        self._exchange: Exchange | None = None
        self._ours: frozenset[int] = frozenset()
        self._calls: list[Send] = []
        self._early: list[tuple[int, bytes]] = []
        self._out: dict[int, list[bytes]] = {}
        self._watched: tuple[int, ...] = ()
        self._result: Table | None = None

    # -- the agreement -------------------------------------------------------------------------

    def agree(
        self,
        epoch: EpochId,
        agents: Iterable[int] | Tree,
        marks: Table,
        home: Mapping[int, int],
        timeout_s: float = 10.0,
        look: Callable[[], Iterable[int]] = tuple,
    ) -> tuple[AgreedRecord, Table]:
        """Make the epoch `epoch` with the others; return its record and the marks of our streams.

        Parameters
        ----------
        epoch : EpochId
        agents : iterable of int, or Tree
            Those of the epoch that ends.
        marks, home
            As of :class:`ftrt.agree.exchange.Exchange`.
        timeout_s : float
        look : callable
            Returns the agents that the detector holds for dead, now.

        Raises
        ------
        Fenced
            The record leaves this host out.
        DeadlineExceeded
            The detector held nobody for dead who did not come.
        """
        self.dead.update(look())
        self._machine = machine = Agreement(self.me, agents, epoch, self.dead)
        self._calls = []
        self._ours = frozenset(rank for rank, agent in home.items() if agent == self.me)
        self._exchange = exchange = Exchange(self.me, epoch, marks, home)
        self._watch()
        self._result = None
        deadline = time.monotonic() + timeout_s
        if not self._swept(marks, deadline, look):
            self._handle(Tick())
            for to, told in exchange.begin():
                self._send(to, told)
            self._flush()
        early, self._early = self._early, []
        for agent, data in early:
            self._take(agent, data)
        self._wait(deadline, look)
        record = machine.record
        if record is None or machine.phase is Phase.FENCED:
            raise Fenced(f"the record of epoch {epoch} leaves out agent {self.me}")
        return record, self._result or exchange.result()

    def _swept(self, marks: Table, deadline: float, look: Callable[[], Iterable[int]]) -> bool:
        """Try to have the names and marks of all by a sweep; False if the tree has to do it."""
        sweep, machine, exchange = self._sweep, self._machine, self._exchange
        if sweep is None or sweep.broken or self.dead or machine is None or exchange is None:
            return False
        agents = machine.now.agents
        if len(agents) != len(self._processes):
            return False
        told = Told(self.me, exchange.epoch, marks)
        data = encode(told, self.me, exchange.epoch)
        fits = len(data) <= 8 * sweep.capacity - 8
        payload = as_words(data if fits else b"")
        patience = min(_PATIENCE_S, max(0.0, deadline - time.monotonic()))
        try:
            sweep.gather(payload, exchange.epoch.counter, patience, self._watcher(look))
        except (PeerFailed, DeadlineExceeded):
            return False
        # All are known to have closed: whoever comes first makes the record that any would make.
        record = AgreedRecord(exchange.epoch, agents[0], agents)
        machine.handle(RecordFound(self._register.create(record)))  # nobody has to be told of it
        for agent in sorted(exchange.others):
            brought = as_bytes(sweep.of(agent))
            if brought:
                self._hear(brought)
        if not fits:
            for to, message in exchange.begin():
                self._send(to, message)
        self._flush()
        return True

    def _watcher(self, look: Callable[[], Iterable[int]]) -> Callable[[], None]:
        """What to do now and then in a sweep: leave it for a death, call those who have not come.

        Also leave it where the messages of others decided.
        """
        called: list[bool] = []

        def watch() -> None:
            machine = self._machine
            self._notice(look())
            if not called:
                called.append(True)
                self._handle(Tick())
                self._call()
            self.poll()
            if self.dead or machine is None or machine.record is not None:
                raise PeerFailed("the sweep is left to the messages of the tree")

        return watch

    def _hear(self, data: bytes) -> None:
        """Take in the marks of our streams, of all that another agent's ledgers hold."""
        exchange = self._exchange
        if exchange is not None:
            told = told_of(data, exchange.epoch.job, self._ours)
            if told.epoch == exchange.epoch:
                exchange.handle(told)

    def _wait(self, deadline: float, look: Callable[[], Iterable[int]]) -> None:
        """Take messages until this agent is through; see to the detector and the clock."""
        due, idle = time.monotonic() + TICK_S, 0
        while not self._through():
            if self.poll(_LOOKS):
                continue
            idle += 1
            if idle == 1:
                self._call()
                self._merge()
            self._notice(look())
            now = time.monotonic()
            if now > deadline:
                raise DeadlineExceeded(self._standing())
            if now > due:
                due = now + TICK_S
                self._tick()

    def _tick(self) -> None:
        """Look at what is stored by now, and send again what may have been lost.

        Others may be through already, and in a later epoch: the register and the ledgers of whoever
        takes part say what they do not say any more.
        """
        machine, exchange = self._machine, self._exchange
        if machine is None or exchange is None:
            return
        found = None if machine.record else self._register.find(machine.now.epoch)
        self._handle(Tick() if found is None else RecordFound(found))
        self._call()
        if machine.record is not None:
            self._read_of(exchange.lacks(_ALL))

    def _read_of(self, agents: list[int]) -> None:
        exchange = self._exchange
        if exchange is not None:
            for agent in agents:
                table = self._read(agent, exchange.epoch)
                exchange.handle(Told(agent, exchange.epoch, table))

    def _merge(self) -> None:
        """Merge the marks while others are waited for: none come any more once all have told."""
        exchange = self._exchange
        if exchange is not None and self._result is None and not exchange.lacks(_ALL):
            self._result = exchange.result()

    def _standing(self) -> str:
        machine, exchange = self._machine, self._exchange
        if machine is None or exchange is None:
            return f"agent {self.me} has begun nothing"
        return (
            f"agent {self.me} stands in {machine.phase.name} of epoch {machine.now.epoch}, knows "
            f"that {sorted(machine.now.have)} closed, and lacks marks of {exchange.lacks(_ALL)}"
        )

    def _through(self) -> bool:
        """Whether the record is known and no mark is missing."""
        machine, exchange = self._machine, self._exchange
        if machine is None or exchange is None or machine.phase is Phase.FENCED:
            return True
        if machine.phase is not Phase.ADOPTED or machine.record is None:
            return False
        late = exchange.lacks(_ALL)
        if not late:
            return True
        members = machine.record.members
        self._read_of([a for a in late if a not in members or a in self.dead])
        return not exchange.lacks(_ALL)

    def _notice(self, dead: Iterable[int]) -> None:
        for agent in sorted(set(dead) - self.dead - {self.me}):
            self.dead.add(agent)
            self._watch()
            if self._machine is not None and agent in self._machine.now.agents:
                self._handle(Died(agent))

    def _watch(self) -> None:
        """Poll all who may live: MPI gives nobody's messages unasked once somebody died."""
        if self._machine is not None and self.dead:
            living = set(self._machine.now.agents) - self.dead - {self.me}
            self._watched = tuple(self._processes[agent] for agent in sorted(living))

    def _handle(self, event: Event) -> None:
        machine = self._machine
        if machine is None:
            return
        for effect in machine.handle(event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            if isinstance(effect.message, Call):
                self._calls.append(effect)  # most begin by themselves
            else:
                self._send(effect.to, effect.message)
        elif isinstance(effect, TryRecord):
            found = self._register.create(effect.record)
            ours = found == effect.record
            self._handle(RecordCreated(found) if ours else RecordFound(found))

    def _call(self) -> None:
        """Call in those who have not come by themselves."""
        calls, self._calls = self._calls, []
        machine = self._machine
        for effect in calls:
            if machine is not None and not machine.now.complete(effect.to):
                self._send(effect.to, effect.message)

    # -- messages ------------------------------------------------------------------------------

    def poll(self, looks: int = 1) -> bool:
        """Take what has arrived, also for an agreement that is over; whether anything had."""
        found = False
        for process in self._watched if self.dead else (None,):
            taken = self._wire.take(process, self._tag, looks)
            if taken is not None:
                found = True
                self._take(self._processes.index(taken[0]), taken[1])
        self._flush()
        return found

    def _take(self, agent: int, packet: bytes) -> None:
        for data in split(packet):
            self._take_message(agent, data)

    def _take_message(self, agent: int, data: bytes) -> None:
        machine, exchange = self._machine, self._exchange
        if machine is None or exchange is None:
            return
        now = machine.now
        _, attempt, counter = head_of(data)
        if attempt != now.epoch.attempt or counter < now.epoch.counter:
            return  # of an attempt or an epoch that is behind us: its record says all
        if counter > now.epoch.counter:
            self._early.append((agent, joined([data])))
            del self._early[:-_MOST_EARLY]  # what is dropped is sent again
            return
        message = decode(data, now.epoch.job, now.agents)
        if isinstance(message, Told):
            exchange.handle(message)
        else:
            self._handle(message)

    def _send(self, to: int, message: Message) -> None:
        machine = self._machine
        if machine is not None and to not in self.dead:
            data = encode(message, self.me, machine.now.epoch, machine.now.agents)
            self._out.setdefault(to, []).append(data)

    def _flush(self) -> None:
        """Send what there is, in one packet for each agent."""
        while self._out:
            to, messages = self._out.popitem()
            # Who is dead is for the detector to say; the next Tick sends it again.
            with contextlib.suppress(PeerFailed):
                self._wire.give(joined(messages), self._processes[to], self._tag)


_ALL = range(1 << 31)
