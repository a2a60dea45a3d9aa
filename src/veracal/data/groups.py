"""Metrics by group, with bootstrap intervals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.data.dataset import Group, UnitRows, cross
from veracal.data.scores import Scores
from veracal.errors import DataError

Metric = Callable[[Scores], float]
Interval = Literal["percentile", "basic"]
Range = tuple[float, float]
_REAL = (-np.inf, np.inf)


@dataclass(frozen=True)
class Estimate:
    """A value of n records with its interval of a confidence level; None if there is none."""

    value: float | None
    low: float | None
    high: float | None
    level: float
    n: int


@dataclass(frozen=True, eq=False)
class ByGroup:
    """A metric overall and by group, with bootstrap replicates drawn jointly for all groups.

    ``values`` holds every group of the attribute ``group``, empty or not; the other settings
    are those of :func:`by_group`.
    """

    group: str
    overall: Estimate
    values: dict[str, Estimate]
    level: float
    interval: Interval
    within: Range
    _replicates: Floats  # of shape (replicates, groups); NaN where a group is empty

    @property
    def names(self) -> tuple[str, ...]:
        """Groups, empty or not."""
        return tuple(self.values)

    def gap(self, one: str | None = None, other: str | None = None) -> Estimate:
        """Difference between two groups, or between the largest and the smallest value.

        The gap between extremes is never negative, hence biased upward, and its replicates
        even more so: its interval is the basic one, clipped at 0, for any :attr:`interval`.
        """
        span = self.within[1] - self.within[0]
        limits = (0.0 if one is None else -span, span)
        return self._compare(one, other, np.subtract, limits)

    def ratio(self, one: str | None = None, other: str | None = None) -> Estimate:
        """Ratio of two groups, or of the smallest to the largest value.

        The value is None if the divisor is 0. The interval of the ratio of extremes is the
        basic one, as for :meth:`gap`.
        """
        limits = (0.0, 1.0 if one is None else np.inf)

        def divide(high: Floats, low: Floats) -> Floats:
            return np.divide(low, high, out=np.full_like(low, np.nan), where=high != 0)

        return self._compare(other, one, divide, limits)

    def _compare(
        self,
        one: str | None,
        other: str | None,
        rule: Callable[[Floats, Floats], Floats],
        limits: Range,
    ) -> Estimate:
        """Apply a rule to the values of two groups, or to the largest and smallest value."""
        if (one is None) != (other is None):
            raise ValueError("Expected two groups to compare, or none, got one.")
        point = np.array(
            [[np.nan if e.value is None else e.value for e in self.values.values()]]
        )
        n, interval = sum(estimate.n for estimate in self.values.values()), self.interval
        if one is not None and other is not None:
            for name in (one, other):
                if name not in self.values:
                    known = ", ".join(self.names)
                    raise DataError(
                        self.group, f"one of {known}", repr(name), "Check the spelling."
                    )
            columns = [self.names.index(one), self.names.index(other)]
            n = self.values[one].n + self.values[other].n
            pair = point[:, columns], self._replicates[:, columns]
            value, draws = (rule(values[:, 0], values[:, 1]) for values in pair)
        else:
            nonempty, interval = ~np.isnan(point[0]), "basic"
            if nonempty.sum() < 2:
                return Estimate(None, None, None, self.level, n)
            pair = point[:, nonempty], self._replicates[:, nonempty]
            value, draws = (rule(values.max(axis=1), values.min(axis=1)) for values in pair)
        if not limits[0] <= value[0] <= limits[1]:
            limits = _REAL  # a ratio of values that may be negative
        return estimate(float(value[0]), draws, self.level, n, interval, limits)


def by_group(
    metric: Metric,
    scores: Scores,
    group: str | tuple[str, ...],
    *,
    level: float = 0.95,
    replicates: int = 1000,
    interval: Interval = "percentile",
    within: Range = _REAL,
    rng: np.random.Generator,
) -> ByGroup:
    r"""Evaluate a metric on all records and on each group, with bootstrap intervals.

    Whole units are drawn with replacement, jointly for all groups, so that gaps and ratios
    account for the dependence between groups (Efron 1979). Replicates in which a group is
    empty are left out for this group.

    Parameters
    ----------
    metric : callable
        From :class:`Scores` to a number, such as an accuracy or a calibration error.
    group : str or tuple of str
        Attribute, or several whose intersections are the groups.
    interval : 'percentile' or 'basic'
        With quantiles :math:`q` of the replicates, either
        :math:`[q_{\alpha/2}, q_{1-\alpha/2}]`, or reflected at the value
        :math:`\hat\theta`, :math:`[2\hat\theta - q_{1-\alpha/2}, 2\hat\theta -
        q_{\alpha/2}]` (Davison & Hinkley 1997, eq. 5.6). **Use the basic one for calibration
        errors**: they are biased upward, their replicates even more so, and percentile
        intervals often lie above the true value.
    within : pair of floats
        Range of the metric, to which basic intervals are clipped: ``(0, 1)`` for a
        calibration error.

    Notes
    -----
    The values are exact functions of the records, hence *internal* if records are private.
    For a calibrated group even the basic interval misses the true error 0 in a third of
    cases; :func:`veracal.calibration.measure` of the group's records accounts for the bias.
    """
    _checks.whole(replicates=replicates)
    _checks.open_fraction(level=level)
    _checks.one_of(("percentile", "basic"), interval=interval)
    names = (group,) if isinstance(group, str) else tuple(group)
    if not names:
        raise ValueError(f"Expected one group or several, got group={group!r}.")
    for name in names:
        if name not in scores.groups:
            known = ", ".join(map(repr, scores.groups)) or "none"
            raise DataError(scores.name, f"a group among {known}", repr(name), "Declare it.")
    groups = cross(*(scores.groups[name] for name in names))
    points = _evaluate(metric, scores, groups)
    draws = np.empty((int(replicates), 1 + len(groups.names)))
    units = UnitRows.of(scores.units, len(scores))
    for i in range(len(draws)):
        rows = units.resample(rng)
        draws[i] = _evaluate(metric, scores.take(rows), groups.take(rows))
    sizes = np.bincount(groups.codes, minlength=len(groups.names))
    estimates = [
        estimate(float(point), draws[:, j], level, n, interval, within)
        for j, (point, n) in enumerate(zip(points, [len(scores), *sizes.tolist()], strict=True))
    ]
    values = dict(zip(groups.names, estimates[1:], strict=True))
    joined = " & ".join(names)
    return ByGroup(joined, estimates[0], values, level, interval, within, draws[:, 1:])


def _evaluate(metric: Metric, scores: Scores, group: Group) -> Floats:
    """Metric on all rows and on each group; NaN where a group is empty."""
    values = np.full(1 + len(group.names), np.nan)
    values[0] = metric(scores) if len(scores) else np.nan
    for code in np.unique(group.codes):
        values[1 + code] = metric(scores.take(group.codes == code))
    return values


def estimate(
    value: float,
    draws: Floats,
    level: float,
    n: int,
    interval: Interval = "percentile",
    within: Range = _REAL,
) -> Estimate:
    """Value of n records, with the interval of its replicates.

    NaN replicates are ignored; without replicates there is no interval. If a value is
    infinite, the interval is the percentile one. See :func:`by_group`.
    """
    drawn = draws[~np.isnan(draws)]
    if np.isnan(value) or not len(drawn):
        return Estimate(None if np.isnan(value) else value, None, None, level, n)
    low, high = np.quantile(
        drawn, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf"
    ).tolist()  # no interpolation, which fails for infinite values
    if interval == "basic" and np.isfinite([value, low, high]).all():
        low, high = np.clip([2 * value - high, 2 * value - low], *within).tolist()
        low, high = min(low, value), max(high, value)  # include the value in its interval
    return Estimate(value, low, high, level, n)
