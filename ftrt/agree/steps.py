"""What a host's recovery knows, and what each event of its transition table does to it.

A handler takes the situation and an event and returns the situation after it, with what is to
be done, in order. It changes nothing: a handler that raises leaves the recovery as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ftrt.agree import events as ev
from ftrt.agree.effects import (
    CloseLedgers,
    CreateRecord,
    Effect,
    End,
    Fail,
    Inherit,
    Kill,
    Note,
    Promote,
    Publish,
)
from ftrt.agree.epoch import Decision, EpochId, Membership, Outcome, listed, plan_members
from ftrt.agree.events import Event, State
from ftrt.agree.heirs import plan_heirs
from ftrt.agree.marks import Key, StreamMarks, merged
from ftrt.errors import InvariantBroken

# Evidence that the process is gone for good; after any other it is ended first.
GONE = ("pidfd", "exit")


@dataclass(frozen=True)
class Situation:
    """All that the recovery knows; handlers return a changed copy.

    `epoch` and `membership` are those of the latest record known to exist. `dead` are processes,
    `finished` are ranks. `target` is the epoch being made and `decision` who will act in it.
    `recorded_dead` are those that a record has named already, `named` those that the record being
    made names: the dead, and the processes of hosts that it leaves out.
    """

    state: State
    epoch: EpochId
    membership: Membership
    marks: dict[Key, StreamMarks] = field(default_factory=dict)
    dead: frozenset[int] = frozenset()
    recorded_dead: frozenset[int] = frozenset()
    named: frozenset[int] = frozenset()
    finished: frozenset[int] = frozenset()
    suspects: frozenset[int] = frozenset()
    target: EpochId | None = None
    decision: Decision | None = None
    fresh: Membership | None = None
    restarts: int = 0
    least: int = 0

    @property
    def acting(self) -> Membership:
        """Whose processes live now: those of a restart, even before their first record."""
        return self.membership if self.fresh is None else self.fresh

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks whose process is dead and whose work is not complete."""
        pairs = self.membership.members
        return tuple(r for r, p in pairs if p in self.dead and r not in self.finished)

    @property
    def spares_left(self) -> int:
        """How many spares live."""
        return sum(p not in self.dead for p in self.acting.spares)

    @property
    def complete(self) -> bool:
        """Whether all ranks finished."""
        return self.finished.issuperset(self.membership.ranks)


Step = tuple[Situation, tuple[Effect, ...]]


def _rank_or_spare(now: Situation, process: int) -> str:
    ranks = now.acting.ranks_of(process)
    if not ranks and now.decision is not None:
        ranks = now.decision.membership.ranks_of(process)
    return listed(ranks) if ranks else "a spare"


def _known(now: Situation, process: int) -> None:
    """Refuse a process that nobody has heard of."""
    if process not in now.acting.processes | now.dead:
        raise InvariantBroken(f"process {process} is in no membership")


def ignored(now: Situation, event: Event) -> Step:
    """Nothing to do: it is over."""
    return now, ()


def died(now: Situation, event: ev.ProcessDied) -> Step:
    """Count a death; a decision that is still open will see it."""
    _known(now, event.process)
    if event.process in now.dead:
        return now, ()
    ranks = now.acting.ranks_of(event.process)
    after = replace(now, dead=now.dead | {event.process}, suspects=now.suspects - {event.process})
    if ranks and now.finished.issuperset(ranks):
        return after, ()
    who = _rank_or_spare(now, event.process)
    note = Note(f"process {event.process} ({who}) died, seen by {event.by}", "died", event.process)
    kill = () if event.by in GONE else (Kill(event.process),)
    return after, (*kill, note, *_depleted(now, after))


def _depleted(before: Situation, after: Situation) -> tuple[Note, ...]:
    """Say, once, that no spare is left, and what the next death of a rank will do."""
    if after.spares_left or not before.spares_left:
        return ()
    if after.least:
        then = f"lets another rank inherit its streams, down to {after.least} ranks (--min-ranks)"
    else:
        then = "ends this attempt" + (
            "; the job begins again from the ledger" * bool(after.restarts)
        )
    return (Note(f"no spare is left: the next death of a rank {then}", "depleted"),)


def died_running(now: Situation, event: ev.ProcessDied) -> Step:
    """Start a recovery if a rank is lost; a spare's death changes no epoch."""
    after, effects = died(now, event)
    if not after.lost:
        return after, effects
    after, closing = _close(after)
    return after, (*effects, *closing)


def asked(now: Situation, event: ev.CloseAsked) -> Step:
    """Join a successor that another host began; a request for an epoch behind us is late."""
    if event.epoch > now.epoch:
        raise InvariantBroken(f"epoch {event.epoch} is to be closed before it exists here")
    return _close(now) if event.epoch == now.epoch else (now, ())


def _close(now: Situation) -> Step:
    """Begin the next epoch: close all ledgers of this one."""
    after = replace(now, state=State.CLOSING, target=now.epoch.next(), decision=None)
    return after, (CloseLedgers(now.epoch, now.membership.ranks),)


