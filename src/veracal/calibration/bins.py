"""Bins of confidence."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats, Ints

_MOST = 10_000  # more bins than that is a mistake


@dataclass(frozen=True)
class Bins:
    r"""Bins of equal width, closed on the right: :math:`(b/m, (b+1)/m]`.

    The first one also holds 0, so every probability is in exactly one bin, and 1 in the last.

    Parameters
    ----------
    count : int from 1 to 10,000
        The number m of bins.

    Examples
    --------
    >>> Bins(4).of([0.0, 0.25, 0.26, 1.0])
    array([0, 0, 1, 3])
    """

    count: int = 15

    def __post_init__(self) -> None:
        _checks.whole(bins=self.count)
        if self.count > _MOST:
            raise ValueError(f"Expected at most {_MOST} bins, got {self.count!r}.")
        object.__setattr__(self, "count", int(self.count))

    @property
    def edges(self) -> Floats:
        """Where bins meet, with 0 and 1, of shape (count + 1,)."""
        return np.linspace(0.0, 1.0, self.count + 1)

    @property
    def centers(self) -> Floats:
        """Middles of the bins, of shape (count,)."""
        edges = self.edges
        result: Floats = (edges[:-1] + edges[1:]) / 2
        return result

    def of(self, confidence: ArrayLike) -> Ints:
        """Number of the bin of each probability."""
        numbers = np.asarray(confidence)
        return np.searchsorted(self.edges[1:-1], numbers, side="left").astype(np.int64)
