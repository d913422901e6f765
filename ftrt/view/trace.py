"""One timeline of all ranks, in the format that Perfetto and Chrome open (Trace Event Format)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftrt.errors import UsageError
from ftrt.report.job import Job, read_job

#: Rows of an attempt: its recoveries, then its ranks.
_RECOVERIES, _FIRST_RANK = 1, 2
_SHOWN_ELSEWHERE = ("recovery",)


def write_trace(directory: Path, out: Path | None = None) -> Path:
    """Write the timeline of the job in a ledger directory.

    Parameters
    ----------
    out : Path, optional
        The file; ``report/trace.json`` in ``directory`` by default.

    Raises
    ------
    UsageError
        There is no job, or the file cannot be written.
    """
    if not (directory / "job.json").exists():
        raise UsageError(f"{directory}: holds no job; name what --ledger of `ftrt run` named")
    job = read_job(directory)
    out = out or directory / "report" / "trace.json"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(out, "w", encoding="utf-8") as file:
            json.dump({"displayTimeUnit": "ms", "traceEvents": list(trace_events(job))}, file)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror}; name another") from error
    return out


def trace_events(job: Job) -> Iterator[dict[str, Any]]:
    """All events of a trace; times in microseconds since the first attempt began."""
    starts = _starts_s(job)
    yield from _names(job)
    for span in job.spans():
        yield {
            **_at(span.attempt, _FIRST_RANK + span.rank, starts, span.begin_s),
            "ph": "X",
            "dur": _us(max(span.end_s - span.begin_s, 0.0)),
            "cat": "epoch",
            "name": f"epoch {span.epoch}, process {span.process}",
            "args": {"epoch": span.epoch, "rank": span.rank, "process": span.process},
        }
    for event in job.events:
        yield from _recovery(event, starts)
        if event.get("event") not in _SHOWN_ELSEWHERE:
            yield _instant(event, starts)
    yield from _counters(job, starts)


def _names(job: Job) -> Iterator[dict[str, Any]]:
    for attempt in job.attempts:
        rows = {_RECOVERIES: "recoveries"}
        rows |= {_FIRST_RANK + rank: f"rank {rank}" for rank in range(job.about.get("ranks", 0))}
        named = {"ph": "M", "pid": attempt, "name": "process_name"}
        yield {**named, "args": {"name": f"attempt {attempt}"}}
        for row, name in rows.items():
            about = {"ph": "M", "pid": attempt, "tid": row}
            yield {**about, "name": "thread_name", "args": {"name": name}}
            yield {**about, "name": "thread_sort_index", "args": {"sort_index": row}}


def _starts_s(job: Job) -> dict[int, float]:
    """When each attempt began, counted from the first; in a row where clocks cannot tell."""
    told: dict[int, float] = {}
    for attempt in job.attempts:
        with contextlib.suppress(OSError, ValueError):
            path = job.directory / "run" / f"attempt-{attempt}.start"
            told[attempt] = float(path.read_text())
    starts, free = {}, 0.0
    zero = told.get(min(job.attempts, default=1))
    for attempt in job.attempts:
        start = told[attempt] - zero if zero is not None and attempt in told else free
        starts[attempt] = max(start, free)  # after a reboot the clock begins anew
        free = starts[attempt] + job.ends_s[attempt]
    return starts


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _at(attempt: int, row: int, starts: dict[int, float], t_s: float) -> dict[str, Any]:
    return {"pid": attempt, "tid": row, "ts": _us(starts[attempt] + t_s)}


def _recovery(event: dict[str, Any], starts: dict[int, float]) -> Iterator[dict[str, Any]]:
    """A recovery and, inside it, its phases; it is told when it ends."""
    phases = event.get("phases_ms")
    if event.get("event") != "recovery" or not phases:
        return
    attempt, whole_s = int(event["attempt"]), sum(phases.values()) / 1e3
    begin = float(event["t"]) - whole_s
    who = f"rank {event['rank']}" if event.get("rank") is not None else "all ranks"
    bar = {"ph": "X", "cat": "recovery"}
    args = {key: value for key, value in event.items() if key not in ("t", "event", "phases_ms")}
    at = _at(attempt, _RECOVERIES, starts, begin)
    yield {**at, **bar, "dur": _us(whole_s), "name": f"recovery, {who}", "args": args}
    for name, ms in phases.items():
        yield {
            **_at(attempt, _RECOVERIES, starts, begin),
            **bar,
            "dur": _us(ms / 1e3),
            "name": name,
        }
        begin += ms / 1e3


def _instant(event: dict[str, Any], starts: dict[int, float]) -> dict[str, Any]:
    """A mark in the row of its rank, or across the attempt."""
    attempt, rank = int(event["attempt"]), event.get("rank")
    row = _RECOVERIES if rank is None else _FIRST_RANK + int(rank)
    name = str(event.get("event"))
    if name == "fault":
        name = f"fault: {event.get('spec') or event.get('kind')}"
    args = {key: value for key, value in event.items() if key not in ("t", "event")}
    at = _at(attempt, row, starts, float(event["t"]))
    return {**at, "ph": "i", "s": "p" if rank is None else "t", "name": name, "args": args}


def _counters(job: Job, starts: dict[int, float]) -> Iterator[dict[str, Any]]:
    """Messages of each rank as the launcher saw them, and of each stream at changes of epoch."""
    for sample in job.samples:
        at = _at(int(sample["attempt"]), 0, starts, float(sample["t"]))
        for rank, count in enumerate(sample.get("messages", ())):
            yield {**at, "ph": "C", "name": f"messages, rank {rank}", "args": {"messages": count}}
    begins = job.begins_s()
    attempts = {int(found["epoch"]): int(found.get("attempt", 1)) for found in job.records}
    for stream, points in job.progress().items():
        for epoch, count in points:
            at = _at(attempts[epoch], 0, starts, begins[epoch])
            yield {**at, "ph": "C", "name": f"consumed, {stream}", "args": {"messages": count}}
