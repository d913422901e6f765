"""Atomic access to shared 64-bit words from numba code and from Python.

numba has no CPU atomics, and LLVM may delete or hoist plain accesses to memory that another
process watches. These intrinsics emit real atomic instructions with the named ordering, on x86-64
and on ARM64 alike. ``array`` is always a C-contiguous ``uint64`` array, ``index`` counts words.
"""

from __future__ import annotations

from typing import Any

from numba import extending, njit, types

# Loosely typed: compiled code calls an intrinsic without its first argument.
intrinsic: Any = extending.intrinsic


def _word(context, builder, array_type, array, index):
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


@intrinsic
def load_acquire(typingctx, array, index):
    """``array[index]``; later accesses stay behind it."""

    def codegen(context, builder, signature, args):
        word = _word(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(word, "acquire", 8)

    return types.uint64(array, types.intp), codegen


@intrinsic
def store_release(typingctx, array, index, value):
    """``array[index] = value``; earlier accesses stay before it."""

    def codegen(context, builder, signature, args):
        word = _word(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], word, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


@intrinsic
def compare_exchange(typingctx, array, index, expected, desired):
    """Store ``desired`` if the word holds ``expected``; return what it held."""

    def codegen(context, builder, signature, args):
        word = _word(context, builder, signature.args[0], args[0], args[1])
        pair = builder.cmpxchg(word, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(pair, 0)

    return types.uint64(array, types.intp, types.uint64, types.uint64), codegen


def _read_modify_write(operation):
    @intrinsic
    def fetch(typingctx, array, index, value):
        def codegen(context, builder, signature, args):
            word = _word(context, builder, signature.args[0], args[0], args[1])
            return builder.atomic_rmw(operation, word, args[2], "seq_cst")

        return types.uint64(array, types.intp, types.uint64), codegen

    return fetch


fetch_add = _read_modify_write("add")
fetch_or = _read_modify_write("or")


@intrinsic
def fence(typingctx):
    """Sequentially consistent fence: a store before it is visible before a load behind it."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@njit("uint64(uint64[::1], intp)", cache=True)
def load(array, index):
    """:func:`load_acquire`, callable from Python."""
    return load_acquire(array, index)


@njit("void(uint64[::1], intp, uint64)", cache=True)
def store(array, index, value):
    """:func:`store_release`, callable from Python."""
    store_release(array, index, value)


@njit("uint64(uint64[::1], intp, uint64, uint64)", cache=True)
def swap_if(array, index, expected, desired):
    """:func:`compare_exchange`, callable from Python."""
    return compare_exchange(array, index, expected, desired)


@njit("uint64(uint64[::1], intp, uint64)", cache=True)
def add(array, index, value):
    """Add ``value`` to the word; return what it held."""
    return fetch_add(array, index, value)


@njit("uint64(uint64[::1], intp, uint64)", cache=True)
def set_bits(array, index, bits):
    """Set ``bits`` in the word; return what it held."""
    return fetch_or(array, index, bits)
