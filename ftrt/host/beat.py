"""The heartbeat of a process: a thread of compiled code that never needs the GIL.

A Python thread that shall beat every millisecond is held up for as long as any other thread of its
process keeps the GIL; this one is held up by the scheduler alone, so that a beat that stands still
means that the whole process does (stopped, frozen or gone).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numba import njit, types

from ftrt.atomics import load_acquire, store_release

_CLOCK_MONOTONIC = 1
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_clock_gettime: Any = types.ExternalFunction(
    "clock_gettime", types.int32(types.int32, types.CPointer(types.int64))
)


@njit("void(uint64[::1], intp, uint64[::1], uint32)", nogil=True, cache=True)
def _beat(words, index, stop, period_us):
    now = np.zeros(2, np.int64)
    while load_acquire(stop, 0) == 0:
        _clock_gettime(_CLOCK_MONOTONIC, now.ctypes)
        store_release(words, index, np.uint64(now[0] * 1_000_000_000 + now[1]))
        _usleep(period_us)


class Heartbeat:
    """Puts the time (monotonic ns) into ``words[index]`` every ``period_s`` until :meth:`stop`."""

    def __init__(self, words: np.ndarray, index: int, period_s: float = 0.002):
        self._stop = np.zeros(1, np.uint64)
        arguments = (words, index, self._stop, int(period_s * 1e6))
        self._thread = threading.Thread(target=_beat, args=arguments, name="ftrt-beat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it has."""
        self._stop[0] = 1
        self._thread.join(1.0)
