r"""Base of perturbed logistic regression: clipped rows, and penalty and noise for a budget.

Rows are clipped to a declared norm, with a one appended for the intercept; more than two
classes are learned one against the rest.

The objective is :math:`\sum_i \ell(s_i\, w \cdot x_i) + \frac\lambda2 \lVert w \rVert^2 +
b \cdot w` with :math:`\lVert x_i \rVert \le R`, the logistic loss
(:math:`|\ell'| \le 1`, :math:`0 \le \ell'' \le c = \frac14`) and noise b of density
proportional to :math:`e^{-\lVert b \rVert / s}`. Its minimizer is released.

The release has a density. With :math:`g_D(w) = \sum_i \nabla\ell_i(w) + \lambda w` and the
Hessian :math:`H_D(w) = \nabla g_D(w) \succeq \lambda I`, w is released exactly if
:math:`b = -g_D(w)`, a bijection, so that

.. math:: p_D(w) \propto e^{-\lVert g_D(w) \rVert / s} \det H_D(w).

The proof needs the *exact* minimizer, and the penalty on *every* coordinate, the
intercept's included: otherwise H has a direction that nothing bounds from below.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.accounting import Relation
from veracal.data import Dataset, MappedRows
from veracal.errors import DataError
from veracal.training.base import (
    LinearClassifier,
    TrainingData,
    add_labels,
    row_norms,
    sort_classes,
)

_IN_MEMORY = 1 << 25  # entries up to which rows are clipped once, instead of at every pass
_LARGE = 1e150
_SLACK = 1e-9  # covers the rounding of a norm of up to a million entries


def norm_bound(norm: float, *, fit_intercept: bool) -> float:
    r"""Bound R on the gradient of one clipped row: its norm with the appended one.

    .. math:: R = \sqrt{c^2 + 1}, \text{ without an intercept } R = c

    Both are increased by a billionth, which exceeds the rounding of a clipped row.

    Examples
    --------
    >>> round(norm_bound(3.0, fit_intercept=False), 6)
    3.0
    """
    return float(np.hypot(norm, 1.0) if fit_intercept else norm) * (1 + _SLACK)


def clip_rows(block: Array, norm: float, *, fit_intercept: bool) -> Floats:
    r"""Scale rows longer than ``norm`` down to it, and append a one to each row.

    Returns
    -------
    array of float64, of shape (n, d), or (n, d + 1) with an intercept

    Guarantees
    ----------
    No row is longer than :func:`norm_bound`, and the number of clipped rows is not recorded. A
    row that contains NaN or infinity becomes a row of zeros (and its one).

    Examples
    --------
    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0, fit_intercept=True).round(2)
    array([[0.6, 0.8, 1. ],
           [0.3, 0.4, 1. ]])
    """
    n, d = block.shape
    result = np.ones((n, d + fit_intercept))
    rows = result[:, :d]
    rows[:] = block
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    extreme = ~(lengths < _LARGE)  # a square overflowed, or is not a number
    long = (lengths > norm) & ~extreme
    rows[long] *= (norm / lengths[long])[:, None]
    if extreme.any():  # divide them by their largest entry first
        finite = np.isfinite(rows[extreme]).all(axis=1, keepdims=True)
        scaled = np.where(finite, rows[extreme], 0.0)
        scaled /= np.maximum(np.abs(scaled).max(axis=1, keepdims=True, initial=0.0), 1.0)
        sizes = np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-300)
        rows[extreme] = scaled * (norm / sizes)  # zeros stay zeros
    return result


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class ClippedRows:
    """Rows of a matrix, possibly on disk, that are clipped when they are read."""

    X: Array | MappedRows
    norm: float
    fit_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the clipped rows."""
        return len(self.X), self.X.shape[1] + self.fit_intercept

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, rows: slice) -> Floats:
        return clip_rows(self.X[rows], self.norm, fit_intercept=self.fit_intercept)


def clip_matrix(
    X: Array | MappedRows, norm: float, *, fit_intercept: bool
) -> Floats | ClippedRows:
    """Clip rows now if they fit into memory, otherwise block by block as they are read."""
    rows = ClippedRows(X, norm, fit_intercept)
    return rows if np.prod(rows.shape) > _IN_MEMORY else rows[0 : len(X)]


