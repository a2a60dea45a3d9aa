"""What an audit found, as records that tables, pages and files are made of."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from veracal._types import Floats, Ints
from veracal.data.groups import Estimate
from veracal.multiplicity.people import Distribution

INTERNAL = (
    "Internal: every run looked at the records again, so none of this is covered by the "
    "model's guarantee. Keep it like the records. What can be published at no cost is the "
    "arbitrariness that the released model itself tells (veracal predict --arbitrariness)."
)


@dataclass(frozen=True, eq=False)
class Persons:
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
class GroupTold:
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
class Recalibrated:
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
    persons: Persons
    groups: Mapping[str, GroupTold]
    figures: Mapping[str, Mapping[str, float]]
    errors: tuple[MeasuredError, ...]
    at_levels: tuple[AtLevel, ...]
    bounds: Mapping[str, float]
    review: Ints
    review_above: float
    abstention: tuple[Mapping[str, float], ...]
    recalibrated: Recalibrated | None
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