def finished(now: Situation, event: ev.ProcessFinished) -> Step:
    """Count a rank as complete; a spare that leaves is a spare less."""
    _known(now, event.process)
    ranks = now.acting.ranks_of(event.process)
    if ranks:
        return replace(now, finished=now.finished.union(ranks)), ()
    after = replace(now, dead=now.dead | {event.process})
    return after, _depleted(now, after)


def finished_running(now: Situation, event: ev.ProcessFinished) -> Step:
    """End with the last rank; what is being closed then needs no successor."""
    after, effects = finished(now, event)
    if not after.complete:
        return after, effects
    return replace(after, state=State.ENDED), (*effects, End(after.epoch))


def suspected(now: Situation, event: ev.Suspected) -> Step:
    """Remember a suspicion; it changes no epoch."""
    _known(now, event.process)
    if event.process in now.suspects | now.dead:
        return now, ()
    note = Note(f"process {event.process} is suspected", "suspected", event.process)
    return replace(now, suspects=now.suspects | {event.process}), (note,)


def cleared(now: Situation, event: ev.Cleared) -> Step:
    """Take a suspicion back."""
    _known(now, event.process)
    if event.process not in now.suspects:
        return now, ()
    note = Note(f"process {event.process} is cleared", "cleared", event.process)
    return replace(now, suspects=now.suspects - {event.process}), (note,)


def closed(now: Situation, event: ev.LedgersClosed) -> Step:
    """The past is fixed: decide who acts next and ask for the record."""
    if event.epoch < now.epoch:
        return now, ()  # another answer to a closing that is behind us
    if event.epoch > now.epoch or now.target is None:
        raise InvariantBroken(f"the ledgers of epoch {event.epoch} closed before it exists")
    named = now.dead.union(event.left_out)
    marks = merged(now.marks, event.marks)
    decision = _decide(now, named)
    if decision.outcome is Outcome.FAILED and now.least and now.fresh is None:
        heirs = (named, now.finished, event.heirs, tuple(marks), now.least)
        decision = plan_heirs(now.acting, *heirs)
    if decision.outcome is Outcome.FAILED:
        return _fail(now, decision.reason)
    record = CreateRecord(
        now.target,
        now.epoch,
        decision.membership.members,
        decision.membership.spares,
        marks,
        decision.promotions,
        tuple(sorted(named - now.recorded_dead)),
        tuple(sorted(now.finished)),
        decision.inherited,
    )
    after = replace(now, state=State.RECORDING, decision=decision, marks=marks, named=named)
    return after, (Note(decision.reason, "decided"), record)


def _decide(now: Situation, named: frozenset[int]) -> Decision:
    """Plan the members; after a restart all ranks have new processes."""
    plan = plan_members(now.acting, named, now.finished)
    if now.fresh is None or plan.outcome is Outcome.FAILED:
        return plan
    reason = f"all ranks go on from the ledger; {plan.reason}"
    return Decision(plan.outcome, plan.membership, plan.membership.members, reason)


def closed_late(now: Situation, event: ev.LedgersClosed) -> Step:
    """Another answer to a closing that is behind us."""
    behind = now.state is State.RECORDING and event.epoch == now.epoch
    if not behind and event.epoch >= now.epoch:
        raise InvariantBroken(f"nobody asked to close the ledgers of epoch {event.epoch}")
    return now, ()


def created(now: Situation, event: ev.RecordCreated) -> Step:
    """Our record exists: the next epoch is a fact."""
    if event.epoch != now.target or now.decision is None:
        raise InvariantBroken(f"epoch {now.target} is being recorded")
    after = replace(now, dead=now.dead | now.named, recorded_dead=now.named)
    decision = now.decision
    pairs = (decision.promotions, decision.inherited)
    return _enter(after, event.epoch, decision.membership, *pairs)


def _enter(
    now: Situation,
    epoch: EpochId,
    membership: Membership,
    promotions: tuple[tuple[int, int], ...],
    inherited: tuple[tuple[int, int], ...] = (),
) -> Step:
    """Make a recorded epoch the present one, and let everybody see it.

    A rank that it gives to another process is not done, whatever the one before said: that came
    after its ledger was read, and is void.
    """
    old = dict(now.membership.members)
    moved = {rank for rank, process in membership.members if old.get(rank) != process}
    after = replace(
        now,
        state=State.PUBLISHING,
        epoch=epoch,
        membership=membership,
        finished=now.finished - moved,
        target=None,
        decision=None,
        fresh=None,
    )
    promote = (Promote(process, rank, epoch) for rank, process in promotions)
    inherit = (Inherit(process, rank, epoch) for rank, process in inherited)
    return after, (*_depleted(now, after), Publish(epoch), *promote, *inherit)


