"""The commit path: one compiled call that ends in one compare-and-swap of a head word."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..atomics import compare_exchange, load_acquire, store_release
from .layout import MAX_RUN, PAGE_WORDS, SEQ_SPAN, head_word, run_word

DONE, SHUT, RANGE, FULL = 0, -1, -2, -3

# What the writer knows of its stream in one segment, in one int64 array.
HEAD, WORDS, BASE, NEXT, DROPPED, EVENTS, CAPACITY, PAGES = range(8)

_CURSOR = "uint64[::1], int64[::1], "


@njit(f"intp({_CURSOR} int64)", cache=True)
def _at(whole, cursor, k):
    """Index of the stream's ``k``-th run word."""
    return cursor[WORDS] + cursor[PAGES + k // PAGE_WORDS] * PAGE_WORDS + k % PAGE_WORDS


@njit(f"void({_CURSOR} int64, int64)", cache=True)
def _end_run(whole, cursor, words, run):
    """Give the last run word its length before another word follows it."""
    if words > 0:
        at = _at(whole, cursor, words - 1)
        word = whole[at]
        final = run_word(word & np.uint64(0xFFFFFFFF), np.uint64(run), word >> np.uint64(63))
        store_release(whole, at, final)


@njit(f"int64({_CURSOR} int64, int64, int64)", cache=True)
def append(whole, cursor, seq, count, dropped):
    """Commit ``count`` events from ``seq`` on; DONE, or why not (then nothing is visible)."""
    head = load_acquire(whole, cursor[HEAD])
    if head >> np.uint64(63):
        return SHUT
    words = np.int64((head >> np.uint64(24)) & np.uint64(0xFFFFFFFF))
    run = np.int64(head & np.uint64(MAX_RUN))
    if seq < 0 or count < 1 or count > MAX_RUN:
        return RANGE
    if seq == cursor[NEXT] and dropped == cursor[DROPPED] and run + count <= MAX_RUN:
        run += count
    else:
        offset = seq - cursor[BASE]
        if cursor[BASE] < 0 or offset < 0 or offset >= SEQ_SPAN:
            return RANGE
        if words >= cursor[CAPACITY]:
            return FULL
        _end_run(whole, cursor, words, run)
        word = run_word(np.uint64(offset), np.uint64(count), np.uint64(dropped))
        store_release(whole, _at(whole, cursor, words), word)
        words, run = words + 1, count
    desired = head_word(np.uint64(words), np.uint64(run))
    if compare_exchange(whole, cursor[HEAD], head, desired) != head:
        return SHUT
    cursor[NEXT], cursor[DROPPED] = seq + count, dropped
    cursor[EVENTS] += count
    return DONE


@njit(f"int64({_CURSOR} uint64[::1])", cache=True, nogil=True)
def append_batch(whole, cursor, seqs):
    """Commit all of ``seqs`` in one swap; DONE, SHUT, RANGE, or how many run words it needs.

    Words beyond the head are invisible, so a batch that does not fit has left nothing.
    """
    head = load_acquire(whole, cursor[HEAD])
    if head >> np.uint64(63):
        return SHUT
    words = np.int64((head >> np.uint64(24)) & np.uint64(0xFFFFFFFF))
    run = np.int64(head & np.uint64(MAX_RUN))
    base, room = cursor[BASE], cursor[CAPACITY]
    following = cursor[NEXT] if cursor[DROPPED] == 0 else np.int64(-1)
    if base < 0:
        return RANGE
    for i in range(seqs.size):
        seq = np.int64(seqs[i])
        if seq == following and seq >= 0 and run < MAX_RUN:
            run += 1
        else:
            if seq < base or seq - base >= SEQ_SPAN:
                return RANGE
            if words < room:
                _end_run(whole, cursor, words, run)
                word = run_word(np.uint64(seq - base), np.uint64(1), np.uint64(0))
                store_release(whole, _at(whole, cursor, words), word)
            words, run = words + 1, np.int64(1)
        following = seq + 1
    if words > room:
        return words
    if seqs.size == 0:
        return DONE
    desired = head_word(np.uint64(words), np.uint64(run))
    if compare_exchange(whole, cursor[HEAD], head, desired) != head:
        return SHUT
    cursor[NEXT], cursor[DROPPED] = following, 0
    cursor[EVENTS] += seqs.size
    return DONE


def new_cursor(segment, stream: int) -> np.ndarray:
    """Cursor of a stream that has no page yet."""
    cursor = np.zeros(PAGES + segment.pages.size, np.int64)
    cursor[HEAD], cursor[WORDS] = segment.head_index(stream), segment.at_words
    cursor[BASE] = cursor[NEXT] = -1
    return cursor
