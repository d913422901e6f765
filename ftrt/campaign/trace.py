"""The oracle: effects written where no recovery looks, one mapped file per process incarnation.

An entry is two words: the time by the monotonic clock, then number and kind in one word, stored
last. A store into a mapped file survives the death of its process, so the file of a process that
was killed holds all that it did. Nothing of the package reads these files to decide anything.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

BEGUN, COMMITTED = 1, 2
_KIND_AT = 60
_SOURCE_AT = 48
_SEQ_MASK = (1 << _SOURCE_AT) - 1
_SOURCE_MASK = (1 << (_KIND_AT - _SOURCE_AT)) - 1
_ENTRIES = 1 << 14


class Trace:
    """Appends the effects of one process incarnation.

    Parameters
    ----------
    directory : path
    rank : int
        The logical rank whose effects these are.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        directory.mkdir(exist_ok=True)
        self._stem = f"trace-r{rank:04d}-p{os.getpid()}-{time.time_ns()}"
        self._directory, self._part = directory, 0
        self._next_file()

    def _next_file(self) -> None:
        path = self._directory / f"{self._stem}-{self._part:03d}.bin"
        self._part += 1
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.posix_fallocate(descriptor, 0, 16 * _ENTRIES)
        self._words = memoryview(mmap.mmap(descriptor, 16 * _ENTRIES)).cast("Q")
        os.close(descriptor)
        self._at = 0

    def begun(self, seq: int, source: int = 0) -> None:
        """An effect is about to be made."""
        self._put(BEGUN, seq, source)

    def committed(self, seq: int, source: int = 0) -> None:
        """Its commit has returned."""
        self._put(COMMITTED, seq, source)

    def _put(self, kind: int, seq: int, source: int) -> None:
        at = self._at
        if at == 2 * _ENTRIES:
            self._next_file()
            at = 0
        self._words[at] = time.monotonic_ns()
        self._words[at + 1] = kind << _KIND_AT | source << _SOURCE_AT | seq
        self._at = at + 2


@dataclass
class Account:
    """What the traces of one rank say of one source.

    Attributes
    ----------
    commits : Counter
        How often each number was committed.
    unfinished : Counter
        How often an incarnation ended between begin and commit of a number: it may have taken
        effect once more than ``commits`` says.
    times_ns : ndarray of int64, shape (n, 2)
        Number and time of every commit, by time.
    """

    commits: Counter = field(default_factory=Counter)
    unfinished: Counter = field(default_factory=Counter)
    times_ns: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))

    def allows(self, seq: int, events: int) -> bool:
        """Whether a number can have taken effect so often."""
        least = self.commits[seq]
        return least <= events <= least + self.unfinished[seq]


def read(directory: Path, rank: int) -> dict[int, Account]:
    """Accounts of all incarnations of a rank, by source."""
    accounts: dict[int, Account] = {}
    rows: dict[int, list[np.ndarray]] = {}
    for entries in _incarnations(directory, rank):
        kinds, sources, seqs = _split(entries[:, 1])
        for source in np.unique(sources).tolist():
            account = accounts.setdefault(source, Account())
            done = (sources == source) & (kinds == COMMITTED)
            account.commits.update(seqs[done].tolist())
            times = entries[done, 0].astype(np.int64)
            rows.setdefault(source, []).append(np.stack([seqs[done], times], axis=1))
        if kinds.size and kinds[-1] == BEGUN:
            accounts[int(sources[-1])].unfinished[int(seqs[-1])] += 1
    for source, parts in rows.items():
        joined = np.concatenate(parts)
        accounts[source].times_ns = joined[np.argsort(joined[:, 1], kind="stable")]
    return accounts


def _incarnations(directory: Path, rank: int) -> Iterator[np.ndarray]:
    """Entries of each incarnation, in the order in which they were written."""
    stems: dict[str, list[Path]] = {}
    for path in sorted(directory.glob(f"trace-r{rank:04d}-*.bin")):
        stems.setdefault(path.name.rpartition("-")[0], []).append(path)
    for paths in stems.values():
        entries = np.concatenate([np.fromfile(p, np.uint64).reshape(-1, 2) for p in paths])
        yield entries[: int(np.count_nonzero(entries[:, 1]))]


def _split(words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    kinds = (words >> np.uint64(_KIND_AT)).astype(np.int64)
    sources = ((words >> np.uint64(_SOURCE_AT)) & np.uint64(_SOURCE_MASK)).astype(np.int64)
    return kinds, sources, (words & np.uint64(_SEQ_MASK)).astype(np.int64)
