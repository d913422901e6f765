"""What the agent reads and fixes of an epoch that ends: ledgers, rings, states."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from ftrt.agree.marks import Marks, StreamMarks
from ftrt.errors import LedgerError
from ftrt.ledger import layout
from ftrt.ledger import seal as sealing
from ftrt.ledger import state as ledger_state
from ftrt.ledger.layout import CONSUMED
from ftrt.ledger.leftovers import remove_leftovers
from ftrt.ledger.pool import LedgerPool
from ftrt.runtime.config import Config
from ftrt.transport.layout import RingMap
from ftrt.transport.ring_admin import is_read, retire_receiver, seal_sender


class Ledgers:
    """The ledgers of all ranks: those of the present epoch, and the next one's made beforehand.

    ``here`` are the ranks whose process runs on this host: nobody else makes files for them.
    """

    def __init__(self, config: Config):
        self._config = config
        self._pool = LedgerPool(config.ledger)
        self._lock = threading.Lock()
        self._closers: dict[tuple[int, int], sealing.RankCloser] = {}
        self._state_files: dict[tuple[int, int], list] = {}
        self._turn = 0
        self._has_blank: set[tuple[int, int]] = set()
        self.here: Sequence[int] = range(config.ranks)

    def discard_after(self, epoch: int) -> None:
        """Remove files of epochs that never came to be (made beforehand by an earlier attempt)."""
        for path in self._config.ledger.glob("e[0-9]*-r*.h5"):
            if int(path.name[1:7]) > epoch:
                path.unlink(missing_ok=True)
        self.discard_blanks()
        remove_leftovers(self._config.ledger, self._config.job)

    def prepare(self, epoch: int) -> None:
        """Make and map the ledgers of ``epoch`` for every rank; done already: no work."""
        config = self._config
        with self._lock:
            for rank in self.here:
                if (epoch, rank) in self._closers:
                    continue
                with contextlib.suppress(FileExistsError):
                    self._pool.claim(
                        epoch, rank, 0, job=config.job, attempt=config.attempt, incarnation=0
                    )
                closer = sealing.RankCloser(config.ledger, epoch, rank, config.attempt)
                self._closers[epoch, rank] = closer

    def prepare_later(self, epoch: int, with_state: list[int]) -> None:
        """:meth:`prepare` in the background, off the path of a recovery, with blanks in reserve.

        ``with_state`` are the ranks that will want a state file at once.
        """

        new = [rank for rank in with_state if (epoch, rank) not in self._has_blank]
        self._has_blank |= {(epoch, rank) for rank in new}

        def work():
            with contextlib.suppress(LedgerError):  # a full disk is told where room is needed
                self.prepare(epoch)
                for rank in new:
                    ledger_state.make_blank(self._config.ledger, epoch, rank)
                self._pool.ensure(self._config.ranks)

        threading.Thread(target=work, name="ftrt-prepare", daemon=True).start()

    def close(self, epoch: int, ranks) -> dict[int, list[dict]]:
        """Close the ledgers of ``epoch`` for good; their seals by rank."""
        self.prepare_missing_closers(epoch, ranks)
        return {rank: self._closers[epoch, rank].close() for rank in ranks}

    def peek(self, epoch: int) -> dict[int, list[dict]]:
        """What :meth:`close` would give by now of one rank, each in its turn."""
        self._turn += 1
        rank = self.here[self._turn % len(self.here)] if self.here else -1
        closer = self._closers.get((epoch, rank))
        return {} if closer is None else {rank: closer.peek()}

    def prepare_missing_closers(self, epoch: int, ranks) -> None:
        """Map ledgers of an earlier attempt."""
        with self._lock:
            for rank in ranks:
                if (epoch, rank) not in self._closers:
                    closer = sealing.RankCloser(
                        self._config.ledger, epoch, rank, self._config.attempt
                    )
                    self._closers[epoch, rank] = closer

    def leave(self, epoch: int, ranks: Sequence[int]) -> None:
        """Take back what was made for ``epoch`` of ranks that may go on elsewhere."""
        with self._lock:
            self.here = [rank for rank in self.here if rank not in ranks]
            for rank in ranks:
                self._closers.pop((epoch, rank), None)
                name = layout.segment_name(epoch, rank, 0)
                (self._config.ledger / name).unlink(missing_ok=True)

    def forget_before(self, epoch: int) -> None:
        """Unmap the ledgers of old epochs, remove what nobody took for them."""
        with self._lock:
            old = [key for key in self._closers if key[0] < epoch]
            for key in old:
                del self._closers[key]
                self._state_files.pop(key, None)
                self._has_blank.discard(key)
        for key in old:
            ledger_state.blank_path(self._config.ledger, *key).unlink(missing_ok=True)

    def refresh(self, epoch: int) -> None:
        """Map what the ranks have made since, so that a recovery need not."""
        for rank in self.here:
            closer = self._closers.get((epoch, rank))
            if closer is not None:
                closer.map()
                known = self._state_files.setdefault((epoch, rank), [])
                ledger_state.map_state_files(self._config.ledger, epoch, rank, known)
        with_state = [rank for rank in self.here if self._state_files.get((epoch, rank))]
        if any((epoch + 1, rank) not in self._has_blank for rank in with_state):
            self.prepare_later(epoch + 1, with_state)

    def states(self, epoch: int, seals: dict[int, list[dict]], before: dict) -> dict:
        """Where the newest committed value of every key lies, by rank (as text, for JSON)."""
        result = {}
        for rank, rank_seals in seals.items():
            keys = {entry["key"]: entry for entry in before.get(str(rank), [])}
            known = self._state_files.setdefault((epoch, rank), [])
            directory = self._config.ledger
            for entry in ledger_state.entries(directory, epoch, rank, rank_seals, known):
                keys[entry["key"]] = entry
            if keys:
                result[str(rank)] = list(keys.values())
        return result

    def discard_blanks(self) -> None:
        """Remove the state files that were made beforehand and not taken."""
        for path in self._config.ledger.glob("spare-state-*.h5"):
            path.unlink(missing_ok=True)


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


class Rings:
    """The rings of this attempt, mapped as they appear, so that a recovery need not map them."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._rings: dict[str, tuple[tuple[str, int, int], RingMap]] = {}

    def refresh(self) -> None:
        """Map rings that were made since."""
        with os.scandir(self._directory) as found:
            for name in [entry.name for entry in found if entry.name not in self._rings]:
                key = _ring_key(name)
                if key is not None:
                    self._rings[name] = (key, RingMap.open(self._directory / name))

    def discard_read(self) -> None:
        """Remove the rings of dead senders of which all that counts was consumed.

        Nobody needs them any more: the marks name all that they brought.
        """
        for name, (_, ring) in list(self._rings.items()):
            if is_read(ring):
                del self._rings[name]
                (self._directory / name).unlink(missing_ok=True)

    def fence(self, replaced: set[int]) -> dict[tuple[str, int, int], int]:
        """Seal what replaced ranks were sending, retire them as receivers.

        Returns
        -------
        dict
            ``(stream, source, dest)`` to the highest number that lies complete at the receiver,
            for the streams of replaced senders.
        """
        self.refresh()
        delivered: dict[tuple[str, int, int], int] = {}
        for key, ring in self._rings.values():
            if key[2] in replaced:
                retire_receiver(ring)
            if key[1] in replaced:
                sealed = seal_sender(ring)
                delivered[key] = max(delivered.get(key, 0), sealed["next_seq"] - 1)
        return delivered


def _ring_key(name: str) -> tuple[str, int, int] | None:
    parts = name.removeprefix("ring-").rsplit("-", 3)
    if len(parts) != 4 or not parts[3][1:].isdigit():
        return None
    return unquote(parts[0]), int(parts[1][1:]), int(parts[2][1:])
