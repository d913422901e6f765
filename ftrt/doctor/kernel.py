"""What the kernel does for detection, replacement and tests, each tried with a real process."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable

from ftrt.doctor.check import Check, judged
from ftrt.host import libc

_LIMIT_S = 5.0


def checks() -> list[Check]:
    """All of them."""
    return [_robust_mutex(), _pidfd(), _slice(), _single_copy(), _namespaces()]


def _child(work: Callable[[], object]) -> int:
    """Fork a process that does ``work``, then waits to be killed; its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        while True:
            signal.pause()
    finally:
        os._exit(1)


def _robust_mutex() -> Check:
    """Kill a process that holds one, and see how soon it can be had."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc.init_robust_mutex(address)

    def hold() -> None:
        libc.lock_mutex(address)
        memory[libc.MUTEX_BYTES] = 1

    pid = _child(hold)
    try:
        deadline = time.monotonic() + _LIMIT_S
        while not memory[libc.MUTEX_BYTES] and time.monotonic() < deadline:
            time.sleep(0.001)
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while not _owner_died(address) and time.monotonic() < deadline:
            time.sleep(0.0001)
        took_ms = (time.monotonic() - begin) * 1e3
        good = _owner_died(address)
    finally:
        _reap(pid)
    said = f"a death shows after {took_ms:.1f} ms" if good else "a death did not show"
    fix = "use a kernel with futexes (not gVisor or an emulator)"
    return judged("robust mutex", good, said, "seen at once", fix, bad="fail")


def _owner_died(address: int) -> bool:
    word = ctypes.c_uint32.from_address(address).value
    return bool(word & 0x4000_0000) or not word & libc.MUTEX_OWNER


def _pidfd() -> Check:
    expected = "proof that a process is gone"
    fix = "use Linux 5.3 or later, with a container whose seccomp profile allows pidfd_open"
    pid = _child(lambda: None)
    try:
        descriptor = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            good = bool(select.select([descriptor], [], [], _LIMIT_S)[0])
        finally:
            os.close(descriptor)
        return judged("pidfd", good, "works" if good else "tells nothing", expected, fix, "fail")
    except OSError as error:
        return Check("pidfd", "fail", f"refused: {error.strerror}", expected, fix)
    finally:
        _reap(pid)


def _reap(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _slice() -> Check:
    good = libc.ask_short_slice()
    return judged(
        "sched_setattr",
        good,
        "short slices granted" if good else "refused",
        "watchers run soon on busy cores",
        "uname -r   # Linux 6.12 or later grants it, unless seccomp forbids sched_setattr",
    )


def _single_copy() -> Check:
    """Reads from another process, as MPI does inside a host."""
    data = mmap.mmap(-1, mmap.PAGESIZE)
    data[:5] = b"there"
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    pid = _child(lambda: None)
    try:
        here = ctypes.create_string_buffer(5)
        local = (ctypes.c_size_t * 2)(ctypes.addressof(here), 5)
        remote = (ctypes.c_size_t * 2)(address, 5)
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        read.restype = ctypes.c_ssize_t
        got = read(pid, local, ctypes.c_ulong(1), remote, ctypes.c_ulong(1), ctypes.c_ulong(0))
        why = os.strerror(ctypes.get_errno()) if got != 5 else ""
    finally:
        _reap(pid)
    return judged(
        "single copy",
        got == 5 and here.raw == b"there",
        f"process_vm_readv: {why or 'works'}",
        "MPI copies once, not twice, inside the host",
        "sysctl kernel.yama.ptrace_scope=0   # or docker run --cap-add SYS_PTRACE",
    )


def _namespaces() -> Check:
    """Only tests and campaigns of cut links use them."""
    name, expected = "namespaces", "for tests and campaigns with cut links only"
    fix = "sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
    try:
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--net", "true"],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except FileNotFoundError:
        return Check(
            name, "warn", "there is no unshare command", expected, "apt install util-linux"
        )
    except subprocess.TimeoutExpired:
        return Check(name, "warn", f"nothing within {_LIMIT_S:.0f} s", expected, fix)
    said = "user and network" if done.returncode == 0 else done.stderr.strip()[:100]
    return judged(name, done.returncode == 0, said, expected, fix)
