"""One CUDA GPU, through CuPy; the kernels are compiled by numba and launched as CuPy functions.

A launch of numba's own costs 36 us from Python, one of CuPy 5. All kernels take plain 64-bit
numbers, so the machine code that numba makes is loaded and called as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ftrt.errors import FtrtError, UsageError
from ftrt.transport.nccl import foreign, kernels
from ftrt.transport.nccl.capabilities import cuda_mismatch
from ftrt.transport.nccl.device import HOST_ARRAY
from ftrt.transport.nccl.loading import missing_extra

try:
    import cupy
except ImportError as _error:
    raise missing_extra(_error) from _error

_NON_BLOCKING = 1  # the legacy default stream does not wait for ours, which may park


class CudaMemory:
    """Device memory, allocated and freed in a stream's order.

    The plain calls wait for all kernels of the process, also for one that is stuck with a dead
    peer.
    """

    def __init__(self, size: int, stream: CudaStream) -> None:
        self.size, self._stream = size, stream
        try:
            self.address = cupy.cuda.runtime.mallocAsync(size, stream.handle)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise MemoryError(f"{size} bytes: {error}") from error
        cupy.cuda.runtime.memsetAsync(self.address, 0, size, stream.handle)
        stream.cupy.synchronize()

    def free(self) -> None:
        """Give it back."""
        address, self.address = self.address, 0
        if address:
            cupy.cuda.runtime.freeAsync(address, self._stream.handle)


class CudaWords:
    """Pinned host memory."""

    def __init__(self, count: int) -> None:
        self._pinned = cupy.cuda.alloc_pinned_memory(8 * count)
        self.words = np.frombuffer(self._pinned, np.uint64, count)
        self.words[:] = 0
        self.address = int(self._pinned.ptr)


class CudaStream:
    """A non-blocking stream."""

    def __init__(self, stream: Any = None) -> None:
        self.cupy = cupy.cuda.Stream(non_blocking=True) if stream is None else stream
        self.handle = int(self.cupy.ptr)

    @classmethod
    def of(cls, stream: Any) -> CudaStream:
        """A stream of CuPy's."""
        return cls(stream)


class CudaEvent:
    """An event without a time."""

    def __init__(self, stream: Any) -> None:
        self.cupy = cupy.cuda.Event(disable_timing=True)
        self.cupy.record(stream)

    def done(self) -> bool:
        """Whether all before it has ended."""
        return bool(self.cupy.done)


