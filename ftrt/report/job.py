"""What a job left in its ledger's directory: who held which rank when, faults, recoveries."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrt.errors import LedgerError
from ftrt.host.timing import after_publication_ms
from ftrt.ledger import record
from ftrt.ledger.audit import audit

#: A record that was copied has the copy's times; an attempt without a better sign ends so long
#: after its last event.
_REST_S = 0.05
#: Between a change and the launcher's look at it.
_LOOK_S = 0.15


@dataclass(frozen=True)
class Span:
    """One process in one rank for one epoch; times in seconds since the attempt began."""

    attempt: int
    epoch: int
    rank: int
    process: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Job:
    """A job, as far as its records tell it.

    Attributes
    ----------
    about : dict
        ``job.json``.
    audit : dict
        As of ``ftrt audit``; only ``ok`` and ``error`` where the ledger cannot be read.
    events : list of dict
        All of ``events.jsonl``, in order; of several hosts merged by their own clocks.
    records : list of dict
        Of the epochs, ascending.
    ends_s : dict of int to float
        When each attempt ended.
    ranks : dict of int to dict
        How each rank ended in the last attempt.
    samples : list of dict
        How far the ranks were (``progress.jsonl``).
    """

    directory: Path
    about: dict[str, Any]
    audit: dict[str, Any]
    events: list[dict[str, Any]]
    records: list[dict[str, Any]]
    ends_s: dict[int, float]
    ranks: dict[int, dict[str, Any]]
    samples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def attempts(self) -> list[int]:
        """Their numbers, ascending."""
        return sorted(self.ends_s)

    def of(self, name: str, attempt: int | None = None) -> list[dict[str, Any]]:
        """Events of a name."""
        return [
            event
            for event in self.events
            if event.get("event") == name and attempt in (None, event.get("attempt"))
        ]

    def begins_s(self) -> dict[int, float]:
        """When each epoch came into force in its attempt."""
        told = {
            e.get("epoch"): float(e["t"]) - after_publication_ms(e.get("phases_ms") or {}) / 1e3
            for e in self.of("recovery")
        }
        begins, latest = {}, dict.fromkeys(self.attempts, 0.0)
        for found in self.records:
            epoch, attempt = int(found["epoch"]), int(found.get("attempt", 1))
            begins[epoch] = told.get(epoch, max(latest.get(attempt, 0.0), self._made_s(found)))
            latest[attempt] = begins[epoch]
        return begins

    def _made_s(self, found: dict[str, Any]) -> float:
        """When a record was made, by the times of files, within what the events say."""
        attempt = int(found.get("attempt", 1))
        start = self.directory / "run" / f"attempt-{attempt}.start"
        first = min(
            (float(e["t"]) for e in self.events if e.get("attempt") == attempt), default=1e9
        )
        made = _seconds_between(start, record.record_path(self.directory, int(found["epoch"])))
        seen = [float(s["t"]) for s in self.samples if s["attempt"] == attempt]
        if seen:  # the launcher looks every 50 ms, so that files that were copied cannot mislead
            made = min(max(made, seen[0] - _LOOK_S), seen[0])
        return min(max(made, 0.0), first, self.ends_s.get(attempt, 1e9))

    def spans(self) -> list[Span]:
        """Who held which rank, from an epoch's beginning to its end or to the holder's death."""
        begins, found = self.begins_s(), []
        deaths = {
            (e.get("attempt"), e.get("process")): float(e["t"])
            for e in self.events
            if e.get("event") in ("died", "evicted", "fenced")
        }
        for this, following in zip(self.records, [*self.records[1:], {}], strict=True):
            attempt, epoch = int(this.get("attempt", 1)), int(this["epoch"])
            end = self.ends_s.get(attempt, begins[epoch])
            if int(following.get("attempt", 0) or 0) == attempt:
                end = begins[int(following["epoch"])]
            for member in this.get("members", ()):
                process = int(member["process"])
                gone = deaths.get((attempt, process), end)
                stop = min(end, gone) if gone >= begins[epoch] else end
                rank = int(member["rank"])
                found.append(Span(attempt, epoch, rank, process, begins[epoch], stop))
        return found

    def progress(self) -> dict[str, list[tuple[int, int]]]:
        """Per stream ``(epoch, messages consumed before it began)``, from the records' marks."""
        found: dict[str, list[tuple[int, int]]] = {}
        for this in self.records:
            for mark in this.get("marks", ()):
                above = sum(_length(part) for part in mark.get("above", ()))
                name = stream_name(mark)
                found.setdefault(name, []).append((int(this["epoch"]), int(mark["hwm"]) + above))
        return found


def stream_name(row: dict[str, Any]) -> str:
    """A stream between two ranks, in words."""
    to = f" → {row['dest']}" if row.get("dest") is not None else ""
    return f"{row['stream']} {row['source']}{to}"


def read_job(directory: Path) -> Job:
    """Read everything that a ledger directory tells of its job.

    Raises
    ------
    LedgerDamaged
        The job file or the record of an epoch is damaged.
    """
    about = record.read_job(directory)
    records = [record.read_record(directory, number) for number in record.epochs(directory)]
    run = directory / "run"
    events = sorted(lines_of(run.glob("events*.jsonl")), key=_place)
    numbers = {int(r.get("attempt", 1)) for r in records} | {int(e["attempt"]) for e in events}
    numbers |= {int(p.name[8:]) for p in run.glob("attempt-*") if p.name[8:].isdecimal()}
    samples = sorted(lines_of([run / "progress.jsonl"]), key=_place)
    ends = {n: _end_s(run, n, events, samples) for n in numbers}
    last = run / f"attempt-{max(numbers, default=1)}"
    ranks = {
        rank: found for rank in range(int(about.get("ranks", 0))) if (found := _rank(last, rank))
    }
    return Job(directory, about, _audited(directory), events, records, ends, ranks, samples)


def _audited(directory: Path) -> dict[str, Any]:
    try:
        return audit(directory)
    except LedgerError as error:
        return {"ok": False, "error": str(error), "streams": []}


def lines_of(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Whole lines of files that other processes append to."""
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and {"t", "attempt"} <= event.keys():
                        found.append(event)
    return found


def _place(event: dict[str, Any]) -> tuple[int, float]:
    return int(event["attempt"]), float(event["t"])


def _rank(directory: Path, rank: int) -> dict[str, Any] | None:
    try:
        found = json.loads((directory / f"rank-{rank}.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _end_s(run: Path, attempt: int, *told: list[dict[str, Any]]) -> float:
    """When the last rank recorded its end, else when the attempt was last heard of."""
    events, samples = (
        [line for line in lines if int(line["attempt"]) == attempt] for lines in told
    )
    last = max((float(event["t"]) for event in events), default=0.0) + _REST_S
    start = run / f"attempt-{attempt}.start"
    ends = [_seconds_between(start, p) for p in (run / f"attempt-{attempt}").glob("rank-*.json")]
    moved = [s for s in samples if s.get("messages") != samples[-1].get("messages")]
    moving = [float(s["t"]) for s in samples[len(moved) : len(moved) + 1]]
    if not ends:
        return max([last, *(float(sample["t"]) for sample in samples[-1:])])
    return max([last, *ends, *moving])


def _seconds_between(earlier: Path, later: Path) -> float:
    with contextlib.suppress(OSError):
        return later.stat().st_mtime - earlier.stat().st_mtime
    return 0.0


def _length(part: Any) -> int:
    """Numbers in a closed range of a mark."""
    return int(part[1]) - int(part[0]) + 1
