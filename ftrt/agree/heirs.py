"""Going on with fewer ranks: who inherits the ranks that no spare can take over.

A rank is inherited as a whole, its streams with its state: an effect and the mark of its message
are one commit, so that streams which share a state cannot be parted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ftrt.agree.epoch import Decision, Membership, Outcome, listed
from ftrt.agree.marks import Key

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Heirs:
    """What is known of possible heirs when an epoch ends.

    Parameters
    ----------
    willing : frozenset of int
        Processes whose program said that it takes over ranks, and holds still until it is decided.
    chosen : tuple of (rank, heir), optional
        What the application's policy wants; None where it has none. Both are ranks.
    refused : str
        Why the policy's answer is none, empty if it is one.
    """

    willing: frozenset[int] = frozenset()
    chosen: tuple[tuple[int, int], ...] | None = None
    refused: str = ""


def orphans(
    membership: Membership, dead: Collection[int], finished: Collection[int] = ()
) -> tuple[int, ...]:
    """The lost ranks for which no spare is left: the lowest ranks get the spares that there are."""
    lost = [r for r, p in membership.members if p in dead and r not in finished]
    spares = [p for p in membership.spares if p not in dead]
    return tuple(lost[len(spares) :])


def candidates(
    membership: Membership,
    dead: Collection[int],
    finished: Collection[int],
    willing: Collection[int],
) -> tuple[int, ...]:
    """The processes that may inherit: they live, are willing, and have work to do."""
    acting = {p for _, p in membership.members} & set(willing) - set(dead)
    return tuple(sorted(p for p in acting if not set(membership.ranks_of(p)) & set(finished)))


def plan_heirs(
    membership: Membership,
    dead: Collection[int],
    finished: Collection[int],
    heirs: Heirs,
    streams: Iterable[Key],
    least: int,
) -> Decision:
    """Decide who acts next where spares do not suffice: spares first, heirs for the rest.

    Without a policy an heir consumes and sends streams of all the names that the lost rank does,
    and is at the other end of none of them: the consumers that are left, for a consumer. Among
    several, rendezvous hashing decides: each lost rank goes to the candidate with the highest
    weight, so that another candidate's death moves nothing else.

    Parameters
    ----------
    membership : Membership
        Of the epoch that ends.
    dead, finished
        As for :func:`ftrt.agree.epoch.plan_members`.
    heirs : Heirs
    streams : iterable of (stream, source, dest)
        All that the job's ledgers know of.
    least : int
        The fewest processes that may act for ranks.

    Returns
    -------
    Decision
        SHRUNK, or FAILED with the reason: nothing is guessed where a policy does not answer.
    """
    left = orphans(membership, dead, finished)
    spares = [p for p in membership.spares if p not in dead]
    lost = [r for r, p in membership.members if p in dead and r not in finished]
    able = candidates(membership, dead, finished, heirs.willing)
    whose = _named(left)
    if heirs.refused:
        return _failed(membership, f"{whose} died and the policy for heirs {heirs.refused}")
    if not able:
        return _failed(
            membership,
            f"{whose} died, no spare is left, and no rank that is left takes over another's streams"
            " now (rt.inbox or rt.seats says that one does)",
        )
    if heirs.chosen is None:
        taken, problem = _by_hash(membership, left, able, tuple(streams))
    else:
        taken, problem = _by_policy(membership, left, able, heirs.chosen)
    if problem:
        return _failed(membership, f"{whose} died and {problem}")
    promotions = tuple(zip(lost, spares, strict=False))
    after = membership.replaced({**dict(promotions), **dict(taken)}, ())
    acting = {p for r, p in after.members if p not in dead or r in finished}
    if len(acting) < least:
        return _failed(
            membership,
            f"{whose} died and {len(acting)} would be left, fewer than the {least} of --min-ranks",
        )
    told = [f"process {p} takes over rank {r}" for r, p in promotions]
    told += [f"process {p} ({_named(membership.ranks_of(p))}) inherits rank {r}" for r, p in taken]
    return Decision(Outcome.SHRUNK, after, promotions, ", ".join(told), taken)


Taken = tuple[tuple[tuple[int, int], ...], str]


def _by_policy(
    membership: Membership,
    left: tuple[int, ...],
    able: tuple[int, ...],
    chosen: tuple[tuple[int, int], ...],
) -> Taken:
    """Check what the policy wants: an heir for each lost rank, each alive and willing."""
    wanted = dict(chosen)
    for rank in left:
        if rank not in wanted:
            return (), f"the policy for heirs names none for rank {rank}"
        heir = wanted[rank]
        if heir not in membership.ranks:
            return (), f"the policy for heirs names rank {heir}, which there is not"
        if membership.process_of(heir) not in able:
            which = ", ".join(str(r) for p in able for r in membership.ranks_of(p))
            return (), (
                f"the policy for heirs gives rank {rank} to rank {heir}, which is dead, done, or "
                f"takes over none (there were {which})"
            )
    return tuple((rank, membership.process_of(wanted[rank])) for rank in left), ""


def _by_hash(
    membership: Membership,
    left: tuple[int, ...],
    able: tuple[int, ...],
    streams: tuple[Key, ...],
) -> Taken:
    taken = []
    for rank in left:
        consumes, sends, others = _role({rank}, streams)
        if not consumes and not sends:
            return (), f"nothing is known of rank {rank}'s streams yet, so nobody can go on there"
        alike = []
        for process in able:
            its_consumes, its_sends, _ = _role(set(membership.ranks_of(process)), streams)
            if consumes <= its_consumes and sends <= its_sends:
                alike.append(process)
        fit = [p for p in alike if not others & set(membership.ranks_of(p))]
        if not fit:
            why = (
                "none that is left sends and consumes the same streams"
                if not alike
                else ("whoever could go on is at the other end of its streams")
            )
            return (), f"rank {rank} has no heir: {why}; a policy (--heirs) may choose otherwise"
        taken.append((rank, max(fit, key=lambda p: _weight(rank, membership.ranks_of(p)[0]))))
    return tuple(taken), ""


def _role(ranks: set[int], streams: tuple[Key, ...]) -> tuple[set[str], set[str], set[int]]:
    """Names of the streams that ranks consume and send, and the ranks at the other ends."""
    consumes = {name for name, _, dest in streams if dest in ranks}
    sends = {name for name, source, _ in streams if source in ranks}
    others = {source for _, source, dest in streams if dest in ranks}
    others |= {dest for _, source, dest in streams if source in ranks}
    return consumes, sends, others


def _weight(rank: int, heir: int) -> int:
    """A number that looks random and is the same everywhere: 64-bit mixing of both ranks."""
    word = (rank + 1) * 0x9E3779B97F4A7C15 ^ (heir + 1) * 0xC2B2AE3D27D4EB4F
    for _ in range(2):
        word &= _MASK
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        word = (word ^ word >> 27) * 0x94D049BB133111EB & _MASK
    return word ^ word >> 31


def _failed(membership: Membership, why: str) -> Decision:
    reason = (
        f"{why}; start with more in --spares, or with --restarts 1 to go on from the ledger with "
        "all ranks"
    )
    return Decision(Outcome.FAILED, membership, (), reason)


def _named(ranks: Iterable[int]) -> str:
    return listed(tuple(ranks))
