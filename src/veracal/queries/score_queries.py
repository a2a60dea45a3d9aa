"""Queries on scores: number of records, correct predictions, Brier score, log-likelihood."""

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

    Its sensitivity is 1 under replace-one, too: a data set that may drop rows can lose one
    when a record is replaced.

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
        """The number of rows."""
        return exact_total([np.array([len(records)])], 1)


@dataclass(frozen=True)
class Correct(ScalarSum):
    """Number of correct predictions: records whose largest score is that of their label.

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
        """Whether each prediction is correct."""
        return _labeled(records).correct


@dataclass(frozen=True)
class Brier(ScalarSum):
    r"""Sum of squared errors of the probabilities (Brier 1950).

    A record contributes :math:`\sum_j (p_j - 1[j = y])^2 \in [0, 2]`, or for the predicted
    class alone :math:`(\hat p - 1[\hat y = y])^2 \in [0, 1]`. The bounds hold for all
    probabilities, so only rounding errors are clipped.

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
        """Zero and the largest error."""
        return Bounds.of(0, 1 if self.top_label else 2, self.grid)

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Whether only the predicted class is used."""
        return Frozen({"top_label": bool(self.top_label)})

    def per_record(self, records: Any) -> Array:
        """The error of each record."""
        return (_top_label_brier if self.top_label else _brier)(records)


@dataclass(frozen=True)
class NegativeLogLikelihood(ScalarSum):
    r"""Sum of :math:`\mathrm{clamp}(-\log p_y, 0, c)`.

    Without the clamp the contribution of a record would be unbounded. If centered, a record
    contributes the clamped loss minus c/2. This halves the add-remove sensitivity and shifts
    the answer by c/2 per record, equally for all settings that are compared.

    Parameters
    ----------
    clamp : float
        Maximum loss c of one record.
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
        """Zero and the clamp, or minus and plus half the clamp."""
        low = self._offset
        return Bounds.of(low, low + self.clamp, self.grid)

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """The clamp, and whether it is centered."""
        return Frozen({"clamp": self.clamp, "centered": bool(self.centered)})

    def per_record(self, records: Any) -> Array:
        """The loss of each record, clamped before rounding, since it may be infinite."""
        return np.clip(_loss(_labeled(records)), 0, self.clamp) + self._offset

    @property
    def _offset(self) -> float:
        """Shift of the loss of each record."""
        return -self.clamp / 2 if self.centered else 0.0


def _brier(records: Records) -> Floats:
    """Squared distance of the probabilities from the one-hot label."""
    scores = _labeled(records)
    gaps = scores.probabilities.astype(np.float64)
    gaps[np.arange(len(gaps)), scores.known_labels] -= 1
    result: Floats = (gaps**2).sum(axis=1)
    return result


def _top_label_brier(records: Records) -> Floats:
    """Squared difference of confidence and correctness."""
    scores = _labeled(records)
    result: Floats = (scores.confidence.astype(np.float64) - scores.correct) ** 2
    return result


def _loss(scores: Scores) -> Floats:
    """Negative log probability of the label."""
    labels = scores.known_labels
    return -scores.log_probabilities[np.arange(len(labels)), labels]


def _labeled(records: Records) -> Scores:
    """Raise unless the records are labeled scores, which is public."""
    if not isinstance(records, Scores):
        raise DataError(
            "records", "scores", type(records).__name__, "Score them with a classifier first."
        )
    _ = records.known_labels
    return records
