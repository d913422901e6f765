"""Lets the trials of a batch begin, and injects their faults from outside at their times."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType

from ftrt.campaign.links import Namespace
from ftrt.campaign.page import At, Page
from ftrt.campaign.plan import Batch, Trial

_LOOK_S = 0.0005
#: The receiver, whom the faults hit.
VICTIM = 1
#: The first run of a job is slow: pages and connections are new.
_COLD = 1


class Conductor:
    """Goes through the trials of a batch beside its job.

    Parameters
    ----------
    batch : Batch
    page : Page
    link : ftrt.campaign.links.Namespace, optional
        Whose link fault *link* impairs.
    said : callable
        Called with the position of each trial that is over.

    Attributes
    ----------
    struck : dict of int to int
        Time (monotonic ns) of the injection of the trial at each position; those that were over
        before theirs are missing.
    killed : set of int
        Process ids.
    length_ns : int
        Of a fault-free stream.
    """

    def __init__(
        self,
        batch: Batch,
        page: Page,
        link: Namespace | None = None,
        said: Callable[[int], None] = lambda position: None,
    ) -> None:
        self._batch, self._page, self._link, self._said = batch, page, link, said
        self.struck: dict[int, int] = {}
        self.killed: set[int] = set()
        self.length_ns = 0
        self._lengths: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._conduct, name="ftrt-conductor", daemon=True)

    def __enter__(self) -> Conductor:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _conduct(self) -> None:
        for position, trial in enumerate(self._batch.trials, 1):
            self._page.put(At.ABORT_AFTER_NS, self._abort_after(trial))
            self._page.put(At.GO, position)
            if not self._until(partial(self._has_begun, position)):
                return
            if not trial.control:
                self._inject(position, trial)
            if not self._until(lambda: self._page.get(At.END_NS) > 0):
                return
            if trial.control and position > _COLD:
                length = self._page.get(At.END_NS) - self._page.get(At.START_NS)
                self._lengths.append(length)
                self.length_ns = int(statistics.median(self._lengths))
            self._said(position)

    def _has_begun(self, position: int) -> bool:
        return self._page.get(At.TRIAL) >= position

    def _abort_after(self, trial: Trial) -> int:
        if trial.control or self._batch.cell.fault != "abort":
            return 0
        return max(1, int(trial.when * self.length_ns))

    def _inject(self, position: int, trial: Trial) -> None:
        fault = self._batch.cell.fault
        if fault == "abort":  # the sender's own
            self._until(lambda: self._page.get(At.END_NS) > 0)
            if self._page.get(At.STRUCK_NS):
                self.struck[position] = self._page.get(At.STRUCK_NS)
            return
        at_ns = self._page.get(At.START_NS) + int(trial.when * self.length_ns)
        if not self._runs_until(at_ns):
            return
        pid = self._page.get(At.PIDS + VICTIM)
        self.struck[position] = time.monotonic_ns()
        if fault == "kill":
            self.killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        elif fault == "pause":
            self._pause(pid, trial.pause_ms * 1e-3)
        elif self._link is not None:
            self._impair(self._link, trial)

    def _runs_until(self, at_ns: int) -> bool:
        """Wait until then; False if the trial is over before."""
        while not self._over.is_set() and not self._page.get(At.END_NS):
            left_s = (at_ns - time.monotonic_ns()) * 1e-9
            if left_s <= 0:
                return True
            time.sleep(min(left_s, 0.005))
        return False

    def _pause(self, pid: int, for_s: float) -> None:
        try:
            os.kill(pid, signal.SIGSTOP)
            self._over.wait(for_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _impair(self, link: Namespace, trial: Trial) -> None:
        try:
            link.impair(trial.seed)
            self._over.wait(trial.pause_ms * 1e-3)
        finally:
            link.heal()

    def _until(self, ready: Callable[[], bool]) -> bool:
        while not ready():
            if self._over.wait(_LOOK_S):
                return False
        return True
