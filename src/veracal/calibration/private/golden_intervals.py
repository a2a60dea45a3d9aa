r"""Between which temperatures the right one lies, by the answers of a search alone.

A search has asked for sums at a few temperatures. Each sum is off from what the population
leads one to expect by noise and by the chance of which records there were; how far it may be
off is its *reach*, by one of two rules:

- From ten sources on, by what they differ: the reach of a sum of d answers with standard
  deviation s is :math:`t_{d-1} \sqrt d\, s`. This counts noise, sampling, and that other
  sources might have answered (drop-outs that have nothing to do with the records), and needs
  no number of records. For independent normal answers of *any* variances, and mixtures of such
  as Laplace noise is one, a two-sided interval is never too short at levels from 0.95 on
  (Bakirov and Szekely 2006, https://doi.org/10.1007/s10958-006-0366-5; Ibragimov and Mueller
  2010, https://doi.org/10.1198/jbes.2009.08046): sources of unequal size do no harm. Sums of
  a source's records are normal only in the limit.
- From fewer, by the law of the noise, and by Hoeffding's inequality (1963) for the sampling of
  at most ``size`` records if that is declared. Without a size the noise alone is counted.

Which temperatures are left is then a matter of form. The gap between right predictions and sum
of confidences rises with T for *every record*. So if the root T* is above a temperature t, the
sum at t is at most that at T*, a fixed temperature where the population has no gap: a sum at t
that is positive beyond its reach puts T* below t, wherever the answers before led to ask. A
function with one valley has its least below the upper one of two temperatures where it is
larger at the upper, beyond the reach of the difference, and above the lower one the other way
round. All reaches hold at once, by a union bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from veracal._types import Bools, Floats
from veracal.calibration.private.cohort import single_answers
from veracal.calibration.private.noises import noise_reach, scales
from veracal.privacy import Release

ENOUGH = 10  # sources, from which on they tell by how much they differ

Ends = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Told:
    """Sums, and what each source adds to them.

    Attributes
    ----------
    parts : array of shape (sources, entries)
        With noise.
    noises : tuple of float
        Scale of every discrete Laplace noise on each of the sums, in steps.
    step : float
        Of the grid.
    """

    parts: Floats
    noises: tuple[float, ...]
    step: float

    @classmethod
    def of(cls, release: Release) -> "Told":
        """From an answer."""
        parts = np.stack([one.values for one in single_answers(release)])
        return cls(parts, scales(release.event), release.grid.step)

    @property
    def totals(self) -> Floats:
        """The sums, of shape (entries,)."""
        result: Floats = self.parts.sum(axis=0)
        return result

    def minus(self, other: "Told") -> "Told":
        """Differences of the sums of two answers by the same sources."""
        return Told(self.parts - other.parts, self.noises + other.noises, self.step)


@dataclass(frozen=True)
class Rule:
    r"""How far a sum may be off.

    Attributes
    ----------
    alpha : float
        With which probability one of all the sums may be further off.
    size : int or None
        Declared number of records, at most, times the rows of a unit.
    width : float
        Most that what one record adds to a sum differs from what another does.
    places : int
        How many sums the answers before might have led to ask for, of which Hoeffding's
        inequality has to hold for all.
    """

    alpha: float
    size: int | None
    width: float
    places: int = 1

    def reaches(self, told: Told, asked: int) -> Floats:
        """Of each of the sums of one answer, where so many sums are looked at."""
        alpha, sources = self.alpha / asked, len(told.parts)
        if sources >= ENOUGH:
            t = float(stats.t.isf(alpha / 2, sources - 1))
            spread: Floats = np.sqrt(sources * told.parts.var(axis=0, ddof=1))
            return t * spread
        share = 1 if self.size is None else 2  # of noise and sampling each has its part
        reach = noise_reach(told.noises, alpha / share / 2) * told.step
        if self.size is not None:
            logarithm = math.log(2 * share * self.places / self.alpha)
            reach += self.width * math.sqrt(self.size * logarithm / 2)
        return np.full(told.parts.shape[1], reach)


def counts_sampling(told: Told, size: int | None) -> bool:
    """Whether the reach of a sum includes which records there were."""
    return size is not None or len(told.parts) >= ENOUGH


def root_ends(points: Floats, told: Sequence[Told], rule: Rule, ends: Ends) -> Ends:
    """Between which temperatures a rising sum of the population is zero.

    Parameters
    ----------
    points : array of shape (m,)
        Temperatures.
    told : sequence of m Told
        The sum at each of them.
    rule : Rule
    ends : pair of float
        Range of temperatures. A root beyond it counts as the end that is nearest.
    """
    sums = np.array([one.totals[0] for one in told])
    reaches = np.array([rule.reaches(one, len(told))[0] for one in told])
    return _between(points[sums < -reaches], points[sums > reaches], ends)


def loss_ends(points: Floats, told: Sequence[Told], rule: Rule, ends: Ends) -> Ends:
    """Between which temperatures a sum of the population is least, if it has one valley.

    Sums are compared source by source, so that how many records a source has cancels out.
    """
    m = len(told)
    pairs = m * (m - 1) // 2

    def surely_larger(a: int, b: int) -> bool:
        difference = told[a].minus(told[b])
        return bool(difference.totals[0] > rule.reaches(difference, pairs)[0])

    larger = [[a != b and surely_larger(a, b) for b in range(m)] for a in range(m)]
    return valley_ends(points, np.array(larger), ends)


def absolute_ends(points: Floats, told: Sequence[Told], rule: Rule, ends: Ends) -> Ends:
    """The same of a sum of absolute sums.

    Where every sum lies in an interval, the sum of their absolutes does, too: the intervals of
    two temperatures either meet or tell which is larger.
    """
    low, high = np.zeros(len(told)), np.zeros(len(told))
    for i, one in enumerate(told):
        sums, reaches = np.abs(one.totals), rule.reaches(one, len(told) * len(one.totals))
        low[i], high[i] = np.maximum(sums - reaches, 0).sum(), (sums + reaches).sum()
    return valley_ends(points, low[:, None] > high, ends)


def valley_ends(points: Floats, larger: Bools, ends: Ends) -> Ends:
    """Between which points a function with one valley has its least.

    Parameters
    ----------
    points : array of shape (m,)
    larger : array of shape (m, m)
        Whether the function is surely larger at one point than at another.
    ends : pair of float
        Of the range.

    Examples
    --------
    >>> larger = np.array([[False, True, False], [False, False, False], [False, True, False]])
    >>> valley_ends(np.array([1.0, 2.0, 3.0]), larger, (0.5, 6.0))
    (1.0, 3.0)
    """
    above = points[None, :] > points[:, None]
    falls = (larger & above).any(axis=1)
    rises = (larger & above.T).any(axis=1)
    return _between(points[falls], points[rises], ends)


def _between(under: Floats, over: Floats, ends: Ends) -> Ends:
    """From the highest point under to the lowest point over; in order, if they contradict."""
    low = float(under.max(initial=ends[0]))
    high = float(over.min(initial=ends[1]))
    return min(low, high), max(low, high)
