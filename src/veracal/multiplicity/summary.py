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

From counts of runs to what an audit tells.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student

from veracal._types import Array, Floats, Ints
from veracal.data import Estimate, Group, Label
from veracal.errors import DataError
from veracal.multiplicity.measures import (
    binomial_interval,
    class_average,
    disagreement_interval,
    exact_error,
    expected_flip,
    lasting_interval,
    normalized,
    normalized_interval,
    paper_error,
    pooled_pairs,
)
from veracal.multiplicity.results import (
    AtLevel,
    Audit,
    Distribution,
    GroupDisagreement,
    IndividualResults,
    MeasuredError,
    Plane,
    RecalibrationEffect,
    abstention,
    to_review,
)
from veracal.multiplicity.runs import Runs

Measure = Callable[[Ints, int], Floats]  # of counts (people, classes) and runs, per person
Figures = Callable[[Ints, int], Floats]  # of counts and runs: some figures


@dataclass(frozen=True, eq=False)
class Jackknife:
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

    def compared(self, rule: Callable[[Floats, Floats], Floats]) -> "Jackknife":
        """A rule applied to every ordered pair of different figures."""
        one, other = np.nonzero(~np.eye(len(self.values), dtype=bool))
        left = None if self.left is None else rule(self.left[:, one], self.left[:, other])
        return Jackknife(rule(self.values[one], self.values[other]), left, self.runs)


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


def left_out(figures: Figures, by_block: Ints, sizes: Ints) -> Jackknife:
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
        return Jackknife(figures(counts, runs), None, runs)
    left = [figures(counts - by_block[at], runs - int(sizes[at])) for at in used]
    return Jackknife(figures(counts, runs), np.array(left), runs)


def _of_groups(runs: Runs, groups: Mapping[str, Array], measure: Measure) -> Jackknife:
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


_PORTIONS = (1, 2, 4, 8)  # blocks, whose estimates are compared with those of the many others
_FEW = 100  # runs below which little can be told of anybody
_ABSTAINED = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class AuditDescription:
    """What an audit is of, and how it ended; attributes as those of :class:`Audit`."""

    about: Mapping[str, Any]
    classes: tuple[Label, ...]
    resumed: int
    lasting: bool
    error: float | None
    reached: bool
    level: float
    review_above: float


def told(
    runs: Runs,
    asked: AuditDescription,
    *,
    groups: Mapping[str, Group],
    deployed: Ints | None,
    plane: Plane | None,
    recalibrated: RecalibrationEffect | None,
) -> Audit:
    """Everything that counts of runs tell."""
    if runs.runs < 2:
        raise DataError("runs", "two or more", str(runs.runs), "Make more of them.")
    people = persons(runs, asked.level, lasting=asked.lasting, deployed=deployed)
    correct = _correct(runs, deployed)
    return Audit(
        **{name: getattr(asked, name) for name in vars(asked)},
        runs=runs.runs,
        threshold=runs.threshold,
        mean=mean_over_people(runs, level=asked.level),
        distribution=Distribution.of(people.disagreement),
        pooled=None
        if runs.classes == 2
        else Distribution.of(pooled_pairs(runs.counts, runs.runs)),
        class_average=None
        if runs.classes == 2
        else Distribution.of(class_average(runs.counts, runs.runs)),
        persons=people,
        groups={n: by_group(runs, group, asked.level, people) for n, group in groups.items()},
        figures={name: spread.to_json() for name, spread in runs.figures.items()},
        errors=measured_errors(runs, asked.level),
        at_levels=at_levels(runs),
        bounds=bounds(runs, asked.level, lasting=asked.lasting),
        review=to_review(people.low, asked.review_above),
        abstention=tuple(abstention(people.disagreement, correct, _ABSTAINED)),
        recalibrated=recalibrated,
        plane=plane,
        notes=notes(runs, asked, groups),
    )


