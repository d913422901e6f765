"""What a check of slots costs against a plain copy of the same bytes, in turn in one run.

On the host a core verifies slots in a ring; on plane nccl one launch verifies all of them on the
GPU. Raw is a copy of the payloads: it reads as much as a check, and writes it too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ftrt.errors import UsageError
from ftrt.transport.checksum import checksum
from ftrt.transport.nccl import wire
from ftrt.transport.nccl.kernels_grid import grid_of

_SIZES = (16, 65536, 1 << 20)
_SLOTS, _ROUNDS = 32, 15


def rows(plane: str = "host") -> list[dict]:
    """One row for each size: microseconds a slot, and the ratio of the bytes a second.

    Returns
    -------
    list of dict
        ``ratio`` above 1: the check reads its slots faster than the copy moves them.
    """
    if plane == "host":
        return [_row(size, *_host(size)) for size in _SIZES]
    if plane == "nccl":
        return [_row(size, *_gpu(size)) for size in _SIZES]
    raise UsageError(f"no benchmark of slots on plane {plane}: use --plane host or --plane nccl")


def _row(size: int, raw: Callable[[], float], ours: Callable[[], float]) -> dict:
    for _ in range(3):
        raw(), ours()
    pairs = [(raw(), ours()) for _ in range(_ROUNDS)]
    raws = [pair[0] for pair in pairs]
    return {
        "what": f"verify {_SLOTS} slots against a copy",
        "size": size,
        "unit": "us/slot",
        "raw": statistics.median(raws),
        "ftrt": statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(r / o for r, o in pairs),
        "spread": (max(raws) - min(raws)) / statistics.median(raws),
    }


def _host(size: int) -> tuple[Callable[[], float], Callable[[], float]]:
    source = np.random.default_rng(1).integers(0, 255, (_SLOTS, size), np.uint8)
    target = np.empty_like(source)
    times = max(1, (1 << 22) // (size * _SLOTS))

    def timed(work: Callable[[int], object]) -> float:
        start = time.perf_counter()
        for _ in range(times):
            for slot in range(_SLOTS):
                work(slot)
        return (time.perf_counter() - start) / times / _SLOTS * 1e6

    def copy(slot: int) -> None:
        target[slot] = source[slot]

    return lambda: timed(copy), lambda: timed(lambda slot: checksum(source[slot], 1))


def _gpu(size: int) -> tuple[Callable[[], float], Callable[[], float]]:
    import cupy

    from ftrt.transport.nccl.cuda import CudaDevice
    from ftrt.transport.nccl.slots import SlotMemory, fill

    device: Any = CudaDevice(0)
    memory = SlotMemory(device, _SLOTS, max(64, size))
    payload = cupy.random.default_rng(1).integers(0, 255, _SLOTS * size, cupy.uint8)
    target = cupy.empty_like(payload)
    stream = memory.streams[0]
    rows_of = SlotMemory(device, _SLOTS, max(64, size))  # its table holds the verdicts
    times = 20

    def publish() -> None:
        fill(memory.table, 0, _SLOTS, payload.data.ptr, size, 1, 1 << 32 | 7, 1, 1, 0)
        at = (memory.memory.address, memory.stride, _SLOTS)
        device.publish(
            stream, grid_of(size, _SLOTS), *at, memory.table_address, memory.scratch.address
        )
        stream.cupy.synchronize()

    def timed(work: Callable[[], object], before: Callable[[], object]) -> float:
        total = 0.0
        for _ in range(times):
            before()
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream.cupy)
            work()
            end.record(stream.cupy)
            end.synchronize()
            total += cupy.cuda.get_elapsed_time(start, end)
        return total / times / _SLOTS * 1e3

    def verify() -> None:
        memory.params[0, :3] = 1, 1, 0
        device.verify(
            stream,
            grid_of(size, _SLOTS),
            *(memory.memory.address, memory.stride, _SLOTS, max(64, size), 7, 0),
            *(memory.params_address, memory.scratch.address, rows_of.table_address),
        )

    def copy() -> None:
        cupy.cuda.runtime.memcpyAsync(
            target.data.ptr, payload.data.ptr, payload.nbytes, 3, stream.handle
        )

    publish()
    verify()
    stream.cupy.synchronize()
    if (rows_of.table[:, 0] & np.uint64(7)).any():
        raise UsageError("the slots of the benchmark are not sound")
    return lambda: timed(copy, publish), lambda: timed(verify, publish)


#: Bytes of a slot beside its payload, which the figures' sizes exclude.
HEADER_BYTES = wire.HEADER_BYTES
