"""How good the decisions are, whatever the confidence."""

import numpy as np

from veracal._types import Bools, Floats
from veracal.calibration.metrics.demands import need_records, need_two_classes
from veracal.calibration.metrics.top_label import top_label_blocks
from veracal.data.scores import Scores


def accuracy(scores: Scores) -> float:
    """Share of records whose predicted class is right; of equal scores the first counts."""
    need_records(scores)
    return int(sum(part.happened.sum() for part in top_label_blocks(scores))) / len(scores)


def f1(scores: Scores) -> float:
    r"""Macro F1 score: the mean, over classes, of :math:`2TP / (2TP + FP + FN)`.

    Over the classes that occur among labels or predictions, as in scikit-learn. A class
    that occurs and is never predicted right has 0. For the F1 score of the second of two
    classes see :func:`binary_f1`.
    """
    each, occurs = _f1_by_class(need_records(scores))
    return float(each[occurs].mean())


def binary_f1(scores: Scores) -> float:
    """F1 score of the second of two classes; 0 where it neither occurs nor is predicted."""
    each, _ = _f1_by_class(need_two_classes(scores, "f1"))
    return float(each[1])


def _f1_by_class(scores: Scores) -> tuple[Floats, Bools]:
    """F1 score of every class, 0 where it does not occur, and whether it does."""
    labels, predicted, k = scores.known_labels, scores.predictions, scores.n_classes
    right = np.bincount(labels[labels == predicted], minlength=k)
    shown = np.bincount(labels, minlength=k) + np.bincount(predicted, minlength=k)
    each: Floats = 2 * right / np.maximum(shown, 1)
    return each, shown > 0
