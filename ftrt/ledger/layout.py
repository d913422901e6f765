"""Where everything lies in a ledger segment: dtypes, word layout, check bits.

From the most significant bit down, a head word is ``closed(1) | check(7) | words(32) | run(24)``,
a run word ``dropped(1) | check(7) | form(2)`` and 54 bits: a run ``length(22) | seq - base(32)``,
a pair or a triple two or three signed differences, each to the event before, the first one lowest.
"""

from __future__ import annotations

import zlib

import numpy as np
from numba import njit

from .version import VERSION as VERSION

MAGIC = b"FTRTLDGR"
STATE_MAGIC = b"FTRTSTAT"
USERBLOCK = 512
STREAMS = 256
PAGE_WORDS = 512
CONSUMED, SENT = 1, 2
KINDS = (CONSUMED, SENT)
CLOSED = 1 << 63
MAX_RUN = (1 << 22) - 1
RUN, PAIR, TRIPLE = 0, 1, 2
PAIR_BITS, TRIPLE_BITS = 27, 18
SEQ_SPAN = 1 << 32
SEQ_LIMIT = 1 << 54
ROOT_STEM = "e{epoch:06d}-r{rank:04d}"
SEGMENT_NAME = ROOT_STEM + "-s{segment:03d}.h5"

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u8"),
        ("job", "u1", 16),
        ("attempt", "<i8"),
        ("epoch", "<i8"),
        ("rank", "<i8"),
        ("segment", "<i8"),
        ("incarnation", "<i8"),
        ("boot", "u1", 16),
        ("check", "<u8"),
        ("control", "<u8"),
        ("owned", "<u8"),
    ]
)
STREAM = np.dtype(
    [
        ("state", "<u8"),
        ("kind", "<u8"),
        ("name", "S64"),
        ("source", "<i8"),
        ("dest", "<i8"),
        ("base", "<u8"),
        ("head", "<u8"),
        ("last", "<u8"),
        ("check", "<u8"),
    ]
)
USER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u8"),
        ("length", "<u8"),
        ("offsets", "<u8", 4),
        ("counts", "<u8", 4),
        ("check", "<u8"),
    ]
)


def byte_of(dtype: np.dtype, name: str) -> int:
    """Where a field begins in a record."""
    fields = dtype.fields
    return fields[name][1] if fields else 0


STREAM_WORDS = STREAM.itemsize // 8
STREAMS_OF_A_PAGE = 4096 // STREAM.itemsize  # a page of memory
HEAD_AT, BASE_AT, LAST_AT = (byte_of(STREAM, n) // 8 for n in ("head", "base", "last"))
CONTROL_AT = byte_of(HEADER, "control") // 8

HEAD_RUN = (1 << 24) - 1
BODY = (1 << 56) - 1
CHECK_BITS = 127 << 56


@njit("uint64(uint64)", cache=True)
def check7(body):
    """7 check bits of a word whose own check bits are 0: any burst of up to 7 bits changes them.

    The exclusive-or of all groups of seven bits, and a constant so that a zero word is invalid.
    """
    body ^= body >> np.uint64(7)
    body ^= body >> np.uint64(14)
    body ^= body >> np.uint64(28)
    body ^= body >> np.uint64(56)
    return (body ^ np.uint64(0x55)) & np.uint64(127)


@njit("uint64(uint64, uint64, uint64)", cache=True)
def run_word(offset, length, dropped):
    """Word of a run that starts at ``base + offset``."""
    body = (dropped << np.uint64(63)) | (length << np.uint64(32)) | offset
    return body | (check7(body) << np.uint64(56))


@njit("uint64(uint64)", cache=True)
def form_of(word):
    """RUN, PAIR or TRIPLE."""
    return (word >> np.uint64(54)) & np.uint64(3)


@njit("boolean(int64, int64)", cache=True)
def _fits(difference, bits):
    return -(np.int64(1) << (bits - 1)) <= difference < np.int64(1) << (bits - 1)


@njit("uint64(int64, int64, int64)", cache=True)
def _field(difference, bits, at):
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    return (np.uint64(difference) & mask) << np.uint64(bits * at)


@njit("int64(uint64, int64, int64)", cache=True)
def difference_of(word, bits, at):
    """The ``at``-th difference of a pair or a triple whose differences have ``bits`` bits."""
    left = np.int64(64) - bits
    return np.int64(word << np.uint64(left - bits * at)) >> left


@njit("uint64(int64, int64, uint64)", cache=True)
def pair_word(first, second, dropped):
    """Word of two events by their differences to the event before each; 0 if one is too large."""
    if not (_fits(first, PAIR_BITS) and _fits(second, PAIR_BITS)):
        return np.uint64(0)
    body = (dropped << np.uint64(63)) | np.uint64(PAIR << 54)
    body |= _field(first, PAIR_BITS, 0) | _field(second, PAIR_BITS, 1)
    return body | (check7(body) << np.uint64(56))


@njit("uint64(int64, int64, int64, uint64)", cache=True)
def triple_word(first, second, third, dropped):
    """:func:`pair_word` for three events."""
    if not (_fits(first, TRIPLE_BITS) and _fits(second, TRIPLE_BITS)):
        return np.uint64(0)
    if not _fits(third, TRIPLE_BITS):
        return np.uint64(0)
    body = (dropped << np.uint64(63)) | np.uint64(TRIPLE << 54)
    body |= _field(first, TRIPLE_BITS, 0) | _field(second, TRIPLE_BITS, 1)
    body |= _field(third, TRIPLE_BITS, 2)
    return body | (check7(body) << np.uint64(56))


@njit("uint64(uint64, uint64)", cache=True)
def head_word(words, run):
    """Head of a stream with ``words`` run words of which the last has ``run`` events."""
    body = (words << np.uint64(24)) | run
    return body | (check7(body) << np.uint64(56))


def split_head(head: int) -> tuple[int, int, bool, bool]:
    """``(words, run, closed, intact)`` of a head word; one that was never set has no words."""
    head, closed = head & ~CLOSED, bool(head & CLOSED)
    if head == 0:
        return 0, 0, closed, True
    words, run = head >> 24 & 0xFFFFFFFF, head & HEAD_RUN
    return words, run, closed, int(head_word(words, run)) == head


def guard(value: int) -> int:
    """``value`` (below 2**55) and 8 check bits in one word, so that one store publishes both."""
    return value << 8 | zlib.crc32(value.to_bytes(8, "little")) & 0xFF


def unguard(word: int) -> int | None:
    """Value of a guarded word, or None if its check bits are wrong."""
    return word >> 8 if guard(word >> 8) == word else None


def fields_check(record: np.ndarray, names: tuple[str, ...]) -> int:
    """CRC-32 of the named fields of one structured record."""
    total = 0
    for name in names:
        total = zlib.crc32(record[name].tobytes(), total)
    return total


HEADER_FIELDS = (
    "magic",
    "version",
    "job",
    "attempt",
    "epoch",
    "rank",
    "segment",
    "incarnation",
    "boot",
)
STREAM_CHECKED = byte_of(STREAM, "base")  # state, kind, name, source, dest
USER_FIELDS = ("magic", "version", "length", "offsets", "counts")


def segment_name(epoch: int, rank: int, segment: int) -> str:
    """File name of a claimed segment."""
    return SEGMENT_NAME.format(epoch=epoch, rank=rank, segment=segment)
