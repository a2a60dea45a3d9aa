"""Figures of calibration, made of noisy answers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.private.estimates import (
    count_estimate,
    mean_estimate,
    share_estimate,
)
from veracal.calibration.private.noises import Noisy, NoisyAbsolute
from veracal.calibration.private.planning import MeasurementPlan
from veracal.data import Estimate

_GAUSSIAN = 2 / math.pi  # squared mean absolute value of a standard Gaussian


@dataclass(frozen=True)
class PrivateCurve:
    """A reliability curve from noisy sums by bin.

    Attributes
    ----------
    bins : Bins
    counts : tuple of Estimate
        Records in each bin.
    accuracies : tuple of Estimate
        Share of right predictions in each bin; None where too few are there to tell.
    confidences : tuple of float
        Mean confidence in each bin, kept within the bin; its center where it is not known.
    """

    bins: Bins
    counts: tuple[Estimate, ...]
    accuracies: tuple[Estimate, ...]
    confidences: tuple[float, ...]


@dataclass(frozen=True)
class PrivateFigures:
    """What was measured of all records, or of one group; None where it was not asked for.

    Attributes
    ----------
    count : Estimate
        Number of records.
    accuracy, ece, brier : Estimate or None
        Intervals hold the noise and the chance of which records there were. The calibration
        error is that of these many records in these bins: it is above zero even for a perfectly
        calibrated classifier, by ``ece_floor`` at most on average.
    ece_floor : float or None
        What a perfectly calibrated classifier shows with this many records, at most.
    ece_noise_bias : float or None
        By how much noise on every bin raises the calibration error, at most on average; 0
        where the one number was asked for.
    curve : PrivateCurve or None
    """

    count: Estimate
    accuracy: Estimate | None = None
    ece: Estimate | None = None
    brier: Estimate | None = None
    ece_floor: float | None = None
    ece_noise_bias: float | None = None
    curve: PrivateCurve | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        written = asdict(self)
        if self.curve is not None:
            written["curve"]["bins"] = self.curve.bins.count
        return written


def figures_of(
    plan: MeasurementPlan, answers: Mapping[str, Sequence[Noisy]], level: float
) -> PrivateFigures:
    """Figures from the answers about some records.

    Parameters
    ----------
    plan : MeasurementPlan
    answers : mapping of str to list of Noisy
        Under the names of the plan.
    level : float
    """
    correct, wrong = answers["counts"]
    count = count_estimate(correct, wrong, level)
    ece, bias = _ece(plan, answers, level)
    brier = answers.get("brier")
    return PrivateFigures(
        count=count,
        accuracy=share_estimate(correct, wrong, level) if "accuracy" in plan.figures else None,
        ece=ece,
        brier=mean_estimate(brier[0], correct, wrong, level, most=2.0) if brier else None,
        ece_floor=None if ece is None else ece_floor(plan.bins.count, count.n),
        ece_noise_bias=bias,
        curve=_curve(plan.bins, answers, level) if "curve" in plan.figures else None,
    )


def _ece(
    plan: MeasurementPlan, answers: Mapping[str, Sequence[Noisy]], level: float
) -> tuple[Estimate | None, float | None]:
    """Calibration error, and what noise adds to it."""
    if "ece" not in plan.figures:
        return None, None
    correct, wrong = answers["counts"]
    total, bias = absolute_total(answers["gaps"]) if plan.by_bins else (answers["ece"][0], 0.0)
    made = mean_estimate(total, correct, wrong, level, most=1.0, spread=_ece_spread)
    return made, bias / max(correct.value + wrong.value, 1.0)


def _ece_spread(low: float, high: float, most: float) -> float:
    r"""Variance of n times the calibration error, divided by n, at most about.

    Leaving a record out moves :math:`\sum_b |S_b|` by at most its own :math:`|g|`, so the
    variance is at most :math:`n E g^2` (Efron and Stein 1981). In a bin :math:`E g^2` is at
    most a quarter, for being right or not, and the square of the bin's gap, which averages to
    less than the calibration error.
    """
    return min(0.25 + high, most)


def absolute_total(gaps: Sequence[Noisy]) -> tuple[Noisy, float]:
    r"""Sum of absolute noisy sums, and by how much noise raises it, at most on average.

    A noise of scale s raises :math:`|S|` by :math:`s e^{-|S|/s}` on average, which is most
    where S is zero: the mean absolute noise. That of one Laplace noise is its standard
    deviation divided by :math:`\sqrt 2`; that of a sum of several is at most
    :math:`\sqrt{2/\pi}` of it, as of a Gaussian.
    """
    bias = sum(
        gap.std * (math.sqrt(0.5 if len(gap.noises) == 1 else _GAUSSIAN)) for gap in gaps
    )
    noises = tuple(noise for gap in gaps for noise in gap.noises)
    std = math.sqrt(sum(gap.std**2 for gap in gaps))
    total = sum(abs(gap.value) for gap in gaps)
    return NoisyAbsolute(total, std, noises, gaps[0].step), bias


def ece_floor(bins: int, n: int) -> float:
    r"""Calibration error that a perfectly calibrated classifier shows, at most on average.

    In a bin with :math:`n_b` records :math:`E|S_b| \le \sqrt{n_b / 4}`; over all bins that is
    most with equal numbers: :math:`\tfrac12 \sqrt{B / n}`.

    Examples
    --------
    >>> ece_floor(15, 1_500)
    0.05
    """
    return min(0.5 * math.sqrt(bins / n), 1.0) if n > 0 else 1.0


def _curve(bins: Bins, answers: Mapping[str, Sequence[Noisy]], level: float) -> PrivateCurve:
    """A reliability curve."""
    sides, gaps = answers["bins"], answers["gaps"]
    pairs = list(zip(sides[0::2], sides[1::2], strict=True))
    accuracies = tuple(share_estimate(right, wrong, level) for right, wrong in pairs)
    return PrivateCurve(
        bins,
        tuple(count_estimate(right, wrong, level) for right, wrong in pairs),
        accuracies,
        tuple(
            _confidence(bins.edges[b : b + 2], accuracy, pairs[b], gaps[b])
            for b, accuracy in enumerate(accuracies)
        ),
    )


def _confidence(
    edges: Floats, accuracy: Estimate, pair: tuple[Noisy, Noisy], gap: Noisy
) -> float:
    """Mean confidence of a bin, which lies within it."""
    if accuracy.value is None:
        return float(edges.mean())
    right, wrong = pair
    mean = (right.value - gap.value) / (right.value + wrong.value)
    return float(np.clip(mean, *edges))
