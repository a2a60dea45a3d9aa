"""Calibration error of every class, over bins of equal width."""

import numpy as np

from veracal.calibration.bins import Bins, places
from veracal.calibration.metrics.demands import need_records
from veracal.calibration.metrics.totals import sums_by, two_sum, zeros
from veracal.data.scores import Scores

_CELLS = 2**18  # probabilities binned at a time


def sce(scores: Scores, bins: int = 15) -> float:
    r"""Classwise (static) calibration error, averaged over all classes.

    .. math::
        \mathrm{SCE} = \frac{1}{K} \sum_k \sum_b \frac{n_{bk}}{n}
            \lvert \mathrm{freq}(b, k) - \mathrm{conf}(b, k) \rvert

    where bin b of class k holds the records whose probability of class k is in bin b, the
    bins being those of :func:`ece` (Nixon et al. 2019, eq. 2,
    https://arxiv.org/abs/1904.01685). A class that no record has counts like any other: its
    probabilities should be near 0.
    """
    need_records(scores)
    edges, k = Bins(bins), scores.n_classes
    size = k * edges.count
    sums, rest, rows = zeros(size), zeros(size), max(_CELLS, size) // k
    columns = np.arange(k) * edges.count
    for start in range(0, len(scores), rows):
        part = scores.take(np.arange(start, min(start + rows, len(scores))))
        probabilities = part.probabilities
        place, gaps = places(probabilities, edges) + columns, probabilities.astype(np.float64)
        gaps[np.arange(len(part)), part.known_labels] -= 1
        sums, lost = two_sum(sums, sums_by(place.ravel(), gaps.ravel(), size))
        rest += lost
    return float(np.abs(sums + rest).sum() / (len(scores) * k))
