"""The transitions of a host's recovery, as plain data; `python -m ftrt.agree.tables` draws them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from ftrt.agree import events as ev
from ftrt.agree.epoch import Membership, Outcome, plan_members
from ftrt.agree.events import State

R, C, W, P = State.RUNNING, State.CLOSING, State.RECORDING, State.PUBLISHING
E, F = State.ENDED, State.FAILED

Row = tuple[str, tuple[State, ...]]
_Place = TypeVar("_Place", bound=Enum)

# (state, event) -> (handler in ftrt.agree.steps, states it may lead to). A pair that is not
# here is illegal: it raises InvariantBroken and changes nothing.
TRANSITIONS: dict[tuple[State, type], Row] = {
    (R, ev.ProcessDied): ("died_running", (R, C)),
    (C, ev.ProcessDied): ("died", (C,)),
    (W, ev.ProcessDied): ("died", (W,)),
    (P, ev.ProcessDied): ("died", (P,)),
    (R, ev.ProcessFinished): ("finished_running", (R, E)),
    (C, ev.ProcessFinished): ("finished_running", (C, E)),
    (W, ev.ProcessFinished): ("finished", (W,)),
    (P, ev.ProcessFinished): ("finished", (P,)),
    (R, ev.CloseAsked): ("asked", (R, C)),
    (C, ev.CloseAsked): ("ignored", (C,)),
    (W, ev.CloseAsked): ("ignored", (W,)),
    (P, ev.CloseAsked): ("ignored", (P,)),
    (R, ev.LedgersClosed): ("closed_late", (R,)),
    (C, ev.LedgersClosed): ("closed", (C, W, F)),
    (W, ev.LedgersClosed): ("closed_late", (W,)),
    (P, ev.LedgersClosed): ("closed_late", (P,)),
    (W, ev.RecordCreated): ("created", (P,)),
    (W, ev.RecordFailed): ("record_failed", (F,)),
    (R, ev.RecordFound): ("found_early", (P, F)),
    (C, ev.RecordFound): ("found", (P, F, C)),
    (W, ev.RecordFound): ("found", (P, F, C)),
    (P, ev.EpochPublished): ("published", (R, C, E)),
    (R, ev.Restarted): ("restarted", (C,)),
    (F, ev.Restarted): ("restarted", (C,)),
}
for _state in (R, C, W, P):
    TRANSITIONS[_state, ev.Suspected] = ("suspected", (_state,))
    TRANSITIONS[_state, ev.Cleared] = ("cleared", (_state,))
# Once it is over, the processes go away one by one, and late signs of them mean nothing.
for _state in (E, F):
    for _event in (
        ev.ProcessDied,
        ev.ProcessFinished,
        ev.Suspected,
        ev.Cleared,
        ev.CloseAsked,
        ev.LedgersClosed,
    ):
        TRANSITIONS[_state, _event] = ("ignored", (_state,))


def mermaid() -> str:
    """Draw the transitions of a host's recovery that change the state."""
    table = {pair: after for pair, (_, after) in TRANSITIONS.items()}
    return _drawn(table, R, (E,))


def mermaid_agreement() -> str:
    """Draw the transitions of an agreement among several hosts that change the phase."""
    from ftrt.agree.agreement import TRANSITIONS as rows
    from ftrt.agree.agreement import Phase

    table = {pair: after for pair, (_, after) in rows.items()}
    return _drawn(table, Phase.GATHERING, (Phase.ADOPTED, Phase.FENCED))


def _drawn(
    table: Mapping[tuple[_Place, type], tuple[_Place, ...]], first: _Place, last: tuple[_Place, ...]
) -> str:
    """Draw each pair of states with an arrow between them once, with all events that cause it."""
    arrows: dict[tuple[_Place, _Place], list[str]] = {}
    for (state, event), after in table.items():
        for target in after:
            if target is not state:
                arrows.setdefault((state, target), []).append(event.__name__)
    lines = ["stateDiagram-v2", f"    [*] --> {first.name}"]
    for (state, target), names in arrows.items():
        lines.append(f"    {state.name} --> {target.name}: {', '.join(names)}")
    lines += [f"    {state.name} --> [*]" for state in last]
    return "\n".join(lines)


def markdown() -> str:
    """Draw all pairs as a table: events down, states across, the states that may follow inside."""
    head = "| event | " + " | ".join(state.name for state in State) + " |"
    lines = [head, "|---" * (len(State) + 1) + "|"]
    for event in ev.EVENTS:
        cells = [_cell(state, event) for state in State]
        lines.append(f"| `{event.__name__}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(state: State, event: type) -> str:
    """Name what may follow; '·' stays, '–' is illegal."""
    row = TRANSITIONS.get((state, event))
    if row is None:
        return "–"
    return ", ".join("·" if after is state else after.name for after in row[1])


def outcomes(most_ranks: int = 5, most_spares: int = 3) -> str:
    """Decide for every set of dead processes; count those that go on and those that fail."""
    heads = ["1 spare" if n == 1 else f"{n} spares" for n in range(most_spares + 1)]
    lines = ["| ranks | " + " | ".join(heads) + " |", "|---" * (most_spares + 2) + "|"]
    for ranks in range(1, most_ranks + 1):
        cells = (_tally(Membership.initial(ranks, spares)) for spares in range(most_spares + 1))
        lines.append(f"| {ranks} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _tally(membership: Membership) -> str:
    """Try all subsets of the processes as the dead; give "continued / failed"."""
    everybody = sorted(membership.processes)
    continued = 0
    for bits in range(1 << len(everybody)):
        dead = {process for at, process in enumerate(everybody) if bits >> at & 1}
        continued += plan_members(membership, dead).outcome is Outcome.CONTINUED
    return f"{continued} / {(1 << len(everybody)) - continued}"


if __name__ == "__main__":
    for _drawing in (mermaid(), mermaid_agreement()):
        print(f"```mermaid\n{_drawing}\n```\n")
    print(f"{markdown()}\n\n{outcomes()}")
