"""What the job prints: passed on line by line, tracebacks once, the last digest remembered."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import IO

_DIGEST = re.compile(r"digest ([0-9a-fA-F]+)\s*")
_TRACEBACK = "Traceback (most recent call last):"


class Output:
    """Reads the two pipes of an mpirun in threads of its own.

    Parameters
    ----------
    on_out, on_err : callable
        Called with each line, without its end, from a reading thread.
    """

    def __init__(self, on_out: Callable[[str], None], on_err: Callable[[str], None]) -> None:
        self.digest: str | None = None
        self.tracebacks: list[str] = []
        self._on_out = on_out
        self._on_err = on_err
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
        for line in pipe:
            if match := _DIGEST.fullmatch(line):
                self.digest = match[1]
            self._on_out(line.rstrip("\n"))

    def _read_err(self, pipe: IO[str]) -> None:
        block: list[str] = []
        for line in pipe:
            text = line.rstrip("\n")
            if block or text == _TRACEBACK:
                block.append(text)
                if len(block) > 1 and not text.startswith(" "):
                    self._traceback(block)
                    block = []
            else:
                self._on_err(text)
        if block:
            self._traceback(block)

    def _traceback(self, block: list[str]) -> None:
        """All ranks usually fail alike; the first one that says so is enough."""
        if self.shown(block[-1]):
            return
        self.tracebacks.append("\n".join(block))
        for line in block:
            self._on_err(line)

    def shown(self, text: str) -> bool:
        """Was a traceback with the same last line printed already?"""
        last = text.rstrip().rpartition("\n")[2]
        return any(known.rpartition("\n")[2] == last for known in self.tracebacks)
