"""The GPU kernels against the CPU's definition of a slot. Run by test_kernels.py in the simulator,
and by tests/gpu on a GPU's own kernels (with NUMBA_ENABLE_CUDASIM unset)."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ftrt.transport import slots as cpu
from ftrt.transport.checksum import reference
from ftrt.transport.nccl import kernels, wire
from ftrt.transport.slots import Verdict

SLOTS, SLOT_BYTES = 4, 1024
STREAM, EPOCH = 0xABCD1234, 3
THREADS = 8

publish, verify = functools.cache(kernels.publish_kernel), functools.cache(kernels.verify_kernel)


def zeros(count: int) -> np.ndarray:
    """Words that the kernels see, whoever runs them."""
    if kernels.SIMULATED:
        return np.zeros(count, np.uint64)
    import cupy

    pinned = cupy.cuda.alloc_pinned_memory(8 * max(count, 1))
    words = np.frombuffer(pinned, np.uint64, count)
    words[:] = 0
    return words


def wait() -> None:
    """Until the kernels have ended."""
    if not kernels.SIMULATED:
        import cupy

        cupy.cuda.runtime.deviceSynchronize()


class Ring:
    """Slots, scratch, a table, parameters and rows in plain memory, as the GPU would see them."""

    def __init__(self) -> None:
        self.stride = wire.stride_of(SLOT_BYTES)
        self.slots = zeros(SLOTS * self.stride // 8)
        self.scratch = zeros(2 * SLOTS)
        self.rows = zeros(SLOTS * wire.ROW_WORDS).reshape(SLOTS, wire.ROW_WORDS)
        self.params = zeros(wire.PARAM_WORDS)

    def publish(self, payloads, first_frame=1, first_seq=1, part=0, parts=1, epoch=EPOCH):
        table = zeros(len(payloads) * wire.TABLE_WORDS).reshape(-1, wire.TABLE_WORDS)
        for i, data in enumerate(payloads):
            table[i, :7] = [
                *(data.ctypes.data, data.nbytes, first_frame + i),
                *(epoch << 32 | STREAM, first_seq + i, 1 << 32, part),
            ]
        publish()[(parts, len(payloads)), THREADS](
            self.slots.ctypes.data, self.stride, SLOTS, table.ctypes.data, self.scratch.ctypes.data
        )
        wait()
        assert not self.scratch.any()

    def verify(self, frame=1, count=1, operation=5, next_seq=0, parts=1, min_epoch=0):
        self.params[:3] = operation, frame, next_seq
        verify()[(parts, count), THREADS](
            *(self.slots.ctypes.data, self.stride, SLOTS, SLOT_BYTES, STREAM, min_epoch),
            *(self.params.ctypes.data, self.scratch.ctypes.data, self.rows.ctypes.data),
        )
        wait()
        assert not self.scratch.any()
        found = []
        for i in range(count):
            row = self.rows[(frame - 1 + i) % SLOTS]
            assert int(row[0]) >> 3 == operation + i
            assert self.words(frame + i)[0] == 0  # cleared for the next receive
            found.append(Verdict(int(row[0]) & 7))
        return found

    def words(self, frame):
        start = (frame - 1) % SLOTS * self.stride // 8
        return self.slots[start : start + self.stride // 8]

    def row(self, frame):
        return self.rows[(frame - 1) % SLOTS]


def payload(size, start=0):
    whole = zeros((size + start) // 8 + 1).view(np.uint8)[: size + start]
    whole[:] = np.random.default_rng(size).integers(0, 256, size + start, dtype=np.uint8)
    return whole[start:]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("start", [0, 1, 4])
@pytest.mark.parametrize("size", [0, 1, 8, 16, 100, 777, 1024])
def test_a_slot_is_the_one_that_the_cpu_writes(size, start, parts):
    ring, data = Ring(), payload(size, start)
    ring.publish([data], first_frame=2, first_seq=9, part=3 << 32 | 4, parts=parts)
    words = ring.words(2)
    assert words.view(np.uint8)[64 : 64 + size].tobytes() == data.tobytes()
    assert not words.view(np.uint8)[64 + size : wire.wire_bytes(size)].any()
    assert words[:8].tolist() == [
        *(2, EPOCH << 32 | STREAM, 9, size),
        reference(data.tobytes(), 9 + (3 << 48)),
        *(1 << 32, 3 << 32 | 4, int(cpu.header_check(words, 0, np.uint64(2)))),
    ]
    same = np.zeros_like(words)
    wire.publish_slot(
        *(same.ctypes.data, data.ctypes.data, size, 2, EPOCH << 32 | STREAM, 9, 1 << 32),
        *(3 << 32 | 4, wire.wire_bytes(size) - 64),
    )
    assert same.tolist() == words.tolist()
    assert wire.verify_slot(words.ctypes.data, 2, STREAM, EPOCH, 0, SLOT_BYTES) == Verdict.OK
    header = words[1:8].tolist()
    assert ring.verify(2, parts=parts) == [Verdict.OK]
    assert ring.row(2)[1:].tolist() == header


def test_a_group_wraps_around_the_ring():
    ring = Ring()
    ring.publish([payload(50 + i) for i in range(4)], first_frame=7, first_seq=20, parts=2)
    assert ring.verify(7, count=4, parts=2) == [Verdict.OK] * 4


CASES = {
    "an empty slot": (lambda w: w.__setitem__(0, 0), Verdict.EMPTY),
    "a flipped payload": (lambda w: w.__setitem__(10, w[10] ^ np.uint64(1 << 40)), Verdict.TORN),
    "a flipped sequence number": (lambda w: w.__setitem__(2, w[2] ^ np.uint64(2)), Verdict.TORN),
    "a flipped check": (lambda w: w.__setitem__(7, w[7] ^ np.uint64(1)), Verdict.TORN),
    "a length beyond the slot": (lambda w: w.__setitem__(3, np.uint64(1 << 50)), Verdict.TORN),
}


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_slot_is_told_from_a_sound_one(name):
    damage, expected = CASES[name]
    ring = Ring()
    ring.publish([payload(300)])
    damage(ring.words(1))
    cpu_says = wire.verify_slot(ring.words(1).ctypes.data, 1, STREAM, 0, 0, SLOT_BYTES)
    assert ring.verify() == [expected] == [cpu_says]


@pytest.mark.parametrize(
    "call, expected",
    [
        ({"frame": 5}, Verdict.STALE),  # the frame of the lap before lies there
        ({"min_epoch": EPOCH + 1}, Verdict.STALE),
        ({"min_epoch": EPOCH}, Verdict.OK),
        ({"next_seq": 2}, Verdict.DUPLICATE),
        ({"next_seq": 1}, Verdict.OK),
    ],
)
def test_what_does_not_belong_here_is_not_taken(call, expected):
    ring = Ring()
    ring.publish([payload(64)], first_frame=1, first_seq=1)
    if "frame" in call:
        assert ring.verify(**call) == [expected]
        return
    assert ring.verify(**call) == [expected]
    assert ring.verify(**call) == [Verdict.EMPTY]  # a slot is read once


def test_large_slots_use_many_blocks():
    assert kernels.parts_of(16) == 1
    assert kernels.parts_of(1 << 20) >= 32
    assert kernels.parts_of(1 << 30) == 128
