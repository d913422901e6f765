"""What the plane needs of a GPU. ``cuda`` is one; ``fake_device`` behaves as one, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


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
    kind: type | None  # as in ftrt.transport.arrays: every array is looked at

    def lose(self) -> None:
        """Fault injection: an error after which no call of this process works."""

    def is_lost(self) -> bool:
        """Whether no call of this process reaches the device any more."""

    def used_bytes(self) -> int:
        """Memory of this GPU that is in use, by whomever."""

    def memory(self, size: int) -> Memory:
        """Zeroed device memory."""

    def clear(self, address: int, size: int) -> None:
        """Zero device memory, whoever allocated it; done when this returns."""

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

    def application(self) -> Any:
        """The application's stream, behind what its other streams have queued so far."""

    def published(self, stream: Any) -> None:
        """Let the application's other streams wait for what :meth:`application` has now."""

    def array(self, value: Any) -> Any:
        """``value`` as an array of this device's kind in C order; UsageError if it is elsewhere."""

    def upload(self, value: Any) -> Any:
        """A host array on this device."""

    def download(self, value: Any) -> Any:
        """A copy on the host, once the work queued for it has ended; what is there, as it is."""

    def stack(self, arrays: list[Any]) -> Any:
        """Arrays of one shape behind each other."""

    def address(self, array: Any) -> int:
        """Where the bytes of an array lie."""

    def spoil(self, stream: Any, address: int) -> None:
        """Fault injection: overwrite a word, in the stream's order."""

    def view(
        self,
        address: int,
        dtype: np.dtype,
        shape: tuple[int, ...],
        owner: Any,
        outer_stride: int | None = None,
    ) -> Any:
        """An array of this device's kind over memory that lies there."""

    def enter(self) -> None:
        """Make this the calling thread's current device."""


HOST_ARRAY = (
    "the nccl plane moves device arrays (CuPy, torch on CUDA, numba): "
    "use cupy.asarray(array), or run with --plane host"
)
