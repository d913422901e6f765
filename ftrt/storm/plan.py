"""What happens to each job of a storm, all of it from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

#: Time-outs of every job: short, so that a frozen or hanging rank does not take long.
EVICT_S, STALL_S = 1.0, 2.0
RESTARTS = 12
_MESSAGES = 1500
_DELAY_US = 700

#: Each kind of ``--fault`` with its weight.
_KINDS = {
    "kill": 8,
    "segv": 2,
    "exit": 2,
    "stop": 2,
    "abort": 2,
    "corrupt": 3,
    "link": 2,
    "throttle": 1,
    "freeze": 1,
    "hang": 1,
    "eio": 1,
}
_LASTING_MS = {"stop": (20, 600), "link": (20, 500), "throttle": (100, 500)}

#: What is done from outside, by signals, with its weight.
_STRIKES = {"kill": 4, "pair": 6, "spare": 2, "suspend": 1, "agent": 1, "mpirun": 1}


@dataclass(frozen=True)
class Strike:
    """Something that happens to a job from outside, ``after_s`` of its running time.

    ``pair`` kills a second rank ``gap_s`` after the first, which often is inside the recovery from
    the first; ``suspend`` stops everything that belongs to the job for ``gap_s``.
    """

    kind: str
    after_s: float
    ranks: tuple[int, ...] = ()
    gap_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """One job: what runs, and what happens to it."""

    number: int
    app: str
    arguments: tuple[str, ...]
    ranks: int
    spares: int
    stable: str
    shm: bool
    faults: tuple[str, ...]
    strikes: tuple[Strike, ...] = field(default=())

    @property
    def options(self) -> list[str]:
        """Options of ``ftrt run`` for this job."""
        options = ["-n", str(self.ranks), "--spares", str(self.spares)]
        options += ["--restarts", str(RESTARTS), "--stable", self.stable]
        options += ["--evict-timeout-s", str(EVICT_S), "--stall-timeout-s", str(STALL_S)]
        for fault in self.faults:
            options += ["--fault", fault]
        return options


def plan_job(seed: int, number: int, apps: tuple[str, ...] = ("stream", "rollout")) -> Plan:
    """Return job ``number`` of the storm with this seed."""
    rng = random.Random(f"{seed}/{number}")
    app = "rollout" if "rollout" in apps and rng.random() < 0.25 else "stream"
    arguments, ranks, messages = _rollout() if app == "rollout" else _stream(rng)
    stable = "power" if rng.random() < 0.2 else "process"
    faults = [_fault(rng, ranks, messages, stable) for _ in range(rng.randint(4, 9))]
    strikes = [_strike(rng, ranks) for _ in range(rng.randint(0, 4))]
    spares, shm = rng.randint(1, 4), rng.random() < 0.75
    return Plan(number, app, arguments, ranks, spares, stable, shm, tuple(faults), tuple(strikes))


def _rollout() -> tuple[tuple[str, ...], int, int]:
    return ("--iterations", "24", "--episodes", "3", "--quiet"), 3, 70


def _stream(rng: random.Random) -> tuple[tuple[str, ...], int, int]:
    fan = rng.choice(["pair", "in", "out"])
    size = rng.choice([8, 64, 1024, 40_000])
    batch = rng.choice([1, 1, 1, 16])
    messages = _MESSAGES * (4 if batch > 1 else 1)
    delay_us = _DELAY_US * (4 if batch > 1 else 1)
    arguments = ["--messages", messages, "--fan", fan, "--size", size, "--batch", batch]
    arguments += ["--delay-us", delay_us, "--quiet"]
    return tuple(str(word) for word in arguments), 2 if fan == "pair" else 3, messages


def _choice(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _fault(rng: random.Random, ranks: int, messages: int, stable: str) -> str:
    kind = _choice(rng, _KINDS)
    if kind == "eio" and stable != "power":
        kind = "kill"
    rank, peer = rng.sample(range(ranks), 2)
    who = f"{rank}-{peer}" if kind == "link" else f"{rank}"
    chance = rng.random()
    if chance < 0.7:
        when = f"{rng.randint(1, messages)}msg"
    elif chance < 0.85:
        when = f"{rng.randint(1, 2500)}ms"
    else:
        when = "recovery"
    lasting = f"+{rng.randint(*_LASTING_MS[kind])}ms" if kind in _LASTING_MS else ""
    return f"{kind}:{who}@{when}{lasting}"


def _strike(rng: random.Random, ranks: int) -> Strike:
    kind = _choice(rng, _STRIKES)
    after_s = round(rng.uniform(0.02, 0.8), 4)
    hit = tuple(rng.sample(range(ranks), 2))
    gap_s = rng.uniform(0.2, 0.8) if kind == "suspend" else rng.uniform(0.0, 0.012)
    return Strike(kind, after_s, hit, round(gap_s, 4))
