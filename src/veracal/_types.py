"""Names for what crosses the house: arrays, mappings that stay as they are, progress.

Arrays at addresses that are multiples of 64 bytes.

Linear algebra may round differently at other addresses, and where the system puts an array may
follow from how many records are in memory. Gradients and scores of a record must not.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]

Progress = Callable[[int, int | None], None]  # how much is done, and how much there is

Key = TypeVar("Key")
Value = TypeVar("Value", covariant=True)


class Frozen(Mapping[Key, Value], Generic[Key, Value]):
    """A mapping that cannot be changed and, unlike ``MappingProxyType``, can be pickled."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[Key, Value] | None = None) -> None:
        self._items = dict(items or {})

    def __getitem__(self, key: Key) -> Value:
        return self._items[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)


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
