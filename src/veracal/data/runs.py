"""What m re-trainings said of n people, remembered without keeping what each one said."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Array, Floats, Frozen, Ints
from veracal.data.checked import check_codes, check_ids, frozen
from veracal.data.dataset import Group
from veracal.data.labels import Label, check_classes
from veracal.data.scores import Scores
from veracal.errors import DataError


class Runs:
    r"""Streamed statistics of the scores of m models on the same n records.

    Each added :class:`Scores` updates, for every record and class, the number of decisions
    for the class, and the mean, the sum of squared deviations, the least and the largest of
    its probability (Welford's recurrence). Memory is O(nk + m), never O(nmk).

    :meth:`like` makes one for the records of given scores.

    Parameters
    ----------
    labels : array of ints in [0, k), of shape (n,), or None
        Right answers by position among ``classes``, as in :attr:`Scores.labels` and
        :attr:`Dataset.y`; not as they are written: with the classes 1 and 2 they are 0 and 1.
    classes : sequence of str or int
    n : int, optional
        Number of records, where there are no labels.
    groups : mapping of str to Group
    units : array of ids of shape (n,), optional
    thresholds : sequence of float, optional
        For two classes: decisions "probability of the second class > t" are counted for each
        t besides the usual largest-score decisions.
    accuracy_levels : sequence of float, optional
        Decisions are also counted separately for the runs whose accuracy reaches each level.
        Such counts are internal: choosing runs by accuracy spends privacy of its own.

    Attributes
    ----------
    m : int
        Runs added so far.
    counts : array of ints of shape (n, k)
        Decisions for each class.
    mean, least, largest : arrays of shape (n, k)
        Of the probabilities, over runs.
    """

    def __init__(
        self,
        labels: ArrayLike | None,
        classes: Sequence[Label],
        *,
        n: int | None = None,
        groups: Mapping[str, Group] = Frozen(),
        units: ArrayLike | None = None,
        thresholds: Sequence[float] = (),
        accuracy_levels: Sequence[float] = (),
    ) -> None:
        self.classes, k = check_classes(classes, "runs"), len(classes)
        if (labels is None) == (n is None):
            raise ValueError(
                "Expected either labels or the number of records n, got both or none."
            )
        if n is not None:
            _checks.whole(least=0, n=n)
        self.labels = None if labels is None else check_codes("runs: labels", labels, k)
        rows = int(n or 0) if self.labels is None else len(self.labels)
        self.units = None if units is None else check_ids(units, rows, "runs")
        self.groups = _checked_groups(groups, rows)
        if thresholds and k != 2:
            raise ValueError(f"Expected thresholds only for two classes, got {k} classes.")
        if accuracy_levels and self.labels is None:
            raise ValueError("Expected labels with accuracy_levels, got none.")
        for threshold in thresholds:
            _checks.fraction(threshold=threshold)
        for level in accuracy_levels:
            _checks.fraction(accuracy_level=level)
        self.thresholds, self.accuracy_levels = tuple(thresholds), tuple(accuracy_levels)
        self.m = 0
        self.counts = np.zeros((rows, k), dtype=np.int64)
        self.mean = np.zeros((rows, k))
        self._deviations = np.zeros((rows, k))
        self.least = np.full((rows, k), np.inf)
        self.largest = np.full((rows, k), -np.inf)
        self.threshold_counts = np.zeros((len(self.thresholds), rows), dtype=np.int64)
        self.level_counts = np.zeros((len(self.accuracy_levels), rows, k), dtype=np.int64)
        self.level_m = np.zeros(len(self.accuracy_levels), dtype=np.int64)
        self._accuracy: list[float] = []

    @classmethod
    def like(
        cls,
        scores: Scores,
        *,
        thresholds: Sequence[float] = (),
        accuracy_levels: Sequence[float] = (),
    ) -> "Runs":
        """Collect runs on the records of ``scores``, which are not yet added.

        Labels, classes, groups and units are those of the scores.
        """
        return cls(
            scores.labels,
            scores.classes,
            n=len(scores) if scores.labels is None else None,
            groups=scores.groups,
            units=scores.units,
            thresholds=thresholds,
            accuracy_levels=accuracy_levels,
        )

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        for name in ("labels", "units"):  # arrays come out of a pickle ready to be changed
            if state[name] is not None:
                setattr(self, name, frozen(state[name]))

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        return f"Runs({self.m} runs on {len(self)} records, {len(self.classes)} classes)"

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def accuracy(self) -> Floats:
        """Accuracy of each run, of shape (m,); empty without labels."""
        return np.asarray(self._accuracy)

    @property
    def variance(self) -> Floats:
        """Unbiased variance of each probability over runs, of shape (n, k); needs m >= 2."""
        if self.m < 2:
            raise DataError(
                "runs",
                "at least two of them",
                str(self.m),
                "Add more before asking for variance.",
            )
        return self._deviations / (self.m - 1)

    def add(self, scores: Scores) -> "Runs":
        """Take in one run's scores, and return self."""
        self._check(scores)
        probabilities, decisions = scores.probabilities, scores.predictions
        self.m += 1
        moved = probabilities - self.mean
        self.mean += moved / self.m
        self._deviations += moved * (probabilities - self.mean)
        np.minimum(self.least, probabilities, out=self.least)
        np.maximum(self.largest, probabilities, out=self.largest)
        rows = np.arange(len(self))
        self.counts[rows, decisions] += 1
        for i, threshold in enumerate(self.thresholds):
            self.threshold_counts[i] += probabilities[:, 1] > threshold
        if self.labels is not None:
            self._add_accuracy(decisions, rows)
        return self

    def merge(self, other: "Runs") -> "Runs":
        r"""Take in the runs of another collector, and return self.

        Moments combine by Chan's rule
        :math:`M_2 = M_2' + M_2'' + (\bar p' - \bar p'')^2 \, m' m'' / (m' + m'')`.
        """
        mine = (self.classes, len(self), self.thresholds, self.accuracy_levels)
        theirs = (other.classes, len(other), other.thresholds, other.accuracy_levels)
        if mine != theirs or not _same(self.units, other.units):
            raise DataError("runs", repr(self), repr(other), "Merge runs on the same records.")
        if (self.labels is None) != (other.labels is None) or not _same(
            self.labels, other.labels
        ):
            raise DataError(
                "runs", "the same labels", "others", "Merge runs on the same records."
            )
        total = self.m + other.m
        if other.m:
            gap = other.mean - self.mean
            self.mean += gap * (other.m / total)
            self._deviations += other._deviations + gap**2 * (self.m * other.m / total)
        self.m = total
        for name in ("counts", "threshold_counts", "level_counts", "level_m"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.least = np.minimum(self.least, other.least)
        self.largest = np.maximum(self.largest, other.largest)
        self._accuracy += other._accuracy
        return self

    def _check(self, scores: Scores) -> None:
        """Refuse scores on other records or classes."""
        if not (
            scores.classes == self.classes
            and len(scores) == len(self)
            and _same(self.labels, scores.labels)
            and _same(self.units, scores.units)
        ):
            raise DataError(
                "runs",
                f"scores of the same {len(self)} records for {self.n_classes} classes",
                repr(scores),
                "Score every run on the same records, in the same order.",
            )

    def _add_accuracy(self, decisions: Ints, rows: Ints) -> None:
        """Note a run's accuracy, and its decisions at each level it reaches."""
        accuracy = float((decisions == self.labels).mean()) if len(rows) else 0.0
        self._accuracy.append(accuracy)
        for i, level in enumerate(self.accuracy_levels):
            if accuracy >= level:
                self.level_counts[i, rows, decisions] += 1
                self.level_m[i] += 1


def _checked_groups(groups: Mapping[str, Group], n: int) -> Frozen[str, Group]:
    """Return attributes of n records."""
    for name, group in groups.items():
        if not isinstance(group, Group) or len(group) != n:
            raise DataError(
                f"runs: group {name!r}",
                f"a Group of {n} records",
                f"{len(group)} in a {type(group).__name__}",
                "Take the groups of the records that are scored.",
            )
    return Frozen(groups)


def _same(one: Array | None, other: Array | None) -> bool:
    """Tell whether two arrays agree; one that is not known agrees with any."""
    return one is None or other is None or np.array_equal(one, other)
