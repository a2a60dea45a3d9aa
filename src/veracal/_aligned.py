"""Arrays at addresses that are multiples of 64 bytes.

Linear algebra may round differently at other addresses, and where the system puts an array may
follow from how many records are in memory. Gradients and scores of a record must not.
"""

import math
from typing import Any

import numpy as np

BYTES = 64  # as torch aligns its own tensors


def aligned(values: Any) -> Any:
    """An array at such an address: itself, or a copy in C order."""
    if values.ctypes.data % BYTES == 0:
        return values
    copy = aligned_empty(values.shape, values.dtype)
    copy[...] = values
    return copy


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """An array without values at such an address."""
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + BYTES, np.uint8)
    start = -room.ctypes.data % BYTES
    return room[start : start + size].view(dtype).reshape(shape)
