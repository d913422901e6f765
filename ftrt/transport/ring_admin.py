"""What the agent does to a ring whose ends are dead or fenced off. It needs neither of them."""

from __future__ import annotations

import os

from ftrt.errors import UsageError
from ftrt.transport import layout
from ftrt.transport.layout import FRAME_BITS, FRAME_MASK, GENERATION_MASK, PAGE
from ftrt.transport.slots import MORE, PREFIX_WORDS, Verdict, verify

_PAGE_WORDS = PAGE // 8


def _slot(ring: layout.RingMap, frame: int) -> int:
    return _PAGE_WORDS + ((frame - 1) % ring[layout.W_SLOTS]) * ring.stride_words


def _complete(ring: layout.RingMap, frame: int) -> bool:
    return verify(
        ring.words,
        ring.octets,
        _slot(ring, frame),
        frame,
        ring[layout.W_STREAM],
        ring[layout.W_EPOCH],
        0,
        ring[layout.W_SLOT_BYTES],
    ) in (Verdict.OK, Verdict.DUPLICATE)


def _next_seq(ring: layout.RingMap, frame: int) -> int:
    """The seq behind a complete frame; the first of all if that frame is not there any more.

    A frame that was given back may be overwritten, by one that lies behind a damaged one. All up
    to it was consumed then, and the marks say so.
    """
    if frame == 0 or not _complete(ring, frame):
        return ring[layout.W_FIRST_SEQ]
    header = ring.words[_slot(ring, frame) :][:8].tolist()
    return header[2] + (header[5] >> 32)


def _scan(ring: layout.RingMap) -> int:
    """Last frame that ends a complete message; fragments without their end do not count."""
    last = frame = ring[layout.W_RELEASED] & FRAME_MASK
    for _ in range(ring[layout.W_SLOTS]):
        frame += 1
        if not _complete(ring, frame):
            break
        if not int(ring.words[_slot(ring, frame) + 5]) & MORE:
            last = frame
    return last


def _mapped(ring: str | os.PathLike | layout.RingMap) -> layout.RingMap:
    return ring if isinstance(ring, layout.RingMap) else layout.RingMap.open(ring)


def seal_sender(ring: str | os.PathLike | layout.RingMap) -> dict[str, int]:
    """Fix, once and for all, the last frame of the sender that counts.

    A frame that a sender writes later, dead or alive, is never read. Call it when no receiver can
    commit what it reads from here any more, and take ``next_seq`` as a lower bound: messages that
    a receiver has committed already may lie behind it if their slots were damaged since.

    Returns
    -------
    dict
        ``last_frame``, ``next_seq`` (the first message that the ring does not hold) and
        ``released`` (frames given back).
    """
    ring = _mapped(ring)
    if not ring[layout.W_SEALED]:
        ring.swap(layout.W_SEALED, 0, _scan(ring) + 1)
    last = ring[layout.W_SEALED] - 1
    released = ring[layout.W_RELEASED] & FRAME_MASK
    return {"last_frame": last, "next_seq": _next_seq(ring, last), "released": released}


def retire_receiver(ring: str | os.PathLike | layout.RingMap) -> tuple[int, int]:
    """Bump the receiver generation: the old receiver releases nothing any more.

    Returns
    -------
    tuple of int
        Frames released, and the new generation.
    """
    ring = _mapped(ring)
    while True:
        word = ring[layout.W_RELEASED]
        released = word & FRAME_MASK
        generation = ((word >> FRAME_BITS) + 1) & GENERATION_MASK
        if ring.swap(layout.W_RELEASED, word, generation << FRAME_BITS | released) == word:
            return released, generation


def is_read(ring: layout.RingMap) -> bool:
    """Whether a ring is sealed and every frame that counts was given back."""
    sealed = ring[layout.W_SEALED]
    return sealed > 0 and ring[layout.W_RELEASED] & FRAME_MASK >= sealed - 1


def flip_bits(path: str | os.PathLike, frame: int) -> None:
    """Damage a published frame, as a broken memory or link would: for the fault injector."""
    ring = layout.RingMap.open(path)
    at = _slot(ring, frame)
    if ring[at] != frame:
        raise UsageError(f"{path}: frame {frame} is not in the ring")
    size = int(ring.words[at + 3])
    if size:
        ring.octets[(at + PREFIX_WORDS) * 8 + size // 2] ^= 0x5A
    else:
        ring.words[at + 2] ^= 0x5A
