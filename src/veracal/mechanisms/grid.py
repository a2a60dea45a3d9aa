r"""Public grids, on which sums and sensitivities are exact.

A sum of floats depends on the order of its rows, and rounding can increase the distance between
neighbors. Therefore the value of each record is first rounded to a multiple of
:math:`2^{-bits}`, the *integer* is clipped to declared bounds, and integers are added. The
sensitivity of the total then follows from these two integers alone.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Bools, Floats, Ints
from veracal.accounting import RELATIONS, Relation

MAX_BITS = 40
MAX_UNITS = 2**40  # per record, so that a block of rows cannot overflow 64 bits
MAX_TOTAL = 2**62  # over all records, so that total plus noise fits into 64 bits


@dataclass(frozen=True)
class Grid:
    r"""The multiples of :math:`2^{-bits}`.

    Parameters
    ----------
    bits : int from 0 to 40
        Binary digits after the point. Zero is the grid of the integers.

    Examples
    --------
    >>> Grid(2).values([3, -4])
    array([ 0.75, -1.  ])
    """

    bits: int = 0

    def __post_init__(self) -> None:
        _checks.whole(bits=self.bits, least=0)
        if self.bits > MAX_BITS:
            raise ValueError(f"Expected at most {MAX_BITS} bits, got bits={self.bits!r}.")
        object.__setattr__(self, "bits", int(self.bits))

    @property
    def step(self) -> float:
        """Distance between adjacent grid points."""
        return math.ldexp(1.0, -self.bits)

    def units(self, value: float) -> Fraction:
        """The exact number of units of a value as stored, including numpy's float32."""
        return Fraction(value if isinstance(value, int) else float(value)) * (1 << self.bits)

    def round_down(self, value: float) -> int:
        """Largest number of units that does not exceed ``value``, computed exactly."""
        return math.floor(self.units(value))

    def round_up(self, value: float) -> int:
        """Smallest number of units that is not below ``value``, computed exactly."""
        return math.ceil(self.units(value))

    def values(self, units: Iterable[int]) -> Floats:
        """Convert units to floats.

        Exact for totals of up to :math:`2^{53}` units; larger ones are rounded to the nearest
        float, which is on the grid as well.
        """
        return np.array([int(k) / 2**self.bits for k in units], dtype=np.float64)


