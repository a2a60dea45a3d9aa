"""Results of an audit as typed records, and the summaries they contain.

Also the grid of feature values for a map of disagreement over two features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.data import Estimate
from veracal.errors import DataError
from veracal.multiplicity.measures import normalized_disagreement
from veracal.multiplicity.runs import Runs


@dataclass(frozen=True)
class Distribution:
    """Distribution of one measure over individuals.

    Attributes
    ----------
    mean, deviation, minimum, median, maximum, p90, p95 : float
        The deviation is the standard deviation over individuals, not the error of the mean.
    """

    mean: float
    deviation: float
    minimum: float
    median: float
    p90: float
    p95: float
    maximum: float

    @classmethod
    def summarize(cls, values: Floats) -> "Distribution":
        """Summarize one value for each individual."""
        if not len(values):
            raise DataError(
                "individuals", "at least one individual", "none", "Choose another group."
            )
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


def select_for_review(low: Floats, threshold: float) -> Ints:
    """Indices of the individuals whose disagreement exceeds a threshold with confidence.

    ``low`` are the lower ends of the intervals; the largest comes first.
    """
    _checks.fraction(threshold=threshold)
    indices = np.flatnonzero(low > threshold)
    ordered: Ints = indices[np.argsort(-low[indices], kind="stable")]
    return ordered


def abstention_curve(
    values: Floats, correct: Array | None = None, shares: Sequence[float] = (0, 0.1, 0.2, 0.5)
) -> list[dict[str, float]]:
    """Disagreement and accuracy if the least certain individuals get no automatic decision.

    For each share of individuals without a decision: "abstained", that share; "disagreement"
    and, if it is known which decisions are ``correct``, "accuracy" of the remaining ones.
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
    "Internal: every run reads the records again, so none of this is covered by the "
    "model's guarantee. Protect it like the records. What can be published at no cost is the "
    "arbitrariness computed from the released model (veracal predict --arbitrariness)."
)


