"""What ``ftrt run`` shows: one screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import IO, Any

from ftrt.launch.gauge import Reading

#: How often the screen without a terminal says where the job is.
PLAIN_PERIOD_S = 10.0

BAR_COLUMNS = 14

_HEIGHTS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 8
_INDENT = 20  # where the text of an event's line begins
_GOOD = ("recovery", "cleared", "healed")

#: Words of an event's line, by its name; events that are not here are not shown. Why an attempt
#: failed is told by the verdict on it, and who was promoted by the recovery.
_WORDS = {
    "fault": "fault",
    "died": "died",
    "suspected": "suspected",
    "cleared": "cleared",
    "recovery": "recovery",
    "evicted": "evicted",
    "fenced": "fenced",
    "host silent": "silent",
    "host heard": "heard",
    "damaged": "damaged",
    "healed": "healed",
    "aborted": "aborted",
    "depleted": "spares",
    "shrunk": "shrunk",
    "stuck": "stuck",
}


def event_line(event: dict[str, Any]) -> str | None:
    """Return the line that tells an event, or None if it is not worth one.

    >>> event_line({"t": 1.5, "event": "recovery", "rank": 1, "phases_ms": {"close": 0.21}})
    '  1.500 s recovery  rank 1, 0.2 ms: close 0.2'
    """
    word = _WORDS.get(str(event.get("event")))
    if word is None:
        return None
    parts = [f"{name} {event[name]}" for name in ("rank", "epoch") if _given(event, name)]
    if _given(event, "host"):
        parts.insert(0, f"host {event['host']}")
    if word == "died" and not _given(event, "rank"):
        parts.insert(0, "a spare")
    if _given(event, "kind"):
        parts.insert(0, str(event["kind"]))
    if phases := event.get("phases_ms"):
        each = " ".join(f"{name} {ms:.1f}" for name, ms in phases.items())
        parts.append(f"{sum(phases.values()):.1f} ms: {each}")
    elif _given(event, "by"):
        parts.append(f"by {event['by']}")
    if event.get("reason"):
        parts.append(str(event["reason"]))
    return f"{_time(event):7.3f} s {word:<9} {', '.join(parts)}"


def progress_line(reading: Reading) -> str:
    """Return where a job is, in words that fit beside a bar in 80 columns.

    >>> progress_line(Reading(2, (30, 40), (5.0, 20.0), done=1, total=4, left_s=65.0))
    ' 25%  1:05 left  70 msg  25/s ▂█  epoch 2'
    """
    parts = []
    if reading.fraction is not None:
        parts.append(f"{reading.fraction:4.0%}")
        if reading.left_s is not None:
            parts.append(f"{_clock(reading.left_s)} left")
    rates = reading.rates_per_s
    parts.append(f"{_short(sum(reading.messages))} msg")
    parts.append(f"{_short(sum(rates))}/s {_bars(rates)}".rstrip())
    parts.append(f"epoch {reading.epoch}")
    return "  ".join(parts)


def _bars(rates: tuple[float, ...]) -> str:
    """One bar a rank, the fastest the highest: who stands still is seen at once."""
    most = max(rates, default=0.0)
    if len(rates) > _MOST_BARS or most <= 0:
        return ""
    return "".join(_HEIGHTS[round(rate / most * (len(_HEIGHTS) - 1))] for rate in rates)


def _short(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{number:.0f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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
            elif name == "died":  # its line says why
                self._held.pop(process, None)
                self._lasting.discard(process)
                shown.append(event)
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


def _show(text: str, file: IO[str]) -> None:
    """Print a line; once nobody reads any more (``| head``), the job goes on unseen.

    What it prints must still be taken from its pipe, or the ranks would wait in their prints.
    """
    try:
        print(text, file=file, flush=True)
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), file.fileno())


class PlainScreen:
    """The program's output on stdout, ftrt's own lines on stderr."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start_s = self._told_s = time.monotonic()

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
            _show(text, sys.stdout)

    def err(self, text: str) -> None:
        """Pass on a line of the program's stderr."""
        with self._lock:
            _show(text, sys.stderr)

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of the job as it happens."""
        if (line := event_line(event)) is not None:
            self.note(line)

    def progress(self, reading: Reading | None) -> None:
        """Show where the job is: here a line now and then."""
        now = time.monotonic()
        if reading is not None and now - self._told_s >= PLAIN_PERIOD_S:
            self._told_s = now
            self.note(f"{now - self._start_s:7.0f} s  {progress_line(reading)}")


class TerminalScreen(PlainScreen):
    """Lines scroll above one line that says where the job is."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(highlight=False, emoji=False)
        self._bar = Progress(
            TextColumn("{task.fields[elapsed]}", style="cyan"),
            BarColumn(bar_width=BAR_COLUMNS),
            TextColumn("{task.description}"),
            console=self._console,
            refresh_per_second=8,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None, elapsed="")

    def __enter__(self) -> TerminalScreen:
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        """Show a line of ftrt's own."""
        self._own(text, "cyan")

    def out(self, text: str) -> None:
        """Pass on a line of the program's stdout, as it is."""
        self._console.out(text, highlight=False)

    def err(self, text: str) -> None:
        """Pass on a line of the program's stderr, as it is."""
        self._console.out(text, highlight=False, style="dim")

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of the job as it happens."""
        if (line := event_line(event)) is not None:
            self._own(line, "green" if event.get("event") in _GOOD else "red")

    def progress(self, reading: Reading | None) -> None:
        """Move the bar."""
        elapsed = f"{time.monotonic() - self._start_s:5.0f} s"
        if reading is None:
            self._bar.update(self._task, elapsed=elapsed)
            return
        total = reading.total or None
        done = min(reading.done, reading.total)
        text = progress_line(reading)
        self._bar.update(self._task, completed=done, total=total, description=text, elapsed=elapsed)

    def _own(self, text: str, style: str) -> None:
        from rich.text import Text

        first, rest = text[:_INDENT], text[_INDENT:]
        if len(text) <= self._console.width or not text.startswith(" "):
            self._console.print(text, style=style, markup=False)
            return
        lines = Text(rest, style).wrap(self._console, self._console.width - _INDENT)
        for line in lines:
            self._console.print(Text(first, style) + line)
            first = " " * _INDENT


def make_screen() -> PlainScreen:
    """Return the screen that fits where the output goes."""
    terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return TerminalScreen() if terminal else PlainScreen()
