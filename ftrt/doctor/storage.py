"""What the ledger's directory can give: exclusive names, mapped files, the classes of --stable."""

from __future__ import annotations

import contextlib
import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path

from ftrt.doctor.check import Check, judged
from ftrt.errors import LedgerError
from ftrt.ledger.record import check_directory, file_system, stable_classes

_SYNCS = 9
#: No disk syncs faster; whoever does does not sync.
_HONEST_S = 15e-6
_FULL = 1 << 30


def checks(directory: Path) -> list[Check]:
    """Try it; nothing is left there."""
    elsewhere = "ftrt run --ledger DIR   # a folder on a disk that you can write to"
    existing = directory.resolve()
    while not existing.exists():
        existing = existing.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".ftrt-doctor.", dir=existing) as made:
            check_directory(Path(made))
            found = [_names(Path(made)), _mapped(Path(made)), _classes(Path(made))]
    except (LedgerError, OSError) as error:
        said = str(error) if isinstance(error, LedgerError) else f"{existing}: {error.strerror}"
        return [Check("ledger", "fail", said, "a folder that can be written", elsewhere)]
    free = os.statvfs(existing)
    room = free.f_bavail * free.f_frsize
    said = f"{existing} ({file_system(existing)}), {room / _FULL:,.0f} GiB free"
    fix = "df -h   # choose a --ledger with more room"
    return [judged("ledger", room > _FULL, said, "1 GiB or more", fix), *found]


def _names(directory: Path) -> Check:
    """One of two may make a name: an epoch has one record at most."""
    fix = "choose a --ledger on a file system with hard links (not FAT, not some FUSE)"
    first, second = directory / "first", directory / "second"
    first.write_text("1")
    try:
        os.link(first, second)
    except OSError as error:
        return Check("hard links", "fail", str(error.strerror), "an exclusive name", fix)
    with contextlib.suppress(FileExistsError):
        os.link(first, second)
        return Check("hard links", "fail", "a name was made twice", "an exclusive name", fix)
    return Check("hard links", "ok", "a name is made once", "an exclusive name")


def _mapped(directory: Path) -> Check:
    """What is stored in a map is what a read gives."""
    path = directory / "map"
    path.write_bytes(bytes(mmap.PAGESIZE))
    expected, fix = "reads see what maps store", "choose a --ledger on another file system"
    try:
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
            memory[8:12] = b"ftrt"
            good = os.pread(file.fileno(), 4, 8) == b"ftrt"
    except OSError as error:
        return Check("mapped files", "fail", str(error.strerror), expected, fix)
    said = "a store is seen" if good else "a store is not seen"
    return judged("mapped files", good, said, expected, fix, bad="fail")


def _classes(directory: Path) -> Check:
    """Whether the file system can give class host or power, and whether a sync is one."""
    kind, classes = file_system(directory), stable_classes(directory)
    took_s = _sync_s(directory)
    said = f"{', '.join(classes)}; a sync takes {took_s * 1e6:,.0f} µs"
    expected = "class power: on a disk that syncs"
    preloaded = "eatmydata" in os.environ.get("LD_PRELOAD", "")
    if "power" not in classes:
        fix = "ftrt run --ledger DIR   # on a disk, for --stable power"
        return Check("stable", "warn", f"{said} ({kind} is in memory)", expected, fix)
    if preloaded or took_s < _HONEST_S:
        why = "libeatmydata drops syncs" if preloaded else "too fast for any disk"
        fix = "unset LD_PRELOAD" if preloaded else "give the disk a cache that syncs"
        return Check("stable", "warn", f"{said}: {why}", expected, fix)
    return Check("stable", "ok", said, expected)


def _sync_s(directory: Path) -> float:
    times = []
    with open(directory / "sync", "wb") as file:
        for number in range(_SYNCS):
            file.write(bytes([number]) * 4096)
            file.flush()
            begin = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return statistics.median(times)
