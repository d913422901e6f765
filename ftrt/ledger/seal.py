"""How a ledger is ended and read, by anybody, whether its owner lives or not."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from pathlib import Path

import numpy as np
from numba import njit

from .. import atomics
from ..atomics import fetch_or
from ..errors import LedgerDamaged
from . import layout
from .durable import cut_of, read_mark
from .layout import CLOSED
from .pool import LedgerPool
from .segment import Segment
from .steps import step
from .words import read_words

#: A ledger with more is not read for nothing.
_PEEKED_WORDS = 1024


@njit("void(uint64[::1], intp, intp)", cache=True)
def _close_heads(whole, first, stride):
    for stream in range(layout.STREAMS):
        fetch_or(whole, first + stream * stride, np.uint64(1) << np.uint64(63))


def words_of(segment: Segment) -> list[int]:
    """How many words each stream of a segment has by now."""
    heads = segment.streams["head"] & np.uint64(CLOSED - 1)
    return [layout.split_head(int(head))[0] for head in heads[np.flatnonzero(heads)]]


def close_segments(segments: list[Segment]) -> None:
    """Set CLOSED in the first segment's control word, then in every head."""
    first = segments[0]
    atomics.set_bits(first.whole, first.at_control, CLOSED)
    for segment in segments:
        step("seal.segment")
        _close_heads(segment.whole, segment.head_index(0), layout.STREAM_WORDS)


def _touch(segment: Segment) -> None:
    """Have the pages that closing changes mapped for that: to fault them in takes longer."""
    atomics.set_bits(segment.whole, segment.at_control, 0)
    for stream in range(0, layout.STREAMS, layout.STREAMS_OF_A_PAGE):
        atomics.set_bits(segment.whole, segment.head_index(stream), 0)


class RankCloser:
    """Ends the ledger of a rank; maps it beforehand, so that :meth:`close` takes microseconds.

    Parameters
    ----------
    directory : path
    epoch, rank : int
    attempt : int, optional
        The attempt that ends it. A ledger of an earlier one goes back to its durable mark if
        that is all that can be trusted; within an attempt nobody can.
    """

    def __init__(self, directory, epoch: int, rank: int, attempt: int | None = None):
        self.directory, self.epoch, self.rank = Path(directory), epoch, rank
        self._attempt = attempt
        self._segments: list[Segment] = []
        if self._path(0).exists():
            self._segments.append(Segment(self._path(0)))

    def map(self) -> int:
        """Map the segments made since; returns how many there are. Call it now and then."""
        while self._path(len(self._segments)).exists():
            self._segments.append(Segment(self._path(len(self._segments))))
        for segment in self._segments:
            segment.learn_entries()
        for segment in self._segments[-1:]:
            _touch(segment)
        return len(self._segments)

    def close(self) -> list[dict]:
        """End the ledger for good and return its seals, one per segment.

        A ledger that was never opened is made closed and empty, so that it never can be.
        """
        while not self._segments and not self.map():
            self._make_tombstone()
        first = self._segments[0]
        mark = cut_of(first, self.directory, self._attempt)
        if mark is not None:
            return self._close_at(mark)
        control = int(atomics.set_bits(first.whole, first.at_control, CLOSED)) & ~CLOSED
        while len(self._segments) < control:
            self._segments.append(Segment(self._path(len(self._segments))))
        del self._segments[control:]
        step("seal.counted")
        close_segments(self._segments)
        step("seal.closed")
        return [seal(segment) for segment in self._segments]

    def peek(self) -> list[dict]:
        """Seals as :meth:`close` would give them by now, none of a ledger that has grown."""
        segments = self._segments
        if len(segments) != 1 or sum(words_of(segments[0])) > _PEEKED_WORDS:
            return []
        return [seal(segment) for segment in segments]

    def _close_at(self, mark: dict) -> list[dict]:
        """End the ledger where its durable mark is; segments behind it may be anything."""
        del self._segments[1:]
        while len(self._segments) < mark["segments"]:
            self._segments.append(Segment(self._path(len(self._segments))))
        close_segments(self._segments)
        return [seal_at(segment, mark) for segment in self._segments]

    def _path(self, number: int) -> Path:
        return self.directory / layout.segment_name(self.epoch, self.rank, number)

    def _make_tombstone(self) -> None:
        try:
            job = json.loads((self.directory / "job.json").read_text())["job"]
        except (OSError, ValueError, KeyError):
            job = str(uuid.UUID(int=0))
        # Where it exists by now its owner was faster; it is closed like any other.
        with contextlib.suppress(FileExistsError):
            LedgerPool(self.directory, pages=1).claim(
                self.epoch, self.rank, 0, job=job, attempt=0, incarnation=-1, closed=True
            )
            step("seal.tombstone")


def close_rank(directory, epoch: int, rank: int) -> list[dict]:
    """End the ledger of ``rank`` in ``epoch`` and return its seals; the same however often."""
    return RankCloser(directory, epoch, rank).close()


def _digest(table: np.ndarray) -> str:
    return hashlib.blake2b(table.data, digest_size=16).hexdigest()


def _last(segment: Segment, index: int, word: int) -> int | None:
    if word == 0:
        return None
    value = layout.unguard(word)
    if value is None:
        raise LedgerDamaged(f"{segment.path}: stream {index} has a wrong 'last'")
    return value - 1


