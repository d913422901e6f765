"""What the command line makes of a campaign."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ftrt.campaign.cells import RULES, SIZES, table
from ftrt.campaign.run import Campaign, Options, command_line, replay
from ftrt.errors import UsageError

_COUNTS = ("trials", "tripped", "ambiguous", "losses", "duplicates", "stale", "empty", "torn")


def command(
    echo: Callable[..., Any],
    *,
    planes: Sequence[str],
    paths: Sequence[str],
    faults: Sequence[str],
    rules: Sequence[str],
    sizes: Sequence[int],
    out: str | None,
    replayed: str | None,
    as_json: bool,
    **others: Any,
) -> int:
    """Run a campaign, or one trial of it; the exit status."""
    cells = table(planes, paths, faults, rules or RULES, sizes or SIZES)
    if replayed is not None:
        seed, number = _seed_and_trial(replayed)
        others["seed"] = seed
        options = Options(cells, out=Path(), **{**others, "trials": 1})
        return _replay(options, number, echo)
    if out is None:
        raise UsageError("--out names the folder of the campaign; for example --out campaign")
    options = Options(cells, out=Path(out), command=command_line(), **others)
    return _run(options, echo, as_json)


def _run(options: Options, echo: Callable[..., Any], as_json: bool) -> int:
    campaign = Campaign.open(options)
    for entry in campaign.not_run:
        cell = "/".join(str(value) for value in entry["cell"].values())
        echo(f"not run: {cell}: {entry['reason']}", err=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no job is left behind
    try:
        summary = _with_bar(campaign)
    except KeyboardInterrupt:
        done = len(campaign.store.lines)
        echo(f"interrupted: {done} trials are in {options.out}, the same command goes on", err=True)
        return 130
    for complaint in campaign.complaints:
        echo(complaint, err=True)
    if left := campaign.left:
        done = len(campaign.store.lines)
        echo(
            f"{done} trials are in {options.out}, {left} are left: the same command goes on",
            err=True,
        )
    echo(json.dumps(summary, indent=2) if as_json else text(summary))
    _draw(options.out, partial(echo, err=True))
    return 1 if campaign.complaints else 0


def _with_bar(campaign: Campaign) -> dict[str, Any]:
    """Run it behind a bar that says how much time is left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True, highlight=False)
    ) as bar:
        task = bar.add_task("trials", total=campaign.left)

        def said(cell: Any, count: int) -> None:
            bar.update(task, advance=count, description=cell.name)

        return campaign.run(said)


def _replay(options: Options, number: int, echo: Callable[..., Any]) -> int:
    judged = replay(options, number, echo)
    for line in judged.lines[-1:]:
        echo(json.dumps(line, indent=2))
    for complaint in judged.complaints:
        echo(complaint, err=True)
    return 1 if judged.complaints else 0


def _seed_and_trial(text: str) -> tuple[int, int]:
    seed, _, trial = text.partition(":")
    if not seed.lstrip("-").isdigit() or not trial.isdigit():
        raise UsageError(f"--replay {text!r}: SEED:TRIAL, for example --replay 1:17")
    return int(seed), int(trial)


def _draw(directory: Path, say: Callable[[str], Any]) -> None:
    """Figures and the page of them, where what draws them is installed."""
    from ftrt.report import report

    try:
        say(f"drawn: {report(directory)[0]}")
    except ImportError as missing:
        say(f"no figure was drawn: {missing}")


def text(summary: dict[str, Any]) -> str:
    """Return a table of the cells."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("cell", overflow="fold")
    for name in (*_COUNTS, "recovery"):
        shown.add_column(name, justify="right")
    for cell in summary["cells"]:
        name = f"{cell['plane']} {cell['path']} {cell['fault']} {cell['rule']} {cell['size']}"
        took = cell["recovery_ms"]
        median = f"{took['median']:.1f} ms" if took else ""
        shown.add_row(name, *(str(cell[key]) for key in _COUNTS), median)
    console = Console(highlight=False, width=130)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().rstrip()
