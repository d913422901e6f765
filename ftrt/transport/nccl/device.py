"""What the plane needs of a GPU. ``cuda`` is one; ``fake_device`` behaves as one, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from ftrt.errors import UsageError


class Memory(Protocol):
    """Device memory, zeroed when it was made."""

    address: int
    size: int

    def free(self) -> None:
        """Give it back; nothing on the device may use it any more."""


class HostWords(Protocol):
    """Host memory that kernels read and write, as uint64 words."""

    words: np.ndarray
    address: int


class Graph(Protocol):
    """Work that was captured once and is launched as a whole."""

    def launch(self, stream: Any) -> None:
        """Launch it in a stream."""

    def destroy(self) -> None:
        """Free exec and graph; what was launched still runs to its end."""


class Device(Protocol):
    """One GPU, and the launches of the two kernels on it."""

    index: int

    def memory(self, size: int) -> Memory:
        """Zeroed device memory."""

    def host_words(self, count: int) -> HostWords:
        """Zeroed words that host and device see."""

    def stream(self) -> Any:
        """A stream of its own, with a ``handle``."""

    def idle(self, stream: Any) -> bool:
        """Whether all work of a stream has ended."""

    def mark(self, stream: Any) -> Any:
        """An event behind all work of a stream so far, with ``done()``."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let later work of a stream wait for an event."""

    def readers(self) -> list[Any]:
        """Events behind what the application has queued so far, on every stream it uses."""

    def publish(self, stream: Any, grid: tuple[int, int], *arguments: int) -> None:
        """Launch the publishing kernel."""

    def verify(self, stream: Any, grid: tuple[int, int], *arguments: int) -> None:
        """Launch the checking kernel."""

    def poke(self, address: int, word: int) -> None:
        """Fault injection: store one word, at once."""

    def peek(self, address: int) -> int:
        """Read one word, at once."""

    def capture(self, stream: Any, work: Callable[[], None]) -> Graph:
        """What ``work`` puts into a stream, as a graph, without running it."""

    def view(self, address: int, dtype: np.dtype, shape: tuple[int, ...], owner: Any) -> Any:
        """An array of this device's kind over memory that lies there."""

    def enter(self) -> None:
        """Make this the calling thread's current device."""


class Payload(NamedTuple):
    """An array of the application, as the plane moves it."""

    address: int
    nbytes: int
    dtype: np.dtype
    shape: tuple[int, ...]
    owner: Any


_STANDARD_ONLY = (
    "the nccl plane moves device arrays (CuPy, torch on CUDA, numba): "
    "use cupy.asarray(array), or run with --plane host"
)


def payload_of(value: Any, device: Any) -> Payload:
    """Where the bytes of a device array lie; a copy on the device if they are not contiguous.

    Raises
    ------
    UsageError
        It is a host array, or lies on another device.
    """
    if not hasattr(value, "__cuda_array_interface__"):
        kind = type(value)
        raise UsageError(f"a {kind.__module__}.{kind.__name__} was given: {_STANDARD_ONLY}")
    made = device.contiguous(value)
    found = made.__cuda_array_interface__
    dtype, shape = np.dtype(found["typestr"]), tuple(found["shape"])
    if "descr" in found and dtype.kind == "V":
        dtype = np.dtype([tuple(field) for field in found["descr"]])
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return Payload(int(found["data"][0] or 0), nbytes, dtype, shape, made)
