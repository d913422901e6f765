"""Words that the ranks of a batch and whoever injects its faults share, in a mapped file."""

from __future__ import annotations

import enum
import mmap
import os
from pathlib import Path

import numpy as np

from ftrt import atomics

MAX_RANKS = 16
_WORDS = 128


class At(enum.IntEnum):
    """Where what lies."""

    GO = 0  # the trial that may begin
    TRIAL = 1  # the trial that runs, or ran last
    START_NS = 2  # its begin, by the monotonic clock
    END_NS = 3  # its end; 0 while it runs
    ABORT_AT = 4  # the message of the trial behind which the sender aborts; 0 for none
    STRUCK_NS = 5  # when its fault struck
    STOP = 6  # not 0: the trial that may begin shall not, nor any behind it
    SENT = 7  # messages of the trial that were sent, in bursts
    PIDS = 16  # one word for each rank
    WIRE_BYTES = 32  # given to the wire by each rank


class Page:
    """The mapped words; every store is seen in the order in which it was made."""

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * _WORDS)
        self.words = np.frombuffer(self._map, np.uint64)

    @classmethod
    def create(cls, path: Path) -> Page:
        """Make the file, all words zero."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.posix_fallocate(descriptor, 0, 8 * _WORDS)
        os.close(descriptor)
        return cls(path)

    def get(self, at: int) -> int:
        """Load a word."""
        return int(atomics.load(self.words, int(at)))

    def put(self, at: int, value: int) -> None:
        """Store a word, earlier stores first."""
        atomics.store(self.words, int(at), int(value))

    def begin(self, trial: int, now_ns: int) -> None:
        """A trial begins."""
        self.put(At.END_NS, 0)
        self.put(At.STRUCK_NS, 0)
        self.put(At.SENT, 0)
        self.put(At.START_NS, now_ns)
        self.put(At.TRIAL, trial)
