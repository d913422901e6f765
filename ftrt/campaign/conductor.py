"""Lets the trials of a batch begin, and injects their faults from outside at their times."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType

from ftrt.campaign.links import Namespace
from ftrt.campaign.page import At, Page
from ftrt.campaign.plan import Batch, Trial

_LOOK_S = 0.0005
#: Between two looks at how far a stream has come.
_AIM_S = 0.0001
#: The receiver, whom the faults hit.
VICTIM = 1


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
    enough : callable
        Asked before each trial; once it is true no more of them begin, and the job ends.

    Attributes
    ----------
    struck : dict of int to int
        Time (monotonic ns) of the injection of the trial at each position; those that were over
        before theirs are missing.
    killed : set of int
        Process ids.
    done : int or None
        Trials that took place, if the others were called off.
    """

    def __init__(
        self,
        batch: Batch,
        page: Page,
        link: Namespace | None = None,
        said: Callable[[int], None] = lambda position: None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self._batch, self._page, self._link, self._said = batch, page, link, said
        self.struck: dict[int, int] = {}
        self.killed: set[int] = set()
        self.done: int | None = None
        self._enough = enough
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
            if self._enough():
                self._page.put(At.STOP, 1)
                self._page.put(At.GO, position)
                self.done = position - 1
                return
            self._page.put(At.ABORT_AT, self._abort_at(trial))
            self._page.put(At.GO, position)
            if not self._until(partial(self._has_begun, position)):
                return
            if not trial.control:
                self._inject(position, trial)
            if not self._until(lambda: self._page.get(At.END_NS) > 0):
                return
            self._said(position)

    def _has_begun(self, position: int) -> bool:
        return self._page.get(At.TRIAL) >= position

    def _abort_at(self, trial: Trial) -> int:
        if trial.control or self._batch.cell.fault != "abort":
            return 0
        return self._batch.aim(trial)

    def _inject(self, position: int, trial: Trial) -> None:
        fault = self._batch.cell.fault
        if fault == "abort":  # the sender's own
            self._until(lambda: self._page.get(At.END_NS) > 0)
            if self._page.get(At.STRUCK_NS):
                self.struck[position] = self._page.get(At.STRUCK_NS)
            return
        if not self._has_come_to(self._batch.aim(trial)):
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

    def _has_come_to(self, sent: int) -> bool:
        """Wait until so many messages were sent; False if the trial is over before."""
        while not self._over.is_set() and not self._page.get(At.END_NS):
            if self._page.get(At.SENT) >= sent:
                return True
            time.sleep(_AIM_S)
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
