"""Carries the agreement of several hosts' agents over messages: the production core on a real wire.

One agent a host. What decides is :mod:`ftrt.agree.agreement`; who is dead and how a record is
created comes from outside.
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
from ftrt.hosts.packets import Message, decode, encode, head_of, joined, split

if TYPE_CHECKING:
    from ftrt.mpi import Wire

#: What may have been lost with a process is sent again this often.
TICK_S = 0.05
_MOST_EARLY = 4096
#: Looks for a message before the detector is asked, and those are called in who have not come.
_LOOKS = 32

Record = Callable[[AgreedRecord], AgreedRecord]


class Meeting:
    """One agent's part in the agreements of an attempt, one after the other.

    Parameters
    ----------
    wire : Wire
    processes : sequence of int
        Process of each agent, by the agent's number.
    tag : int
        Of the agents' own.
    record : callable
        Creates a record exclusively and returns the one that exists: this, or an earlier one.
    read : callable
        Gives what the written ledgers of an agent hold of our streams, in case it died too early
        to tell.
    """

    def __init__(
        self,
        wire: Wire,
        processes: Sequence[int],
        tag: int,
        record: Record,
        read: Callable[[int, EpochId], Table],
    ) -> None:
        self._wire, self._processes, self._tag = wire, tuple(processes), tag
        self._record, self._read = record, read
        self.me = self._processes.index(wire.process)
        self.dead: set[int] = set()
        self._machine: Agreement | None = None
        self._exchange: Exchange | None = None
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
        marks: Mapping[tuple[str, int, int], object],
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
        self._exchange = exchange = Exchange(self.me, epoch, marks, home)  # type: ignore[arg-type]
        self._watch()
        self._result = None
        self._handle(Tick())
        for to, told in exchange.begin():
            self._send(to, told)
        self._flush()
        early, self._early = self._early, []
        for agent, data in early:
            self._take(agent, data)
        self._wait(time.monotonic() + timeout_s, look)
        record = machine.record
        if record is None or machine.phase is Phase.FENCED:
            raise Fenced(f"the record of epoch {epoch} leaves out agent {self.me}")
        return record, self._result or exchange.result()

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
                self._handle(Tick())
                self._call()

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
        for agent in late:
            if agent not in members or agent in self.dead:
                exchange.handle(Told(agent, exchange.epoch, self._read(agent, exchange.epoch)))
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
            found = self._record(effect.record)
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
