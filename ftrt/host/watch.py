"""Who of this host's processes is alive: one thread per process waits on its robust mutex.

The kernel releases a robust mutex at the start of the owner's exit, long before the process is
gone (0.2-0.8 ms after SIGKILL, see the evidence in ``docs/``), but also when only the owning
thread ends. Either way the process is of no use any more: whoever hears of it ends it for good.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Sequence

from ftrt.host import libc
from ftrt.host.board import Board, Field


class Watch:
    """Deaths of the processes on one board.

    ``descriptor`` is an eventfd that becomes readable when :meth:`deaths` has something new.
    ``own`` are those that run on this host.
    """

    def __init__(self, board: Board, own: Sequence[int]):
        self._board = board
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._deaths: deque[int] = deque()
        self._pidfds = {process: self._open(process) for process in own}
        for process in own:
            threading.Thread(
                target=self._wait_for, args=(process,), name=f"ftrt-watch-{process}", daemon=True
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

    def _wait_for(self, process: int) -> None:
        libc.ask_short_slice()
        libc.lock_mutex(self._board.mutex_address(process))
        self._deaths.append(process)
        os.eventfd_write(self.descriptor, 1)

    def deaths(self) -> list[int]:
        """Processes whose mutex was released since the last call."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return []
        found = []
        while self._deaths:
            found.append(self._deaths.popleft())
        return found

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
