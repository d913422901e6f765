"""How dtype and shape of an array travel: a short literal in the slot's meta area, cached."""

from __future__ import annotations

import ast

import numpy as np
from numpy.lib import format as npy

from ftrt.errors import UsageError
from ftrt.transport.slots import META_BYTES

_CACHE_LIMIT = 4096
_encoded: dict[tuple, tuple[np.ndarray, int]] = {}
_decoded: dict[bytes, tuple[np.dtype, tuple[int, ...]]] = {}
_NO_BYTES = np.empty(0, np.uint8)


def encode(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Meta bytes as padded words, and their length."""
    key = (dtype, shape)
    found = _encoded.get(key)
    if found is None:
        text = repr((npy.dtype_to_descr(dtype), shape)).encode()
        if len(text) > META_BYTES:
            raise UsageError(
                f"dtype {_short(dtype)} and shape {_short(shape)} take {len(text)} bytes to "
                f"describe, {META_BYTES} are the limit: send bytes, and view them as that dtype"
            )
        words = np.frombuffer(text.ljust(-(-len(text) // 8) * 8, b"\0"), np.uint64).copy()
        if len(_encoded) >= _CACHE_LIMIT:
            _encoded.clear()
        found = _encoded[key] = (words, len(text))
    return found


def decode(text: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and shape that :func:`encode` wrote."""
    found = _decoded.get(text)
    if found is None:
        descr, shape = ast.literal_eval(text.decode())
        if len(_decoded) >= _CACHE_LIMIT:
            _decoded.clear()
        found = _decoded[text] = (npy.descr_to_dtype(descr), shape)
    return found


def check(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raise :class:`UsageError` if an array of this dtype and shape cannot travel."""
    if dtype.hasobject:
        raise UsageError(
            f"an array of dtype {_short(dtype)} holds Python objects; send numbers, or pickle "
            "it into bytes"
        )
    encode(dtype, shape)


def _short(value, most: int = 80) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"


def as_array(value) -> np.ndarray:
    """``value`` as a C-contiguous array that can travel."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.dtype.hasobject:
        check(array.dtype, array.shape)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array


def octets(array: np.ndarray) -> np.ndarray:
    """The bytes of a C-contiguous array, without a copy."""
    if array.nbytes == 0:
        return _NO_BYTES
    return array.reshape(-1).view(np.uint8)
