"""Room kept in the ledger directory to say, on a full disk, that it is full."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_NAME, _BYTES = "reserve", 256 << 10


def make_reserve(run: Path) -> None:
    """Keep room below ``run``, where there is some."""
    path = run / _NAME
    with contextlib.suppress(FileExistsError), open(path, "xb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, _BYTES)
        except OSError:
            path.unlink()


def with_room(run: Path, write: Callable[[], _T]) -> _T:
    """Call ``write``, and again with the room that was kept if the disk is full."""
    try:
        return write()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    (run / _NAME).unlink(missing_ok=True)
    return write()
