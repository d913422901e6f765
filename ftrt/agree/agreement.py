"""Uniform agreement of several hosts' agents on whose marks count, one instance an epoch.

Each agent has closed its ledgers, and written them, before it begins. What they hold is final, so
who takes part says which marks count: the tree carries names, and the marks go between those whom
they concern (`ftrt.agree.exchange`). Who begins calls those below it, which may know of nothing
yet: a host closes its ledgers and begins at the first message of an agreement. Names go up a binary
tree over the agents believed alive, whose root, the lowest of them, is the coordinator. It tries to
create the exclusive record. Whoever learns that a record exists adopts that one, whatever it
proposed itself, and passes it on to its neighbours in the tree.

Safety rests on the exclusive record alone: two coordinators may try, one wins. Termination needs
views of who is alive that become right in the end, and channels between the living that lose
nothing for good (`Tick` sends again). This is the arbiter scheme of shared-storage consensus: the
record plays the part of a write-once register.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ftrt.agree.epoch import EpochId
from ftrt.agree.tree import Tree
from ftrt.errors import InvariantBroken


class Phase(Enum):
    """Where an agent stands in one agreement."""

    GATHERING = "gathering"
    RECORDING = "recording"
    ADOPTED = "adopted"
    FENCED = "fenced"


@dataclass(frozen=True)
class AgreedRecord:
    """What is agreed on: `members` act in `epoch`, with what their closed ledgers hold."""

    epoch: EpochId
    coordinator: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Tick:
    """Begin, or send again what may have been lost."""


@dataclass(frozen=True)
class Died:
    """The detector holds `agent` for dead; it may be wrong for a while."""

    agent: int


@dataclass(frozen=True)
class Cleared:
    """The detector was wrong about `agent`."""

    agent: int


@dataclass(frozen=True)
class Report:
    """A message up the tree: all that `sender` knows to have closed their ledgers."""

    sender: int
    have: frozenset[int]


@dataclass(frozen=True)
class Call:
    """A message down the tree: `sender` gathers for this epoch and waits for a Report."""

    sender: int


@dataclass(frozen=True)
class Announce:
    """A message to the tree's neighbours: this record exists."""

    sender: int
    record: AgreedRecord


@dataclass(frozen=True)
class RecordCreated:
    """Our TryRecord won."""

    record: AgreedRecord


@dataclass(frozen=True)
class RecordFound:
    """A record exists that is not ours."""

    record: AgreedRecord


@dataclass(frozen=True)
class Send:
    """Deliver `message` to an agent. Order: an Announce only after its record exists."""

    to: int
    message: Report | Call | Announce


@dataclass(frozen=True)
class TryRecord:
    """Create the record exclusively; answer RecordCreated, or RecordFound with what exists.

    Order: after the ledgers of all members are closed and written.
    """

    record: AgreedRecord


@dataclass(frozen=True)
class Adopt:
    """Go on in the epoch of this record. Order: only after it exists; once per agreement."""

    record: AgreedRecord


@dataclass(frozen=True)
class Fence:
    """The record exists without this agent: nobody of its host may act any more."""

    record: AgreedRecord


Event = Tick | Died | Cleared | Report | Call | Announce | RecordCreated | RecordFound
EVENTS: tuple[type, ...] = Event.__args__
Effect = Send | TryRecord | Adopt | Fence


