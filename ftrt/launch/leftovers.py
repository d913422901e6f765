"""Removes what a job that ended may have left: processes and shared memory of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

SHM = Path("/dev/shm")


def clean(job: str, attempt_dir: Path, deadline_s: float = 5.0) -> int:
    """Kill the processes of ``job`` that still live, remove its shared memory; return their count.

    A process belongs to the job if it was started with its ``FTRT_JOB``, or if the attempt's
    ``pids`` file names it with the start time that it has.
    """
    killed: set[int] = set()
    end = time.monotonic() + deadline_s
    while (alive := of_job(job) | by_file(attempt_dir / "pids")) and (time.monotonic() < end):
        kill(alive)
        killed |= alive
        time.sleep(0.02)
    for path in SHM.glob(f"ftrt-{job[:8]}-*"):
        _remove(path)
    return len(killed)


def sweep_mpich(since_s: float) -> int:
    """Remove shared memory of MPICH that was made since then and that nobody uses; how many.

    A rank takes the name off it once MPI has begun (:class:`ftrt.mpi.World`); what dies before
    leaves it. The names tell nothing of the job, so that what another process maps or has open is
    another job's.
    """
    made = [path for path in SHM.glob("mpich_shm_*") if _is_mine(path, since_s)]
    used = _used_files() if made else set[str]()
    unused = [path for path in made if str(path) not in used]
    for path in unused:
        path.unlink(missing_ok=True)
    return len(unused)


def _is_mine(path: Path, since_s: float) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and status.st_ctime >= since_s


def _used_files() -> set[str]:
    """Files in shared memory that a process of this user maps or has open."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # somebody else's, or gone
            maps = (process / "maps").read_text().splitlines()
            found.update(line.split()[-1] for line in maps if f" {SHM}/" in line)
            found.update(os.readlink(link) for link in (process / "fd").iterdir())
    return found


def start_time(pid: int) -> str | None:
    """Return the start time of a live process as /proc shows it; None if dead or a zombie."""
    fields = _stat(pid)
    return None if fields[0] in "ZX" else fields[19]


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    return _stat(pid)[0] in "Tt"


def kill(pids: Iterable[int]) -> None:
    """End processes that may be gone by now."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` behind the name; those of a dead process if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X"]


def of_job(job: str) -> set[int]:
    """Living processes that were started with this job in their environment."""
    mark = f"FTRT_JOB={job}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0") and start_time(
                int(entry.name)
            ):
                found.add(int(entry.name))
    return found


def by_file(path: Path) -> set[int]:
    """Living processes that a ``pids`` file names, each with its start time."""
    if not path.exists():
        return set()
    found = set()
    for line in path.read_text().splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[0].isdigit() and start_time(int(fields[0])) == fields[1]:
            found.add(int(fields[0]))
    return found


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
