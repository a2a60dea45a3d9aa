"""Figures from noisy sums, with intervals for the noise and for which records there were.

Every interval is a union bound: the noise of each sum and the chance of the sample may each be
exceeded with a part of what the level leaves. That makes intervals a little too wide and never
too narrow, whatever the noise. Nothing is divided by a number of records that noise may have
made zero or negative: where the noisy number is not above the standard deviation of its noise,
the value is None, and the interval is all that the figure can be.
"""

import math
from collections.abc import Callable

from scipy import special, stats

from veracal.calibration.private.noises import Noisy
from veracal.data import Estimate

Spread = Callable[[float, float, float], float]


def count_estimate(correct: Noisy, wrong: Noisy, level: float) -> Estimate:
    """Number of records; its interval is for the noise alone."""
    low, high = _sum_ends(correct, wrong, 1 - level)
    value = max(correct.value + wrong.value, 0.0)
    n = max(round(value), 0)
    return Estimate(value, max(low, 0.0), max(high, value), level, n)


def share_estimate(correct: Noisy, wrong: Noisy, level: float) -> Estimate:
    """Share of right predictions: noise first, then Clopper and Pearson (1934) at the worst."""
    alpha = (1 - level) / 3
    (c_low, c_high), (w_low, w_high) = correct.ends(alpha), wrong.ends(alpha)
    low = _beta_low(max(c_low, 0.0), max(w_high, 0.0), alpha)
    high = 1 - _beta_low(max(w_low, 0.0), max(c_high, 0.0), alpha)
    n, std = correct.value + wrong.value, math.hypot(correct.std, wrong.std)
    if n <= std:
        return Estimate(None, 0.0, 1.0, level, 0)
    value = min(max(correct.value / n, 0.0), 1.0)
    return Estimate(value, min(low, value), max(high, value), level, max(round(n), 0))


def mean_estimate(
    total: Noisy,
    correct: Noisy,
    wrong: Noisy,
    level: float,
    *,
    most: float,
    spread: Spread | None = None,
) -> Estimate:
    r"""Noisy total divided by the noisy number of records.

    Parameters
    ----------
    total : Noisy
    correct, wrong : Noisy
        They add up to the number of records.
    level : float
    most : float
        The figure lies in [0, most].
    spread : callable, optional
        ``spread(low, high, most)`` is the most that the variance of what a record adds can be
        when the mean is between low and high. By default that of any numbers in [0, most].
    """
    n, std = correct.value + wrong.value, math.hypot(correct.std, wrong.std)
    if n <= std:
        return Estimate(None, 0.0, most, level, 0)
    alpha = (1 - level) / 3
    t_low, t_high = total.ends(alpha)
    n_low, n_high = _sum_ends(correct, wrong, alpha)
    value = _inside(total.value / n, most)
    count = max(round(n), 0)
    if n_low <= 0:
        return Estimate(value, 0.0, most, level, count)
    ends = _inside(max(t_low, 0) / n_high, most), _inside(max(t_high, 0) / n_low, most)
    variance = (spread or widest)(*ends, most)
    reach = float(stats.norm.isf(alpha / 2)) * math.sqrt(variance / n_low)
    low, high = _inside(ends[0] - reach, most), _inside(ends[1] + reach, most)
    return Estimate(value, min(low, value), max(high, value), level, count)


def widest(low: float, high: float, most: float) -> float:
    """Variance, at most, of numbers in [0, most] whose mean is between low and high.

    It is m (most - m) for a mean of m (Bhatia and Davis 2000), largest nearest the middle.
    """
    mean = min(max(most / 2, low), high)
    return mean * (most - mean)


def _sum_ends(one: Noisy, other: Noisy, alpha: float) -> tuple[float, float]:
    """Where the sum of two exact numbers lies."""
    pairs = one.ends(alpha / 2), other.ends(alpha / 2)
    return pairs[0][0] + pairs[1][0], pairs[0][1] + pairs[1][1]


def _beta_low(hits: float, misses: float, alpha: float) -> float:
    """Least probability of a hit that fits the counts, which need not be whole."""
    return float(special.betaincinv(hits, misses + 1, alpha / 2)) if hits > 0 else 0.0


def _inside(value: float, most: float) -> float:
    """The number of [0, most] that is nearest."""
    return min(max(value, 0.0), most)