def persons(
    runs: Runs, level: float, *, lasting: bool, deployed: Ints | None = None
) -> IndividualResults:
    """What runs said of each person, with intervals that hold for all of them at once."""
    low, high = intervals(runs, level, lasting=lasting)
    return IndividualResults(
        runs.counts,
        normalized(runs.counts, runs.runs),
        low,
        high,
        runs.viable_range.max(axis=1),
        runs.score_deviation.max(axis=1),
        None if deployed is None else expected_flip(runs.counts, runs.runs, deployed),
    )


def intervals(runs: Runs, level: float, *, lasting: bool) -> tuple[Floats, Floats]:
    """Intervals of everybody's disagreement that hold together."""
    return _intervals(runs.counts, runs.runs, runs.people, level, lasting=lasting)


def _intervals(
    counts: Ints, m: int, people: int, level: float, *, lasting: bool
) -> tuple[Floats, Floats]:
    """Intervals from counts of m runs, wide enough for so many people at once."""
    rule, classes = lasting_interval if lasting else binomial_interval, counts.shape[1]
    if classes == 2:
        return disagreement_interval(*rule(counts[:, 1], m, level, people))
    return normalized_interval(*rule(counts, m, level, people * classes), counts / m)


def _errors(counts: Ints, m: int, people: int, level: float) -> tuple[float, float]:
    r"""How far off estimates of m runs may be at most, by exact intervals and by the paper's.

    Of two classes whatever the runs decide. Of K > 2, as far as an exact interval reaches for
    these counts; and as the disagreement is :math:`K^2/(4(K-1))` times the mean of those of
    "class or not", the paper's bound for all people and classes, so many times.
    """
    classes = counts.shape[1]
    if classes == 2:
        return exact_error(m, people, level), paper_error(m, people, level)
    low, high = _intervals(counts, m, people, level, lasting=False)
    estimate = normalized(counts, m)
    scale = classes**2 / (4 * (classes - 1))
    return (
        float(np.maximum(estimate - low, high - estimate).max()),
        scale * paper_error(m, people * classes, level),
    )


def worst_error(runs: Runs, level: float) -> float:
    """Farthest that a lasting interval of anybody reaches from the estimate."""
    return persons(runs, level, lasting=True).error if runs.runs > 1 else float("inf")


def by_group(
    runs: Runs, group: Group, level: float, people: IndividualResults
) -> GroupDisagreement:
    """Mean disagreement of each group, with gap and ratio of the extremes.

    One person alone has the interval that is theirs, which is exact.
    """
    rows = {name: group.codes == code for code, name in enumerate(group.names)}
    sizes = {name: int(mine.sum()) for name, mine in rows.items()}

    def mean(mine: Array, size: int) -> Estimate:
        if size > 1:
            return mean_over_people(runs, mine, level=level)
        if not size:
            return Estimate(None, None, None, level, runs.runs)
        each = (people.disagreement, people.low, people.high)
        value, low, high = (float(figure[mine][0]) for figure in each)
        return Estimate(value, low, high, level, runs.runs)

    values = {name: mean(mine, sizes[name]) for name, mine in rows.items()}
    several = sum(size > 0 for size in sizes.values()) > 1
    return GroupDisagreement(
        sizes,
        values,
        gap_over_groups(runs, rows, level=level) if several else None,
        ratio_over_groups(runs, rows, level=level) if several else None,
    )


def measured_errors(runs: Runs, level: float) -> tuple[MeasuredError, ...]:
    """Estimates of some blocks of runs, beside those of the rest and the bounds (Fig. 8)."""
    rows = []
    for portion in _PORTIONS:
        some = slice(0, portion)
        m = int(runs.runs_by_block[some].sum())
        rest = runs.runs - m
        if m < 2 or rest < 2:
            continue
        counts = runs.counts_by_block[some].sum(axis=0, dtype=np.int64)
        gaps = np.abs(normalized(counts, m) - normalized(runs.counts - counts, rest))
        exact, paper = _errors(counts, m, runs.people, level)
        rows.append(MeasuredError(m, float(gaps.mean()), float(gaps.max()), exact, paper))
    return tuple(rows)


