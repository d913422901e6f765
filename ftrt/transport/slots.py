"""The slot: a header of eight words, a meta area and a payload, and how it is written and judged.

==== =======================================================================================
word content
==== =======================================================================================
0    publish word: the frame number; cleared before the slot is written, stored last (release)
1    epoch (high 32 bits) and stream id
2    seq of the first message in the frame
3    payload length in bytes
4    checksum of the payload plus checksum of the meta bytes
5    count of messages (high 32 bits) and flags
6    meta length (high 16 bits), fragment index (16), number of fragments (32)
7    check over words 0 to 6
==== =======================================================================================
"""

from __future__ import annotations

import enum

from numba import njit, types

from ftrt.atomics import fence, load_acquire, store_release
from ftrt.transport.checksum import checksum, copy_checksum, key_of, term

HEADER_BYTES = 64
META_BYTES = 448
PREFIX_BYTES = HEADER_BYTES + META_BYTES
PREFIX_WORDS = PREFIX_BYTES // 8
_META_WORD = HEADER_BYTES // 8
_META_SEED = 0x4D45_5441

BATCH = 1
FRAGMENT = 2
MORE = 4


class Verdict(enum.IntEnum):
    """What a reader makes of a slot."""

    OK = 0
    EMPTY = 1
    STALE = 2
    TORN = 3
    DUPLICATE = 4


_OK, _EMPTY, _STALE, _TORN, _DUPLICATE = (int(v) for v in Verdict)
_WORDS = types.Array(types.uint64, 1, "C")
_U64 = types.uint64
_INT = types.intp


@njit(_U64(_WORDS, _INT, _U64), cache=True)
def header_check(words, at, frame):
    """Check over words 0 to 6; the publish word comes as an argument, it is stored last."""
    step = _U64(0x9E3779B97F4A7C15)
    key = key_of(_U64(0x48454144))
    total = term(frame, key)
    for i in range(1, 7):
        key += step
        total += term(words[at + i], key)
    return total


@njit(_U64(_WORDS, _INT, _INT, _U64), cache=True)
def _meta_sum(words, at, size, seed):
    step = _U64(0x9E3779B97F4A7C15)
    key = key_of(seed + _U64(_META_SEED))
    total = _U64(0)
    for i in range((size + 7) >> 3):
        total += term(words[at + _META_WORD + i], key)
        key += step
    return total


@njit(_U64(_U64, _U64), cache=True)
def seed_of(seq, fragment):
    """Checksum seed of a payload: a payload in the wrong place does not pass."""
    return seq + (fragment << _U64(48))


@njit(
    [
        types.void(
            *(_WORDS, _INT, _U64, _U64, _U64, types.Array(types.uint8, 1, "C", readonly=readonly)),
            *(_WORDS, _INT, _U64, _U64, types.boolean),
        )
        for readonly in (False, True)
    ],
    cache=True,
    nogil=True,
)
def publish(words, at, frame, ident, seq, payload, meta, meta_size, tally, part, past_caches):
    """Write one whole slot at word ``at`` and publish it as ``frame``.

    ``ident`` is header word 1, ``tally`` word 5, ``part`` the low 48 bits of word 6.
    """
    store_release(words, at, _U64(0))
    fence()  # no byte of the new content may be seen under the old frame number
    seed = seed_of(seq, (part >> _U64(32)) & _U64(0xFFFF))
    for i in range((meta_size + 7) >> 3):
        words[at + _META_WORD + i] = meta[i]
    total = copy_checksum(words, at + PREFIX_WORDS, payload, seed, past_caches)
    words[at + 1] = ident
    words[at + 2] = seq
    words[at + 3] = _U64(len(payload))
    words[at + 4] = total + _meta_sum(words, at, meta_size, seed)
    words[at + 5] = tally
    words[at + 6] = (_U64(meta_size) << _U64(48)) | part
    words[at + 7] = header_check(words, at, frame)
    store_release(words, at, frame)
    fence()  # whoever rings a bell next must not be seen before the frame


@njit(_U64(_WORDS, _INT, types.Array(types.uint8, 1, "C", readonly=True), _U64), cache=True)
def payload_sum(meta, meta_size, payload, seed):
    """Header word 4 of a slot with this meta and payload."""
    total = checksum(payload, seed)
    step = _U64(0x9E3779B97F4A7C15)
    key = key_of(seed + _U64(_META_SEED))
    for i in range((meta_size + 7) >> 3):
        total += term(meta[i], key)
        key += step
    return total


@njit(_INT(_WORDS, _INT, _U64, _U64, _U64, _U64, _INT), cache=True)
def verify_fields(words, at, frame, stream_id, min_epoch, next_seq, capacity):
    """Verdict on header words 1 to 7 as those of ``frame``, whatever the publish word says."""
    if header_check(words, at, frame) != words[at + 7]:
        return _TORN
    if words[at + 3] > _U64(capacity) or (words[at + 6] >> _U64(48)) > _U64(META_BYTES):
        return _TORN
    ident = words[at + 1]
    if (ident & _U64(0xFFFFFFFF)) != stream_id or (ident >> _U64(32)) < min_epoch:
        return _STALE
    if words[at + 2] + (words[at + 5] >> _U64(32)) <= next_seq:
        return _DUPLICATE
    return _OK


@njit(_INT(_WORDS, _INT, _U64, _U64, _U64, _U64, _INT), cache=True)
def verify_header(words, at, frame, stream_id, min_epoch, next_seq, capacity):
    """Verdict on the header alone; the payload is not looked at."""
    published = load_acquire(words, at)
    if published < frame:  # cleared, or still the frame of the lap before
        return _EMPTY
    if published != frame:
        return _TORN
    return verify_fields(words, at, frame, stream_id, min_epoch, next_seq, capacity)


@njit(
    _INT(_WORDS, types.Array(types.uint8, 1, "C"), _INT, _U64, _U64, _U64, _U64, _INT),
    cache=True,
    nogil=True,
)
def verify(words, octets, at, frame, stream_id, min_epoch, next_seq, capacity):
    """Verdict on the slot at word ``at``, header, meta and payload.

    ``octets`` is the same memory as ``words``, as bytes. ``next_seq`` is the first seq that the
    reader has not seen; ``capacity`` bounds the payload length.
    """
    verdict = verify_header(words, at, frame, stream_id, min_epoch, next_seq, capacity)
    if verdict != _OK and verdict != _DUPLICATE:
        return verdict
    part = words[at + 6]
    seed = seed_of(words[at + 2], (part >> _U64(32)) & _U64(0xFFFF))
    start = (at + PREFIX_WORDS) * 8
    total = checksum(octets[start : start + _INT(words[at + 3])], seed)
    total += _meta_sum(words, at, _INT(part >> _U64(48)), seed)
    if total != words[at + 4]:
        return _TORN
    if load_acquire(words, at) != frame:  # rewritten while it was read
        return _TORN
    return verdict
