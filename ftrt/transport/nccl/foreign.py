"""Arrays of other libraries, and dtypes that NumPy has no name for, as what can travel.

The bytes of a message travel whatever its dtype is. What the receiver gets is an array of CuPy's,
so a type that only torch has (bfloat16, float8) arrives as unsigned integers of the same bits and
shape: ``torch.from_dlpack(array).view(torch.bfloat16)`` is the tensor again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib import format as npy

from ftrt.errors import UsageError

#: torch's types that DLPack and CUDA's array interface have in common with NumPy.
_COMMON = frozenset(
    f"torch.{name}"
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
_SAME_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def is_torch(value: Any) -> bool:
    """Whether it is a tensor of torch's, which is not imported for that."""
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach")


def tensor(value: Any) -> tuple[Any, bool]:
    """A tensor that can be looked at from outside, and whether its integers stand for bits.

    One that requires a gradient is sent like any other: what arrives has no history. What torch
    keeps as a flag (conjugate, negative) is carried out first, by a copy.
    """
    plain = value.detach()
    for resolve in ("resolve_conj", "resolve_neg"):
        plain = getattr(plain, resolve)() if hasattr(plain, resolve) else plain
    if str(plain.dtype) in _COMMON:
        return plain, False
    bits = _SAME_BITS.get(plain.element_size())
    if bits is None:
        raise UsageError(f"a tensor of {plain.dtype} was given: view it as bytes and send these")
    return plain.view(getattr(sys.modules[type(value).__module__.split(".")[0]], bits)), True


def taken(take: Callable[[Any], Any], value: Any) -> Any:
    """What ``take`` makes of a foreign array.

    Raises
    ------
    UsageError
        The two libraries do not understand each other.
    """
    try:
        return take(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        kind = type(value)
        raise UsageError(
            f"a {kind.__module__}.{kind.__name__} was given that CuPy cannot take ({error}): send "
            "cupy.asarray of it, or its bytes"
        ) from error


def with_a_name(array: Any) -> Any:
    """``array``, or its bits as unsigned integers if NumPy cannot write its dtype down."""
    dtype = array.dtype
    if dtype.isbuiltin == 1 or dtype.fields is not None or dtype.hasobject or has_a_name(dtype):
        return array
    if dtype.itemsize not in _SAME_BITS:
        raise UsageError(f"an array of dtype {dtype} was given: view it as bytes and send these")
    return array.view(np.dtype(f"u{dtype.itemsize}"))


@functools.lru_cache(maxsize=256)
def has_a_name(dtype: np.dtype) -> bool:
    """Whether what stands in a note makes the same dtype at the other end."""
    return npy.descr_to_dtype(npy.dtype_to_descr(dtype)) == dtype
