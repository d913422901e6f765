"""Layout of a state file and the bytes of a value."""

from __future__ import annotations

import json
import pickle
import struct

import numpy as np

SLOTS = 64
KEY_BYTES = 128
SLOT = np.dtype(
    [
        ("version", "<u8"),
        ("key", f"S{KEY_BYTES}"),
        ("offset", "<u8"),
        ("capacity", "<u8"),
        ("epoch", "<i8"),
        ("stream", "<i8"),
        ("segment", "<i8"),
        ("event", "<i8"),
        ("length", "<u8"),
        ("checksum", "<u8"),
        ("check", "<u8"),
    ]
)
FIELDS = struct.Struct(f"<Q{KEY_BYTES}s2Q4q2Q")  # a slot without its check


def encode(value) -> list:
    """Buffers whose concatenation is ``value``: arrays raw, everything else pickled."""
    if type(value) is np.ndarray and not value.dtype.hasobject and value.dtype.names is None:
        array = np.ascontiguousarray(value)
        head = json.dumps([array.dtype.str, value.shape]).encode()
        body = array.reshape(-1).view(np.uint8) if array.size else b""
        return [struct.pack("<II", 1, len(head)), head, body]
    return [struct.pack("<II", 0, 0), pickle.dumps(value, protocol=5)]


def decode(data):
    """The value that :func:`encode` was given, copied once from a buffer of bytes."""
    data = memoryview(data)
    kind, size = struct.unpack_from("<II", data)
    if kind == 0:
        return pickle.loads(data[8:])
    dtype, shape = json.loads(bytes(data[8 : 8 + size]))
    return np.frombuffer(bytearray(data[8 + size :]), np.dtype(dtype)).reshape(shape)
