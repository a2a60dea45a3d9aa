"""Measurement of calibration: metrics with bootstrap intervals, and reliability curves.

:class:`StreamTotals` computes the same figures for a stream of blocks in constant memory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, Literal

import numpy as np
from scipy.special import betaincinv, ndtri

from veracal import _checks
from veracal._types import Floats, Frozen, Ints
from veracal.calibration.bins import Bins
from veracal.calibration.metrics import errors, performance
from veracal.calibration.metrics.base import (
    BinTotals,
    Draws,
    need_records,
    need_two_classes,
    second_class,
    top_label_blocks,
    two_sum,
)
from veracal.calibration.metrics.performance import (
    brier_blocks,
    nll_blocks,
    top_label_brier_blocks,
)
from veracal.data import Estimate, Metric, Scores, UnitRows, estimate
from veracal.errors import DataError

Interval = Literal["wilson", "clopper-pearson"]


@dataclass(frozen=True)
class ReliabilityBin:
    """One bin of a reliability curve.

    Attributes
    ----------
    low, high : float
        The bin is (low, high]; the first also holds 0.
    n : int
    confidence, accuracy : float or None
        Mean confidence and share of correct predictions; None in an empty bin.
    accuracy_low, accuracy_high : float or None
        Confidence interval of the accuracy; None in an empty bin.
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
        The event whose probability is shown; for the second class, ``accuracy`` is its
        frequency.
    bins : tuple of ReliabilityBin
        Of equal width, empty ones included.
    n : int
    confidence, accuracy : float
        Their means over all records.
    level, interval
        Confidence level and kind of the interval of each single bin.

    Notes
    -----
    All numbers are exact functions of the records, and therefore *internal* if those are
    private.
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
        """The histogram of confidence: number of records in each bin."""
        return tuple(each.n for each in self.bins)

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
        """All attributes as JSON values."""
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
        Those of :func:`~veracal.calibration.ece`.
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
    return curve_of(
        errors.bin_totals(scores, bins), "top label", level=level, interval=interval
    )


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
    """Reliability curve of bin totals, which may come from a stream."""
    _checks.one_of(_INTERVALS, interval=interval)
    _checks.open_fraction(level=level)
    n, correct, edges = totals.counts, totals.happened, totals.bins.edges.tolist()
    n_or_one = np.maximum(n, 1)
    sums = totals.probability + totals.rest
    low, high = _INTERVALS[interval](correct, n_or_one, level)
    numbers = np.stack(
        [np.clip(sums / n_or_one, 0, 1), correct / n_or_one, low, high], axis=1
    ).tolist()
    return ReliabilityCurve(
        of,
        tuple(
            ReliabilityBin(edges[b], edges[b + 1], count, *(row if count else [None] * 4))
            for b, (count, row) in enumerate(zip(n.tolist(), numbers, strict=True))
        ),
        totals.n,
        float(sums.sum() / totals.n),
        int(correct.sum()) / totals.n,
        level,
        interval,
    )


def wilson(correct: Ints, n: Ints, level: float) -> tuple[Floats, Floats]:
    r"""Wilson's confidence interval of a proportion.

    .. math::
        \frac{\hat p + z^2/2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4n^2}}{1 + z^2 / n}
    """
    z2, share = ndtri((1 + level) / 2) ** 2, correct / n
    middle = share + z2 / (2 * n)
    half = np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n**2.0)))
    low, high = (middle - half) / (1 + z2 / n), (middle + half) / (1 + z2 / n)
    return np.where(correct == 0, 0, np.maximum(low, 0)), np.where(correct == n, 1, high)


def clopper_pearson(correct: Ints, n: Ints, level: float) -> tuple[Floats, Floats]:
    """Clopper and Pearson's confidence interval of a proportion, from beta quantiles."""
    tail, wrong = (1 - level) / 2, n - correct
    low = betaincinv(np.maximum(correct, 1), wrong + 1, tail)
    high = betaincinv(correct + 1, np.maximum(wrong, 1), 1 - tail)
    return np.where(correct == 0, 0, low), np.where(wrong == 0, 1, high)


