"""Offline proof, from the ledger files alone, of what was consumed how often."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ..errors import LedgerDamaged, LedgerError
from . import durable, layout, record, runs, seal
from .segment import Segment

_SEGMENT = re.compile(r"e(\d{6,})-r(\d{4,})-s(\d{3,})\.h5")
_COUNTS = ("sent", "consumed", "dropped", "duplicates", "losses")


class _Stream:
    """What all epochs recorded of one (stream, source, dest)."""

    def __init__(self):
        self.sent, self.consumed, self.dropped = [], [], []
        self.last: int | None = None

    def add(self, described: dict, table: np.ndarray) -> None:
        if described["kind"] == layout.SENT:
            self.sent.append(runs.from_runs(table))
            if described["last"] is not None:
                self.last = max(described["last"], self.last or 0)
            return
        dropped = table[:, 2] == 1
        self.consumed.append(runs.from_runs(table[~dropped]))
        self.dropped.append(runs.from_runs(table[dropped]))

    def row(self) -> dict:
        """Counts of the contract; ``unsent`` are effects of numbers that nobody recorded."""
        sent, consumed = runs.union(*self.sent), runs.union(*self.consumed)
        dropped = runs.union(*self.dropped)
        both = runs.size(consumed) - runs.minus(consumed, dropped)
        events = sum(map(runs.size, self.consumed))
        done = runs.union(consumed, dropped)
        closed = self.last is not None
        return {
            "sent": runs.size(sent),
            "consumed": runs.size(consumed),
            "dropped": runs.size(dropped),
            "duplicates": events - runs.size(consumed) + both,
            "losses": runs.minus(self._expected(sent), done) if closed else 0,
            "closed": closed,
            "unsent": runs.minus(done, sent),
        }

    def _expected(self, sent: np.ndarray) -> np.ndarray:
        """What was recorded as sent, and the last number even if its own record is missing."""
        if not self.last:
            return sent
        return runs.union(sent, np.array([[self.last, self.last + 1]], np.int64))


def audit(directory) -> dict:
    """Check a ledger directory: every number that was sent, consumed exactly once.

    Ledgers that a later epoch's record seals are read up to their seals, which the files must
    fit; those of the last epoch are read as they are.

    Returns
    -------
    dict
        ``ok, epochs, sent, consumed, dropped, duplicates, losses, open, streams``. A stream with
        several receivers has one row for each, with ``dest``; a row has ``unsent`` if receivers
        consumed numbers that no sender recorded (not ok either).

    Raises
    ------
    LedgerError
        The directory holds no ledger, or a file is unreadable (LedgerDamaged names it).
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise LedgerError(f"{directory}: no such ledger directory")
    streams: dict[tuple, _Stream] = {}
    epochs, found = set(record.epochs(directory)), _gather(directory)
    if not found:
        raise LedgerError(f"{directory}: holds no ledger")
    for epoch, decoded in found:
        if decoded:  # else it was made beforehand, for an epoch that may never come
            epochs.add(epoch)
        for described, table in decoded:
            key = described["stream"], described["source"], described["dest"]
            streams.setdefault(key, _Stream()).add(described, table)
    return _report(streams, epochs)


def consumptions(directory) -> dict[tuple[str, int, int], np.ndarray]:
    """Every consumption event that counts: ``(first number, length)`` rows, repeated if it was.

    Returns
    -------
    dict
        By ``(stream, source, dest)``; dropped messages are not in it.
    """
    found: dict[tuple[str, int, int], list[np.ndarray]] = {}
    for _, decoded in _gather(Path(directory)):
        for described, table in decoded:
            if described["kind"] == layout.CONSUMED:
                key = described["stream"], described["source"], described["dest"]
                found.setdefault(key, []).append(table[table[:, 2] == 0, :2])
    return {key: np.concatenate(tables) for key, tables in found.items()}


