"""What the two ends of a channel between GPUs tell each other, in shared memory of their host.

A channel has two files. The ring of notes (a ring of the host plane, with its checks) goes from
sender to receiver: a note says that a group of slots is on its way, so that the receiver can post
the matching receives, in the same order. The page goes back: what was given back, and which group
was damaged.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ftrt import atomics
from ftrt.transport import meta
from ftrt.transport.slots import META_BYTES

_WORDS = 10
NOTE_WORDS = _WORDS + META_BYTES // 8
NOTE_BYTES = 8 * NOTE_WORDS
PAGE_WORDS = 512
# Words of the page.
G_RELEASED, G_NACK, G_NACKS, G_SEALED, G_FROM, G_TO, G_PAIR, G_BROKEN = range(8)


class Note(NamedTuple):
    """One group of slots that is sent.

    ``slots`` messages or frames of records follow each other from the slot of ``frame`` on;
    ``again`` says that the group was sent before and arrived damaged.
    """

    again: bool
    group: int
    seq: int
    count: int  # type: ignore[assignment]  # of messages; tuple.count is not missed
    records: bool
    slots: int
    frame: int
    frame_bytes: int
    epoch: int
    dtype: np.dtype
    shape: tuple[int, ...]


class Writer:
    """Writes notes into words of its own; the part that seldom changes stays."""

    def __init__(self) -> None:
        self._words = np.zeros(NOTE_WORDS, np.uint64)
        self._kind: tuple | None = None
        self._size = 0

    def write(self, note: Note) -> np.ndarray:
        """A note as words, which the next call overwrites."""
        words, kind = self._words, (note.dtype, note.shape)
        if kind != self._kind:
            text, self._size = meta.encode(*kind)
            words[_WORDS:] = 0
            words[_WORDS : _WORDS + len(text)] = text
            self._kind = kind
        words[:_WORDS] = (*note[:9], self._size)
        return words


def write(note: Note) -> np.ndarray:
    """A note as words."""
    return Writer().write(note)


def read(words: np.ndarray) -> Note:
    """What :func:`write` wrote."""
    again, group, seq, count, records, slots, frame, size, epoch, length = words[:_WORDS].tolist()
    dtype, shape = meta.decode(words[_WORDS:].tobytes()[:length])
    return Note(
        bool(again), group, seq, count, bool(records), slots, frame, size, epoch, dtype, shape
    )


class Page:
    """The words that go back, and who uses the channel; each word has one writer."""

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8 * PAGE_WORDS)
        self.words = np.frombuffer(self._memory, np.uint64)

    @classmethod
    def create(cls, path: Path, sender: int, receiver: int, pair: int) -> Page:
        """Make the file; it appears under its name when it is complete."""
        words = np.zeros(PAGE_WORDS, np.uint64)
        words[[G_FROM, G_TO, G_PAIR]] = sender, receiver, pair
        new = path.with_name(f"new-{os.getpid()}-{path.name}")
        new.write_bytes(words.tobytes())
        new.rename(path)
        return cls(path)

    def get(self, word: int) -> int:
        """Load a word; what its writer stored before is seen too."""
        return int(atomics.load(self.words, word))

    def put(self, word: int, value: int) -> None:
        """Store a word, earlier stores first."""
        atomics.store(self.words, word, value)
