"""Reliability curves and histograms of confidence, as numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import betaincinv
from scipy.stats import norm

from veracal import _checks
from veracal._types import Floats, Ints
from veracal.calibration.bins import Bins
from veracal.calibration.metrics.binned import bin_totals
from veracal.calibration.metrics.demands import need_two_classes
from veracal.calibration.metrics.outcomes import second_class
from veracal.calibration.metrics.totals import BinTotals
from veracal.data.groups import Estimate
from veracal.data.scores import Scores

Interval = Literal["wilson", "clopper-pearson"]


@dataclass(frozen=True)
class ReliabilityBin:
    """One bin of a reliability curve.

    Attributes
    ----------
    low, high : float
        The bin is (low, high]; the first also holds 0.
    n : int
        Records in it.
    confidence, accuracy : float or None
        Mean confidence and share of right predictions; None where nobody is in the bin.
    accuracy_low, accuracy_high : float or None
        Interval around the accuracy; without records, None.
    """

    low: float
    high: float
    n: int
    confidence: float | None
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None


@dataclass(frozen=True)
class ReliabilityCurve:
    """Accuracy by confidence, with the histogram of confidence below it.

    Attributes
    ----------
    of : 'top label' or 'second class'
        Whose probability it is; for the second class, read frequency for accuracy.
    bins : tuple of ReliabilityBin
        Bins of equal width, empty ones included.
    n : int
        Records in all.
    confidence, accuracy : float
        Their means over all records.
    level : float
        Of each bin's interval by itself.
    interval : 'wilson' or 'clopper-pearson'

    Notes
    -----
    Numbers are plain functions of the records, hence *internal* where those are private.
    """

    of: Literal["top label", "second class"]
    bins: tuple[ReliabilityBin, ...]
    n: int
    confidence: float
    accuracy: float
    level: float
    interval: Interval

    @property
    def counts(self) -> tuple[int, ...]:
        """The histogram of confidence: records in each bin."""
        return tuple(each.n for each in self.bins)

    @property
    def histogram(self) -> tuple[Estimate, ...]:
        """Share of the records in each bin, with an interval of the same kind and level."""
        counts = np.array(self.counts)
        low, high = _INTERVALS[self.interval](counts, np.full_like(counts, self.n), self.level)
        ends = zip(counts.tolist(), low.tolist(), high.tolist(), strict=True)
        return tuple(Estimate(c / self.n, a, b, self.level, self.n) for c, a, b in ends)

    @property
    def ece(self) -> float:
        """Expected calibration error over these bins."""
        gaps = (
            each.n * abs(each.confidence - each.accuracy)
            for each in self.bins
            if each.confidence is not None and each.accuracy is not None
        )
        return sum(gaps) / self.n

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and text."""
        own = {k: v for k, v in vars(self).items() if k != "bins"}
        return {**own, "bins": [dict(vars(each)) for each in self.bins]}


def curve(
    scores: Scores, bins: int = 15, *, level: float = 0.95, interval: Interval = "wilson"
) -> ReliabilityCurve:
    r"""Top-label reliability curve over bins of equal width.

    Parameters
    ----------
    scores : Scores
        Labeled, of at least one record.
    bins : int
        Number of bins, those of :func:`~veracal.calibration.metrics.ece`.
    level : float in (0, 1)
    interval : 'wilson' or 'clopper-pearson'
        Around each bin's accuracy: Wilson's (1927) covers the level on average,
        Clopper and Pearson's (1934) never less, and is wider. Both hold for independent
        records.

    Examples
    --------
    >>> scores = Scores.from_probabilities([[0.2, 0.8], [0.2, 0.8]], [1, 0])
    >>> curve(scores, 5).bins[3].accuracy
    0.5
    """
    return curve_of(bin_totals(scores, bins), "top label", level=level, interval=interval)


def binary_curve(
    scores: Scores, bins: int = 15, *, level: float = 0.95, interval: Interval = "wilson"
) -> ReliabilityCurve:
    """Reliability curve of the probability of the second of two classes; see :func:`curve`."""
    outcomes = second_class(need_two_classes(scores, "curve"))
    totals = BinTotals.of([outcomes], Bins(bins))
    return curve_of(totals, "second class", level=level, interval=interval)


def curve_of(
    totals: BinTotals,
    of: Literal["top label", "second class"],
    *,
    level: float = 0.95,
    interval: Interval = "wilson",
) -> ReliabilityCurve:
    """Reliability curve of totals by bin, which may have been added up over a stream."""
    _checks.one_of(_INTERVALS, interval=interval)
    check_level(level)
    n, right, edges = totals.counts, totals.happened, totals.bins.edges.tolist()
    held = np.maximum(n, 1)
    sums = totals.probability + totals.rest
    low, high = _INTERVALS[interval](right, held, level)
    numbers = np.stack([np.clip(sums / held, 0, 1), right / held, low, high], axis=1).tolist()
    return ReliabilityCurve(
        of,
        tuple(
            ReliabilityBin(edges[b], edges[b + 1], count, *(row if count else [None] * 4))
            for b, (count, row) in enumerate(zip(n.tolist(), numbers, strict=True))
        ),
        totals.n,
        float(sums.sum() / totals.n),
        int(right.sum()) / totals.n,
        level,
        interval,
    )


def check_level(level: float) -> None:
    """Refuse what is not the level of an interval."""
    _checks.fraction(level=level)
    if not 0 < level < 1:
        raise ValueError(f"Expected a level between 0 and 1, got level={level!r}.")


def wilson(right: Ints, n: Ints, level: float) -> tuple[Floats, Floats]:
    r"""Wilson's interval for a share.

    .. math::
        \frac{\hat p + z^2/2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4n^2}}{1 + z^2 / n}
    """
    z2, share = norm.ppf((1 + level) / 2) ** 2, right / n
    middle = share + z2 / (2 * n)
    half = np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n**2.0)))
    low, high = (middle - half) / (1 + z2 / n), (middle + half) / (1 + z2 / n)
    return np.where(right == 0, 0, np.maximum(low, 0)), np.where(right == n, 1, high)


def clopper_pearson(right: Ints, n: Ints, level: float) -> tuple[Floats, Floats]:
    """Clopper and Pearson's interval for a share: quantiles of beta distributions."""
    tail, wrong = (1 - level) / 2, n - right
    low = betaincinv(np.maximum(right, 1), wrong + 1, tail)
    high = betaincinv(right + 1, np.maximum(wrong, 1), 1 - tail)
    return np.where(right == 0, 0, low), np.where(wrong == 0, 1, high)


_INTERVALS: Mapping[str, Any] = {"wilson": wilson, "clopper-pearson": clopper_pearson}
