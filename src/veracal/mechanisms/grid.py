r"""Numbers on a public grid, where sums and sensitivities are exact.

A sum of floats depends on the order of its rows, and rounding it can stretch the distance of
neighbors. So each record's value is first rounded to a multiple of :math:`2^{-bits}`, the
*integer* is clipped to declared bounds, and integers are added. What one record can do to the
total then follows from two integers, and nothing else.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats, Ints
from veracal.accounting import RELATIONS, Relation

MOST_BITS = 40
MOST_UNITS = 2**40  # of one record, so that a block of rows cannot overflow 64 bits
MOST_TOTAL = 2**62  # of all records, so that noise has room in 64 bits


@dataclass(frozen=True)
class Grid:
    r"""The multiples of :math:`2^{-bits}`.

    Parameters
    ----------
    bits : int from 0 to 40
        Binary digits after the point. Zero is the grid of integers.

    Examples
    --------
    >>> Grid(2).values([3, -4])
    array([ 0.75, -1.  ])
    """

    bits: int = 0

    def __post_init__(self) -> None:
        _checks.whole(bits=self.bits, least=0)
        if self.bits > MOST_BITS:
            raise ValueError(f"Expected at most {MOST_BITS} bits, got bits={self.bits!r}.")
        object.__setattr__(self, "bits", int(self.bits))

    @property
    def step(self) -> float:
        """Distance of two neighbors on the grid."""
        return math.ldexp(1.0, -self.bits)

    def below(self, value: float) -> int:
        """Largest number of units that is no more than ``value``, exactly."""
        return math.floor(_exact(value) * (1 << self.bits))

    def above(self, value: float) -> int:
        """Smallest number of units that is no less than ``value``, exactly."""
        return math.ceil(_exact(value) * (1 << self.bits))

    def values(self, units: Iterable[int]) -> Floats:
        """Turn units into floats.

        Exact for totals of up to :math:`2^{53}` units; a larger one becomes the nearest
        float, which lies on the grid as well.
        """
        return np.array([int(k) / 2**self.bits for k in units], dtype=np.float64)


@dataclass(frozen=True)
class Bounds:
    r"""What one record contributes: an integer in [low, high], or nothing (zero).

    Attributes
    ----------
    low, high : int
        In units of the grid.

    Guarantees
    ----------
    Adding or removing a record moves a sum of contributions by at most
    :math:`\max(|low|, |high|)`; replacing one by at most
    :math:`\max(high, 0) - \min(low, 0)`. That is *high - low* wherever zero lies between
    them, and it must lie there: a record may be left out, which contributes zero.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not -MOST_UNITS <= self.low <= self.high <= MOST_UNITS or self.low == self.high == 0:
            raise ValueError(
                f"Expected low <= high, not both zero, within {MOST_UNITS} units of the grid, "
                f"got low={self.low}, high={self.high}. Use fewer bits or narrower bounds."
            )

    @classmethod
    def of(cls, low: float, high: float, grid: Grid) -> "Bounds":
        """Bounds on the grid that contain the interval [low, high]."""
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"Expected finite bounds, got low={low!r}, high={high!r}.")
        return cls(grid.below(low), grid.above(high))

    @property
    def reach(self) -> int:
        """Most that one record adds, up or down."""
        return max(abs(self.low), abs(self.high))

    @property
    def span(self) -> int:
        """Most that a sum moves when one record is exchanged for another, or left out."""
        return max(self.high, 0) - min(self.low, 0)

    def sensitivity(self, relation: Relation) -> int:
        """Most that the sum moves between neighbors, in units."""
        _checks.one_of(RELATIONS, relation=relation)
        return self.reach if relation == "add-remove" else self.span

    def one_bin_sensitivity(self, relation: Relation) -> int:
        """Most that sums by bin move in the L1 norm; each record falls into one bin."""
        _checks.one_of(RELATIONS, relation=relation)
        return self.reach if relation == "add-remove" else 2 * self.reach


