"""What a kernel needs to commit a number to the ledger and to see whether the other end sleeps.

An *entry* is a small int64 array with the addresses of a stream's log, of the board's counter and
of the word that says whether the process at the other end sleeps.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from ftrt.atomics import fetch_add, load_acquire
from ftrt.ledger import commit
from ftrt.transport.direct import state_at, words_at

E_WHOLE, E_CURSOR, E_COUNTER, E_SLEEPING = range(4)
ENTRY = 4
DONE = commit.DONE
_I64 = types.int64
_ANY_LENGTH = 1 << 40  # the kernel stays inside by itself


def blank() -> np.ndarray:
    """An entry to be filled."""
    return np.zeros(ENTRY, np.int64)


@njit(_I64(types.Array(_I64, 1, "C"), _I64, _I64, _I64), cache=True)
def record(entry, seq, count, dropped):
    """Commit ``count`` numbers from ``seq`` on and count them; a status of ``commit.append``."""
    status = commit.append(
        words_at(entry[E_WHOLE], _ANY_LENGTH),
        state_at(entry[E_CURSOR], _ANY_LENGTH),
        seq,
        count,
        dropped,
    )
    if status == commit.DONE:
        fetch_add(words_at(entry[E_COUNTER], 1), 0, types.uint64(count))
    return status


@njit(_I64(types.Array(_I64, 1, "C")), cache=True)
def sleeps(entry):
    """1 if the process at the other end says that it sleeps."""
    # A locked read-modify-write is a full fence: what was published before is seen by a process
    # that looks once more before it sleeps, or it is seen here that it does.
    fetch_add(words_at(entry[E_COUNTER], 1), 0, types.uint64(0))
    return _I64(load_acquire(words_at(entry[E_SLEEPING], 1), 0) != types.uint64(0))
