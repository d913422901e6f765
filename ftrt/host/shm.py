"""Directories in shared memory: who keeps one locks it, so that what nobody keeps can be told."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from pathlib import Path

from ftrt.errors import UsageError

_SHM = Path("/dev/shm")
_LOCKED_AFTER_S = 5.0
_MIB = 1 << 20
#: MPI's own segment of a process, which is reserved without room: writing it later is SIGBUS.
_MPI_SEGMENT_BYTES = 16 * _MIB
_OURS_BYTES = 4 * _MIB


def check_room(processes: int) -> None:
    """Refuse to start where shared memory is too small for what the job begins with.

    Raises
    ------
    UsageError
        It has not the room; the message says how much is needed, and how to get it.
    """
    found = os.statvfs(_SHM)
    free, need = found.f_bavail * found.f_frsize, processes * _MPI_SEGMENT_BYTES + _OURS_BYTES
    if free < need:
        total = -(-(found.f_blocks * found.f_frsize - free + need) // _MIB)
        raise UsageError(
            f"{_SHM} has {free // _MIB} MiB left, {processes} processes need {need // _MIB} MiB: "
            f"type `mount -o remount,size={total}m {_SHM}`, or start the container with "
            f"--shm-size={total}m"
        )


def sweep() -> int:
    """Remove the shared memory of attempts that nobody holds any more; return how many there were.

    Whoever keeps such a directory locks it. Only a SIGKILL of the launcher *and* the agent leaves
    one behind: either of them removes it otherwise.
    """
    count = 0
    for path in filter(_is_ours, _SHM.glob("ftrt-*-*")):
        if _is_old(path) and (descriptor := hold(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)
            count += 1
    return count


def sweep_before(job: str, attempt: int) -> None:
    """Remove the shared memory of earlier attempts of a job on this host: it has begun anew."""
    for path in filter(_is_ours, _SHM.glob(f"ftrt-{job[:8]}-*")):
        number = path.name.rpartition("-")[2]
        if number.isdecimal() and int(number) < attempt:
            shutil.rmtree(path, ignore_errors=True)


def hold(directory: Path) -> int | None:
    """Lock ``directory`` until the returned descriptor is closed; None if somebody else does."""
    descriptor = None
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def _is_ours(path: Path) -> bool:
    return re.fullmatch(r"ftrt-[0-9a-f]{8}-(\d+|mpi)", path.name) is not None


def _is_old(path: Path) -> bool:
    """Has whoever made it had the time to lock it?"""
    try:
        return time.time() - path.stat().st_ctime > _LOCKED_AFTER_S
    except OSError:
        return False
