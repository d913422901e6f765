"""The one module that calls NCCL (or RCCL): by its C interface, without a binding in between.

CuPy's binding lacks revoke, shrink, grow and non-blocking communicators, and nccl4py's costs 4 to
6 us a call; the C interface has everything and has been stable for years. Nothing here raises for
a result, and nothing waits but for the handle of a window, which comes when all ranks have made
it: codes go back to whoever knows what they mean there (``codes``, ``states``).
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Protocol

from ftrt.errors import UsageError
from ftrt.transport.nccl import groups
from ftrt.transport.nccl.capabilities import Capabilities
from ftrt.transport.nccl.codes import Result, describe
from ftrt.transport.nccl.loading import load

ID_BYTES = 128
_UNDEFINED = -(1 << 31)
_CONFIG_MAGIC, _CONFIG_VERSION = 0xCAFEBEEF, 21800  # later libraries take the older, shorter struct
_SHRINK_DEFAULT, _SHRINK_ABORT, _REVOKE_DEFAULT = 0, 1, 0
_WINDOW_SYMMETRIC = 1


class Library(Protocol):
    """What :class:`Nccl` and :class:`ftrt.transport.nccl.fake.FakeNccl` offer.

    A communicator is an opaque handle. Every call gives a result code; none waits for a peer,
    except on a blocking communicator.
    """

    capabilities: Capabilities

    def unique_id(self) -> bytes:
        """A new id, for one communicator."""

    def init(self, ranks: int, unique_id: bytes, rank: int, blocking: bool) -> tuple[int, Any]:
        """Join a communicator."""

    def async_error(self, comm: Any) -> tuple[int, int]:
        """Result of asking, and the state asked for."""

    def send(self, comm: Any, peer: int, addresses, sizes, stream: int) -> int:
        """Post one group of sends, ``sizes`` in bytes."""

    def receive(self, comm: Any, peer: int, addresses, sizes, stream: int) -> int:
        """Post one group of receives."""

    def revoke(self, comm: Any) -> int:
        """End the work in flight, keep the communicator as a parent."""

    def abort(self, comm: Any) -> int:
        """End the work in flight and the communicator."""

    def finalize(self, comm: Any) -> int:
        """Begin a clean end."""

    def destroy(self, comm: Any) -> int:
        """Free a communicator that was finalized or revoked."""

    def shrink(self, comm: Any, exclude: list[int], abort: bool) -> tuple[int, Any]:
        """A new communicator without some ranks."""

    def mem_alloc(self, size: int) -> int:
        """Address of device memory that can be registered; MemoryError if there is none."""

    def mem_free(self, address: int) -> int:
        """Give it back, once no communicator has it registered."""

    def register(self, comm: Any, address: int, size: int) -> tuple[int, Any]:
        """Register memory with a communicator; local to this rank."""

    def deregister(self, comm: Any, handle: Any) -> int:
        """Take a registration back, with no work in flight."""

    def register_window(self, comm: Any, address: int, size: int) -> tuple[int, Any]:
        """Register memory of all ranks together as a symmetric window."""

    def deregister_window(self, comm: Any, handle: Any) -> int:
        """Take a window back; local to this rank."""


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * ID_BYTES),)


class _Config(ctypes.Structure):
    """``ncclConfig_t`` as of 2.18."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


def _config(blocking: bool) -> _Config:
    config = _Config(ctypes.sizeof(_Config), _CONFIG_MAGIC, _CONFIG_VERSION, int(blocking))
    for name in ("cga_cluster_size", "min_ctas", "max_ctas", "split_share"):
        setattr(config, name, _UNDEFINED)
    return config


