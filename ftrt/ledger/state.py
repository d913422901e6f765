"""State that an effect publishes with its commit: two buffers per key, never a mix."""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path

import numpy as np

from .. import atomics
from ..errors import LedgerDamaged, LedgerError, UsageError
from . import h5, layout, statefmt
from .segment import map_file
from .steps import step

_ALIGN = 64
_MIN_FILE = 1 << 16
_REF = ("epoch", "stream", "segment", "event")


class _StateFile:
    """A mapped state file: a table of buffers and their bytes."""

    def __init__(self, path, *, write: bool = True):
        self.path = Path(path)
        self._map, user = map_file(self.path, layout.STATE_MAGIC, write=write)
        at, data = (int(offset) for offset in user["offsets"][:2])
        self.whole = np.frombuffer(self._map, np.uint64)
        self.slots = np.frombuffer(self._map, statefmt.SLOT, statefmt.SLOTS, at)
        self.data = np.frombuffer(self._map, np.uint8, int(user["counts"][1]), data)
        self._at_slots, self._at_check = at, at // 8 + layout.byte_of(statefmt.SLOT, "check") // 8
        self.used_slots = self.used_bytes = 0

    def fits(self, capacity: int) -> bool:
        return self.used_slots < statefmt.SLOTS and self.used_bytes + capacity <= self.data.size

    def take(self, capacity: int) -> _Buffer:
        """A new buffer of ``capacity`` bytes, a multiple of ``_ALIGN``."""
        buffer = _Buffer(self, self.used_slots, self.used_bytes, capacity)
        self.used_slots += 1
        self.used_bytes += capacity
        return buffer

    def check_at(self, slot: int) -> int:
        return self._at_check + slot * statefmt.SLOT.itemsize // 8

    def describe(self, slot: int, fields: bytes) -> None:
        """Write a slot's fields, all but its check."""
        at = self._at_slots + slot * statefmt.SLOT.itemsize
        self._map[at : at + len(fields)] = fields

    def entry(self, slot: int) -> dict | None:
        """What a slot holds, None if it is empty or was being written."""
        record = self.slots[slot]
        if record["check"] != _check(record.tobytes()[: statefmt.FIELDS.size]):
            return None
        return {
            "key": record["key"].decode(),
            "file": self.path.name,
            "buffer": slot,
            "version": int(record["version"]),
            "ref": [int(record[name]) for name in _REF],
            "length": int(record["length"]),
            "checksum": int(record["checksum"]),
        }

    def bytes_of(self, slot: int) -> np.ndarray:
        """Bytes in a slot's buffer; LedgerDamaged if they do not fit their checksum."""
        record = self.slots[slot]
        offset, length = int(record["offset"]), int(record["length"])
        data = self.data[offset : offset + length]
        if data.size != length or zlib.crc32(data.data) != record["checksum"]:
            key = record["key"].decode(errors="replace")
            raise LedgerDamaged(f"{self.path}: the state {key!r} has a wrong checksum")
        return data


def _check(fields: bytes) -> int:
    return zlib.crc32(fields) | 1 << 32  # never 0, which is an empty slot


class _Buffer:
    """One of the two places of a key."""

    def __init__(self, file: _StateFile, slot: int, offset: int, capacity: int):
        self.file, self.slot, self.offset, self.capacity = file, slot, offset, capacity

    def clear(self) -> None:
        """Make the slot empty, before its bytes change."""
        atomics.store(self.file.whole, self.file.check_at(self.slot), 0)

    def write(self, key: bytes, pieces: list, ref, version: int) -> None:
        self.clear()
        step("state.cleared")
        at, checksum = self.offset, 0
        for piece in pieces:
            view = np.frombuffer(piece, np.uint8)
            self.file.data[at : at + view.size] = view
            at, checksum = at + view.size, zlib.crc32(view.data, checksum)
            step("state.copied")
        fields = statefmt.FIELDS.pack(
            version, key, self.offset, self.capacity, *ref, at - self.offset, checksum
        )
        self.file.describe(self.slot, fields)
        step("state.described")
        atomics.store(self.file.whole, self.file.check_at(self.slot), _check(fields))
        step("state.written")


