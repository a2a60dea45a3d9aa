"""Reliability curves and histograms of confidence, as numbers.

All figures of calibration at once, with intervals.

Calibration of more records than fit into memory, in one pass.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import betaincinv, ndtri

from veracal import _checks
from veracal._types import Floats, Frozen, Ints
from veracal.calibration import metrics
from veracal.calibration.bins import Bins
from veracal.calibration.metrics.base import (
    BinTotals,
    Draws,
    need_records,
    need_two_classes,
    second_class,
    top_label_blocks,
    two_sum,
)
from veracal.calibration.metrics.binned import bin_totals, largest_gap
from veracal.calibration.metrics.proper import (
    brier_blocks,
    nll_blocks,
    top_label_brier_blocks,
    total,
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
        Number of bins, those of :func:`~veracal.calibration.ece`.
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
    z2, share = ndtri((1 + level) / 2) ** 2, right / n
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


_UNIT = (0.0, 1.0)
_REAL = (-np.inf, np.inf)
_POSITIVE = (0.0, np.inf)

# In the order they are reported: proper scores and decisions, then calibration.
_ANY: Mapping[str, tuple[float, float]] = {
    "accuracy": _UNIT,
    "f1": _UNIT,
    "auc": _UNIT,
    "nll": _POSITIVE,
    "brier": (0.0, 2.0),
    "top_label_brier": _UNIT,
    "ece": _UNIT,
    "mce": _UNIT,
    "over_confidence": _UNIT,
    "under_confidence": _UNIT,
    "confidence_gap": (-1.0, 1.0),
    "ace": _UNIT,
    "sce": _UNIT,
    "classwise_ace": _UNIT,
    "debiased_l2": _UNIT,
    "smooth_ece": _UNIT,
    "ks": _UNIT,
    "top_label_calibration_intercept": _REAL,
    "top_label_calibration_slope": _REAL,
}
_BINARY: Mapping[str, tuple[float, float]] = {
    "binary_f1": _UNIT,
    "binary_ece": _UNIT,
    "binary_smooth_ece": _UNIT,
    "calibration_in_the_large": (-1.0, 1.0),
    "calibration_intercept": _REAL,
    "calibration_slope": _REAL,
}
_BINNED = {
    "ece", "mce", "over_confidence", "under_confidence", "ace", "sce", "classwise_ace",
    "debiased_l2", "binary_ece",
}  # fmt: skip
_RANGES = {**_ANY, **_BINARY}
_ERRORS = {*_BINNED, "smooth_ece", "binary_smooth_ece", "ks"}  # 0 if perfectly calibrated


@dataclass(frozen=True)
class CalibrationResult:
    """Figures of one set of scores.

    Attributes
    ----------
    name : str
        Of the scores.
    n, n_units, n_classes : int
        Records, independent units behind them, and classes.
    bins : int
        Of all figures that have bins.
    level : float
        Of the intervals.
    replicates : int
        Of the bootstrap.
    figures : mapping of str to Estimate
        By the names of :mod:`veracal.calibration.metrics`.
    floors : mapping of str to Estimate
        Of each calibration error, the mean that a perfectly calibrated classifier with the
        same probabilities would show on as many records, and the range of ``level`` around
        it. No repair passes it.
    curve : ReliabilityCurve
        Of the top label.
    private : bool
        Always False: figures are plain functions of the records, hence *internal* where
        those are private.
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
        """Plain numbers and text; an infinite number becomes the text 'inf'."""
        own = dict(vars(self))
        for part in ("figures", "floors"):
            own[part] = {name: _plain(estimate) for name, estimate in own[part].items()}
        return {**own, "curve": self.curve.to_json()}


def figure_names(n_classes: int) -> tuple[str, ...]:
    """Names of all figures of scores for so many classes."""
    return (*_ANY, *(_BINARY if n_classes == 2 else ()))


def measure(
    scores: Scores,
    *,
    figures: Sequence[str] | None = None,
    bins: int = 15,
    level: float = 0.95,
    replicates: int = 200,
    rng: np.random.Generator,
) -> CalibrationResult:
    r"""Measure calibration and what goes with it, with bootstrap intervals.

    Whole units are drawn with replacement where scores have unit ids, else records; the
    figures of those draws give the intervals. Labels drawn from the probabilities themselves
    say what a perfectly calibrated classifier would show (Bröcker & Smith 2007): the
    ``floors``. The interval of a calibration error that is within its floor's range begins
    at 0.

    Parameters
    ----------
    scores : Scores
        Labeled, of at least one record.
    figures : sequence of str, optional
        Some of :func:`figures_for`; by default all of them.
    bins : int
    level : float in (0, 1)
    replicates : int
        With 0 there are no intervals, only figures.
    rng : Generator

    Returns
    -------
    CalibrationResult

    Notes
    -----
    An infinite negative log-likelihood has the interval of its replicates' percentiles. One
    unit alone has no interval: nothing says how another would differ.
    """
    need_records(scores)
    _checks.whole(least=0, replicates=replicates)
    check_level(level)
    chosen = _chosen(scores, figures, bins)
    units = UnitRows.of(scores.units, len(scores))
    points = _values(chosen, scores)
    turns = int(replicates) if len(units.sizes) > 1 else 0
    known, draws = Draws.of(scores), np.empty((turns, len(chosen)))
    for turn in range(turns):
        draws[turn] = _values(chosen, known.take(units.resample(rng)))
    floors = _floors(chosen, known, level, turns, rng)
    estimates = {
        name: estimate(points[j], draws[:, j], level, len(scores), "basic", _RANGES[name])
        for j, name in enumerate(chosen)
    }
    for name, floor in floors.items():
        if points[list(chosen).index(name)] <= (floor.high or 0.0):
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


