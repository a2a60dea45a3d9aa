"""Per-record statistics of the calibration queries, and sums of bounded vectors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import expit

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.accounting import Relation
from veracal.data import Scores
from veracal.errors import DataError
from veracal.mechanisms import Grid
from veracal.queries import DenseSum, SettingValue


def labeled(records: Any) -> Scores:
    """Return labeled scores; the type and the presence of labels are public."""
    if not isinstance(records, Scores):
        raise DataError(
            "records", "scores", type(records).__name__, "Score them with a classifier first."
        )
    _ = records.known_labels
    return records


def check_inverse(inverse: float) -> float:
    """Return an inverse temperature as a float; it must be finite and above zero."""
    _checks.positive(inverse=inverse)
    return float(inverse)


def confidence_at(scores: Scores, inverse: float) -> Floats:
    r"""Confidence at an inverse temperature, :math:`1 / \sum_j e^{\beta (z_j - \max z)}`.

    The predicted class does not change, so this is the probability of the same class at
    every temperature. At 1 it is the confidence as the scores give it, to the last bit.

    Returns
    -------
    array of shape (n,)
    """
    if inverse == 1:
        return scores.confidence.astype(np.float64)
    with np.errstate(over="ignore"):
        result: Floats = 1 / np.exp(inverse * below_largest(scores)).sum(axis=1)
    return result


def below_largest(scores: Scores) -> Floats:
    """Logits minus the largest of their row; -inf for a probability of zero."""
    logits = scores.logits.astype(np.float64)
    with np.errstate(over="ignore"):
        result: Floats = logits - logits.max(axis=1, keepdims=True)
    return result


def gap_at(records: Any, inverse: float) -> Floats:
    r"""Correctness minus confidence, from -1 to :math:`1 - 1/k` for k classes."""
    scores = labeled(records)
    return scores.correct - confidence_at(scores, inverse)


def loss_at(records: Any, inverse: float) -> Floats:
    r"""Loss :math:`\log \sum_j e^{\beta z_j} - \beta z_y`, which may be infinite."""
    scores = labeled(records)
    shifted = inverse * below_largest(scores)
    own = np.take_along_axis(shifted, scores.known_labels[:, None], axis=1)[:, 0]
    result: Floats = np.log(np.exp(shifted).sum(axis=1)) - own
    return result


def brier_of(records: Any) -> Floats:
    r"""Squared distance of the probabilities from the one-hot label, from 0 to 2."""
    scores = labeled(records)
    gaps = np.array(scores.probabilities, dtype=np.float64)
    gaps[np.arange(len(gaps)), scores.known_labels] -= 1
    result: Floats = (gaps**2).sum(axis=1)
    return result


def slope_at(records: Any, parameter: float) -> Floats:
    r"""Derivative of the loss in p, where the inverse temperature is :math:`\log(1 + e^p)`.

    .. math:: \sigma(p) \sum_j z_j (\mathrm{softmax}(\beta z)_j - 1[j = y])

    (methods of Zhang et al. 2022, https://arxiv.org/abs/2210.08248). A class of probability
    zero contributes nothing, unless it is the label: then the derivative is infinite.
    """
    scores = labeled(records)
    shifted = below_largest(scores)
    weights = np.exp(softplus(parameter) * shifted)
    weights /= weights.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # zero times minus infinity
        terms = np.where(weights > 0, weights * shifted, 0.0)
    own = np.take_along_axis(shifted, scores.known_labels[:, None], axis=1)[:, 0]
    result: Floats = expit(parameter) * (terms.sum(axis=1) - own)
    return result


def softplus(parameter: float) -> float:
    r"""Inverse temperature of a parameter, :math:`\log(1 + e^p)`."""
    return float(np.logaddexp(0.0, parameter))


@dataclass(frozen=True)
class Groups:
    """A group attribute with its declared values, by which answers are broken down.

    Every record is in exactly one group, so one record changes the answer of one group only.

    Parameters
    ----------
    name : str
        Name of the attribute.
    names : sequence of str
        Declared groups, in the order of the scores' declaration. They are public.
    """

    name: str
    names: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not len(self.names):
            raise ValueError(f"Expected declared groups of {self.name!r}, got {self.names!r}.")
        object.__setattr__(self, "names", tuple(self.names))

    @property
    def count(self) -> int:
        """Number of declared groups."""
        return len(self.names)

    def of(self, scores: Scores) -> Ints:
        """Index of each record's group."""
        column = scores.groups.get(self.name)
        if column is None or tuple(column.names) != self.names:
            raise DataError(
                f"{scores.name}: group {self.name!r}",
                f"groups declared as {self.names}",
                "no such attribute" if column is None else f"{tuple(column.names)}",
                "Name the groups as the scores declare them, in that order.",
            )
        return column.codes


def group_count(groups: Groups | None) -> int:
    """Number of groups; one without a group attribute."""
    return 1 if groups is None else groups.count


def group_of(scores: Scores, groups: Groups | None) -> Ints:
    """Index of each record's group; zero without a group attribute."""
    return np.zeros(len(scores), dtype=np.int64) if groups is None else groups.of(scores)


class VectorSum(ABC):
    """Sum of one vector per record, clipped to a bound on its norm."""

    name: str
    bits: int
    power: Literal[1, 2]

    @property
    @abstractmethod
    def entries(self) -> int:
        """Length of the vectors."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """Largest norm of a vector."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, SettingValue]:
        """Settings that distinguish this query from others with the same name."""

    @abstractmethod
    def per_record(self, records: Any) -> Array:
        """One vector per record, of shape (n, entries), computed from that record alone."""

    @property
    def sums(self) -> DenseSum:
        """The sum of vectors."""
        return DenseSum(
            self.name,
            self.per_record,
            self.entries,
            self.bound,
            power=self.power,
            bits=self.bits,
        )

    @property
    def grid(self) -> Grid:
        """The grid of the answer."""
        return Grid(self.bits)

    def sensitivity(self, relation: Relation) -> int:
        """Sensitivity of the sum in the L1 norm, in grid units."""
        return self.sums.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Sensitivity of the sum in the L2 norm, in grid units."""
        return self.sums.sensitivity_l2(relation)

    def evaluate(self, records: Any) -> Ints:
        """The sum in grid units."""
        return self.sums.evaluate(records)
