"""Faults that a rank inflicts on itself.

All kinds at an exact message count (``--fault kill:1@200msg``); those that nobody else can inflict
also at a time or inside a recovery, when the agent asks for them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from ftrt.host.board import Field, Phase

#: Kinds that only the rank itself can carry out, whatever their WHEN: at its next call into ftrt.
BY_THE_RANK = ("exit", "abort", "corrupt", "hang")


class Injector:
    """Fires the faults that are one logical rank's own to inflict, each once per job."""

    def __init__(self, job, rank: int, note: Callable[..., None], can: Callable[[str], bool]):
        self._job, self._rank, self._note, self._can = job, rank, note, can
        #: Faults still to come; one list for the life of the process.
        self.pending = [
            (index, fault)
            for index, fault in enumerate(job.config.faults)
            if fault["rank"] == rank
            and (fault["when_kind"] == "messages" or fault["kind"] in BY_THE_RANK)
        ]

    @property
    def active(self) -> bool:
        """True while a fault is still to come."""
        return bool(self.pending)

    def reached(self, total: int) -> list[dict]:
        """Fire what is due at ``total`` messages; returns faults that the runtime carries out."""
        counted = [entry for entry in self.pending if entry[1]["when_kind"] == "messages"]
        return self._fire([entry for entry in counted if total >= entry[1]["when"]]) + self.asked()

    def asked(self) -> list[dict]:
        """Fire what the agent asks for; returns faults that the runtime carries out."""
        board, me = self._job.board, self._job.process
        number = board.get(me, Field.FAULT_DUE)
        if not number:
            return []
        board.put(me, Field.FAULT_DUE, 0)
        return self._fire([entry for entry in self.pending if entry[0] == number - 1])

    def _fire(self, due: list[tuple[int, dict]]) -> list[dict]:
        left = []
        for index, fault in due:
            if not self._can(fault["kind"]):
                continue
            self.pending.remove((index, fault))
            if not fire_once(self._job.config.ledger, index):
                continue
            self._note("fault", kind=fault["kind"], rank=self._rank, spec=fault["spec"])
            if fault["kind"] == "hang" and self._phase == Phase.WAITING:
                # It is the application that hangs: one that waits inside ftrt does not.
                self._job.board.put(self._job.process, Field.PHASE, Phase.RUNNING)
            if not strike_self(fault):
                left.append(fault)
        return left

    @property
    def _phase(self) -> int:
        return self._job.board.get(self._job.process, Field.PHASE)


def fire_once(ledger, index: int) -> bool:
    """True for the first call with ``index`` in the life of the job, restarts included."""
    try:
        os.close(os.open(_mark(ledger, index), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def has_fired(ledger, index: int) -> bool:
    """Whether a fault was carried out in the life of the job."""
    return _mark(ledger, index).exists()


def _mark(ledger, index: int):
    return ledger / "run" / f"fault-{index}.fired"


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
