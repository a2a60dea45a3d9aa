"""Temperatures on a public grid, so that a question about one is a short exact number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.maps.parametric import LEAST_INVERSE, MOST_INVERSE

_MOST_BITS = 30  # 20 more of a whole part fit into a double without rounding


@dataclass(frozen=True)
class TemperatureGrid:
    r"""Temperatures whose inverse is a multiple of :math:`2^{-bits}`, within a public range.

    Parameters
    ----------
    low, high : float
        The range of temperatures.
    bits : int
        16 by default, as in the other searches: at T = 6 a step is 0.0005.

    Guarantees
    ----------
    Every inverse temperature is exact in binary, its temperature lies in the range, and which
    one is taken depends on nothing but the temperature that was wanted.

    Examples
    --------
    >>> TemperatureGrid(0.5, 6.0, bits=3).inverses([0.1, 0.9, 3.0, 9.0]).tolist()
    [2.0, 1.125, 0.375, 0.25]
    """

    low: float
    high: float
    bits: int = 16

    def __post_init__(self) -> None:
        _checks.positive(least_temperature=self.low, most_temperature=self.high)
        _checks.whole(bits=self.bits, least=0)
        limits = 1 / MOST_INVERSE, 1 / LEAST_INVERSE
        if not limits[0] <= self.low < self.high <= limits[1]:
            raise ValueError(
                f"Expected a range of temperatures (low, high) from {limits[0]:g} to "
                f"{limits[1]:g}, low < high, got {(self.low, self.high)!r}."
            )
        least, most = self._ends
        if self.bits > _MOST_BITS or least >= most:
            raise ValueError(
                f"Expected at least two temperatures on the grid between {self.low!r} and "
                f"{self.high!r}, and at most {_MOST_BITS} bits, got bits={self.bits!r}."
            )

    @classmethod
    def between(cls, temperatures: object) -> Self:
        """The grid of a range, if a pair of numbers is what it is."""
        pair = isinstance(temperatures, Sequence | np.ndarray) and len(temperatures) == 2
        if isinstance(temperatures, str) or not pair:
            raise ValueError(
                "Expected temperatures to be a pair of numbers, as in (0.5, 6.0), got "
                f"temperatures={temperatures!r}."
            )
        low, high = cast(tuple[float, float], temperatures)
        return cls(low, high)

    def inverses(self, temperatures: ArrayLike) -> Floats:
        """Nearest inverse temperatures on the grid, of the same shape."""
        wanted = np.rint(2.0**self.bits / np.asarray(temperatures, dtype=np.float64))
        result: Floats = np.clip(wanted, *self._ends) / 2.0**self.bits
        return result

    @property
    def inverse_ends(self) -> tuple[float, float]:
        """Least and largest inverse temperature of the range, on the grid."""
        least, most = self._ends
        return least / 2.0**self.bits, most / 2.0**self.bits

    @property
    def _ends(self) -> tuple[float, float]:
        """Least and largest inverse temperature of the range, in steps."""
        steps = 2.0**self.bits
        return float(np.ceil(steps / self.high)), float(np.floor(steps / self.low))
