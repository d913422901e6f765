"""Runs many seeds on all cores, and makes what fails small enough to read."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ftrt.errors import UsageError
from ftrt.sim.checks import Violation
from ftrt.sim.plan import LEAST_MESSAGES, Plan, make_plan
from ftrt.sim.world import World

MOST_SEEDS = 10_000_000
_CHUNK = 25
_KEEP_BAD = 20


@dataclass
class Tally:
    """What came of some seeds; adds up."""

    seeds: int = 0
    messages: int = 0
    faults: int = 0
    inside: int = 0
    recoveries: int = 0
    inherited: int = 0
    attempts: int = 0
    failed_for_a_reason: int = 0
    handled_sum: int = 0
    handled_count: int = 0
    handled_max: int = 0
    depth: int = 0
    violations: int = 0
    bad: list[tuple[int, int, str, str]] = field(default_factory=list)
    rows: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Take another tally in."""
        for name in (
            "seeds",
            "messages",
            "faults",
            "inside",
            "recoveries",
            "inherited",
            "attempts",
            "failed_for_a_reason",
            "handled_sum",
            "handled_count",
            "violations",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.handled_max = max(self.handled_max, other.handled_max)
        self.depth = max(self.depth, other.depth)
        self.bad = sorted(self.bad + other.bad)[:_KEEP_BAD]
        for row, count in other.rows.items():
            self.rows[row] = self.rows.get(row, 0) + count

    def take(self, world: World) -> None:
        """Take one run in."""
        self.seeds += 1
        self.messages += sum(stream.last for stream in world.plan.streams)
        self.faults += world.faults.fired
        self.inside += world.faults.inside
        self.recoveries += world.recoveries
        self.inherited += world.inherited
        self.attempts += len(world.launcher.attempts)
        self.failed_for_a_reason += bool(world.launcher.given_up)
        self.handled_sum += sum(world.messages)
        self.handled_count += len(world.messages)
        self.handled_max = max(self.handled_max, max(world.messages, default=0))
        self.depth = max(self.depth, world.depth)
        for row, count in world.rows.items():
            self.rows[row] = self.rows.get(row, 0) + count

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Return the report of the command."""
        mean = self.handled_sum / self.handled_count if self.handled_count else 0.0
        return {
            "seeds": self.seeds,
            "violations": self.violations,
            "first_bad_seed": self.bad[0][1] if self.bad else None,
            "messages_per_rank": {"mean": round(mean, 3), "max": self.handled_max},
            "depth": self.depth,
            "messages": self.messages,
            "faults": self.faults,
            "faults_inside_recoveries": self.inside,
            "recoveries": self.recoveries,
            "inherited": self.inherited,
            "attempts": self.attempts,
            "failed_for_a_reason": self.failed_for_a_reason,
            "seeds_per_s": round(self.seeds / max(seconds, 1e-9), 1),
        }


def run_one(plan: Plan, tracing: bool = False) -> tuple[World, Violation | None]:
    """Run one plan; return the world as it is at the end, and what was broken."""
    world = World(plan, tracing)
    try:
        world.run()
    except Violation as violation:
        return world, violation
    except Exception as error:  # whatever it is, it belongs to this seed and must name it
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} in {where.name}, line {where.lineno}"
        return world, Violation("exception", text)
    return world, None


def run_chunk(job: tuple[int, int, int, bool]) -> Tally:
    """Run the seeds of one piece of work: (ranks, first seed, how many, whether they shrink)."""
    ranks, first, count, shrinking = job
    tally = Tally()
    gc.disable()  # a run makes no garbage that matters until it is over
    try:
        for seed in range(first, first + count):
            world, violation = run_one(make_plan(ranks, seed, shrinking))
            tally.take(world)
            if violation is not None:
                tally.violations += 1
                tally.bad.append((ranks, seed, violation.checker, violation.text))
    finally:
        gc.enable()
        gc.collect()
    return tally


def run_seeds(
    ranks: int | tuple[int, ...],
    seeds: int,
    first: int = 0,
    workers: int | None = None,
    progress: Callable[[Tally], None] | None = None,
    shrinking: bool = False,
) -> Tally:
    """Run `seeds` seeds from `first` on.

    Parameters
    ----------
    ranks : int or tuple of int
        Several numbers of ranks take turns.
    seeds, first : int
    workers : int, optional
        Processes; by default one per core that this process may use.
    progress : callable, optional
        Called with the tally so far.
    shrinking : bool
        Let jobs go on with fewer processes.

    Raises
    ------
    UsageError
        A number is out of range.
    """
    if not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds {seeds}: use 1 to {MOST_SEEDS:,}")
    several = (ranks,) if isinstance(ranks, int) else ranks
    for number in several:  # refuse what cannot be before anything runs
        make_plan(number, first)
        make_plan(number, first + seeds)
    jobs = list(_jobs(several, seeds, first, shrinking))
    workers = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    total = Tally()
    for tally in _each(jobs, workers):
        total.add(tally)
        if progress is not None:
            progress(total)
    return total


def first_violation(ranks: int, most: int, workers: int | None = None) -> Tally:
    """Run seeds from 0 on until one is bad; its tally, or that of all if none is."""
    total = Tally()
    workers = workers or len(os.sched_getaffinity(0))
    for tally in _each(list(_jobs((ranks,), most, 0)), workers):
        total.add(tally)
        if tally.violations:
            break
    return total


def _jobs(
    several: tuple[int, ...], seeds: int, first: int, shrinking: bool = False
) -> Iterator[tuple[int, int, int, bool]]:
    for piece, start in enumerate(range(0, seeds, _CHUNK)):
        count = min(_CHUNK, seeds - start)
        yield several[piece % len(several)], first + start, count, shrinking


def _each(jobs: list[tuple[int, int, int, bool]], workers: int) -> Iterator[Tally]:
    if workers == 1:
        yield from map(run_chunk, jobs)
        return
    # Not forked: what calls this may have threads and handlers of signals, and a child that was
    # forked while one of them held a lock, or that has the handler, does not end with the pool.
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers) as pool:
        yield from pool.imap_unordered(run_chunk, jobs)


def shrink(plan: Plan, violation: Violation, limit_s: float = 20.0) -> Plan:
    """Leave out faults and messages as long as the same checker still objects."""
    until = time.monotonic() + limit_s
    smaller = True
    while smaller and time.monotonic() < until:
        smaller = False
        for candidate in _smaller(plan):
            _, found = run_one(candidate)
            if found is not None and found.checker == violation.checker:
                plan, smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for at in range(len(plan.faults)):
        yield plan._replace(faults=plan.faults[:at] + plan.faults[at + 1 :])
    if sum(stream.last for stream in plan.streams) > LEAST_MESSAGES // 8:
        halves = tuple(s._replace(last=max(4, s.last // 2)) for s in plan.streams)
        yield plan._replace(streams=halves)
    if plan.loss:
        yield plan._replace(loss=0.0)
    if plan.stepwise:
        yield plan._replace(stepwise=False)
