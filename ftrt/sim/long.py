"""The long form: 100,000 seeds at 3 to 9 ranks, a fifth as many that shrink, and their page.

``python -m ftrt.sim.long`` goes on where the last piece stopped, for at most `--limit-s` seconds.
What was run with other code does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftrt import __version__
from ftrt.sim.case import code_digest
from ftrt.sim.report import SELDOM, rows, seldom, summary
from ftrt.sim.run import Tally, run_seeds

RANKS = (3, 4, 5, 6, 7, 8, 9)
_PIECE = 700
#: To so many seeds comes one in which ranks that no spare takes over may be inherited.
_SHRINKING_OF = 5
#: Where the page goes on with what is not of the long form.
MUTATIONS_HEAD = "## Deliberate bugs"


def _load(path: Path) -> tuple[Tally, float]:
    """Read what was done so far with this very code."""
    if not path.exists():
        return Tally(), 0.0
    found: dict[str, Any] = json.loads(path.read_text())
    if found["code"] != code_digest():
        return Tally(), 0.0
    rows = {tuple(row.split(" ")): count for row, count in found["tally"].pop("rows").items()}
    bad = [tuple(entry) for entry in found["tally"].pop("bad")]
    return Tally(**found["tally"], bad=bad, rows=rows), found["seconds"]


def _save(path: Path, tally: Tally, seconds: float) -> None:
    values = asdict(tally)
    values["rows"] = {" ".join(row): count for row, count in tally.rows.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"code": code_digest(), "seconds": seconds, "tally": values}))


def page(tally: Tally, seconds: float, command: str) -> str:
    """Write the page of results."""
    found = tally.to_json(seconds)
    lines = [
        "# Simulator: the long form",
        "",
        f"`{command}`, ended {time.strftime('%Y-%m-%d')}, ftrt {__version__}, code "
        f"{code_digest()}, Python {platform.python_version()}, {platform.machine()}, "
        f"{len(os.sched_getaffinity(0))} cores.",
        "",
        summary(tally, "3 to 9", seconds) + ".",
        f"The last {_shrunk(tally):,} of them are of jobs that may shrink.",
        "",
        "| what | figure |",
        "|---|---|",
        *(f"| {name} | {_shown(value)} |" for name, value in found.items()),
        "",
        *_rare(tally),
        "",
    ]
    if tally.bad:
        lines += ["Bad seeds:", ""]
        lines += [
            f"- {seed} at {ranks} ranks: {who}: {text}" for ranks, seed, who, text in tally.bad
        ]
    return "\n".join(lines)


def _shrunk(tally: Tally) -> int:
    return tally.seeds // (_SHRINKING_OF + 1)


def _rare(tally: Tally) -> list[str]:
    """Rows of the transition tables that were hardly taken."""
    found = seldom(tally)
    if not found:
        return [
            f"Each of the {len(rows())} rows of the transition tables was taken {SELDOM} times "
            "or more."
        ]
    head = f"Rows of the transition tables that were taken fewer than {SELDOM} times:"
    return [head, "", "| row | times |", "|---|---|", *(f"| `{r}` | {n} |" for r, n in found)]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:g}" for name, number in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(arguments: list[str]) -> int:
    """Run the next pieces; write the page once all is done."""
    parser = argparse.ArgumentParser(prog="python -m ftrt.sim.long", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--limit-s", type=float, default=3600.0)
    parser.add_argument("--state", type=Path, default=Path("build/sim-long.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/simulator.md"))
    options = parser.parse_args(arguments)
    tally, seconds = _load(options.state)
    until = time.monotonic() + options.limit_s
    every = options.seeds + options.seeds // _SHRINKING_OF
    while tally.seeds < every and time.monotonic() < until:
        start = time.monotonic()
        shrinking = tally.seeds >= options.seeds
        first = tally.seeds - (options.seeds if shrinking else 0)
        count = min(_PIECE, (every if shrinking else options.seeds) - tally.seeds)
        tally.add(run_seeds(RANKS, count, first, shrinking=shrinking))
        seconds += time.monotonic() - start
        _save(options.state, tally, seconds)
    print(summary(tally, "3 to 9", seconds))
    if tally.seeds >= every:
        command = f"python -m ftrt.sim.long --seeds {options.seeds}"
        options.page.parent.mkdir(parents=True, exist_ok=True)
        old = options.page.read_text() if options.page.exists() else ""
        _, head, rest = old.partition(MUTATIONS_HEAD)
        options.page.write_text(page(tally, seconds, command) + "\n" + head + rest)
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