@dataclass(frozen=True)
class Bounds:
    r"""Bounds on the contribution of one record: an integer in [low, high], or zero.

    Attributes
    ----------
    low, high : int
        In units of the grid.

    Guarantees
    ----------
    Adding or removing a record changes a sum of contributions by at most
    :math:`\max(|low|, |high|)`; replacing one by at most
    :math:`\max(high, 0) - \min(low, 0)`. This is *high - low* if zero lies between them.
    Zero must be included, because a record may be left out and then contributes zero.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not -MAX_UNITS <= self.low <= self.high <= MAX_UNITS or self.low == self.high == 0:
            raise ValueError(
                f"Expected low <= high, not both zero, within {MAX_UNITS} units of the grid, "
                f"got low={self.low}, high={self.high}. Use fewer bits or narrower bounds."
            )

    @classmethod
    def of(cls, low: float, high: float, grid: Grid) -> "Bounds":
        """The smallest bounds on the grid that contain the interval [low, high]."""
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"Expected finite bounds, got low={low!r}, high={high!r}.")
        return cls(grid.round_down(low), grid.round_up(high))

    @property
    def reach(self) -> int:
        """Largest absolute contribution of one record."""
        return max(abs(self.low), abs(self.high))

    @property
    def span(self) -> int:
        """Largest change of a sum when one record is replaced or left out."""
        return max(self.high, 0) - min(self.low, 0)

    def sensitivity(self, relation: Relation) -> int:
        """Sensitivity of a sum, in units."""
        _checks.one_of(RELATIONS, relation=relation)
        return self.reach if relation == "add-remove" else self.span

    def one_bin_sensitivity(self, relation: Relation) -> int:
        """L1 sensitivity of sums by bin, where each record falls into one bin."""
        _checks.one_of(RELATIONS, relation=relation)
        return self.reach if relation == "add-remove" else 2 * self.reach


def clip_to_grid(values: ArrayLike, bounds: Bounds, grid: Grid) -> Ints:
    r"""Round each value to the grid, then clip the integer.

    .. math:: k_i = \min(\max(\mathrm{rint}(x_i 2^{bits}), low), high)

    and :math:`k_i = 0` where :math:`x_i` is not finite.

    Guarantees
    ----------
    Every integer, in an array of the shape of the values, lies in
    [low, high] or is zero, and depends on its own value alone.
    """
    numbers = np.asarray(values)
    with np.errstate(all="ignore"):  # overflow is clipped; NaN is set to zero
        numbers = numbers.astype(np.float64)
        kept = np.isfinite(numbers)
        units = np.rint(np.ldexp(np.where(kept, numbers, 0.0), grid.bits))
    # The bounds are exact as floats, so clipping integer-valued floats is exact.
    whole = np.clip(units, bounds.low, bounds.high).astype(np.int64)
    return np.where(kept, whole, 0)


def clip_vectors_to_grid(rows: ArrayLike, most: int, grid: Grid, *, power: int) -> Ints:
    r"""Round vectors to the grid so that no norm exceeds ``most`` units.

    Each entry is truncated toward zero, which increases no norm. A vector that is still too
    long is scaled down and truncated again.

    Parameters
    ----------
    rows : array of shape (n, d)
        A vector with a nonfinite entry contributes zero as a whole.
    most : int
        Norm bound, in units.
    power : 1 or 2
        Selects the L1 or the L2 norm.

    Guarantees
    ----------
    For every row :math:`\sum_j |k_j|^{power} \le most^{power}`, compared in integers.
    """
    numbers = np.asarray(rows)
    with np.errstate(all="ignore"):
        numbers = numbers.astype(np.float64)
        kept = np.isfinite(numbers).all(axis=1, keepdims=True)
        scaled = np.ldexp(np.where(kept, numbers, 0.0), grid.bits)
    # A vector with an entry beyond the bound exceeds it in either norm: scale it down first.
    largest = np.abs(scaled).max(axis=1, keepdims=True, initial=0.0)
    with np.errstate(all="ignore"):  # entries may have become infinite
        ratios = np.where(np.isinf(scaled), np.copysign(1.0, scaled), scaled / largest)
    shrunk = np.where(largest > most, np.nan_to_num(ratios) * most, scaled)
    units = np.trunc(shrunk).astype(np.int64)
    too_long = _exceeds_norm(units, most, power)
    if too_long.any():
        norms = np.linalg.norm(shrunk[too_long], ord=power, axis=1, keepdims=True)
        scaled_down = shrunk[too_long] * ((1 - 1e-9) * most / norms)
        units[too_long] = np.trunc(scaled_down).astype(np.int64)
        units[_exceeds_norm(units, most, power)] = 0  # a safeguard: rounding cannot lead here
    return units


def exact_total(blocks: Iterable[Ints], entries: int) -> Ints:
    """Add blocks, int64 arrays of shape (entries,) that are sums of a few rows, without overflow.

    Guarantees
    ----------
    The exact sum, clipped to 2^62 in absolute value. Clipping increases no distance between
    totals, and it raises no error that would reveal the number of records.
    """
    totals = np.zeros(entries, dtype=object)
    for block in blocks:
        totals = totals + block.astype(object)
    return np.array([max(-MAX_TOTAL, min(int(k), MAX_TOTAL)) for k in totals], dtype=np.int64)


def _exceeds_norm(units: Ints, most: int, power: int) -> Bools:
    """Which rows exceed the norm bound, in integers that cannot overflow."""
    result: Bools = (np.abs(units) ** power).sum(axis=1) > most**power
    return result
