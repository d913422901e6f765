"""What one seed stands for: ranks, hosts, streams, and the faults that will come."""

from __future__ import annotations

import random
from typing import NamedTuple

from ftrt.errors import UsageError

MOST_RANKS = 32
LEAST_MESSAGES = 200
#: Simulated microseconds in which faults come; afterwards everything heals.
FAULTY_US = 9000
#: Steps of a recovery that a fault can be tied to.
MOMENTS = ("closing", "closed", "recording", "recorded", "publishing")
#: The end of a job has races of its own: only one host has ranks that are not done; or a step of a
#: recovery comes when half of the ranks are done.
FINISHING = "finishing"
LATE_MOMENTS = tuple(f"late-{moment}" for moment in MOMENTS)
#: Some seeds are at fault for so long that jobs end while they are.
_LONG_US = 40_000


class Stream(NamedTuple):
    """One stream of a seed, with the sizes that both ends use."""

    number: int
    name: str
    source: int
    dest: int
    last: int
    kind: str
    window: int
    retention: int
    batch: int
    stable_every: int
    ordered: bool
    needs: int
    lead: int

    @property
    def key(self) -> tuple[str, int, int]:
        """The triple that marks are kept by."""
        return (self.name, self.source, self.dest)


class Fault(NamedTuple):
    """Something that goes wrong: at a time in microseconds, or at a step of a recovery."""

    kind: str
    when: int | str
    target: int = 0
    length: int = 0

    def __str__(self) -> str:
        when = f"{self.when} us" if isinstance(self.when, int) else f"in {self.when}"
        return f"{self.kind} {self.target} {when}" + (f" for {self.length} us" * bool(self.length))


class Plan(NamedTuple):
    """All that is fixed before a run begins."""

    seed: int
    ranks: int
    spares: int
    hosts: int
    plane: str
    stable: str
    streams: tuple[Stream, ...]
    faults: tuple[Fault, ...]
    restarts: int
    stepwise: bool
    loss: float
    calm: bool = False
    heals_us: int = FAULTY_US
    slow: bool = False
    least: int = 0
    policy: str = ""

    def host_of(self, process: int) -> int:
        """Host on which a process of any attempt runs."""
        return process % (self.ranks + self.spares) % self.hosts

    def describe(self) -> list[str]:
        """Say it in lines that a person can read."""
        head = (
            f"seed {self.seed}: {self.ranks} ranks, {self.spares} spares, {self.hosts} hosts, "
            f"{self.plane} plane, class {self.stable}, {self.restarts} restarts, heals at "
            f"{self.heals_us} us"
            + ", slow storage" * self.slow
            + f", shrinks to {self.least}, policy {self.policy or 'by roles'}" * bool(self.least)
        )
        streams = [
            f"stream {s.name} {s.source}->{s.dest}: {s.last} messages, {s.kind}, window {s.window},"
            f" retention {s.retention}, batch {s.batch}, stable every {s.stable_every}"
            for s in self.streams
        ]
        return [head, *streams, *(f"fault {fault}" for fault in self.faults)]


