"""Faults that a rank inflicts on itself at an exact message count (``--fault kill:1@200msg``)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable


class Injector:
    """Fires the message-counted faults of one logical rank, each once per job."""

    def __init__(self, job, rank: int, note: Callable[..., None]):
        self._job, self._rank, self._note = job, rank, note
        #: Faults still to come; one list for the life of the process.
        self.pending = [
            (index, fault)
            for index, fault in enumerate(job.config.faults)
            if fault["rank"] == rank and fault["when_kind"] == "messages"
        ]

    @property
    def active(self) -> bool:
        """True while a fault is still to come."""
        return bool(self.pending)

    def reached(self, total: int) -> list[dict]:
        """Fire what is due at ``total`` messages; returns faults that the runtime carries out."""
        due = [entry for entry in self.pending if total >= entry[1]["when"]]
        left = []
        for index, fault in due:
            self.pending.remove((index, fault))
            if self._fire_once(index):
                self._note("fault", kind=fault["kind"], rank=self._rank, spec=fault["spec"])
                if not strike_self(fault):
                    left.append(fault)
        return left

    def _fire_once(self, index: int) -> bool:
        return fire_once(self._job.config.ledger, index)


def fire_once(ledger, index: int) -> bool:
    """True for the first call with ``index`` in the life of the job, restarts included."""
    try:
        os.close(os.open(ledger / "run" / f"fault-{index}.fired", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def strike_self(fault: dict) -> bool:
    """Carry out a fault that ends or blocks this process; False if it is of another kind."""
    kind = fault["kind"]
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "segv":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif kind == "exit":
        os._exit(3)
    elif kind == "stop":
        _continue_later(fault["duration_s"])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "hang":
        while True:
            time.sleep(3600.0)
    else:
        return False
    return True


def _continue_later(duration_s: float) -> None:
    """A child that sends SIGCONT after ``duration_s``: a stopped process cannot do so itself."""
    target, parent = os.getpid(), os.getpid()
    if os.fork() == 0:
        try:
            time.sleep(duration_s)
            if os.getppid() == parent:
                os.kill(target, signal.SIGCONT)
        finally:
            os._exit(0)
