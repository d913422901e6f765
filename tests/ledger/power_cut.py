"""A disk that loses power: what was synced stays, of everything else any mixture may.

:func:`record` notes what each sync of this process made durable. :func:`cut` turns a directory into
one of the many that a power cut now can leave: every sector of a file is as it was at its last sync
or as it is now, a file that was never synced may be zeros or cut short, a name that was not synced
may be missing or lead to what it led to before.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import uuid
from collections.abc import Callable
from pathlib import Path

_SECTOR = 512
_TAG = "user.synced"


def record(store: Path, fails: Callable[[str], bool] = lambda path: False) -> None:
    """Keep in ``store`` what is synced from now on; ``fails(path)`` says which sync gets EIO."""
    os.fsync = _recording(os.fsync, store, fails)
    os.fdatasync = _recording(os.fdatasync, store, fails)


def _recording(real, store: Path, fails):
    def sync(descriptor):
        with open(store / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # or an older content could be kept over a newer
            kept(descriptor)

    def kept(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if fails(path):
            raise OSError(5, "Input/output error")
        # Read first: what is written while the sync runs may be durable or not.
        if os.path.isdir(path):
            name, content = "dir-" + path.replace("/", "%"), json.dumps(_names(path)).encode()
        else:
            name, content = _tag(descriptor), _content(f"/proc/self/fd/{descriptor}")
        real(descriptor)
        temporary = store / uuid.uuid4().hex
        temporary.write_bytes(content)
        os.replace(temporary, store / name)

    return sync


def _content(path) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _tag(file) -> str:
    """A name of the file itself, whatever it is called."""
    with contextlib.suppress(FileExistsError):  # another process was faster
        with contextlib.suppress(OSError):
            return os.getxattr(file, _TAG).decode()
        os.setxattr(file, _TAG, uuid.uuid4().hex.encode(), os.XATTR_CREATE)
    return os.getxattr(file, _TAG).decode()


def _names(directory) -> dict[str, str]:
    found = {}
    for entry in os.scandir(directory):
        if entry.is_file():
            with contextlib.suppress(FileNotFoundError):  # it went away meanwhile
                found[entry.name] = _tag(entry.path)
    return found


def cut(directory: Path, store: Path, seed: int) -> None:
    """Replace what is in ``directory`` by what a power cut may leave of it."""
    dice = random.Random(seed)
    for folder in (directory / "epochs", directory):
        synced = store / ("dir-" + str(folder).replace("/", "%"))
        before = json.loads(synced.read_bytes()) if synced.exists() else {}
        now = _names(folder) if folder.exists() else {}
        live = {tag: _content(folder / name) for name, tag in now.items()}
        for name in now:
            os.unlink(folder / name)
        for name in sorted({*before, *now} - {"lock"}):
            tag = dice.choice([before.get(name), now.get(name)])
            if tag is not None:
                content = _left(tag, live.get(tag), store, dice)
                (folder / name).write_bytes(content)
                (store / _tag(folder / name)).write_bytes(content)
        synced.write_text(json.dumps(_names(folder) if folder.exists() else {}))


def _left(tag: str, live: bytes | None, store: Path, dice: random.Random) -> bytes:
    saved = (store / tag).read_bytes() if (store / tag).exists() else None
    if live is None:
        return saved or b""
    if saved is None:
        saved = bytes(dice.choice([0, len(live), dice.randint(0, len(live))]))
    longest = max(len(live), len(saved))
    length = dice.choice([longest, len(saved)])
    share = dice.choice([0.0, 0.1, 0.5, 0.9, 1.0])
    live, saved = live.ljust(longest, b"\0"), saved.ljust(longest, b"\0")
    sectors = [
        (live if dice.random() < share else saved)[at : at + _SECTOR]
        for at in range(0, longest, _SECTOR)
    ]
    return b"".join(sectors)[:length]
