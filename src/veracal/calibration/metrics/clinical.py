"""Calibration metrics of clinical prediction models: in the large, intercept and slope."""

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

LARGEST_LOG_ODDS = math.log(2**53 - 1)  # beyond it, 1 - p is 1 in double precision
LARGEST_SLOPE = 100.0
_STEPS, _SMALLEST, _CLOSE = 100, 1e-6, 1e-9  # of Newton's method
_INVISIBLE = 1e-15  # relative decrease of the loss below rounding


def calibration_in_the_large(scores: Scores) -> float:
    r"""Binary calibration in the large: event frequency minus mean predicted probability.

    .. math:: \frac1n \sum_i \bigl( 1[y_i = 1] - p_i \bigr)

    for the probability p of the second of two classes (Van Calster et al. 2016,
    https://doi.org/10.1016/j.jclinepi.2015.12.005). Positive where risks are
    underestimated. For more classes see :func:`confidence_gap`, with the opposite sign.
    """
    outcomes = second_class(need_two_classes(scores, "confidence_gap"))
    return float(outcomes.happened.mean() - outcomes.probability.mean())


def calibration_intercept(scores: Scores) -> float:
    r"""Binary calibration intercept: the shift of log odds that makes the mean correct.

    The maximum-likelihood a of :math:`\mathrm{logit} P(y = 1) = a + \mathrm{logit}(p)`, the
    slope being fixed at 1 (Cox 1958; Van Calster et al. 2016,
    https://doi.org/10.1016/j.jclinepi.2015.12.005). The ideal is 0.

    Log odds are clipped to ±36.7, where a double can still represent the probability. If all
    labels are one class, no finite shift suffices, and the value is ±36.7.
    """
    need_two_classes(scores, "top_label_calibration_intercept")
    return _intercept(_clip_log_odds(log_odds(scores)), scores.known_labels == 1)


def calibration_slope(scores: Scores) -> float:
    r"""Binary calibration slope: below 1 for risks that are too extreme.

    The maximum-likelihood b of :math:`\mathrm{logit} P(y = 1) = a + b\,\mathrm{logit}(p)`
    (Cox 1958; Van Calster et al. 2016, https://doi.org/10.1016/j.jclinepi.2015.12.005). The
    ideal is 1.

    Log odds are clipped to ±36.7. The slope is clipped to ±100, its value if the classes are
    separable and any larger slope fits better. If all labels are one class or all log odds are
    equal, every slope fits and the value is 0.
    """
    need_two_classes(scores, "top_label_calibration_slope")
    return _slope(_clip_log_odds(log_odds(scores)), scores.known_labels == 1)


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
        return _clip_log_odds(np.log(p) - np.log1p(-p))


def _clip_log_odds(odds: Floats) -> Floats:
    """Log odds clipped to the range that doubles can represent as probabilities."""
    return np.clip(odds, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)


def _intercept(odds: Floats, happened: Bools) -> float:
    """Root in a of the sum of expit(a + odds) - happened, clipped to the limits."""
    n, most = happened.sum(), LARGEST_LOG_ODDS
    if n in (0, len(happened)):
        return most if n else -most
    return float(brentq(_excess_events(odds, n), -2 * most - 1, 2 * most + 1, xtol=1e-12))


def _excess_events(odds: Floats, n: int) -> Callable[[float], float]:
    """Expected minus observed number of events as a function of the shift."""
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
    coefficients = _logistic(np.stack([np.ones(len(odds)), (odds - center) / scale]), happened)
    return float(np.clip(coefficients[1] / scale, -LARGEST_SLOPE, LARGEST_SLOPE))


def _logistic(columns: Floats, happened: Bools) -> Floats:
    """Coefficients of a logistic regression with finite optimum, by Newton's method.

    Steps are halved until the loss decreases. The iteration ends with a step below 1e-9 or with
    a decrease below rounding.
    """
    signed = np.where(happened, -1.0, 1.0) * columns
    coefficients, loss = np.zeros(len(columns)), math.log(2.0)
    for _ in range(_STEPS):
        p = expit(coefficients @ signed)
        slopes, curvature = signed @ p, (signed * (p * (1 - p))) @ signed.T
        step: Floats = np.linalg.lstsq(curvature, slopes, rcond=None)[0]
        converged = slopes @ step / 2 <= _INVISIBLE * loss * len(happened)
        if converged or np.abs(step).max() < _CLOSE:
            coefficients = coefficients - step
            break
        size, candidate_loss = 1.0, math.inf
        while size > _SMALLEST and not candidate_loss < loss:
            candidate = coefficients - size * step
            size, candidate_loss = size / 2, float(np.logaddexp(0, candidate @ signed).mean())
        if not candidate_loss < loss:
            break
        coefficients, loss = candidate, candidate_loss
    return coefficients
