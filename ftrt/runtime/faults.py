"""Faults that a rank inflicts on itself.

All kinds at an exact message count (``--fault kill:1@200msg``); those that nobody else can inflict
also at a time or inside a recovery, when the agent asks for them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence

from ftrt.host.board import Field, Phase, cut_index
from ftrt.host.timing import strike_time

#: Kinds that only the rank itself can carry out, whatever their WHEN: at its next call into ftrt.
BY_THE_RANK = ("exit", "abort", "corrupt", "hang", "eio", "gpu")

#: Kinds after which a process is replaced.
_FATAL = ("kill", "segv", "exit", "hang", "freeze")
_PERIOD_S, _STOPPED_S = 0.1, 0.08


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
            if fault["kind"] == "link":
                self._job.board.cut_link(index, fault["duration_s"])
                continue
            if fault["kind"] in _FATAL:
                strike_time(self._job.board, self._job.process)
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
    """Carry out a fault that ends, slows or blocks this process; False if it is of another kind."""
    kind = fault["kind"]
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "segv":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif kind == "exit":
        os._exit(3)
    elif kind == "stop":
        _signal_later([(fault["duration_s"], signal.SIGCONT)])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "throttle":
        _signal_later(throttled(fault["duration_s"]))
    elif kind == "hang":
        while True:
            time.sleep(3600.0)
    else:
        return False
    return True


def cuts_of(faults: Sequence[dict], rank: int, source: int) -> list[int]:
    """Words of the board that say until when the link between two ranks is cut."""
    ends = {rank, source}
    links = [(n, f) for n, f in enumerate(faults) if f["kind"] == "link"]
    return [cut_index(n) for n, fault in links if {fault["rank"], fault["peer"]} == ends]


def throttled(duration_s: float) -> list[tuple[float, signal.Signals]]:
    """Signals that leave a process a fifth of each tenth of a second, with their times.

    What a CPU quota does to a process that wants all of a core, without a control group.
    """
    signals: list[tuple[float, signal.Signals]] = []
    begin_s = 0.0
    while begin_s < duration_s:
        end_s = min(begin_s + _STOPPED_S, duration_s)
        signals += [(begin_s, signal.SIGSTOP), (end_s, signal.SIGCONT)]
        begin_s += _PERIOD_S
    return signals


def _signal_later(signals: Iterable[tuple[float, signal.Signals]]) -> None:
    """A child that sends them: a stopped process cannot do so itself."""
    target, begin_s = os.getpid(), time.monotonic()
    if os.fork() == 0:
        try:
            for after_s, number in signals:
                time.sleep(max(0.0, begin_s + after_s - time.monotonic()))
                if os.getppid() != target:
                    break
                os.kill(target, number)
        finally:
            os._exit(0)
