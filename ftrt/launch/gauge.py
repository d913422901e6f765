"""How far a job is: read from its board in shared memory, which the job itself keeps for its work.

The launcher maps the board read-only; no process of the job does anything for it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from ftrt.host.words import (
    DONE,
    ENTRY_WORDS,
    HEADER_WORDS,
    MAGIC,
    MESSAGES,
    TOTAL,
    VERSION,
    Field,
    Phase,
    Status,
    Word,
)

#: Rates are taken over this long, so that a recovery is seen in them and a hiccup is not.
WINDOW_S = 5.0


@dataclass(frozen=True)
class Reading:
    """State of a job at one moment.

    Attributes
    ----------
    epoch : int
        Counter of the epoch in force, 0 before the first.
    messages : tuple of int
        Messages that each rank sent or consumed in this attempt.
    rates_per_s : tuple of float
        Messages a second of each rank over the last ``WINDOW_S``.
    done, total : int
        Sums of what the ranks told ``rt.progress``; 0 if none did.
    left_s : float or None
        Time left at the speed of the last ``WINDOW_S``; None if unknown.
    """

    epoch: int
    messages: tuple[int, ...]
    rates_per_s: tuple[float, ...]
    done: int = 0
    total: int = 0
    left_s: float | None = None

    @property
    def fraction(self) -> float | None:
        """Share that is done, None where no rank told one."""
        return min(self.done / self.total, 1.0) if self.total else None


class Gauge:
    """Reads the board of one attempt.

    Parameters
    ----------
    path : Path
        The board; it may not be there yet, or not any more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._words: memoryview | None = None
        self._samples: deque[tuple[float, tuple[int, ...], int]] = deque()

    @property
    def running(self) -> bool:
        """True once the first epoch of the attempt is in force, and for ever after."""
        return self._open() and self._word(Word.STATUS) != Status.STARTING

    def knows(self, process: int) -> bool:
        """Whether a process has said on the board who it is: then the agent sees its death."""
        at = HEADER_WORDS + process * ENTRY_WORDS + Field.PHASE
        return self._open() and self._word(at) != Phase.ABSENT

    @property
    def agent_beat(self) -> int:
        """What the agent counts up as it goes; -1 before there is a board."""
        return self._word(Word.AGENT_BEAT) if self._open() else -1

    @property
    def agent_pid(self) -> int:
        """Process of the agent, 0 before there is a board."""
        return self._word(Word.AGENT_PID) if self._open() else 0

    @property
    def processes(self) -> int:
        """Processes that the board has room for, 0 before there is one."""
        return self._word(Word.PROCESSES) if self._open() else 0

    def field(self, process: int, field: Field) -> int:
        """A field of a process's entry."""
        return self._word(HEADER_WORDS + process * ENTRY_WORDS + field)

    def read(self, now_s: float) -> Reading | None:
        """Return the state at ``now_s`` (a monotonic time), None before the job runs."""
        if not self.running:
            return None
        ranks = range(self._word(Word.RANKS))
        messages = tuple(self._word(MESSAGES + rank) for rank in ranks)
        done = sum(self._word(DONE + rank) for rank in ranks)
        total = sum(self._word(TOTAL + rank) for rank in ranks)
        self._samples.append((now_s, messages, done))
        while now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        then_s, before, done_before = self._samples[0]
        span_s = max(now_s - then_s, 1e-3)
        rates = tuple((new - old) / span_s for new, old in zip(messages, before, strict=True))
        advanced = done - done_before
        left_s = (total - done) * span_s / advanced if advanced > 0 else None
        return Reading(self._word(Word.EPOCH), messages, rates, done, total, left_s)

    def _word(self, index: int) -> int:
        return 0 if self._words is None else int(self._words[index])

    def _open(self) -> bool:
        if self._words is not None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except OSError:
            return False
        try:
            mapped = mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        if len(mapped) < 8 * HEADER_WORDS or struct.unpack_from("QQ", mapped) != (MAGIC, VERSION):
            return False
        self._words = memoryview(mapped).cast("Q")
        return True
