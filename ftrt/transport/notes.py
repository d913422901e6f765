"""The short messages beside the data on a plane of messages: eight words, the last one a check."""

from __future__ import annotations

import numpy as np

from ftrt.transport.checksum import checksum

NOTE_WORDS = 8
_SEED = 0x4E4F_5445
_BODY_BYTES = 8 * (NOTE_WORDS - 1)


def blank() -> np.ndarray:
    """Room for one note; no note passes the check until one has arrived."""
    return np.zeros(NOTE_WORDS, np.uint64)


def write(note: np.ndarray, *values: int) -> None:
    """Fill a note with up to seven values."""
    note[:] = 0
    note[: len(values)] = values
    note[-1] = _check(note)


def read(note: np.ndarray) -> list[int] | None:
    """The seven values, None if the note is damaged or none has arrived."""
    if not note[-1] or int(note[-1]) != _check(note):
        return None
    return note[:-1].tolist()


def _check(note: np.ndarray) -> int:
    return int(checksum(note.view(np.uint8)[:_BODY_BYTES], _SEED)) | 1
