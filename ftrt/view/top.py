"""``ftrt top``: a job while it runs, from its board alone; once it has ended, its last state."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ftrt.errors import UsageError
from ftrt.host.words import Field, Phase, job_directory
from ftrt.launch.gauge import Gauge, Reading
from ftrt.launch.screen import event_line, progress_line
from ftrt.ledger.record import read_job
from ftrt.report.job import Job, lines_of
from ftrt.report.job import read_job as read_records

_PERIOD_S = 0.25
_EVENTS = 8
_MOST_ROWS = 40


@dataclass(frozen=True)
class Row:
    """A process of the job."""

    process: int
    pid: int
    rank: int | None
    phase: str
    epoch: int


class Watched:
    """The job in a ledger directory, seen from outside; nothing of it is touched."""

    def __init__(self, directory: Path) -> None:
        if not (directory / "job.json").exists():
            raise UsageError(f"{directory}: holds no job; name what --ledger of `ftrt run` named")
        self.directory = directory
        self.about = read_job(directory)
        self._attempt = 0
        self._gauge = Gauge(self._board)

    @property
    def attempt(self) -> int:
        """The latest."""
        names = (path.name[8:] for path in (self.directory / "run").glob("attempt-*"))
        return max((int(name) for name in names if name.isdecimal()), default=0)

    @property
    def gauge(self) -> Gauge:
        """Of the latest attempt."""
        if (attempt := self.attempt) != self._attempt:
            self._attempt = attempt
            self._gauge = Gauge(self._board)
        return self._gauge

    @property
    def _board(self) -> Path:
        return job_directory(str(self.about["job"]), self._attempt) / "board"

    def runs(self) -> bool:
        """Whether its launcher lives or, without one, its agent."""
        with contextlib.suppress(OSError, ValueError):
            if _lives(int((self.directory / "lock").read_text())):
                return True
        return self.gauge.running and self._board.exists() and _lives(self.gauge.agent_pid)

    def rows(self) -> list[Row]:
        """Its processes, those with a rank first."""
        found = []
        for process in range(self.gauge.processes):
            pid, rank, phase, since = (self.gauge.field(process, f) for f in _FIELDS)
            if pid:
                found.append(Row(process, pid, rank - 1 if rank else None, _phase(phase), since))
        return sorted(found, key=lambda row: (row.rank is None, row.rank or 0, row.process))

    def events(self) -> list[str]:
        """Lines of the last events."""
        paths = (self.directory / "run").glob("events*.jsonl")
        told = [line for event in lines_of(paths) if (line := event_line(event))]
        return told[-_EVENTS:]


_FIELDS = (Field.PID, Field.RANK_PLUS_1, Field.PHASE, Field.SINCE_EPOCH)


def _phase(value: int) -> str:
    try:
        return Phase(value).name.lower()
    except ValueError:
        return str(value)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def command(directory: Path, console: Console | None = None) -> None:
    """Show a job until it ends, once where nobody looks (no terminal); then its last state."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=80)
    job = Watched(directory)
    if not console.is_terminal and job.runs():
        console.print(view(job, job.gauge.read(time.monotonic())))
        return
    if job.runs():
        with contextlib.suppress(KeyboardInterrupt), Live(console=console, transient=True) as live:
            while job.runs():
                live.update(view(job, job.gauge.read(time.monotonic())))
                time.sleep(_PERIOD_S)
        if job.runs():
            return  # the user has seen enough
    console.print(last_state(job))


def view(job: Watched, reading: Reading | None) -> RenderableType:
    """The job at this moment."""
    head = Text(f"job {str(job.about['job'])[:8]}, attempt {job.attempt}", "bold")
    if reading is None:
        return Group(head, Text("starting", "yellow"), *_told(job.events()))
    table = _table("phase", "process", "since epoch", "pid")
    rows = job.rows()
    for row in rows[:_MOST_ROWS]:
        name = "spare" if row.rank is None else str(row.rank)
        counts = ["", ""]
        if row.rank is not None and row.rank < len(reading.messages):
            both = (reading.messages[row.rank], reading.rates_per_s[row.rank])
            counts = [f"{count:,.0f}" for count in both]
        table.add_row(
            name,
            *counts,
            row.phase,
            str(row.process),
            str(row.epoch or ""),
            str(row.pid),
        )
    more = len(rows) - _MOST_ROWS
    rest = [Text(f"and {more} more processes")] if more > 0 else []
    return Group(head, Text(progress_line(reading).strip()), table, *rest, *_told(job.events()))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "messages", "a second", *columns):
        table.add_column(name, justify="left" if name == "phase" else "right")
    return table


def _told(lines: list[str]) -> list[Text]:
    return [Text(), *(Text(line, overflow="fold") for line in lines)] if lines else []


def last_state(job: Watched) -> RenderableType:
    """What is left of a job that has ended."""
    found = read_records(job.directory)
    head = Text(f"job {str(job.about['job'])[:8]} has ended: {_how(found)}", "bold")
    attempt = max(found.attempts, default=1)
    parts: list[RenderableType] = [head]
    if attempt in found.ends_s:
        epochs = [int(record["epoch"]) for record in found.records]
        took = found.ends_s[attempt]
        last = f", the last epoch was {max(epochs)}" if epochs else ""
        parts.append(Text(f"attempt {attempt} took {took:.1f} s{last}"))
    samples = [sample for sample in found.samples if sample["attempt"] == attempt]
    table = _table("ended")
    for rank in range(int(job.about.get("ranks", 0))):
        counts = samples[-1].get("messages", []) if samples else []
        count = counts[rank] if rank < len(counts) else None
        end = found.ranks.get(rank, {}).get("status", "without a word")
        mean = count / max(float(samples[-1]["t"]), 1e-3) if count is not None else None
        shown = [f"{value:,.0f}" if value is not None else "" for value in (count, mean)]
        table.add_row(str(rank), *shown, str(end))
    return Group(*parts, table, *_told(job.events()))


def _how(found: Job) -> str:
    from ftrt.launch.summary import audit_line

    statuses = [end.get("status") for end in found.ranks.values()]
    whole = len(statuses) == int(found.about.get("ranks", 0)) and set(statuses) == {"done"}
    done = "all ranks are done" if whole else "not all ranks are done"
    return f"{done}; {audit_line(found.audit)}"