@dataclass(frozen=True, eq=False)
class IndividualResults:
    """Results for each individual.

    Attributes
    ----------
    counts : array of ints of shape (individuals, classes)
        Number of runs that predict each class.
    disagreement, low, high : array of shape (individuals,)
        The intervals hold for all individuals simultaneously, at the audit's level.
    viable_range : array of shape (individuals,)
        Largest minus smallest probability of a class over runs, maximized over classes.
    deviation : array of shape (individuals,)
        Standard deviation of a class probability over runs, maximized over classes.
    flip : array of shape (individuals,) or None
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
        """Largest distance from an estimate to an end of its interval."""
        above, below = self.high - self.disagreement, self.disagreement - self.low
        return float(np.maximum(above, below).max())

    def to_json(self) -> dict[str, Any]:
        """Lists with one entry for each individual."""
        return {
            name: None if value is None else value.tolist()
            for name, value in vars(self).items()
        }


@dataclass(frozen=True)
class GroupDisagreement:
    """Mean disagreement for each value of an attribute, or of several combined.

    Attributes
    ----------
    individuals : mapping of str to int
        Number of individuals in each group.
    values : mapping of str to Estimate
        Without a value for an empty group.
    gap, ratio : Estimate or None
        Largest minus smallest, and smallest over largest; None with fewer than two groups.
    """

    individuals: dict[str, int]
    values: dict[str, Estimate]
    gap: Estimate | None
    ratio: Estimate | None


@dataclass(frozen=True)
class MeasuredError:
    """Measured error of estimates from fewer runs, with its bounds.

    The mean and the largest are those of all individuals' distances from the estimate of all
    other runs; the bounds, by exact intervals and by the paper, hold for every individual at
    the audit's level.
    """

    runs: int
    mean: float
    largest: float
    exact: float
    paper: float


@dataclass(frozen=True)
class AccuracyLevelResult:
    """Disagreement among the runs whose accuracy reaches a level; always *internal*."""

    accuracy: float
    runs: int
    mean: float | None  # None with fewer than two such runs
    p95: float | None


@dataclass(frozen=True)
class RecalibrationEffect:
    """Mean disagreement before and after recalibrating each run, over the same runs.

    The deviations are those of a probability over runs, averaged over individuals.
    """

    method: str
    before: Estimate
    after: Estimate
    difference: Estimate
    deviation_before: float
    deviation_after: float


@dataclass(frozen=True, eq=False)
class Plane:
    """Disagreement over two features, with all other features fixed.

    Attributes
    ----------
    names : pair of str
    xs, ys : array
        Values of the first and of the second feature.
    disagreement, share : array of shape (ys, xs)
        The share is that of runs that predict the second of two classes, or the most frequent
        class of several.
    """

    names: tuple[str, str]
    xs: Floats
    ys: Floats
    disagreement: Floats
    share: Floats

    def to_json(self) -> dict[str, Any]:
        """All arrays as lists."""
        arrays = {name: value.tolist() for name, value in vars(self).items() if name != "names"}
        return {"names": list(self.names), **arrays}


@dataclass(frozen=True, eq=False)
class Audit:
    """Disagreement between runs of one training. *Internal*.

    Attributes
    ----------
    engine_settings : mapping
        The engine, its settings, and what varied between runs.
    classes : tuple of str or int
    runs : int
    resumed : int
        Number of these runs that an earlier process counted.
    anytime_valid : bool
        Whether the number of runs was not fixed in advance: the audit stopped when its
        intervals were short enough, or resumed one with another number of runs. The intervals
        of individuals are then anytime-valid.
    error : float or None
        The requested error, with "auto".
    error_reached : bool
    level : float
    threshold : float or None
    mean : Estimate
        Mean disagreement over individuals; the interval accounts for the randomness of the
        runs.
    distribution : Distribution
        Disagreement over individuals.
    pooled, class_average : Distribution or None
        With more than two classes: over pairs of individual and class, as in the paper, and of
        each individual's average over classes.
    individuals : IndividualResults
    groups : mapping of str to GroupDisagreement
    figures : mapping of str to mapping
        Accuracy, AUC and F1 of the runs.
    errors : tuple of MeasuredError
    by_accuracy : tuple of AccuracyLevelResult
    bounds : mapping of str to float
        "single" and "simultaneous": largest error of one individual's estimate, and of any, by
        exact intervals (for more than two classes, given these counts); "paper": by the paper's
        bound; "hidden": the disagreement that an individual may have although all runs agree.
    review : array of ints
        Indices of the individuals whose disagreement exceeds ``review_above`` with confidence,
        the least certain first.
    review_above : float
    abstention : tuple of mappings
    recalibrated : RecalibrationEffect or None
    plane : Plane or None
    notes : tuple of str
    """

    engine_settings: Mapping[str, Any]
    classes: tuple[Any, ...]
    runs: int
    resumed: int
    anytime_valid: bool
    error: float | None
    error_reached: bool
    level: float
    threshold: float | None
    mean: Estimate
    distribution: Distribution
    pooled: Distribution | None
    class_average: Distribution | None
    individuals: IndividualResults
    groups: Mapping[str, GroupDisagreement]
    figures: Mapping[str, Mapping[str, float]]
    errors: tuple[MeasuredError, ...]
    by_accuracy: tuple[AccuracyLevelResult, ...]
    bounds: Mapping[str, float]
    review: Ints
    review_above: float
    abstention: tuple[Mapping[str, float], ...]
    recalibrated: RecalibrationEffect | None
    plane: Plane | None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"Audit({self.runs} runs on {len(self.individuals)} individuals: mean disagreement "
            f"{self.mean.value:.3f}, internal)"
        )

    def to_json(self, *, individuals: bool = True) -> dict[str, Any]:
        """The whole result as JSON values.

        Parameters
        ----------
        individuals : bool
            Whether to include the results of each individual.
        """
        content = {
            "internal": INTERNAL,
            "engine_settings": dict(self.engine_settings),
            "classes": list(self.classes),
            "individual_count": len(self.individuals),
            "runs": self.runs,
            "resumed": self.resumed,
            "anytime_valid": self.anytime_valid,
            "error": self.error,
            "error_reached": self.error_reached,
            "level": self.level,
            "threshold": self.threshold,
            "review_above": self.review_above,
            "mean": asdict(self.mean),
            "distribution": asdict(self.distribution),
            "pooled": None if self.pooled is None else asdict(self.pooled),
            "class_average": None if self.class_average is None else asdict(self.class_average),
            "groups": {name: asdict(group) for name, group in self.groups.items()},
            "figures": {name: dict(figure) for name, figure in self.figures.items()},
            "errors": [asdict(row) for row in self.errors],
            "by_accuracy": [asdict(row) for row in self.by_accuracy],
            "bounds": dict(self.bounds),
            "review": self.review.tolist(),
            "abstention": [dict(row) for row in self.abstention],
            "recalibrated": None if self.recalibrated is None else asdict(self.recalibrated),
            "plane": None if self.plane is None else self.plane.to_json(),
            "notes": list(self.notes),
        }
        return content | ({"individuals": self.individuals.to_json()} if individuals else {})


@dataclass(frozen=True, eq=False)
class FeatureGrid:
    """Rows that differ only in two features: all combinations, the first varying fastest."""

    names: tuple[str, str]
    xs: Floats
    ys: Floats
    rows: Floats

    @classmethod
    def over(
        cls, X: Array, names: Sequence[str], features: tuple[str, str], points: int = 25
    ) -> "FeatureGrid":
        """Span the 1st to the 99th percentile of two features, others at the median."""
        _checks.whole(least=2, points=points)
        for name in features:
            if name not in names:
                raise DataError(
                    "map",
                    f"names of features: {', '.join(map(str, names))}"[:300],
                    repr(name),
                    "Choose two of them, by the names that the model uses.",
                )
        first, second = (list(names).index(name) for name in features)
        if first == second:
            raise ValueError(f"Expected two different features, got {features[0]!r} twice.")
        ends = np.quantile(X[:, [first, second]], [0.01, 0.99], axis=0).T.tolist()
        xs, ys = (np.linspace(a, b if b > a else a + 1.0, points) for a, b in ends)
        rows = np.tile(np.median(X, axis=0).astype(np.float64), (points * points, 1))
        rows[:, first], rows[:, second] = np.tile(xs, points), np.repeat(ys, points)
        return cls((str(features[0]), str(features[1])), xs, ys, rows)

    def summarize(self, runs: Runs) -> Plane:
        """Disagreement of the runs at the points of the grid."""
        shape = (len(self.ys), len(self.xs))
        shares = runs.counts / runs.runs
        chosen = shares[:, 1] if runs.classes == 2 else shares.max(axis=1)
        values = normalized_disagreement(runs.counts, runs.runs)
        return Plane(self.names, self.xs, self.ys, values.reshape(shape), chosen.reshape(shape))
