"""What ``ftrt run`` shows: one screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

#: Words of an event's line, by its name; events that are not here are not shown.
_WORDS = {
    "fault": "fault",
    "died": "died",
    "suspected": "suspected",
    "cleared": "cleared",
    "recovery": "recovery",
    "promoted": "promoted",
    "failed": "failed",
    "evicted": "evicted",
    "fenced": "fenced",
}


def event_line(event: dict[str, Any]) -> str | None:
    """Return the line that tells an event, or None if it is not worth one.

    >>> event_line({"t": 1.5, "event": "recovery", "rank": 1, "phases_ms": {"close": 0.21}})
    '  1.500 s  recovery   rank 1, close 0.2 ms'
    """
    word = _WORDS.get(str(event.get("event")))
    if word is None:
        return None
    parts = [f"{name} {event[name]}" for name in ("rank", "epoch") if _given(event, name)]
    if _given(event, "kind"):
        parts.insert(0, str(event["kind"]))
    if phases := event.get("phases_ms"):
        parts.append(", ".join(f"{name} {ms:.1f}" for name, ms in phases.items()) + " ms")
    elif _given(event, "by"):
        parts.append(f"by {event['by']}")
    if event.get("reason"):
        parts.append(str(event["reason"]))
    return f"{_time(event):7.3f} s  {word:<9}  {', '.join(parts)}"


def _given(event: dict[str, Any], name: str) -> bool:
    return event.get(name) is not None


class Suspicions:
    """Holds a suspicion back until it has lasted, so that a busy machine does not fill the screen.

    Parameters
    ----------
    show_after_s : float
        Those that are cleared earlier are never shown, and neither is their clearing.
    """

    def __init__(self, show_after_s: float = 0.5) -> None:
        self._show_after_s = show_after_s
        self._held: dict[Any, tuple[float, dict[str, Any]]] = {}
        self._lasting: set[Any] = set()

    def pass_on(self, events: list[dict[str, Any]], now: float) -> list[dict[str, Any]]:
        """Return what is to be shown at ``now``, a monotonic time in seconds."""
        shown = []
        for event in events:
            name, process = event.get("event"), event.get("process")
            if name == "suspected":
                self._held[process] = (now, event)
            elif name == "cleared":
                shown += self._end(process, event)
            else:
                shown.append(event)
        for process, (since, event) in list(self._held.items()):
            if now - since >= self._show_after_s:
                shown.append(event)
                self._lasting.add(process)
                del self._held[process]
        return sorted(shown, key=_time)

    def _end(self, process: Any, cleared: dict[str, Any]) -> list[dict[str, Any]]:
        if process in self._lasting:
            self._lasting.remove(process)
            return [cleared]
        _, suspected = self._held.pop(process, (0.0, cleared))
        lasted_s = _time(cleared) - _time(suspected)
        return [suspected, cleared] if lasted_s >= self._show_after_s else []


def _time(event: dict[str, Any]) -> float:
    return float(event.get("t") or 0)


class PlainScreen:
    """The program's output on stdout, ftrt's own lines on stderr."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def note(self, text: str) -> None:
        """Show a line of ftrt's own."""
        self.err(f"ftrt: {text}")

    def out(self, text: str) -> None:
        """Pass on a line of the program's stdout."""
        with self._lock:
            print(text, flush=True)

    def err(self, text: str) -> None:
        """Pass on a line of the program's stderr."""
        with self._lock:
            print(text, file=sys.stderr, flush=True)

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of the job as it happens."""
        if (line := event_line(event)) is not None:
            self.note(line)

    def progress(self, text: str) -> None:
        """Show where the job is; only a terminal does."""


class TerminalScreen(PlainScreen):
    """Lines scroll above one line that says where the job is."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self._console = Console(highlight=False)
        self._spinner = Spinner("line", "starting")
        self._live = Live(
            self._spinner, console=self._console, refresh_per_second=8, transient=True
        )
        self._start = time.monotonic()

    def __enter__(self) -> TerminalScreen:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """Show a line of ftrt's own."""
        self._console.print(text, style="cyan", markup=False)

    def out(self, text: str) -> None:
        """Pass on a line of the program's stdout."""
        self._console.print(text, markup=False)

    def err(self, text: str) -> None:
        """Pass on a line of the program's stderr."""
        self._console.print(text, style="dim", markup=False)

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of the job as it happens."""
        if (line := event_line(event)) is not None:
            style = "green" if event.get("event") in ("recovery", "promoted", "cleared") else "red"
            self._console.print(line, style=style, markup=False)

    def progress(self, text: str) -> None:
        """Show where the job is."""
        elapsed = time.monotonic() - self._start
        self._spinner.update(text=f"{elapsed:5.0f} s  {text}")


def make_screen() -> PlainScreen:
    """Return the screen that fits where the output goes."""
    terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return TerminalScreen() if terminal else PlainScreen()
