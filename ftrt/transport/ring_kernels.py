"""The hot path of a ring, one compiled call for each end of a message (see ``direct``).

Both ends keep what they know in an int64 array of their own, the *state*. A ``known`` array
describes the dtype and shape that were sent last; an array that differs from it is UNKNOWN, and
the caller describes it first. The GIL is kept: a call takes microseconds, a hand-over may take
milliseconds.
"""

from __future__ import annotations

from numba import njit, types

from ftrt.atomics import compare_exchange, load_acquire, store_release
from ftrt.transport import direct, entries, layout, route, slots
from ftrt.transport.direct import (
    ADDRESS,
    OBJECT,
    data_at,
    descr_at,
    dim_at,
    flags_at,
    ndim_at,
    octets_at,
    place,
    state_at,
    words_at,
)
from ftrt.transport.slots import BATCH, HEADER_BYTES, META_BYTES, MORE, Verdict

_PAGE_WORDS = layout.PAGE // 8
_META_WORD = HEADER_BYTES // 8
_META_WORDS = META_BYTES // 8
_I64, _U64 = types.int64, types.uint64

# State of the sender's end.
S_WORDS, S_LENGTH, S_SLOTS, S_STRIDE, S_SLOT_BYTES, S_SENT, S_RELEASED = range(7)
S_IDENT, S_RECORDS = range(7, 9)
S_ROUTE = 9  # the state of :mod:`ftrt.transport.route`
SEND_STATE = S_ROUTE + route.ROUTE
#: Looks at a word of the other end before a process may go to sleep: some tens of microseconds.
SPINS = 20_000
# What the sender remembers of each frame: seq, header word 5, header word 6.
RECORD_WORDS = 3
# A described dtype and shape.
K_DESCR, K_ITEM, K_META, K_META_SIZE, K_NDIM, K_DIMS = range(6)
MAX_DIMS = 64
KNOWN = K_DIMS + MAX_DIMS
# State of the receiver's end.
R_WORDS, R_LENGTH, R_SLOTS, R_STRIDE, R_CAPACITY, R_NEXT, R_NEXT_SEQ = range(7)
R_STREAM, R_MIN_EPOCH, R_GENERATION, R_META_SIZE, R_META = range(7, 12)
RECV_STATE = R_META + _META_WORDS

NO_CREDIT, SEALED, UNKNOWN = 0, -1, -2
# Beside the verdicts: nothing has come yet; what is there lies behind the seal.
NOTHING, HIDDEN = 8, 9
_OK, _EMPTY, _TORN, _DUPLICATE = (
    int(v) for v in (Verdict.OK, Verdict.EMPTY, Verdict.TORN, Verdict.DUPLICATE)
)


_STATE = types.Array(_I64, 1, "C")
_WORDS = types.Array(_U64, 1, "C")


@njit(_I64(_STATE, _WORDS), cache=True)
def _credit(state, words):
    """Free slots, or SEALED."""
    if load_acquire(words, layout.W_SEALED) != _U64(0):
        return SEALED
    free = state[S_SLOTS] - state[S_SENT] + state[S_RELEASED]
    if free < 1:
        word = load_acquire(words, layout.W_RELEASED)
        state[S_RELEASED] = _I64(word & _U64(layout.FRAME_MASK))
        free = state[S_SLOTS] - state[S_SENT] + state[S_RELEASED]
    return free


@njit(_I64(_STATE, _WORDS), cache=True)
def _credit_soon(state, words):
    """As :func:`_credit`, after a short wait for the first free slot."""
    free = _credit(state, words)
    if free == 0:
        for _ in range(SPINS):
            if (
                _I64(load_acquire(words, layout.W_RELEASED) & _U64(layout.FRAME_MASK))
                != state[S_RELEASED]
            ):
                break
        free = _credit(state, words)
    return free


@njit(types.void(_STATE, _WORDS, _STATE, _I64, _I64, _I64, _I64, _I64, _I64), cache=True)
def _put(state, words, known, data, size, seq, tally, part, frame):
    """Write ``size`` bytes at address ``data`` as a frame: the next one (0), or one again."""
    number = frame if frame else state[S_SENT] + 1
    slot = (number - 1) % state[S_SLOTS]
    meta_size = known[K_META_SIZE]
    past = False
    if not frame:
        past = route.past_caches(state[S_ROUTE:], size, state[S_SLOTS])
    slots.publish(
        words,
        _PAGE_WORDS + slot * state[S_STRIDE],
        _U64(number),
        _U64(state[S_IDENT]),
        _U64(seq),
        octets_at(data, size),
        words_at(known[K_META], _META_WORDS),
        meta_size,
        _U64(tally),
        _U64(part),
        past,
    )
    if not frame:
        record = state_at(state[S_RECORDS], state[S_SLOTS] * RECORD_WORDS)
        record[slot * RECORD_WORDS] = seq
        record[slot * RECORD_WORDS + 1] = tally
        record[slot * RECORD_WORDS + 2] = part
        state[S_SENT] = number
        store_release(words, layout.W_SENT, _U64(number))


