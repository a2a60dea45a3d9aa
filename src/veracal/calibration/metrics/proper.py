"""Proper scoring rules, accuracy and F1 of predictions, and the area under the ROC curve."""

from collections.abc import Iterator

import numpy as np

from veracal._types import Array, Bools, Floats
from veracal.calibration.metrics.base import (
    in_order,
    log_odds,
    mean_ranks,
    need_records,
    need_two_classes,
    sortable,
    sorted_columns,
    top_label_blocks,
)
from veracal.data import Scores

_CELLS = 2**18  # numbers processed at a time


def brier(scores: Scores) -> float:
    r"""Multiclass Brier score :math:`\frac1n \sum_i \lVert p_i - e_{y_i} \rVert^2` in [0, 2].

    (Brier 1950.) For two classes it is twice the mean square of :math:`p_i - y_i`, which
    scikit-learn's ``brier_score_loss`` gives for binary targets.
    """
    return _mean(brier_blocks(need_records(scores)), len(scores))


def top_label_brier(scores: Scores) -> float:
    r"""Top-label Brier score :math:`\frac1n\sum_i (\hat p_i - 1[\hat y_i = y_i])^2` in [0, 1].

    The squared error of the confidence as the probability of a correct prediction.
    """
    need_records(scores)
    return _mean(top_label_brier_blocks(scores), len(scores))


def nll(scores: Scores) -> float:
    r"""Mean negative log-likelihood :math:`-\frac1n \sum_i \log p_{i, y_i}`.

    Natural logarithms, computed from logits directly. The value is infinite if a label has
    probability exactly 0 or the sum overflows: nothing is clipped.
    """
    return _mean(nll_blocks(need_records(scores)), len(scores))


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


def _mean(blocks: Iterator[Floats], n: int) -> float:
    """Mean over all blocks."""
    return max(0.0, total(blocks) / n)  # not -0


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


def _areas(values: Array, positive: Bools) -> Floats:
    """Area under the ROC curve of each column, which has positive and negative rows."""
    order, ranked = sorted_columns(values)
    n, where = positive.sum(axis=0), in_order(positive, order).T
    above = (mean_ranks(ranked).T * where).sum(axis=1) - n * (n + 1) / 2
    result: Floats = above / (n * (len(values) - n))
    return result
