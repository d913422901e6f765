"""The slot as it travels between GPUs, and what the host is told of it.

A slot is the header of :mod:`ftrt.transport.slots` (eight words, the same fields, the same check)
and the payload behind it, padded with zeros to whole words. Dtype and shape do not travel with the
data: they stand in the channel's control page (``control``), so word 6 has no meta length.

For each operation the checking kernel writes one row of eight words into host memory: the header's
words 1 to 7, then, last, word 0: ``operation << 3 | verdict``. Whoever waits for an operation looks
for its number, so that no row of an earlier one is taken for it.
"""

from __future__ import annotations

from numba import njit, types

from ftrt.transport.checksum import checksum
from ftrt.transport.direct import octets_at, words_at
from ftrt.transport.slots import Verdict, header_check, seed_of

HEADER_BYTES = 64
ROW_WORDS = 8
ALIGN = 64
# A row of the table of messages to publish.
T_SOURCE, T_BYTES, T_FRAME, T_IDENT, T_SEQ, T_TALLY, T_PART = range(7)
TABLE_WORDS = 8
# What a group of operations has in common.
P_OPERATION, P_FRAME, P_NEXT_SEQ = range(3)
PARAM_WORDS = 8
# Of the scratch words of a slot: the sum so far and how many blocks have added to it.
SCRATCH_BYTES = 16

_U64, _I64 = types.uint64, types.int64
_OK, _EMPTY, _STALE, _TORN, _DUPLICATE = (int(v) for v in Verdict)


def stride_of(slot_bytes: int) -> int:
    """Bytes from one slot to the next."""
    return HEADER_BYTES + -(-slot_bytes // ALIGN) * ALIGN


def wire_bytes(payload_bytes: int) -> int:
    """Bytes of a slot that travel."""
    return HEADER_BYTES + -(-payload_bytes // 16) * 16


@njit(
    types.void(*(_I64,) * 9),
    cache=True,
    nogil=True,
)
def publish_slot(base, source, size, frame, ident, seq, tally, part, padded):
    """What the publishing kernel does to one slot, on the CPU."""
    words = words_at(base, 8)
    words[0] = _U64(0)
    octets, data = octets_at(base + 64, padded), octets_at(source, size)
    octets[:size] = data
    octets[size:] = 0
    words[1], words[2], words[3] = _U64(ident), _U64(seq), _U64(size)
    words[4] = checksum(data, seed_of(_U64(seq), (_U64(part) >> _U64(32)) & _U64(0xFFFF)))
    words[5], words[6] = _U64(tally), _U64(part)
    words[7] = header_check(words, 0, _U64(frame))
    words[0] = _U64(frame)


@njit(_I64(_I64, _I64, _I64, _I64, _I64, _I64), cache=True, nogil=True)
def verify_slot(base, frame, stream_id, min_epoch, next_seq, capacity):
    """What the checking kernel finds in one slot, on the CPU."""
    words = words_at(base, 8)
    if words[0] == 0:
        return _EMPTY
    if header_check(words, 0, words[0]) != words[7] or words[3] > _U64(capacity):
        return _TORN
    ident = words[1]
    if (
        words[0] != _U64(frame)
        or (ident & _U64(0xFFFFFFFF)) != _U64(stream_id)
        or (ident >> _U64(32)) < _U64(min_epoch)
    ):
        return _STALE
    seed = seed_of(words[2], (words[6] >> _U64(32)) & _U64(0xFFFF))
    if checksum(octets_at(base + 64, _I64(words[3])), seed) != words[4]:
        return _TORN
    if words[2] + (words[5] >> _U64(32)) <= _U64(next_seq):
        return _DUPLICATE
    return _OK
