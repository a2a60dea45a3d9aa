"""Queries on plain scores: how many records, how many right, how wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Frozen, Ints
from veracal.accounting import Relation
from veracal.data import Scores
from veracal.errors import DataError
from veracal.mechanisms import Bounds, Grid, exact_total
from veracal.queries.query import Records, ScalarSum, SettingValue


@dataclass(frozen=True)
class Count:
    """Number of rows.

    Its sensitivity is 1 under replace-one too: a data set that may drop rows can lose one when
    a record is replaced.

    Examples
    --------
    >>> Count().evaluate(Scores.from_logits([[0.0, 2.0], [3.0, 0.0]]))
    array([2])
    """

    name = "count"
    entries = 1
    grid = Grid(0)
    settings = Frozen[str, SettingValue]()

    def sensitivity(self, relation: Relation) -> int:
        """One row."""
        return Bounds(0, 1).sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """One row."""
        return float(self.sensitivity(relation))

    def evaluate(self, records: Records) -> Ints:
        """How many there are."""
        return exact_total([np.array([len(records)])], 1)


@dataclass(frozen=True)
class Correct(ScalarSum):
    """Number of records whose largest score is the right answer's.

    Examples
    --------
    >>> Correct().evaluate(Scores.from_logits([[0.0, 2.0], [3.0, 0.0]], [1, 1]))
    array([1])
    """

    name = "correct"
    bits = 0
    bounds = Bounds(0, 1)
    settings = Frozen[str, SettingValue]()

    def per_record(self, records: Any) -> Array:
        """Whether each record is right."""
        return _labeled(records).correct


@dataclass(frozen=True)
class Brier(ScalarSum):
    r"""Sum of squared errors of the probabilities (Brier 1950).

    A record adds :math:`\sum_j (p_j - 1[j = y])^2 \in [0, 2]`, or for the predicted class
    alone :math:`(\hat p - 1[\hat y = y])^2 \in [0, 1]`. The bounds hold for all
    probabilities, so nothing is clipped but rounding.

    Parameters
    ----------
    top_label : bool
        Only the predicted class.
    bits : int
        Of the grid.
    """

    top_label: bool = False
    bits: int = 20

    name = "brier"

    def __post_init__(self) -> None:
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """From zero to the largest error."""
        return Bounds.of(0, 1 if self.top_label else 2, self.grid)

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Which of the two it is."""
        return Frozen({"top_label": bool(self.top_label)})

    def per_record(self, records: Any) -> Array:
        """Each record's error."""
        return (_top_label_brier if self.top_label else _brier)(records)


@dataclass(frozen=True)
class NegativeLogLikelihood(ScalarSum):
    r"""Sum of :math:`\mathrm{clamp}(-\log p_y, 0, c)`.

    Without the clamp one record could add anything at all. Centered, a record adds the
    clamped number minus c/2, which halves the add-remove sensitivity and leaves the answer
    short by c/2 for each record: the same at every setting that is compared.

    Parameters
    ----------
    clamp : float
        The largest loss c of one record.
    centered : bool
    bits : int
        Of the grid.

    Examples
    --------
    >>> NegativeLogLikelihood(bits=4).sensitivity("add-remove")  # 10, in sixteenths
    160
    >>> NegativeLogLikelihood(centered=True, bits=4).sensitivity("add-remove")
    80
    """

    clamp: float = 10.0
    centered: bool = False
    bits: int = 20

    name = "negative log likelihood"

    def __post_init__(self) -> None:
        _checks.positive(clamp=self.clamp)
        object.__setattr__(self, "clamp", float(self.clamp))
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """From zero to the clamp, or half of it to either side."""
        low = self._offset
        return Bounds.of(low, low + self.clamp, self.grid)

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """The clamp, and whether it is centered."""
        return Frozen({"clamp": self.clamp, "centered": bool(self.centered)})

    def per_record(self, records: Any) -> Array:
        """Each record's loss, clamped before it meets the grid: infinity is a loss too."""
        return np.clip(_loss(_labeled(records)), 0, self.clamp) + self._offset

    @property
    def _offset(self) -> float:
        """What is added to each record's loss."""
        return -self.clamp / 2 if self.centered else 0.0


def _brier(records: Records) -> Floats:
    """Squared distance of the probabilities from the right answer."""
    scores = _labeled(records)
    gaps = scores.probabilities.astype(np.float64)
    gaps[np.arange(len(gaps)), scores.known_labels] -= 1
    result: Floats = (gaps**2).sum(axis=1)
    return result


def _top_label_brier(records: Records) -> Floats:
    """Squared distance of the confidence from being right."""
    scores = _labeled(records)
    result: Floats = (scores.confidence.astype(np.float64) - scores.correct) ** 2
    return result


def _loss(scores: Scores) -> Floats:
    """Negative logarithm of the right answer's probability."""
    labels = scores.known_labels
    return -scores.log_probabilities[np.arange(len(labels)), labels]


def _labeled(records: Records) -> Scores:
    """Refuse what is not scores, or has no labels: both are public facts."""
    if not isinstance(records, Scores):
        raise DataError(
            "records", "scores", type(records).__name__, "Score them with a classifier first."
        )
    _ = records.known_labels
    return records