@dataclass(frozen=True)
class View:
    """All that one agent knows: `have` closed their ledgers, `told` is the last Report's receiver
    and content."""

    phase: Phase
    me: int
    tree: Tree
    epoch: EpochId
    have: frozenset[int]
    told: tuple[int, frozenset[int]] | None = None
    record: AgreedRecord | None = None

    @property
    def agents(self) -> tuple[int, ...]:
        """All agents, sorted."""
        return self.tree.agents

    @property
    def live(self) -> tuple[int, ...]:
        """Agents believed alive, sorted; oneself always."""
        return self.tree.live

    @property
    def parent(self) -> int | None:
        """The next agent up the tree, None for the coordinator."""
        return self.tree.parent(self.me)

    @property
    def children(self) -> tuple[int, ...]:
        """The next agents down the tree."""
        return self.tree.children(self.me)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Parent and children in the tree."""
        return self.children if self.parent is None else (self.parent, *self.children)

    def complete(self, top: int) -> bool:
        """Whether everybody below and including `top` takes part."""
        return top in self.have and self.tree.below(top) <= self.have


Step = tuple[View, tuple[Effect, ...]]


class Agreement:
    """One agent's part in making the epoch `epoch`; messages of other epochs are not for it.

    Parameters
    ----------
    me : int
    agents : iterable of int, or Tree
        All agents of the parent epoch; a tree of them is shared with whoever gave it.
    epoch : EpochId
        The epoch to be made.
    dead : iterable of int
        Agents that are held for dead already.
    """

    def __init__(
        self,
        me: int,
        agents: Iterable[int] | Tree,
        epoch: EpochId,
        dead: Iterable[int] = (),
    ) -> None:
        tree = agents if isinstance(agents, Tree) else Tree(tuple(sorted(agents)))
        if not _among(me, tree.live):
            raise InvariantBroken(f"agent {me} is not one of {tree.live}")
        for agent in sorted(dead):
            if agent != me and _among(agent, tree.live):
                tree = tree.turned(agent)
        self.now = View(Phase.GATHERING, me, tree, epoch, frozenset((me,)))

    @property
    def phase(self) -> Phase:
        """Where this agent stands."""
        return self.now.phase

    @property
    def record(self) -> AgreedRecord | None:
        """The record that exists, once this agent knows of it."""
        return self.now.record if self.phase in (Phase.ADOPTED, Phase.FENCED) else None

    def handle(self, event: Event) -> tuple[Effect, ...]:
        """Take one event; return what to do, in order.

        Raises
        ------
        InvariantBroken
            The event cannot come in this phase; nothing is changed.
        """
        row = TRANSITIONS.get((self.phase, type(event)))
        if row is None:
            raise InvariantBroken(
                f"{type(event).__name__} came to agent {self.now.me} in phase {self.phase.name}"
            )
        handler, allowed = row
        after, effects = handler(self.now, event)
        if after.phase not in allowed:
            raise InvariantBroken(f"{type(event).__name__} led to {after.phase.name}")
        self.now = after
        return effects


def advance(now: View) -> Step:
    """Send up, or try to record, as soon as the subtree is complete."""
    if not now.complete(now.me):
        return now, ()
    if now.parent is None:
        members = tuple(a for a in now.live if a in now.have)
        record = AgreedRecord(now.epoch, now.me, members)
        return replace(now, phase=Phase.RECORDING, record=record), (TryRecord(record),)
    told = (now.parent, now.have)
    if told == now.told:
        return now, ()
    return replace(now, told=told), (Send(now.parent, Report(now.me, now.have)),)


def again(now: View, event: Tick) -> Step:
    """Begin or repeat the gathering: up what there is, down a call to those who lack."""
    after, effects = advance(replace(now, told=None))
    late = (child for child in now.children if not now.complete(child))
    return after, (*effects, *(Send(child, Call(now.me)) for child in late))


def regather(now: View, event: Died | Cleared) -> Step:
    """The tree is another one: what was sent to the old parent goes to the new one."""
    after, effects = advance(_look(now, event))
    late = (child for child in after.children if child not in now.neighbours)
    calls = (Send(child, Call(now.me)) for child in late if child not in now.have)
    return after, (*effects, *calls)


def called(now: View, event: Call) -> Step:
    """We gather already; the parent hears of it when our subtree is complete."""
    return now, ()


def look(now: View, event: Died | Cleared) -> Step:
    """Only remember who is alive: the attempt to record is under way."""
    return _look(now, event), ()


def collect(now: View, event: Report) -> Step:
    """Take names in and see whether they are all."""
    return advance(_collected(now, event))


def keep(now: View, event: Report) -> Step:
    """Take names in; too late for the record under way."""
    return _collected(now, event), ()


def adopt(now: View, event: Announce | RecordCreated | RecordFound) -> Step:
    """A record exists: take it, whoever made it, and pass it on."""
    record = event.record
    if record.epoch.counter != now.epoch.counter or record.epoch.job != now.epoch.job:
        raise InvariantBroken(f"the record of epoch {record.epoch} came instead of {now.epoch}")
    if isinstance(event, RecordCreated) and record != now.record:
        raise InvariantBroken(f"agent {now.me} created a record that it did not ask for")
    inside = _among(now.me, record.members) and record.epoch == now.epoch
    phase = Phase.ADOPTED if inside else Phase.FENCED
    after = replace(now, phase=phase, record=record)
    first: Effect = Adopt(record) if inside else Fence(record)
    source = event.sender if isinstance(event, Announce) else None
    return after, (first, *_spread(after, source))


def confirm(now: View, event: Announce | RecordCreated | RecordFound) -> Step:
    """Hear of the record again: there is only one."""
    if event.record != now.record:
        raise InvariantBroken(f"two records of epoch {now.epoch} exist")
    return now, ()


def answer(now: View, event: Report | Call) -> Step:
    """Tell who is still gathering that it is decided."""
    if now.record is None:
        raise InvariantBroken("an agent adopted nothing")
    return now, (Send(event.sender, Announce(now.me, now.record)),)


def respread(now: View, event: Died | Cleared) -> Step:
    """The tree is another one: its new neighbours may not have heard."""
    after = _look(now, event)
    return after, _spread(after)


def remind(now: View, event: Tick) -> Step:
    """Say it again."""
    return now, _spread(now)


def _look(now: View, event: Died | Cleared) -> View:
    if not _among(event.agent, now.agents):
        raise InvariantBroken(f"agent {event.agent} is not one of {now.agents}")
    known = event.agent in now.tree.dead
    if event.agent == now.me or known == isinstance(event, Died):
        return now
    return replace(now, tree=now.tree.turned(event.agent))


def _among(agent: int, agents: tuple[int, ...]) -> bool:
    """Whether a sorted tuple has an agent."""
    at = bisect_left(agents, agent)
    return at < len(agents) and agents[at] == agent


def _collected(now: View, event: Report) -> View:
    return replace(now, have=now.have | event.have)


def _spread(now: View, source: int | None = None) -> tuple[Effect, ...]:
    """Announce the record to all neighbours but the one that announced it to us."""
    if now.record is None:
        raise InvariantBroken("an agent adopted nothing")
    message = Announce(now.me, now.record)
    return tuple(Send(agent, message) for agent in now.neighbours if agent != source)


G, W, A, F = Phase.GATHERING, Phase.RECORDING, Phase.ADOPTED, Phase.FENCED
Row = tuple[Callable[[View, Any], Step], tuple[Phase, ...]]

# (phase, event) -> (handler, phases it may lead to); what is not here is illegal.
TRANSITIONS: dict[tuple[Phase, type], Row] = {
    (G, Tick): (again, (G, W)),
    (G, Died): (regather, (G, W)),
    (G, Cleared): (regather, (G, W)),
    (G, Report): (collect, (G, W)),
    (G, Call): (called, (G,)),
    (G, Announce): (adopt, (A, F)),
    (G, RecordFound): (adopt, (A, F)),
    (W, Tick): (lambda now, event: (now, ()), (W,)),
    (W, Died): (look, (W,)),
    (W, Cleared): (look, (W,)),
    (W, Report): (keep, (W,)),
    (W, Call): (called, (W,)),
    (W, Announce): (adopt, (A, F)),
    (W, RecordCreated): (adopt, (A, F)),
    (W, RecordFound): (adopt, (A, F)),
}
for _phase in (A, F):
    TRANSITIONS |= {
        (_phase, Tick): (remind, (_phase,)),
        (_phase, Died): (respread, (_phase,)),
        (_phase, Cleared): (respread, (_phase,)),
        (_phase, Report): (answer, (_phase,)),
        (_phase, Call): (answer, (_phase,)),
        (_phase, Announce): (confirm, (_phase,)),
        (_phase, RecordFound): (confirm, (_phase,)),
    }
# Whose record won is in it, so nobody else's can have fenced that agent.
TRANSITIONS[A, RecordCreated] = (confirm, (A,))
