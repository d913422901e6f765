"""Calls from Python into compiled code that cost a fraction of a microsecond.

The usual dispatcher takes about 0.3 us, and 0.1 us more for each array, because it works out the
types anew and makes a counted reference of every array. Here an array is handed over as its
address, and the compiled entry point is called itself. A kernel called like this has one explicit
signature, and whoever calls it guarantees the types: nothing is checked on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import NativeValue, models, register_model, unbox

from ftrt.atomics import intrinsic
from ftrt.errors import FtrtError

_I64 = ir.IntType(64)

# Offsets in numpy's PyArrayObject_fields, which is part of its C interface; 64-bit CPython.
_DATA, _NDIM, _DIMS, _DESCR, _FLAGS = 16, 24, 32, 56, 64
C_CONTIGUOUS = 1


class _Address(types.Type):
    """The data of an ndarray, as its address."""

    def __init__(self) -> None:
        super().__init__("ftrt.Address")


class _Object(types.Type):
    """A Python object, as its address."""

    def __init__(self) -> None:
        super().__init__("ftrt.Object")


ADDRESS, OBJECT = _Address(), _Object()


@register_model(_Address)
@register_model(_Object)
class _Word(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _I64)


@unbox(_Address)
def _data_of(kind, value, context):
    builder = context.builder
    field = builder.gep(value, [ir.Constant(ir.IntType(32), _DATA)])
    return NativeValue(builder.load(builder.bitcast(field, _I64.as_pointer())))


@unbox(_Object)
def _place_of(kind, value, context):
    return NativeValue(context.builder.ptrtoint(value, _I64))


@intrinsic
def place(typingctx, value):
    """The address behind an argument of type ADDRESS or OBJECT, as int64."""
    return types.int64(value), lambda context, builder, signature, args: args[0]


@intrinsic
def pointer(typingctx, where):
    """An address as a pointer that ``numba.carray`` takes."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def peek(typingctx, where):
    """The 64-bit word at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], _I64.as_pointer()))

    return types.int64(types.int64), codegen


@njit("int64(int64)", cache=True)
def data_at(array):
    """Address of the data of the ndarray at ``array``."""
    return peek(array + _DATA)


@njit("int64(int64)", cache=True)
def ndim_at(array):
    """Number of dimensions of the ndarray at ``array``."""
    return peek(array + _NDIM) & 0xFFFFFFFF


@njit("int64(int64, int64)", cache=True)
def dim_at(array, axis):
    """One dimension of the ndarray at ``array``."""
    return peek(peek(array + _DIMS) + 8 * axis)


@njit("int64(int64)", cache=True)
def descr_at(array):
    """Address of the dtype of the ndarray at ``array``."""
    return peek(array + _DESCR)


@njit("int64(int64)", cache=True)
def flags_at(array):
    """Flags of the ndarray at ``array``."""
    return peek(array + _FLAGS) & 0xFFFFFFFF


@njit(types.Array(types.uint64, 1, "C")(types.int64, types.int64), cache=True)
def words_at(where, length):
    """Memory at an address as uint64 words."""
    return carray(pointer(where), (length,), np.uint64)


@njit(types.Array(types.int64, 1, "C")(types.int64, types.int64), cache=True)
def state_at(where, length):
    """Memory at an address as int64 words."""
    return carray(pointer(where), (length,), np.int64)


@njit(types.Array(types.uint8, 1, "C")(types.int64, types.int64), cache=True)
def octets_at(where, length):
    """Memory at an address as bytes."""
    return carray(pointer(where), (length,), np.uint8)


def direct(kernel: Any) -> Callable:
    """The compiled entry point of a kernel with one explicit signature."""
    (compiled,) = kernel.overloads.values()
    return compiled.entry_point


@njit(types.UniTuple(types.int64, 6)(OBJECT, ADDRESS), cache=True)
def _read(array, same):
    where = place(array)
    contiguous = flags_at(where) & C_CONTIGUOUS
    return (
        data_at(where),
        ndim_at(where),
        dim_at(where, 1),
        descr_at(where),
        contiguous,
        place(same),
    )


def layout_is_known() -> bool:
    """Whether ndarrays of this Python and numpy lie in memory as the kernels here assume."""
    read = direct(_read)
    for array in (np.zeros((3, 5), np.float32), np.zeros((7, 2, 3), np.int8)[:, ::2]):
        base, dims = array.__array_interface__["data"][0], array.shape
        expected = (base, array.ndim, dims[1], id(array.dtype), array.flags.c_contiguous, base)
        if read(array, array) != expected:
            return False
    return True


if not layout_is_known():
    raise FtrtError(
        "this Python or numpy keeps arrays in an unknown layout: use CPython 3.10 or later with "
        "its GIL, on a 64-bit machine, and numpy below 3"
    )
