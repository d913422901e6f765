"""The few libc calls that Python does not offer: futexes, robust mutexes, short scheduler slices.

Every call goes through :mod:`ctypes`, which releases the GIL, so that a thread that waits here
does not keep its process from working.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import struct
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_X86 = platform.machine() in ("x86_64", "AMD64")
_SYS_FUTEX = 202 if _X86 else 98
_SYS_SCHED_SETATTR = 314 if _X86 else 274
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_EVERYONE = 2**31 - 1
_PR_SET_PDEATHSIG = 1
_PF_EXITING = 0x4
_PIDFD_GET_INFO, _PIDFD_INFO_EXIT = 0xC040_FF0B, 1 << 3
_DAEMONS = ("mpirun", "prterun", "prted", "orted", "hydra_pmi_proxy")

#: Bytes reserved for one ``pthread_mutex_t`` (40 on x86-64, 48 on ARM64).
MUTEX_BYTES = 64
#: Bits of a robust mutex's first 32-bit word that hold its owner's thread number.
MUTEX_OWNER = 0x3FFF_FFFF
_PTHREAD_PROCESS_SHARED, _PTHREAD_MUTEX_ROBUST = 1, 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def futex_wait(address: int, expected: int, timeout_s: float) -> bool:
    """Sleep while the 32-bit word at ``address`` holds ``expected``; False after ``timeout_s``."""
    whole = int(timeout_s)
    limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
    result = _libc.syscall(
        _SYS_FUTEX,
        ctypes.c_void_p(address),
        _FUTEX_WAIT,
        ctypes.c_uint32(expected & 0xFFFFFFFF),
        ctypes.byref(limit),
        None,
        0,
    )
    return result == 0 or ctypes.get_errno() != errno.ETIMEDOUT


def futex_wake(address: int) -> None:
    """Wake every process that sleeps on the word at ``address``."""
    _libc.syscall(_SYS_FUTEX, ctypes.c_void_p(address), _FUTEX_WAKE, _EVERYONE, None, None, 0)


def init_robust_mutex(address: int) -> None:
    """Make a robust, process-shared mutex in the ``MUTEX_BYTES`` bytes at ``address``."""
    attributes = ctypes.create_string_buffer(64)
    _check(_libc.pthread_mutexattr_init(attributes), "pthread_mutexattr_init")
    _check(
        _libc.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED),
        "pthread_mutexattr_setpshared",
    )
    _check(
        _libc.pthread_mutexattr_setrobust(attributes, _PTHREAD_MUTEX_ROBUST),
        "pthread_mutexattr_setrobust",
    )
    _check(_libc.pthread_mutex_init(ctypes.c_void_p(address), attributes), "pthread_mutex_init")


def lock_mutex(address: int) -> bool:
    """Lock the mutex at ``address``; True if its last owner died while it held it.

    Waits for as long as the owner lives: only a thread that may wait so calls it.
    """
    result = _libc.pthread_mutex_lock(ctypes.c_void_p(address))
    if result == errno.EOWNERDEAD:
        _libc.pthread_mutex_consistent(ctypes.c_void_p(address))
        return True
    _check(result, "pthread_mutex_lock")
    return False


def ask_short_slice(slice_us: int = 100) -> bool:
    """Ask the scheduler for short slices for this thread (SCHED_OTHER, no privilege needed)."""
    attributes = struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, slice_us * 1000, 0, 0)
    return _libc.syscall(_SYS_SCHED_SETATTR, 0, attributes, 0) == 0


def core() -> int:
    """Number of the core on which this thread runs."""
    return int(_libc.sched_getcpu())


def keep_to(thread: int, cores: Iterable[int]) -> None:
    """Have a thread (0: this one) run on these cores alone, where that is allowed."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(thread, cores)


def keep_off_this_core(pid: int) -> set[int]:
    """Have the main thread of ``pid`` run on other cores than this one, where it may.

    Returns
    -------
    set of int
        The cores on which it ran before.
    """
    cores: set[int] = set()
    with contextlib.suppress(OSError):
        cores = os.sched_getaffinity(pid)
        others = cores - {core()}
        if others:
            os.sched_setaffinity(pid, others)
    return cores


def stand_back(pid: int) -> None:
    """Have every thread of ``pid`` run only where nobody else wants to.

    For a process that is being killed: the kernel frees its memory on its own time, several
    milliseconds of a core that those who take over its work need.
    """
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def end_with_mpirun() -> None:
    """Have the kernel kill this process once its parent is gone, if that is a daemon of mpirun.

    A rank without its daemon belongs to no job any more, and nobody else would end it.
    """
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/comm") as comm:
            if comm.read().strip() not in _DAEMONS:
                return
    except OSError:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it went before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def leave_after_python() -> bool:
    """Have ``exit()`` end this process with its status before any library cleans up after itself.

    The interpreter is through by then, so the status is the program's own. False where the C
    library cannot do it.
    """
    on_exit = getattr(_libc, "on_exit", None)  # glibc; the handler that is added last runs first
    return on_exit is not None and on_exit(_libc._exit, None) == 0


def process_ended(descriptor: int) -> bool:
    """Whether the process behind a pidfd is gone."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


def wait_status(descriptor: int) -> int | None:
    """How the process behind a pidfd ended, as ``waitpid`` tells its parent.

    None while it runs, and on kernels before Linux 6.15, which tell the parent alone.
    """
    asked = bytearray(struct.pack("Q56x", _PIDFD_INFO_EXIT))
    try:
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, asked)
    except OSError:
        return None
    told, status = struct.unpack("Q52xi", asked)
    return status if told & _PIDFD_INFO_EXIT else None


def is_leaving(pid: int) -> bool:
    """Whether a process has begun to exit, or is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)
    except (OSError, IndexError, ValueError):
        return True


def process_start_ticks(pid: int) -> int:
    """Start time of ``pid`` in clock ticks since boot, 0 if there is no such process.

    With the process id it names one process for good: an id that is re-used starts later.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def is_running(pid: int, start_ticks: int) -> bool:
    """Whether the process that was started then is neither gone nor a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        return fields[0] not in (b"Z", b"X") and int(fields[19]) == start_ticks
    except (OSError, IndexError, ValueError):
        return False


def _check(result: int, call: str) -> None:
    if result:
        raise OSError(result, f"{call}: {os.strerror(result)}")
