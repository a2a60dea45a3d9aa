"""How a figure between 0 and 1 varies over runs, in memory that does not grow with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from veracal._types import Array, Floats

_BINS = 10_000  # so that a quantile is right to a ten-thousandth


@dataclass(eq=False)
class Spread:
    """Mean, deviation and distribution of one figure over the runs that were added.

    Attributes
    ----------
    count : int
    mean : float
    minimum, maximum : float
    histogram : array of ints of shape (10000,)
        Of values within [0, 1].
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean
    minimum: float = 1.0
    maximum: float = 0.0
    histogram: Array = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int64))

    def add(self, values: Floats) -> None:
        r"""Take in the figure of some runs, all within [0, 1].

        Moments of two parts add up by :math:`M = M' + M'' + (\bar a - \bar b)^2 nm/(n+m)`
        (Chan, Golub and LeVeque 1983).
        """
        if not len(values):
            return
        more, mean = len(values), float(values.mean())
        total, gap = self.count + more, mean - self.mean
        self.squares += float(np.square(values - mean).sum())
        self.squares += gap**2 * self.count * more / total
        self.mean += gap * more / total
        self.count = total
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))
        bins = np.minimum((values * _BINS).astype(np.int64), _BINS - 1)
        self.histogram += np.bincount(bins, minlength=_BINS)

    @property
    def deviation(self) -> float:
        """Standard deviation over runs; 0 of a single one."""
        return float(np.sqrt(self.squares / (self.count - 1))) if self.count > 1 else 0.0

    def quantile(self, share: float) -> float:
        """Value that this share of runs is at or below, to a ten-thousandth."""
        reached = np.searchsorted(np.cumsum(self.histogram), share * self.count)
        found = (min(int(reached), _BINS - 1) + 0.5) / _BINS
        return float(np.clip(found, self.minimum, self.maximum))

    def to_json(self) -> dict[str, Any]:
        """What tables tell of it."""
        return {
            "runs": self.count,
            "mean": self.mean,
            "deviation": self.deviation,
            "minimum": self.minimum,
            "p05": self.quantile(0.05),
            "median": self.quantile(0.5),
            "p95": self.quantile(0.95),
            "maximum": self.maximum,
        }

    def state(self) -> dict[str, Array]:
        """Everything it holds, as arrays."""
        numbers = [self.count, self.mean, self.squares, self.minimum, self.maximum]
        return {"numbers": np.array(numbers, dtype=np.float64), "histogram": self.histogram}

    @classmethod
    def restored(cls, state: Mapping[str, Array]) -> "Spread":
        """One that holds what another did."""
        count, mean, squares, minimum, maximum = state["numbers"].tolist()
        histogram = np.array(state["histogram"], dtype=np.int64)
        return cls(int(count), mean, squares, minimum, maximum, histogram)
