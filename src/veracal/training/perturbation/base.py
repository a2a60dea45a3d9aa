"""What both perturbed logistic regressions share: declared norms, and one model a class."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.data import Dataset
from veracal.errors import DataError
from veracal.privacy import Unit
from veracal.privacy.budget import RELATIONS
from veracal.training.facts import Facts, declared_classes, row_norms, with_labels
from veracal.training.linear import LinearClassifier
from veracal.training.perturbation.rows import ClippedRows, clipped, reach
from veracal.training.perturbation.rules import divided

_LEAST, _MOST = 1e-12, 1e12
_STEEPEST = 1e9  # squared norm of a row over the penalty, beyond which float64 may not solve


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Binary:
    """The binary problems of a fit, before any noise.

    Attributes
    ----------
    rows : array or ClippedRows of shape (n, d)
        With the appended one, if there is an intercept.
    signs : array of -1 and 1, of shape (models, n)
        One model for two classes, one for each of more.
    classes : array of shape (k,)
    norm : float
        To which rows were clipped.
    """

    rows: Floats | ClippedRows
    signs: Ints
    classes: Array
    norm: float


class PerturbedClassifier(LinearClassifier):
    """Logistic regression on rows of a declared norm, one against the rest if many classes."""

    _one_vs_rest = True
    _needs_size = False  # sums are minimized, not means
    _exact_noise = True
    epsilon: float
    C: float
    norm: float | None
    fit_intercept: bool

    @abstractmethod
    def _weights(
        self, rows: Floats | ClippedRows, signs: Ints, rng: np.random.Generator
    ) -> Floats:
        """Noisy weights of each binary model."""

    @abstractmethod
    def _penalty(self, norm: float) -> float:
        """The least penalty that a fit with this norm uses."""

    def _check_settings(self) -> None:
        """Refuse settings that make no sense, or that float64 cannot compute with."""
        _checks.positive(epsilon=self.epsilon)
        _between(C=self.C)
        _checks.one_of(RELATIONS, relation=self.relation)
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise ValueError(
                f"Expected fit_intercept to be True or False, got {self.fit_intercept!r}."
            )
        if self.unit is not None and not isinstance(self.unit, Unit):
            raise ValueError(f"Expected a Unit or None, got unit={self.unit!r}.")
        if self.size is not None:
            _checks.whole(size=self.size)
        if self.classes is not None:
            declared_classes(self.classes)
        if self.norm is not None:
            self._check_norm(self.norm)

    def _check_norm(self, norm: float) -> None:
        """Refuse a declared norm so large beside the penalty that no minimizer is found."""
        _between(norm=norm)
        R = reach(norm, fit_intercept=self.fit_intercept)
        if _STEEPEST * self._penalty(norm) < R * R:
            raise ValueError(
                f"Expected C times the squared norm of a row to be at most {_STEEPEST:g}, got "
                f"C={self.C!r} and a norm of {norm!r}. Scale the rows down, or use a smaller C."
            )

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be fitted, by what is public about it."""
        super().check_records(dataset)
        norm = dataset.norm if self.norm is None else self.norm
        if norm is None:
            raise DataError(
                f"{dataset.name}: norm",
                "a declared bound on the norm of a row",
                "none",
                "Give norm=... to the model or to the data set: longer rows are clipped.",
            )
        self._check_norm(norm)

    def binary(self, dataset: Dataset) -> Binary:
        """What :meth:`fit_records` solves, for whoever solves it many times over.

        Nothing of it is private: it holds the records.
        """
        self.check_records(dataset)
        facts = with_labels(self._public(dataset), dataset)
        norm = facts.norm if self.norm is None else self.norm
        assert norm is not None  # check_records has seen to it
        return self._binary(facts, float(norm))

    def _binary(self, facts: Facts, norm: float) -> Binary:
        """Clip the rows, and take each class against the rest."""
        rows = clipped(facts.X, norm, fit_intercept=self.fit_intercept)
        signs = one_vs_rest(facts.codes, len(facts.classes))
        return Binary(rows, signs, facts.classes, norm)

    def _epsilon_per_row(self) -> float:
        """Epsilon of one row, of which a unit has several."""
        return divided(self.epsilon, 1 if self.unit is None else self.unit.at_most)

    def _learn(self, facts: Facts, rng: np.random.Generator) -> tuple[str, ...]:
        """Clip the rows, and learn one model for two classes, or one for each of more."""
        norm = facts.norm if self.norm is None else self.norm
        reasons: tuple[str, ...] = ()
        if norm is None:
            norm = float(row_norms(facts.X).max(initial=0.0)) or 1.0
            reasons = ("the norm of the rows was read from them; declare norm=...",)
        self.norm_ = float(norm)
        self.reach_ = reach(self.norm_, fit_intercept=self.fit_intercept)
        task = self._binary(facts, self.norm_)
        weights = self._weights(task.rows, task.signs, rng)
        if self.fit_intercept:
            self.coef_, self.intercept_ = weights[:, :-1], weights[:, -1]
        else:
            self.coef_, self.intercept_ = weights, np.zeros(len(weights))
        return reasons


def one_vs_rest(codes: Ints, k: int) -> Ints:
    """Signs of shape (1, n) for two classes, the second being positive, else of (k, n).

    Examples
    --------
    >>> one_vs_rest(np.array([0, 1]), 2)
    array([[-1,  1]], dtype=int8)
    """
    positive = np.arange(k) if k > 2 else np.array([1])
    return np.where(codes == positive[:, None], 1, -1).astype(np.int8)


def _between(**values: float) -> None:
    """Raise unless every value is a number that float64 can compute with here."""
    _checks.positive(**values)
    for name, value in values.items():
        if not _LEAST <= value <= _MOST:
            raise ValueError(
                f"Expected {name} between {_LEAST:g} and {_MOST:g}, got {name}={value!r}."
            )
