"""What the command line makes of the checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ftrt.doctor import Check, run_checks
from ftrt.errors import UsageError

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def command(
    echo: Callable[..., Any], ranks: int, ledger: str | None, mpirun: str | None, as_json: bool
) -> int:
    """Run the checks and tell; the exit status."""
    if ranks < 1:
        raise UsageError(f"-n {ranks}: at least 1; for example -n 4")
    found = run_checks(ranks, Path(ledger) if ledger else None, mpirun)
    if as_json:
        echo(json.dumps({"checks": [asdict(check) for check in found]}, indent=2))
    else:
        _show(found)
    return 1 if any(check.status == "fail" for check in found) else 0


def _show(found: list[Check]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal or console.width > 80:
        console = Console(highlight=False, width=80)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in found:
        status = Text(check.status, _STYLES[check.status])
        table.add_row(status, Text(check.name), Text(check.found))
    console.print(table)
    for check in found:
        if check.status == "ok":
            continue
        console.print(f"\n{check.name}: {check.found}", style=_STYLES[check.status], markup=False)
        console.print(f"  wanted: {check.expected}", markup=False)
        console.print(f"  type:   {check.fix}", markup=False, soft_wrap=True)
    counts = {status: sum(check.status == status for check in found) for status in _STYLES}
    console.print(
        "\n" + ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    )
