"""How well scores rank the records of a class above the others."""

import numpy as np

from veracal._types import Array, Bools, Floats
from veracal.calibration.metrics.demands import need_records
from veracal.calibration.metrics.draws import sortable
from veracal.calibration.metrics.outcomes import log_odds
from veracal.calibration.metrics.sorting import in_order, mean_ranks, sorted_columns
from veracal.data.scores import Scores

_CELLS = 2**14  # numbers ranked at a time: they stay in the processor's cache


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
    values = sortable(scores, _ranked)
    if scores.n_classes == 2:
        return float(_areas(values, (labels == 1)[:, None])[0])
    width, areas = max(1, _CELLS // len(scores)), []
    for start in range(0, len(present), width):
        columns = present[start : start + width]
        areas.append(_areas(values[:, columns], labels[:, None] == columns))
    return float(np.concatenate(areas).mean())


def _ranked(scores: Scores) -> Floats:
    """What records are ranked by: of two classes the second alone."""
    if scores.n_classes > 2:
        return scores.log_probabilities if scores.kind == "logits" else scores.values
    return log_odds(scores)[:, None] if scores.kind == "logits" else scores.values[:, 1:]


def _areas(values: Array, positive: Bools) -> Floats:
    """Area of each column; every column has positive and negative rows."""
    order, ranked = sorted_columns(values)
    n, where = positive.sum(axis=0), in_order(positive, order).T
    above = (mean_ranks(ranked).T * where).sum(axis=1) - n * (n + 1) / 2
    result: Floats = above / (n * (len(values) - n))
    return result
