"""Faults with a time and inside a recovery: the agent inflicts them, or asks the rank to."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

from ftrt.host.board import Field
from ftrt.host.timing import strike_time
from ftrt.runtime.faults import BY_THE_RANK, fire_once, has_fired, throttled

_SIGNALS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "freeze": signal.SIGSTOP}


class Schedule:
    """Fires the faults of an attempt whose WHEN is a time or ``recovery``."""

    def __init__(self, config, agent):
        self._config, self._agent = config, agent
        self._start = time.monotonic()
        self._faults = list(enumerate(config.faults))
        self._signals: list[tuple[float, int, signal.Signals]] = []
        self._asked: list[tuple[int, dict]] = []

    def tick(self) -> None:
        """Fire what is due."""
        now = time.monotonic()
        for entry in [e for e in self._signals if e[0] <= now]:
            self._agent.watch.send(entry[1], entry[2])
            self._signals.remove(entry)
        for index, fault in list(self._faults):
            if fault["when_kind"] == "seconds" and fault["when"] <= now - self._start:
                self._faults.remove((index, fault))
                self._fire(index, fault)
        self._ask()

    def resume_all(self) -> None:
        """Let go on who is paused: nobody will look at the clock any more."""
        for process in {process for _, process, _ in self._signals}:
            self._agent.watch.send(process, signal.SIGCONT)
        self._signals.clear()

    def in_recovery(self) -> None:
        """Called inside a recovery, after the decision to close and before the ledgers are."""
        for index, fault in list(self._faults):
            if fault["when_kind"] == "recovery":
                self._faults.remove((index, fault))
                self._fire(index, fault)

    def _fire(self, index: int, fault: dict) -> None:
        if not self._is_here(fault):
            return
        if fault["kind"] in BY_THE_RANK:
            self._asked.append((index, fault))
            self._ask()
            return
        if not fire_once(self._config.ledger, index):
            return
        kind, agent, process = fault["kind"], self._agent, self._process_of(fault)
        agent.events.write("fault", kind=kind, rank=fault["rank"], spec=fault["spec"])
        if kind == "stop":
            agent.watch.send(process, signal.SIGSTOP)
            self._later(process, [(fault["duration_s"], signal.SIGCONT)])
        elif kind == "throttle":
            self._later(process, throttled(fault["duration_s"]))
        elif kind == "link":
            agent.board.cut_link(index, fault["duration_s"])
        else:
            strike_time(agent.board, process)
            agent.watch.send(process, _SIGNALS[kind])

    def _later(self, process: int, signals: Iterable[tuple[float, signal.Signals]]) -> None:
        now = time.monotonic()
        self._signals += [(now + after_s, process, number) for after_s, number in signals]

    def _ask(self) -> None:
        """Have ranks do what only they can, one thing at a time, until it is done.

        Whoever dies before has not done it: its successor is asked.
        """
        board = self._agent.board
        self._asked = [a for a in self._asked if not has_fired(self._config.ledger, a[0])]
        for index, fault in [asked for asked in self._asked if self._is_here(asked[1])]:
            process = self._process_of(fault)
            if not board.get(process, Field.FAULT_DUE):
                board.put(process, Field.FAULT_DUE, index + 1)
                board.ring_bell(process)
                self._asked.remove((index, fault))
                self._asked.append((index, fault))  # one that must wait holds up no other

    def _is_here(self, fault: dict) -> bool:
        """Whether the rank that is hit runs on this host: another host's agent sees to the rest."""
        return self._process_of(fault) in self._config.own

    def _process_of(self, fault: dict) -> int:
        return self._agent.core.membership.process_of(fault["rank"])
