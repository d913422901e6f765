"""Epochs and who is in them; the decision who takes over, with its reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ftrt.errors import InvariantBroken


class Outcome(Enum):
    """How a recovery ends; there is no fourth way."""

    CONTINUED = "continued"
    SHRUNK = "shrunk"
    FAILED = "failed"


@dataclass(frozen=True, order=True)
class EpochId:
    """One membership with one set of marks. The counter goes on through all attempts of a job."""

    job: str
    attempt: int
    counter: int

    def next(self) -> EpochId:
        """Return the successor within this attempt."""
        return EpochId(self.job, self.attempt, self.counter + 1)

    def __str__(self) -> str:
        return f"{self.counter} of attempt {self.attempt}"


@dataclass(frozen=True)
class Membership:
    """Which process acts for which rank, and who is waiting.

    A process that inherited ranks of dead ones acts for several.

    Parameters
    ----------
    members : tuple of (rank, process), sorted by rank
    spares : tuple of int, sorted
        Processes without a rank.
    places : tuple of (process, place)
        Where processes are, if no two members may be in one place (NCCL refuses two ranks of a
        communicator on one GPU). Empty: anybody may replace anybody.
    """

    members: tuple[tuple[int, int], ...]
    spares: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    _by_rank: dict[int, int] = field(init=False, repr=False, compare=False)
    _by_process: dict[int, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(tuple(pair) for pair in self.members)))
        object.__setattr__(self, "spares", tuple(sorted(self.spares)))
        by_rank = dict(self.members)
        by_process: dict[int, tuple[int, ...]] = {}
        for rank, process in self.members:
            by_process[process] = (*by_process.get(process, ()), rank)
        everybody = len(by_process.keys() | set(self.spares))
        if len(by_rank) < len(self.members) or everybody < len(by_process) + len(self.spares):
            raise InvariantBroken(f"a rank or a process is listed twice in {self}")
        object.__setattr__(self, "_by_rank", by_rank)
        object.__setattr__(self, "_by_process", by_process)

    @classmethod
    def initial(cls, ranks: int, spares: int = 0, places: Collection[int] = ()) -> Membership:
        """Process i acts for rank i; the processes after them are spares.

        ``places`` has one for each process, or none.
        """
        members = tuple((i, i) for i in range(ranks))
        return cls(members, tuple(range(ranks, ranks + spares)), tuple(enumerate(places)))

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, sorted."""
        return tuple(self._by_rank)

    @property
    def processes(self) -> frozenset[int]:
        """All processes, spares included."""
        return frozenset(self._by_process).union(self.spares)

    def process_of(self, rank: int) -> int:
        """Return the process that acts for `rank`."""
        return self._by_rank[rank]

    def ranks_of(self, process: int) -> tuple[int, ...]:
        """Return the ranks that `process` acts for, sorted; none for a spare or a stranger."""
        return self._by_process.get(process, ())

    def replaced(self, promotions: Mapping[int, int], spares: Collection[int]) -> Membership:
        """Return the membership after rank -> process `promotions`, with these spares left."""
        members = tuple({**self._by_rank, **promotions}.items())
        return Membership(members, tuple(spares), self.places)


@dataclass(frozen=True)
class Decision:
    """Who acts in the next epoch, and why.

    Parameters
    ----------
    outcome : Outcome
    membership : Membership
        Of the next epoch; the unchanged one where the outcome is FAILED.
    promotions : tuple of (rank, process)
        Spares that take a rank over.
    reason : str
        One sentence for a person.
    inherited : tuple of (rank, process)
        Ranks that processes with a rank of their own take over in addition.
    """

    outcome: Outcome
    membership: Membership
    promotions: tuple[tuple[int, int], ...]
    reason: str
    inherited: tuple[tuple[int, int], ...] = ()

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        """The (rank, process) pairs of the next epoch."""
        return self.membership.members


def plan_members(
    membership: Membership, dead: Collection[int], finished: Collection[int] = ()
) -> Decision:
    """Decide who acts next: hot spares, the lowest process index to the lowest dead rank.

    Where members have places of their own, each lost rank gets a spare whose place is free, if
    there is a choice that serves all.

    Parameters
    ----------
    membership : Membership
        Of the epoch that ends.
    dead : collection of int
        Processes that are gone, spares included.
    finished : collection of int
        Ranks whose work is complete: they need no replacement.
    """
    lost = [r for r, p in membership.members if p in dead and r not in finished]
    spares = [p for p in membership.spares if p not in dead]
    if len(spares) < len(lost):
        reason = _hopeless(membership, lost, len(spares))
        return Decision(Outcome.FAILED, membership, (), reason)
    chosen = _matched(membership, lost, spares)
    if chosen is None:
        reason = (
            f"{listed(lost)} of {len(membership.members)} died and the spares that are left share "
            "GPUs with other ranks: start with one spare for each rank, or with --restarts 1 to go "
            "on from the ledger"
        )
        return Decision(Outcome.FAILED, membership, (), reason)
    promotions = tuple(zip(lost, chosen, strict=True))
    after = membership.replaced(dict(promotions), [p for p in spares if p not in chosen])
    takes = ", ".join(f"process {p} takes over rank {r}" for r, p in promotions)
    return Decision(Outcome.CONTINUED, after, promotions, takes or "nobody needs a replacement")


def listed(ranks: Sequence[int]) -> str:
    """Name ranks in a sentence.

    >>> listed([2]), listed([1, 3])
    ('rank 2', 'ranks 1, 3')
    """
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"


def _matched(membership: Membership, lost: list[int], spares: list[int]) -> list[int] | None:
    """A spare for each lost rank, no two members in one place; None if there is no such choice.

    Whom a place serves does not depend on the rank: so the first spare in each free place will do.
    """
    if not membership.places:
        return spares[: len(lost)]
    places = dict(membership.places)
    taken = {places[p] for r, p in membership.members if r not in lost}
    chosen: list[int] = []
    for spare in spares:
        if len(chosen) < len(lost) and places[spare] not in taken:
            taken.add(places[spare])
            chosen.append(spare)
    return chosen if len(chosen) == len(lost) else None


def _hopeless(membership: Membership, lost: list[int], left: int) -> str:
    """Say which ranks cannot be replaced and what to type next time."""
    were = f"{left} spare{'s' * (left != 1)} left" if left else "no spare is left"
    short = len(lost) - left
    return (
        f"{listed(lost)} of {len(membership.members)} died and {were}; "
        f"start with at least {short} more in --spares, "
        f"or with --restarts 1 to go on from the ledger"
    )
