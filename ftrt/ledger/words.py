"""From the words of a stream to its events."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..errors import LedgerDamaged
from . import layout
from .layout import (
    PAIR,
    PAIR_BITS,
    RUN,
    SEQ_SPAN,
    TRIPLE_BITS,
    check7,
    difference_of,
    form_of,
    pair_word,
    run_word,
)
from .segment import Segment

_SOUND = -1


@njit(
    "intp(uint64[::1], intp, intp, intp, uint64, uint64[::1])",
    cache=True,
    nogil=True,
)
def _gather(whole, at_pages, pages, at_words, owner, table):
    """Copy a stream's words until one is damaged; how many were copied."""
    done = 0
    for page in range(pages):
        if whole[at_pages + page] != owner:
            continue
        for i in range(min(layout.PAGE_WORDS, table.size - done)):
            word = whole[at_words + page * layout.PAGE_WORDS + i]
            body = word & ~(np.uint64(127) << np.uint64(56))
            if body | (check7(body) << np.uint64(56)) != word:
                return done
            table[done] = word
            done += 1
    return done


@njit("int64(uint64[::1], int64, boolean)", cache=True, nogil=True)
def _rows(table, run, packs):
    """Rows that :func:`_expand` makes of words of which the last has ``run`` events that count."""
    if not packs:
        return table.size
    rows = 0
    for i in range(table.size):
        form = np.int64(form_of(table[i]))
        if form != RUN:
            rows += run - 1 if i == table.size - 1 else form
        rows += 1
    return rows


@njit("intp(uint64[::1], int64, int64, boolean, int64[:,::1])", cache=True, nogil=True)
def _expand(table, run, base, packs, rows):
    """What the words say, from ``base`` on; the index of a word that says nothing, or _SOUND.

    The last word gets the form that it had when ``run`` was right: its owner may have gone on.
    """
    done, offset, final = 0, np.int64(0), table.size - 1
    for i in range(table.size):
        word = table[i]
        dropped, form = word >> np.uint64(63), form_of(word) if packs else np.uint64(RUN)
        if form == RUN:
            offset = np.int64(word & np.uint64(0xFFFFFFFF))
            length = np.int64((word >> np.uint64(32)) & np.uint64(layout.HEAD_RUN))
            if i == final:
                length = run
                table[i] = run_word(np.uint64(offset), np.uint64(run), dropped)
            rows[done, 0], rows[done, 1], rows[done, 2] = base + offset, length, np.int64(dropped)
            done += 1
            offset += length - 1
            continue
        bits = PAIR_BITS if form == PAIR else TRIPLE_BITS
        count = np.int64(form) + 1
        if i == final:
            if not 0 < run <= count:
                return i
            count = run
        for at in range(count):
            offset += difference_of(word, bits, at)
            if offset < 0 or offset >= SEQ_SPAN:
                return i
            rows[done, 0], rows[done, 1], rows[done, 2] = base + offset, 1, np.int64(dropped)
            done += 1
        if i == final and run == 1:
            table[i] = run_word(np.uint64(offset), np.uint64(1), dropped)
        elif i == final and run == 2:
            first, second = difference_of(word, bits, 0), difference_of(word, bits, 1)
            table[i] = pair_word(first, second, dropped)
    return _SOUND


def read_words(segment: Segment, index: int, words: int, run: int) -> tuple[np.ndarray, np.ndarray]:
    """First ``words`` words of a stream, of which ``run`` events of the last count.

    Returns
    -------
    (ndarray, ndarray)
        The words as they were when this was so, and an int64 array of runs, in order: first
        number, length, 1 if dropped.

    Raises
    ------
    LedgerDamaged
        A word is missing or cannot be what was written.
    """
    if words > segment.words.size:
        raise LedgerDamaged(f"{segment.path}: stream {index} claims {words} run words")
    table = np.empty(words, np.uint64)
    if not words:
        return table, np.empty((0, 3), np.int64)
    base = layout.unguard(segment.word_of(index, layout.BASE_AT))
    if base is None:
        raise LedgerDamaged(f"{segment.path}: stream {index} has a wrong 'base'")
    owner = layout.guard(index + 1)
    places = segment.at_pages, segment.pages.size, segment.at_words
    bad = _gather(segment.whole, *places, owner, table)
    rows = np.empty((0, 3), np.int64)
    if bad == words:
        rows = np.empty((_rows(table, run, segment.packs), 3), np.int64)
        bad = _expand(table, run, base, segment.packs, rows)
    if bad != _SOUND:
        raise LedgerDamaged(
            f"{segment.path}: run word {bad} of {words} of stream {index} is "
            "missing or has a wrong check"
        )
    return table, rows
