"""numba.cuda kernels that write slots and check them, with the checksum of the host plane.

Every argument is a 64-bit address or number, so that a launch costs the same whatever it moves,
and a graph that was captured once serves for good: what changes from replay to replay lies in
host memory that the kernels read. In the simulator (NUMBA_ENABLE_CUDASIM=1) addresses are those of
numpy arrays.

A slot is worked on by as many blocks as its size is worth. Each adds its part of the sum to the
slot's scratch words; the last one to arrive judges the slot, tells the host, and clears the
publish word, so that the next receive begins with an empty slot.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from ftrt.transport.checksum import _MIX as MIX
from ftrt.transport.checksum import STEP
from ftrt.transport.nccl.loading import missing_extra
from ftrt.transport.slots import Verdict

try:
    import numba.cuda
    from numba import types
except ImportError as error:
    raise missing_extra(error) from error

cuda: Any = numba.cuda  # what a kernel sees of it is not what its annotations say

THREADS = 256
#: Bytes of a slot that one block takes.
PART_BYTES = THREADS * 8 * 8
SIMULATED = bool(getattr(numba.config, "ENABLE_CUDASIM", 0))
_OK, _EMPTY, _STALE, _TORN, _DUPLICATE = (int(v) for v in Verdict)
_HEAD_SEED = 0x4845_4144

if SIMULATED:
    _lock = threading.Lock()

    def load(address):
        """The word at an address."""
        return np.uint64(ctypes.c_uint64.from_address(int(address)).value)

    def load8(address):
        """The byte at an address."""
        return np.uint64(ctypes.c_uint8.from_address(int(address)).value)

    def store(address, value):
        """Store a word."""
        ctypes.c_uint64.from_address(int(address)).value = int(value)

    def add_to(address, value):
        """Add to a word for all blocks; what it held."""
        with _lock:
            before = load(address)
            store(address, (int(before) + int(value)) & 0xFFFF_FFFF_FFFF_FFFF)
        return before

else:
    from llvmlite import ir

    from ftrt.atomics import intrinsic

    def _global(builder, address, bits):
        kind = ir.PointerType(ir.IntType(bits), addrspace=1)
        return builder.inttoptr(address, kind)

    @intrinsic
    def load(typingctx, address):
        """The word at an address."""

        def codegen(context, builder, signature, args):
            instruction = builder.load(_global(builder, args[0], 64))
            instruction.align = 8
            return instruction

        return types.uint64(types.int64), codegen

    @intrinsic
    def load8(typingctx, address):
        """The byte at an address."""

        def codegen(context, builder, signature, args):
            return builder.zext(builder.load(_global(builder, args[0], 8)), ir.IntType(64))

        return types.uint64(types.int64), codegen

    @intrinsic
    def store(typingctx, address, value):
        """Store a word."""

        def codegen(context, builder, signature, args):
            builder.store(args[1], _global(builder, args[0], 64))
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64), codegen

    @intrinsic
    def add_to(typingctx, address, value):
        """Add to a word for all blocks; what it held."""

        def codegen(context, builder, signature, args):
            return builder.atomic_rmw("add", _global(builder, args[0], 64), args[1], "monotonic")

        return types.uint64(types.int64, types.uint64), codegen


def _device(function):
    return cuda.jit(function, device=True, inline=False)


@_device
def term(word, key):
    """What one word adds to the sum."""
    mixed = word ^ key
    return (mixed & np.uint64(0xFFFFFFFF)) * (mixed >> np.uint64(32)) + word


@_device
def header_sum(head, frame):
    """The check over a header whose publish word is ``frame``."""
    key = np.uint64(_HEAD_SEED) * np.uint64(MIX) + np.uint64(STEP)
    total = term(frame, key)
    for i in range(1, 7):
        key += np.uint64(STEP)
        total += term(head[i], key)
    return total


@_device
def first_key(seq, part):
    """Key of a payload's first word."""
    fragment = (part >> np.uint64(32)) & np.uint64(0xFFFF)
    seed = seq + (fragment << np.uint64(48))
    return seed * np.uint64(MIX) + np.uint64(STEP)


@_device
def block_sum(partials, value):
    """Sum over the threads of a block, at thread 0."""
    me = cuda.threadIdx.x
    partials[me] = value
    cuda.syncthreads()
    half = cuda.blockDim.x >> 1
    while half > 0:
        if me < half:
            partials[me] += partials[me + half]
        cuda.syncthreads()
        half >>= 1
    return partials[0]


@_device
def word_of(source, index, size):
    """One word of a payload, at any alignment, padded with zeros behind the end."""
    at = source + 8 * index
    if (at & 7) == 0 and 8 * index + 8 <= size:
        return load(at)
    word = np.uint64(0)
    for i in range(min(8, size - 8 * index)):
        word |= load8(at + i) << np.uint64(8 * i)
    return word


@_device
def write_header(base, row, total):
    """Write a slot's header from a row of the table."""
    head = cuda.local.array(8, np.uint64)
    frame = load(row + 16)
    head[1] = load(row + 24)
    head[2] = load(row + 32)
    head[3] = load(row + 8)
    head[4] = total
    head[5] = load(row + 40)
    head[6] = load(row + 48)
    head[7] = header_sum(head, frame)
    for i in range(1, 8):
        store(base + 8 * i, head[i])
    store(base, frame)