CURVATURE = 0.25  # maximum of the second derivative of the logistic loss
_UP = 1 + 1e-12  # exceeds the rounding of a few operations
_MIN_INTERCEPT_PENALTY = 1e-6


@dataclass(frozen=True)
class Perturbation:
    """Penalty and noise of one binary model; the length of the noise is Gamma of shape d."""

    lambda_total: float  # the total coefficient, not an addition to 1 / C
    intercept_penalty: float  # differs only under a rule that is not private
    epsilon_prime: float  # the share of epsilon that remains for the noise
    noise_scale: float


Rule = Callable[[float, float, float, Relation], Perturbation]


def one_log(epsilon: float, C: float, R: float, relation: Relation) -> Perturbation:
    r"""Penalty and noise with a single logarithm, and without a cliff.

    .. math::

        \lambda = \max\Bigl(\frac1C, \frac{cR^2}{e^{\varepsilon/2} - 1}\Bigr), \quad
        \varepsilon' = \varepsilon - \ln\Bigl(1 + \frac{cR^2}{\lambda}\Bigr)
        \ge \frac\varepsilon2, \quad
        s = \frac{R}{\varepsilon'} \text{ or, if a record is replaced, } \frac{2R}{\varepsilon'}

    Parameters
    ----------
    epsilon : float > 0
        For one row.
    C : float > 0
        Inverse of the least penalty.
    R : float > 0
        Bound on the norm of a row, the appended one included.

    Guarantees
    ----------
    The release is epsilon-differentially private for one row under the relation, for any
    records. *Noise*: at the same w, the gradients of neighbors differ by one row's
    :math:`\ell' s x` of norm at most R, or by two of them, at most 2R; hence by the triangle
    inequality the first factor of the density changes by at most
    :math:`e^{\varepsilon'}`. *Determinant*: at the same w the Hessians of neighbors are
    :math:`A + h\,xx^\top` and A, or :math:`A + h' x'x'^\top`, with the *same*
    :math:`A \succeq \lambda I` of the rows they share and :math:`0 \le h, h' \le c`. By the
    matrix determinant lemma

    .. math::

        \frac{\det(A + h\,xx^\top)}{\det(A + h' x'x'^\top)}
        = \frac{1 + h\,x^\top A^{-1} x}{1 + h' x'^\top A^{-1} x'}
        \le 1 + \frac{cR^2}{\lambda},

    and the same holds with the roles exchanged. Both factors together are at most
    :math:`e^{\varepsilon'} (1 + cR^2/\lambda) = e^\varepsilon`. Chaudhuri, Monteleoni and
    Sarwate (2011, Theorem 9) bound a difference of rank two instead and pay the logarithm
    twice, see :func:`cms11`.
    """
    curvature = CURVATURE * R * R
    penalty = max(1 / C, curvature / _expm1(epsilon / 2) * _UP)
    remaining = epsilon - math.log1p(curvature / penalty)
    return Perturbation(penalty, penalty, remaining, _noise_scale(R, remaining, relation))


def cms11(epsilon: float, C: float, R: float, relation: Relation) -> Perturbation:
    r"""Penalty and noise by the published proof, with two logarithms; for comparison.

    .. math::

        \lambda = \frac1C, \quad
        \varepsilon' = \varepsilon - 2\ln\Bigl(1 + \frac{cR^2}{\lambda}\Bigr);
        \quad \text{if } \varepsilon' \le 0:\quad
        \lambda = \frac{cR^2}{e^{\varepsilon/4} - 1},\ \varepsilon' = \frac\varepsilon2

    Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 2, for a sum of losses and rows of norm
    R. Just above :math:`\varepsilon' = 0` its noise explodes: there is a cliff.

    Guarantees
    ----------
    Epsilon-differentially private by the proof of :func:`one_log`, which needs only half of the
    logarithms that are subtracted here: :math:`\varepsilon' + \ln(1 + cR^2/\lambda) \le
    \varepsilon` in both branches.
    """
    curvature = CURVATURE * R * R
    penalty = 1 / C
    remaining = epsilon - 2 * math.log1p(curvature / penalty)
    if remaining <= 0:
        penalty, remaining = curvature / _expm1(epsilon / 4) * _UP, epsilon / 2
    return Perturbation(penalty, penalty, remaining, _noise_scale(R, remaining, relation))


