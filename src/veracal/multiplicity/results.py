"""What is told of many people at once: the distribution, whom to review.

What an audit found, as records that tables, pages and files are made of.

Points of a plane, for a map of disagreement over two features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.data import Estimate
from veracal.errors import DataError
from veracal.multiplicity.measures import normalized
from veracal.multiplicity.runs import Runs


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


INTERNAL = (
    "Internal: every run looked at the records again, so none of this is covered by the "
    "model's guarantee. Keep it like the records. What can be published at no cost is the "
    "arbitrariness that the released model itself tells (veracal predict --arbitrariness)."
)


@dataclass(frozen=True, eq=False)
class IndividualResults:
    """What runs said of each person.

    Attributes
    ----------
    counts : array of ints of shape (people, classes)
        Runs that decided for each class.
    disagreement, low, high : array of shape (people,)
        The intervals hold for all people at once, at the audit's level.
    viable_range : array of shape (people,)
        Largest probability of a class minus the smallest, of the class where that is most.
    deviation : array of shape (people,)
        Of the probability of a class over runs, of the class where that is most.
    flip : array of shape (people,) or None
        Share of runs that contradict the deployed model.
    """

    counts: Ints
    disagreement: Floats
    low: Floats
    high: Floats
    viable_range: Floats
    deviation: Floats
    flip: Floats | None

    def __len__(self) -> int:
        return len(self.disagreement)

    @property
    def error(self) -> float:
        """Farthest that anybody's interval reaches from the estimate."""
        above, below = self.high - self.disagreement, self.disagreement - self.low
        return float(np.maximum(above, below).max())

    def to_json(self) -> dict[str, Any]:
        """Lists with one entry for each person."""
        return {
            name: None if value is None else value.tolist()
            for name, value in vars(self).items()
        }


@dataclass(frozen=True)
class GroupDisagreement:
    """Mean disagreement by an attribute, or by several at once.

    Attributes
    ----------
    people : mapping of str to int
    values : mapping of str to Estimate
        Without figures where nobody is in the group.
    gap, ratio : Estimate or None
        Largest minus smallest, and smallest over largest; None with fewer than two groups.
    """

    people: dict[str, int]
    values: dict[str, Estimate]
    gap: Estimate | None
    ratio: Estimate | None


@dataclass(frozen=True)
class MeasuredError:
    """How far estimates of fewer runs were from those of the others, beside the bounds.

    Attributes
    ----------
    runs : int
        That an estimate was made of.
    mean, largest : float
        Over people, of the distance from the estimate of all other runs.
    exact, paper : float
        What no person's error exceeds, at the level, by exact intervals and by the paper.
    """

    runs: int
    mean: float
    largest: float
    exact: float
    paper: float


@dataclass(frozen=True)
class AtLevel:
    """Disagreement among the runs whose accuracy reaches a level; *internal* always.

    Attributes
    ----------
    accuracy : float
    runs : int
    mean, p95 : float or None
        Disagreement, over people; None with fewer than two such runs.
    """

    accuracy: float
    runs: int
    mean: float | None
    p95: float | None


@dataclass(frozen=True)
class RecalibrationEffect:
    """Whether repairing confidence, run by run, makes decisions more or less arbitrary.

    Attributes
    ----------
    method : str
    before, after : Estimate
        Mean disagreement.
    difference : Estimate
        After minus before, of the same runs.
    deviation_before, deviation_after : float
        Of a person's probability over runs, mean over people.
    """

    method: str
    before: Estimate
    after: Estimate
    difference: Estimate
    deviation_before: float
    deviation_after: float


@dataclass(frozen=True, eq=False)
class Plane:
    """Disagreement over two features, everything else being fixed.

    Attributes
    ----------
    names : pair of str
    xs, ys : array
        Values of the first and of the second feature.
    disagreement, share : array of shape (ys, xs)
        And the share of runs that decide for the second class (of two), or for the class
        that most runs choose.
    """

    names: tuple[str, str]
    xs: Floats
    ys: Floats
    disagreement: Floats
    share: Floats

    def to_json(self) -> dict[str, Any]:
        """Everything as lists."""
        arrays = {name: value.tolist() for name, value in vars(self).items() if name != "names"}
        return {"names": list(self.names), **arrays}


