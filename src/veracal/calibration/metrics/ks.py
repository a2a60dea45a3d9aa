"""Calibration error of cumulative sums."""

import numpy as np

from veracal.calibration.metrics.demands import need_records
from veracal.calibration.metrics.draws import sortable
from veracal.calibration.metrics.sorting import sorted_columns
from veracal.calibration.metrics.top_label import confidence_column, top_label
from veracal.data.scores import Scores


def ks(scores: Scores) -> float:
    r"""Top-label Kolmogorov-Smirnov calibration error.

    .. math::
        \max_t \Bigl\lvert \frac{1}{n} \sum_{i : \hat p_i \le t}
            (\hat p_i - 1[\hat y_i = y_i]) \Bigr\rvert

    the largest gap between what was promised and what was kept, up to any confidence t
    (Gupta et al. 2021, section 3, https://arxiv.org/abs/2006.12800). It needs no bins, and
    equal confidences enter together, so that the order of records does not matter.
    """
    outcomes = top_label(need_records(scores))
    values = sortable(scores, confidence_column, outcomes.probability[:, None])
    (order,), (ranked,) = (columns.T for columns in sorted_columns(values))
    sums = np.cumsum(outcomes.probability[order] - outcomes.happened[order])
    last = np.append(ranked[1:] > ranked[:-1], True)  # of each run of equal confidences
    return float(np.abs(sums[last]).max() / len(scores))
