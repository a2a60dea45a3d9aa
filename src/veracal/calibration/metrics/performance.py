"""Performance measures: proper scores, decisions, discrimination, calibration of log odds."""

import math
from collections.abc import Iterator

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from veracal._types import Array, Bools, Floats
from veracal.calibration.metrics.base import (
    Outcomes,
    in_order,
    log_odds,
    need_records,
    need_two_classes,
    run_starts,
    second_class,
    sortable,
    sorted_columns,
    top_label,
    top_label_blocks,
)
from veracal.data import Scores

_CELLS = 2**18  # numbers processed at a time


def brier(scores: Scores) -> float:
    r"""Multiclass Brier score :math:`\frac1n \sum_i \lVert p_i - e_{y_i} \rVert^2` in [0, 2].

    (Brier 1950.) For two classes it is twice the mean square of :math:`p_i - y_i`, which
    scikit-learn's ``brier_score_loss`` gives for binary targets.
    """
    return max(0.0, total(brier_blocks(need_records(scores))) / len(scores))  # not -0


def top_label_brier(scores: Scores) -> float:
    r"""Top-label Brier score :math:`\frac1n\sum_i (\hat p_i - 1[\hat y_i = y_i])^2` in [0, 1].

    The squared error of the confidence as the probability of a correct prediction.
    """
    return max(0.0, total(top_label_brier_blocks(need_records(scores))) / len(scores))


def nll(scores: Scores) -> float:
    r"""Mean negative log-likelihood :math:`-\frac1n \sum_i \log p_{i, y_i}`.

    Natural logarithms, computed from logits directly. The value is infinite if a label has
    probability exactly 0 or the sum overflows: nothing is clipped.
    """
    return max(0.0, total(nll_blocks(need_records(scores))) / len(scores))


def brier_blocks(scores: Scores) -> Iterator[Floats]:
    """Brier scores of one block of records after another."""
    for part in _blocks(scores):
        gaps = part.probabilities.astype(np.float64)
        gaps[np.arange(len(part)), part.known_labels] -= 1
        yield np.einsum("ij,ij->i", gaps, gaps)


def top_label_brier_blocks(scores: Scores) -> Iterator[Floats]:
    """Top-label Brier scores of one block of records after another."""
    for part in top_label_blocks(scores):
        yield (part.probability.astype(np.float64) - part.happened) ** 2


def nll_blocks(scores: Scores) -> Iterator[Floats]:
    """Negative log-likelihoods of one block of records after another."""
    for part in _blocks(scores):
        rows = np.arange(len(part))
        if scores.kind == "logits":
            yield -part.log_probabilities[rows, part.known_labels]
        else:
            own = part.values[rows, part.known_labels].astype(np.float64)
            with np.errstate(divide="ignore"):
                yield -np.log(own)