@dataclass(frozen=True, eq=False)
class Audit:
    """How far runs of one training disagree about people. *Internal*.

    Attributes
    ----------
    about : mapping
        Engine, settings, and whatever else the audit is of.
    classes : tuple of str or int
    runs : int
    resumed : int
        Of them, taken from an earlier process.
    lasting : bool
        Whether the number of runs was not fixed beforehand: the audit stopped when its
        intervals were short enough, or went on with one that had asked for another number.
        Intervals of people are then of the kind that holds after any number of runs.
    error : float or None
        That was asked for, by "auto".
    reached : bool
        Whether it was reached.
    level : float
    threshold : float or None
    mean : Estimate
        Of disagreement over people, with the chance of the runs.
    distribution : Distribution
        Of disagreement over people.
    pooled, class_average : Distribution or None
        Of more than two classes: of every person and class, as the paper tells it, and of each
        person's mean over classes.
    persons : Persons
    groups : mapping of str to GroupTold
    figures : mapping of str to mapping
        Accuracy, AUC and F1 of the runs.
    errors : tuple of MeasuredError
    at_levels : tuple of AtLevel
    bounds : mapping of str to float
        "one" and "all": largest error of one person's estimate, and of any, by exact
        intervals (of more than two classes, for what these runs decided); "paper": by the
        paper's bound; "blind": what disagreement a person may have
        of whom all runs decide alike.
    review : array of ints
        Places of people whose disagreement is above ``review_above``, whatever runs left
        open; the least certain first.
    review_above : float
    abstention : tuple of mappings
    recalibrated : Recalibrated or None
    plane : Plane or None
    notes : tuple of str
    """

    about: Mapping[str, Any]
    classes: tuple[Any, ...]
    runs: int
    resumed: int
    lasting: bool
    error: float | None
    reached: bool
    level: float
    threshold: float | None
    mean: Estimate
    distribution: Distribution
    pooled: Distribution | None
    class_average: Distribution | None
    persons: IndividualResults
    groups: Mapping[str, GroupDisagreement]
    figures: Mapping[str, Mapping[str, float]]
    errors: tuple[MeasuredError, ...]
    at_levels: tuple[AtLevel, ...]
    bounds: Mapping[str, float]
    review: Ints
    review_above: float
    abstention: tuple[Mapping[str, float], ...]
    recalibrated: RecalibrationEffect | None
    plane: Plane | None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"Audit({self.runs} runs on {len(self.persons)} people: mean disagreement "
            f"{self.mean.value:.3f}, internal)"
        )

    def to_json(self, *, persons: bool = True) -> dict[str, Any]:
        """Everything as what JSON can hold, people one by one or not.

        Parameters
        ----------
        persons : bool
            Whether to tell of each person.
        """
        told = {
            "internal": INTERNAL,
            "about": dict(self.about),
            "classes": list(self.classes),
            "people": len(self.persons),
            **{
                name: getattr(self, name)
                for name in (
                    "runs",
                    "resumed",
                    "lasting",
                    "error",
                    "reached",
                    "level",
                    "threshold",
                    "review_above",
                )
            },
            "mean": asdict(self.mean),
            "distribution": asdict(self.distribution),
            **{
                name: None if found is None else asdict(found)
                for name, found in (
                    ("pooled", self.pooled),
                    ("class_average", self.class_average),
                )
            },
            "groups": {name: asdict(group) for name, group in self.groups.items()},
            "figures": {name: dict(figure) for name, figure in self.figures.items()},
            "errors": [asdict(row) for row in self.errors],
            "at_levels": [asdict(row) for row in self.at_levels],
            "bounds": dict(self.bounds),
            "review": self.review.tolist(),
            "abstention": [dict(row) for row in self.abstention],
            "recalibrated": None if self.recalibrated is None else asdict(self.recalibrated),
            "plane": None if self.plane is None else self.plane.to_json(),
            "notes": list(self.notes),
        }
        return told | ({"persons": self.persons.to_json()} if persons else {})


@dataclass(frozen=True, eq=False)
class FeatureGrid:
    """Rows that differ in two features alone.

    Attributes
    ----------
    names : pair of str
    xs, ys : array
        Values of the first and of the second feature.
    rows : array of shape (len(ys) * len(xs), d)
        All combinations, the first feature varying fastest.
    """

    names: tuple[str, str]
    xs: Floats
    ys: Floats
    rows: Floats

    @classmethod
    def over(
        cls, X: Array, names: Sequence[str], features: tuple[str, str], points: int = 25
    ) -> "FeatureGrid":
        """Points between the 1st and the 99th percentile of two features, others at the median.

        Parameters
        ----------
        X : array of shape (n, d)
            Rows of people, as the model takes them.
        names : sequence of str
            Of all features.
        features : pair of str
        points : int
            In each direction.
        """
        _checks.whole(least=2, points=points)
        first, second = (_place(name, names) for name in features)
        if first == second:
            raise ValueError(f"Expected two different features, got {features[0]!r} twice.")
        xs, ys = (_between(X[:, at], points) for at in (first, second))
        rows = np.tile(np.median(X, axis=0).astype(np.float64), (points * points, 1))
        rows[:, first], rows[:, second] = np.tile(xs, points), np.repeat(ys, points)
        return cls((str(features[0]), str(features[1])), xs, ys, rows)

    def told(self, runs: Runs) -> Plane:
        """What runs said of the points."""
        shape = (len(self.ys), len(self.xs))
        shares = runs.counts / runs.runs
        chosen = shares[:, 1] if runs.classes == 2 else shares.max(axis=1)
        found = normalized(runs.counts, runs.runs)
        return Plane(self.names, self.xs, self.ys, found.reshape(shape), chosen.reshape(shape))


def _place(name: str, names: Sequence[str]) -> int:
    """Number of a feature, by its name or by the number itself."""
    if name in names:
        return list(names).index(name)
    raise DataError(
        "map",
        f"names of features: {', '.join(map(str, names))}"[:300],
        repr(name),
        "Name two of them as the model sees them.",
    )


def _between(values: Array, points: int) -> Floats:
    """Evenly spaced values over where almost everybody is."""
    low, high = np.quantile(values, [0.01, 0.99]).tolist()
    return np.linspace(low, high if high > low else low + 1.0, points)
