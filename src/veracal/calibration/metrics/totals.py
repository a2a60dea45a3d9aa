"""Totals by bin, which add up over blocks of records."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from veracal._types import Floats, Ints
from veracal.calibration.bins import Bins, places
from veracal.calibration.metrics.outcomes import Outcomes


@dataclass(frozen=True, eq=False)
class BinTotals:
    r"""How many events are in each bin, how many of them happened, and their probability.

    Totals of two sets of events add up to those of their union, up to rounding that does
    not grow with the number of blocks: sums carry what their last addition lost (Knuth, The
    Art of Computer Programming, vol. 2, §4.2.2, theorem B).

    Attributes
    ----------
    bins : Bins
    counts, happened : arrays of ints of shape (bins.count,)
    probability : array of doubles of shape (bins.count,)
        Sums of probability.
    rest : array of doubles of shape (bins.count,)
        What is missing from ``probability`` by rounding.
    """

    bins: Bins
    counts: Ints
    happened: Ints
    probability: Floats
    rest: Floats

    @classmethod
    def of(cls, parts: Iterable[Outcomes], bins: Bins) -> "BinTotals":
        """Add up events."""
        size = 2 * bins.count
        cells, sums, rest = np.zeros(size, dtype=np.int64), zeros(size), zeros(size)
        for part in parts:
            place = 2 * places(part.probability, bins) + part.happened
            cells += np.bincount(place, minlength=size)
            sums, lost = two_sum(sums, sums_by(place, part.probability, size))
            rest += lost
        wrong, right = cells.reshape(-1, 2).T
        total, lost = two_sum(*sums.reshape(-1, 2).T)
        return cls(bins, wrong + right, right, total, rest.reshape(-1, 2).sum(axis=1) + lost)

    def __add__(self, other: "BinTotals") -> "BinTotals":
        if self.bins != other.bins:
            raise ValueError(f"Expected totals over {self.bins!r}, got {other.bins!r}.")
        probability, lost = two_sum(self.probability, other.probability)
        return BinTotals(
            self.bins,
            self.counts + other.counts,
            self.happened + other.happened,
            probability,
            self.rest + other.rest + lost,
        )

    @property
    def n(self) -> int:
        """Number of events."""
        return int(self.counts.sum())

    @property
    def gaps(self) -> Floats:
        """Probability minus what happened, summed by bin, of shape (bins.count,)."""
        result: Floats = (self.probability - self.happened) + self.rest
        return result


def gap_totals(parts: Iterable[Outcomes], bins: Bins) -> Floats:
    """:attr:`BinTotals.gaps` alone, in half the time."""
    sums, rest = zeros(bins.count), zeros(bins.count)
    for part in parts:
        gaps = np.subtract(part.probability, part.happened, dtype=np.float64)
        place = places(part.probability, bins)
        sums, lost = two_sum(sums, sums_by(place, gaps, bins.count))
        rest += lost
    result: Floats = sums + rest
    return result


def zeros(size: int) -> Floats:
    """Sums of nothing."""
    return np.zeros(size)


def sums_by(place: Ints, values: Floats, size: int) -> Floats:
    """Sum of the values of each place."""
    return np.bincount(place, values, size).astype(np.float64, copy=False)


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Sum, and what rounding took from it: together exactly a + b."""
    total = a + b
    kept = total - a
    return total, (a - (total - kept)) + (b - kept)