def at_levels(runs: Runs) -> tuple[AtLevel, ...]:
    """Disagreement among the runs that reach an accuracy (Fig. 4)."""
    found = []
    for place, accuracy in enumerate(runs.levels):
        m = int(runs.level_runs[place])
        if m < 2:
            found.append(AtLevel(accuracy, m, None, None))
            continue
        values = normalized(runs.level_counts[place], m)
        p95 = float(np.quantile(values, 0.95))
        found.append(AtLevel(accuracy, m, float(values.mean()), p95))
    return tuple(found)


def bounds(runs: Runs, level: float, *, lasting: bool) -> dict[str, float]:
    """What so many runs can tell of a person, and what they cannot."""
    m, agreeing = runs.runs, np.zeros((1, runs.classes), dtype=np.int64)
    agreeing[0, 0] = m
    _, blind = _intervals(agreeing, m, runs.people, level, lasting=lasting)
    exact, paper = _errors(runs.counts, m, runs.people, level)
    one, _ = _errors(runs.counts, m, 1, level)
    return {"one": one, "all": exact, "paper": paper, "blind": float(blind[0])}


def notes(runs: Runs, asked: AuditDescription, groups: Mapping[str, Group]) -> tuple[str, ...]:
    """What a reader must know beside the figures."""
    found = []
    if (runs.counts.max(axis=1) == runs.runs).all():
        blind = bounds(runs, asked.level, lasting=asked.lasting)["blind"]
        found.append(
            f"All {runs.runs} runs decide alike about everybody. That is no proof: a "
            f"disagreement of up to {blind:.3g} would look the same."
        )
    if runs.runs < _FEW:
        found.append(f"{runs.runs} runs tell little of any one person; see the intervals.")
    if asked.lasting and asked.error is None:
        found.append(
            "Another number of runs was asked for before, of the same file. Intervals of "
            "people are the wider ones that hold whenever one stops."
        )
    if asked.lasting:
        found.append(
            "Intervals of means, groups and gaps are those of a number of runs that was fixed "
            "beforehand; here, take them for approximate."
        )
    if not asked.reached:
        found.append(
            f"The error of {asked.error:g} was not reached with {runs.runs} runs. Allow more."
        )
    if runs.labels is not None and "auc" not in runs.figures and runs.scored[0]:
        found.append("All people have the same right answer, so that there is no AUC.")
    for name, group in groups.items():
        sizes = np.bincount(group.codes, minlength=len(group.names))
        lonely = [label for label, n in zip(group.names, sizes, strict=True) if n == 1]
        if lonely:
            found.append(
                f"{name}: one person alone is in {', '.join(lonely)}; that figure is theirs."
            )
    return tuple(found)


def _correct(runs: Runs, deployed: Ints | None) -> Array | None:
    """Whether the deployed decision, or else that of most runs, is right."""
    if runs.labels is None:
        return None
    decided = runs.counts.argmax(axis=1) if deployed is None else deployed
    correct: Array = decided == runs.labels
    return correct


def checked_deployed(deployed: ArrayLike, people: int, classes: Sequence[Label]) -> Ints:
    """One decision of the deployed model for each person."""
    given, most = np.asarray(deployed), len(classes) - 1
    whole = given.shape == (people,) and given.dtype.kind in "biu"
    if not (whole and given.min() >= 0 and given.max() <= most):
        raise DataError(
            "deployed",
            f"{people} numbers of classes, 0 to {most}",
            f"{given.dtype} of shape {given.shape}" + ", others among them" * whole,
            "Give one decision for each person, classes numbered as in training.",
        )
    codes: Ints = given.astype(np.int64)
    return codes
