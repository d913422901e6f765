"""The payload checksum, one definition for every plane.

The payload is read as little-endian 64-bit words ``d``, the last one padded with zero bytes. With
``k`` = key + index * STEP, each word adds ``low32(d ^ k) * high32(d ^ k) + d`` to the sum, modulo
2**64. Addition has no order, so that CPU vectors and GPU threads come to the same value.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from ftrt.atomics import fence, intrinsic

STEP = 0x9E37_79B9_7F4A_7C15
_MIX = 0xD6E8_FEB8_6659_FD93
_M64 = (1 << 64) - 1
_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_I64, 8)
_UNROLL = 4
BLOCK = 64 * _UNROLL
# Lines are asked for this many bytes ahead: another core holds them, and the hardware's own
# prefetchers stop at the end of a page.
_AHEAD = 2048
# A payload of this many bytes is copied at several places in turn: more lines are on their way.
_STREAMS = 4
_SPREAD_FROM = 4096 * _STREAMS

_BYTES = types.Array(types.uint8, 1, "C")
_READONLY = types.Array(types.uint8, 1, "C", readonly=True)
_WORDS = types.Array(types.uint64, 1, "C")


def reference(data: bytes, seed: int) -> int:
    """The same checksum in plain Python: the definition that the kernels are tested against."""
    key = (seed * _MIX + STEP) & _M64
    total = 0
    for index in range(0, len(data), 8):
        word = int.from_bytes(data[index : index + 8].ljust(8, b"\0"), "little")
        mixed = word ^ ((key + (index // 8) * STEP) & _M64)
        total += (mixed & 0xFFFF_FFFF) * (mixed >> 32) + word
    return total & _M64


def _splat(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [ir.Constant(_I64, value)] * 8)


def _add_block(builder, source, key, target=None, past_caches=False):
    """Emit one BLOCK: sum ``source``, and copy it if a ``target`` is given."""
    lane = ir.Constant(_I64, 0)
    spread = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), key, lane)
    zero_mask = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)
    keys = builder.shuffle_vector(spread, ir.Constant(_VECTOR, ir.Undefined), zero_mask)
    steps = [(i * STEP) & _M64 for i in range(8 * _UNROLL)]
    total = None
    for part in range(_UNROLL):
        offsets = ir.Constant(_VECTOR, [ir.Constant(_I64, s) for s in steps[8 * part :][:8]])
        pointer = builder.gep(source, [ir.Constant(_I64, 64 * part)])
        if target is None:
            _prefetch(builder, pointer, write=False)
        data = builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()), align=1)
        if target is not None:
            where = builder.gep(target, [ir.Constant(_I64, 8 * part)])
            _store(builder, data, where, past_caches)
            if not past_caches:
                _prefetch(builder, where, write=True)
        mixed = builder.xor(data, builder.add(keys, offsets))
        low = builder.and_(mixed, _splat(0xFFFF_FFFF))
        product = builder.mul(low, builder.lshr(mixed, _splat(32)))
        term = builder.add(product, data)
        total = term if total is None else builder.add(total, term)
    reduce_type = ir.FunctionType(_I64, [_VECTOR])
    name = "llvm.vector.reduce.add.v8i64"
    return builder.call(cgutils.get_or_insert_function(builder.module, reduce_type, name), [total])


def _store(builder, data, target, past_caches):
    """Store one vector; non-temporal stores need aligned memory."""
    pointer = builder.bitcast(target, _VECTOR.as_pointer())
    store = builder.store(data, pointer, align=64 if past_caches else 8)
    if past_caches:
        one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", one)


def _prefetch(builder, where, write):
    """Ask for the line that is used a while later: the other end's core still holds it."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    ahead = builder.gep(builder.bitcast(where, byte), [ir.Constant(_I64, _AHEAD)])
    for_write, keep, data = (ir.Constant(number, n) for n in (int(write), 3, 1))
    builder.call(call, [ahead, for_write, keep, data])


def _pointer(context, builder, array_type, array, index):
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


@intrinsic
def _sum_block(typingctx, source, index, key):
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        return _add_block(builder, pointer, args[2])

    return types.uint64(source, types.intp, types.uint64), codegen


