"""Queries on scores: number of records, correct predictions, Brier score, log-likelihood."""

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


def labeled_scores(records: Any) -> Scores:
    """Raise unless the records are labeled scores, which is public."""
    if not isinstance(records, Scores):
        raise DataError(
            "records", "scores", type(records).__name__, "Score them with a classifier first."
        )
    _ = records.known_labels
    return records


def brier_scores(records: Any, *, top_label: bool = False) -> Floats:
    r"""Squared error of each record's probabilities.

    :math:`\sum_j (p_j - 1[j = y])^2`, or :math:`(\hat p - 1[\hat y = y])^2` for the predicted
    class alone.
    """
    scores = labeled_scores(records)
    if top_label:
        top: Floats = (scores.confidence.astype(np.float64) - scores.correct) ** 2
        return top
    gaps = np.array(scores.probabilities, dtype=np.float64)
    gaps[np.arange(len(gaps)), scores.known_labels] -= 1
    result: Floats = (gaps**2).sum(axis=1)
    return result


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
    low, high, bits = 0, 1, 0

    def per_record(self, records: Any) -> Array:
        """Whether each prediction is correct."""
        return labeled_scores(records).correct


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
        object.__setattr__(self, "top_label", bool(self.top_label))
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """Zero and the largest error."""
        return Bounds.of(0, 1 if self.top_label else 2, self.grid)

    def per_record(self, records: Any) -> Array:
        """The error of each record."""
        return brier_scores(records, top_label=self.top_label)


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
        object.__setattr__(self, "centered", bool(self.centered))
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """Zero and the clamp, or minus and plus half the clamp."""
        return Bounds.of(self._low, self._low + self.clamp, self.grid)

    def per_record(self, records: Any) -> Array:
        """The loss of each record, clamped before rounding, since it may be infinite."""
        scores = labeled_scores(records)
        labels = scores.known_labels
        losses = -scores.log_probabilities[np.arange(len(labels)), labels]
        return np.clip(losses, 0, self.clamp) + self._low

    @property
    def _low(self) -> float:
        """Smallest contribution of a record."""
        return -self.clamp / 2 if self.centered else 0.0
