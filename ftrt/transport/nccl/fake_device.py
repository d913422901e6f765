"""A GPU in plain memory: streams are threads that work in order, kernels are their CPU twins.

Work that waits (a receive whose peer never sends) blocks its stream and nothing else, as on a real
device. Nothing here is fast; it exists so that all of the plane runs where there is no GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ftrt.errors import UsageError
from ftrt.transport.nccl import foreign, wire
from ftrt.transport.nccl.device import HOST_ARRAY

_handles = itertools.count(1)
_streams: weakref.WeakValueDictionary[int, FakeStream] = weakref.WeakValueDictionary()
#: Bytes of "device" memory that were not given back, of this process.
held = {"bytes": 0}
_POISON = 0xDD  # what is read of memory that was given back
#: Graphs of this process that were not destroyed.
live_graphs: list[FakeGraph] = []


class FakeMemory:
    """Device memory: its address is one of this process."""

    def __init__(self, size: int) -> None:
        self._store = np.zeros(size + 64, np.uint8)
        self.address = -(-self._store.ctypes.data // 64) * 64
        self.size = size
        held["bytes"] += size

    def free(self) -> None:
        """Whoever reads it from now on reads nonsense."""
        if self.address:
            self.address = 0
            self._store[:] = _POISON
            held["bytes"] -= self.size


class FakeWords:
    """Words that host and device see."""

    def __init__(self, count: int) -> None:
        self.words = np.zeros(count, np.uint64)
        self.address = self.words.ctypes.data


class FakeEvent:
    """An event."""

    def __init__(self) -> None:
        self._flag = threading.Event()
        self.set, self.wait = self._flag.set, self._flag.wait

    def done(self) -> bool:
        """Whether all before it has ended."""
        return self._flag.is_set()


class FakeStream:
    """Work in order, in a thread that ends when nobody refers to the stream any more."""

    def __init__(self) -> None:
        self.handle = next(_handles)
        _streams[self.handle] = self
        self._work: queue.SimpleQueue = queue.SimpleQueue()
        self.captured: list[Callable[[], object]] | None = None
        threading.Thread(
            target=_work_off, args=(self._work,), daemon=True, name=f"stream-{self.handle}"
        ).start()

    def __del__(self) -> None:
        self._work.put(None)

    def put(self, work: Callable[[], object]) -> None:
        """Queue work, or note it while the stream is captured."""
        if self.captured is not None:
            self.captured.append(work)
        else:
            self._work.put(work)


def _work_off(work: queue.SimpleQueue) -> None:
    while (one := work.get()) is not None:
        one()


def stream_of(handle: int) -> FakeStream:
    """The stream with a handle."""
    return _streams[handle]


class FakeGraph:
    """Captured work."""

    def __init__(self, work: list[Callable[[], object]]) -> None:
        self.work = work
        self.alive = True
        live_graphs.append(self)

    def launch(self, stream: FakeStream) -> None:
        """Queue all of it."""
        if not self.alive:
            raise UsageError("a graph was launched after its end")
        for work in self.work:
            stream.put(work)

    def destroy(self) -> None:
        """End it."""
        if self.alive:
            self.alive = False
            live_graphs.remove(self)


class FakeArray:
    """An array "on the device", for tests: CUDA's array interface over host memory."""

    def __init__(self, array: np.ndarray, device: int = 0, base: Any = None) -> None:
        self.array, self.device, self.base = array, device, base

    @property
    def __cuda_array_interface__(self) -> dict:
        return {**self.array.__array_interface__, "version": 3}

    def __getattr__(self, name: str):
        if name in ("dtype", "shape", "nbytes", "ndim", "size", "flags"):
            return getattr(self.array, name)
        raise AttributeError(name)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index) -> FakeArray:
        return FakeArray(self.array[index], self.device, self.base)

    def reshape(self, *shape: int) -> FakeArray:
        """The same bytes in another shape."""
        return FakeArray(self.array.reshape(*shape), self.device, self.base)

    def copy(self) -> FakeArray:
        """A copy on the device."""
        return FakeArray(self.array.copy(), self.device)

    def view(self) -> FakeArray:
        """Another array over the same memory."""
        return FakeArray(self.array, self.device, self)

    def get(self) -> np.ndarray:
        """A copy on the host, as CuPy's."""
        return self.array.copy()


class FakeGpuError(RuntimeError):
    """What CUDA says once its context is gone."""


