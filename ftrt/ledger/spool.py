"""A sender's spool: payloads kept on the ledger's storage until every receiver has consumed them.

One append-only file per incarnation of the sender. A record is a header (magic, seq, count, meta
length, payload length, checksum) and the pickled-free description of the array in front of its
bytes; one that is cut short by a death fails its checksum and does not count. Space before the
stable mark is given back to the file system.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from ftrt.errors import LedgerError
from ftrt.ledger.kept import SPOOL, kept_files, kept_path
from ftrt.ledger.steps import step

_HEADER = struct.Struct("<QQIIQI4x")
_MAGIC = 0x4C4F_4F50_5352_5446
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_libc = ctypes.CDLL(None, use_errno=True)


def give_back(descriptor: int, start: int, length: int) -> None:
    """Give the storage of a part of a file back; it stays where the file system cannot do so."""
    _libc.fallocate(
        descriptor, _PUNCH_HOLE_KEEP_SIZE, *(ctypes.c_long(value) for value in (start, length))
    )


class Spool:
    """Payloads of one ``(stream, source)``; readable by later incarnations of the source."""

    def __init__(self, directory: Path, stream: str, source: int, since_epoch: int):
        self._index: dict[int, tuple[int, int]] = {}
        self._sizes: dict[int, int] = {}
        self._kept_bytes = 0
        paths = kept_files(directory, SPOOL, stream, source)
        self._earlier = {path: os.open(path, os.O_RDWR) for path in paths}
        for descriptor in self._earlier.values():
            self._scan(descriptor)
        path = kept_path(directory, SPOOL, stream, source, since_epoch, os.getpid())
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._end = os.fstat(self._file).st_size
        self._freed = 0

    def resume(self, next_seq: int) -> int:
        """First number from ``next_seq`` on that is not in the spool; what lies behind it is void.

        A power cut may take a record and leave a later one. Nobody durably has either, and what
        is sent under the lost number may be another message: the later one must not follow it.
        """
        while next_seq in self._index:
            next_seq += 1
        void = [seq for seq in self._index if seq > next_seq]
        for seq in void:
            descriptor, offset = self._index.pop(seq)
            self._kept_bytes -= self._sizes.pop(seq)
            os.pwrite(descriptor, bytes(_HEADER.size), offset)
        for descriptor in self._earlier.values() if void else ():
            os.fdatasync(descriptor)
        return next_seq

    @property
    def kept_bytes(self) -> int:
        """Bytes of the records that are not freed."""
        return self._kept_bytes

    def _note_size(self, seq: int, size: int) -> None:
        self._kept_bytes += size - self._sizes.get(seq, 0)
        self._sizes[seq] = size

    def append(self, seq: int, array: np.ndarray) -> None:
        """Store one message, or raise :class:`LedgerError` with nothing stored."""
        meta = repr((npy.dtype_to_descr(array.dtype), array.shape)).encode()
        payload = np.ascontiguousarray(array).tobytes()
        check = zlib.crc32(payload, zlib.crc32(meta))
        head = _HEADER.pack(_MAGIC, seq, 1, len(meta), len(payload), check)
        record = head + meta + payload
        step("spool.packed")
        try:
            written = os.pwrite(self._file, record, self._end)
        except OSError as error:
            raise self._full(error) from error
        if written != len(record):
            raise self._full("the storage took only a part of a record")
        step("spool.written")
        self._index[seq] = (self._file, self._end)
        self._note_size(seq, written)
        self._end += written

    def read(self, seq: int) -> np.ndarray:
        """The message ``seq`` as it was sent; :class:`LedgerError` if it is not here."""
        if seq not in self._index:
            raise LedgerError(f"{self._path}: message {seq} is not in the spool")
        descriptor, offset = self._index[seq]
        record = self._record(descriptor, offset)
        if record is None:
            raise LedgerError(f"{self._path}: message {seq} is damaged in the spool")
        _, meta, payload, _ = record
        descr, shape = ast.literal_eval(meta.decode())
        return np.frombuffer(payload, npy.descr_to_dtype(descr)).reshape(shape)

    def free(self, stable_seq: int) -> None:
        """Forget what every receiver has stably consumed; the space goes back in large pieces."""
        for seq in [s for s in self._index if s <= stable_seq]:
            del self._index[seq]
            self._kept_bytes -= self._sizes.pop(seq)
        self._remove_earlier()
        mine = [offset for file, offset in self._index.values() if file == self._file]
        keep_from = min(mine, default=self._end)
        if keep_from - self._freed >= 1 << 20:
            give_back(self._file, self._freed, keep_from - self._freed)
            self._freed = keep_from
            step("spool.freed")

    def _remove_earlier(self) -> None:
        """Remove files of earlier lives of which nothing is left."""
        needed = {descriptor for descriptor, _ in self._index.values()}
        for path, descriptor in list(self._earlier.items()):
            if descriptor not in needed and path != self._path:
                os.close(descriptor)
                path.unlink(missing_ok=True)
                del self._earlier[path]

    @property
    def path(self) -> Path:
        """The file of this incarnation."""
        return self._path

    def close(self) -> None:
        """Close the files; the contents stay."""
        for descriptor in [*self._earlier.values(), self._file]:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _scan(self, descriptor: int) -> None:
        offset, size = 0, os.fstat(descriptor).st_size
        while offset + _HEADER.size <= size:
            record = self._record(descriptor, offset)
            if record is None:
                offset = self._next_data(descriptor, offset, size)
                continue
            seq, _, _, length = record
            self._index[seq] = (descriptor, offset)
            self._note_size(seq, length)
            offset += length

    @staticmethod
    def _next_data(descriptor: int, offset: int, size: int) -> int:
        """Skip a hole that :meth:`free` punched: records go on where the data begins again."""
        block = (offset // 4096 + 1) * 4096
        try:
            at = os.lseek(descriptor, block, os.SEEK_DATA)
        except OSError:
            return size
        window = os.pread(descriptor, 1 << 21, at)
        found = window.find(struct.pack("<Q", _MAGIC))
        return at + found if found >= 0 else size

    @staticmethod
    def _record(descriptor: int, offset: int):
        head = os.pread(descriptor, _HEADER.size, offset)
        if len(head) < _HEADER.size:
            return None
        magic, seq, _, meta_length, length, check = _HEADER.unpack(head)
        if magic != _MAGIC:
            return None
        body = os.pread(descriptor, meta_length + length, offset + _HEADER.size)
        meta, payload = body[:meta_length], body[meta_length:]
        if len(payload) != length or zlib.crc32(payload, zlib.crc32(meta)) != check:
            return None
        return seq, meta, payload, _HEADER.size + meta_length + length

    def _full(self, why) -> LedgerError:
        return LedgerError(
            f"{self._path}: the spool cannot be extended ({why}); nothing was sent. Free space in "
            "the ledger directory and run again with --resume, or use replay= for this stream"
        )
