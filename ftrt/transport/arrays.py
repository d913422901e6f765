"""What a plane takes as an array: NumPy's on the host plane, the GPU's on the nccl plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftrt.errors import UsageError


class HostArrays:
    """Arrays in host memory; a :class:`ftrt.transport.nccl.device.Device` is the same for a GPU.

    Attributes
    ----------
    kind : type
        Arrays of this type are taken as they are.
    """

    kind: type | None = np.ndarray

    @staticmethod
    def array(value: Any) -> np.ndarray:
        """``value`` as an array that can be sent."""
        if isinstance(value, np.ma.MaskedArray):
            raise UsageError(
                "the mask of a masked array would be lost: send array.filled(), or data and mask "
                "as two messages"
            )
        return np.asarray(value)

    upload = array

    @staticmethod
    def download(value: Any) -> Any:
        """``value`` where the ledger can write it."""
        return value

    @staticmethod
    def stack(arrays: list[Any]) -> np.ndarray:
        """Arrays of one shape behind each other."""
        return np.stack(arrays)
