"""What a successor does to a damaged frame in the ring of a dead sender: write it again.

A ring is sealed behind the last complete frame. What is damaged by then is void and sent again in
the next ring. What is damaged later lies in front of frames that count, and must be healed there.
"""

from __future__ import annotations

import os

import numpy as np

from ftrt.errors import RecoveryImpossible
from ftrt.transport import layout, meta
from ftrt.transport.layout import PAGE
from ftrt.transport.ring_admin import is_read
from ftrt.transport.slots import (
    BATCH,
    Verdict,
    payload_sum,
    publish,
    seed_of,
    verify_fields,
)


def _at(ring: layout.RingMap, frame: int) -> int:
    return PAGE // 8 + (frame - 1) % ring[layout.W_SLOTS] * ring.stride_words


def _header(ring: layout.RingMap, frame: int) -> list[int] | None:
    """The header words of a frame, None if they are damaged themselves.

    The publish word is not asked: which frame lies there is known, and the check covers it.
    """
    at = _at(ring, frame)
    stream, capacity = ring[layout.W_STREAM], ring[layout.W_SLOT_BYTES]
    verdict = verify_fields(ring.words, at, frame, stream, 0, 0, capacity)
    return ring.words[at : at + 8].tolist() if verdict == Verdict.OK else None


def _part(array: np.ndarray, fragment: int, slot_bytes: int) -> np.ndarray:
    """The bytes of a message that go into one slot, read-only."""
    start = fragment * slot_bytes
    piece = meta.octets(array)[start : start + slot_bytes]
    piece.flags.writeable = False
    return piece


def differs(ring: layout.RingMap, frame: int, array: np.ndarray) -> bool:
    """Whether ``array`` cannot be what was sent in ``frame``.

    Parameters
    ----------
    ring : RingMap
    frame : int
        A frame in the ring. If its header is damaged too, nothing can be said: False.
    array : ndarray
        The whole message, or the records of a batch.
    """
    header = _header(ring, frame)
    if header is None:
        return False
    shape = array.shape[1:] if header[5] & BATCH else array.shape
    words, size = meta.encode(array.dtype, shape)
    fragment = header[6] >> 32 & 0xFFFF
    piece = _part(array, fragment, ring[layout.W_SLOT_BYTES])
    seed = seed_of(header[2], fragment)
    return (
        size != header[6] >> 48
        or len(piece) != header[3]
        or payload_sum(words, size, piece, seed) != header[4]
    )


class SealedRing:
    """The ring of a sender that is gone, as its successor sees it."""

    def __init__(self, path: str | os.PathLike) -> None:
        self._map = layout.RingMap.open(path)
        self.path = self._map.path

    @property
    def is_read_on(self) -> bool:
        """Whether frames that count are not given back yet."""
        return bool(self._map[layout.W_SEALED]) and not is_read(self._map)

    def nacked(self) -> int | None:
        """Number of the frame that the receiver could not read, if it counts."""
        frame = self._map[layout.W_NACK]
        return frame if 0 < frame < self._map[layout.W_SEALED] else None

    def first_seq_of(self, frame: int) -> int:
        """First seq in a frame."""
        return self._of(frame)[2]

    def count_of(self, frame: int) -> int:
        """Number of messages in a frame."""
        return self._of(frame)[5] >> 32

    def is_batch(self, frame: int) -> bool:
        """Whether a frame carries records rather than one message."""
        return bool(self._of(frame)[5] & BATCH)

    def differs(self, frame: int, array) -> bool:
        """See :func:`differs`."""
        return differs(self._map, frame, meta.as_array(array))

    def rewrite(self, frame: int, array, epoch: int) -> None:
        """Heal a frame: ``array`` is a pristine copy of its whole message, or of its records."""
        ring, array, header = self._map, meta.as_array(array), self._of(frame)
        shape = array.shape[1:] if header[5] & BATCH else array.shape
        words, size = meta.encode(array.dtype, shape)
        piece = _part(array, header[6] >> 32 & 0xFFFF, ring[layout.W_SLOT_BYTES])
        ident = epoch << 32 | ring[layout.W_STREAM]
        part = header[6] & (1 << 48) - 1
        publish(
            *(ring.words, _at(ring, frame), frame, ident, header[2], piece),
            *(words, size, header[5], part, False),
        )
        ring.swap(layout.W_NACK, frame, 0)

    def _of(self, frame: int) -> list[int]:
        header = _header(self._map, frame)
        if header is None:
            raise RecoveryImpossible(
                f"{self.path}: the header of frame {frame} is damaged and its sender is dead, so "
                "nobody knows which message it was; nothing that was committed is lost, "
                "`ftrt run --resume` sends again from the ledger what is missing"
            )
        return header