_INTERVALS: Mapping[str, Any] = {"wilson": wilson, "clopper-pearson": clopper_pearson}


_UNIT = (0.0, 1.0)
_REAL = (-np.inf, np.inf)
_POSITIVE = (0.0, np.inf)

# The range of each metric, in the order of reports: proper scores and decisions, then calibration.
_ANY: dict[Callable[..., float], tuple[float, float]] = {
    performance.accuracy: _UNIT,
    performance.f1: _UNIT,
    performance.auc: _UNIT,
    performance.nll: _POSITIVE,
    performance.brier: (0.0, 2.0),
    performance.top_label_brier: _UNIT,
    errors.ece: _UNIT,
    errors.mce: _UNIT,
    errors.over_confidence: _UNIT,
    errors.under_confidence: _UNIT,
    errors.confidence_gap: (-1.0, 1.0),
    errors.ace: _UNIT,
    errors.sce: _UNIT,
    errors.classwise_ace: _UNIT,
    errors.debiased_l2: _UNIT,
    errors.smooth_ece: _UNIT,
    errors.ks: _UNIT,
    performance.top_label_calibration_intercept: _REAL,
    performance.top_label_calibration_slope: _REAL,
}
_BINARY: dict[Callable[..., float], tuple[float, float]] = {
    performance.binary_f1: _UNIT,
    errors.binary_ece: _UNIT,
    errors.binary_smooth_ece: _UNIT,
    performance.calibration_in_the_large: (-1.0, 1.0),
    performance.calibration_intercept: _REAL,
    performance.calibration_slope: _REAL,
}
_METRICS = {metric.__name__: metric for metric in (*_ANY, *_BINARY)}
_RANGES = {metric.__name__: limits for metric, limits in (_ANY | _BINARY).items()}
_BINNED = {name for name, metric in _METRICS.items() if "bins" in signature(metric).parameters}
_ERRORS = {*_BINNED, "smooth_ece", "binary_smooth_ece", "ks"}  # calibration makes them 0


