"""How a job ended: the report of ``--json``, and the lines that sum it up."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ftrt.launch.screen import PlainScreen


@dataclass
class Report:
    """How a job ended; the fields are those of ``--json``."""

    exit: int
    job: str
    ledger: str
    attempts: int = 0
    epochs: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list)
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, Any] | None = None
    ranks: list[dict[str, Any]] = field(default_factory=list)
    digest: str | None = None
    reason: str = ""
    outcome: str = "failed"
    shrunk: list[dict[str, Any]] = field(default_factory=list)
    depleted: list[dict[str, Any]] = field(default_factory=list)
    grown: int = 0


def write_report(report: Report, path: str | None, screen: PlainScreen) -> None:
    """Write ``--json``; the job is over and judged, so that a full disk changes nothing of it."""
    if path is not None:
        try:
            Path(path).write_text(json.dumps(asdict(report), indent=2) + "\n")
        except OSError as error:
            screen.note(f"--json {path!r} cannot be written: {error.strerror}")


def outcome_of(report: Report) -> str:
    """Return how a job that was done came through: undisturbed, continued, shrunk or restarted.

    It is shrunk if it ended with fewer processes than ranks.
    """
    if any(event.get("attempt") == report.attempts for event in report.shrunk):
        return "shrunk"
    if any(e.get("reason") == "restart from the ledger" for e in report.recoveries):
        return "restarted"
    return "continued" if report.recoveries else "undisturbed"


def audit_line(audit: dict[str, Any]) -> str:
    """Return the one line that an audit comes down to."""
    always = ("sent", "consumed", "duplicates", "losses")
    names = ("sent", "consumed", "dropped", "duplicates", "losses", "open")
    shown = (n for n in names if n in audit and (n in always or _count(audit[n])))
    counts = ", ".join(f"{name} {_count(audit[name])}" for name in shown)
    if unsent := sum(row.get("unsent", 0) for row in audit.get("streams", ())):
        counts += f", {unsent} of a number that no sender recorded"
    told = counts or audit.get("error") or "nothing recorded"
    return f"audit {'ok' if audit.get('ok') else 'NOT OK'}: {told}"


def unclean(audit: dict[str, Any]) -> str:
    """Return the sentence that tells where an audit found what; the first stream speaks."""
    for row in audit.get("streams", ()):
        found = [
            f"{row[key]} {word}"
            for key, word in (
                ("losses", "lost"),
                ("duplicates", "twice"),
                ("unsent", "of a number that nobody sent"),
            )
            if row.get(key)
        ]
        if not row.get("closed", True):
            found.append("its sender did not close it")
        if found:
            to = f" to rank {row['dest']}" if "dest" in row else ""
            where = f"stream {row['stream']!r} from rank {row['source']}{to}"
            return f"the audit is not clean: {where}: {', '.join(found)}"
    return "the audit is not clean"


def summary_line(report: Report) -> str:
    """Return the line that counts what happened to a job."""
    spans_ms = [sum(recovery["phases_ms"].values()) for recovery in report.recoveries]
    worst = f" (the longest {max(spans_ms):.1f} ms)" if spans_ms else ""
    counts = [plural(len(report.faults), "fault"), plural(len(spans_ms), "recovery") + worst]
    counts += [plural(report.epochs, "epoch"), plural(report.attempts, "attempt")]
    if report.outcome == "shrunk":
        counts.append(f"shrunk: {report.shrunk[-1]['reason'].partition(', ')[2]}")
    return ", ".join(counts)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    many = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count} {noun if count == 1 else many}"


def _count(value: Any) -> Any:
    return len(value) if isinstance(value, (list, tuple)) else value
