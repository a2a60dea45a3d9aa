"""Calibration as clinical prediction models report it: in the large, slope and intercept."""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from veracal._types import Bools, Floats
from veracal.calibration.metrics.base import (
    Outcomes,
    log_odds,
    need_records,
    need_two_classes,
    second_class,
    top_label,
)
from veracal.data import Scores

LARGEST_LOG_ODDS = math.log(2**53 - 1)  # beyond, a double cannot tell 1 - p from 1
LARGEST_SLOPE = 100.0
_STEPS, _SMALLEST, _CLOSE = 100, 1e-6, 1e-9  # of Newton's method
_UNSEEN = 1e-15  # relative decrease of the loss that rounding hides


def calibration_in_the_large(scores: Scores) -> float:
    r"""Binary calibration in the large: how often it happens, minus how often it was promised.

    .. math:: \frac1n \sum_i \bigl( 1[y_i = 1] - p_i \bigr)

    for the probability p of the second of two classes (Van Calster et al. 2016,
    https://doi.org/10.1016/j.jclinepi.2015.12.005). Positive where risks are
    underestimated. For more classes see :func:`confidence_gap`, with the opposite sign.
    """
    outcomes = second_class(need_two_classes(scores, "confidence_gap"))
    return float(outcomes.happened.mean() - outcomes.probability.mean())


def calibration_intercept(scores: Scores) -> float:
    r"""Binary calibration intercept: the shift of log odds that makes the mean right.

    The maximum-likelihood a of :math:`\mathrm{logit} P(y = 1) = a + \mathrm{logit}(p)`, the
    slope being fixed at 1 (Cox 1958; Van Calster et al. 2016,
    https://doi.org/10.1016/j.jclinepi.2015.12.005). The ideal is 0.

    Log odds are limited to ±36.7, beyond which a double cannot tell a probability from 0
    or 1. Where all labels are one class no shift is large enough, and the value is ±36.7.
    """
    need_two_classes(scores, "top_label_calibration_intercept")
    return _intercept(_limited(log_odds(scores)), scores.known_labels == 1)


def calibration_slope(scores: Scores) -> float:
    r"""Binary calibration slope: below 1 for risks that are too extreme.

    The maximum-likelihood b of :math:`\mathrm{logit} P(y = 1) = a + b\,\mathrm{logit}(p)`
    (Cox 1958; Van Calster et al. 2016, https://doi.org/10.1016/j.jclinepi.2015.12.005). The
    ideal is 1.

    Log odds are limited to ±36.7. The slope is limited to ±100, its value where the classes
    are separated and any larger slope would fit better. Where all labels are one class, or
    all log odds are equal, every slope fits and the value is 0, the smallest.
    """
    need_two_classes(scores, "top_label_calibration_slope")
    return _slope(_limited(log_odds(scores)), scores.known_labels == 1)


def top_label_calibration_intercept(scores: Scores) -> float:
    """:func:`calibration_intercept` of the event that the predicted class is right."""
    outcomes = top_label(need_records(scores))
    return _intercept(_confidence_log_odds(outcomes), outcomes.happened)


def top_label_calibration_slope(scores: Scores) -> float:
    """:func:`calibration_slope` of the event that the predicted class is right."""
    outcomes = top_label(need_records(scores))
    return _slope(_confidence_log_odds(outcomes), outcomes.happened)


def _confidence_log_odds(outcomes: Outcomes) -> Floats:
    """Log odds of the confidence."""
    p = outcomes.probability
    with np.errstate(divide="ignore"):
        return _limited(np.log(p) - np.log1p(-p))


def _limited(odds: Floats) -> Floats:
    """Log odds that a double can tell from infinite ones."""
    return np.clip(odds, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)


def _intercept(odds: Floats, happened: Bools) -> float:
    """Root in a of the sum of expit(a + odds) - happened, within the limits."""
    n, most = happened.sum(), LARGEST_LOG_ODDS
    if n in (0, len(happened)):
        return most if n else -most
    return float(brentq(_excess(odds, n), -2 * most - 1, 2 * most + 1, xtol=1e-12))


def _excess(odds: Floats, n: int) -> Callable[[float], float]:
    """Expected minus counted events, as a function of the shift."""
    return lambda shift: float(expit(odds + shift).sum() - n)


def _slope(odds: Floats, happened: Bools) -> float:
    """Slope of logistic regression on the log odds."""
    if happened.all() or not happened.any() or odds.min() == odds.max():
        return 0.0
    with_event, without = odds[happened], odds[~happened]
    if without.max() <= with_event.min():
        return LARGEST_SLOPE
    if with_event.max() <= without.min():
        return -LARGEST_SLOPE
    center, scale = float(odds.mean()), float(np.abs(odds - odds.mean()).max())
    line = _logistic(np.stack([np.ones(len(odds)), (odds - center) / scale]), happened)
    return float(np.clip(line[1] / scale, -LARGEST_SLOPE, LARGEST_SLOPE))


def _logistic(columns: Floats, happened: Bools) -> Floats:
    """Coefficients of logistic regression where they are finite, by Newton's method.

    Steps are halved until the loss falls. One below 1e-9, or whose decrease rounding would
    hide, is the last.
    """
    signed = np.where(happened, -1.0, 1.0) * columns
    line, loss = np.zeros(len(columns)), math.log(2.0)
    for _ in range(_STEPS):
        p = expit(line @ signed)
        slopes, curvature = signed @ p, (signed * (p * (1 - p))) @ signed.T
        step: Floats = np.linalg.lstsq(curvature, slopes, rcond=None)[0]
        unseen = slopes @ step / 2 <= _UNSEEN * loss * len(happened)
        if unseen or np.abs(step).max() < _CLOSE:
            line = line - step
            break
        size, found = 1.0, math.inf
        while size > _SMALLEST and not found < loss:
            nearer = line - size * step
            size, found = size / 2, float(np.logaddexp(0, nearer @ signed).mean())
        if not found < loss:
            break
        line, loss = nearer, found
    return line
