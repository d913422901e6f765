"""How many blocks a group of slots is worth; apart, so that the plane needs no CUDA to be read."""

from __future__ import annotations

#: Bytes of a slot that one block of 256 threads takes: eight words a thread.
PART_BYTES = 256 * 8 * 8
_MOST_PARTS, _MOST_BLOCKS = 128, 1024


def grid_of(payload_bytes: int, slots: int) -> tuple[int, int]:
    """Blocks for each slot, and slots."""
    parts = max(1, min(_MOST_PARTS, -(-payload_bytes // PART_BYTES)))
    return max(1, min(parts, _MOST_BLOCKS // slots)), slots
