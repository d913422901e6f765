"""What the job prints: passed on line by line, a traceback once, the last digest remembered."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import IO

#: What ``mpirun --output tag`` puts before the output of a process.
_TAG = re.compile(r"\[[^\[\],]+,(\d+)\]<std(?:out|err)>: ?")
_DIGEST = re.compile(r"digest ([0-9a-fA-F]+)\s*")
_TRACEBACK = "Traceback (most recent call last):"
_SYNTAX = re.compile(r'  File ".*", line \d+$')  # a SyntaxError of the program has no header
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)

# What Hydra prints when it ends a job; how it ended is told in a sentence by whoever judges it.
_BANNER = re.compile(
    r"=+(?:   (?:BAD TERMINATION|PID|EXIT CODE|CLEANING UP|YOU CAN IGNORE)\b.*)?|\s*|"
    r"YOUR APPLICATION TERMINATED WITH .*|This typically refers to a problem with .*|"
    r"Please see the FAQ page for debugging suggestions"
)

_SIGNALLED = re.compile(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)")

#: Stands for mpirun itself, whose lines have no tag.
MPIRUN = -1


class Lines:
    """Puts the tagged pieces of several processes' output together to lines again."""

    def __init__(self) -> None:
        self._open: dict[int, str] = {}

    def feed(self, text: str) -> list[tuple[int, str]]:
        """Return the (process, line) pairs that ``text``, one line of the pipe, completes."""
        pieces = _TAG.split(text.rstrip("\n"))
        processes = [MPIRUN, *map(int, pieces[1::2])]
        parts = list(zip(processes, pieces[::2], strict=True))
        if len(parts) > 1 and not parts[0][1]:
            del parts[0]
        for process, part in parts:
            self._open[process] = self._open.get(process, "") + part
        # A process that wrote half a line is cut off by the next one's tag: only the last is whole.
        last = parts[-1][0]
        return [(last, self._open.pop(last))]

    def rest(self) -> list[tuple[int, str]]:
        """Return what never got its end of line."""
        left = [(process, text) for process, text in self._open.items() if text]
        self._open.clear()
        return left


class Tracebacks:
    """Lets a traceback through once, however many processes print it.

    Parameters
    ----------
    show : callable
        Called with each line that is to be seen.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.shown: list[str] = []
        self._show = show
        self._blocks: dict[int, list[str]] = {}

    def feed(self, process: int, text: str) -> None:
        """Take one line of the stderr of ``process``."""
        block = self._blocks.get(process)
        if block is None:
            if text == _TRACEBACK or _SYNTAX.match(text):
                self._blocks[process] = [text]
            else:
                self._show(text)
        elif self._belongs(block, text):
            block.append(text)
        else:
            self._flush(process)
            self.feed(process, text)

    def finish(self) -> None:
        """Show what was held back."""
        for process in list(self._blocks):
            self._flush(process)

    def was_shown(self, traceback: str) -> bool:
        """Was one with the same last line shown?"""
        last = _last_line(traceback)
        return any(_last_line(shown) == last for shown in self.shown)

    @staticmethod
    def _belongs(block: list[str], text: str) -> bool:
        """A block is: header, indented lines, message; it may be chained to another one."""
        if text == "" or text.startswith(" ") or text in _CHAINED:
            return True
        if text == _TRACEBACK:
            return any(line in _CHAINED for line in block[-2:])
        return block[-1].startswith(" ")

    def _flush(self, process: int) -> None:
        block = self._blocks.pop(process)
        text = "\n".join(block).rstrip()
        if not self.was_shown(text):
            self.shown.append(text)
            for line in text.splitlines():
                self._show(line)


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


class Output:
    """Reads the two pipes of an mpirun in threads of its own.

    Parameters
    ----------
    on_out, on_err : callable
        Called with each line, without its end, from a reading thread.

    Attributes
    ----------
    digest : str or None
        The last that the program printed.
    signum : int
        What Hydra says ended a process: its exit status is the same number as after ``exit(N)``.
    """

    def __init__(self, on_out: Callable[[str], None], on_err: Callable[[str], None]) -> None:
        self.digest: str | None = None
        self.signum = 0
        self.tracebacks = Tracebacks(on_err)
        self._on_out = on_out
        self._threads: list[threading.Thread] = []

    def follow(self, stdout: IO[str], stderr: IO[str]) -> None:
        """Start to read both pipes until they end."""
        for target, pipe in ((self._read_out, stdout), (self._read_err, stderr)):
            thread = threading.Thread(target=target, args=(pipe,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self, timeout_s: float) -> None:
        """Wait until all was read; a process that keeps a pipe open is not waited for."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _read_out(self, pipe: IO[str]) -> None:
        self._each_line(pipe, self._take_out)

    def _take_out(self, process: int, text: str) -> None:
        if match := _DIGEST.fullmatch(text):
            self.digest = match[1]
        self._on_out(text)

    def _read_err(self, pipe: IO[str]) -> None:
        self._each_line(pipe, self.tracebacks.feed)
        self.tracebacks.finish()

    def _each_line(self, pipe: IO[str], take: Callable[[int, str], None]) -> None:
        lines = Lines()
        for text in pipe:
            for process, line in lines.feed(text):
                if process != MPIRUN or not self._is_banner(line):
                    take(process, line)
        for process, line in lines.rest():
            take(process, line)

    def _is_banner(self, line: str) -> bool:
        if match := _SIGNALLED.match(line):
            self.signum = int(match[1])
        return _BANNER.fullmatch(line) is not None