class CudaGraph:
    """A graph and its exec, which are freed when they are dropped."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def launch(self, stream: CudaStream) -> None:
        """Launch it."""
        self._graph.launch(stream.cupy)

    def destroy(self) -> None:
        """CuPy frees graph and exec with their last reference, which is this one."""
        self._graph = None


class CudaDevice:
    """See :class:`ftrt.transport.nccl.device.Device`.

    Parameters
    ----------
    index : int
        CUDA device number.

    Raises
    ------
    UsageError
        There is no such GPU, or CuPy was built for another CUDA than the driver has.
    """

    kind = None

    def __init__(self, index: int = 0) -> None:
        count = gpu_count()
        if index >= count:
            raise UsageError(f"GPU {index} was asked for and this host has {count}")
        self.index = index
        self.enter()
        self._null = [CudaStream.of(cupy.cuda.Stream.null)]
        self._allocating = CudaStream()
        self._publish = _load(kernels.publish_kernel())
        self._verify = _load(kernels.verify_kernel())

    def enter(self) -> None:
        """Make this the calling thread's current device."""
        cupy.cuda.Device(self.index).use()

    def lose(self) -> None:
        """Fault injection: an illegal access, after which no call of this process works."""
        self._verify((1, 1), (kernels.THREADS,), (0, 64, 1, 0, 0, 0, 0, 0, 0), self._null[0].cupy)
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            self._null[0].cupy.synchronize()

    def is_lost(self) -> bool:
        """Whether the CUDA context of this process is gone."""
        try:
            cupy.cuda.runtime.memGetInfo()
        except cupy.cuda.runtime.CUDARuntimeError:
            return True
        return False

    def used_bytes(self) -> int:
        """Memory of this GPU that is in use, by whomever."""
        free, total = cupy.cuda.runtime.memGetInfo()
        return int(total - free)

    def memory(self, size: int) -> CudaMemory:
        """Zeroed device memory."""
        return CudaMemory(size, self._allocating)

    def clear(self, address: int, size: int) -> None:
        """Zero memory that the library allocated."""
        cupy.cuda.runtime.memsetAsync(address, 0, size, self._allocating.handle)
        self._allocating.cupy.synchronize()

    def host_words(self, count: int) -> CudaWords:
        """Zeroed pinned words."""
        return CudaWords(count)

    def stream(self) -> CudaStream:
        """A new stream."""
        return CudaStream()

    def idle(self, stream: CudaStream) -> bool:
        """Whether all work of a stream has ended."""
        return bool(stream.cupy.done)

    def mark(self, stream: CudaStream) -> CudaEvent:
        """An event behind all work so far."""
        return CudaEvent(stream.cupy)

    def wait(self, stream: CudaStream, event: CudaEvent) -> None:
        """Let later work of a stream wait for an event."""
        stream.cupy.wait_event(event.cupy)

    def readers(self) -> list[CudaEvent]:
        """Events on the streams of the application."""
        return [CudaEvent(stream.cupy) for stream in self._application()]

    def _application(self) -> list[CudaStream]:
        """CuPy's current stream, torch's, and the legacy default stream."""
        current = cupy.cuda.get_current_stream()
        torch = sys.modules.get("torch")
        if current.ptr == 0 and torch is None:
            return self._null
        streams = {current.ptr: CudaStream.of(current), 0: self._null[0]}
        if torch is not None and torch.cuda.is_initialized():
            handle = torch.cuda.current_stream(self.index).cuda_stream
            streams.setdefault(handle, CudaStream.of(cupy.cuda.ExternalStream(handle)))
        return list(streams.values())

    def application(self) -> CudaStream:
        """The application's stream, behind what its other streams have queued so far."""
        first, *others = self._application()
        for other in others:
            first.cupy.wait_event(CudaEvent(other.cupy).cupy)
        return first

    def published(self, stream: CudaStream) -> None:
        """Let the application's other streams wait for what :meth:`application` has now."""
        _, *others = self._application()
        if others:
            event = CudaEvent(stream.cupy)
            for other in others:
                other.cupy.wait_event(event.cupy)

    def publish(self, stream: CudaStream, grid: tuple[int, int], *arguments: int) -> None:
        """Launch the publishing kernel."""
        self._publish(grid, (kernels.THREADS,), arguments, stream=stream.cupy)

    def verify(self, stream: CudaStream, grid: tuple[int, int], *arguments: int) -> None:
        """Launch the checking kernel."""
        self._verify(grid, (kernels.THREADS,), arguments, stream=stream.cupy)

    def poke(self, address: int, word: int) -> None:
        """Store one word."""
        value = ctypes.c_uint64(word)
        cupy.cuda.runtime.memcpy(address, ctypes.addressof(value), 8, 1)

    def peek(self, address: int) -> int:
        """Read one word."""
        value = ctypes.c_uint64()
        cupy.cuda.runtime.memcpy(ctypes.addressof(value), address, 8, 2)
        return value.value

    def capture(self, stream: CudaStream, work: Callable[[], None]) -> CudaGraph:
        """What ``work`` puts into a stream, as a graph."""
        with stream.cupy:
            stream.cupy.begin_capture(1)  # of this thread alone: others go on allocating
            try:
                work()
            except BaseException:
                with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):  # says nothing more
                    stream.cupy.end_capture()
                raise
            graph = stream.cupy.end_capture()
        return CudaGraph(graph)

    def array(self, value: Any) -> Any:
        """``value`` as a CuPy array in C order, without a copy if it lies so already.

        Raises
        ------
        UsageError
            It is a host array, or lies on another GPU.
        """
        array = value if isinstance(value, cupy.ndarray) else self._foreign(value)
        if array.size and array.device.id != self.index:
            raise UsageError(
                f"the array lies on GPU {array.device.id}, this rank's is {self.index}: "
                "copy it there first"
            )
        array = foreign.with_a_name(array)
        return array if array.flags.c_contiguous else cupy.ascontiguousarray(array)

    def _foreign(self, value: Any) -> Any:
        """An array of another library as one of CuPy's, over the same memory."""
        bits = False
        if foreign.is_torch(value):
            value, bits = foreign.tensor(value)
        if hasattr(value, "__cuda_array_interface__"):
            array = foreign.taken(cupy.asarray, value)
        elif hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == 2:
            array = foreign.taken(cupy.from_dlpack, value)
        else:
            kind = type(value)
            raise UsageError(f"a {kind.__module__}.{kind.__name__} was given: {HOST_ARRAY}")
        return array.view(f"u{array.itemsize}") if bits else array

    def upload(self, value: Any) -> Any:
        """A host array on this GPU."""
        return cupy.asarray(value)

    def download(self, value: Any) -> Any:
        """A copy on the host, once the work queued for it has ended; what is there, as it is."""
        return value.get() if isinstance(value, cupy.ndarray) else value

    def stack(self, arrays: list[Any]) -> Any:
        """Arrays of one shape behind each other."""
        return cupy.stack(arrays)

    def address(self, array: Any) -> int:
        """Where the bytes of an array lie."""
        return int(array.data.ptr)

    def spoil(self, stream: CudaStream, address: int) -> None:
        """Fault injection: overwrite a word, in the stream's order."""
        cupy.cuda.runtime.memsetAsync(address, 0x5A, 8, stream.handle)

    def view(
        self,
        address: int,
        dtype: np.dtype,
        shape: tuple[int, ...],
        owner: Any,
        outer_stride: int | None = None,
    ) -> Any:
        """A CuPy array over memory that lies there; ``owner`` lives as long as it does.

        ``outer_stride`` is in bytes, of the first axis. A structured dtype, which CuPy lacks, is
        given as its bytes.
        """
        if dtype.fields is not None:
            shape, dtype = (*shape, dtype.itemsize), np.dtype(np.uint8)
        inner = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        rows = shape[0] if shape else 1
        size = (rows - 1) * (outer_stride or inner) + inner if rows else 0
        memory = cupy.cuda.UnownedMemory(address, max(size, 1), owner, self.index)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        if outer_stride is None:
            return cupy.ndarray(shape, dtype, pointer)
        strides = [dtype.itemsize]
        for length in reversed(shape[2:]):
            strides.insert(0, strides[0] * length)
        strides = (
            [outer_stride, *strides[-(len(shape) - 1) :]] if len(shape) > 1 else [outer_stride]
        )
        return cupy.ndarray(shape, dtype, pointer, strides=tuple(strides))


def gpu_count() -> int:
    """GPUs that this process sees.

    Raises
    ------
    UsageError
        There is no driver, or it is too old for these libraries.
    """
    try:
        built_for = cupy.cuda.runtime.runtimeGetVersion() // 1000
        problem = cuda_mismatch(built_for, cupy.cuda.runtime.driverGetVersion())
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UsageError(
            f"the nccl plane needs a GPU and CUDA finds none ({error}): use --plane host"
        ) from error
    if problem:
        raise UsageError(problem)
    return count


def _load(kernel: Any) -> Any:
    """The machine code of a numba kernel with one signature, as a CuPy function."""
    (signature,) = kernel.signatures
    text = kernel.inspect_asm(signature)
    name = re.search(r"\.entry\s+(\w+)\s*\(", text)
    if name is None:
        raise FtrtError("numba made no kernel")
    module = cupy.cuda.function.Module()
    module.load(text.encode())
    return _Function(module, module.get_function(name[1]))


class _Function:
    """A loaded function; it lives as long as its module."""

    def __init__(self, module: Any, function: Any) -> None:
        self._module, self._function = module, function

    def __call__(self, grid, block, arguments, stream) -> None:
        self._function(grid, block, arguments, stream=stream)