def _gather(directory: Path) -> list[tuple[int, list]]:
    """``(epoch, decoded streams)`` of every segment that counts."""
    segments = sorted(p for p in directory.glob("e*-s*.h5") if _SEGMENT.fullmatch(p.name))
    numbers = record.epochs(directory)
    if not segments and not numbers:
        return []
    job = record.read_job(directory)["job"]
    records = {number: record.read_record(directory, number) for number in numbers}
    _check_parents(directory, records)
    seals = _seals(directory, records, job)
    gathered = []
    for sealed in seals.values():
        path = directory / sealed["file"]
        if not path.exists():
            raise LedgerDamaged(f"{path}: is missing, the record of a later epoch seals it")
        epoch = int(sealed["file"][1:].partition("-")[0])
        gathered.append((epoch, _decode(path, dict(sealed), job)))
    last = max(numbers, default=0)
    _check_members(directory, last, records.get(last, {}))
    for path in segments:
        name = _SEGMENT.fullmatch(path.name)
        if name is None or path.name in seals or last > int(name[1]):
            continue  # the last: its epoch ended without it
        decoded = _decode_live(path, name, job)
        if decoded and last < int(name[1]):
            missing = record.record_path(directory, int(name[1]))
            if missing.exists():
                continue  # the job runs, and is in a new epoch now
            raise LedgerDamaged(f"{missing}: is missing, {path.name} was written in that epoch")
        gathered.append((int(name[1]), decoded))
    return gathered


def _check_parents(directory: Path, records: dict[int, dict]) -> None:
    """Every epoch follows one whose record is there, with the seals in it."""
    for epoch, found in records.items():
        parent = found.get("parent", 0)
        if parent and parent not in records:
            path = record.record_path(directory, parent)
            raise LedgerDamaged(f"{path}: is missing, epoch {epoch} follows it")


def _check_members(directory: Path, epoch: int, found: dict) -> None:
    """Every member of the last epoch has a ledger, which was made before the record."""
    for member in found.get("members", ()):
        path = directory / layout.segment_name(epoch, member["rank"], 0)
        if not path.exists():
            raise LedgerDamaged(f"{path}: is missing, rank {member['rank']} is in epoch {epoch}")


def _seals(directory: Path, records: dict[int, dict], job: str) -> dict[str, dict]:
    seals: dict[str, dict] = {}
    for epoch, found in records.items():
        if found.get("job", job) != job:
            path = record.record_path(directory, epoch)
            raise LedgerDamaged(f"{path}: belongs to job {found['job']}, not to {job}")
        for sealed in found.get("seals", ()):
            if _SEGMENT.fullmatch(sealed["file"]) is None:
                raise LedgerDamaged(
                    f"{directory}: epoch {epoch} seals {sealed['file']!r}, which "
                    "is not the name of a segment"
                )
            seals.setdefault(sealed["file"], sealed)
    return seals


def _decode_live(path: Path, name: re.Match, job: str) -> list:
    """What counts of a segment that no record seals."""
    epoch, rank, number = (int(group) for group in name.groups())
    first = path.with_name(layout.segment_name(epoch, rank, 0))
    if not first.exists():
        raise LedgerDamaged(f"{first}: is missing, {path.name} continues it")
    begin = _open(first, job)
    mark = durable.cut_for_reader(begin, path.parent)
    control = int(begin.header["control"]) & ~layout.CLOSED
    if number >= (mark["segments"] if mark else control):
        return []
    segment = _open(path, job)
    return seal.streams_at(segment, mark) if mark else seal.read_streams(segment)


def _decode(path: Path, sealed: dict, job: str) -> list:
    return seal.sealed_streams(_open(path, job), sealed)


def _open(path: Path, job: str) -> Segment:
    segment = Segment(path, write=False)
    segment.check_job(job)
    return segment


def _report(streams: dict[tuple, _Stream], epochs: set) -> dict:
    ends: dict[tuple, int] = {}
    for stream, source, _ in streams:
        ends[stream, source] = ends.get((stream, source), 0) + 1
    rows = []
    for (stream, source, dest), found in sorted(streams.items()):
        row = {"stream": stream, "source": source}
        if ends[stream, source] > 1:
            row["dest"] = dest
        row.update(found.row())
        if not row["unsent"]:
            del row["unsent"]
        rows.append(row)
    total = {name: sum(row[name] for row in rows) for name in _COUNTS}
    opened = sum(not row["closed"] for row in rows)
    bad = total["duplicates"] or total["losses"] or opened or any("unsent" in r for r in rows)
    return {"ok": not bad, "epochs": len(epochs), **total, "open": opened, "streams": rows}
