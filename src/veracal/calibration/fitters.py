"""Fitters of calibration maps without privacy, for public records.

Temperature scaling, two temperatures, Platt scaling and beta calibration maximize the
likelihood; isotonic regression and histogram binning minimize a squared error. Every fitter
keeps its map only if the loss on the calibration records does not increase.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Self

import numpy as np
from scipy.optimize import Bounds, isotonic_regression, minimize
from scipy.special import expit, log_expit, log_softmax
from sklearn.utils.validation import check_is_fitted

from veracal import _checks
from veracal._display import DisplayMixin
from veracal._types import Array, Floats, Ints
from veracal.calibration.bins import Bins
from veracal.calibration.maps.base import LARGEST, LEAST, MOST_NUMBERS, CalibrationMap, Identity
from veracal.calibration.maps.nonparametric import Binned, Isotonic, IsotonicForm
from veracal.calibration.maps.parametric import (
    LEAST_INVERSE,
    MOST_INVERSE,
    STEEPEST,
    Beta,
    Form,
    Platt,
    Temperature,
    TwoTemperatures,
    finite_logits,
    log_p_and_rest,
)
from veracal.calibration.metrics.performance import brier, nll
from veracal.data import Scores
from veracal.errors import DataError

_ROUNDING = 1e-13  # relative increase of a mean that counts as rounding


class MapFitter(DisplayMixin, ABC):
    """Base class of fitters of calibration maps. **Not private**: the map reveals its records.

    Attributes
    ----------
    map_ : CalibrationMap
        The fitted map, or :class:`~veracal.calibration.Identity` if the fitted map has a
        larger loss on the calibration records.
    kept_ : bool
        Whether ``map_`` is the fitted map and not the identity.
    private_ : bool
        False.
    """

    private_: ClassVar[bool] = False
    map_: CalibrationMap
    kept_: bool

    def fit(self, scores: Scores) -> Self:
        """Fit to labeled scores of at least one record."""
        if not isinstance(scores, Scores):
            raise ValueError(
                f"Expected Scores, got {type(scores).__name__}. Make them with "
                "Scores.from_logits or Scores.from_probabilities; the kind is never guessed "
                "from the values."
            )
        if not len(scores.known_labels):
            raise DataError(
                scores.name,
                "one record or more",
                "none",
                "Pass labeled scores to fit the map to.",
            )
        fitted = self._fit_map(scores)
        before, after = (self._loss(s, scores) for s in (scores, fitted.transform(scores)))
        self.kept_ = after <= before + _ROUNDING * max(1.0, before)
        self.map_ = fitted if self.kept_ else Identity()
        return self

    def transform(self, scores: Scores) -> Scores:
        """Scores of the same records, mapped."""
        check_is_fitted(self, "map_")
        return self.map_.transform(scores)

    def fit_transform(self, scores: Scores) -> Scores:
        """Fit to labeled scores and map them."""
        return self.fit(scores).transform(scores)

    @abstractmethod
    def _fit_map(self, scores: Scores) -> CalibrationMap:
        """The calibration map fitted to the scores."""

    def _loss(self, mapped: Scores, given: Scores) -> float:
        """Loss that must not increase on the calibration records."""
        return nll(mapped)


def prediction_brier(mapped: Scores, given: Scores) -> float:
    """Mean squared error of the probability of the class that ``given`` predicts."""
    top = given.predictions[:, None]
    probability = np.take_along_axis(mapped.probabilities, top, axis=1)[:, 0].astype(np.float64)
    return float(np.square(probability - given.correct).mean())


def _limit_classes(scores: Scores, most: int, what: str, advice: str) -> None:
    """Reject more classes than a map can have."""
    if (k := scores.n_classes) > most:
        raise DataError(scores.name, f"at most {most:,} classes for {what}", f"{k:,}", advice)


_BLOCK = 1 << 17  # numbers worked on at a time
_FAR = 1e150  # logit differences are clipped here, so that their squares stay finite
_TOL = 1e-11  # of the inverse temperature, relative
_STEPS = 1_000  # far more than a likelihood needs: roots of higher order are approached slowly

Slopes = Callable[[float], tuple[float, float]]


@dataclass(eq=False, repr=False)
class TemperatureScaling(MapFitter):
    r"""Temperature scaling by maximum likelihood, **not private**.

    Finds the inverse temperature :math:`\beta` in a public range that minimizes

    .. math:: f(\beta) = \frac1n \sum_i \log \sum_j e^{\beta (z_{ij} - z_{i y_i})} ,

    which is convex in :math:`\beta` (though not in :math:`T = 1/\beta`), so that the minimum
    is where :math:`f'` changes sign: it is found by Newton's method kept inside a bracket,
    to about eleven digits. Guo et al. 2017 (https://arxiv.org/abs/1706.04599), Section 4.2.

    If all records are classified correctly, :math:`f` has no minimum and the result is the
    upper end of the range. If the loss does not depend on the temperature, the result is 1. A
    label with probability exactly 0 would make the loss infinite at every temperature; the fit
    reads it as :math:`2^{-52}`, so that such records still lower the confidence.

    Parameters
    ----------
    temperatures : pair of float
        Public range, which holds 1.

    Guarantees
    ----------
    The negative log-likelihood never increases on the calibration records, and no prediction
    changes anywhere.

    Examples
    --------
    >>> scores = Scores.from_logits([3.0, 3.0, 3.0, 3.0], [1, 1, 1, 0])
    >>> fitter = TemperatureScaling().fit(scores)
    >>> round(fitter.transform(scores).confidence[0], 6)
    np.float64(0.75)
    """

    temperatures: tuple[float, float] = (0.01, 100.0)

    def _fit_map(self, scores: Scores) -> Temperature:
        low, high = self.temperatures
        _checks.positive(low=low, high=high)
        if not 1 / MOST_INVERSE <= low <= 1 <= high <= 1 / LEAST_INVERSE:
            raise ValueError(
                f"Expected temperatures to hold 1 and lie between {1 / MOST_INVERSE:g} and "
                f"{1 / LEAST_INVERSE:g}, got temperatures={self.temperatures!r}."
            )
        return Temperature(find_root(lambda beta: slopes(scores, beta), 1 / high, 1 / low))


def slopes(scores: Scores, inverse: float) -> tuple[float, float]:
    r"""First and second derivative of the mean NLL with respect to the inverse temperature.

    With :math:`d_{ij} = z_{ij} - z_{i y_i}` and probabilities at :math:`\beta`, they are the
    means over records of the expectation and of the variance of :math:`d_{ij}`.
    """
    first = second = 0.0
    for gaps in label_gaps(scores):
        p = np.exp(inverse * (gaps - gaps.max(axis=0)))
        p /= p.sum(axis=0)
        mean = np.einsum("ji,ji->i", p, gaps)
        gaps -= mean
        p *= gaps
        first += float(mean.sum())
        second += float(np.einsum("ji,ji->", p, gaps))
    return first / len(scores), second / len(scores)


def find_root(slopes: Slopes, low: float, high: float) -> float:
    """Root of an increasing derivative, by Newton's method inside a bracket, from 1 on.

    Returns 1 if the derivative is 0 there, and an end of the range if the derivative does not
    change sign within it.
    """
    first, second = slopes(1.0)
    if first == 0:
        return 1.0
    end = high if first < 0 else low
    if slopes(end)[0] * math.copysign(1, first) >= 0:
        return end
    low, high, at = min(1.0, end), max(1.0, end), 1.0
    for _ in range(_STEPS):
        newton = at - first / second if second > 0 else math.nan
        if abs(newton - at) <= _TOL * at or high - low <= _TOL * low:
            break
        # Bisect on the log scale, because inverse temperatures are scale parameters.
        at = newton if low < newton < high else math.sqrt(low * high)
        first, second = slopes(at)
        low, high = (at, high) if first < 0 else (low, at)
    return at


def label_gaps(scores: Scores) -> Iterator[Floats]:
    """Differences of the logits from the label's logit, of shape (k, records), in blocks."""
    rows = max(1, _BLOCK // scores.n_classes)
    for start in range(0, len(scores), rows):
        labels = scores.known_labels[start : start + rows]
        # One row per class: sums over few classes are fast when records are contiguous.
        values = np.array(scores.values[start : start + rows].T, dtype=np.float64, order="C")
        at = labels, np.arange(len(labels))
        if scores.kind == "probabilities":
            values[at] = np.where(values[at] == 0, LEAST, values[at])
            with np.errstate(divide="ignore"):
                np.log(values, out=values)
        with np.errstate(over="ignore"):
            values -= values[at]
        yield np.clip(values, -_FAR, _FAR, out=values)


@dataclass(eq=False, repr=False)
class TwoTemperatureScaling(MapFitter):
    r"""Two temperatures by maximum likelihood, **not private**.

    The confidence s is computed at the temperature that :class:`TemperatureScaling` finds. From
    there the loss

    .. math:: \frac1n \sum_i \log \sum_j e^{\beta(s_i) (z_{ij} - z_{i y_i})}

    is minimized over both logarithms of the inverse temperatures, each within 2 of the start
    (L-BFGS, scipy). If all records have the same confidence, both stay at the start.

    Parameters
    ----------
    temperatures : pair of float
        Public range of the temperature at which the confidence is computed; it holds 1.

    Guarantees
    ----------
    The negative log-likelihood never increases on the calibration records, and no prediction
    changes anywhere.

    Examples
    --------
    >>> confidence = np.repeat([0.6, 0.9], 20)
    >>> right = np.repeat([1, 0, 1, 0], [13, 7, 18, 2])  # 65 % and 90 %
    >>> scores = Scores.from_probabilities(confidence, right)
    >>> TwoTemperatureScaling().fit_transform(scores).confidence[[0, -1]].round(3)
    array([0.65, 0.9 ])
    """

    temperatures: tuple[float, float] = (0.01, 100.0)

    def _fit_map(self, scores: Scores) -> TwoTemperatures:
        at = TemperatureScaling(self.temperatures)._fit_map(scores).inverse
        bound = STEEPEST / 2
        result = minimize(
            lambda offsets: loss_and_slopes(scores, at, offsets),
            np.zeros(2),
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(-bound, bound),
            options={"ftol": 1e-15, "gtol": 1e-9},
        )
        unsure, sure = np.clip(at * np.exp(result.x), LEAST_INVERSE, MOST_INVERSE).tolist()
        return TwoTemperatures(unsure, sure, at)


def loss_and_slopes(scores: Scores, at: float, offsets: Floats) -> tuple[float, Floats]:
    """Mean NLL and its derivatives with respect to both log inverse temperatures.

    The confidence is computed at the inverse temperature ``at``; ``offsets`` are both logarithms
    minus that of ``at``.
    """
    loss, slopes = 0.0, np.zeros(2)
    for gaps in label_gaps(scores):
        below = gaps - gaps.max(axis=0)
        sure = 1 / np.exp(at * below).sum(axis=0)
        shares = np.stack([1 - sure, sure])
        inverse = at * np.exp(offsets @ shares)
        p = np.exp(inverse * below)
        total = p.sum(axis=0)
        loss += float((np.log(total) + inverse * gaps.max(axis=0)).sum())
        slopes += shares @ (np.einsum("ji,ji->i", p, gaps) / total * inverse)
    return loss / len(scores), slopes / len(scores)


_OPTIONS = {"maxiter": 2_000, "maxfun": 10_000, "ftol": 1e-14, "gtol": 1e-9, "maxcor": 30}


@dataclass(eq=False, repr=False)
class PlattScaling(MapFitter):
    r"""Platt scaling of the logits by maximum likelihood, **not private**.

    Minimizes over W and b the convex

    .. math::
        -\frac1n \sum_i \log \mathrm{softmax}(W z_i + b)_{y_i}
        + \frac{\lambda}{2} \lVert \theta - \theta_0 \rVert^2 ,

    where :math:`\theta` are W and b for logits centered and scaled to a mean absolute value
    of 1, and :math:`\theta_0` is the identity. The ridge selects one of the many
    (W, b) that give the same probabilities and keeps the solution finite on linearly separable
    records; otherwise its effect is negligible. Guo et al. 2017
    (https://arxiv.org/abs/1706.04599), Section 4.2, solved by L-BFGS. Platt's
    smoothing of the targets, which scikit-learn applies for 'sigmoid', is not used.

    Parameters
    ----------
    form : 'scalar', 'vector' or 'matrix'
        Whether W is a number, a diagonal or a matrix, with 1, k or k² weights. A matrix for
        many classes needs many records.
    ridge : float, default=1e-6
        The number :math:`\lambda`.

    Guarantees
    ----------
    The negative log-likelihood never increases on the calibration records. A vector or a matrix
    fitted to logits rejects probabilities, and vice versa.

    Examples
    --------
    >>> scores = Scores.from_logits([-1.0, -1.0, 1.0, 1.0], [0, 0, 0, 1])
    >>> fitter = PlattScaling().fit(scores)
    >>> fitter.transform(scores).probabilities[-1].round(2)
    array([0.5, 0.5])
    """

    form: Form = "vector"
    _: KW_ONLY
    ridge: float = 1e-6

    def _fit_map(self, scores: Scores) -> CalibrationMap:
        _checks.one_of(("scalar", "vector", "matrix"), form=self.form)
        _checks.positive(ridge=self.ridge)
        k = scores.n_classes
        if self.form == "matrix":
            most = math.isqrt(MOST_NUMBERS)
            _limit_classes(scores, most, "a matrix", "Use form='vector', or a temperature.")
        z = finite_logits(scores)
        center = z.mean(axis=0)
        z -= center
        scale = float(np.abs(z).mean()) or 1.0
        z /= scale
        shape = {"scalar": (), "vector": (k,), "matrix": (k, k)}[self.form]
        identity = np.eye(k) if self.form == "matrix" else np.ones(shape)
        start = np.concatenate([scale * identity.ravel(), center])
        with np.errstate(all="ignore"):  # extreme logits: ``fit`` checks the loss of the result
            theta = _regress(z, scores.known_labels, start, shape, self.ridge)
            weights = theta[:-k].reshape(shape) / scale
            bias = theta[-k:] - _apply(weights, center[None])[0]
            finite = all((np.abs(each) <= LARGEST).all() for each in (weights, bias))
        reads = None if self.form == "scalar" else scores.kind
        return Platt(weights, bias, reads) if finite else Identity()


def _regress(
    z: Floats, labels: Ints, start: Floats, shape: tuple[int, ...], ridge: float
) -> Floats:
    """Multinomial regression with weights of a shape; a ridge pulls towards the start."""
    n, k = z.shape
    rows = np.arange(n)

    def loss(theta: Floats) -> tuple[float, Floats]:
        weights, bias = theta[:-k].reshape(shape), theta[-k:]
        log_p = log_softmax(_apply(weights, z) + bias, axis=1)
        value = -log_p[rows, labels].mean()
        residual = np.exp(log_p)
        residual[rows, labels] -= 1
        residual /= n
        if len(shape) == 2:
            slopes = residual.T @ z
        else:
            slopes = np.einsum("ij,ij->j" if shape else "ij,ij->", residual, z)
        offset = theta - start
        gradient = np.concatenate([np.ravel(slopes), residual.sum(axis=0)])
        return float(value + ridge / 2 * (offset @ offset)), gradient + ridge * offset

    result: Floats = minimize(loss, start, jac=True, method="L-BFGS-B", options=_OPTIONS).x
    return result


def _apply(weights: Floats, z: Floats) -> Floats:
    """Product of weights and rows of logits."""
    result: Floats = z @ weights.T if weights.ndim == 2 else z * weights
    return result


_MAX_CLASSES = 1_000  # each class is fitted separately
_START = np.array([1.0, 1.0, 0.0])  # the identity
_BOUNDS = [(0.0, 1e6), (0.0, 1e6), (-1e6, 1e6)]
_BETA_OPTIONS = {"maxiter": 2_000, "maxfun": 10_000, "ftol": 1e-15, "gtol": 1e-10}


@dataclass(eq=False, repr=False, kw_only=True)
class BetaCalibration(MapFitter):
    r"""Beta calibration by maximum likelihood, **not private**.

    For each class against the rest, minimizes over :math:`a, b \ge 0` and c the mean log loss
    of log-odds :math:`a \log p - b \log(1-p) + c` (Kull, Silva Filho & Flach 2017,
    https://proceedings.mlr.press/v54/kull17a.html), which is convex, by L-BFGS with bounds.
    The solver enforces the bounds, where the paper refits without a negative coefficient; both
    reach the same minimum. A small ridge towards the identity keeps the parameters finite on
    records that a threshold separates.

    For two classes the second is fitted; for more, each of them, up to 1,000.

    Parameters
    ----------
    ridge : float, default=1e-6

    Guarantees
    ----------
    The negative log-likelihood never increases on the calibration records. For three classes or
    more, normalizing the rows may increase it; the identity is then used instead.

    Examples
    --------
    >>> scores = Scores.from_probabilities([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0])
    >>> BetaCalibration().fit_transform(scores).values[0].round(4)
    array([0.25, 0.75])
    """

    ridge: float = 1e-6

    def _fit_map(self, scores: Scores) -> Beta:
        _checks.positive(ridge=self.ridge)
        _limit_classes(scores, _MAX_CLASSES, "a beta map", "Use a temperature.")
        log_p, log_rest = log_p_and_rest(scores)
        first = 1 if scores.n_classes == 2 else 0
        fits = [
            _fit_one(log_p[:, j], log_rest[:, j], scores.known_labels == first + j, self.ridge)
            for j in range(log_p.shape[1])
        ]
        return Beta(*np.array(fits).T)


def _fit_one(log_p: Floats, log_rest: Floats, hits: Array, ridge: float) -> Floats:
    """Parameters a, b and c of one class."""
    features = np.stack([log_p, -log_rest, np.ones_like(log_p)], axis=1)
    sign = np.where(hits, 1.0, -1.0)

    def loss(theta: Floats) -> tuple[float, Floats]:
        margins = sign * (features @ theta)
        offset = theta - _START
        gradient = -((sign * expit(-margins)) @ features) / len(sign)
        value = -log_expit(margins).mean() + ridge / 2 * (offset @ offset)
        return float(value), gradient + ridge * offset

    result: Floats = minimize(
        loss, _START, jac=True, method="L-BFGS-B", bounds=_BOUNDS, options=_BETA_OPTIONS
    ).x
    return result


_MAX_ISOTONIC_CLASSES = 10_000  # each class is fitted separately


@dataclass(eq=False, repr=False)
class IsotonicCalibration(MapFitter):
    r"""Isotonic regression of the labels on probabilities, **not private**.

    Each curve is the increasing function with the least squared error (Zadrozny & Elkan 2002),
    computed by pooling adjacent violators, and linear between its points. See
    :class:`~veracal.calibration.Isotonic` for the two forms. A class without records gets
    probability 0 everywhere with *one-vs-rest*, which supports at most 10,000 classes.

    Parameters
    ----------
    form : 'one-vs-rest' or 'top-label'
        *one-vs-rest*: a curve for each class, with rows normalized, as scikit-learn does; for
        two classes, only the curve of the second. *top-label*: one curve, for the predicted
        class.

    Guarantees
    ----------
    On the calibration records the Brier score never increases (for *top-label*, that of the
    predicted label). For one curve that is a theorem. For three classes or more, normalizing
    the rows may increase it; the identity is then used instead.

    Examples
    --------
    >>> scores = Scores.from_probabilities([0.2, 0.4, 0.6, 0.8], [0, 1, 0, 1])
    >>> IsotonicCalibration().fit_transform(scores).values[:, 1]
    array([0. , 0.5, 0.5, 1. ])
    """

    form: IsotonicForm = "one-vs-rest"

    def _fit_map(self, scores: Scores) -> Isotonic:
        _checks.one_of(("top-label", "one-vs-rest"), form=self.form)
        if self.form == "top-label":
            curves = [_curve(scores.confidence, scores.correct)]
        else:
            advice = "Use form='top-label', or a temperature."
            _limit_classes(scores, _MAX_ISOTONIC_CLASSES, "a curve each", advice)
            classes = range(scores.n_classes) if scores.n_classes > 2 else (1,)
            values, labels = scores.probabilities, scores.known_labels
            curves = [_curve(values[:, j], labels == j) for j in classes]
        inputs, outputs = zip(*curves, strict=True)
        return Isotonic(inputs, outputs, self.form)

    def _loss(self, mapped: Scores, given: Scores) -> float:
        if self.form == "top-label":
            return prediction_brier(mapped, given)
        return brier(mapped)


def _curve(probabilities: Floats, hits: Array) -> tuple[Floats, Floats]:
    """Breakpoints of the closest increasing curve, without those inside flat segments."""
    # scikit-learn's IsotonicRegression pools inputs closer than 1e-15, so that its curve can
    # miss the pooled points.
    inputs, index, counts = np.unique(
        np.asarray(probabilities, dtype=np.float64), return_inverse=True, return_counts=True
    )
    means = np.bincount(index, weights=hits) / counts
    outputs = np.clip(isotonic_regression(means, weights=counts).x, 0, 1)
    same = np.diff(outputs) == 0
    inner = np.concatenate([[False], same[:-1] & same[1:], [False]])[: len(inputs)]
    return inputs[~inner], outputs[~inner]


@dataclass(eq=False, repr=False)
class HistogramBinning(MapFitter):
    r"""Histogram binning of the top label, **not private**.

    The confidence is replaced by the accuracy of its bin (Zadrozny & Elkan 2001; see
    :class:`~veracal.calibration.Binned` for the other classes). An empty bin gets its
    midpoint.

    Parameters
    ----------
    bins : Bins or int, default=15
        Bins of equal width, closed on the right.

    Guarantees
    ----------
    On the calibration records, the mean confidence of every bin equals its accuracy, and the
    top-label Brier score never increases: if wide bins would increase it, the identity is
    used instead.

    Examples
    --------
    >>> scores = Scores.from_probabilities([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0])
    >>> HistogramBinning(10).fit_transform(scores).values[0]
    array([0.25, 0.75])
    """

    bins: Bins | int = 15

    def _fit_map(self, scores: Scores) -> Binned:
        bins = self.bins if isinstance(self.bins, Bins) else Bins(self.bins)
        index = bins.of(scores.confidence)
        counts = np.bincount(index, minlength=bins.count)
        right = np.bincount(index, weights=scores.correct, minlength=bins.count)
        empty = counts == 0
        return Binned(bins, np.where(empty, bins.centers, right / np.maximum(counts, 1)))

    def _loss(self, mapped: Scores, given: Scores) -> float:
        return prediction_brier(mapped, given)
