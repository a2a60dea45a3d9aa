"""Type aliases, an immutable mapping, and 64-byte aligned arrays.

Linear algebra may round differently at other addresses, and the address of an array may depend
on the number of records in memory. The gradients and scores of a record must not depend on it.
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

Progress = Callable[[int, int | None], None]  # the amount done, and the total if known

Key = TypeVar("Key")
Value = TypeVar("Value", covariant=True)


class Frozen(Mapping[Key, Value], Generic[Key, Value]):
    """An immutable mapping that, unlike ``MappingProxyType``, can be pickled."""

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


BYTES = 64  # the alignment of torch tensors


def aligned(values: Any) -> Any:
    """Return the array if its address is aligned, else an aligned copy in C order."""
    if values.ctypes.data % BYTES == 0:
        return values
    copy = aligned_empty(values.shape, values.dtype)
    copy[...] = values
    return copy


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return an uninitialized array at an aligned address."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + BYTES, np.uint8)
    start = -buffer.ctypes.data % BYTES
    return buffer[start : start + size].view(dtype).reshape(shape)
