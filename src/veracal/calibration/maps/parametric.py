"""Parametric calibration maps: temperatures, affine maps of logits, mixing and beta maps."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from scipy.special import expit

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.maps.base import (
    LEAST,
    CalibrationMap,
    check_width,
    from_logits,
    from_probabilities,
)
from veracal.calibration.maps.nonparametric import normalize_rows
from veracal.data import Kind, Scores
from veracal.errors import DataError

LEAST_INVERSE, MOST_INVERSE = 1e-6, 1e6


@dataclass(frozen=True, eq=False)
class Temperature(CalibrationMap):
    r"""Logits multiplied by one number: :math:`\mathrm{softmax}(\beta z)`, :math:`\beta = 1/T`.

    Guo et al. 2017 (https://arxiv.org/abs/1706.04599), Eq. 9. Logits stay logits, and
    probabilities are raised to the power :math:`\beta` and scaled to sum to one, which is the
    same thing. A probability of exactly 0 stays 0, whatever the temperature: its logit is
    -inf.

    Parameters
    ----------
    inverse : float from 1e-6 to 1e6
        The inverse temperature :math:`\beta`. Above 1 it raises confidences; below, it lowers
        them.

    Guarantees
    ----------
    Predictions do not change, even where logits differ only in the last digit.

    Examples
    --------
    >>> scores = Scores.from_logits([[2.0, 0.0]])
    >>> Temperature(0.5).transform(scores).values
    array([[1., 0.]])
    >>> Temperature(2.0).transform(Scores.from_probabilities([[0.75, 0.25]])).values
    array([[0.9, 0.1]])
    """

    inverse: float

    kind: ClassVar[str] = "temperature"

    def __post_init__(self) -> None:
        self._set_field("inverse", 0, low=LEAST_INVERSE, high=MOST_INVERSE)

    @property
    def value(self) -> float:
        """The temperature T: what logits are divided by."""
        return 1 / self.inverse

    def _map_scores(self, scores: Scores) -> Scores:
        with np.errstate(over="ignore"):  # overflowing logits are clipped
            logits = scores.logits.astype(np.float64) * self.inverse
        return restore_predictions(from_logits(scores, logits), scores)


def restore_predictions(mapped: Scores, given: Scores) -> Scores:
    """Mapped scores with the original predictions, where rounding produced ties."""
    rows = np.flatnonzero(mapped.predictions != given.predictions)
    if not len(rows):
        return mapped
    values: Floats = mapped.values.copy()
    top = values[rows].max(axis=1)
    values[rows, given.predictions[rows]] = np.nextafter(top, np.inf)
    return replace(mapped, values=values)


# Largest difference of the two logarithms; up to 4.46 the order of records is preserved.
STEEPEST = 4.0


@dataclass(frozen=True, eq=False)
class TwoTemperatures(CalibrationMap):
    r"""Logits multiplied by an inverse temperature that depends on each record's confidence.

    .. math::
        \mathrm{softmax}(\beta(s) z), \qquad
        \log \beta(s) = (1 - s) \log \beta_0 + s \log \beta_1, \qquad
        s = \max_j \, \mathrm{softmax}(\beta_* z)_j

    One temperature changes all confidences in the same direction; this map can raise the low
    ones and lower the high ones, or vice versa. It equals :class:`Temperature` where both
    parameters are the same. A probability of exactly 0 stays 0.

    Parameters
    ----------
    unsure, sure : float from 1e-6 to 1e6
        Inverse temperatures :math:`\beta_0` and :math:`\beta_1`, for a confidence of 0 and of
        1. Neither is more than :math:`e^4` times the other.
    at : float from 1e-6 to 1e6
        Inverse temperature :math:`\beta_*` at which the confidence s is computed.

    Guarantees
    ----------
    Predictions do not change. For two classes the order of the records by probability does not
    change either: the logit of the predicted class, :math:`x \beta(\sigma(\beta_* x))`,
    increases with x, since :math:`x \sigma(x) (1 - \sigma(x)) < 1/4.46`.

    Examples
    --------
    >>> scores = Scores.from_probabilities([[0.5, 0.5], [0.75, 0.25], [0.99, 0.01]])
    >>> TwoTemperatures(unsure=4.0, sure=1.0).transform(scores).values[:, 0].round(3)
    array([0.5  , 0.825, 0.991])
    """

    unsure: float
    sure: float
    at: float = 1.0

    kind: ClassVar[str] = "two temperatures"

    def __post_init__(self) -> None:
        for name in ("unsure", "sure", "at"):
            self._set_field(name, 0, low=LEAST_INVERSE, high=MOST_INVERSE)
        if abs(math.log(self.sure / self.unsure)) > STEEPEST + 1e-9:
            raise ValueError(
                f"Expected neither inverse temperature above e^{STEEPEST:g} times the other, "
                f"got unsure={self.unsure!r}, sure={self.sure!r}."
            )

    def _map_scores(self, scores: Scores) -> Scores:
        logits = scores.logits.astype(np.float64)
        with np.errstate(over="ignore"):  # overflowing logits are clipped
            logits *= self.inverses(row_confidence(logits, self.at))[:, None]
        return restore_predictions(from_logits(scores, logits), scores)

    def inverses(self, confidences: Floats) -> Floats:
        """Inverse temperature at one or several confidences."""
        low, high = math.log(self.unsure), math.log(self.sure)
        result: Floats = np.exp((1 - confidences) * low + confidences * high)
        return result


def row_confidence(logits: Floats, inverse: float) -> Floats:
    """Confidence of each row of logits at an inverse temperature, of shape (n,)."""
    with np.errstate(over="ignore"):  # an infinite difference gives the correct limit
        below = inverse * (logits - logits.max(axis=1, keepdims=True))
        result: Floats = 1 / np.exp(below, out=below).sum(axis=1)
    return result


Form = Literal["scalar", "vector", "matrix"]
_CELLS = 2**15  # numbers processed at a time
_FAR = 1e200  # logits are clipped here, so that products and sums stay finite
_FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")


@dataclass(frozen=True, eq=False)
class Platt(CalibrationMap):
    r"""Logits :math:`W z + b`, with W a number, a diagonal or a matrix.

    Guo et al. 2017 (https://arxiv.org/abs/1706.04599), Section 4.2, after Platt 1999. The
    result has the kind of the scores; for probabilities the logarithm is mapped. Those below
    :math:`2^{-52}` are clipped there, because a logit of -inf cannot be multiplied by 0 or
    added to another. The prediction may change.

    A vector or a matrix gives different results for logits that differ by a constant in each
    row, although their probabilities are equal: apply the map to the kind of scores that it
    was fitted to, and declare that kind in ``reads``.

    Parameters
    ----------
    weights : float, or array of shape (k,) or (k, k)
        The number, diagonal or matrix W.
    bias : array of shape (k,)
        The vector b.
    reads : 'logits', 'probabilities' or None
        The only kind of scores that is accepted; None accepts both.

    Examples
    --------
    >>> map_ = Platt(2.0, [0.0, 0.0, 1.0])
    >>> map_.form
    'scalar'
    >>> map_.transform(Scores.from_logits([[1.0, 0.0, 0.0]])).values
    array([[2., 0., 1.]])
    """

    weights: Floats | float
    bias: Floats
    reads: Kind | None = None

    kind: ClassVar[str] = "platt"

    def __post_init__(self) -> None:
        self._set_field("weights", 0, 1, 2)
        self._set_field("bias", 1)
        shape, k = np.shape(self.weights), len(self.bias)
        if shape != (k,) * len(shape) or k < 2:
            raise ValueError(
                "Expected weights of shape (), (k,) or (k, k) and a bias of shape (k,) with "
                f"k >= 2, got {shape} and {self.bias.shape}."
            )
        if self.reads is not None:
            _checks.one_of(("logits", "probabilities"), reads=self.reads)

    @property
    def form(self) -> Form:
        """Shape of W: 'scalar', 'vector' or 'matrix'."""
        return _FORMS[np.ndim(self.weights)]

    def check(self, scores: Scores) -> None:
        """Reject scores of another number of classes or another kind."""
        check_width(scores, len(self.bias), self.kind)
        if self.reads not in (None, scores.kind):
            raise DataError(
                scores.name,
                f"{self.reads}, which this map was fitted to",
                scores.kind,
                f"Pass {self.reads}, or fit another map.",
            )

    def _map_scores(self, scores: Scores) -> Scores:
        self.check(scores)
        z = finite_logits(scores)
        return from_logits(scores, multiply_rows(z, self.weights) + self.bias)


def multiply_rows(z: Floats, weights: Floats | float) -> Floats:
    r"""Product of rows and weights: :math:`wz`, :math:`w \circ z` or :math:`Wz`.

    Parameters
    ----------
    z : array of shape (n, k)
    weights : array of shape (), (k,) or (k, k)

    Guarantees
    ----------
    The result for a row is a function of that row and the weights, bit for bit. A matrix
    product by BLAS is not: the kernel that computes a row depends on its position and on the
    number of threads, so that one more record changes the last bits of others, which can move
    a record across a bin edge. Here products are added column by column, each rounded
    separately.
    """
    matrix = np.asarray(weights)
    if matrix.ndim < 2:
        return np.asarray(z * matrix)
    result = np.empty((len(z), len(matrix)))
    rows = max(1, _CELLS // len(matrix))  # small enough for the cache
    for start in range(0, len(z), rows):
        part, total = z[start : start + rows], result[start : start + rows]
        term = np.empty_like(total)
        np.multiply(part[:, :1], matrix[:, 0], out=total)
        for j in range(1, matrix.shape[1]):
            np.multiply(part[:, j : j + 1], matrix[:, j], out=term)
            np.add(total, term, out=total)
    return result


def finite_logits(scores: Scores) -> Floats:
    r"""Finite logits within ±1e200 that can be multiplied and added.

    Those of probabilities are at least :math:`\log 2^{-52}`.
    """
    if scores.kind == "logits":
        result: Floats = np.clip(scores.values.astype(np.float64), -_FAR, _FAR)
        return result
    return np.log(np.maximum(scores.values.astype(np.float64), LEAST))


MAX_UNIFORM_WEIGHT = 0.99  # predictions must not change
UNIFORM_WEIGHT_BITS = 16  # privately fitted weights are multiples of 2^-16


@dataclass(frozen=True, eq=False)
class UniformMixing(CalibrationMap):
    r"""Probabilities at a temperature, mixed with the uniform distribution.

    .. math:: (1 - \lambda) \, \mathrm{softmax}(\beta z) + \lambda / k

    If predictions are overconfident even at the largest allowed temperature, uniform mixing
    lowers every confidence further, towards :math:`1/k` (the mixture of Zhang et al. 2020,
    https://arxiv.org/abs/2003.07329, with two of its three components). The result holds
    probabilities.

    Parameters
    ----------
    inverse : float from 1e-6 to 1e6
        The inverse temperature :math:`\beta`.
    uniform_weight : float from 0 to 0.99
        The weight :math:`\lambda` of the uniform distribution.

    Guarantees
    ----------
    Predictions do not change.

    Examples
    --------
    >>> scores = Scores.from_probabilities([[0.9, 0.1], [0.4, 0.6]])
    >>> UniformMixing(1.0, 0.5).transform(scores).values
    array([[0.7 , 0.3 ],
           [0.45, 0.55]])
    """

    inverse: float
    uniform_weight: float

    kind: ClassVar[str] = "uniform mixing"

    def __post_init__(self) -> None:
        self._set_field("inverse", 0, low=LEAST_INVERSE, high=MOST_INVERSE)
        self._set_field("uniform_weight", 0, low=0.0, high=MAX_UNIFORM_WEIGHT)

    @property
    def value(self) -> float:
        """The temperature T: what logits are divided by."""
        return 1 / self.inverse

    def _map_scores(self, scores: Scores) -> Scores:
        logits = scores.logits.astype(np.float64)
        with np.errstate(over="ignore"):  # an infinite difference gives the correct limit
            below = (logits - logits.max(axis=1, keepdims=True)) * self.inverse
        powers = np.exp(below)
        tempered = powers / powers.sum(axis=1, keepdims=True)
        mixed = (1 - self.uniform_weight) * tempered + self.uniform_weight / scores.n_classes
        return restore_predictions(from_probabilities(scores, mixed), scores)


@dataclass(frozen=True, eq=False)
class Beta(CalibrationMap):
    r"""Log-odds :math:`a \log p - b \log(1 - p) + c` for the probability p of a class.

    Kull, Silva Filho & Flach 2017 (https://proceedings.mlr.press/v54/kull17a.html), Section 4:
    the calibrated probability if p follows one beta distribution on records of the class and
    another on the rest. The result holds probabilities. For more than two classes each is
    mapped against the rest, and rows are normalized; for two classes only the second is
    mapped.

    Both p and 1 - p are clipped to at least :math:`2^{-52}`, so that log-odds are finite. The
    prediction may change.

    Parameters
    ----------
    a, b : arrays of shape (1,) for two classes, (k,) for more
        Nonnegative, so that the map is nondecreasing.
    c : array of the same shape

    Examples
    --------
    >>> map_ = Beta([1.0], [1.0], [0.0])
    >>> map_.transform(Scores.from_probabilities([[0.25, 0.75]])).values
    array([[0.25, 0.75]])
    """

    a: Floats
    b: Floats
    c: Floats

    kind: ClassVar[str] = "beta"

    def __post_init__(self) -> None:
        self._set_field("a", 1, low=0.0)
        self._set_field("b", 1, low=0.0)
        self._set_field("c", 1)
        if not len(self.a) == len(self.b) == len(self.c) or len(self.a) == 2:
            raise ValueError(
                "Expected a, b and c of one length, 1 for two classes and k for k >= 3, got "
                f"{len(self.a)}, {len(self.b)} and {len(self.c)}."
            )

    def _map_scores(self, scores: Scores) -> Scores:
        check_width(scores, max(2, len(self.a)), self.kind)
        log_p, log_rest = log_p_and_rest(scores)
        log_odds = self.a * log_p - self.b * log_rest + self.c
        return from_probabilities(scores, normalize_rows(expit(log_odds)))


def log_p_and_rest(scores: Scores) -> tuple[Floats, Floats]:
    r"""Return :math:`\log p`, :math:`\log (1 - p)` of shape (n, 1) for two classes or (n, k).

    Neither is below :math:`\log 2^{-52}`.
    """
    least = np.log(LEAST)
    log_p = np.maximum(scores.log_probabilities, least)
    if scores.n_classes == 2:  # exact, where 1 - p would be rounded
        return log_p[:, 1:], log_p[:, :1]
    rest = 1 - scores.probabilities.astype(np.float64)
    return log_p, np.log(np.maximum(rest, LEAST))
