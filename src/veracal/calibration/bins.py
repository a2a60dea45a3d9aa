"""Bins of confidence."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats, Ints

_MAX_BINS = 10_000
_UP = 1 + 2.0**-50  # more than the rounding of a product and of an edge
# Above an edge b/m with m up to 10,000 single-precision numbers are multiples of 2^-37, and so
# is m times their distance from it; up to 10,000 a double holds multiples of 2^-38 exactly.
_DOWN = 2.0**-38


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
        if self.count > _MAX_BINS:
            raise ValueError(f"Expected at most {_MAX_BINS} bins, got {self.count!r}.")
        object.__setattr__(self, "count", int(self.count))

    @property
    def edges(self) -> Floats:
        """Bin boundaries including 0 and 1, of shape (count + 1,)."""
        return np.linspace(0.0, 1.0, self.count + 1)

    @property
    def centers(self) -> Floats:
        """Midpoints of the bins, of shape (count,)."""
        edges = self.edges
        result: Floats = (edges[:-1] + edges[1:]) / 2
        return result

    def of(self, confidence: ArrayLike) -> Ints:
        """Index of the bin of each probability; values outside [0, 1] are clipped."""
        numbers = np.asarray(confidence)
        if numbers.dtype != np.float32:
            numbers = numbers.astype(np.float64, copy=False)
        # Unlike clip, fmin and fmax replace NaN, so every value gets a valid bin.
        return bin_indices(np.fmin(np.fmax(numbers, 0), 1), self).astype(np.int64)


def bin_indices(probabilities: Floats, bins: Bins) -> Ints:
    r"""Bin index of each probability in [0, 1] (single or double), as 32-bit integers.

    Computed by arithmetic, which is several times faster than a binary search among the edges.
    In single precision the product :math:`mp` is exact in a double. Subtracting less than the
    smallest possible distance above an edge moves only the values on an edge down. In double
    precision the product is rounded up, so it never falls below the bin; where it lands one
    bin too high, the probability is not above that bin's lower edge.
    """
    if probabilities.dtype == np.float32:
        product = np.multiply(probabilities, bins.count, dtype=np.float64)
        product -= _DOWN
        bins_below: Ints = product.astype(np.int32)  # toward zero: the first bin holds 0
        return bins_below
    lower = bins.edges
    lower[0] = -1.0
    floor: Ints = (probabilities * (bins.count * _UP)).astype(np.int32)
    floor -= probabilities <= lower.take(floor, mode="clip")
    return floor
