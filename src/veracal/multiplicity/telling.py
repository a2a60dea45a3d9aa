"""From counts of runs to what an audit tells."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    deployed: Array | None,
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
    runs: Runs, level: float, *, lasting: bool, deployed: Array | None = None
) -> Persons:
    """What runs said of each person, with intervals that hold for all of them at once."""
    low, high = intervals(runs, level, lasting=lasting)
    chosen = None if deployed is None else _checked_deployed(np.asarray(deployed), runs)
    return Persons(
        runs.counts,
        normalized(runs.counts, runs.runs),
        low,
        high,
        runs.viable_range.max(axis=1),
        runs.score_deviation.max(axis=1),
        None if chosen is None else expected_flip(runs.counts, runs.runs, chosen),
    )


def intervals(runs: Runs, level: float, *, lasting: bool) -> tuple[Floats, Floats]:
    """Intervals of everybody's disagreement that hold together."""
    rule = lasting_interval if lasting else binomial_interval
    counts, m = runs.counts, runs.runs
    if runs.classes == 2:
        return disagreement_interval(*rule(counts[:, 1], m, level, runs.people))
    ends = rule(counts, m, level, runs.people * runs.classes)
    return normalized_interval(*ends, counts / m)


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
        exact = exact_error(m, runs.people, level)
        paper = paper_error(m, runs.people, level)
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
    m, none = runs.runs, np.zeros(1, dtype=np.int64)
    rule = lasting_interval if lasting else binomial_interval
    blind = disagreement_interval(*rule(none, m, level, runs.people))[1]
    return {
        "one": exact_error(m, 1, level),
        "all": exact_error(m, runs.people, level),
        "paper": paper_error(m, runs.people, level),
        "blind": float(blind[0]),
    }


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


def _correct(runs: Runs, deployed: Array | None) -> Array | None:
    """Whether the deployed decision, or else that of most runs, is right."""
    if runs.labels is None:
        return None
    decided = runs.counts.argmax(axis=1) if deployed is None else np.asarray(deployed)
    correct: Array = decided == runs.labels
    return correct


def _checked_deployed(deployed: Array, runs: Runs) -> Ints:
    """One decision of the deployed model for each person."""
    whole = deployed.shape == (runs.people,) and deployed.dtype.kind in "iu"
    if not (whole and deployed.min() >= 0 and deployed.max() < runs.classes):
        raise DataError(
            "deployed",
            f"{runs.people} numbers of classes, 0 to {runs.classes - 1}",
            f"{deployed.dtype} of shape {deployed.shape}",
            "Give one decision for each person, classes numbered as in training.",
        )
    return deployed
