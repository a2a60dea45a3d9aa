"""The temperature under which labels are likeliest."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.fitters.base import MapFitter
from veracal.calibration.maps import Temperature
from veracal.calibration.maps.base import LEAST
from veracal.calibration.maps.temperature import LEAST_INVERSE, MOST_INVERSE
from veracal.calibration.metrics.proper import nll
from veracal.data.scores import Scores

_BLOCK = 1 << 17  # numbers worked on at a time
_FAR = 1e150  # logits further apart are read as that: their squares stay finite
_TOL = 1e-11  # of the inverse temperature, relative
_STEPS = 100

Slopes = Callable[[float], tuple[float, float]]


class TemperatureScaling(MapFitter):
    r"""Temperature scaling by maximum likelihood, **not private**.

    Finds the inverse temperature :math:`\beta` in a public range that minimizes

    .. math:: f(\beta) = \frac1n \sum_i \log \sum_j e^{\beta (z_{ij} - z_{i y_i})} ,

    which is convex in :math:`\beta` (though not in :math:`T = 1/\beta`), so that the minimum
    is where :math:`f'` changes sign: it is found by Newton's method kept inside a bracket,
    to about eleven digits. Guo et al. 2017 (https://arxiv.org/abs/1706.04599), Section 4.2.

    On records that are all classified rightly, :math:`f` falls for ever; then the answer is
    the upper end of the range, and never a number in the millions. Where no temperature makes
    a difference, it is 1. A label with probability exactly 0 would make the loss infinite at
    every temperature; the fit reads it as :math:`2^{-52}`, so that such records still ask
    for less confidence.

    Parameters
    ----------
    inverse_range : two floats, default=(0.01, 100)
        Public bounds on :math:`\beta`, below and above 1.

    Guarantees
    ----------
    The negative log-likelihood never rises on the records of the fit, and no prediction
    changes anywhere.

    Examples
    --------
    >>> scores = Scores.from_logits([3.0, 3.0, 3.0, 3.0], [1, 1, 1, 0])
    >>> fitter = TemperatureScaling().fit(scores)
    >>> round(fitter.transform(scores).confidence[0], 6)
    np.float64(0.75)
    """

    def __init__(self, inverse_range: tuple[float, float] = (0.01, 100.0)) -> None:
        self.inverse_range = inverse_range

    def _fitted(self, scores: Scores) -> Temperature:
        low, high = self.inverse_range
        _checks.positive(low=low, high=high)
        if not LEAST_INVERSE <= low <= 1 <= high <= MOST_INVERSE:
            raise ValueError(
                f"Expected inverse_range to hold 1 and lie between {LEAST_INVERSE:g} and "
                f"{MOST_INVERSE:g}, got inverse_range={self.inverse_range!r}."
            )
        return Temperature(where_level(lambda beta: slopes(scores, beta), low, high))

    def _loss(self, mapped: Scores, given: Scores) -> float:
        return nll(mapped)


def slopes(scores: Scores, inverse: float) -> tuple[float, float]:
    r"""First and second derivative of the mean NLL in the inverse temperature.

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


def where_level(slopes: Slopes, low: float, high: float) -> float:
    """Where a rising slope is 0, from 1 on: by Newton's method inside a bracket.

    Returns 1 if the slope is 0 there, and the end of the range it points to if it does not
    change its sign before.
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
        # Halving the bracket by factors, not by differences: an inverse temperature has scale.
        at = newton if low < newton < high else math.sqrt(low * high)
        first, second = slopes(at)
        low, high = (at, high) if first < 0 else (low, at)
    return at


def label_gaps(scores: Scores) -> Iterator[Floats]:
    """How far each logit is above the label's, of shape (k, records), block by block."""
    rows = max(1, _BLOCK // scores.n_classes)
    for start in range(0, len(scores), rows):
        labels = scores.known_labels[start : start + rows]
        # A row for each class: sums over few classes are quick when records lie side by side.
        values = np.array(scores.values[start : start + rows].T, dtype=np.float64, order="C")
        at = labels, np.arange(len(labels))
        if scores.kind == "probabilities":
            values[at] = np.where(values[at] == 0, LEAST, values[at])
            with np.errstate(divide="ignore"):
                np.log(values, out=values)
        with np.errstate(over="ignore"):
            values -= values[at]
        yield np.clip(values, -_FAR, _FAR, out=values)
