"""How often each confidence was right."""

import numpy as np

from veracal.calibration.bins import Bins
from veracal.calibration.fitters.base import MapFitter, said_brier
from veracal.calibration.maps import Binned
from veracal.data.scores import Scores


class HistogramBinning(MapFitter):
    r"""Histogram binning of the top label, **not private**.

    The accuracy of each bin of confidence takes the confidence's place (Zadrozny & Elkan
    2001; see :class:`~veracal.calibration.maps.Binned` for the other classes). A bin in which
    no record fell gets its middle, which is about what it says already.

    Parameters
    ----------
    bins : Bins or int, default=15
        Bins of equal width, closed on the right.

    Guarantees
    ----------
    On the records of the fit, every bin's mean confidence is its accuracy, and the Brier
    score of the top label never rises: where bins are so wide that their accuracy says less
    than the confidences did, the identity is kept.

    Examples
    --------
    >>> scores = Scores.from_probabilities([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0])
    >>> HistogramBinning(10).fit_transform(scores).values[0]
    array([0.25, 0.75])
    """

    def __init__(self, bins: Bins | int = 15) -> None:
        self.bins = bins

    def _fitted(self, scores: Scores) -> Binned:
        bins = self.bins if isinstance(self.bins, Bins) else Bins(self.bins)
        place = bins.of(scores.confidence)
        counts = np.bincount(place, minlength=bins.count)
        right = np.bincount(place, weights=scores.correct, minlength=bins.count)
        empty = counts == 0
        return Binned(bins, np.where(empty, bins.centers, right / np.maximum(counts, 1)))

    def _loss(self, mapped: Scores, given: Scores) -> float:
        return said_brier(mapped, given)
