"""All figures of calibration at once, with intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Frozen
from veracal.calibration import metrics
from veracal.calibration.curves import ReliabilityCurve, check_level, curve
from veracal.calibration.metrics.demands import need_records
from veracal.calibration.metrics.draws import Draws
from veracal.data.groups import Estimate, Metric, estimate
from veracal.data.scores import Scores
from veracal.data.units import UnitRows
from veracal.errors import DataError

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


def figures_for(n_classes: int) -> tuple[str, ...]:
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
        draws[turn] = _values(chosen, known.take(units.resampled(rng)))
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
    known = figures_for(scores.n_classes)
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
