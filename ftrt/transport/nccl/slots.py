"""The memory of one end of a channel: slots on the GPU, and the words that host and GPU share."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftrt.transport.nccl import wire


class SlotMemory:
    """``slots`` slots, a table or verdicts of eight words each in host memory, and scratch words.

    Attributes
    ----------
    table : ndarray, shape (slots, 8), uint64
        The sender's: what to publish. The receiver's: verdicts with the headers they are for.
    params : ndarray, shape (slots, 8), uint64
        What a group that begins at a slot has in common.
    """

    def __init__(self, device: Any, slots: int, slot_bytes: int) -> None:
        self.slots, self.stride = slots, wire.stride_of(slot_bytes)
        self.slot_bytes = self.stride - wire.HEADER_BYTES
        self.memory = device.memory(slots * self.stride)
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

    def free(self) -> None:
        """Give the GPU memory back; nothing may use it any more."""
        self.memory.free()
        self.scratch.free()


def addresses(memory: SlotMemory, slot: int, count: int) -> np.ndarray:
    """Addresses of slots that follow each other."""
    first = memory.address_of(slot)
    return first + memory.stride * np.arange(count, dtype=np.int64)
