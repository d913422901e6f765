"""Classes host and power: the thread of a rank that makes durable what was committed.

A commit does not wait for the disk. Every ``interval_s`` the heads of all streams are taken at one
instant; what the rank wrote before it (spools, states, segments) is synced; then the heads become
the rank's durable mark. A receiver syncs as well what its senders keep for a resend: of what it
has durably consumed they send nothing again to it, but another receiver may lack that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import Protocol

import numpy as np

from .. import atomics
from ..errors import LedgerError
from . import layout
from .durable import SYNC_FAILED, publish_mark
from .kept import KINDS, kept_files
from .log import Ledger
from .record import sync_directory, sync_path
from .segment import Segment
from .state import StateStore
from .steps import step

_HEAD = np.uint64(layout.CLOSED - 1)


def sync_for(directory: Path, epoch: int, rank: int) -> None:
    """Make durable what a rank has committed that died before :meth:`Syncer.stop`.

    Raises
    ------
    OSError, LedgerError
        A file cannot be read or synced, or could not be by the rank itself.
    """
    directory, heads, number, count = Path(directory), [], 0, 1
    names = []
    while number < count:
        segment = Segment(directory / layout.segment_name(epoch, rank, number), write=False)
        if number == 0:
            count = int(segment.header["control"]) & ~layout.CLOSED
            if int(segment.header["owned"]) == SYNC_FAILED:
                # The kernel tells a failed write once: a sync now would succeed over what is lost.
                raise LedgerError(f"{segment.path}: could not be synced before")
        for index in np.flatnonzero(segment.streams["head"] & _HEAD).tolist():
            entry = segment.streams[index]
            heads.append([number, index, int(entry["head"]) & ~layout.CLOSED, int(entry["last"])])
        names.append(segment.path.name)
        number += 1
    stem = layout.ROOT_STEM.format(epoch=epoch, rank=rank)
    states = sorted(path.name for path in directory.glob(f"{stem}-state*.h5"))
    kept = [p.name for kind in KINDS for p in directory.glob(f"{kind}-*-r{rank:04d}-e*.bin")]
    for name in [*kept, *states, *names]:
        sync_path(directory / name)
    sync_directory(directory)
    publish_mark(directory, epoch, rank, heads, count, states)


class HasPath(Protocol):
    """Something in a file that a rank syncs with its ledger: a spool, or digests."""

    @property
    def path(self) -> Path:
        """The file."""


class Syncer:
    """Keeps the durable mark of one rank.

    Parameters
    ----------
    directory : path
    rank : int
    interval_s : float
        The longest time between a commit and the beginning of the sync that makes it durable.
    """

    def __init__(self, directory: Path, rank: int, interval_s: float):
        self._directory, self._rank, self._interval_s = Path(directory), rank, interval_s
        self._lock = threading.Lock()
        self._open: dict[Path, int] = {}
        self._spools: list[HasPath] = []
        self._sources: list[tuple[str, int]] = []
        self._watched: tuple[Ledger, StateStore] | None = None
        self._marked: list | None = None
        self._error: LedgerError | None = None
        self._fails = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ftrt-sync", daemon=True)

    def watch(self, ledger: Ledger, store: StateStore) -> None:
        """Sync these from now on; those of the epoch before are the business of the record."""
        with self._lock:
            self._close_files()
            self._watched, self._marked = (ledger, store), None
        if not self._thread.is_alive() and not self._ended.is_set():
            self._thread.start()

    def add_spool(self, spool: HasPath) -> None:
        """Sync this spool too: a commit is durable after the messages that were sent before it."""
        with self._lock:
            self._spools.append(spool)

    def add_source(self, stream: str, source: int) -> None:
        """Sync what this source keeps, too: a message that durably counts here is lost nowhere."""
        with self._lock:
            self._sources.append((stream, source))

    def fail_next(self) -> None:
        """Fault injection: the next sync fails as if the disk had."""
        self._fails, self._marked = True, None

    def check(self) -> None:
        """Raise the error of a sync that failed; it is never tried a second time."""
        if self._error is not None:
            raise self._error

    def sync(self) -> None:
        """Make what is committed now durable.

        Raises
        ------
        LedgerError
            A file cannot be synced. What the mark says stays durable, nothing more is promised.
        """
        with self._lock:
            self.check()
            if self._watched is None:
                return
            try:
                self._round(*self._watched)
            except (OSError, LedgerError) as error:
                self._fail(error)
        self.check()

    def stop(self) -> None:
        """Sync a last time and end the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self.sync()
        self._close_files()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            if self._error is not None:
                return
            try:
                self.sync()
            except LedgerError:
                return  # the next call of the rank raises it

    def _round(self, ledger: Ledger, store: StateStore) -> None:
        with store.lock:  # no effect is written meanwhile
            heads = ledger.snapshot()
            held, states = store.hold()
        if heads != self._marked:
            step("sync.taken")
            segments = ledger.files
            names = [*states, *segments]
            paths = [spool.path for spool in self._spools]
            paths += [self._directory / name for name in names]
            new = [*self._sync_sources(), *(self._sync_file(path) for path in paths)]
            if any(new):
                sync_directory(self._directory)
            step("sync.data")
            publish_mark(self._directory, ledger.epoch, self._rank, heads, len(segments), states)
            step("sync.marked")
            self._marked = heads
        store.release_before(held)

    def _sync_sources(self) -> list[bool]:
        """Sync the files of all lives of our sources."""
        new = []
        files = (kept_files(self._directory, kind, *of) for of in self._sources for kind in KINDS)
        for path in (path for paths in files for path in paths):
            with contextlib.suppress(FileNotFoundError):  # its sender has freed it just now
                new.append(self._sync_file(path))
        return new

    def _sync_file(self, path: Path) -> bool:
        """Sync one file; True if it is the first time, so that its name must be synced too."""
        new = path not in self._open
        try:
            if new:
                self._open[path] = os.open(path, os.O_RDONLY)
            if self._fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            os.fdatasync(self._open[path])
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LedgerError(f"{path} cannot be synced ({error.strerror})") from error
        return new

    def _close_files(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _fail(self, error: Exception) -> None:
        if self._watched is not None:
            first = self._watched[0].first_segment
            # Whoever ends this ledger trusts its mark then: memory and disk may differ for good.
            atomics.store(first.whole, first.owned_index, SYNC_FAILED)
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._error = LedgerError(
            f"rank {self._rank}: {why}; nothing that was durable is lost. Check the disk of "
            f"{self._directory}, then go on from the ledger with --resume"
        )
