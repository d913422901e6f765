"""What `ftrt sim` prints."""

from __future__ import annotations

from collections.abc import Iterator

from ftrt.agree import agreement, tables
from ftrt.sim.plan import make_plan
from ftrt.sim.run import Tally, run_one, shrink

SELDOM = 100
_TRACE_LINES = 60


def summary(tally: Tally, ranks: str, seconds: float) -> str:
    """Say in one line how many seeds were run and what came of them."""
    found = tally.to_json(seconds)
    return (
        f"{tally.seeds:,} seeds at {ranks} ranks: {tally.violations} violations; "
        f"{tally.messages:,} messages, {tally.faults:,} faults ({tally.inside:,} inside "
        f"recoveries), {tally.recoveries:,} recoveries, {tally.attempts:,} attempts; "
        f"{found['seeds_per_s']:g} seeds/s"
    )


def story(
    ranks: int,
    seed: int,
    checker: str,
    text: str,
    save: str | None = None,
    shrinking: bool = False,
) -> Iterator[str]:
    """Tell of a bad seed: how to repeat it, what is left of it, what happened."""
    yield f"seed {seed} at {ranks} ranks: {checker}: {text}"
    option = " --shrink" * shrinking
    yield f"repeat it: ftrt sim --ranks {ranks} --seeds 1 --seed {seed}{option}"
    plan = make_plan(ranks, seed, shrinking)
    _, violation = run_one(plan)
    if violation is None:
        yield "it did not happen again: something outside of the seed has a part in it"
        return
    plan = shrink(plan, violation)
    world, again = run_one(plan, tracing=True)
    yield from plan.describe()
    yield from world.trace[-_TRACE_LINES:]
    yield f"{world.now:7d} {again}"
    if save:
        from ftrt.sim.case import save as save_case

        save_case(save, plan)
        yield f"saved: ftrt sim --replay {save}"


def rows() -> dict[tuple[str, str, str], int]:
    """Every row of both transition tables, none of them taken yet."""
    names = [("recovery", state.name, event.__name__) for state, event in tables.TRANSITIONS]
    names += [("agreement", p.name, event.__name__) for p, event in agreement.TRANSITIONS]
    return dict.fromkeys(names, 0)


def seldom(tally: Tally, least: int = SELDOM) -> list[tuple[str, int]]:
    """Rows of the transition tables that were taken fewer than `least` times."""
    counts = {**rows(), **tally.rows}
    return [(" ".join(row), n) for row, n in sorted(counts.items()) if n < least]
