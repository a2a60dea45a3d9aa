"""A public grid of temperatures, on which queries carry short exact numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.maps.parametric import LEAST_INVERSE, MOST_INVERSE

_MAX_BITS = 30  # a double then holds 20 bits of the integer part exactly


@dataclass(frozen=True)
class TemperatureGrid:
    r"""Temperatures in a public range whose inverse is a multiple of :math:`2^{-bits}`.

    Parameters
    ----------
    low, high : float
        The range of temperatures.
    bits : int
        16 by default: at T = 6 a step is 0.0005.

    Guarantees
    ----------
    Every inverse temperature is an exact binary number whose temperature lies in the range. It
    depends only on the temperature that is rounded.

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
        if self.bits > _MAX_BITS or least >= most:
            raise ValueError(
                f"Expected at least two temperatures on the grid between {self.low!r} and "
                f"{self.high!r}, and at most {_MAX_BITS} bits, got bits={self.bits!r}."
            )

    @classmethod
    def between(cls, temperatures: object) -> Self:
        """The grid of a range, after checking that it is a pair of numbers."""
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
        units = np.rint(2.0**self.bits / np.asarray(temperatures, dtype=np.float64))
        result: Floats = np.clip(units, *self._ends) / 2.0**self.bits
        return result

    @property
    def inverse_ends(self) -> tuple[float, float]:
        """Smallest and largest inverse temperature on the grid."""
        least, most = self._ends
        return least / 2.0**self.bits, most / 2.0**self.bits

    @property
    def _ends(self) -> tuple[float, float]:
        """Smallest and largest inverse temperature, in grid steps."""
        steps = 2.0**self.bits
        return float(np.ceil(steps / self.high)), float(np.floor(steps / self.low))