def _chosen(scores: Scores, figures: Sequence[str] | None, bins: int) -> dict[str, Metric]:
    """Functions of the figures asked for."""
    known = figure_names(scores.n_classes)
    names = known if figures is None else tuple(figures)
    for name in names:
        if name not in known:
            raise DataError(
                f"{scores.name}: figures",
                f"some of {', '.join(known)}",
                repr(name),
                "Check the spelling; some figures are for two classes only.",
            )
    each: dict[str, Callable[..., float]] = {name: getattr(metrics, name) for name in names}
    return {
        name: partial(metric, bins=bins) if name in _BINNED else metric
        for name, metric in each.items()
    }


def _values(chosen: Mapping[str, Metric], scores: Scores) -> list[float]:
    """All figures of some records."""
    return [metric(scores) for metric in chosen.values()]


def _floors(
    chosen: Mapping[str, Metric],
    scores: Draws,
    level: float,
    turns: int,
    rng: np.random.Generator,
) -> dict[str, Estimate]:
    """Calibration errors of the same probabilities with labels drawn from them."""
    errors = {name: metric for name, metric in chosen.items() if name in _ERRORS}
    if not errors or not turns:
        return {}
    steps = np.cumsum(scores.probabilities, axis=1, dtype=np.float64)
    draws = np.empty((turns, len(errors)))
    for turn in range(turns):
        drawn = rng.random(len(scores)) * steps[:, -1]
        labels = np.minimum((steps <= drawn[:, None]).sum(axis=1), scores.n_classes - 1)
        draws[turn] = _values(errors, scores.relabeled(labels))
    means = draws.mean(axis=0).tolist()
    return {
        name: estimate(means[j], draws[:, j], level, len(scores))
        for j, name in enumerate(errors)
    }


def _plain(estimate: Estimate) -> dict[str, Any]:
    """Fields of an estimate, as JSON has no infinity."""
    return {
        name: str(value) if value in (np.inf, -np.inf) else value
        for name, value in vars(estimate).items()
    }


@dataclass(frozen=True, eq=False)
class StreamTotals:
    """What has been counted so far; totals of blocks add up with ``+``.

    Make them with :func:`stream_totals` or :meth:`of`. Their size depends on the number of
    bins alone, and figures equal those of the whole to 1e-12, in whatever blocks it came.

    Attributes
    ----------
    kind : 'logits' or 'probabilities'
    classes : tuple of str or int
    totals : BinTotals
        By bin of the top label.
    sums, rests : arrays of shape (3,)
        Sums of the Brier score, the top-label Brier score and the negative log-likelihood,
        and what rounding took from them.
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
        sums = np.array([total(blocks) for blocks in each])
        return cls(scores.kind, scores.classes, totals, sums, np.zeros(len(sums)))

    def __add__(self, other: "StreamTotals") -> "StreamTotals":
        if (self.kind, self.classes) != (other.kind, other.classes):
            raise DataError(
                "stream",
                f"{self.kind} for {len(self.classes)} classes in every block",
                f"{other.kind} for {len(other.classes)}, or other classes",
                "Measure them apart.",
            )
        with np.errstate(invalid="ignore", over="ignore"):  # infinite sums lose nothing
            sums, lost = two_sum(self.sums, other.sums)
        rests = self.rests + other.rests + np.where(np.isfinite(lost), lost, 0)
        return StreamTotals(self.kind, self.classes, self.totals + other.totals, sums, rests)

    @property
    def n(self) -> int:
        """Records so far."""
        return self.totals.n

    @property
    def accuracy(self) -> float:
        """Share of right predictions."""
        return int(self._held.happened.sum()) / self.n

    @property
    def ece(self) -> float:
        """Top-label expected calibration error."""
        return float(np.abs(self._held.gaps).sum() / self.n)

    @property
    def mce(self) -> float:
        """Top-label maximum calibration error."""
        return largest_gap(self._held)

    @property
    def over_confidence(self) -> float:
        """Part of the ECE from bins whose confidence exceeds their accuracy."""
        return float(np.maximum(self._held.gaps, 0).sum() / self.n)

    @property
    def under_confidence(self) -> float:
        """Part of the ECE from bins whose accuracy exceeds their confidence."""
        return float(np.maximum(-self._held.gaps, 0).sum() / self.n)

    @property
    def confidence_gap(self) -> float:
        """Mean confidence minus accuracy."""
        return float(self._held.gaps.sum() / self.n)

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
        return curve_of(self._held, "top label", level=level, interval=interval)

    @property
    def _held(self) -> BinTotals:
        """Totals of at least one record."""
        if not self.n:
            raise DataError(
                "stream", "at least one record", "none", "A mean over nobody has no value."
            )
        return self.totals

    def _mean(self, i: int) -> float:
        """Mean of a sum over the records."""
        return max(0.0, float(self.sums[i] + self.rests[i]) / self._held.n)  # not -0


def stream_totals(blocks: Iterable[Scores], bins: int = 15) -> StreamTotals:
    """Add up labeled scores that come in blocks, each looked at once and forgotten.

    Parameters
    ----------
    blocks : iterable of Scores
        Such as :func:`~veracal.data.scan_scores` gives, of one kind and one set of classes.
    bins : int
        Number of bins, those of :func:`~veracal.calibration.ece`.

    Examples
    --------
    >>> halves = [Scores.from_probabilities([[0.2, 0.8]], [label]) for label in (0, 1)]
    >>> round(stream_totals(halves).ece, 3)
    0.3
    """
    found = None
    for block in blocks:
        part = StreamTotals.of(block, bins)
        found = part if found is None else found + part
    if found is None:
        raise DataError("stream", "at least one block", "none", "Name a file with records.")
    return found