@dataclass(frozen=True)
class CalibrationResult:
    """Calibration and accuracy metrics of one set of scores.

    Attributes
    ----------
    name : str
        Of the scores.
    n, n_units, n_classes : int
        Number of records, of independent units, and of classes.
    bins, replicates : int
        Number of bins of all binned metrics, and of bootstrap replicates.
    level : float
        Confidence level of the intervals.
    figures : mapping of str to Estimate
        Estimates by the names of the metrics (:func:`figure_names`).
    floors : mapping of str to Estimate
        For each calibration error, the mean that a perfectly calibrated classifier with the
        same probabilities would have on as many records, and its interval at ``level``. No
        recalibration is expected to go below it.
    curve : ReliabilityCurve
        Of the top label.
    private : bool
        Always False: the figures are exact functions of the records, and therefore *internal*
        if those are private.
    """

    name: str
    n: int
    n_units: int
    n_classes: int
    bins: int
    level: float
    replicates: int
    figures: Mapping[str, Estimate]
    floors: Mapping[str, Estimate]
    curve: ReliabilityCurve
    private: bool = False

    def __getitem__(self, figure: str) -> Estimate:
        return self.figures[figure]

    def to_json(self) -> dict[str, Any]:
        """All attributes as JSON values; an infinite number becomes the text 'inf'."""

        def plain(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
            return {
                figure: {
                    name: str(value) if value in (np.inf, -np.inf) else value
                    for name, value in vars(estimate).items()
                }
                for figure, estimate in estimates.items()
            }

        parts = {"figures": plain(self.figures), "floors": plain(self.floors)}
        return {**vars(self), **parts, "curve": self.curve.to_json()}


def figure_names(n_classes: int) -> tuple[str, ...]:
    """Names of all metrics of scores for a number of classes."""
    metrics = (*_ANY, *_BINARY) if n_classes == 2 else _ANY
    return tuple(metric.__name__ for metric in metrics)


def measure(
    scores: Scores,
    *,
    figures: Sequence[str] | None = None,
    bins: int = 15,
    level: float = 0.95,
    replicates: int = 200,
    rng: np.random.Generator,
) -> CalibrationResult:
    r"""Measure calibration and accuracy with bootstrap intervals.

    The bootstrap resamples whole units if scores have unit ids, and records otherwise. The
    ``floors`` are the metrics of labels drawn from the probabilities themselves, as for a
    perfectly calibrated classifier (Bröcker & Smith 2007). If a calibration error is within
    the interval of its floor, its own interval begins at 0.

    Parameters
    ----------
    scores : Scores
        Labeled, of at least one record.
    figures : sequence of str, optional
        Some of :func:`figure_names`; by default all of them.
    bins : int
    level : float in (0, 1)
    replicates : int
        Number of bootstrap replicates; 0 computes no intervals.
    rng : Generator

    Notes
    -----
    An infinite negative log-likelihood gets the percentile interval of its replicates. With a
    single unit there is no interval, because the variation between units is unknown.
    """
    need_records(scores)
    _checks.whole(least=0, replicates=replicates)
    _checks.open_fraction(level=level)
    known = figure_names(scores.n_classes)
    names = known if figures is None else tuple(figures)
    for name in names:
        if name not in known:
            raise DataError(
                f"{scores.name}: figures",
                f"a selection of {', '.join(known)}",
                repr(name),
                "Check the spelling; some metrics are for two classes only.",
            )
    each: dict[str, Metric] = {
        name: partial(_METRICS[name], bins=bins) if name in _BINNED else _METRICS[name]
        for name in names
    }
    units = UnitRows.of(scores.units, len(scores))
    points = {name: metric(scores) for name, metric in each.items()}
    n_draws = int(replicates) if len(units.sizes) > 1 else 0
    base, draws = Draws.of(scores), np.empty((n_draws, len(each)))
    for i in range(n_draws):
        drawn = base.take(units.resample(rng))
        draws[i] = [metric(drawn) for metric in each.values()]
    with_floor = {name: metric for name, metric in each.items() if name in _ERRORS}
    floors = _floors(with_floor, base, level, n_draws, rng)
    estimates = {
        name: estimate(point, draws[:, j], level, len(scores), "basic", _RANGES[name])
        for j, (name, point) in enumerate(points.items())
    }
    for name, floor in floors.items():
        if points[name] <= (floor.high or 0.0):
            estimates[name] = replace(estimates[name], low=0.0)
    return CalibrationResult(
        scores.name,
        len(scores),
        len(units.sizes),
        scores.n_classes,
        int(bins),
        level,
        int(replicates),
        Frozen(estimates),
        Frozen(floors),
        curve(scores, bins, level=level),
    )


def _floors(
    metrics: Mapping[str, Metric],
    scores: Draws,
    level: float,
    n_draws: int,
    rng: np.random.Generator,
) -> dict[str, Estimate]:
    """Calibration errors of the same probabilities with labels drawn from them."""
    if not metrics or not n_draws:
        return {}
    steps = np.cumsum(scores.probabilities, axis=1, dtype=np.float64)
    draws = np.empty((n_draws, len(metrics)))
    for i in range(n_draws):
        uniform = rng.random(len(scores)) * steps[:, -1]
        labels = np.minimum((steps <= uniform[:, None]).sum(axis=1), scores.n_classes - 1)
        drawn = scores.relabel(labels)
        draws[i] = [metric(drawn) for metric in metrics.values()]
    means = draws.mean(axis=0).tolist()
    return {
        name: estimate(means[j], draws[:, j], level, len(scores))
        for j, name in enumerate(metrics)
    }


@dataclass(frozen=True, eq=False)
class StreamTotals:
    """Sums over the blocks of a stream; totals add up with ``+``.

    Create them with :func:`stream_totals` or :meth:`of`. Their size depends only on the number
    of bins. The figures equal those of all records together to 1e-12, whatever the blocks.

    Attributes
    ----------
    kind : 'logits' or 'probabilities'
    classes : tuple of str or int
    totals : BinTotals
        Totals by bin of the top label.
    sums, rests : arrays of shape (3,)
        Sums of the Brier score, the top-label Brier score and the negative log-likelihood,
        and their rounding errors.
    """

    kind: str
    classes: tuple[str | int, ...]
    totals: BinTotals
    sums: Floats
    rests: Floats

    @classmethod
    def of(cls, scores: Scores, bins: int = 15) -> "StreamTotals":
        """Totals of one block of labeled scores, which may be empty."""
        totals = BinTotals.of(top_label_blocks(scores), Bins(bins))
        each = brier_blocks(scores), top_label_brier_blocks(scores), nll_blocks(scores)
        sums = np.array([performance.total(blocks) for blocks in each])
        return cls(scores.kind, scores.classes, totals, sums, np.zeros(len(sums)))

    def __add__(self, other: "StreamTotals") -> "StreamTotals":
        if (self.kind, self.classes) != (other.kind, other.classes):
            raise DataError(
                "stream",
                f"{self.kind} for {len(self.classes)} classes in every block",
                f"{other.kind} for {len(other.classes)}, or other classes",
                "Measure them separately.",
            )
        with np.errstate(invalid="ignore", over="ignore"):  # infinite sums lose nothing
            sums, lost = two_sum(self.sums, other.sums)
        rests = self.rests + other.rests + np.where(np.isfinite(lost), lost, 0)
        return StreamTotals(self.kind, self.classes, self.totals + other.totals, sums, rests)

    @property
    def n(self) -> int:
        """Number of records so far."""
        return self.totals.n

    @property
    def accuracy(self) -> float:
        """Share of right predictions."""
        return int(self._nonempty.happened.sum()) / self.n

    @property
    def ece(self) -> float:
        """Top-label expected calibration error."""
        return float(np.abs(self._nonempty.gaps).sum() / self.n)

    @property
    def mce(self) -> float:
        """Top-label maximum calibration error."""
        return errors.largest_gap(self._nonempty)

    @property
    def over_confidence(self) -> float:
        """Part of the ECE from bins whose confidence exceeds their accuracy."""
        return float(np.maximum(self._nonempty.gaps, 0).sum() / self.n)

    @property
    def under_confidence(self) -> float:
        """Part of the ECE from bins whose accuracy exceeds their confidence."""
        return float(np.maximum(-self._nonempty.gaps, 0).sum() / self.n)

    @property
    def confidence_gap(self) -> float:
        """Mean confidence minus accuracy."""
        return float(self._nonempty.gaps.sum() / self.n)

    @property
    def brier(self) -> float:
        """Multiclass Brier score."""
        return self._mean(0)

    @property
    def top_label_brier(self) -> float:
        """Top-label Brier score."""
        return self._mean(1)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood; infinite where a label had probability 0."""
        return self._mean(2)

    def curve(self, *, level: float = 0.95, interval: Interval = "wilson") -> ReliabilityCurve:
        """Top-label reliability curve; see :func:`~veracal.calibration.measurement.curve`."""
        return curve_of(self._nonempty, "top label", level=level, interval=interval)

    @property
    def _nonempty(self) -> BinTotals:
        """The totals; raises an error if there is no record."""
        if not self.n:
            raise DataError(
                "stream", "at least one record", "none", "A mean needs at least one record."
            )
        return self.totals

    def _mean(self, i: int) -> float:
        """Mean of one of the sums over the records."""
        return max(0.0, float(self.sums[i] + self.rests[i]) / self._nonempty.n)  # not -0


def stream_totals(blocks: Iterable[Scores], bins: int = 15) -> StreamTotals:
    """Sum labeled scores of one kind that arrive in blocks, each read once.

    Blocks are such as :func:`~veracal.data.scan_scores` gives.

    Examples
    --------
    >>> halves = [Scores.from_probabilities([[0.2, 0.8]], [label]) for label in (0, 1)]
    >>> round(stream_totals(halves).ece, 3)
    0.3
    """
    totals = None
    for block in blocks:
        block_totals = StreamTotals.of(block, bins)
        totals = block_totals if totals is None else totals + block_totals
    if totals is None:
        raise DataError("stream", "at least one block", "none", "Pass a file with records.")
    return totals
