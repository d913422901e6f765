"""Batches side by side: those that mostly sleep share the cores, and all of them end in time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Job = TypeVar("Job")

#: Cores that a job of the campaign keeps busy while its trials run: one for each end of the
#: stream, and a quarter of that where most of a trial is a pause.
CORES = {"kill": 2.0, "abort": 2.0, "pause": 0.5, "link": 0.5}
#: Between two looks at whether there is time left.
_LOOK_S = 0.2


def jobs_at_once(fault: str, cores: int | None = None) -> int:
    """How many jobs with this fault are run side by side."""
    return max(1, int((cores or os.cpu_count() or 1) / CORES[fault]))


class Enough:
    """Whether to end now: somebody said so, or the time is used up.

    Parameters
    ----------
    budget_s : float, optional
    """

    def __init__(self, budget_s: float | None = None) -> None:
        self._end = None if budget_s is None else time.monotonic() + budget_s
        self._said = threading.Event()

    def say(self) -> None:
        """No trial begins from now on."""
        self._said.set()

    def __call__(self, ahead_s: float = 0.0) -> bool:
        """Whether it is so, or will be in so many seconds."""
        late = self._end is not None and time.monotonic() + ahead_s >= self._end
        return late or self._said.is_set()


class Pool(Generic[Job]):
    """Runs jobs, several side by side, each in a thread that waits for its processes.

    Parameters
    ----------
    run : callable
        Runs one job.
    at_once : callable
        How many such jobs may run side by side, this one included.
    start_s : callable
        Seconds that the start of such a job may take: later than that none begins.
    enough : Enough
        Once it is true no more jobs begin. Those that run are told by the same object.
    """

    def __init__(
        self,
        run: Callable[[Job], object],
        at_once: Callable[[Job], int],
        start_s: Callable[[Job], float],
        enough: Enough,
    ) -> None:
        self._run, self._at_once, self._enough = run, at_once, enough
        self._start_s = start_s
        self._changed = threading.Condition()
        self._running: list[Job] = []
        self._failure: BaseException | None = None

    def go_through(self, jobs: Iterator[Job]) -> None:
        """Run all, in the order in which they come; the first error ends it and is raised.

        A KeyboardInterrupt ends it in the same way as the end of the time, and is raised once all
        that was begun is over.
        """
        interrupted: KeyboardInterrupt | None = None
        with ThreadPoolExecutor(64, thread_name_prefix="ftrt-batch") as threads:
            try:
                for job in jobs:
                    if self._enough():
                        break
                    if not self._await_place(job):
                        continue  # a shorter one may still have its time
                    threads.submit(self._one, job)
                self._await(lambda: not self._running)
            except KeyboardInterrupt as interrupt:
                interrupted = interrupt
                self._enough.say()
            except BaseException:
                self._enough.say()
                raise
        if interrupted is not None:
            raise interrupted
        if self._failure is not None:
            raise self._failure

    def _await_place(self, job: Job) -> bool:
        """Wait until the job fits in beside those that run; False if it shall not begin."""
        start_s = self._start_s(job)
        self._await(lambda: self._enough(start_s) or self._fits(job))
        if self._enough(start_s):
            return False
        with self._changed:
            self._running.append(job)
        return True

    def _fits(self, job: Job) -> bool:
        jobs = [*self._running, job]
        return len(jobs) <= min(self._at_once(one) for one in jobs)

    def _await(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            while not ready():
                self._changed.wait(_LOOK_S)

    def _one(self, job: Job) -> None:
        try:
            self._run(job)
        except BaseException as failure:
            self._failure = self._failure or failure
            self._enough.say()
        finally:
            with self._changed:
                self._running.remove(job)
                self._changed.notify_all()
