"""The board: one page of shared words per process of a host, written by its owner and the agent.

The board lives in ``/dev/shm`` beside the rings. Words that only one side writes are plain stores
of aligned 64-bit words; those that both sides write (bells, counters) change by atomic addition.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ftrt import atomics
from ftrt.errors import DeadlineExceeded, InvariantBroken, UsageError
from ftrt.host import libc
from ftrt.host.words import (
    CUTS,
    DONE,
    ENTRY_WORDS,
    HEADER_WORDS,
    MAGIC,
    MAX_CUTS,
    MAX_RANKS,
    MESSAGES,
    MUTEXES,
    TOTAL,
    VERSION,
    Field,
    Phase,
    Status,
    Word,
    job_directory,
)

__all__ = ["Board", "Field", "Phase", "Status", "Word", "job_directory", "wait_for_board"]

# In 32-bit words, and plain ints: this is looked at before each call into MPI.
_FIRST_OWNER, _ENTRY_HALVES = 2 * (HEADER_WORDS + int(Field.OWNER)), 2 * ENTRY_WORDS
_OWNER_TO_MUTEX = 2 * (int(Field.MUTEX) - int(Field.OWNER))


class Board:
    """A mapped board; ``words`` is the whole of it as ``uint64``."""

    def __init__(self, path: Path):
        size = path.stat().st_size
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.words = np.frombuffer(self._map, np.uint64)
        self.address = self.words.ctypes.data
        self._halves = memoryview(self._map).cast("I")  # reads a 32-bit word in a tenth of a us
        if int(self.words[Word.MAGIC]) != MAGIC or int(self.words[Word.VERSION]) != VERSION:
            raise InvariantBroken(f"{path} is not a board of this version of ftrt")
        self.processes = int(self.words[Word.PROCESSES])
        self.ranks = int(self.words[Word.RANKS])

    @classmethod
    def create(cls, path: Path, processes: int, ranks: int, agent_pid: int = 0) -> Board:
        """Make the board under a temporary name, mutexes included, then rename it into place."""
        if ranks > MAX_RANKS:
            raise UsageError(f"{ranks} ranks are too many: -n can be at most {MAX_RANKS}")
        temporary = path.with_suffix(".tmp")
        size = 8 * (HEADER_WORDS + processes * ENTRY_WORDS)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            header = np.zeros(8, np.uint64)
            header[Word.MAGIC], header[Word.VERSION] = MAGIC, VERSION
            header[Word.PROCESSES], header[Word.RANKS] = processes, ranks
            header[Word.AGENT_PID] = agent_pid
            os.pwrite(descriptor, header.tobytes(), 0)
        finally:
            os.close(descriptor)
        board = cls(temporary)
        for process in range(processes):
            for number in range(MUTEXES):
                libc.init_robust_mutex(board.mutex_address(process, number))
        os.rename(temporary, path)
        return board

    def index(self, process: int, field: Field) -> int:
        """Index into ``words`` of a field of a process's entry."""
        return HEADER_WORDS + process * ENTRY_WORDS + field

    def get(self, process: int, field: Field) -> int:
        """Value of a field."""
        return int(self.words[self.index(process, field)])

    def put(self, process: int, field: Field, value: int) -> None:
        """Store a field, earlier stores first."""
        # A plain int: what numba does to find the type of an enum's member takes a millisecond.
        atomics.store(self.words, self.index(process, field), int(value))

    def mutex_address(self, process: int, number: int = 0) -> int:
        """Address in this process of a robust mutex that ``process`` holds while it lives."""
        at = self.index(process, Field.MUTEX)
        return self.address + 8 * at + libc.MUTEX_BYTES * number

    def own(self, process: int) -> None:
        """Take the mutexes of ``process`` for as long as this process lives; say who has them.

        The kernel gives them back when the thread ends that holds them. One that the application
        started may end long before its process: then another holds them, which never does.
        """
        if threading.current_thread() is threading.main_thread():
            self._hold(process)
            return
        held = threading.Event()

        def hold() -> None:
            self._hold(process)
            held.set()
            threading.Event().wait()

        threading.Thread(target=hold, name="ftrt-lives", daemon=True).start()
        held.wait()

    def _hold(self, process: int) -> None:
        for number in range(MUTEXES):
            libc.lock_mutex(self.mutex_address(process, number))
        self.put(process, Field.OWNER, threading.get_native_id())

    def lives(self, process: int) -> bool:
        """Whether ``process`` holds its mutex, or has not come to that yet.

        The kernel releases the mutex of a dying process before it closes its sockets: whoever has
        seen a connection end reads False here from then on.
        """
        at = _FIRST_OWNER + process * _ENTRY_HALVES
        owner = self._halves[at]
        return not owner or self._halves[at + _OWNER_TO_MUTEX] & libc.MUTEX_OWNER == owner

    @property
    def epoch(self) -> int:
        """Counter of the epoch that is in force, 0 before the first."""
        return int(self.words[Word.EPOCH])

    @property
    def status(self) -> Status:
        """State of the attempt."""
        return Status(int(self.words[Word.STATUS]))

    def set_header(self, word: Word, value: int) -> None:
        """Store a header word, earlier stores first."""
        atomics.store(self.words, int(word), int(value))

    def ring_bell(self, process: int) -> None:
        """Wake ``process`` if it sleeps, and keep it from falling asleep if it is about to."""
        bell = self.index(process, Field.BELL)
        atomics.add(self.words, bell, 1)
        libc.futex_wake(self.address + 8 * bell)

    def ring_all(self) -> None:
        """Wake everybody."""
        for process in range(self.processes):
            self.ring_bell(process)

    def sleep(self, process: int, bell_seen: int, timeout_s: float) -> None:
        """Sleep until the bell of ``process`` moves on from ``bell_seen``."""
        libc.futex_wait(self.address + 8 * self.index(process, Field.BELL), bell_seen, timeout_s)

    def count_message(self, rank: int, count: int) -> int:
        """Add to the messages that logical ``rank`` sent or consumed; the new total."""
        return int(atomics.add(self.words, MESSAGES + rank, count)) + count

    def counter_index(self, rank: int) -> int:
        """Index into ``words`` of the messages that logical ``rank`` sent or consumed."""
        return MESSAGES + rank

    def messages(self, rank: int) -> int:
        """Messages that logical ``rank`` sent or consumed in this attempt."""
        return int(self.words[MESSAGES + rank])

    def cut_link(self, fault: int, duration_s: float) -> None:
        """Fault injection: hold the messages of the link that fault number ``fault`` names."""
        until = time.monotonic_ns() + int(duration_s * 1e9)
        atomics.store(self.words, cut_index(fault), until)

    def tell_progress(self, rank: int, done: int, total: int) -> None:
        """Store how far logical ``rank`` says it is; whoever reads both may be one call behind."""
        self.words[TOTAL + rank] = total
        self.words[DONE + rank] = done


def cut_index(fault: int) -> int:
    """Index into ``words`` of the time until which fault number ``fault`` cuts its link."""
    return CUTS + fault % MAX_CUTS


def wait_for_board(
    path: Path, timeout_s: float, look: Callable[[], object] = lambda: None
) -> Board:
    """Map the board once the agent has made it; ``look`` is called meanwhile and may raise."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        look()
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"the host agent made no board at {path} within {timeout_s:g} s; "
                "its messages are in the ledger directory under run/"
            )
        time.sleep(0.002)
    return Board(path)