def contributions(values: ArrayLike, bounds: Bounds, grid: Grid) -> Ints:
    r"""Round each value to the grid, then clip the integer.

    .. math:: k_i = \min(\max(\mathrm{rint}(x_i 2^{bits}), low), high)

    and :math:`k_i = 0` where :math:`x_i` is not finite.

    Parameters
    ----------
    values : array of real numbers of any shape
    bounds : Bounds
    grid : Grid

    Returns
    -------
    array of int64 of the same shape

    Guarantees
    ----------
    Every integer lies in [low, high] or is zero, and depends on its own value alone.
    """
    numbers = np.asarray(values)
    with np.errstate(all="ignore"):  # what overflows is clipped; what is no number is dropped
        numbers = numbers.astype(np.float64)
        kept = np.isfinite(numbers)
        units = np.rint(np.ldexp(np.where(kept, numbers, 0.0), grid.bits))
    # The bounds are floats without loss, so clipping whole floats clips the integers.
    whole = np.clip(units, bounds.low, bounds.high).astype(np.int64)
    return np.where(kept, whole, 0)


def dense_contributions(rows: ArrayLike, most: int, grid: Grid, *, power: int) -> Ints:
    r"""Put vectors on the grid so that none is longer than ``most`` units.

    Each entry is truncated toward zero, which lengthens no vector. A vector that is still
    too long is scaled down and truncated again.

    Parameters
    ----------
    rows : array of shape (n, d)
        A vector with an entry that is not finite contributes zero as a whole.
    most : int
        Longest norm, in units.
    power : 1 or 2
        Of the norm.

    Returns
    -------
    array of int64 of shape (n, d)

    Guarantees
    ----------
    For every row :math:`\sum_j |k_j|^{power} \le most^{power}`, compared in integers.
    """
    numbers = np.asarray(rows)
    with np.errstate(all="ignore"):
        numbers = numbers.astype(np.float64)
        kept = np.isfinite(numbers).all(axis=1, keepdims=True)
        scaled = np.ldexp(np.where(kept, numbers, 0.0), grid.bits)
    # An entry beyond the bound is beyond it in either norm: pull it in, keep its direction.
    largest = np.abs(scaled).max(axis=1, keepdims=True, initial=0.0)
    shrunk = np.where(largest > most, _pulled(scaled, most, largest), scaled)
    units = np.trunc(shrunk).astype(np.int64)
    long = _too_long(units, most, power)
    if long.any():
        norms = np.linalg.norm(shrunk[long], ord=power, axis=1, keepdims=True)
        units[long] = np.trunc(shrunk[long] * ((1 - 1e-9) * most / norms)).astype(np.int64)
        units[_too_long(units, most, power)] = 0  # rounding cannot lead here; if it does: none
    return units


def exact_total(blocks: Iterable[Ints], entries: int) -> Ints:
    """Add blocks of integers, each already a sum of a few rows, without overflow.

    Parameters
    ----------
    blocks : iterable of int64 arrays of shape (entries,)

    Returns
    -------
    array of int64 of shape (entries,)

    Guarantees
    ----------
    The exact sum, clipped to 2^62 in absolute value: clipping moves no two totals further
    apart, and raises no error that would tell how many records there are.
    """
    totals = np.zeros(entries, dtype=object)
    for block in blocks:
        totals = totals + block.astype(object)
    return np.array([max(-MOST_TOTAL, min(int(k), MOST_TOTAL)) for k in totals], dtype=np.int64)


def _exact(value: float) -> Fraction:
    """A number as it is stored, numpy's single precision included."""
    return Fraction(value) if isinstance(value, int) else Fraction(float(value))


def _pulled(scaled: Floats, most: int, largest: Floats) -> Floats:
    """Divide rows by their largest entry, which may be infinite where scaling overflowed."""
    with np.errstate(all="ignore"):
        pulled = np.where(np.isinf(scaled), np.copysign(1.0, scaled), scaled / largest)
    result: Floats = np.nan_to_num(pulled) * most
    return result


def _too_long(units: Ints, most: int, power: int) -> Ints:
    """Which rows are longer than allowed, in integers that cannot overflow."""
    result: Ints = (np.abs(units) ** power).sum(axis=1) > most**power
    return result