class StateStore:
    """Versions of the state of one rank in one epoch.

    ``put`` before the commit, then ``confirm`` after it or ``discard`` if it was not made.

    Parameters
    ----------
    directory : path
    epoch, rank : int
    published : callable, optional
        ``Ledger.published``. A put with a new reference then decides by itself what became of
        the puts before it; without it they count as confirmed.
    """

    def __init__(self, directory, epoch: int, rank: int, published=None):
        self._published = published
        self.directory, self.epoch, self.rank = Path(directory), epoch, rank
        self._files: list[_StateFile] = []
        self._current: dict[bytes, _Buffer] = {}
        self._spare: dict[bytes, list[_Buffer]] = {}
        self._held: dict[int, dict[bytes, list[_Buffer]]] = {}
        self._holds = 0
        self.lock = threading.RLock()
        self._pending: dict[bytes, _Buffer] = {}
        self._pending_ref: tuple | None = None
        self._version = 0

    def begin(self, ref) -> None:
        """A new effect begins, to be committed at ``ref``: what waits for that is of another one.

        It was given up between its puts and its commit, and must not be published with this one.
        """
        with self.lock:
            if self._pending and self._pending_ref == tuple(ref):
                self.discard()

    def put(self, key: str, value, ref) -> None:
        """Write ``value`` so that it becomes the state of ``key`` with the event at ``ref``.

        Parameters
        ----------
        key : str
            At most 128 bytes.
        value
            An array is stored raw, everything else pickled.
        ref : (epoch, stream index, segment, event)
            From :meth:`StreamLog.next_ref`.

        Notes
        -----
        If it raises, the puts with the same reference before it are discarded too.
        """
        with self.lock:
            reached = tuple(int(part) for part in ref)
            if self._pending and reached != self._pending_ref:
                self._settle()  # before anything can raise: what is pending may be committed
            try:
                self._put(key, value, reached)
            except BaseException:
                self.discard()  # the effect is void as a whole
                raise

    def _put(self, key: str, value, ref: tuple) -> None:
        name = key.encode()
        if not 0 < len(name) <= statefmt.KEY_BYTES or "\0" in key:
            raise UsageError(f"state key {key!r}: must have 1 to {statefmt.KEY_BYTES} bytes")
        pieces = statefmt.encode(value)
        size = sum(np.frombuffer(piece, np.uint8).size for piece in pieces)
        buffer = self._pending.pop(name, None)
        if buffer is not None and buffer.capacity < size:
            buffer.clear()
            buffer = None
        buffer = buffer or self._spare_of(name, size) or self._take(size)
        self._version += 1
        self._pending[name], self._pending_ref = buffer, ref
        buffer.write(name, pieces, ref, self._version)

    def values(self) -> dict:
        """What was committed in this epoch, by key; not to be called inside an effect."""
        with self.lock:
            if self._pending:
                self._settle()
            return {
                name.decode(): statefmt.decode(buffer.file.bytes_of(buffer.slot))
                for name, buffer in self._current.items()
            }

    def _settle(self) -> None:
        if self._published is None or self._published(self._pending_ref):
            self.confirm()
        else:
            self.discard()

    def hold(self) -> tuple[int, list[str]]:
        """Keep what counts at this instant; its number and the names of the state files.

        To be called with :attr:`lock` held. Puts that wait for their commit are kept too: it may
        have been made, with the store not knowing yet.
        """
        self._holds += 1
        self._held[self._holds] = {
            name: [b for b in (self._current.get(name), self._pending.get(name)) if b]
            for name in {*self._current, *self._pending}
        }
        return self._holds, [file.path.name for file in self._files]

    def release_before(self, number: int) -> None:
        """What was held before the hold ``number`` may be overwritten."""
        with self.lock:
            for old in [n for n in self._held if n < number]:
                for name, buffers in self._held.pop(old).items():
                    for buffer in buffers:
                        self._give_back(name, buffer)

    def _give_back(self, name: bytes, buffer: _Buffer) -> None:
        """Make a buffer a spare one unless it counts, waits for its commit, or is held."""
        held = (buffers.get(name, ()) for buffers in self._held.values())
        used = [self._current.get(name), self._pending.get(name), *self._spare.get(name, ())]
        if not any(buffer is other for group in (*held, used) for other in group):
            self._spare.setdefault(name, []).append(buffer)

    def _spare_of(self, name: bytes, size: int) -> _Buffer | None:
        """A place for ``size`` bytes that nobody needs; smaller ones are given up for good."""
        spares = self._spare.get(name, [])
        while spares:
            buffer = spares.pop()
            if buffer.capacity >= size:
                return buffer
            buffer.clear()
        return None

    def confirm(self) -> None:
        """The commit of the versions put last was made."""
        replaced = []
        for name, buffer in self._pending.items():
            before = self._current.get(name)
            self._current[name] = buffer
            if before is not None:
                replaced.append((name, before))
        self._pending, self._pending_ref = {}, None
        for name, before in replaced:
            self._give_back(name, before)

    def discard(self) -> None:
        """The versions put last will not be committed: forget them."""
        pending, self._pending, self._pending_ref = self._pending, {}, None
        for name, buffer in pending.items():
            buffer.clear()
            self._give_back(name, buffer)

    def _take(self, size: int) -> _Buffer:
        """A new buffer, with room to grow; in a new state file if the last one is full."""
        capacity = -(-max(_ALIGN, size + size // 4) // _ALIGN) * _ALIGN
        if not self._files or not self._files[-1].fits(capacity):
            number = len(self._files)
            path = self.directory / _file_name(self.epoch, self.rank, number)
            if path.exists():
                raise LedgerError(f"{path}: another process writes it already")
            self._make_file(path, max(_MIN_FILE, 2 * capacity))
            step("state.file")
            self._files.append(_StateFile(path))
        return self._files[-1].take(capacity)

    def _make_file(self, path: Path, capacity: int) -> None:
        blank = blank_path(self.directory, self.epoch, self.rank)
        try:
            if self._files or capacity > _MIN_FILE:
                raise FileNotFoundError
            os.link(blank, path)  # fails where a file is, unlike a rename
            step("state.linked")
            os.unlink(blank)
        except FileNotFoundError:
            h5.create_state_file(path, capacity)


def blank_path(directory, epoch: int, rank: int) -> Path:
    """Where the first state file of a rank in an epoch waits until it is wanted."""
    return Path(directory) / f"spare-state-e{epoch:06d}-r{rank:04d}.h5"


def make_blank(directory, epoch: int, rank: int) -> None:
    """Make a state file beforehand: creating one takes milliseconds, taking one does not."""
    path = blank_path(directory, epoch, rank)
    if not path.exists():
        h5.create_state_file(path, _MIN_FILE)


def _file_name(epoch: int, rank: int, number: int) -> str:
    return layout.ROOT_STEM.format(epoch=epoch, rank=rank) + f"-state{number:03d}.h5"


def _events(seals) -> dict[tuple[int, int], int]:
    """``{(segment, stream index): events}``."""
    return {
        (seal["segment"], stream["index"]): stream["events"]
        for seal in seals
        for stream in seal["streams"]
    }


def map_state_files(directory, epoch: int, rank: int, known: list[_StateFile]) -> None:
    """Append to ``known`` the state files of a rank in an epoch that it lacks, mapped."""
    while True:
        path = Path(directory) / _file_name(epoch, rank, len(known))
        try:
            known.append(_StateFile(path, write=False))
        except FileNotFoundError:
            return


def entries(
    directory, epoch: int, rank: int, seals, known: list[_StateFile] | None = None
) -> list[dict]:
    """Newest published version of each key, for the epoch record.

    Parameters
    ----------
    seals : list of dict
        Seals of this rank and epoch (those of others are skipped).
    known : list, optional
        State files from :func:`map_state_files`; those that it lacks are added.

    Returns
    -------
    list of dict
        ``{key, file, buffer, version, ref, length, checksum}``, sorted by key.
    """
    reached = _events(
        seal for seal in seals if seal["rank"] == rank and seal.get("epoch", epoch) == epoch
    )
    newest: dict[str, dict] = {}
    files = _files_of(Path(directory), epoch, rank, seals, [] if known is None else known)
    for file in files:
        used = np.flatnonzero(file.slots["check"])
        for entry in filter(None, map(file.entry, map(int, used))):
            ref_epoch, stream, segment, event = entry["ref"]
            valid = ref_epoch == epoch and reached.get((segment, stream), -1) >= event
            if valid and entry["version"] > newest.get(entry["key"], {"version": 0})["version"]:
                newest[entry["key"]] = entry
    return [newest[key] for key in sorted(newest)]


def _files_of(
    directory: Path, epoch: int, rank: int, seals, known: list[_StateFile]
) -> list[_StateFile]:
    """State files that count: all, or those that the seals of a durable mark name."""
    named = [seal.states for seal in seals if getattr(seal, "states", None) is not None]
    if named:
        return [_StateFile(directory / name, write=False) for name in named[0]]
    map_state_files(directory, epoch, rank, known)
    return known


def restore(directory, states: list[dict]) -> dict:
    """Values of the entries of a record.

    Raises
    ------
    LedgerDamaged
        A file has no longer what the record says, or its bytes are wrong.
    """
    files: dict[str, _StateFile] = {}
    values = {}
    for entry in states:
        path = Path(directory) / entry["file"]
        try:
            file = files.get(entry["file"]) or _StateFile(path, write=False)
        except FileNotFoundError as error:
            raise LedgerDamaged(f"{path}: is missing, state {entry['key']!r} was there") from error
        files[entry["file"]] = file
        found = file.entry(entry["buffer"])
        if found is None or any(found[name] != entry[name] for name in ("key", "version")):
            raise LedgerDamaged(
                f"{path}: no longer has version {entry['version']} of the state {entry['key']!r}"
            )
        values[entry["key"]] = statefmt.decode(file.bytes_of(entry["buffer"]))
    return values


def load_valid(directory, epoch: int, rank: int, seals) -> dict:
    """``{key: value}`` of the newest published versions of a rank's state in an epoch."""
    return restore(directory, entries(directory, epoch, rank, seals))
