"""Faults that the agent inflicts: those with a time, and those inside a recovery."""

from __future__ import annotations

import signal
import time

from ftrt.runtime.faults import fire_once

_SIGNALS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "exit": signal.SIGKILL}


class Schedule:
    """Fires the faults of an attempt whose WHEN is a time or ``recovery``."""

    def __init__(self, config, agent):
        self._config, self._agent = config, agent
        self._start = time.monotonic()
        self._faults = list(enumerate(config.faults))
        self._resume: list[tuple[float, int]] = []

    def tick(self) -> None:
        """Fire what is due."""
        elapsed = time.monotonic() - self._start
        for when, process in [r for r in self._resume if r[0] <= elapsed]:
            self._agent.watch.send(process, signal.SIGCONT)
            self._resume.remove((when, process))
        for index, fault in list(self._faults):
            if fault["when_kind"] == "seconds" and fault["when"] <= elapsed:
                self._faults.remove((index, fault))
                self._fire(index, fault)

    def resume_all(self) -> None:
        """Let go on who is paused: nobody will look at the clock any more."""
        for _, process in self._resume:
            self._agent.watch.send(process, signal.SIGCONT)
        self._resume.clear()

    def in_recovery(self) -> None:
        """Called inside a recovery, after the decision to close and before the ledgers are."""
        for index, fault in list(self._faults):
            if fault["when_kind"] == "recovery":
                self._faults.remove((index, fault))
                self._fire(index, fault)

    def _fire(self, index: int, fault: dict) -> None:
        if not fire_once(self._config.ledger, index):
            return
        process = self._agent.core.membership.process_of(fault["rank"])
        self._agent.events.write(
            "fault", kind=fault["kind"], rank=fault["rank"], spec=fault["spec"]
        )
        if fault["kind"] == "stop":
            self._agent.watch.send(process, signal.SIGSTOP)
            elapsed = time.monotonic() - self._start
            self._resume.append((elapsed + fault["duration_s"], process))
        elif fault["kind"] in _SIGNALS:
            self._agent.watch.send(process, _SIGNALS[fault["kind"]])