def _blocks(scores: Scores) -> Iterator[Scores]:
    """The scores in blocks of records."""
    rows = max(1, _CELLS // scores.n_classes)
    if len(scores) <= rows:
        yield scores
        return
    for start in range(0, len(scores), rows):
        yield scores.take(np.arange(start, min(start + rows, len(scores))))


def total(blocks: Iterator[Floats]) -> float:
    """Sum over all blocks; infinite on overflow."""
    with np.errstate(over="ignore"):
        return float(sum(block.sum() for block in blocks))


def accuracy(scores: Scores) -> float:
    """Share of correct predictions; ties go to the first class."""
    need_records(scores)
    return int(sum(part.happened.sum() for part in top_label_blocks(scores))) / len(scores)


def f1(scores: Scores) -> float:
    r"""Macro F1 score: the mean, over classes, of :math:`2TP / (2TP + FP + FN)`.

    Over the classes that occur among labels or predictions, as in scikit-learn. A class that
    occurs and is never predicted correctly has 0. See :func:`binary_f1` for the second of two
    classes.
    """
    each, occurs = _f1_by_class(need_records(scores))
    return float(each[occurs].mean())


def binary_f1(scores: Scores) -> float:
    """F1 score of the second of two classes; 0 where it neither occurs nor is predicted."""
    each, _ = _f1_by_class(need_two_classes(scores, "f1"))
    return float(each[1])


def _f1_by_class(scores: Scores) -> tuple[Floats, Bools]:
    """F1 score of every class, 0 if the class does not occur, and whether it occurs."""
    labels, predicted, k = scores.known_labels, scores.predictions, scores.n_classes
    correct = np.bincount(labels[labels == predicted], minlength=k)
    n_occurrences = np.bincount(labels, minlength=k) + np.bincount(predicted, minlength=k)
    each: Floats = 2 * correct / np.maximum(n_occurrences, 1)
    return each, n_occurrences > 0


_RANKED_CELLS = 2**14  # numbers ranked at a time, to fit into the processor's cache


def auc(scores: Scores) -> float:
    r"""Area under the ROC curve: binary, or one-vs-rest averaged over classes (macro).

    .. math::
        \mathrm{AUC} = \frac{1}{n_+ n_-} \sum_{i : y_i = 1} \sum_{j : y_j = 0}
            \Bigl( 1[s_i > s_j] + \tfrac12 1[s_i = s_j] \Bigr)

    by ranks (Hanley & McNeil 1982). For two classes s is the probability of the second; for
    more, that of each class in turn, against all others. Logits are compared as log odds or
    log-probabilities, because probabilities near 0 and 1 would be rounded to ties.

    Classes without records, or with all records, have no area and are excluded from the mean.
    If all labels are one class, the value is 0.5.
    """
    need_records(scores)
    labels = scores.known_labels
    present = np.unique(labels)
    if len(present) == 1:
        return 0.5
    values = sortable(scores, _ranked)
    if scores.n_classes == 2:
        return float(_areas(values, (labels == 1)[:, None])[0])
    width, areas = max(1, _RANKED_CELLS // len(scores)), []
    for start in range(0, len(present), width):
        columns = present[start : start + width]
        areas.append(_areas(values[:, columns], labels[:, None] == columns))
    return float(np.concatenate(areas).mean())


def _ranked(scores: Scores) -> Floats:
    """Scores by which records are ranked; for two classes, only those of the second."""
    if scores.n_classes > 2:
        return scores.log_probabilities if scores.kind == "logits" else scores.values
    return log_odds(scores)[:, None] if scores.kind == "logits" else scores.values[:, 1:]


def mean_ranks(ranked: Array) -> Floats:
    """Ranks from 1 of sorted values; ties get their mean rank."""
    n, k = ranked.shape
    first = run_starts(ranked).T
    run = first + n * np.arange(k)[:, None]
    lengths = np.bincount(run.reshape(-1), minlength=n * k)
    result: Floats = (first + (lengths.take(run) + 1) / 2).T
    return result


def _areas(values: Array, positive: Bools) -> Floats:
    """Area under the ROC curve of each column, which has positive and negative rows."""
    order, ranked = sorted_columns(values)
    n, where = positive.sum(axis=0), in_order(positive, order).T
    above = (mean_ranks(ranked).T * where).sum(axis=1) - n * (n + 1) / 2
    result: Floats = above / (n * (len(values) - n))
    return result


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
    return _intercept(log_odds(scores), scores.known_labels == 1)


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
    return _slope(log_odds(scores), scores.known_labels == 1)


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
        result: Floats = np.log(p) - np.log1p(-p)
    return result


def _intercept(odds: Floats, happened: Bools) -> float:
    """Root in a of the sum of expit(a + odds) - happened, for clipped log odds."""
    n, most = happened.sum(), LARGEST_LOG_ODDS
    if n in (0, len(happened)):
        return most if n else -most
    odds, end = np.clip(odds, -most, most), 2 * most + 1
    return float(
        brentq(lambda shift: float(expit(odds + shift).sum() - n), -end, end, xtol=1e-12)
    )


def _slope(odds: Floats, happened: Bools) -> float:
    """Slope of logistic regression on clipped log odds."""
    odds = np.clip(odds, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
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
