"""From counts of runs to what an audit tells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Floats, Ints
from veracal.data import Group
from veracal.data.groups import Estimate
from veracal.data.labels import Label
from veracal.errors import DataError
from veracal.multiplicity.intervals import (
    binomial_interval,
    disagreement_interval,
    exact_error,
    lasting_interval,
    normalized_interval,
    paper_error,
)
from veracal.multiplicity.means import gap_over_groups, mean_over_people, ratio_over_groups
from veracal.multiplicity.measures import (
    class_average,
    expected_flip,
    normalized,
    pooled_pairs,
)
from veracal.multiplicity.people import Distribution, abstention, to_review
from veracal.multiplicity.results import (
    AtLevel,
    Audit,
    GroupTold,
    MeasuredError,
    Persons,
    Plane,
    Recalibrated,
)
from veracal.multiplicity.runs import Runs

_PORTIONS = (1, 2, 4, 8)  # blocks, whose estimates are compared with those of the many others
_FEW = 100  # runs below which little can be told of anybody
_ABSTAINED = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class Asked:
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
    asked: Asked,
    *,
    groups: Mapping[str, Group],
    deployed: Ints | None,
    plane: Plane | None,
    recalibrated: Recalibrated | None,
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
) -> Persons:
    """What runs said of each person, with intervals that hold for all of them at once."""
    low, high = intervals(runs, level, lasting=lasting)
    return Persons(
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


def by_group(runs: Runs, group: Group, level: float, people: Persons) -> GroupTold:
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
    return GroupTold(
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


def notes(runs: Runs, asked: Asked, groups: Mapping[str, Group]) -> tuple[str, ...]:
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