def diffprivlib_062(epsilon: float, C: float, R: float, relation: Relation) -> Perturbation:
    r"""Penalty and noise of diffprivlib 0.6.2: **not** epsilon-differentially private.

    .. math::

        \varepsilon' = \varepsilon - 2\ln\Bigl(1 + \frac{cR}{\alpha/2}\Bigr),\ \Delta = 0;
        \quad \text{if } \varepsilon' \le 0:\quad
        \Delta = \frac{cR}{e^{\varepsilon/4} - 1} - \frac\alpha2,\
        \varepsilon' = \frac\varepsilon2

    with :math:`\alpha = 1/C` and noise of scale :math:`2R/\varepsilon'` under either relation.
    The features are penalized by :math:`\alpha + \Delta`, the intercept by :math:`\Delta`
    alone. It uses cR where the determinant needs :math:`cR^2`, and with :math:`\Delta = 0`
    nothing bounds the intercept: at R = 10 and epsilon = 0.5 the privacy loss between neighbors
    reaches 1.02.

    If the intercept has no penalty there may be no minimizer, and diffprivlib returns the point
    at which its solver stops; a penalty of a millionth is used here instead.
    """
    alpha = 1 / C
    remaining, added = epsilon - 2 * math.log1p(CURVATURE * R / (alpha / 2)), 0.0
    if remaining <= 0:
        added = CURVATURE * R / _expm1(epsilon / 4) - alpha / 2
        remaining = epsilon / 2
    intercept_penalty = max(added, _MIN_INTERCEPT_PENALTY)
    return Perturbation(alpha + added, intercept_penalty, remaining, 2 * R / remaining)


RULES: dict[str, Rule] = {
    "one-log": one_log,
    "cms11": cms11,
    "diffprivlib-0.6.2": diffprivlib_062,
}
NOT_PRIVATE = {
    "diffprivlib-0.6.2": (
        "rule='diffprivlib-0.6.2' is not epsilon-differentially private: it adds too little "
        "noise and penalty for rows of norm above 1 and for the intercept"
    )
}


def divide_epsilon(epsilon: float, parts: int) -> float:
    """The largest float whose decimal form, times ``parts``, does not exceed epsilon.

    Examples
    --------
    >>> divide_epsilon(1.0, 3)
    0.3333333333333333
    """
    whole, part = Fraction(repr(float(epsilon))), float(epsilon) / parts
    while parts * Fraction(repr(part)) > whole:
        part = math.nextafter(part, 0.0)
    return part


def _noise_scale(R: float, remaining: float, relation: Relation) -> float:
    """Scale of the noise on a gradient that one row changes by at most R, or 2R."""
    return (R if relation == "add-remove" else 2 * R) / remaining * _UP


def _expm1(exponent: float) -> float:
    """``math.expm1`` with a capped exponent, so that the result is finite."""
    return math.expm1(min(exponent, 700.0))


_MIN_SETTING, _MAX_SETTING = 1e-12, 1e12
_MAX_CONDITION = 1e9  # squared norm of a row over the penalty, up to which float64 solves


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class BinaryProblem:
    """The binary problems of a fit, without noise: one for two classes, else one for each."""

    rows: Floats | ClippedRows  # clipped to the norm, with the appended one
    signs: Ints  # of shape (models, n)
    classes: Array
    norm: float