class Nccl:
    """A loaded libnccl or librccl.

    Parameters
    ----------
    path : str, optional
        The library; by default the one that this process has loaded already (so that CuPy and
        ftrt use the same), else one that is installed.

    Raises
    ------
    UsageError
        There is none; the text names the extra to install.
    """

    def __init__(self, path: str | None = None) -> None:
        loaded = load(path)
        self._lib, self.file, self.capabilities = loaded
        self._declare()
        self._ends = groups.words([self._address("ncclGroupStart"), self._address("ncclGroupEnd")])
        self._send, self._recv = self._address("ncclSend"), self._address("ncclRecv")

    def _declare(self) -> None:
        comm, pointer = ctypes.c_void_p, ctypes.POINTER
        for name, arguments in {
            "ncclGetVersion": [pointer(ctypes.c_int)],
            "ncclGetUniqueId": [pointer(_Id)],
            "ncclCommInitRank": [pointer(comm), ctypes.c_int, _Id, ctypes.c_int],
            "ncclCommInitRankConfig": [
                *(pointer(comm), ctypes.c_int, _Id, ctypes.c_int),
                pointer(_Config),
            ],
            "ncclCommGetAsyncError": [comm, pointer(ctypes.c_int)],
            "ncclCommRevoke": [comm, ctypes.c_int],
            "ncclCommAbort": [comm],
            "ncclCommFinalize": [comm],
            "ncclCommDestroy": [comm],
            "ncclCommShrink": [
                *(comm, pointer(ctypes.c_int), ctypes.c_int, pointer(comm)),
                *(pointer(_Config), ctypes.c_int),
            ],
            "ncclMemAlloc": [pointer(ctypes.c_void_p), ctypes.c_size_t],
            "ncclMemFree": [ctypes.c_void_p],
            "ncclCommRegister": [comm, comm, ctypes.c_size_t, pointer(comm)],
            "ncclCommDeregister": [comm, comm],
            "ncclCommWindowRegister": [comm, comm, ctypes.c_size_t, pointer(comm), ctypes.c_int],
            "ncclCommWindowDeregister": [comm, comm],
        }.items():
            if hasattr(self._lib, name):
                getattr(self._lib, name).argtypes = arguments

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._lib, name), ctypes.c_void_p).value or 0

    def unique_id(self) -> bytes:
        """A new id; whoever makes it must stay alive until all have joined."""
        made = _Id()
        code = self._lib.ncclGetUniqueId(ctypes.byref(made))
        if code:
            raise UsageError(f"NCCL makes no id: {describe(code)}; see NCCL_DEBUG=WARN")
        return ctypes.string_at(ctypes.byref(made), ID_BYTES)

    def init(self, ranks: int, unique_id: bytes, rank: int, blocking: bool) -> tuple[int, int]:
        """Join a communicator on the current device."""
        handle, made = ctypes.c_void_p(), _Id()
        ctypes.memmove(ctypes.byref(made), unique_id, ID_BYTES)
        if self.capabilities.has("nonblocking"):
            config = _config(blocking)
            code = self._lib.ncclCommInitRankConfig(
                ctypes.byref(handle), ranks, made, rank, ctypes.byref(config)
            )
        else:
            code = self._lib.ncclCommInitRank(ctypes.byref(handle), ranks, made, rank)
        return code, handle.value or 0

    def async_error(self, comm: int) -> tuple[int, int]:
        """Result of asking, and the state asked for."""
        state = ctypes.c_int()
        code = self._lib.ncclCommGetAsyncError(comm, ctypes.byref(state))
        return code, state.value

    def send(self, comm: int, peer: int, addresses, sizes, stream: int) -> int:
        """Post one group of sends; int64 arrays of addresses and bytes."""
        return groups.post(self._ends, self._send, addresses, sizes, peer, comm, stream)

    def receive(self, comm: int, peer: int, addresses, sizes, stream: int) -> int:
        """Post one group of receives."""
        return groups.post(self._ends, self._recv, addresses, sizes, peer, comm, stream)

    def revoke(self, comm: int) -> int:
        """End the work in flight, keep the communicator as a parent."""
        return self._lib.ncclCommRevoke(comm, _REVOKE_DEFAULT)

    def abort(self, comm: int) -> int:
        """End the work in flight and the communicator; may block (see ``states``)."""
        return self._lib.ncclCommAbort(comm)

    def finalize(self, comm: int) -> int:
        """Begin a clean end."""
        return self._lib.ncclCommFinalize(comm)

    def destroy(self, comm: int) -> int:
        """Free a communicator that was finalized or revoked."""
        return self._lib.ncclCommDestroy(comm)

    def shrink(self, comm: int, exclude: list[int], abort: bool) -> tuple[int, int]:
        """A new, non-blocking communicator without the ranks in ``exclude``."""
        handle, config = ctypes.c_void_p(), _config(False)
        flags = _SHRINK_ABORT if abort else _SHRINK_DEFAULT
        ranks = (ctypes.c_int * max(1, len(exclude)))(*exclude)
        code = self._lib.ncclCommShrink(
            comm, ranks, len(exclude), ctypes.byref(handle), ctypes.byref(config), flags
        )
        return code, handle.value or 0

    def mem_alloc(self, size: int) -> int:
        """Device memory that can be registered with communicators."""
        address = ctypes.c_void_p()
        code = self._lib.ncclMemAlloc(ctypes.byref(address), size)
        if code or not address.value:
            raise MemoryError(f"NCCL allocates no {size} bytes: {describe(code)}")
        return address.value

    def mem_free(self, address: int) -> int:
        """Give back what :meth:`mem_alloc` gave."""
        return self._lib.ncclMemFree(address)

    def register(self, comm: int, address: int, size: int) -> tuple[int, int]:
        """Register a buffer once, so that peers write it without a copy in between."""
        handle = ctypes.c_void_p()
        code = self._lib.ncclCommRegister(comm, address, size, ctypes.byref(handle))
        return code, handle.value or 0

    def deregister(self, comm: int, handle: int) -> int:
        """Take a registration back, before the communicator ends."""
        return self._lib.ncclCommDeregister(comm, handle)

    def register_window(self, comm: int, address: int, size: int) -> tuple[int, int]:
        """Register memory of all ranks together as a symmetric window.

        The place of the result is kept: a non-blocking communicator fills it in later.
        """
        handle = ctypes.c_void_p()
        code = self._lib.ncclCommWindowRegister(
            comm, address, size, ctypes.byref(handle), _WINDOW_SYMMETRIC
        )
        deadline_s = time.monotonic() + 5.0
        while code == Result.IN_PROGRESS and time.monotonic() < deadline_s:
            time.sleep(0.0002)
            asked, state = self.async_error(comm)
            code = asked or state
        return code, handle.value or 0

    def deregister_window(self, comm: int, handle: int) -> int:
        """Take a window back."""
        return self._lib.ncclCommWindowDeregister(comm, handle)


__all__ = ["ID_BYTES", "Library", "Nccl", "Result"]