@njit(_I64(_STATE, _I64, _I64), cache=True)
def _bytes_if_known(known, array, skip):
    """Bytes of an array (or of one row, with ``skip`` 1) if it is as described; else UNKNOWN."""
    if descr_at(array) != known[K_DESCR] or ndim_at(array) != known[K_NDIM] + skip:
        return UNKNOWN
    if not flags_at(array) & direct.C_CONTIGUOUS:
        return UNKNOWN
    size = known[K_ITEM]
    for axis in range(known[K_NDIM]):
        if dim_at(array, axis + skip) != known[K_DIMS + axis]:
            return UNKNOWN
        size *= known[K_DIMS + axis]
    return size


@njit(_I64(ADDRESS, ADDRESS, OBJECT, _I64), cache=True)
def _send_one(state, known, array, seq):
    """Send an array that fits into one slot; its frame, NO_CREDIT, SEALED or UNKNOWN."""
    mine, about = state_at(place(state), SEND_STATE), state_at(place(known), KNOWN)
    size = _bytes_if_known(about, place(array), 0)
    if size < 0 or size > mine[S_SLOT_BYTES]:
        return UNKNOWN
    words = words_at(mine[S_WORDS], mine[S_LENGTH])
    credit = _credit(mine, words)
    if credit < 1:
        return credit
    _put(mine, words, about, data_at(place(array)), size, seq, _I64(1) << 32, _I64(1), 0)
    return mine[S_SENT]


@njit(_I64(ADDRESS, ADDRESS, OBJECT, _I64, _I64), cache=True)
def _send_rows(state, known, array, start, first_seq):
    """Send the rows of an array from ``start`` on; how many were taken, SEALED or UNKNOWN."""
    mine, about = state_at(place(state), SEND_STATE), state_at(place(known), KNOWN)
    row_bytes = _bytes_if_known(about, place(array), 1)
    if row_bytes < 0 or row_bytes > mine[S_SLOT_BYTES]:
        return UNKNOWN
    rows = dim_at(place(array), 0)
    step = mine[S_SLOT_BYTES] // row_bytes if row_bytes else rows
    words = words_at(mine[S_WORDS], mine[S_LENGTH])
    at = start
    while at < rows:
        credit = _credit(mine, words)
        if credit < 1:
            return credit if at == start else at - start
        count = min(step, rows - at)
        data = data_at(place(array)) + at * row_bytes
        tally = count << 32 | BATCH
        _put(mine, words, about, data, count * row_bytes, first_seq + at - start, tally, _I64(1), 0)
        at += count
    return at - start


@njit(types.void(ADDRESS, ADDRESS, OBJECT, _I64, _I64, _I64, _I64, _I64, _I64), cache=True)
def _put_part(state, known, array, offset, size, seq, tally, part, frame):
    """Write bytes of a contiguous array as a frame, without a look at the credit."""
    mine, about = state_at(place(state), SEND_STATE), state_at(place(known), KNOWN)
    words = words_at(mine[S_WORDS], mine[S_LENGTH])
    _put(mine, words, about, data_at(place(array)) + offset, size, seq, tally, part, frame)


@njit(_I64(ADDRESS, ADDRESS, ADDRESS, OBJECT, _I64), cache=True)
def _send_recorded(entry, state, known, array, seq):
    """Record a number, then send it as an array that fits into one slot.

    Waits shortly for credit. Returns 0 if all is done, 1 if the receiver sleeps and must be woken
    besides. Else nothing was done: below 0 by the ring's fault, 2 if the ledger refused the number.
    """
    mine, about = state_at(place(state), SEND_STATE), state_at(place(known), KNOWN)
    size = _bytes_if_known(about, place(array), 0)
    if size < 0 or size > mine[S_SLOT_BYTES]:
        return UNKNOWN
    words = words_at(mine[S_WORDS], mine[S_LENGTH])
    if _credit_soon(mine, words) < 1:
        return SEALED
    notes = state_at(place(entry), entries.ENTRY)
    if entries.record(notes, seq, 1, 0) != entries.DONE:
        return 2
    _put(mine, words, about, data_at(place(array)), size, seq, _I64(1) << 32, _I64(1), 0)
    return entries.sleeps(notes)


@njit(_I64(_STATE, _WORDS, _I64, _I64), cache=True)
def _verdict(mine, words, at, frame):
    """Verdict on the frame whose slot begins at ``at``; HIDDEN if it is sound but void."""
    status = slots.verify(
        words,
        octets_at(mine[R_WORDS], mine[R_LENGTH] * 8),
        at,
        _U64(frame),
        _U64(mine[R_STREAM]),
        _U64(mine[R_MIN_EPOCH]),
        _U64(mine[R_NEXT_SEQ]),
        mine[R_CAPACITY],
    )
    if status != _OK and status != _DUPLICATE:
        return status
    sealed = _I64(load_acquire(words, layout.W_SEALED))
    return HIDDEN if sealed != 0 and frame >= sealed else status


