"""Who of this host's processes is alive: two threads per process wait on its robust mutexes.

The kernel releases a robust mutex at the start of the owner's exit, long before the process is
gone (0.2-0.8 ms after SIGKILL, see the evidence in ``docs/``), but also when the process calls
exec. Either way it is of no use any more: whoever hears of it ends it for good.

Two, because the kernel wakes a thread on the core on which it waits or on that of its waker, the
dying process, which then frees its memory for milliseconds without leaving the core to anybody. So
the two wait on different cores. The first that wakes is on a core that gets on, and takes the
thread that will ask for the deaths there.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence

from ftrt.host import libc
from ftrt.host.board import Board, Field
from ftrt.host.words import MUTEXES

#: A process whose mutex was released and that has not begun to exit by then goes on as another.
_CONFIRMED_WITHIN_S = 0.005
#: So long a watcher stays asleep before it ends: what it woke needs its core.
_MAKES_WAY_S = 0.05


class Watch:
    """Deaths of the processes on one board.

    ``descriptor`` is an eventfd that becomes readable when :meth:`deaths` has something new.
    ``own`` are those that run on this host.
    """

    def __init__(self, board: Board, own: Sequence[int]):
        self._board = board
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._deaths: deque[int] = deque()
        self._seen: set[int] = set()
        self._reader, self._cores = threading.get_native_id(), os.sched_getaffinity(0)
        self._pidfds = {process: self._open(process) for process in own}
        for process in own:
            for number in range(MUTEXES):
                threading.Thread(
                    target=self._wait_for,
                    args=(process, number),
                    name=f"ftrt-watch-{process}-{number}",
                    daemon=True,
                ).start()

    def _open(self, process: int) -> int | None:
        pid = self._board.get(process, Field.PID)
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        if libc.process_start_ticks(pid) != self._board.get(process, Field.START_TICKS):
            os.close(descriptor)
            return None
        return descriptor

    def _wait_for(self, process: int, number: int) -> None:
        libc.ask_short_slice()
        cores = sorted(self._cores)[number::MUTEXES]
        if cores:
            libc.keep_to(0, cores)
        libc.lock_mutex(self._board.mutex_address(process, number))
        if process not in self._seen:
            self._seen.add(process)
            self._deaths.append(process)
            if len(self._cores) > 1:
                libc.keep_to(self._reader, [libc.core()])
            os.eventfd_write(self.descriptor, 1)
        time.sleep(_MAKES_WAY_S)

    def deaths(self) -> list[int]:
        """Processes whose mutex was released since the last call."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return []
        libc.keep_to(0, self._cores)
        found = []
        while self._deaths:
            found.append(self._deaths.popleft())
        return found

    def how(self, process: int) -> str:
        """How a process went whose mutex was released: the kernel releases it at exec, too.

        One that has called exec lives, and is no rank any more: its maps are gone.
        """
        descriptor, end_s = self._pidfds.get(process), time.monotonic() + _CONFIRMED_WITHIN_S
        pid = self._board.get(process, Field.PID)
        while descriptor is not None and not libc.is_leaving(pid):
            if libc.process_ended(descriptor):
                break
            if time.monotonic() > end_s:
                return "exec"
            time.sleep(0.0002)
        return "mutex"

    def send(self, process: int, number: int) -> None:
        """Send a signal to exactly the registered process, never to a re-used process id."""
        descriptor = self._pidfds.get(process)
        if descriptor is not None:
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                self._pidfds[process] = None

    def stand_back(self, process: int) -> None:
        """Have a process that is on its way out leave the cores to the others."""
        if self.alive(process):  # so that its number still is its own
            libc.stand_back(self._board.get(process, Field.PID))

    def alive(self, process: int) -> bool:
        """True while the process exists."""
        self.send(process, 0)
        descriptor = self._pidfds.get(process)
        return descriptor is not None and not libc.process_ended(descriptor)
