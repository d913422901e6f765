"""A mapped ledger segment."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import uuid
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import LedgerDamaged, LedgerError
from . import layout
from .identity import host_identity


def map_file(path, magic: bytes, *, write: bool = True):
    """Map a ledger or state file and check its first block.

    Returns
    -------
    (mmap, user)
        The shared map and the structured record of the user block.
    """
    path = Path(path)
    with _open(path, write) as file:
        size = os.fstat(file.fileno()).st_size
        if size < layout.USERBLOCK:
            raise LedgerDamaged(f"{path}: truncated to {size} bytes")
        # A private map shows what is in the file, and compiled code takes only writable arrays.
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_COPY
        view = mmap.mmap(file.fileno(), size, access=access)
    user = np.frombuffer(view, layout.USER, 1)[0]
    check_user(path, user, size, magic)
    return view, user


def _open(path: Path, write: bool):
    try:
        return open(path, "r+b" if write else "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LedgerError(f"{path}: cannot be opened: {error.strerror}") from error


def check_user(path: Path, user, size: int, magic: bytes) -> None:
    """Raise LedgerDamaged unless the user block fits this program and the file's size."""
    if user["magic"] != magic:
        raise LedgerDamaged(f"{path}: not a file of this ledger (magic {bytes(user['magic'])!r})")
    if user["version"] > layout.VERSION:
        raise LedgerDamaged(
            f"{path}: written by a newer ftrt (format {user['version']}, this "
            f"one reads {layout.VERSION}); read it with that version"
        )
    if user["check"] != layout.fields_check(user, layout.USER_FIELDS):
        raise LedgerDamaged(f"{path}: its first block has a wrong check")
    if size != user["length"]:
        raise LedgerDamaged(f"{path}: truncated to {size} of {user['length']} bytes")


class Entry(NamedTuple):
    """Which stream an entry of the stream table is of."""

    kind: int
    stream: str
    source: int
    dest: int


class Segment:
    """Map of one segment file.

    Attributes
    ----------
    header : numpy record
        ``/header``.
    boot : bytes
    attempt, epoch, rank, number : int
        What the header says of the segment; it does not change.
    packs : bool
        Whether a word may be a pair or a triple: not before version 2.
    streams : array of ``layout.STREAM``, shape (256,)
    pages, words : uint64 arrays
    whole : uint64 array
        The whole file; ``at_control``, ``at_streams``, ``at_words`` are indices into it, for the
        atomic accesses.
    """

    def __init__(self, path, *, blank: bool = False, write: bool = True):
        self.path = Path(path)
        self._map, user = map_file(self.path, layout.MAGIC, write=write)
        self.whole = np.frombuffer(self._map, np.uint64)  # the length is a multiple of 8
        offsets = [int(o) for o in user["offsets"]]
        counts = [int(c) for c in user["counts"]]
        self.header = np.frombuffer(self._map, layout.HEADER, 1, offsets[0])[0]
        self.streams = np.frombuffer(self._map, layout.STREAM, counts[1], offsets[1])
        self.pages = np.frombuffer(self._map, np.uint64, counts[2], offsets[2])
        self.words = np.frombuffer(self._map, np.uint64, counts[3], offsets[3])
        self.at_control = offsets[0] // 8 + layout.CONTROL_AT
        self.at_streams, self.at_pages, self.at_words = (o // 8 for o in offsets[1:])
        self._entries: dict[int, Entry] = {}
        if not blank:
            self._check_header()
            self._take_header()

    def _check_header(self) -> None:
        header = self.header
        if header["magic"] != layout.MAGIC:
            raise LedgerDamaged(f"{self.path}: its header was never filled")
        if header["version"] > layout.VERSION:
            raise LedgerDamaged(
                f"{self.path}: written by a newer ftrt (format "
                f"{header['version']}); read it with that version"
            )
        if header["check"] != layout.fields_check(header, layout.HEADER_FIELDS):
            raise LedgerDamaged(f"{self.path}: its header has a wrong check")

    def _take_header(self) -> None:
        header = self.header
        self.boot = header["boot"].tobytes()
        self.attempt, self.epoch = int(header["attempt"]), int(header["epoch"])
        self.rank, self.number = int(header["rank"]), int(header["segment"])
        self.packs = int(header["version"]) > 1

    def fill(
        self, *, job: str, attempt: int, epoch: int, rank: int, segment: int, incarnation: int
    ) -> None:
        """Write the header of a segment that nobody else sees yet."""
        header = self.header
        header["magic"], header["version"] = layout.MAGIC, layout.VERSION
        header["job"] = np.frombuffer(uuid.UUID(job).bytes, np.uint8)
        header["attempt"], header["epoch"], header["rank"] = attempt, epoch, rank
        header["segment"], header["incarnation"] = segment, incarnation
        header["boot"] = np.frombuffer(boot_id(), np.uint8)
        header["control"] = 1
        header["check"] = layout.fields_check(header, layout.HEADER_FIELDS)
        self._take_header()

    @property
    def job(self) -> str:
        """UUID of the job that the segment belongs to."""
        return str(uuid.UUID(bytes=self.header["job"].tobytes()))

    def check_job(self, job: str) -> None:
        """Raise LedgerDamaged if the segment belongs to another job."""
        if uuid.UUID(job) != uuid.UUID(self.job):
            raise LedgerDamaged(f"{self.path}: belongs to job {self.job}, not to {job}")

    @property
    def owned_index(self) -> int:
        """Index of the header's ``owned`` word in ``whole``."""
        return self.at_control + 1

    def entry_bytes(self, stream: int) -> bytes:
        """What the check of a stream's entry covers."""
        at = (self.at_streams + stream * layout.STREAM_WORDS) * 8
        return self._map[at : at + layout.STREAM_CHECKED]

    def entry(self, stream: int) -> Entry:
        """What a registered stream is; LedgerDamaged if its entry does not fit its check.

        An entry does not change once it is registered, so it is read and checked once.
        """
        found = self._entries.get(stream)
        if found is None:
            entry = self.streams[stream]
            if entry["check"] != zlib.crc32(self.entry_bytes(stream)):
                raise LedgerDamaged(f"{self.path}: entry of stream {stream} has a wrong check")
            found = Entry(
                int(entry["kind"]),
                entry["name"].decode(),
                int(entry["source"]),
                int(entry["dest"]),
            )
            self._entries[stream] = found
        return found

    def learn_entries(self) -> None:
        """Read the entries of the streams that were registered since, for who will want them."""
        with contextlib.suppress(LedgerDamaged):  # whoever needs the entry is told
            while self.word_of(len(self._entries), layout.HEAD_AT) & ~layout.CLOSED:
                self.entry(len(self._entries))

    def word_of(self, stream: int, at: int) -> int:
        """Word ``at`` (``layout.HEAD_AT``, ...) of a stream's entry; 0 behind the last one."""
        if stream >= layout.STREAMS:
            return 0
        return int(self.whole[self.at_streams + stream * layout.STREAM_WORDS + at])

    def head_index(self, stream: int) -> int:
        """Index of a stream's head word in ``whole``."""
        return self.at_streams + stream * layout.STREAM_WORDS + layout.HEAD_AT


@functools.cache
def boot_id() -> bytes:
    """Names this start of the kernel: memory that was written under another one is gone.

    In a job over several hosts it names the host.
    """
    if os.environ.get("FTRT_HOSTS"):
        return host_identity()
    try:
        return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)
