"""What a survivor is busy with while its peer is replaced."""

from __future__ import annotations

import ctypes
import threading
import time

BURDENS = ("idle", "python", "gil")
_HELD_US, _FREE_S = 300_000, 0.01


def burden(name: str) -> None:
    """Have this process idle, run pure Python, or be in calls of 300 ms that keep the GIL."""
    work = {"python": _compute, "gil": _keep_the_gil}.get(name)
    if work is not None:
        threading.Thread(target=work, daemon=True).start()


def _compute() -> None:
    number = 0
    while True:
        number = (number * 3 + 1) % 1_000_003


def _keep_the_gil() -> None:
    libc = ctypes.PyDLL(None)  # unlike CDLL its calls do not release the GIL
    while True:
        libc.usleep(_HELD_US)
        time.sleep(_FREE_S)
