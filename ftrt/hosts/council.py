"""An agent's part in the agreements with the agents of other hosts, one for each new epoch.

What decides is :mod:`ftrt.agree.agreement`, unchanged. Each agent closes and writes what its host
has of the epoch that ends, then names go up the tree. The head, which is the lowest of all, creates
the record; an agent that does not hear of the head may not, whatever it believes of others: mpirun
and the launcher are where the head is, and a part of the job that is cut off from them must not go
on. The record stays the arbiter for whoever is late, or wrong about who lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ftrt.agree.agreement import (
    AgreedRecord,
    Agreement,
    Announce,
    Cleared,
    Died,
    Effect,
    Event,
    Phase,
    RecordFound,
    Send,
    Tick,
    TryRecord,
)
from ftrt.agree.epoch import EpochId
from ftrt.hosts.packets import decode, encode

_MOST_EARLY = 256
#: How often a record that is known is told again to who may not have heard.
_REMINDERS = 3
_KEPT = 3


class Council:
    """The agreements of one agent.

    Parameters
    ----------
    me : int
        Our number.
    send : callable
        ``send(agent, message)`` brings a message to another agent, or loses it.
    decide : callable
        ``decide(wanted)``: everybody who is believed alive has closed; False if it is to be asked
        again.
    join : callable
        ``join(counter)``: somebody makes the epoch of that number.
    find : callable
        ``find(counter)``: the record of that epoch exists.
    """

    def __init__(
        self,
        me: int,
        *,
        send: Callable[[int, dict[str, Any]], None],
        decide: Callable[[AgreedRecord], bool],
        join: Callable[[int], None],
        find: Callable[[int], None],
    ) -> None:
        self.me = me
        self._send_to, self._decide, self._join, self._find = send, decide, join, find
        self._meetings: dict[int, Agreement] = {}
        self._early: list[tuple[int, dict[str, Any]]] = []
        self._wanted: AgreedRecord | None = None
        self._reminders = 0
        self.lost: set[int] = set()
        self.agreed: AgreedRecord | None = None

    def meets(self, counter: int) -> bool:
        """Whether we take part in making that epoch."""
        return counter in self._meetings

    def begin(self, epoch: EpochId, agents: Iterable[int]) -> None:
        """Take part in making ``epoch``: our ledgers of the one before are closed and written.

        Parameters
        ----------
        epoch : EpochId
        agents : iterable of int
            Those of the epoch that ends.
        """
        agents = tuple(sorted(agents))
        dead = self.lost.intersection(agents) - {self.me}
        self._meetings[epoch.counter] = Agreement(self.me, agents, epoch, dead)
        for old in [c for c in self._meetings if c <= epoch.counter - _KEPT]:
            del self._meetings[old]
        self._reminders = _REMINDERS
        self._handle(epoch.counter, Tick())
        early, self._early = self._early, []
        for sender, message in early:
            self.take(sender, message)

    def take(self, sender: int, message: dict[str, Any]) -> None:
        """Take a message of an agreement; one that we do not take part in yet waits."""
        counter = int(message["e"])
        meeting = self._meetings.get(counter)
        if meeting is None:
            self._early.append((sender, message))
            del self._early[:-_MOST_EARLY]  # what is dropped is sent again
            self._join(counter)
            return
        if int(message["a"]) != meeting.now.epoch.attempt:
            return  # of another attempt: its record says all
        data = bytes.fromhex(message["b"])
        event = decode(data, meeting.now.epoch.job, meeting.now.agents)
        self._handle(counter, event)  # type: ignore[arg-type]
        if isinstance(event, Announce):
            self._find(counter)

    def hold_for_dead(self, agent: int) -> None:
        """The detector holds an agent for dead."""
        if agent not in self.lost:
            self.lost.add(agent)
            self._tell(agent, Died(agent))

    def hold_for_alive(self, agent: int) -> None:
        """The detector was wrong."""
        if agent in self.lost:
            self.lost.discard(agent)
            self._tell(agent, Cleared(agent))

    def _tell(self, agent: int, event: Event) -> None:
        counter = max(self._meetings, default=0)
        if counter and agent in self._meetings[counter].now.agents:
            self._handle(counter, event)

    def recorded(self, record: AgreedRecord) -> None:
        """The record of an epoch exists, whoever made it."""
        meeting = self._meetings.get(record.epoch.counter)
        self._wanted = None
        self._early = [e for e in self._early if int(e[1]["e"]) > record.epoch.counter]
        if meeting is not None:
            self._handle(record.epoch.counter, RecordFound(record))

    def tick(self) -> None:
        """Send again what may have been lost; every now and then."""
        if self._wanted is not None:
            self._try(self._wanted)
        counter = max(self._meetings, default=0)
        if not counter:
            return
        settled = self._meetings[counter].phase in (Phase.ADOPTED, Phase.FENCED)
        if not settled or self._reminders > 0:
            self._reminders -= settled
            self._handle(counter, Tick())

    @property
    def open(self) -> bool:
        """Whether an agreement is under way."""
        counter = max(self._meetings, default=0)
        settled = (Phase.ADOPTED, Phase.FENCED)
        return bool(counter) and self._meetings[counter].phase not in settled

    def _handle(self, counter: int, event: Event) -> None:
        meeting = self._meetings[counter]
        for effect in meeting.handle(event):
            self._perform(meeting, effect)

    def _perform(self, meeting: Agreement, effect: Effect) -> None:
        epoch = meeting.now.epoch
        if isinstance(effect, Send):
            data = encode(effect.message, self.me, epoch, meeting.now.agents)
            message = {"k": "agree", "e": epoch.counter, "a": epoch.attempt, "b": data.hex()}
            self._send_to(effect.to, message)
        elif isinstance(effect, TryRecord):
            self._try(effect.record)

    def _try(self, wanted: AgreedRecord) -> None:
        self._wanted = None
        self.agreed = wanted
        if not self._decide(wanted):
            self._wanted = wanted
