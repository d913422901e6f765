"""What a spare does before it is needed, so that it is quick when it is.

A process that slept is slow for its first milliseconds: its code and data have left the caches,
and what it uses for the first time is still to be loaded. So a spare goes through the motions of
its take-over on files of its own, once at the start and again when a death was detected, while
the agent still closes the epoch of the dead process.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ftrt.errors import FtrtError
from ftrt.ledger import state as ledger_state
from ftrt.ledger.layout import segment_name
from ftrt.ledger.log import CONSUMED, Ledger
from ftrt.ledger.pool import LedgerPool
from ftrt.ledger.record import create_record, read_record
from ftrt.ledger.segment import Segment
from ftrt.transport.paths import ring_path, rings_to
from ftrt.transport.ring import RecvRing, SendRing

_VALUE = np.zeros(16)
#: Restoring a state that is longer would take longer than it gains.
_SMALL_BYTES = 1 << 16


class Rehearsal:
    """A ledger, a state, a record and a ring of this process alone, in shared memory.

    Parameters
    ----------
    directory : path
        Of the attempt's shared memory.
    ledger : path
        The job's ledger directory.
    process : int
        Number of this process.
    """

    def __init__(self, directory: Path, ledger: Path, process: int):
        self._shared, self._ledger = directory, ledger
        self._scratch = directory / f"rehearsal-{process}"
        self._scratch.mkdir(exist_ok=True)
        job = str(uuid.UUID(int=0))
        pool = LedgerPool(self._scratch, pages=1)
        own = Ledger.open(pool, job=job, attempt=0, epoch=1, rank=0, incarnation=1)
        create_record(self._scratch, {"job": job, "attempt": 0, "epoch": 0, "states": {}})
        self._log = own.stream(CONSUMED, "rehearsal", 0, 0)
        self._store = ledger_state.StateStore(self._scratch, 1, 0, published=own.published)
        path = ring_path(self._scratch, "rehearsal", 0, 0, 1)
        self._ring = SendRing.create(
            path, slots=2, slot_bytes=256, job=job, stream_id=0, source=0, dest=0
        )
        self._reader = RecvRing.attach(path)
        self._seq = 0

    def __call__(
        self,
        epoch: int | None = None,
        rank: int = 0,
        wanted: Callable[[], object] = lambda: False,
    ) -> None:
        """Go through a take-over of ``rank`` in the epoch after ``epoch``, or of nobody.

        It ends early once the process is ``wanted`` for the take-over itself.
        """
        steps = self._looks(self._scratch, self._scratch, 0, 0)
        if epoch is not None:
            steps = self._looks(self._shared, self._ledger, epoch, rank)
        with contextlib.suppress(FtrtError, OSError):
            for _ in steps:
                if wanted():
                    return
            self._seq += 1
            self._ring.try_send(self._seq, _VALUE, 0)
            frame = self._reader.poll()
            if frame is not None:
                self._store.put("rehearsal", frame.array, self._log.next_ref(self._seq))
                self._log.append(self._seq)
                self._reader.release(frame.number)

    @staticmethod
    def _looks(shared: Path, ledger: Path, epoch: int, rank: int) -> Iterator[None]:
        """Read what a take-over reads, a part at a time; what is not there (yet) is no error."""
        with contextlib.suppress(FtrtError, OSError):
            record = read_record(ledger, epoch)
            yield
            states = record.get("states", {}).get(str(rank), [])
            if sum(entry["length"] for entry in states) < _SMALL_BYTES:
                ledger_state.restore(ledger, states)
            yield
            for path in rings_to(shared, rank):
                RecvRing.attach(path)
            yield
            Segment(ledger / segment_name(epoch + 1, rank, 0), write=False)
            yield