def make_plan(ranks: int, seed: int, shrink: bool = False) -> Plan:
    """Draw the plan of a seed; with ``shrink`` that of a job on one host with few spares.

    Such a job goes on with fewer processes. The streams between two ranks are numbered, so that
    several ranks have the same names to send and to consume.

    Raises
    ------
    UsageError
        There can be no such seed or number of ranks.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise UsageError(f"--ranks {ranks}: the simulator takes 2 to {MOST_RANKS}")
    if not 0 <= seed < 1 << 62:
        raise UsageError(f"--seed {seed}: use 0 to {(1 << 62) - 1}")
    dice = random.Random(seed * 64 + ranks)
    hosts = 1 if shrink or dice.random() < 0.6 else dice.randint(2, min(4, ranks))
    plane = "wire" if hosts > 1 or dice.random() < 0.35 else "ring"
    stable = dice.choice(("host", "power")) if hosts > 1 else dice.choice(("process", "power"))
    spares = dice.randint(0, 1 if shrink else 3) + 2 * (hosts > 1)
    restarts = 0 if dice.random() < 0.05 else 8
    heals_us = _LONG_US if dice.random() < 0.3 else FAULTY_US
    plan = Plan(
        seed,
        ranks,
        spares,
        hosts,
        plane,
        stable,
        _streams(dice, ranks, plane),
        _faults(dice, ranks, spares, hosts, stable, heals_us),
        restarts,
        stepwise=dice.random() < 0.8,
        loss=dice.choice((0.0, 0.02, 0.1)) if plane == "wire" else 0.0,
        heals_us=heals_us,
        slow=dice.random() < (0.5 if hosts > 1 else 0.1),
    )
    return _shrinking(dice, plan) if shrink else plan


def _shrinking(dice: random.Random, plan: Plan) -> Plan:
    pairs = [(stream.source, stream.dest) for stream in plan.streams]
    streams = tuple(
        stream._replace(name=f"s{pairs[:index].count(pairs[index])}")
        for index, stream in enumerate(plan.streams)
    )
    kills = tuple(
        Fault("kill", dice.randrange(200, 6000), dice.randrange(plan.ranks + plan.spares))
        for _ in range(dice.randint(1, 3))
    )
    return plan._replace(
        streams=streams,
        faults=plan.faults + kills,
        least=dice.randint(1, plan.ranks - 1),
        policy=dice.choice(("", "", "any", "any", "any", "dead", "raises")),
    )


def _streams(dice: random.Random, ranks: int, plane: str) -> tuple[Stream, ...]:
    """Draw 2 to 5 streams; some of them form cycles in which each waits for the others."""
    count = dice.randint(2, 5)
    each = -(-LEAST_MESSAGES // count)
    cycle = dice.random() < 0.5
    around = dice.randint(2, min(count, ranks)) if cycle else 0
    first = dice.randrange(ranks)
    sizes = [_sizes(dice, plane) for _ in range(count)]
    lead = sum(size[2] for size in sizes) + dice.randint(0, 8)
    streams = []
    for index in range(count):
        if index < around:
            source, dest = (first + index) % ranks, (first + (index + 1) % around) % ranks
            needs = (index - 1) % around
            last, ahead = each + 1, lead if index == 0 else 0
        else:
            source, dest = dice.sample(range(ranks), 2)
            needs, last, ahead = -1, each + dice.randint(0, 4), 0
        window, retention, batch, stable_every = sizes[index]
        kinds = ("replay", "spool", "volatile") if plane == "ring" else ("replay", "spool")
        kind = dice.choice(kinds) if index >= around else dice.choice(kinds[:2])
        ordered = dice.random() < 0.75
        streams.append(
            Stream(
                index,
                f"s{index}",
                source,
                dest,
                last,
                kind,
                window,
                retention,
                batch,
                stable_every,
                ordered,
                needs,
                ahead,
            )
        )
    return tuple(streams)


def _sizes(dice: random.Random, plane: str) -> tuple[int, int, int, int]:
    """Draw window, retention, batch, stable_every: often the smallest that are allowed."""
    batch = dice.choice((1, 1, 2, 4))
    stable_every = dice.choice((1, 3, 8)) if plane == "wire" else 1
    tight = dice.random() < 0.3
    window = max(2, batch) + (0 if tight else dice.randint(0, 16))
    retention = batch + stable_every - 1 + (0 if tight else dice.randint(0, 32))
    return window, retention, batch, stable_every


def _faults(
    dice: random.Random, ranks: int, spares: int, hosts: int, stable: str, heals_us: int
) -> tuple[Fault, ...]:
    """Draw 3 to 9 faults; the first kills a rank, so that one can fall inside its recovery."""
    everybody = ranks + spares
    first = Fault("kill", dice.randrange(200, 5000), dice.randrange(ranks))
    inside = Fault(
        dice.choice(("kill", "kill", "stop", "agent-stop", "agent-kill")),
        dice.choice(MOMENTS),
        dice.randrange(everybody),
        dice.randrange(300, 3000),
    )
    kinds = ["kill", "kill", "stop", "evict", "suspect", "requeue", "full", "agent-stop", "late"]
    kinds += ["agent-kill"] if dice.random() < 0.3 else []
    if hosts > 1:
        kinds += ["cut", "cut", "host", "doubt", "doubt", "silent", "silent", "silent"]
    if stable == "power":
        kinds += ["power"]
    more = []
    if heals_us > FAULTY_US:
        ending = ("forsaken",) if hosts > 1 else ("kill", "evict", "stop")
        late = dice.choice(LATE_MOMENTS)
        more.append(_drawn(dice, dice.choice(ending), FINISHING, everybody))
        more.append(_drawn(dice, dice.choice(("agent-stop", "kill")), late, everybody))
    for _ in range(dice.randint(1, 5)):
        kind = dice.choice(kinds)
        when: int | str = dice.randrange(0, heals_us - 2000)
        if kind == "doubt" and dice.random() < 0.5:
            when = dice.choice(("recording", "recorded"))  # when two may want to decide
        elif dice.random() < 0.3:
            when = dice.choice(MOMENTS)
        more.append(_drawn(dice, kind, when, everybody))
    return (first, inside, *more)


def _drawn(dice: random.Random, kind: str, when: int | str, everybody: int) -> Fault:
    """Draw whom a fault hits and how long it takes."""
    return Fault(kind, when, dice.randrange(everybody), dice.randrange(200, 6000))
