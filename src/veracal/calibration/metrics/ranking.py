"""How well scores rank the records of a class above the others."""

import numpy as np

from veracal._types import Bools, Floats
from veracal.calibration.metrics.demands import need_records
from veracal.calibration.metrics.outcomes import log_odds
from veracal.calibration.metrics.sorting import mean_ranks, sorted_columns
from veracal.data.scores import Scores

_CELLS = 2**20  # numbers ranked at a time


def auc(scores: Scores) -> float:
    r"""Area under the ROC curve: binary, or one-vs-rest averaged over classes (macro).

    .. math::
        \mathrm{AUC} = \frac{1}{n_+ n_-} \sum_{i : y_i = 1} \sum_{j : y_j = 0}
            \Bigl( 1[s_i > s_j] + \tfrac12 1[s_i = s_j] \Bigr)

    by ranks (Hanley & McNeil 1982). For two classes s are the probabilities of the second;
    for more, those of each class in turn, against all others. Where scores are logits, log
    odds and log-probabilities take their place: probabilities near 0 and 1 would be rounded
    to ties.

    Classes that no record has, or that all records have, have no area and are left out of
    the mean. Where none is left, as when all labels are one class, the value is 0.5: there
    is nothing to rank, and no ranking was shown to be better than chance.
    """
    need_records(scores)
    labels = scores.known_labels
    present = np.unique(labels)
    if len(present) == 1:
        return 0.5
    logits = scores.kind == "logits"
    if scores.n_classes == 2:
        second = log_odds(scores) if logits else scores.values[:, 1]
        return float(_areas(second[:, None], (labels == 1)[:, None])[0])
    width, areas = max(1, _CELLS // len(scores)), []
    ranked = scores.log_probabilities if logits else scores.values
    for start in range(0, len(present), width):
        columns = present[start : start + width]
        areas.append(_areas(ranked[:, columns], labels[:, None] == columns))
    return float(np.concatenate(areas).mean())


def _areas(values: Floats, positive: Bools) -> Floats:
    """Area of each column; every column has positive and negative rows."""
    order, ranked = sorted_columns(values)
    n, where = positive.sum(axis=0), np.take_along_axis(positive, order, axis=0)
    above = np.where(where, mean_ranks(ranked), 0).sum(axis=0) - n * (n + 1) / 2
    result: Floats = above / (n * (len(values) - n))
    return result
