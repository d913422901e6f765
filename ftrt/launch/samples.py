"""How far the ranks were, now and then, kept for whoever draws or watches the job."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from ftrt.launch.gauge import Reading

#: A sample at least this long after the one before; later ones come ever more rarely, at so many
#: for each time the job has become e times as old, so that a week is some thousand lines.
_LEAST_S, _DENSITY = 0.1, 200


class Samples:
    """Appends to ``LEDGER/run/progress.jsonl``; ``t`` is in seconds since the attempt began.

    Parameters
    ----------
    run : Path
        The folder ``run`` of the ledger.
    attempt : int
    """

    def __init__(self, run: Path, attempt: int) -> None:
        self._run, self._attempt = run, attempt
        self._start_s: float | None = None
        self._due_s = 0.0

    def add(self, reading: Reading | None, now_s: float, last: bool = False) -> None:
        """Keep a reading if it is time to, or if it is the ``last``; a full disk does no harm.

        Parameters
        ----------
        now_s : float
            Monotonic time.
        """
        if reading is None or (now_s < self._due_s and not last):
            return
        if self._start_s is None:
            with contextlib.suppress(OSError, ValueError):
                self._start_s = float((self._run / f"attempt-{self._attempt}.start").read_text())
        if self._start_s is None:
            return
        t = now_s - self._start_s
        self._due_s = now_s + max(_LEAST_S, t / _DENSITY)
        line = {
            "t": round(t, 3),
            "attempt": self._attempt,
            "epoch": reading.epoch,
            "messages": reading.messages,
            "done": reading.done,
            "total": reading.total,
        }
        with contextlib.suppress(OSError):
            path = self._run / "progress.jsonl"
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, (json.dumps(line) + "\n").encode())
            finally:
                os.close(descriptor)