def found(now: Situation, event: ev.RecordFound) -> Step:
    """Adopt somebody else's record, or leave if we are not in it."""
    expected = now.epoch.next()
    if event.epoch.job != expected.job or event.epoch.counter != expected.counter:
        raise InvariantBroken(f"the record of epoch {event.epoch} is no successor of {now.epoch}")
    attempt = (now.target or now.epoch).attempt
    theirs = Membership(event.members, event.spares, now.acting.places)
    if event.epoch.attempt < attempt:
        return _overtake(now, event, theirs)
    # A spare counts: where all members died meanwhile, it is the spares that go on.
    kept = theirs.processes & (now.acting.processes - now.dead)
    if event.epoch.attempt != attempt or not kept:
        return _fenced(now, event.epoch)
    old = () if now.fresh is not None else now.membership.members
    acting = {process for _, process in now.acting.members}
    new = [pair for pair in theirs.members if pair not in old and pair[1] in kept]
    had = set() if now.fresh is not None else acting
    promotions = tuple(pair for pair in new if pair[1] not in had)
    inherited = tuple(pair for pair in new if pair[1] in had)
    # Whoever it leaves out is gone for us; a spare may end by itself, a former member must not act.
    left_out = now.acting.processes - theirs.processes
    dropped = sorted((acting & left_out) - now.dead)
    marks = now.marks if event.marks is None else merged(event.marks)
    after = replace(now, marks=marks, dead=now.dead | left_out)
    after, effects = _enter(after, event.epoch, theirs, promotions, inherited)
    note = Note(f"the record of epoch {event.epoch} is not ours; it is adopted", "adopted")
    return after, (*(Kill(process) for process in dropped), note, *effects)


def _overtake(now: Situation, event: ev.RecordFound, theirs: Membership) -> Step:
    """An attempt before ours still made an epoch: close that one too, and succeed it."""
    target = EpochId(event.epoch.job, (now.target or now.epoch).attempt, event.epoch.counter + 1)
    marks = now.marks if event.marks is None else merged(event.marks)
    after = replace(
        now,
        state=State.CLOSING,
        epoch=event.epoch,
        membership=theirs,
        marks=marks,
        target=target,
        decision=None,
    )
    text = f"attempt {event.epoch.attempt} still made epoch {event.epoch.counter}"
    note = Note(text, "overtaken")
    return after, (note, CloseLedgers(event.epoch, theirs.ranks))


def found_early(now: Situation, event: ev.RecordFound) -> Step:
    """Somebody else ended our epoch: close its ledgers, then go with them."""
    after, effects = found(now, event)
    return after, (CloseLedgers(now.epoch, now.membership.ranks), *effects)


def _fenced(now: Situation, epoch: EpochId) -> Step:
    """A later epoch exists without us: nobody here may act any more."""
    reason = f"epoch {epoch} exists without this host's processes; nothing was applied after it"
    return replace(now, state=State.FAILED, target=None, decision=None, restarts=0), (
        Fail(reason, restart=False, fenced=True),
    )


def record_failed(now: Situation, event: ev.RecordFailed) -> Step:
    """Without a record there is no next epoch."""
    if event.epoch != now.target:
        raise InvariantBroken(f"epoch {now.target} is being recorded")
    return _fail(now, f"the record of epoch {event.epoch} cannot be written: {event.reason}")


def _fail(now: Situation, reason: str) -> Step:
    after = replace(now, state=State.FAILED, target=None, decision=None, fresh=None)
    return after, (Fail(reason, restart=now.restarts > 0),)


def published(now: Situation, event: ev.EpochPublished) -> Step:
    """Everybody can see the epoch: go on, or answer the deaths that came meanwhile."""
    if event.epoch != now.epoch:
        raise InvariantBroken(f"epoch {now.epoch} is being published")
    if now.lost:
        return _close(now)
    if now.complete:
        return replace(now, state=State.ENDED), (End(now.epoch),)
    return replace(now, state=State.RUNNING), ()


def restarted(now: Situation, event: ev.Restarted) -> Step:
    """A new attempt: close what the old one left, then go on with all new processes."""
    if event.attempt <= now.epoch.attempt:
        raise InvariantBroken(f"attempt {event.attempt} does not follow {now.epoch.attempt}")
    if event.membership.ranks != now.membership.ranks:
        raise InvariantBroken(f"attempt {event.attempt} has ranks {event.membership.ranks}")
    target = EpochId(now.epoch.job, event.attempt, now.epoch.counter + 1)
    after = replace(
        now,
        state=State.CLOSING,
        target=target,
        fresh=event.membership,
        dead=frozenset(),
        recorded_dead=frozenset(),
        finished=frozenset(),
        suspects=frozenset(),
        decision=None,
        restarts=max(0, now.restarts - 1),
    )
    return after, (CloseLedgers(now.epoch, now.membership.ranks),)


HANDLERS: dict[str, Callable[[Situation, Any], Step]] = {
    "ignored": ignored,
    "died": died,
    "asked": asked,
    "died_running": died_running,
    "finished": finished,
    "finished_running": finished_running,
    "suspected": suspected,
    "cleared": cleared,
    "closed": closed,
    "closed_late": closed_late,
    "created": created,
    "found": found,
    "found_early": found_early,
    "record_failed": record_failed,
    "published": published,
    "restarted": restarted,
}
