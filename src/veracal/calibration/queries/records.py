"""What a query computes of each record at a temperature, from that record alone.

A vector of bounded norm for each record, summed; which vector is left to say.
"""

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
    """Refuse what is not scores, or has no labels: both are public facts."""
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
    """Logits minus the largest of their row: zero or less, -inf for a probability of zero."""
    logits = scores.logits.astype(np.float64)
    with np.errstate(over="ignore"):
        result: Floats = logits - logits.max(axis=1, keepdims=True)
    return result


def gap_at(records: Any, inverse: float) -> Floats:
    r"""Right or not, minus confidence: from -1 to :math:`1 - 1/k` for k classes."""
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
    r"""Squared distance of the probabilities from the right answer, from 0 to 2."""
    scores = labeled(records)
    gaps = np.array(scores.probabilities, dtype=np.float64)
    gaps[np.arange(len(gaps)), scores.known_labels] -= 1
    result: Floats = (gaps**2).sum(axis=1)
    return result


def slope_at(records: Any, parameter: float) -> Floats:
    r"""Derivative of the loss in p, where the inverse temperature is :math:`\log(1 + e^p)`.

    .. math:: \sigma(p) \sum_j z_j (\mathrm{softmax}(\beta z)_j - 1[j = y])

    (methods of Zhang et al. 2022, https://arxiv.org/abs/2210.08248). A class of probability
    zero adds nothing, unless it is the right one: then the slope is infinite.
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
    r"""The inverse temperature of a parameter, :math:`\log(1 + e^p)`."""
    return float(np.logaddexp(0.0, parameter))


@dataclass(frozen=True)
class Groups:
    """An attribute by which answers are told apart, with the names that were declared for it.

    Every record is in exactly one group, so one record moves the answer of one group only.

    Parameters
    ----------
    name : str
        Attribute of the scores.
    names : sequence of str
        Declared groups, in the order of the scores' own declaration. They are public.
    """

    name: str
    names: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not len(self.names):
            raise ValueError(f"Expected declared groups of {self.name!r}, got {self.names!r}.")
        object.__setattr__(self, "names", tuple(self.names))

    @property
    def count(self) -> int:
        """How many groups were declared."""
        return len(self.names)

    def of(self, scores: Scores) -> Ints:
        """Number of each record's group."""
        found = scores.groups.get(self.name)
        if found is None or tuple(found.names) != self.names:
            raise DataError(
                f"{scores.name}: group {self.name!r}",
                f"groups declared as {self.names}",
                "no such attribute" if found is None else f"{tuple(found.names)}",
                "Name the groups as the scores declare them, in that order.",
            )
        return found.codes


def group_count(groups: Groups | None) -> int:
    """How many groups there are; one where nothing is told apart."""
    return 1 if groups is None else groups.count


def group_of(scores: Scores, groups: Groups | None) -> Ints:
    """Number of each record's group; zero where nothing is told apart."""
    return np.zeros(len(scores), dtype=np.int64) if groups is None else groups.of(scores)


class VectorSum(ABC):
    """Sum of a vector for each record, shortened to a bound on its norm."""

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
        """Longest norm of a vector."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, SettingValue]:
        """What tells this question from another of the same name."""

    @abstractmethod
    def per_record(self, records: Any) -> Array:
        """A vector for each record, of shape (n, entries), computed from that record alone."""

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
        """Most that the sum moves in the L1 norm, in units."""
        return self.sums.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Most that it moves in the L2 norm, in units."""
        return self.sums.sensitivity_l2(relation)

    def evaluate(self, records: Any) -> Ints:
        """The sum, in units."""
        return self.sums.evaluate(records)
