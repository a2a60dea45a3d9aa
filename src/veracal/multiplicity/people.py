"""What is told of many people at once: the distribution, groups, whom to review."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from veracal._types import Array, Floats, Ints
from veracal.data.groups import Estimate
from veracal.errors import DataError
from veracal.multiplicity.measures import normalized
from veracal.multiplicity.runs import Runs

Measure = Callable[[Ints, int], Floats]  # of counts (people, classes) and runs, per person


@dataclass(frozen=True)
class Distribution:
    """Of one measure over people.

    Attributes
    ----------
    mean, deviation, minimum, median, maximum, p90, p95 : float
        Over people; the deviation is that of people, not the error of the mean.
    """

    mean: float
    deviation: float
    minimum: float
    median: float
    p90: float
    p95: float
    maximum: float

    @classmethod
    def of(cls, values: Floats) -> "Distribution":
        """Summarize one value for each person."""
        if not len(values):
            raise DataError("people", "at least one person", "nobody", "Name another group.")
        median, p90, p95 = np.quantile(values, [0.5, 0.9, 0.95]).tolist()
        return cls(
            float(values.mean()),
            float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            float(values.min()),
            median,
            p90,
            p95,
            float(values.max()),
        )


def mean_over_people(
    runs: Runs,
    people: Array | None = None,
    measure: Measure = normalized,
    level: float = 0.95,
) -> Estimate:
    """Mean of a measure over people, with an interval that counts the chance of the runs.

    The runs are what was drawn, not the people: all people share them, so that the deviation
    over people says nothing about the error. Blocks of runs are left out one after the other
    (Quenouille 1949), and the interval is Student's with one degree of freedom less than there
    are blocks.

    Parameters
    ----------
    runs : Runs
        With at least two blocks that hold runs.
    people : array of bool, optional
        Whom to count; by default everybody.
    measure : callable
    level : float in (0, 1)
    """
    _check_people(people)

    def mean(counts: Ints, runs: int) -> float:
        return float(measure(counts if people is None else counts[people], runs).mean())

    return _jackknifed(mean, runs, level)


def difference_of_means(
    before: Runs, after: Runs, measure: Measure = normalized, level: float = 0.95
) -> Estimate:
    """Mean over people after something was done to runs, minus that of the same runs before."""
    if not np.array_equal(before.runs_by_block, after.runs_by_block):
        raise ValueError("Expected the same runs twice, got others.")
    classes = before.classes

    def difference(counts: Ints, runs: int) -> float:
        first, second = counts[:, :classes], counts[:, classes:]
        return float((measure(second, runs) - measure(first, runs)).mean())

    both = np.concatenate([before.counts_by_block, after.counts_by_block], axis=2)
    return _left_out(difference, both, before.runs_by_block, level)


def gap_over_groups(
    runs: Runs,
    groups: Mapping[str, Array],
    measure: Measure = normalized,
    level: float = 0.95,
) -> Estimate:
    """Largest mean of a group minus the smallest, both left without the same runs.

    Groups that nobody is in do not count.
    """
    means = _means(groups, measure)
    return _jackknifed(lambda *counted: float(np.ptp(means(*counted))), runs, level)


def ratio_over_groups(
    runs: Runs,
    groups: Mapping[str, Array],
    measure: Measure = normalized,
    level: float = 0.95,
) -> Estimate:
    """Smallest mean of a group divided by the largest; 1 where all are zero."""
    means = _means(groups, measure)

    def ratio(counts: Ints, runs: int) -> float:
        found = means(counts, runs)
        return 1.0 if max(found) == 0 else float(min(found) / max(found))

    found = _jackknifed(ratio, runs, level)
    if found.value is None or found.low is None or found.high is None:
        return found
    low, high = max(found.low, 0.0), min(found.high, 1.0)
    return Estimate(found.value, min(low, found.value), high, level, found.n)


def to_review(low: Floats, threshold: float) -> Ints:
    """People whose disagreement is above a threshold, whatever the runs left open.

    Parameters
    ----------
    low : array of shape (people,)
        Lower ends of the intervals of disagreement.
    threshold : float in [0, 1]

    Returns
    -------
    array of ints
        Their places, the least certain first.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"Expected threshold between 0 and 1, got threshold={threshold!r}.")
    places = np.flatnonzero(low > threshold)
    found: Ints = places[np.argsort(-low[places], kind="stable")]
    return found


def abstention(
    values: Floats, correct: Array | None = None, shares: Sequence[float] = (0, 0.1, 0.2, 0.5)
) -> list[dict[str, float]]:
    """What is left if those with the largest disagreement get no automatic decision.

    Parameters
    ----------
    values : array of shape (people,)
        Disagreement.
    correct : array of bool, optional
        Whether the deployed decision is right.
    shares : sequence of float
        Of people without a decision.

    Returns
    -------
    list of mapping
        "abstained", "disagreement" and, with ``correct``, "accuracy" of those who are left.
    """
    order, rows = np.argsort(values, kind="stable"), []
    for share in shares:
        if not 0 <= share < 1:
            raise ValueError(f"Expected shares between 0 and 1, got {share!r}.")
        kept = order[: max(1, len(values) - round(share * len(values)))]
        row = {"abstained": float(share), "disagreement": float(values[kept].mean())}
        if correct is not None:
            row["accuracy"] = float(np.asarray(correct)[kept].mean())
        rows.append(row)
    return rows


def _inhabited(groups: Mapping[str, Array]) -> list[Array]:
    """Groups that somebody is in, at least two."""
    found = [rows for rows in groups.values() if np.asarray(rows).any()]
    if len(found) < 2:
        raise DataError(
            "groups", "two or more with somebody in them", str(len(found)), "Name others."
        )
    return found


def _means(groups: Mapping[str, Array], measure: Measure) -> Callable[[Ints, int], Floats]:
    """Means of a measure over each group that somebody is in."""
    inhabited = _inhabited(groups)
    return lambda counts, runs: np.array(
        [measure(counts[rows], runs).mean() for rows in inhabited]
    )


def _check_people(people: Array | None) -> None:
    """Refuse a group that nobody is in."""
    if people is not None and not np.asarray(people).any():
        raise DataError("people", "at least one person", "nobody", "Name another group.")


def _jackknifed(figure: Callable[[Ints, int], float], runs: Runs, level: float) -> Estimate:
    """A figure of counts that is never negative, with its interval."""
    found = _left_out(figure, runs.counts_by_block, runs.runs_by_block, level)
    low = None if found.low is None else max(found.low, 0.0)
    return Estimate(found.value, low, found.high, level, found.n)


def _left_out(
    figure: Callable[[Ints, int], float], by_block: Ints, sizes: Ints, level: float
) -> Estimate:
    """A figure of counts, with the interval from leaving out one block after the other."""
    counts, runs = by_block.sum(axis=0, dtype=np.int64), int(sizes.sum())
    value = figure(counts, runs)
    used = np.flatnonzero(sizes)
    if len(used) < 2 or runs - int(sizes.max()) < 2:
        return Estimate(value, None, None, level, runs)
    left = np.array([figure(counts - by_block[at], runs - int(sizes[at])) for at in used])
    blocks = len(used)
    error = np.sqrt((blocks - 1) / blocks * np.square(left - left.mean()).sum())
    reach = float(student.ppf((1 + level) / 2, blocks - 1) * error)
    return Estimate(value, value - reach, value + reach, level, runs)
