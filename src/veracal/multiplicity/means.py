r"""Means over people, with intervals that count the chance of the runs.

The runs are what was drawn, not the people: all people share them, so that the deviation over
people says nothing about the error of a mean. Blocks of runs are left out one after the other
(Quenouille 1949): with :math:`\theta_{-b}` a figure without block b of B,

.. math:: s^2 = \frac{B-1}{B} \sum_b (\theta_{-b} - \bar\theta)^2,

and intervals are Student's with B - 1 degrees of freedom. Two corners need more. Where all runs
toss a coin about everybody, the error of a mean is of second order, and blocks may show next to
nothing of it: the square is no less than :math:`2\theta^2/(m(m-1))`, a bound on that part of
the variance (:math:`\lVert\Sigma\rVert_F \le \operatorname{tr}\Sigma` of a decision's
covariance). Where all runs decide alike about everybody, s is 0 and proves nothing: the
probability q that a run decides otherwise about *anybody* has an exact interval, and no mean is
above 4q(1 - q).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from veracal._types import Array, Floats, Ints
from veracal.data.groups import Estimate
from veracal.errors import DataError
from veracal.multiplicity.intervals import binomial_interval, disagreement_interval
from veracal.multiplicity.measures import normalized
from veracal.multiplicity.runs import Runs

Measure = Callable[[Ints, int], Floats]  # of counts (people, classes) and runs, per person
Figures = Callable[[Ints, int], Floats]  # of counts and runs: some figures


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Some figures, and what they are without one block of runs after the other.

    Attributes
    ----------
    values : array of shape (figures,)
    left : array of shape (blocks, figures), or None
        None where too few runs are left.
    runs : int
    """

    values: Floats
    left: Floats | None
    runs: int

    def reach(self, level: float, at_once: int = 1, least: float = 0.0) -> Floats | None:
        """Half the width of intervals, of which so many hold at once.

        ``least`` is a variance that leaving out blocks may not show.
        """
        if self.left is None:
            return None
        blocks = len(self.left)
        squares = np.square(self.left - self.left.mean(axis=0)).sum(axis=0)
        quantile = student.isf((1 - level) / (2 * at_once), blocks - 1)
        found: Floats = quantile * np.sqrt(np.maximum((blocks - 1) / blocks * squares, least))
        return found

    def compared(self, rule: Callable[[Floats, Floats], Floats]) -> "LeftOut":
        """A rule applied to every ordered pair of different figures."""
        one, other = np.nonzero(~np.eye(len(self.values), dtype=bool))
        left = None if self.left is None else rule(self.left[:, one], self.left[:, other])
        return LeftOut(rule(self.values[one], self.values[other]), left, self.runs)


def mean_over_people(
    runs: Runs,
    people: Array | None = None,
    measure: Measure = normalized,
    level: float = 0.95,
) -> Estimate:
    """Mean of a measure over people.

    Parameters
    ----------
    runs : Runs
        With at least two blocks that hold runs, or there is no interval.
    people : array of bool, optional
        Whom to count; by default everybody.
    measure : callable
    level : float in (0, 1)
    """
    if people is not None and not np.asarray(people).any():
        raise DataError("people", "at least one person", "nobody", "Name another group.")
    rows = np.ones(runs.people, dtype=bool) if people is None else people
    found = left_out(_means([rows], measure), runs.counts_by_block, runs.runs_by_block)
    value, m = float(found.values[0]), runs.runs
    reach = found.reach(level, least=2 * value**2 / (m * (m - 1)))
    if reach is None:
        return Estimate(value, None, None, level, m)
    far = float(reach[0]) if value else _hidden(m, level)
    return Estimate(value, max(value - far, 0.0), value + far, level, m)


def difference_of_means(
    before: Runs, after: Runs, measure: Measure = normalized, level: float = 0.95
) -> Estimate:
    """Mean over people after something was done to runs, minus that of the same runs before."""
    if not np.array_equal(before.runs_by_block, after.runs_by_block):
        raise ValueError("Expected the same runs twice, got others.")
    classes = before.classes

    def difference(counts: Ints, runs: int) -> Floats:
        first, second = counts[:, :classes], counts[:, classes:]
        return np.array([(measure(second, runs) - measure(first, runs)).mean()])

    both = np.concatenate([before.counts_by_block, after.counts_by_block], axis=2)
    found = left_out(difference, both, before.runs_by_block)
    value, reach = float(found.values[0]), found.reach(level)
    if reach is None:
        return Estimate(value, None, None, level, found.runs)
    return Estimate(value, value - float(reach[0]), value + float(reach[0]), level, found.runs)


