"""The only module that imports h5py: makes files that everybody else maps."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

import numpy as np

from ..errors import LedgerError
from . import layout, statefmt
from .steps import step


def _dataset(h5py, file, name: str, dtype: np.dtype, count: int) -> int:
    """Contiguous dataset that has its place in the file from the start; returns that place."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.CONTIGUOUS)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((count,))
    kind = h5py.h5t.py_create(dtype, logical=True)
    dataset = h5py.h5d.create(file.id, name.encode(), kind, space, plist)
    return dataset.get_offset()


def _write_file(path: Path, datasets, magic: bytes) -> None:
    import h5py

    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_V110)
    access.set_alignment(1, 64)  # words that are swapped atomically must not straddle a line
    create = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    create.set_userblock(layout.USERBLOCK)
    with h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_EXCL, create, access)) as file:
        offsets = [_dataset(h5py, file, *dataset) for dataset in datasets]
    user = np.zeros((), layout.USER)
    length = -(-path.stat().st_size // 8) * 8
    user["magic"], user["version"], user["length"] = magic, layout.VERSION, length
    user["offsets"][: len(offsets)] = offsets
    user["counts"][: len(offsets)] = [count for _, _, count in datasets]
    user["check"] = layout.fields_check(user, layout.USER_FIELDS)
    with open(path, "r+b") as raw:
        os.posix_fallocate(raw.fileno(), 0, length)  # a full disk shows here, not as SIGBUS later
        raw.write(user.tobytes())


def _create(path, datasets, magic: bytes) -> None:
    path = Path(path)
    temporary = path.with_name(f"tmp-{uuid.uuid4().hex}")
    try:
        _probe(temporary, sum(dtype.itemsize * count for _, dtype, count in datasets))
        step("file.probed")
        _write_file(temporary, datasets, magic)
        step("file.written")
        os.rename(temporary, path)
        step("file.named")
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        raise LedgerError(f"{path}: cannot be made: {_reason(error)}") from error


def _probe(path: Path, length: int) -> None:
    """Find a full disk before HDF5 does, which would keep the file open when its close fails."""
    with open(path, "xb") as file:
        os.posix_fallocate(file.fileno(), 0, length + 8192)
    path.unlink()


def _reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "no space left for it; free some or choose another ledger directory"
    return os.strerror(error.errno) if error.errno else str(error)


def create_segment_file(path, pages: int = 64) -> None:
    """Make a blank ledger segment with room for ``pages * 512`` run words.

    Raises
    ------
    LedgerError
        The file cannot be made (disk full, no permission); nothing is left behind.
    """
    _create(
        path,
        [
            ("header", layout.HEADER, 1),
            ("streams", layout.STREAM, layout.STREAMS),
            ("pages", np.dtype("<u8"), pages),
            ("words", np.dtype("<u8"), pages * layout.PAGE_WORDS),
        ],
        layout.MAGIC,
    )


def create_state_file(path, capacity_bytes: int) -> None:
    """Make an empty state file with ``capacity_bytes`` for the buffers of its keys."""
    _create(
        path,
        [
            ("slots", statefmt.SLOT, statefmt.SLOTS),
            ("data", np.dtype("u1"), capacity_bytes),
        ],
        layout.STATE_MAGIC,
    )