def _publish(slots, stride, count, table, scratch):
    """Copy payloads into their slots, sum them on the way, and write the headers.

    Blocks: parts by messages. ``count`` is the number of slots.
    """
    partials = cuda.shared.array(THREADS, np.uint64)
    row = table + 64 * cuda.blockIdx.y
    source, size = np.int64(load(row)), np.int64(load(row + 8))
    slot = np.int64(load(row + 16) - np.uint64(1)) % count
    base = slots + slot * stride
    key = first_key(load(row + 32), load(row + 48))
    words = (size + 7) >> 3
    step = np.int64(cuda.blockDim.x * cuda.gridDim.x)
    at = np.int64(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
    key += np.uint64(STEP) * np.uint64(at)
    key_step = np.uint64(STEP) * np.uint64(step)
    total = np.uint64(0)
    whole = (size >> 3) if (source & 7) == 0 else np.int64(0)
    target = base + 64
    while at + 3 * step < whole:  # several loads under way at a time
        a = load(source + 8 * at)
        b = load(source + 8 * (at + step))
        c = load(source + 8 * (at + 2 * step))
        d = load(source + 8 * (at + 3 * step))
        store(target + 8 * at, a)
        store(target + 8 * (at + step), b)
        store(target + 8 * (at + 2 * step), c)
        store(target + 8 * (at + 3 * step), d)
        total += term(a, key)
        key += key_step
        total += term(b, key)
        key += key_step
        total += term(c, key)
        key += key_step
        total += term(d, key)
        key += key_step
        at += 4 * step
    while at < words:
        word = word_of(source, at, size)
        store(target + 8 * at, word)
        total += term(word, key)
        key += key_step
        at += step
    total = block_sum(partials, total)
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0 and words & 1:
            store(target + 8 * words, np.uint64(0))  # what travels is a multiple of 16 bytes
        place = scratch + 16 * slot
        add_to(place, total)
        cuda.threadfence()
        if add_to(place + 8, np.uint64(1)) == np.uint64(cuda.gridDim.x - 1):
            total = add_to(place, np.uint64(0))
            store(place, np.uint64(0))
            store(place + 8, np.uint64(0))
            write_header(base, row, total)


@_device
def judge(head, frame, stream, min_epoch, next_seq, capacity, total):
    """Verdict on a slot whose payload sums to ``total``."""
    if head[0] == np.uint64(0):
        return _EMPTY
    if header_sum(head, head[0]) != head[7] or head[3] > np.uint64(capacity):
        return _TORN
    if (
        head[0] != frame
        or (head[1] & np.uint64(0xFFFFFFFF)) != np.uint64(stream)
        or (head[1] >> np.uint64(32)) < np.uint64(min_epoch)
    ):
        return _STALE
    if total != head[4]:
        return _TORN
    if head[2] + (head[5] >> np.uint64(32)) <= next_seq:
        return _DUPLICATE
    return _OK


def _verify(slots, stride, count, capacity, stream, min_epoch, params, scratch, rows):
    """Check slots that were received, tell the host, and clear them for the next receive.

    Blocks: parts by operations of one group, whose frames follow each other.
    """
    partials = cuda.shared.array(THREADS, np.uint64)
    head = cuda.shared.array(8, np.uint64)
    frame = load(params + 8) + np.uint64(cuda.blockIdx.y)
    slot = np.int64(frame - np.uint64(1)) % count
    base = slots + slot * stride
    me = np.int64(cuda.threadIdx.x)
    if me < 8:
        head[me] = load(base + 8 * me)
    cuda.syncthreads()
    size = np.int64(head[3])
    if head[3] > np.uint64(capacity):
        size = np.int64(0)
    words = (size + 7) >> 3
    source = base + 64
    step = np.int64(cuda.blockDim.x * cuda.gridDim.x)
    at = np.int64(cuda.blockIdx.x * cuda.blockDim.x) + me
    key = first_key(head[2], head[6]) + np.uint64(STEP) * np.uint64(at)
    key_step = np.uint64(STEP) * np.uint64(step)
    total = np.uint64(0)
    while at + 3 * step < words:
        a = load(source + 8 * at)
        b = load(source + 8 * (at + step))
        c = load(source + 8 * (at + 2 * step))
        d = load(source + 8 * (at + 3 * step))
        total += term(a, key)
        key += key_step
        total += term(b, key)
        key += key_step
        total += term(c, key)
        key += key_step
        total += term(d, key)
        key += key_step
        at += 4 * step
    while at < words:
        total += term(load(source + 8 * at), key)
        key += key_step
        at += step
    total = block_sum(partials, total)
    if me == 0:
        place = scratch + 16 * slot
        add_to(place, total)
        cuda.threadfence()
        if add_to(place + 8, np.uint64(1)) == np.uint64(cuda.gridDim.x - 1):
            total = add_to(place, np.uint64(0))
            store(place, np.uint64(0))
            store(place + 8, np.uint64(0))
            verdict = judge(head, frame, stream, min_epoch, load(params + 16), capacity, total)
            store(base, np.uint64(0))
            row = rows + 64 * slot
            for i in range(1, 8):
                store(row + 8 * i, head[i])
            cuda.threadfence_system()
            operation = load(params) + np.uint64(cuda.blockIdx.y)
            store(row, (operation << np.uint64(3)) | np.uint64(verdict))


def _kernel(function, arguments: int):
    if SIMULATED:
        return cuda.jit(function)
    return cuda.jit(types.void(*(types.int64,) * arguments))(function)


def publish_kernel():
    """The kernel that writes slots; compiled when it is first asked for."""
    return _kernel(_publish, 5)


def verify_kernel():
    """The kernel that checks slots."""
    return _kernel(_verify, 9)


def parts_of(payload_bytes: int, most: int = 128) -> int:
    """Blocks that a slot of this size is worth."""
    return max(1, min(most, -(-payload_bytes // PART_BYTES)))
