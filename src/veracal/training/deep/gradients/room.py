"""Memory that is used again from block to block."""

import math

import torch
from torch import Tensor

_ALIGNED = 64  # bytes: a line of the cache, and no number crosses one
_SPARE = 1.1  # blocks are not all of one size


class Room:
    """Tensors for as long as one block takes.

    A tensor of some megabytes comes from the system as pages that are filled with zeros when
    they are touched first, which takes longer than to write what belongs there. These are
    given out one after the other from one piece of memory, and all of them again for the next
    block. What does not fit comes from the system, and the piece is larger the next time.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def clear(self) -> None:
        """Take all of it back: nobody may use what was given out before."""
        if self._used > len(self._bytes):
            self._bytes = torch.empty(0, dtype=torch.uint8)  # first, so that both never stand
            self._bytes = torch.empty(int(_SPARE * self._used), dtype=torch.uint8)
        self._used = 0

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor in which nothing in particular is written."""
        size = math.prod(shape) * dtype.itemsize
        start = self._used
        self._used += -(-size // _ALIGNED) * _ALIGNED
        if self._used > len(self._bytes):
            return torch.empty(shape, dtype=dtype)
        return self._bytes[start : start + size].view(dtype).view(shape)
