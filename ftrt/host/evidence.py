"""What the agent reads and fixes of an epoch that ends: ledgers, rings, states."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from urllib.parse import unquote

from ftrt.agree.marks import Marks, StreamMarks
from ftrt.ledger import seal as sealing
from ftrt.ledger import state as ledger_state
from ftrt.ledger.layout import CONSUMED
from ftrt.ledger.pool import LedgerPool
from ftrt.runtime.config import Config
from ftrt.transport.ring import retire_receiver, seal_sender


class Ledgers:
    """The ledgers of all ranks: those of the present epoch, and the next one's made beforehand."""

    def __init__(self, config: Config):
        self._config = config
        self._pool = LedgerPool(config.ledger)
        self._lock = threading.Lock()
        self._closers: dict[tuple[int, int], sealing.RankCloser] = {}

    def discard_after(self, epoch: int) -> None:
        """Remove files of epochs that never came to be (made beforehand by an earlier attempt)."""
        for path in self._config.ledger.glob("e[0-9]*-r*.h5"):
            if int(path.name[1:7]) > epoch:
                path.unlink(missing_ok=True)
        for path in self._config.ledger.glob("spare-state-*.h5"):
            path.unlink(missing_ok=True)

    def prepare(self, epoch: int) -> None:
        """Make and map the ledgers of ``epoch`` for every rank; done already: no work."""
        config = self._config
        with self._lock:
            for rank in range(config.ranks):
                if (epoch, rank) in self._closers:
                    continue
                with contextlib.suppress(FileExistsError):
                    self._pool.claim(
                        epoch, rank, 0, job=config.job, attempt=config.attempt, incarnation=0
                    )
                closer = sealing.RankCloser(config.ledger, epoch, rank)
                self._closers[epoch, rank] = closer

    def prepare_later(self, epoch: int) -> None:
        """:meth:`prepare` in the background, off the path of a recovery, with blanks in reserve."""

        def work():
            self.prepare(epoch)
            self._pool.ensure(self._config.ranks)

        threading.Thread(target=work, name="ftrt-prepare", daemon=True).start()

    def close(self, epoch: int, ranks) -> dict[int, list[dict]]:
        """Close the ledgers of ``epoch`` for good; their seals by rank."""
        self.prepare_missing_closers(epoch, ranks)
        return {rank: self._closers[epoch, rank].close() for rank in ranks}

    def prepare_missing_closers(self, epoch: int, ranks) -> None:
        """Map ledgers of an earlier attempt."""
        with self._lock:
            for rank in ranks:
                if (epoch, rank) not in self._closers:
                    closer = sealing.RankCloser(self._config.ledger, epoch, rank)
                    self._closers[epoch, rank] = closer

    def forget_before(self, epoch: int) -> None:
        """Unmap the ledgers of old epochs."""
        with self._lock:
            for key in [k for k in self._closers if k[0] < epoch]:
                del self._closers[key]


def stream_marks(directory: Path, seals: dict[int, list[dict]]) -> dict:
    """Marks of one epoch by (stream, source, dest), from the seals of its ledgers."""
    found: dict[tuple[str, int, int], StreamMarks] = {}
    for rank_seals in seals.values():
        for sealed in rank_seals:
            for stream, runs in sealing.decode(directory, sealed):
                key = (stream["stream"], stream["source"], stream["dest"])
                _add(found.setdefault(key, StreamMarks(*key)), stream, runs)
    return found


def _add(marks: StreamMarks, stream: dict, runs) -> None:
    starts, lengths = runs[:, 0], runs[:, 1]
    if stream["kind"] == CONSUMED:
        marks.marks.merge(Marks.from_runs(starts, lengths))
        return
    if len(starts):
        marks.sent = max(marks.sent, int((starts + lengths).max()) - 1)
    marks.last = max(marks.last, int(stream["last"] or 0))


def states(directory: Path, epoch: int, seals: dict[int, list[dict]], before: dict) -> dict:
    """Where the newest committed value of every effect key lies, by rank (as text, for JSON)."""
    result = {}
    for rank, rank_seals in seals.items():
        keys = {entry["key"]: entry for entry in before.get(str(rank), [])}
        for entry in ledger_state.entries(directory, epoch, rank, rank_seals):
            keys[entry["key"]] = entry
        if keys:
            result[str(rank)] = list(keys.values())
    return result


def fence_rings(directory: Path, replaced: set[int]) -> dict[tuple[str, int, int], int]:
    """Seal what replaced ranks were sending, retire them as receivers.

    Returns
    -------
    dict
        ``(stream, source, dest)`` to the highest number that lies complete at the receiver, for
        the streams of replaced senders.
    """
    delivered: dict[tuple[str, int, int], int] = {}
    for path in sorted(directory.glob("ring-*")):
        key = _ring_key(path.name)
        if key is None:
            continue
        if key[2] in replaced:
            retire_receiver(path)
        if key[1] in replaced:
            sealed = seal_sender(path)
            delivered[key] = max(delivered.get(key, 0), sealed["next_seq"] - 1)
    return delivered


def _ring_key(name: str) -> tuple[str, int, int] | None:
    parts = name.removeprefix("ring-").rsplit("-", 3)
    if len(parts) != 4 or not parts[3][1:].isdigit():
        return None
    return unquote(parts[0]), int(parts[1][1:]), int(parts[2][1:])