def _describe(segment: Segment, index: int, head: int, last: int) -> tuple[dict, np.ndarray]:
    """Seal of one stream and its runs, as of the words ``head`` and ``last``."""
    words, run, _, intact = layout.split_head(head)
    if not intact:
        raise LedgerDamaged(f"{segment.path}: head of stream {index} has a wrong check")
    entry = segment.entry(index)
    table, runs = read_words(segment, index, words, run)
    return {
        "index": index,
        **entry._asdict(),
        "words": words,
        "run": run,
        "events": int(runs[:, 1].sum()),
        "last": _last(segment, index, last),
        "digest": _digest(table),
    }, runs


def read_streams(segment: Segment) -> list[tuple[dict, np.ndarray]]:
    """Every stream of a segment as it is now: its seal and its runs (see :func:`decode`)."""
    heads = segment.streams["head"] & np.uint64(CLOSED - 1)
    found = [(int(i), int(heads[i])) for i in np.flatnonzero(heads)]
    return [_describe(segment, i, head, segment.word_of(i, layout.LAST_AT)) for i, head in found]


class Seal(dict):
    """Seal of one segment, a plain dict for the record.

    Attributes
    ----------
    decoded : list
        What it seals.
    states : list of str or None
        The state files that count, None for all that there are.
    """

    decoded: list[tuple[dict, np.ndarray]]
    states: list[str] | None = None


def seal(segment: Segment) -> Seal:
    """``{file, rank, epoch, segment, streams}`` of a segment that is closed."""
    return _seal(segment, read_streams(segment))


def seal_at(segment: Segment, mark: dict) -> Seal:
    """Seal of a segment that ends at a durable mark."""
    made = _seal(segment, streams_at(segment, mark))
    made.states = mark["states"]
    return made


def streams_at(segment: Segment, mark: dict) -> list[tuple[dict, np.ndarray]]:
    """:func:`read_streams` as of a durable mark."""
    return [
        _describe(segment, index, head, last)
        for of, index, head, last in mark["heads"]
        if of == segment.number and head
    ]


def durably_consumed(directory, epoch: int, rank: int) -> dict[tuple, np.ndarray]:
    """:func:`marks_of` what a rank has durably consumed in an epoch, as of its mark."""
    mark = read_mark(directory, epoch, rank)
    decoded: list = []
    for number in range(mark["segments"] if mark["heads"] else 0):
        path = Path(directory) / layout.segment_name(epoch, rank, number)
        decoded += streams_at(Segment(path, write=False), mark)
    return marks_of(decoded)


def consumed_so_far(directory, epoch: int, rank: int) -> dict[tuple, np.ndarray]:
    """:func:`marks_of` what a rank has consumed in an epoch that may be in force still."""
    decoded: list = []
    number, count = 0, 1
    while number < count:
        path = Path(directory) / layout.segment_name(epoch, rank, number)
        if not path.exists():
            break
        segment = Segment(path, write=False)
        if number == 0:
            count = int(segment.header["control"]) & ~CLOSED
        decoded += read_streams(segment)
        number += 1
    return marks_of(decoded)


def _seal(segment: Segment, decoded: list[tuple[dict, np.ndarray]]) -> Seal:
    made = Seal(
        file=segment.path.name,
        rank=segment.rank,
        epoch=segment.epoch,
        segment=segment.number,
        streams=[stream for stream, _ in decoded],
    )
    made.decoded = decoded
    return made


def decode(directory, sealed: dict | None = None, *, file: str | None = None):
    """Runs of a sealed segment, or with ``file`` of a live one.

    Returns
    -------
    list of (dict, ndarray)
        Per stream its description and an int64 array of shape (runs, 3): first number, length,
        1 if dropped.

    Raises
    ------
    LedgerDamaged
        The file does not have what was sealed.
    """
    if isinstance(sealed, Seal):
        return sealed.decoded
    if sealed is None:
        return read_streams(Segment(Path(directory) / str(file), write=False))
    return sealed_streams(Segment(Path(directory) / sealed["file"], write=False), sealed)


def sealed_streams(segment: Segment, sealed: dict) -> list[tuple[dict, np.ndarray]]:
    """Streams of a segment up to their seals; LedgerDamaged if it does not fit them."""
    return [(stream, _sealed_runs(segment, stream)) for stream in sealed["streams"]]


def _sealed_runs(segment: Segment, stream: dict) -> np.ndarray:
    table, runs = read_words(segment, stream["index"], stream["words"], stream["run"])
    if _digest(table) != stream["digest"]:
        raise LedgerDamaged(f"{segment.path}: stream {stream['index']} differs from its seal")
    return runs


def marks_of(decoded, kind: int = layout.CONSUMED) -> dict[tuple, np.ndarray]:
    """``{(stream, source, dest): (start, length) array}`` of all events of a kind."""
    found: dict[tuple, list] = {}
    for stream, runs in decoded:
        if stream["kind"] == kind:
            key = stream["stream"], stream["source"], stream["dest"]
            found.setdefault(key, []).append(runs[:, :2])
    return {key: np.concatenate(runs) for key, runs in found.items()}