class FakeDevice:
    """See :class:`ftrt.transport.nccl.device.Device`."""

    kind = None

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self._own: FakeStream | None = None
        self._lost = False

    def enter(self) -> None:
        """Every thread may use it."""

    def lose(self) -> None:
        """Fault injection: no call works any more."""
        self._lost = True

    def is_lost(self) -> bool:
        """Whether it was lost."""
        return self._lost

    def _look(self) -> None:
        if self._lost:
            raise FakeGpuError("an illegal memory access was encountered")

    def used_bytes(self) -> int:
        """What this process holds."""
        return held["bytes"]

    def memory(self, size: int) -> FakeMemory:
        """Zeroed memory."""
        return FakeMemory(size)

    def clear(self, address: int, size: int) -> None:
        """Zero it."""
        ctypes.memset(address, 0, size)

    def host_words(self, count: int) -> FakeWords:
        """Zeroed words."""
        return FakeWords(count)

    def stream(self) -> FakeStream:
        """A new stream."""
        return FakeStream()

    def idle(self, stream: FakeStream) -> bool:
        """Whether the stream has nothing left to do."""
        self._look()
        event = self.mark(stream)
        return event.wait(0.001)

    def mark(self, stream: FakeStream) -> FakeEvent:
        """An event behind all work so far."""
        self._look()
        event = FakeEvent()
        stream.put(event.set)
        return event

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        """Let later work wait."""
        stream.put(event.wait)

    def readers(self) -> list[FakeEvent]:
        """An event behind what the application has queued on its stream, if it has one."""
        return [] if self._own is None else [self.mark(self._own)]

    def publish(self, stream: FakeStream, grid: tuple[int, int], *arguments: int) -> None:
        """The CPU's way to write slots."""
        slots, stride, count, table, _ = arguments

        def work() -> None:
            words = (ctypes.c_int64 * (grid[1] * wire.TABLE_WORDS)).from_address(table)
            for i in range(grid[1]):
                source, size, frame, ident, seq, tally, part = words[8 * i : 8 * i + 7]
                base = slots + (frame - 1) % count * stride
                padded = wire.wire_bytes(size) - wire.HEADER_BYTES
                wire.publish_slot(base, source, size, frame, ident, seq, tally, part, padded)

        stream.put(work)

    def verify(self, stream: FakeStream, grid: tuple[int, int], *arguments: int) -> None:
        """The CPU's way to check slots."""
        self._look()
        slots, stride, count, capacity, stream_id, min_epoch, params, _, rows = arguments

        def work() -> None:
            operation, frame, next_seq = (ctypes.c_int64 * 3).from_address(params)
            for i in range(grid[1]):
                slot = (frame + i - 1) % count
                base, row = slots + slot * stride, rows + 64 * slot
                verdict = wire.verify_slot(
                    base, frame + i, stream_id, min_epoch, next_seq, capacity
                )
                ctypes.memmove(row + 8, base + 8, 56)
                ctypes.c_uint64.from_address(base).value = 0
                ctypes.c_uint64.from_address(row).value = (operation + i) << 3 | verdict

        stream.put(work)

    def poke(self, address: int, word: int) -> None:
        """Store one word."""
        ctypes.c_uint64.from_address(address).value = word

    def peek(self, address: int) -> int:
        """Read one word."""
        return ctypes.c_uint64.from_address(address).value

    def capture(self, stream: FakeStream, work: Callable[[], None]) -> FakeGraph:
        """Note what work puts into a stream."""
        stream.captured = []
        try:
            work()
            return FakeGraph(stream.captured)
        finally:
            stream.captured = None

    def application(self) -> FakeStream:
        """The stream of the application: what it puts there are its kernels."""
        if self._own is None:
            self._own = FakeStream()
        return self._own

    def published(self, stream: FakeStream) -> None:
        """Wait for the copy: the application works on host memory at once."""
        if not self.mark(stream).wait(10.0):
            raise UsageError("a copy took more than 10 s")

    def array(self, value: Any) -> FakeArray:
        """``value`` in C order, on this device."""
        bits = False
        if foreign.is_torch(value):
            value, bits = foreign.tensor(value)
        if not isinstance(value, FakeArray):
            array = self._foreign(value)
            value = FakeArray(array.view(f"u{array.itemsize}") if bits else array, self.index)
        if value.device != self.index:
            raise UsageError(
                f"the array lies on GPU {value.device}, this rank's is {self.index}: "
                "copy it there first"
            )
        array = foreign.with_a_name(value.array)
        if array is value.array and array.flags.c_contiguous:
            return value
        return FakeArray(np.ascontiguousarray(array), value.device)

    def _foreign(self, value: Any) -> np.ndarray:
        """An array of another library that says by CUDA's interface that it is on a device."""
        if hasattr(value, "__cuda_array_interface__"):
            told = type("Told", (), {"__array_interface__": value.__cuda_array_interface__})()
            return foreign.taken(np.asarray, told)
        kind = type(value)
        raise UsageError(f"a {kind.__module__}.{kind.__name__} was given: {HOST_ARRAY}")

    def upload(self, value: Any) -> FakeArray:
        """A host array on this device."""
        return FakeArray(np.array(value), self.index)

    def download(self, value: Any) -> Any:
        """A copy on the host; what is there, as it is."""
        return value.get() if isinstance(value, FakeArray) else value

    def stack(self, arrays: list[Any]) -> FakeArray:
        """Arrays of one shape behind each other."""
        return FakeArray(np.stack([array.array for array in arrays]), self.index)

    def address(self, array: FakeArray) -> int:
        """Where the bytes of an array lie."""
        return array.array.ctypes.data

    def spoil(self, stream: FakeStream, address: int) -> None:
        """Fault injection: overwrite a word, in the stream's order."""
        stream.put(lambda: ctypes.memset(address, 0x5A, 8) and None)

    def view(
        self,
        address: int,
        dtype: np.dtype,
        shape: tuple[int, ...],
        owner: Any,
        outer_stride: int | None = None,
    ) -> FakeArray:
        """An array over memory that lies there."""
        inner = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        rows = shape[0] if shape else 1
        size = (rows - 1) * (outer_stride or inner) + inner if rows else 0
        store: Any = (ctypes.c_uint8 * size).from_address(address) if size else b""
        octets = np.frombuffer(store, np.uint8)
        if outer_stride is None:
            return FakeArray(octets.view(dtype).reshape(shape), self.index, owner)
        lines = np.lib.stride_tricks.as_strided(octets, (rows, inner), (outer_stride, 1))
        return FakeArray(lines.view(dtype).reshape(shape), self.index, owner)