@njit(_I64(ADDRESS, _I64), cache=True)
def _take_plain(state, seq):
    """Wait shortly for the next frame and take it if it is the one message ``seq``, in one slot.

    Returns its slot, -1 if it is anything else, is not sound or has not come: nothing was taken.
    """
    mine = state_at(place(state), RECV_STATE)
    words = words_at(mine[R_WORDS], mine[R_LENGTH])
    frame = mine[R_NEXT]
    slot = (frame - 1) % mine[R_SLOTS]
    at = _PAGE_WORDS + slot * mine[R_STRIDE]
    left = SPINS
    while _I64(load_acquire(words, at)) != frame:
        left -= 1
        if left == 0 or load_acquire(words, layout.W_CLOSED) != _U64(0):
            return -1
    part = _I64(words[at + 6])
    meta_size = (part >> 48) & 0xFFFF
    if _I64(words[at + 2]) != seq or _I64(words[at + 5]) != _I64(1) << 32 or not words[at + 3]:
        return -1
    if meta_size != mine[R_META_SIZE]:
        return -1
    for i in range((meta_size + 7) >> 3):
        if _I64(words[at + _META_WORD + i]) != mine[R_META + i]:
            return -1
    if _verdict(mine, words, at, frame) != _OK:
        return -1
    mine[R_NEXT] = frame + 1
    mine[R_NEXT_SEQ] = seq + 1
    return slot


@njit(types.boolean(_WORDS, _I64), cache=True)
def _was_sent(words, frame):
    """Whether ``frame`` was published: its sender counted it, or its sender's seal does.

    Both come after the publish word, and the loads here acquire: whoever looks at that word again
    after a true answer sees the frame's number there, or a damaged word.
    """
    if _I64(load_acquire(words, layout.W_SENT)) >= frame:
        return True
    return _I64(load_acquire(words, layout.W_SEALED)) > frame


_TAKEN = types.UniTuple(_I64, 7)


@njit(_TAKEN(ADDRESS), cache=True)
def _take(state):
    """Judge the next frame and step over it if it is sound.

    Returns ``(status, seq, size, header word 5, header word 6, epoch, meta changed)``; the meta
    bytes are then in the state.
    """
    mine = state_at(place(state), RECV_STATE)
    words = words_at(mine[R_WORDS], mine[R_LENGTH])
    frame = mine[R_NEXT]
    at = _PAGE_WORDS + ((frame - 1) % mine[R_SLOTS]) * mine[R_STRIDE]
    status = _verdict(mine, words, at, frame)
    if status != _OK and status != _DUPLICATE and status != HIDDEN:
        if not _was_sent(words, frame):
            return NOTHING, 0, 0, 0, 0, 0, 0
        status = _verdict(mine, words, at, frame)  # it was there before it was counted
        if status == _EMPTY:
            status = _TORN
    if status != _OK and status != _DUPLICATE:
        return status, 0, 0, 0, 0, 0, 0
    seq, tally, part = _I64(words[at + 2]), _I64(words[at + 5]), _I64(words[at + 6])
    meta_size = (part >> 48) & 0xFFFF
    changed = _I64(meta_size != mine[R_META_SIZE])
    for i in range((meta_size + 7) >> 3):
        word = _I64(words[at + _META_WORD + i])
        changed |= _I64(word != mine[R_META + i])
        mine[R_META + i] = word
    mine[R_META_SIZE] = meta_size
    mine[R_NEXT] = frame + 1
    if not tally & MORE:
        mine[R_NEXT_SEQ] = max(mine[R_NEXT_SEQ], seq + (tally >> 32))
    return status, seq, _I64(words[at + 3]), tally, part, _I64(words[at + 1] >> _U64(32)), changed


@njit(_I64(ADDRESS, _I64), cache=True)
def _release(state, number):
    """Give back all frames up to ``number``; 0 if another receiver took over."""
    mine = state_at(place(state), RECV_STATE)
    words = words_at(mine[R_WORDS], mine[R_LENGTH])
    generation = mine[R_GENERATION]
    while True:
        word = load_acquire(words, layout.W_RELEASED)
        if _I64(word >> _U64(layout.FRAME_BITS)) != generation:
            return 0
        if number <= _I64(word & _U64(layout.FRAME_MASK)):
            return 1
        desired = _U64(generation) << _U64(layout.FRAME_BITS) | _U64(number)
        if compare_exchange(words, layout.W_RELEASED, word, desired) == word:
            return 1


send_one, send_rows, put_part = (direct.direct(k) for k in (_send_one, _send_rows, _put_part))
take, release = direct.direct(_take), direct.direct(_release)
send_recorded, take_plain = direct.direct(_send_recorded), direct.direct(_take_plain)
