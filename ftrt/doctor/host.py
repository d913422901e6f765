"""What the host gives: shared memory, cores, limits."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from pathlib import Path

from ftrt.doctor.check import Check, judged
from ftrt.errors import UsageError
from ftrt.host.shm import check_room

SHM = Path("/dev/shm")
_MIB = 1 << 20
#: A Unix socket's address ends at 107 bytes, and mpirun puts about 60 behind this.
_TMPDIR_CHARS = 45


def shared_memory(processes: int, shm: Path = SHM) -> list[Check]:
    """Is it there, writable, and large enough for so many processes?"""
    expected = f"room for {processes} processes"
    try:
        found = os.statvfs(shm)
        with tempfile.NamedTemporaryFile(prefix="ftrt-doctor.", dir=shm) as file:
            os.posix_fallocate(file.fileno(), 0, _MIB)
    except OSError as error:
        fix = f"mount -t tmpfs tmpfs {shm}   # or docker run --shm-size=1g"
        return [Check("shared memory", "fail", f"{shm}: {error.strerror}", expected, fix)]
    said = f"{shm} {found.f_bavail * found.f_frsize // _MIB:,} MiB free"
    try:
        check_room(processes)
    except UsageError as error:
        total = (found.f_blocks * found.f_frsize // _MIB) + processes * 24
        fix = f"mount -o remount,size={total}m {shm}   # or docker run --shm-size={total}m"
        return [Check("shared memory", "fail", str(error).partition(":")[0], expected, fix)]
    return [Check("shared memory", "ok", said, expected)]


def left_behind(shm: Path = SHM) -> list[Check]:
    """Shared memory of NCCL and MPI that no living process maps: it takes room for ever."""
    kinds = ("nccl-*", "cuda.shm.*", "sm_segment.*", "vader_segment.*", "mpich_shm_*")
    candidates = {path for kind in kinds for path in shm.glob(kind)}
    old = sorted(candidates - _mapped(shm)) if candidates else []
    size = 0
    for path in old:
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    said = f"{len(old)} files, {size // _MIB} MiB, for example {old[0]}" if old else "nothing"
    names = " ".join(map(str, old[:4])) + (" …" if len(old) > 4 else "")
    return [judged("left behind", not old, said, "nothing of dead processes", f"rm {names}")]


def _mapped(shm: Path) -> set[Path]:
    """Files in shared memory that a process maps, as far as this user may see."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            for line in maps.read_text(errors="replace").splitlines():
                if str(shm) in line:
                    found.add(Path(line[line.index(str(shm)) :]))
    return found


def cores(processes: int, root: Path = Path("/sys/fs/cgroup")) -> list[Check]:
    """Cores that this process may use, a quota included, against processes and the agent."""
    have = float(len(os.sched_getaffinity(0)))
    quota = _quota(root)
    said = f"{have:.0f} cores" + (f", quota of {quota:g}" if quota is not None else "")
    usable = have if quota is None else min(have, quota)
    fix = f"ftrt run -n {max(1, int(usable) - 1)} …   # or ask for {processes + 1} cores"
    name = "core" if processes == 1 else "cores"
    expected = f"{processes + 1} {name}: one a process, one for the agent; else they take turns"
    return [judged("cores", usable > processes, said, expected, fix)]


def _quota(root: Path) -> float | None:
    """Cores that control groups allow, the smallest from ours up to the root."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        own = Path("/proc/self/cgroup").read_text().strip().split("::")[-1].strip("/")
        found = []
        for path in [root / own, *(root / own).parents]:
            with contextlib.suppress(OSError, ValueError):
                limit, period = (path / "cpu.max").read_text().split()
                if limit != "max":
                    found.append(int(limit) / int(period))
            if path == root:
                break
        return min(found, default=None)
    return None


def limits(processes: int) -> list[Check]:
    """Open files, locked memory, core dumps."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 64 + 16 * processes
    checks = [
        judged(
            "open files",
            files >= need,
            f"{files} (ulimit -n), at most {most}",
            f"{need} for {processes} processes",
            f"ulimit -n {need}",
            bad="fail",
        )
    ]
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    checks.append(
        judged(
            "core dumps",
            core == 0,
            "off" if core == 0 else f"on (ulimit -c {_limit(core)})",
            "off: the death of a rank is seen once its dump is written",
            "ulimit -c 0",
        )
    )
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    network = any(Path("/sys/class/infiniband").glob("*"))
    fine = not network or locked == resource.RLIM_INFINITY
    said = f"{_limit(locked)} (ulimit -l)" + ("" if network else ", no RDMA network here")
    checks.append(
        judged(
            "locked memory", fine, said, "unlimited, with an RDMA network", "ulimit -l unlimited"
        )
    )
    return checks


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def temporary_files() -> list[Check]:
    """mpirun makes sockets below it, whose paths have a limit."""
    path = tempfile.gettempdir()
    fine = len(path) <= _TMPDIR_CHARS and os.access(path, os.W_OK)
    return [
        judged(
            "temporary files",
            fine,
            f"{path}, {len(path)} characters",
            f"writable, at most {_TMPDIR_CHARS} characters: sockets are below it",
            "export TMPDIR=/tmp",
        )
    ]
