"""The memory of one end of a channel: slots on the GPU, and the words that host and GPU share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types

from ftrt.transport.nccl import wire

_U64, _I64 = types.uint64, types.int64


class LibraryMemory:
    """Memory of the library's own allocator, which it can register with communicators."""

    def __init__(self, device: Any, library: Any, size: int) -> None:
        self.size, self._library = size, library
        self.address = library.mem_alloc(size)
        device.clear(self.address, size)

    def free(self) -> None:
        """Give it back."""
        address, self.address = self.address, 0
        if address:
            self._library.mem_free(address)


class Remains:
    """The memory of slots that nobody refers to any more, and what may still be at work in it.

    Attributes
    ----------
    events : list
        Behind what the application queued that reads or fills it.
    """

    def __init__(
        self, device: Any, streams: tuple, events: list, memories: list, host: Any
    ) -> None:
        self._device, self._streams, self._memories, self._host = device, streams, memories, host
        self.events = events
        self.since_s = time.monotonic()

    @property
    def bytes(self) -> int:
        """Of GPU memory."""
        return sum(memory.size for memory in self._memories)

    def is_quiet(self) -> bool:
        """Whether no kernel of this process works in it any more."""
        self.events = [event for event in self.events if not event.done()]
        return not self.events and all(self._device.idle(stream) for stream in self._streams)

    def free(self) -> None:
        """Give it back, once it is quiet."""
        memories, self._memories = self._memories, []
        for memory in memories:
            memory.free()
        self._host = None


class SlotMemory:
    """Slots, two streams, a table or verdicts in host memory, and scratch words.

    It is given back with its last reference: a channel's, an array's that lies in it, or, while a
    communicator may still write it, that of whoever ends the communicator. By then kernels of this
    process may still be queued that check it, clear it, or read it for the application: ``bury``
    gets what remains, and waits for them in a thread of its own.

    Parameters
    ----------
    library : Library, optional
        Whose allocator the slots come from, so that they can be registered.
    registers : str
        ``""``, ``"buffer"`` or ``"window"``: how they are registered with a pair.

    Attributes
    ----------
    table : ndarray, shape (slots, 8), uint64
        The sender's: what to publish. The receiver's: verdicts with the headers they are for.
    params : ndarray, shape (slots, 8), uint64
        What a group that begins at a slot has in common.
    used : list
        Events behind the last work of the application's streams in here.
    """

    def __init__(
        self,
        device: Any,
        slots: int,
        slot_bytes: int,
        *,
        library: Any = None,
        registers: str = "",
        bury: Callable[[Remains], object] = Remains.free,
    ) -> None:
        self.slots, self.stride = slots, wire.stride_of(slot_bytes)
        self.slot_bytes = self.stride - wire.HEADER_BYTES
        self.registers, self._device, self._bury = registers, device, bury
        self.used: list[Any] = []
        # Made beforehand with the rest: amid a fault nothing may wait for work that is stuck.
        self.streams = device.stream(), device.stream()
        size = slots * self.stride
        self.memory = LibraryMemory(device, library, size) if registers else device.memory(size)
        self.scratch = device.memory(slots * wire.SCRATCH_BYTES)
        self.host = device.host_words(2 * slots * wire.ROW_WORDS)
        words = self.host.words.reshape(2, slots, wire.ROW_WORDS)
        self.table, self.params = words[0], words[1]
        self.table_address = self.host.address
        self.params_address = self.host.address + slots * wire.ROW_WORDS * 8

    def address_of(self, slot: int) -> int:
        """Address of a slot's header."""
        return self.memory.address + slot * self.stride

    @property
    def device_bytes(self) -> int:
        """Bytes of GPU memory that it takes."""
        return self.memory.size + self.scratch.size

    def __del__(self) -> None:
        memories = [getattr(self, name, None) for name in ("memory", "scratch")]
        there = [memory for memory in memories if memory is not None]
        with contextlib.suppress(Exception):  # the interpreter, or the GPU, may be at its end
            events = [*self.used, *self._device.readers()]
            host = getattr(self, "host", None)
            self._bury(Remains(self._device, self.streams, events, there, host))


def addresses(memory: SlotMemory, slot: int, count: int) -> np.ndarray:
    """Addresses of slots that follow each other."""
    first = memory.address_of(slot)
    return first + memory.stride * np.arange(count, dtype=np.int64)


@njit(types.void(types.Array(_U64, 2, "C"), *(_I64,) * 9), cache=True, nogil=True)
def fill(table, slot, count, source, size, frame, ident, seq, each, flags):
    """Write the rows that the publishing kernel reads: ``count`` slots of ``size`` bytes."""
    for i in range(count):
        row = table[slot + i]
        row[0] = _U64(source + i * size)
        row[1] = _U64(size)
        row[2] = _U64(frame + i)
        row[3] = _U64(ident)
        row[4] = _U64(seq + i * each)
        row[5] = _U64(each << 32 | flags)
        row[6] = _U64(1)


@njit(
    types.void(types.Array(_U64, 2, "C"), types.Array(_U64, 2, "C"), *(_I64,) * 4),
    cache=True,
    nogil=True,
)
def expect(table, params, slot, count, operation, frame):
    """Clear the verdicts of slots and say what the checking kernel is to expect there."""
    for i in range(count):
        table[slot + i, 0] = _U64(0)
    params[slot, 0] = _U64(operation)
    params[slot, 1] = _U64(frame)
    params[slot, 2] = _U64(0)  # what comes twice the receiver of the stream sees


@njit(types.int64(types.Array(_U64, 2, "C"), _I64, _I64, _I64), cache=True, nogil=True)
def verdict(table, slot, count, operation):
    """0 while a verdict is missing, 1 if all slots are sound, else 2."""
    sound = True
    for i in range(count):
        word = table[slot + i, 0]
        if (word >> _U64(3)) != _U64(operation + i):
            return 0
        sound = sound and (word & _U64(7)) == _U64(0)
    return 1 if sound else 2
