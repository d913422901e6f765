"""What the command line makes of a storm."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from ftrt.errors import UsageError
from ftrt.storm.run import Report, Storm


def command(
    echo: Callable[..., Any], minutes: float, seed: int, job: int | None, as_json: bool
) -> int:
    """Run a storm and print its report; the exit status."""
    if not 0 < minutes < float("inf"):
        raise UsageError("--minutes must be greater than 0; for example --minutes 10")
    storm = Storm(seed, partial(echo, err=True))
    report = storm.run(minutes, job)
    echo(json.dumps({"ok": report.ok, **asdict(report)}, indent=2) if as_json else text(report))
    return 0 if report.ok else 1


def text(report: Report) -> str:
    """Return a report in a few lines."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.by_kind.items())
    lines = [
        f"{report.jobs} jobs in {report.minutes:g} minutes, seed {report.seed}: "
        f"{report.faults} faults, {report.recoveries} recoveries, {report.restarts} restarts, "
        f"{report.messages} messages",
        f"faults: {kinds}",
        f"from detection to publication: {report.recovery_ms} ms",
        ", ".join(f"{name} {count}" for name, count in report.complaints.items()),
    ]
    return "\n".join(lines)
