"""One line of JSON per event, appended whole, so that several processes share a file."""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path

from ftrt.ledger.reserve import with_room


class EventLog:
    """Appends to ``LEDGER/run/events.jsonl``; ``t`` is in seconds since the attempt began.

    Each further host has a file of its own, ``events-1.jsonl`` and so on, and its own clock: lines
    of two hosts in one file would overwrite each other on a network file system.
    """

    def __init__(self, directory: Path, attempt: int):
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._attempt = directory, attempt
        self._descriptor = os.open(
            directory / f"events{_of_host()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
        )
        self._start = _attempt_start(directory / f"attempt-{attempt}.start{_of_host()}")
        self._later: list[dict] = []

    def write(self, event: str, **fields) -> None:
        """Append one event, behind those that wait."""
        self.write_later(event, **fields)
        self.flush()

    def write_later(self, event: str, **fields) -> None:
        """Append one event at the next :meth:`flush` or :meth:`write`, with the time of now.

        Unless ``fields`` have their own ``t``.
        """
        t = self.since_start_s(time.monotonic())
        self._later.append({"t": t, "event": event, "attempt": self._attempt, **fields})

    def since_start_s(self, at_s: float) -> float:
        """A time of the monotonic clock as events have it."""
        return round(at_s - self._start, 6)

    def flush(self) -> None:
        """Append what waits."""
        lines, self._later = self._later, []
        for line in lines:
            self._append((json.dumps(line) + "\n").encode())

    def _append(self, text: bytes) -> None:
        """Write it whole: a disk that is about to be full takes a part and then refuses."""
        while text:
            write = functools.partial(os.write, self._descriptor, text)
            text = text[with_room(self._directory, write) :]


def _of_host() -> str:
    host = os.environ.get("FTRT_HOST") or "0"
    return "" if host == "0" else f"-{host}"


def _attempt_start(path: Path) -> float:
    """Monotonic time at which the first process of the attempt came here, the same for all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(repr(time.monotonic()))
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return float(path.read_text())


def recorded_failure(directory: Path, attempt: int) -> str | None:
    """Why the host's agent says that ``attempt`` cannot go on, if it does."""
    lines: list[bytes] = []
    for path in sorted(directory.glob("events*.jsonl")):
        lines += path.read_bytes().splitlines()
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:  # half of it, by a process that died or that is writing it now
            continue
        if not isinstance(event, dict):
            continue
        if event.get("event") == "failed" and event.get("attempt") == attempt:
            return str(event["reason"])
    return None


def reason_of_failure(directory: Path, attempt: int) -> str:
    """:func:`recorded_failure` where there must be one."""
    reason = recorded_failure(directory, attempt)
    return reason or "this attempt ends for a reason that nobody recorded"
