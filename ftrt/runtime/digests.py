"""A sender's digests of what it sent to several receivers, in a file that survives its death.

One sparse file per life of the sender beside the ledger: word ``seq`` is the digest of message
``seq``, 0 where there is none. A word is written before its message leaves. Where two files have a
word for a number, the later life's counts: an earlier one wrote it for a message that nobody got.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import numpy as np
from numba import njit, types

from ftrt.errors import LedgerError
from ftrt.ledger.kept import DIGESTS, kept_files, kept_path
from ftrt.ledger.spool import give_back
from ftrt.transport import meta
from ftrt.transport.checksum import checksum

DIGEST_BYTES = 8
# Freed space goes back to the file system in pieces of this many numbers, whole pages of it.
FREED_AT_ONCE = 1 << 13


@njit(
    [
        types.void(types.Array(types.uint8, 1, "C", readonly=readonly), *(types.uint64,) * 2, out)
        for readonly in (False, True)
        for out in (types.Array(types.uint64, 1, "C"),)
    ],
    cache=True,
    nogil=True,
)
def _digest_rows(octets, first, kind, out):
    """Digests of ``len(out)`` messages of equal size from number ``first`` on."""
    size = len(octets) // len(out)
    for row in range(len(out)):
        seed = first + types.uint64(row)
        total = checksum(octets[row * size : (row + 1) * size], seed) + kind
        out[row] = total if total != types.uint64(0) else types.uint64(1)


def digests_of(rows: np.ndarray, first: int) -> np.ndarray:
    """Digests of the rows of an array as messages, over their bytes, dtype and shape.

    Parameters
    ----------
    rows : ndarray
        One message for each index of the first axis.
    first : int
        Number of the first message.

    Returns
    -------
    ndarray of uint64, shape (len(rows),)
        None of them is 0.
    """
    out = np.empty(len(rows), np.uint64)
    if len(rows):
        rows = meta.as_array(rows)
        _digest_rows(meta.octets(rows), first, _kind(rows.dtype, rows.shape[1:]), out)
    return out


_kinds: dict[tuple, np.uint64] = {}


def _kind(dtype: np.dtype, shape: tuple[int, ...]) -> np.uint64:
    """64 bits that stand for a dtype and a shape."""
    found = _kinds.get((dtype, shape))
    if found is None:
        if len(_kinds) >= 1024:
            _kinds.clear()
        words, size = meta.encode(dtype, shape)
        text = words.tobytes()[:size]
        found = np.uint64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
        _kinds[dtype, shape] = found
    return found


class Digests:
    """Digests of one ``(stream, source)``; readable by later lives of the source."""

    def __init__(self, directory: Path, stream: str, source: int, since_epoch: int):
        self._path = kept_path(directory, DIGESTS, stream, source, since_epoch, os.getpid())
        paths = reversed(kept_files(directory, DIGESTS, stream, source))
        self._earlier = [(path, os.open(path, os.O_RDWR)) for path in paths if path != self._path]
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        self._freed = 0

    def keep(self, first: int, rows: np.ndarray) -> None:
        """Note the digests of messages that are about to leave for the first time.

        Raises
        ------
        LedgerError
            They cannot be written; nothing was sent.
        """
        data = digests_of(rows, first).tobytes()
        try:
            written = os.pwrite(self._file, data, first * DIGEST_BYTES)
        except OSError as error:
            raise self._full(error) from error
        if written != len(data):
            raise self._full("the storage took only a part")

    def find(self, seq: int) -> int | None:
        """The digest of message ``seq`` as it left, None if there is none any more."""
        for descriptor in (self._file, *(file for _, file in self._earlier)):
            word = os.pread(descriptor, DIGEST_BYTES, seq * DIGEST_BYTES)
            if len(word) == DIGEST_BYTES and any(word):
                return int.from_bytes(word, "little")
        return None

    def free(self, upto: int) -> None:
        """Forget what every receiver has."""
        left = []
        for path, descriptor in self._earlier:
            if upto < os.fstat(descriptor).st_size // DIGEST_BYTES - 1:
                left.append((path, descriptor))
                continue
            os.close(descriptor)
            path.unlink(missing_ok=True)
        self._earlier = left
        keep_from = upto // FREED_AT_ONCE * FREED_AT_ONCE
        if keep_from > self._freed:
            give_back(
                self._file, self._freed * DIGEST_BYTES, (keep_from - self._freed) * DIGEST_BYTES
            )
            self._freed = keep_from

    @property
    def path(self) -> Path:
        """The file of this life."""
        return self._path

    def close(self) -> None:
        """Close the files; the contents stay."""
        for descriptor in (self._file, *(file for _, file in self._earlier)):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _full(self, why) -> LedgerError:
        return LedgerError(
            f"{self._path}: the digests of messages cannot be written ({why}); nothing was sent. "
            "Free space in the ledger directory and run again with --resume"
        )