def _copier(past_caches):
    @intrinsic
    def copy_block(typingctx, target, target_index, source, index, key):
        def codegen(context, builder, signature, args):
            where = _pointer(context, builder, signature.args[0], args[0], args[1])
            pointer = _pointer(context, builder, signature.args[2], args[2], args[3])
            return _add_block(builder, pointer, args[4], where, past_caches)

        return types.uint64(target, types.intp, source, types.intp, types.uint64), codegen

    return copy_block


_copy_block = _copier(past_caches=False)
_stream_block = _copier(past_caches=True)


@intrinsic
def _load_word(typingctx, source, index):
    """The 8 bytes at a byte index of any alignment."""

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        return builder.load(builder.bitcast(pointer, _I64.as_pointer()), align=1)

    return types.uint64(source, types.intp), codegen


@njit("uint64(uint64)", cache=True)
def key_of(seed):
    """Key of the first word."""
    return seed * types.uint64(_MIX) + types.uint64(STEP)


@njit("uint64(uint64, uint64)", cache=True)
def term(word, key):
    """What one word adds to the sum."""
    mixed = word ^ key
    return (mixed & types.uint64(0xFFFFFFFF)) * (mixed >> types.uint64(32)) + word


@njit(
    [
        types.uint64(_BYTES, types.intp, types.intp),
        types.uint64(_READONLY, types.intp, types.intp),
    ],
    cache=True,
)
def _tail_word(source, start, stop):
    word = types.uint64(0)
    for i in range(start, stop):
        word |= types.uint64(source[i]) << types.uint64(8 * (i - start))
    return word


@njit(
    [
        types.uint64(_BYTES, types.uint64),
        types.uint64(_READONLY, types.uint64),
    ],
    cache=True,
    nogil=True,
)
def checksum(source, seed):
    """Checksum of the bytes of ``source`` (uint8, any alignment and length)."""
    key = key_of(seed)
    step = types.uint64(STEP)
    total = types.uint64(0)
    size = len(source)
    at = 0
    while at + BLOCK <= size:
        total += _sum_block(source, at, key)
        key += step * types.uint64(BLOCK // 8)
        at += BLOCK
    while at + 8 <= size:
        total += term(_load_word(source, at), key)
        key += step
        at += 8
    if at < size:
        total += term(_tail_word(source, at, size), key)
    return total


@njit(
    [
        types.uint64(_WORDS, types.intp, _BYTES, types.uint64, types.boolean),
        types.uint64(_WORDS, types.intp, _READONLY, types.uint64, types.boolean),
    ],
    cache=True,
    nogil=True,
)
def copy_checksum(target, offset, source, seed, past_caches):
    """Copy ``source`` (uint8) to the words at ``target[offset:]`` and sum it in the same pass.

    The last word is padded with zeros. With ``past_caches`` the stores are non-temporal (the
    words must then be 64-byte aligned) and a fence follows them.
    """
    key = key_of(seed)
    step = types.uint64(STEP)
    total = types.uint64(0)
    size = len(source)
    at = 0
    if past_caches:
        while at + BLOCK <= size:
            total += _stream_block(target, offset + (at >> 3), source, at, key)
            key += step * types.uint64(BLOCK // 8)
            at += BLOCK
        fence()
    if not past_caches and size >= _SPREAD_FROM:
        part = size // (_STREAMS * BLOCK) * BLOCK
        part_step = step * types.uint64(part >> 3)
        for _ in range(part // BLOCK):
            part_key, where = key, at
            for _ in range(_STREAMS):
                total += _copy_block(target, offset + (where >> 3), source, where, part_key)
                part_key += part_step
                where += part
            key += step * types.uint64(BLOCK // 8)
            at += BLOCK
        at += part * (_STREAMS - 1)
        key += part_step * types.uint64(_STREAMS - 1)
    while at + BLOCK <= size:
        total += _copy_block(target, offset + (at >> 3), source, at, key)
        key += step * types.uint64(BLOCK // 8)
        at += BLOCK
    while at + 8 <= size:
        word = _load_word(source, at)
        target[offset + (at >> 3)] = word
        total += term(word, key)
        key += step
        at += 8
    if at < size:
        word = _tail_word(source, at, size)
        target[offset + (at >> 3)] = word
        total += term(word, key)
    return total
