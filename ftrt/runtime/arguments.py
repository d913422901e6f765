"""What a program asks a stream for, checked before anything is made of it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from ftrt.errors import UsageError

#: Smallest window and slot, in slots and bytes.
LEAST_WINDOW, LEAST_SLOT_BYTES = 2, 64

_NAME_BYTES = 64


def stream_name(stream: Any) -> str:
    """``stream``, if it can name a stream."""
    if not isinstance(stream, str) or not 0 < len(stream.encode(errors="replace")) <= _NAME_BYTES:
        raise UsageError(f"stream name {_short(stream)}: use a text of 1 to {_NAME_BYTES} bytes")
    return stream


def destinations(stream: str, to: Any, rank: int, size: int) -> list[int]:
    """The receiving ranks that a sender of ``rank`` names, one or several."""
    several = isinstance(to, Iterable) and not (isinstance(to, str) or getattr(to, "ndim", 1) == 0)
    dests = [_rank(f"sender {stream!r}: to", d, rank, size) for d in (to if several else [to])]
    if not dests or len(set(dests)) < len(dests):
        raise UsageError(f"sender {stream!r}: to={dests}: name at least one rank, and each once")
    return dests


def source_rank(stream: str, source: Any, rank: int, size: int) -> int:
    """The rank that a receiver of ``rank`` names."""
    return _rank(f"receiver {stream!r}: source", source, rank, size)


def sizes(stream: str, window: Any, slot_bytes: Any) -> tuple[int, int]:
    """Number of slots and bytes of each."""
    whose = f"sender {stream!r}: "
    slots, size = _whole(f"{whose}window", window), _whole(f"{whose}slot_bytes", slot_bytes)
    if slots < LEAST_WINDOW or size < LEAST_SLOT_BYTES:
        raise UsageError(
            f"{whose}window={slots}, slot_bytes={size}: the smallest that works is "
            f"window={LEAST_WINDOW} and slot_bytes={LEAST_SLOT_BYTES}"
        )
    return slots, size


def again(stream: str, replay: Callable | None, spool: bool, volatile: bool) -> None:
    """Whether it is said, once, how a message can be had again."""
    if sum((replay is not None, bool(spool), bool(volatile))) != 1:
        raise UsageError(
            f"sender {stream!r}: say how a message can be had again: exactly one of "
            "replay=function, spool=True, or volatile=True (lost when this rank dies)"
        )
    if replay is not None and not callable(replay):
        raise UsageError(
            f"sender {stream!r}: replay={_short(replay)}: a function of the message's number "
            "that makes the message again"
        )


def _rank(what: str, value: Any, own: int, size: int) -> int:
    rank = _whole(what, value)
    if not 0 <= rank < size or rank == own:
        raise UsageError(f"{what}={rank} is not another rank of 0..{size - 1} (this is rank {own})")
    return rank


def _whole(what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{what}={_short(value)}: a whole number is wanted") from None


def _short(value: Any, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