def gap_over_groups(
    runs: Runs,
    groups: Mapping[str, Array],
    measure: Measure = normalized,
    level: float = 0.95,
) -> Estimate:
    """Largest mean of a group minus the smallest; groups that nobody is in do not count.

    The largest of several noisy differences is too large on average. The interval is made of
    those of all pairs, which hold at once: the true gap is at least the largest of their
    lower ends, and at most the largest of their upper ends.
    """
    found = _of_groups(runs, groups, measure).compared(np.subtract)
    value = float(found.values.max())
    reach = found.reach(level, len(found.values) // 2)  # a pair and its mirror hold together
    if reach is None:
        return Estimate(value, None, None, level, runs.runs)
    low = max(float((found.values - reach).max()), 0.0)
    high = float((found.values + reach).max())
    if _all_alike(runs, groups):
        high = _hidden(runs.runs, level)
    return Estimate(value, low, high, level, runs.runs)


def ratio_over_groups(
    runs: Runs,
    groups: Mapping[str, Array],
    measure: Measure = normalized,
    level: float = 0.95,
) -> Estimate:
    """Smallest mean of a group divided by the largest; 1 where all are zero.

    The interval is made of those of all ratios of two groups, as that of a gap; where all are
    zero, nothing is known of it, and where one is, it may be what so many runs do not show.
    """
    each = _of_groups(runs, groups, measure)
    found = each.compared(_ratio)
    value, reach = float(found.values.min()), found.reach(level, len(found.values))
    if reach is None:
        return Estimate(value, None, None, level, runs.runs)
    low = max(float((found.values - reach).min()), 0.0)
    low = 0.0 if _all_alike(runs, groups) else low
    high = float((found.values + reach).min())
    if not value:  # a group about which all runs agree, which may still be arbitrary
        high = max(high, _hidden(runs.runs, level) / float(each.values.max()))
    return Estimate(value, min(low, value), min(max(high, value), 1.0), level, runs.runs)


def left_out(figures: Figures, by_block: Ints, sizes: Ints) -> LeftOut:
    """Figures of counts, with and without each block of runs.

    Parameters
    ----------
    figures : callable
    by_block : array of ints of shape (blocks, people, columns)
    sizes : array of ints of shape (blocks,)
        Runs of each block.
    """
    counts, runs = by_block.sum(axis=0, dtype=np.int64), int(sizes.sum())
    used = np.flatnonzero(sizes)
    if len(used) < 2 or runs - int(sizes.max()) < 2:
        return LeftOut(figures(counts, runs), None, runs)
    left = [figures(counts - by_block[at], runs - int(sizes[at])) for at in used]
    return LeftOut(figures(counts, runs), np.array(left), runs)


def _of_groups(runs: Runs, groups: Mapping[str, Array], measure: Measure) -> LeftOut:
    """Means of a measure over each of two or more groups that somebody is in."""
    inhabited = [np.asarray(rows) for rows in groups.values() if np.asarray(rows).any()]
    if len(inhabited) < 2:
        raise DataError(
            "groups", "two or more with somebody in them", str(len(inhabited)), "Name others."
        )
    return left_out(_means(inhabited, measure), runs.counts_by_block, runs.runs_by_block)


def _means(rows: list[Array], measure: Measure) -> Figures:
    """Means of a measure over some sets of people."""

    def means(counts: Ints, runs: int) -> Floats:
        values = measure(counts, runs)
        return np.array([values[mine].mean() for mine in rows])

    return means


def _all_alike(runs: Runs, groups: Mapping[str, Array]) -> bool:
    """Whether all runs decide alike about everybody who is in a group."""
    somewhere = np.any([np.asarray(rows) for rows in groups.values()], axis=0)
    return bool((runs.counts[somewhere].max(axis=1) == runs.runs).all())


def _hidden(runs: int, level: float) -> float:
    """Mean disagreement that people may have about whom all runs decide alike."""
    ends = binomial_interval(np.zeros(1, dtype=np.int64), runs, level)
    return float(disagreement_interval(*ends)[1][0])


def _ratio(one: Floats, other: Floats) -> Floats:
    """One divided by another, 1 where both are zero, and no less where the other is."""
    return np.divide(one, other, out=np.ones(np.shape(one)), where=other > 0)