@dataclass(eq=False, repr=False)
class PerturbedClassifier(LinearClassifier):
    """Logistic regression on rows of a declared norm; one-vs-rest for more than two classes.

    A final class is a data class: it adds its own settings to those below, states its cost in
    ``_cost`` and its least penalty in ``_penalty``, and releases weights in ``_weights``.
    """

    epsilon: float = 1.0
    _: KW_ONLY
    C: float = 1.0
    norm: float | None = None
    fit_intercept: bool = True

    _one_vs_rest = True
    _needs_size = False  # sums are minimized, not means
    _exact_noise = True

    @abstractmethod
    def _weights(
        self, rows: Floats | ClippedRows, signs: Ints, rng: np.random.Generator
    ) -> Floats:
        """Noisy weights of each binary model."""

    @abstractmethod
    def _penalty(self, norm: float) -> float:
        """The least penalty that a fit with this norm uses."""

    def _check_settings(self) -> None:
        super()._check_settings()
        _checks.positive(epsilon=self.epsilon)
        _check_range(C=self.C)
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise ValueError(
                f"Expected fit_intercept to be True or False, got {self.fit_intercept!r}."
            )
        if self.classes is not None:
            sort_classes(self.classes)
        if self.norm is not None:
            self._check_norm(self.norm)

    def _check_norm(self, norm: float) -> None:
        """Reject a norm that is too large, relative to the penalty, to find a minimizer."""
        _check_range(norm=norm)
        R = norm_bound(norm, fit_intercept=self.fit_intercept)
        if _MAX_CONDITION * self._penalty(norm) < R * R:
            raise ValueError(
                f"Expected C times the squared norm of a row to be at most "
                f"{_MAX_CONDITION:g}, got C={self.C!r} and a norm of {norm!r}. Scale the rows "
                "down, or use a smaller C."
            )

    def check_records(self, dataset: Dataset) -> None:
        """Reject a data set that cannot be fitted, by public facts alone."""
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

    def binary(self, dataset: Dataset) -> BinaryProblem:
        """The problem that :meth:`fit_records` solves, for audits that solve it many times.

        It holds the records, and is not private.
        """
        self.check_records(dataset)
        data = add_labels(self._public(dataset), dataset)
        norm = data.norm if self.norm is None else self.norm
        assert norm is not None  # check_records ensures it
        return self._binary(data, float(norm))

    def _binary(self, data: TrainingData, norm: float) -> BinaryProblem:
        """Clip the rows, and encode each class against the rest."""
        rows = clip_matrix(data.X, norm, fit_intercept=self.fit_intercept)
        signs = one_vs_rest_signs(data.codes, len(data.classes))
        return BinaryProblem(rows, signs, data.classes, norm)

    def _epsilon_per_row(self) -> float:
        """Epsilon of one row; a unit may have several rows."""
        return divide_epsilon(
            self.epsilon, 1 if self.unit is None else self.unit.max_contributions
        )

    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        norm = data.norm if self.norm is None else self.norm
        reasons: tuple[str, ...] = ()
        if norm is None:
            norm = float(row_norms(data.X).max(initial=0.0)) or 1.0
            reasons = ("the norm of the rows was read from them; declare norm=...",)
        self.norm_ = float(norm)
        self.norm_bound_ = norm_bound(self.norm_, fit_intercept=self.fit_intercept)
        problem = self._binary(data, self.norm_)
        weights = self._weights(problem.rows, problem.signs, rng)
        if self.fit_intercept:
            self.coef_, self.intercept_ = weights[:, :-1], weights[:, -1]
        else:
            self.coef_, self.intercept_ = weights, np.zeros(len(weights))
        return reasons


def one_vs_rest_signs(codes: Ints, k: int) -> Ints:
    """Signs of shape (1, n) for two classes, the second being positive, else (k, n).

    Examples
    --------
    >>> one_vs_rest_signs(np.array([0, 1]), 2)
    array([[-1,  1]], dtype=int8)
    """
    positive = np.arange(k) if k > 2 else np.array([1])
    return np.where(codes == positive[:, None], 1, -1).astype(np.int8)


def _check_range(**values: float) -> None:
    """Raise unless every value is within the range that the solver handles."""
    _checks.positive(**values)
    for name, value in values.items():
        if not _MIN_SETTING <= value <= _MAX_SETTING:
            raise ValueError(
                f"Expected {name} between {_MIN_SETTING:g} and {_MAX_SETTING:g}, "
                f"got {name}={value!r}."
            )
