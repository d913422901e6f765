"""Signals that ask a launcher to end: remembered, so that it ends in order, at any moment."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class Stopped(BaseException):
    """A signal asked to end where nothing was left to be put in order.

    Attributes
    ----------
    signum : int
        The signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Stop:
    """Remembers SIGINT, SIGTERM or SIGHUP, which a terminal sends that is closed, while entered.

    Attributes
    ----------
    signum : int
        The signal that came last, 0 for none.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._interrupts = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                continue  # nohup: whoever started us wants the job to go on
            with contextlib.suppress(ValueError):  # not the main thread: the caller's business
                self._before[signum] = signal.signal(signum, self._remember)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @contextlib.contextmanager
    def interrupts(self) -> Iterator[None]:
        """Within, a signal raises :class:`Stopped`: for what takes long and has no end of its own.

        Not for anything that starts processes which would have to be ended.
        """
        self._interrupts = True
        try:
            self.check()
            yield
        finally:
            self._interrupts = False

    def check(self) -> None:
        """Raise :class:`Stopped` if a signal came."""
        if self.signum:
            raise Stopped(self.signum)

    def _remember(self, signum: int, frame: object) -> None:
        self.signum = signum
        if self._interrupts:
            self._interrupts = False
            raise Stopped(signum)
