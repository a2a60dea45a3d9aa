"""Names for what crosses the house: arrays, mappings that stay as they are, progress."""

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
