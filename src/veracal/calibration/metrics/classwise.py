"""Calibration error of every class, over bins of equal width."""

from dataclasses import dataclass

import numpy as np

from veracal._types import Floats, Ints
from veracal.calibration.bins import Bins, places
from veracal.calibration.metrics.demands import need_records
from veracal.calibration.metrics.draws import Draws
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
    cells, k = _Cells(Bins(bins)), scores.n_classes
    size = k * cells.bins.count
    sums, rest, rows = zeros(size), zeros(size), max(_CELLS, size) // k
    for start in range(0, len(scores), rows):
        part = scores.take(np.arange(start, min(start + rows, len(scores))))
        probabilities = part.probabilities
        place = part.known(cells) if isinstance(part, Draws) else cells.of(probabilities)
        gaps = probabilities.astype(np.float64)
        gaps[np.arange(len(part)), part.known_labels] -= 1
        sums, lost = two_sum(sums, sums_by(place.ravel(), gaps.ravel(), size))
        rest += lost
    return float(np.abs(sums + rest).sum() / (len(scores) * k))


@dataclass(frozen=True)
class _Cells:
    """Number of the bin of every probability, those of one class after those of another."""

    bins: Bins

    def __call__(self, scores: Scores) -> Ints:
        return self.of(scores.probabilities)

    def of(self, probabilities: Floats) -> Ints:
        """Cells of an array of shape (n, k)."""
        columns = np.arange(probabilities.shape[1]) * self.bins.count
        result: Ints = places(probabilities, self.bins) + columns
        return result
