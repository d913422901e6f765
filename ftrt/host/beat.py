"""The heartbeat of a process: a thread of compiled code that never needs the GIL.

A Python thread that shall beat every millisecond is held up for as long as any other thread of its
process keeps the GIL; this one is held up by the scheduler alone, so that a beat that stands still
means that the whole process does (stopped, frozen or gone).
"""

from __future__ import annotations

import threading

import numpy as np
from numba import njit, types

from ftrt.atomics import load_acquire, store_release

_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@njit("void(uint64[::1], intp, uint64[::1], uint32)", nogil=True, cache=True)
def _beat(words, index, stop, period_us):
    count = load_acquire(words, index)
    while load_acquire(stop, 0) == 0:
        count += np.uint64(1)
        store_release(words, index, count)
        _usleep(period_us)


class Heartbeat:
    """Counts ``words[index]`` up every ``period_s`` until :meth:`stop`."""

    def __init__(self, words: np.ndarray, index: int, period_s: float = 0.002):
        self._stop = np.zeros(1, np.uint64)
        arguments = (words, index, self._stop, int(period_s * 1e6))
        self._thread = threading.Thread(target=_beat, args=arguments, name="ftrt-beat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it has."""
        self._stop[0] = 1
        self._thread.join(1.0)
