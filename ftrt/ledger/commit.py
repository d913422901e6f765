"""The commit path: one compiled call that ends in one compare-and-swap of a head word.

Readers take from the last word only as many events as the head says. So a word may get a further
event before the swap: whoever comes before it, or instead of it, finds what was there.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..atomics import compare_exchange, load_acquire, store_release
from .layout import (
    HEAD_RUN,
    MAX_RUN,
    PAGE_WORDS,
    RUN,
    SEQ_SPAN,
    form_of,
    head_word,
    pair_word,
    run_word,
    triple_word,
)

DONE, SHUT, RANGE, FULL = 0, -1, -2, -3

# What the writer knows of its stream in one segment, in one int64 array. NEXT would go on with the
# run that the last word is, -1 if it is none. BEFORE is the event before the last word, FIRST the
# first one in it (of no use once it is a run of several), LAST the last of all.
HEAD, WORDS, BASE, NEXT, DROPPED, EVENTS, CAPACITY, BEFORE, FIRST, LAST, PAGES = range(11)

#: The most events in a word that is not a run.
MOST = 3

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
        if form_of(word) == RUN:
            final = run_word(word & np.uint64(0xFFFFFFFF), np.uint64(run), word >> np.uint64(63))
            store_release(whole, at, final)


@njit(f"void({_CURSOR} int64, uint64)", cache=True)
def _extend_word(whole, cursor, words, word):
    """Put another event into the last word, where the head does not count it yet."""
    store_release(whole, _at(whole, cursor, words - 1), word)


@njit("uint64(int64, int64, int64, int64, int64, uint64)", cache=True)
def _packed(held, before, first, last, seq, dropped):
    """The last word, which holds ``held`` events that are no run, and ``seq``; 0 if that is none.

    ``before`` is the event before that word, ``first`` its first and ``last`` its last event.
    """
    if held == 1:
        return pair_word(first - before, seq - first, dropped)
    if held == 2:
        return triple_word(first - before, last - first, seq - last, dropped)
    return np.uint64(0)


@njit("int64(int64, int64)", cache=True)
def _held(run, following):
    """Events of the last word if one that does not follow may join them, else 0."""
    return run if (run == 1) == (following >= 0) and run < MOST else 0


@njit(f"int64({_CURSOR} int64, int64, int64)", cache=True)
def append(whole, cursor, seq, count, dropped):
    """Commit ``count`` events from ``seq`` on; DONE, or why not (then nothing is visible)."""
    head = load_acquire(whole, cursor[HEAD])
    if head >> np.uint64(63):
        return SHUT
    words = np.int64((head >> np.uint64(24)) & np.uint64(0xFFFFFFFF))
    run = np.int64(head & np.uint64(HEAD_RUN))
    if seq < 0 or count < 1 or count > MAX_RUN:
        return RANGE
    before, first, following = cursor[BEFORE], cursor[FIRST], seq + count
    if seq == cursor[NEXT] and dropped == cursor[DROPPED] and run + count <= MAX_RUN:
        run += count
    else:
        offset = seq - cursor[BASE]
        if cursor[BASE] < 0 or offset < 0 or offset >= SEQ_SPAN:
            return RANGE
        word = np.uint64(0)
        if count == 1 and dropped == cursor[DROPPED]:
            held = _held(run, cursor[NEXT])
            word = _packed(held, before, first, cursor[LAST], seq, np.uint64(dropped))
        if word != np.uint64(0):
            _extend_word(whole, cursor, words, word)
            run, following = run + 1, np.int64(-1)
        else:
            if words >= cursor[CAPACITY]:
                return FULL
            _end_run(whole, cursor, words, run)
            word = run_word(np.uint64(offset), np.uint64(count), np.uint64(dropped))
            store_release(whole, _at(whole, cursor, words), word)
            before = cursor[LAST] if words > 0 else cursor[BASE]
            words, run, first = words + 1, count, seq
    desired = head_word(np.uint64(words), np.uint64(run))
    if compare_exchange(whole, cursor[HEAD], head, desired) != head:
        return SHUT
    cursor[NEXT], cursor[DROPPED] = following, dropped
    cursor[BEFORE], cursor[FIRST], cursor[LAST] = before, first, seq + count - 1
    cursor[EVENTS] += count
    return DONE


@njit(f"int64({_CURSOR} uint64[::1])", cache=True, nogil=True)
def append_batch(whole, cursor, seqs):
    """Commit all of ``seqs`` in one swap; DONE, SHUT, RANGE, or how many run words it needs.

    Words beyond the head are invisible, and the last word gets back what it held, so a batch that
    does not fit has left nothing.
    """
    head = load_acquire(whole, cursor[HEAD])
    if head >> np.uint64(63):
        return SHUT
    words = np.int64((head >> np.uint64(24)) & np.uint64(0xFFFFFFFF))
    run = np.int64(head & np.uint64(HEAD_RUN))
    base, room, held = cursor[BASE], cursor[CAPACITY], np.int64(0)
    if base < 0:
        return RANGE
    following = np.int64(-1)
    if cursor[DROPPED] == 0:
        following, held = cursor[NEXT], _held(run, cursor[NEXT])
    before, first, last = cursor[BEFORE], cursor[FIRST], cursor[LAST]
    old, old_words = np.uint64(0), words
    if words > 0:
        old = whole[_at(whole, cursor, words - 1)]
    else:
        last = base
    fits = True
    for i in range(seqs.size):
        seq = np.int64(seqs[i])
        if seq == following and seq >= 0 and run < MAX_RUN:
            run, held, following = run + 1, np.int64(0), seq + 1
        else:
            if seq < base or seq - base >= SEQ_SPAN:
                fits = False
                break
            word = _packed(held, before, first, last, seq, np.uint64(0))
            if word != np.uint64(0):
                if words <= room:
                    _extend_word(whole, cursor, words, word)
                run, following = run + 1, np.int64(-1)
                held = run if run < MOST else np.int64(0)
            else:
                if words < room:
                    _end_run(whole, cursor, words, run)
                    word = run_word(np.uint64(seq - base), np.uint64(1), np.uint64(0))
                    store_release(whole, _at(whole, cursor, words), word)
                words, run, following = words + 1, np.int64(1), seq + 1
                before, first, held = last, seq, np.int64(MOST > 1)
        last = seq
    if not fits or words > room:
        if old_words > 0:
            _extend_word(whole, cursor, old_words, old)
        return words if fits else RANGE
    if seqs.size == 0:
        return DONE
    desired = head_word(np.uint64(words), np.uint64(run))
    if compare_exchange(whole, cursor[HEAD], head, desired) != head:
        return SHUT
    cursor[NEXT], cursor[DROPPED] = following, 0
    cursor[BEFORE], cursor[FIRST], cursor[LAST] = before, first, last
    cursor[EVENTS] += seqs.size
    return DONE


def new_cursor(segment, stream: int) -> np.ndarray:
    """Cursor of a stream that has no page yet."""
    cursor = np.zeros(PAGES + segment.pages.size, np.int64)
    cursor[HEAD], cursor[WORDS] = segment.head_index(stream), segment.at_words
    cursor[BASE] = cursor[NEXT] = -1
    return cursor
