"""Any metric, told apart by group."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.data.dataset import Group, cross
from veracal.data.scores import Scores
from veracal.data.units import UnitRows
from veracal.errors import DataError

Metric = Callable[[Scores], float]


@dataclass(frozen=True)
class Estimate:
    """A figure with the interval around it; None where nobody is in the group.

    Attributes
    ----------
    value, low, high : float or None
    level : float
        Share of intervals of this kind that hold the true figure.
    n : int
        Records behind it.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float
    n: int


@dataclass(frozen=True, eq=False)
class ByGroup:
    """A metric by group, with replicates that were drawn once for all groups together.

    Attributes
    ----------
    group : str
        The attribute.
    names : tuple of str
        Groups, inhabited or not.
    overall : Estimate
    values : mapping of group name to Estimate
    """

    group: str
    overall: Estimate
    values: dict[str, Estimate]
    level: float
    _replicates: Floats  # of shape (replicates, groups); NaN where a group came out empty

    @property
    def names(self) -> tuple[str, ...]:
        """Groups, inhabited or not."""
        return tuple(self.values)

    def gap(self, one: str | None = None, other: str | None = None) -> Estimate:
        """Difference between two groups, or between the largest and the smallest value.

        The gap between extremes is at least 0 and biased upward when groups are small; its
        interval is that of the extremes in each replicate.
        """
        return self._compare(one, other, lambda high, low: high - low)

    def ratio(self, one: str | None = None, other: str | None = None) -> Estimate:
        """Ratio of two groups, or of the smallest to the largest value.

        The value is None where the divisor is 0.
        """
        return self._compare(other, one, lambda high, low: _ratio(low, high))

    def _compare(
        self, one: str | None, other: str | None, rule: Callable[[Floats, Floats], Floats]
    ) -> Estimate:
        """Apply a rule to (first, second) group, or to (largest, smallest)."""
        if (one is None) != (other is None):
            raise ValueError("Expected two groups to compare, or none, got one.")
        point = np.array(
            [[np.nan if e.value is None else e.value for e in self.values.values()]]
        )
        n = sum(estimate.n for estimate in self.values.values())
        if one is not None and other is not None:
            columns = [self._place(one), self._place(other)]
            n = self.values[one].n + self.values[other].n
            pair = point[:, columns], self._replicates[:, columns]
            value, draws = (rule(values[:, 0], values[:, 1]) for values in pair)
        else:
            inhabited = ~np.isnan(point[0])
            if inhabited.sum() < 2:
                return Estimate(None, None, None, self.level, n)
            pair = point[:, inhabited], self._replicates[:, inhabited]
            value, draws = (rule(values.max(axis=1), values.min(axis=1)) for values in pair)
        return _estimate(float(value[0]), draws, self.level, n)

    def _place(self, name: str) -> int:
        """Column of a group."""
        if name not in self.values:
            raise DataError(
                self.group, f"one of {', '.join(self.names)}", repr(name), "Check the spelling."
            )
        return self.names.index(name)


def by_group(
    metric: Metric,
    scores: Scores,
    group: str | tuple[str, ...],
    *,
    level: float = 0.95,
    replicates: int = 1000,
    rng: np.random.Generator,
) -> ByGroup:
    """Evaluate a metric on everybody and on each group, with bootstrap intervals.

    Whole units are drawn with replacement, one draw serving all groups, so that gaps and
    ratios see the dependence between groups; intervals are percentiles of the replicates
    (Efron 1979). A group's replicates in which nobody of it was drawn are left out.

    Parameters
    ----------
    metric : callable
        From :class:`Scores` to a number, such as an accuracy or a calibration error.
    scores : Scores
    group : str or tuple of str
        Attribute, or several whose intersections are the groups.
    level : float in (0, 1)
    replicates : int
    rng : Generator

    Returns
    -------
    ByGroup

    Notes
    -----
    The figures are plain functions of the records, hence *internal* where records are
    private.
    """
    _checks.whole(replicates=replicates)
    _checks.fraction(level=level)
    if not 0 < level < 1:
        raise ValueError(f"Expected a level between 0 and 1, got level={level!r}.")
    name, chosen = _chosen(scores, group)
    points = _evaluate(metric, scores, chosen)
    draws = np.empty((int(replicates), 1 + len(chosen.names)))
    units = UnitRows.of(scores.units, len(scores))
    for i in range(len(draws)):
        rows = units.resampled(rng)
        draws[i] = _evaluate(metric, scores.take(rows), chosen.take(rows))
    sizes = np.bincount(chosen.codes, minlength=len(chosen.names))
    estimates = [
        _estimate(float(point), draws[:, j], level, n)
        for j, (point, n) in enumerate(zip(points, [len(scores), *sizes.tolist()], strict=True))
    ]
    values = dict(zip(chosen.names, estimates[1:], strict=True))
    return ByGroup(name, estimates[0], values, level, draws[:, 1:])


def _chosen(scores: Scores, group: str | tuple[str, ...]) -> tuple[str, Group]:
    """The attribute, or the intersection of several."""
    names = (group,) if isinstance(group, str) else tuple(group)
    if not names:
        raise ValueError(f"Expected one group or several, got group={group!r}.")
    for name in names:
        if name not in scores.groups:
            known = ", ".join(map(repr, scores.groups)) or "none"
            raise DataError(scores.name, f"a group among {known}", repr(name), "Declare it.")
    groups, joined = [scores.groups[name] for name in names], " & ".join(names)
    _check_joined(groups, f"{scores.name}: {joined}")
    return joined, cross(*groups)


def _check_joined(groups: Sequence[Group], where: str) -> None:
    """Refuse intersections of one name: one would hide the people of the other."""
    seen = set()
    for parts in product(*(group.names for group in groups)):
        name = " & ".join(parts)
        if name in seen:
            raise DataError(
                where,
                "intersections of different names",
                f"{name!r} twice",
                "Rename the groups so that their names do not hold ' & '.",
            )
        seen.add(name)


def _evaluate(metric: Metric, scores: Scores, group: Group) -> Floats:
    """Metric on all rows and on each group; NaN where a group is empty."""
    values = np.full(1 + len(group.names), np.nan)
    values[0] = metric(scores) if len(scores) else np.nan
    for code in np.unique(group.codes):
        values[1 + code] = metric(scores.take(group.codes == code))
    return values


def _estimate(value: float, draws: Floats, level: float, n: int) -> Estimate:
    """Point and percentile interval; None where there is no point."""
    drawn = draws[~np.isnan(draws)]
    if np.isnan(value) or not len(drawn):
        return Estimate(None, None, None, level, n)
    low, high = np.quantile(
        drawn, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf"
    )  # no interpolation, which infinite values would not survive
    return Estimate(value, float(low), float(high), level, n)


def _ratio(low: Floats, high: Floats) -> Floats:
    """Quotient, NaN where the divisor is 0."""
    return np.divide(low, high, out=np.full_like(low, np.nan), where=high != 0)
