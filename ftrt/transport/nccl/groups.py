"""A whole group of sends or receives in one compiled call, whatever library is loaded.

A call from Python costs about a microsecond, as much as a small message: so the loop over a group
is compiled, and calls the library's functions at their addresses, without the GIL.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types

from ftrt.atomics import intrinsic

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = types.Array(types.int64, 1, "C")
BYTES_TYPE = 1  # ncclUint8: whatever the dtype of a message is, its bytes travel


@intrinsic
def _call(typingctx, function):
    """Call ``int f(void)`` at an address."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_I32, [])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])

    return types.int32(types.int64), codegen


@intrinsic
def _move(typingctx, function, buffer, count, dtype, peer, comm, stream):
    """Call ``ncclSend`` or ``ncclRecv`` at an address."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_I32, [_I64, _I64, _I32, _I32, _I64, _I64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    signature = types.int32(
        *(types.int64, types.int64, types.int64, types.int32),
        *(types.int32, types.int64, types.int64),
    )
    return signature, codegen


@njit(
    types.int64(_WORDS, types.int64, _WORDS, _WORDS, types.int32, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def post(entry_points, move, addresses, sizes, peer, comm, stream):
    """Post one group; the first result that is neither success nor in progress, or the last.

    ``entry_points`` are the addresses of group start and group end, ``move`` that of send or
    receive.
    """
    status = types.int64(_call(entry_points[0]))
    if status != 0:
        return status
    failed = types.int64(0)
    for i in range(len(addresses)):
        status = types.int64(
            _move(move, addresses[i], sizes[i], types.int32(1), peer, comm, stream)
        )
        if status != 0 and status != 7:
            failed = status
            break
    status = types.int64(_call(entry_points[1]))
    return failed if failed != 0 else status


def words(values) -> np.ndarray:
    """Values as :func:`post` takes them."""
    return np.ascontiguousarray(values, np.int64)
