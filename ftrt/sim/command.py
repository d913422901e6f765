"""The command `ftrt sim`, without the parsing of its options."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from ftrt.errors import UsageError
from ftrt.sim import case, scale
from ftrt.sim.plan import MOST_RANKS
from ftrt.sim.report import story, summary
from ftrt.sim.run import run_one, run_seeds


def command(
    echo: Callable[[str], object],
    ranks: int = 4,
    seeds: int = 1000,
    seed: int = 0,
    workers: int | None = None,
    save: str | None = None,
    replay: str | None = None,
    as_json: bool = False,
    shrink: bool = False,
) -> int:
    """Run it; return the exit status."""
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: use at least 1")
    if not 2 <= ranks <= scale.MOST_RANKS:
        raise UsageError(
            f"--ranks {ranks}: use 2 to {scale.MOST_RANKS}, whole jobs up to {MOST_RANKS} and "
            "agreements alone beyond"
        )
    if save and not (os.path.isdir(os.path.dirname(save) or ".") and not os.path.isdir(save)):
        raise UsageError(f"--save {save}: name a file in a folder that exists")
    if replay:
        return _replay(echo, replay)
    if ranks > MOST_RANKS:
        return scale.scale_command(echo, ranks, seeds, seed, as_json)
    start = time.monotonic()
    tally = run_seeds(ranks, seeds, seed, workers, shrinking=shrink)
    seconds = time.monotonic() - start
    if as_json:
        echo(json.dumps(tally.to_json(seconds), indent=2))
    else:
        echo(summary(tally, str(ranks), seconds))
    if tally.bad:
        number, first, checker, text = tally.bad[0]
        for line in story(number, first, checker, text, save, shrink):
            echo(line) if not as_json else None
    return 1 if tally.violations else 0


def _replay(echo: Callable[[str], object], path: str) -> int:
    plan = case.load(path)
    world, violation = run_one(plan, tracing=True)
    for line in (*plan.describe(), *world.trace):
        echo(line)
    echo(f"{world.now:7d} {violation or 'no promise was broken'}")
    return 1 if violation else 0
