"""Points of a plane, for a map of disagreement over two features."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats
from veracal.errors import DataError
from veracal.multiplicity.measures import normalized
from veracal.multiplicity.results import Plane
from veracal.multiplicity.runs import Runs


@dataclass(frozen=True, eq=False)
class Grid:
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
    ) -> "Grid":
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
