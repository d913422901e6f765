"""The state machine of a host's recovery: events in, effects out, in the order to do them.

A death is answered in three steps, each confirmed by an event: the ledgers of the epoch are
closed and read, the record of the next epoch is created exclusively, the epoch is published.
A death in between joins the decision as long as no record has been asked for. From then on the
record may exist, so the death counts in the next epoch, which starts right after publishing.
What each event does is in `ftrt.agree.steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftrt.agree import events as ev
from ftrt.agree.effects import Effect
from ftrt.agree.epoch import EpochId, Membership, plan_members
from ftrt.agree.events import Event, State
from ftrt.agree.heirs import orphans
from ftrt.agree.marks import Key, StreamMarks
from ftrt.agree.steps import HANDLERS, Situation
from ftrt.agree.tables import TRANSITIONS
from ftrt.errors import InvariantBroken

STORY_LENGTH = 32


class Recovery:
    """Runs the transition table of `ftrt.agree.tables`.

    Parameters
    ----------
    epoch : EpochId
        The epoch that runs; its record exists.
    membership : Membership
        Of that epoch.
    marks : mapping of (stream, source, dest) to StreamMarks, optional
        Of that epoch's record.
    restarts : int
        How many more attempts the job has.
    finished : iterable of int
        Ranks that are known to be complete.
    least : int
        The fewest processes with which the job may go on once spares do not suffice; 0: it never
        shrinks.
    """

    def __init__(
        self,
        epoch: EpochId,
        membership: Membership,
        marks: Mapping[Key, StreamMarks] | None = None,
        restarts: int = 0,
        finished: Any = (),
        least: int = 0,
    ) -> None:
        self.now = Situation(
            State.RUNNING,
            epoch,
            membership,
            dict(marks or {}),
            finished=frozenset(finished),
            restarts=restarts,
            least=least,
        )
        self.story: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """The present state."""
        return self.now.state

    @property
    def epoch(self) -> EpochId:
        """The latest epoch whose record is known to exist."""
        return self.now.epoch

    @property
    def membership(self) -> Membership:
        """The membership of `epoch`, as its record has it."""
        return self.now.membership

    @property
    def marks(self) -> dict[Key, StreamMarks]:
        """The marks of `epoch`'s record."""
        return self.now.marks

    def who_takes_over(self, rank: int) -> tuple[int, ...]:
        """The spare that would take ``rank`` over if it were lost now, if there is one."""
        lost = self.now.acting.process_of(rank)
        plan = plan_members(self.now.acting, self.now.dead | {lost}, self.now.finished)
        return tuple(process for taken, process in plan.promotions if taken == rank)

    def orphans(self) -> tuple[int, ...]:
        """The lost ranks for which no spare is left and which a shrinking job would let inherit."""
        now = self.now
        if not now.least or now.fresh is not None:
            return ()
        return orphans(now.acting, now.dead, now.finished)

    def handle(self, event: Event) -> tuple[Effect, ...]:
        """Take one event; return what to do, in order.

        Raises
        ------
        InvariantBroken
            The event is illegal in this state. The state is as before; the text ends with the
            recent story.
        """
        row = TRANSITIONS.get((self.state, type(event)))
        if row is None:
            raise self._broken(event, "no such transition")
        name, allowed = row
        try:
            after, effects = HANDLERS[name](self.now, event)
        except InvariantBroken as error:
            raise self._broken(event, str(error)) from None
        if after.state not in allowed:
            raise self._broken(event, f"{name} led to {after.state.name}")
        told = f"{self.state.name} {_brief(event)} -> {after.state.name}"
        self.story = (*self.story, told)[-STORY_LENGTH:]
        self.now = after
        return effects

    def _broken(self, event: Event, why: str) -> InvariantBroken:
        story = "; ".join(self.story) or "nothing yet"
        return InvariantBroken(
            f"{_brief(event)} in state {self.state.name} of epoch {self.epoch}: {why}. "
            f"Story: {story}"
        )


def _brief(event: Event) -> str:
    """Name an event without its marks, which may be long."""
    if isinstance(event, ev.LedgersClosed):
        return f"LedgersClosed(epoch {event.epoch.counter}, {len(event.marks)} marks)"
    if isinstance(event, ev.RecordFound):
        return f"RecordFound(epoch {event.epoch.counter}, members {event.members})"
    return repr(event)
