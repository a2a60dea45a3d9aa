r"""Summaries of an audit: means with jackknife intervals, groups, error bounds, notes.

The sample is the runs, not the individuals: all individuals share the runs, so that the
standard deviation over individuals says nothing about the error of a mean. Blocks of runs are
left out one at a time (the jackknife, Quenouille 1949): with :math:`\theta_{-b}` a figure
without block b of B,

.. math:: s^2 = \frac{B-1}{B} \sum_b (\theta_{-b} - \bar\theta)^2,

and intervals are Student's with B - 1 degrees of freedom. Two edge cases need more. Where every
decision is a coin toss, the error of a mean is of second order, and the blocks may show almost
none of it: the square is at least :math:`2\theta^2/(m(m-1))`, a bound on that part of the
variance (:math:`\lVert\Sigma\rVert_F \le \operatorname{tr}\Sigma` of the covariance of
decisions). Where all runs agree about every individual, s is 0 and proves nothing: the
probability q that a run deviates for *any* individual has an exact interval, and no mean
exceeds 4q(1 - q).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from veracal._types import Array, Floats, Ints
from veracal.data import Estimate, Group, Label
from veracal.errors import DataError
from veracal.multiplicity.measures import (
    anytime_interval,
    binomial_interval,
    class_averaged_disagreement,
    disagreement_interval,
    exact_error,
    expected_flip,
    normalized_disagreement,
    normalized_interval,
    paper_error,
    pooled_disagreement,
)
from veracal.multiplicity.results import (
    AccuracyLevelResult,
    Audit,
    Distribution,
    GroupDisagreement,
    IndividualResults,
    MeasuredError,
    Plane,
    RecalibrationEffect,
    abstention_curve,
    select_for_review,
)
from veracal.multiplicity.runs import Runs

Figures = Callable[[Ints, int], Floats]  # (counts, runs) -> figures


@dataclass(frozen=True, eq=False)
class Jackknife:
    """Figures, and their values with one block of runs left out."""

    values: Floats
    leave_one_out: Floats | None  # of shape (blocks, figures); None with too few runs
    runs: int

    def half_width(self, level: float, at_once: int = 1, least: float = 0.0) -> Floats | None:
        """Half-width of ``at_once`` simultaneous intervals.

        ``least`` is a lower bound on the variance that the blocks may not show.
        """
        if self.leave_one_out is None:
            return None
        blocks = len(self.leave_one_out)
        squares = np.square(self.leave_one_out - self.leave_one_out.mean(axis=0)).sum(axis=0)
        quantile = student.isf((1 - level) / (2 * at_once), blocks - 1)
        result: Floats = quantile * np.sqrt(np.maximum((blocks - 1) / blocks * squares, least))
        return result

    def compare_pairs(self, rule: Callable[[Floats, Floats], Floats]) -> "Jackknife":
        """Apply a rule to every ordered pair of different figures."""
        first, second = np.nonzero(~np.eye(len(self.values), dtype=bool))
        leave_one_out = (
            None
            if self.leave_one_out is None
            else rule(self.leave_one_out[:, first], self.leave_one_out[:, second])
        )
        return Jackknife(
            rule(self.values[first], self.values[second]), leave_one_out, self.runs
        )


def mean_over_individuals(
    runs: Runs, individuals: Array | None = None, level: float = 0.95
) -> Estimate:
    """Mean disagreement over all or some individuals, with an interval.

    With fewer than two non-empty blocks of runs there is no interval.
    """
    if individuals is not None and not np.asarray(individuals).any():
        raise DataError(
            "individuals", "at least one individual", "none", "Choose another group."
        )
    rows = np.ones(runs.individuals, dtype=bool) if individuals is None else individuals
    result = _jackknife_means(runs, [rows])
    value, m = float(result.values[0]), runs.runs
    half_width = result.half_width(level, least=2 * value**2 / (m * (m - 1)))
    if half_width is None:
        return Estimate(value, None, None, level, m)
    distance = float(half_width[0]) if value else _hidden_disagreement(m, level)
    return Estimate(value, max(value - distance, 0.0), value + distance, level, m)


def difference_of_means(before: Runs, after: Runs, level: float = 0.95) -> Estimate:
    """Mean disagreement after a change of the runs, minus the mean before it."""
    if not np.array_equal(before.runs_by_block, after.runs_by_block):
        raise ValueError("Expected counts of the same runs before and after.")
    classes = before.classes

    def difference(counts: Ints, runs: int) -> Floats:
        first = normalized_disagreement(counts[:, :classes], runs)
        second = normalized_disagreement(counts[:, classes:], runs)
        return np.array([(second - first).mean()])

    combined = np.concatenate([before.counts_by_block, after.counts_by_block], axis=2)
    result = jackknife(difference, combined, before.runs_by_block)
    value, half_width = float(result.values[0]), result.half_width(level)
    if half_width is None:
        return Estimate(value, None, None, level, result.runs)
    distance = float(half_width[0])
    return Estimate(value, value - distance, value + distance, level, result.runs)


def gap_over_groups(runs: Runs, groups: Mapping[str, Array], level: float = 0.95) -> Estimate:
    """Largest group mean minus the smallest, over non-empty groups.

    The largest of several noisy differences is biased upward. The interval combines
    simultaneous intervals of all pairs: the true gap is at least the largest of their lower
    ends, and at most the largest of their upper ends.
    """
    result = _group_means(runs, groups).compare_pairs(np.subtract)
    value = float(result.values.max())
    pairs = len(result.values) // 2  # a pair and its reverse hold together
    half_width = result.half_width(level, pairs)
    if half_width is None:
        return Estimate(value, None, None, level, runs.runs)
    low = max(float((result.values - half_width).max()), 0.0)
    high = float((result.values + half_width).max())
    if _is_unanimous(runs, groups):
        high = _hidden_disagreement(runs.runs, level)
    return Estimate(value, low, high, level, runs.runs)


def ratio_over_groups(runs: Runs, groups: Mapping[str, Array], level: float = 0.95) -> Estimate:
    """Smallest group mean divided by the largest; 1 where all are zero.

    The interval combines those of all pairwise ratios, like that of a gap. Where all means are
    zero the ratio is unknown; where one is zero, the upper end allows for disagreement that
    this many runs do not show.
    """
    each = _group_means(runs, groups)
    # Of two means of zero the ratio is 1.
    result = each.compare_pairs(
        lambda mean, other: np.divide(mean, other, out=np.ones_like(mean), where=other > 0)
    )
    value, half_width = float(result.values.min()), result.half_width(level, len(result.values))
    if half_width is None:
        return Estimate(value, None, None, level, runs.runs)
    low = max(float((result.values - half_width).min()), 0.0)
    low = 0.0 if _is_unanimous(runs, groups) else low
    high = float((result.values + half_width).min())
    if not value:  # all runs agree about one group, which may still be arbitrary
        high = max(high, _hidden_disagreement(runs.runs, level) / float(each.values.max()))
    return Estimate(value, min(low, value), min(max(high, value), 1.0), level, runs.runs)


def jackknife(figures: Figures, by_block: Ints, sizes: Ints) -> Jackknife:
    """Compute figures with and without each block of runs.

    ``by_block`` has the shape (blocks, individuals, columns); ``sizes`` are the runs in blocks.
    """
    counts, runs = by_block.sum(axis=0, dtype=np.int64), int(sizes.sum())
    used = np.flatnonzero(sizes)
    if len(used) < 2 or runs - int(sizes.max()) < 2:
        return Jackknife(figures(counts, runs), None, runs)
    leave_one_out = [figures(counts - by_block[at], runs - int(sizes[at])) for at in used]
    return Jackknife(figures(counts, runs), np.array(leave_one_out), runs)


def _group_means(runs: Runs, groups: Mapping[str, Array]) -> Jackknife:
    """Mean disagreement of each of two or more non-empty groups."""
    nonempty = [np.asarray(rows) for rows in groups.values() if np.asarray(rows).any()]
    if len(nonempty) < 2:
        raise DataError(
            "groups", "at least two non-empty groups", str(len(nonempty)), "Choose others."
        )
    return _jackknife_means(runs, nonempty)


def _jackknife_means(runs: Runs, rows: list[Array]) -> Jackknife:
    """Mean disagreement over sets of individuals."""

    def means(counts: Ints, m: int) -> Floats:
        values = normalized_disagreement(counts, m)
        return np.array([values[mine].mean() for mine in rows])

    return jackknife(means, runs.counts_by_block, runs.runs_by_block)


def _is_unanimous(runs: Runs, groups: Mapping[str, Array]) -> bool:
    """Whether all runs agree about every individual who belongs to a group."""
    somewhere = np.any([np.asarray(rows) for rows in groups.values()], axis=0)
    return bool((runs.counts[somewhere].max(axis=1) == runs.runs).all())


def _hidden_disagreement(runs: int, level: float) -> float:
    """Upper bound on a mean disagreement where all runs agree."""
    ends = binomial_interval(np.zeros(1, dtype=np.int64), runs, level)
    return float(disagreement_interval(*ends)[1][0])


_BLOCK_PORTIONS = (1, 2, 4, 8)  # numbers of blocks compared with the remaining ones
_FEW_RUNS = 100  # with fewer runs, estimates of individuals are imprecise
_ABSTENTION_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class AuditDescription:
    """Settings of an audit, and how it ended; attributes as those of :class:`Audit`."""

    engine_settings: Mapping[str, Any]
    classes: tuple[Label, ...]
    resumed: int
    anytime_valid: bool
    error: float | None
    error_reached: bool
    level: float
    review_above: float


def summarize(
    runs: Runs,
    description: AuditDescription,
    *,
    groups: Mapping[str, Group],
    deployed: Ints | None,
    plane: Plane | None,
    recalibrated: RecalibrationEffect | None,
) -> Audit:
    """Compute every result of an audit from the counts of its runs."""
    if runs.runs < 2:
        raise DataError("runs", "two or more", str(runs.runs), "Add more runs.")
    individuals = summarize_individuals(
        runs, description.level, anytime_valid=description.anytime_valid, deployed=deployed
    )
    bounds = error_bounds(runs, description.level, anytime_valid=description.anytime_valid)
    correct = None
    if runs.labels is not None:  # of the deployed decision, or else of the majority's
        decided = runs.counts.argmax(axis=1) if deployed is None else deployed
        correct = decided == runs.labels
    return Audit(
        **{name: getattr(description, name) for name in vars(description)},
        runs=runs.runs,
        threshold=runs.threshold,
        mean=mean_over_individuals(runs, level=description.level),
        distribution=Distribution.summarize(individuals.disagreement),
        pooled=None
        if runs.classes == 2
        else Distribution.summarize(pooled_disagreement(runs.counts, runs.runs)),
        class_average=None
        if runs.classes == 2
        else Distribution.summarize(class_averaged_disagreement(runs.counts, runs.runs)),
        individuals=individuals,
        groups={
            n: summarize_group(runs, group, description.level, individuals)
            for n, group in groups.items()
        },
        figures={name: spread.to_json() for name, spread in runs.figures.items()},
        errors=measure_errors(runs, description.level),
        by_accuracy=summarize_accuracy_levels(runs),
        bounds=bounds,
        review=select_for_review(individuals.low, description.review_above),
        abstention=tuple(
            abstention_curve(individuals.disagreement, correct, _ABSTENTION_SHARES)
        ),
        recalibrated=recalibrated,
        plane=plane,
        notes=make_notes(runs, description, groups, bounds["hidden"]),
    )


def summarize_individuals(
    runs: Runs, level: float, *, anytime_valid: bool, deployed: Ints | None = None
) -> IndividualResults:
    """Results of each individual, with simultaneous intervals."""
    low, high = simultaneous_intervals(
        runs.counts, runs.runs, runs.individuals, level, anytime_valid=anytime_valid
    )
    return IndividualResults(
        runs.counts,
        normalized_disagreement(runs.counts, runs.runs),
        low,
        high,
        runs.viable_range.max(axis=1),
        runs.score_deviation.max(axis=1),
        None if deployed is None else expected_flip(runs.counts, runs.runs, deployed),
    )


def simultaneous_intervals(
    counts: Ints, m: int, individuals: int, level: float, *, anytime_valid: bool
) -> tuple[Floats, Floats]:
    """Intervals of disagreement from counts of m runs, simultaneous for all individuals."""
    rule, classes = anytime_interval if anytime_valid else binomial_interval, counts.shape[1]
    if classes == 2:
        return disagreement_interval(*rule(counts[:, 1], m, level, individuals))
    return normalized_interval(*rule(counts, m, level, individuals * classes), counts / m)


def _error_bounds(counts: Ints, m: int, individuals: int, level: float) -> tuple[float, float]:
    """Largest error of an estimate from m runs, by exact intervals and by the paper's bound.

    With two classes, over all possible counts. With K > 2, the half-width of the exact interval
    for these counts; and as the disagreement is :math:`K^2/(4(K-1))` times the mean of the
    one-vs-rest disagreements, the paper's bound over all individuals and classes, scaled by
    that.
    """
    classes = counts.shape[1]
    if classes == 2:
        return exact_error(m, individuals, level), paper_error(m, individuals, level)
    low, high = simultaneous_intervals(counts, m, individuals, level, anytime_valid=False)
    estimate = normalized_disagreement(counts, m)
    scale = classes**2 / (4 * (classes - 1))
    return (
        float(np.maximum(estimate - low, high - estimate).max()),
        scale * paper_error(m, individuals * classes, level),
    )


def worst_error(runs: Runs, level: float) -> float:
    """Largest half-width of an anytime-valid interval."""
    return (
        summarize_individuals(runs, level, anytime_valid=True).error
        if runs.runs > 1
        else float("inf")
    )


def summarize_group(
    runs: Runs, group: Group, level: float, individuals: IndividualResults
) -> GroupDisagreement:
    """Mean disagreement of each group, with the gap and ratio of the extremes.

    A group of one individual has that individual's exact interval.
    """
    rows = {name: group.codes == code for code, name in enumerate(group.names)}
    sizes = {name: int(mine.sum()) for name, mine in rows.items()}

    def mean(mine: Array, size: int) -> Estimate:
        if size > 1:
            return mean_over_individuals(runs, mine, level=level)
        if not size:
            return Estimate(None, None, None, level, runs.runs)
        each = (individuals.disagreement, individuals.low, individuals.high)
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


def measure_errors(runs: Runs, level: float) -> tuple[MeasuredError, ...]:
    """Compare estimates from some blocks of runs with those from the rest (Fig. 8)."""
    rows = []
    for portion in _BLOCK_PORTIONS:
        blocks = slice(0, portion)
        m = int(runs.runs_by_block[blocks].sum())
        rest = runs.runs - m
        if m < 2 or rest < 2:
            continue
        counts = runs.counts_by_block[blocks].sum(axis=0, dtype=np.int64)
        gaps = np.abs(
            normalized_disagreement(counts, m)
            - normalized_disagreement(runs.counts - counts, rest)
        )
        exact, paper = _error_bounds(counts, m, runs.individuals, level)
        rows.append(MeasuredError(m, float(gaps.mean()), float(gaps.max()), exact, paper))
    return tuple(rows)


def summarize_accuracy_levels(runs: Runs) -> tuple[AccuracyLevelResult, ...]:
    """Disagreement among the runs that reach each accuracy (Fig. 4)."""
    levels = []
    for index, accuracy in enumerate(runs.levels):
        m = int(runs.level_runs[index])
        if m < 2:
            levels.append(AccuracyLevelResult(accuracy, m, None, None))
            continue
        values = normalized_disagreement(runs.level_counts[index], m)
        p95 = float(np.quantile(values, 0.95))
        levels.append(AccuracyLevelResult(accuracy, m, float(values.mean()), p95))
    return tuple(levels)


def error_bounds(runs: Runs, level: float, *, anytime_valid: bool) -> dict[str, float]:
    """The precision of this many runs, and the disagreement they may hide."""
    m, agreeing = runs.runs, np.zeros((1, runs.classes), dtype=np.int64)
    agreeing[0, 0] = m
    _, hidden = simultaneous_intervals(
        agreeing, m, runs.individuals, level, anytime_valid=anytime_valid
    )
    exact, paper = _error_bounds(runs.counts, m, runs.individuals, level)
    one, _ = _error_bounds(runs.counts, m, 1, level)
    return {"single": one, "simultaneous": exact, "paper": paper, "hidden": float(hidden[0])}


def make_notes(
    runs: Runs, description: AuditDescription, groups: Mapping[str, Group], hidden: float
) -> tuple[str, ...]:
    """What a reader must know beside the figures."""
    notes = []
    if (runs.counts.max(axis=1) == runs.runs).all():
        notes.append(
            f"All {runs.runs} runs agree about every individual. This does not prove that "
            f"there is no disagreement: up to {hidden:.3g} would look the same."
        )
    if runs.runs < _FEW_RUNS:
        notes.append(
            f"{runs.runs} runs say little about any one individual; see the intervals."
        )
    if description.anytime_valid and description.error is None:
        notes.append(
            "The file was started with another number of runs. The intervals of individuals "
            "are therefore the wider, anytime-valid ones."
        )
    if description.anytime_valid:
        notes.append(
            "Intervals of means, groups and gaps assume a number of runs fixed in advance; "
            "here they are approximate."
        )
    if not description.error_reached:
        notes.append(
            f"{runs.runs} runs did not reach the error of {description.error:g}. Allow more "
            "runs."
        )
    if runs.labels is not None and "auc" not in runs.figures and runs.scored[0]:
        notes.append("All individuals have the same label, so that there is no AUC.")
    for name, group in groups.items():
        sizes = np.bincount(group.codes, minlength=len(group.names))
        singletons = [label for label, n in zip(group.names, sizes, strict=True) if n == 1]
        if singletons:
            notes.append(
                f"{name}: {', '.join(singletons)} has one individual; its figure is theirs."
            )
    return tuple(notes)
