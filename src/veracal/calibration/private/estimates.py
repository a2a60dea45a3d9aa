r"""Estimates with confidence intervals from noisy sums.

Every interval is a union bound: the noise of each sum and the sampling error may each exceed
their bound with a share of one minus the confidence level. Intervals are therefore slightly
conservative for any noise. Nothing is divided by a noisy number of records that may be zero or
negative: if that number is not above the standard deviation of its noise, the value is None,
and the interval is the whole range of the figure.

If sources drop out, the remaining ones are a sample. :func:`between_source_variance` estimates
how much a sum varies with the selection of sources.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from veracal import _checks
from veracal.accounting import DiscreteLaplace, Event
from veracal.data import Estimate
from veracal.queries import PooledRelease, Release, noise_events


@dataclass(frozen=True)
class NoisyValue:
    """A released number and its noise."""

    value: float
    std: float = 0.0  # standard deviation of the noise; 0 for an exact number
    noises: tuple[float, ...] = ()  # scales of all discrete Laplace noises, in grid steps
    step: float = 1.0  # grid step

    def interval(self, alpha: float) -> tuple[float, float]:
        r"""Interval of the exact number with probability :math:`1 - \alpha`."""
        half_width = noise_half_width(self.noises, alpha / 2) * self.step
        return self.value - half_width, self.value + half_width

    def minus(self, other: "NoisyValue") -> "NoisyValue":
        """Difference of two noisy values on one grid; all noise is symmetric."""
        std = math.hypot(self.std, other.std)
        return NoisyValue(self.value - other.value, std, self.noises + other.noises, self.step)


@dataclass(frozen=True)
class NoisyAbsolute(NoisyValue):
    """A sum of absolute noisy values, with error at most the sum of the absolute noises."""

    def interval(self, alpha: float) -> tuple[float, float]:
        r"""Interval of the sum of the absolute exact numbers.

        :math:`|K|` is stochastically at most :math:`E + 1` with E exponential of the same
        scale, so the sum of m of them is at most a Gamma variable of shape m plus m steps.
        """
        m = len(self.noises)
        if not m:
            return self.value, self.value
        half_width = (float(stats.gamma.isf(alpha, m)) * max(self.noises) + m) * self.step
        return self.value - half_width, self.value + half_width


def noisy_values(release: Release) -> list[NoisyValue]:
    """The entries of a release with their noise."""
    scales, std, step = noise_scales(release.event), release.noise_std, release.grid.step
    return [NoisyValue(float(value), std, scales, step) for value in release.values]


def noise_scales(event: Event | None) -> tuple[float, ...]:
    """Scales of all discrete Laplace noises in an event, in grid units."""
    scales = []
    for noise in noise_events(event):
        if not isinstance(noise, DiscreteLaplace):
            raise ValueError(f"Expected discrete Laplace noise, got {type(noise).__name__}.")
        scales.append(noise.noise)
    return tuple(scales)


def noise_half_width(noises: Sequence[float], beta: float) -> float:
    r"""Bound, in units, that a sum of discrete Laplace noises exceeds with probability beta.

    One noise of scale s: :math:`P(K > r) = t^{r+1} / (1 + t)` with :math:`t = e^{-1/s}`, solved
    for r. Several: Chernoff's bound, the least over :math:`\lambda` of
    :math:`(\log(1/\beta) + \sum_i \log M_i(\lambda)) / \lambda` with
    :math:`M(\lambda) = (1 - t)^2 / ((1 - t e^\lambda)(1 - t e^{-\lambda}))`.

    Examples
    --------
    >>> noise_half_width([10.0], 0.05)  # about 10 ln(1 / 0.1)
    23
    >>> noise_half_width([], 0.05)
    0
    """
    if not noises:
        return 0
    if len(noises) == 1:
        (scale,) = noises
        tail = math.log(beta) + math.log1p(math.exp(-1 / scale))
        return max(0, math.ceil(-scale * tail) - 1)
    inverses = 1 / np.array(noises)

    def bound(share: float) -> float:
        """Chernoff bound at a share of the largest possible lambda."""
        rate = share * inverses.min()
        logs = 2 * np.log(-np.expm1(-inverses))
        logs -= np.log(-np.expm1(rate - inverses)) + np.log(-np.expm1(-rate - inverses))
        return float((logs.sum() - math.log(beta)) / rate)

    result = optimize.minimize_scalar(bound, bounds=(1e-6, 1 - 1e-9), method="bounded")
    return math.ceil(bound(float(result.x)))


@dataclass(frozen=True)
class CohortSpread:
    """Components of the variance of a sum over the sources that answered."""

    noise: float  # variance of the noise
    sampling: float  # variance due to the sampling of records, bounded by the caller
    between: float  # additional variance due to the selection of sources

    @property
    def std(self) -> float:
        """Total standard deviation."""
        return math.sqrt(self.noise + self.sampling + self.between)


def between_source_variance(
    answers: Sequence[Release],
    weights: Sequence[Sequence[float]],
    *,
    sampling: float = 0.0,
    n_sources: int | None = None,
) -> CohortSpread:
    r"""Variance of a weighted sum of answers, including the selection of sources.

    Each of the m sources that answered contributes :math:`x_i = \sum_j w_j a_{ij}`, with
    noise of variance :math:`\sigma_i^2`. If they are a random sample, the variance of
    :math:`\sum_i x_i` without the noise has the unbiased estimate

    .. math:: m \Bigl( \tfrac{1}{m-1} \sum_i (x_i - \bar x)^2
              - \tfrac1m \sum_i \sigma_i^2 \Bigr) .

    It includes the sampling of records, so it is at least ``sampling``. If the figure is
    about the ``n_sources`` sources themselves, and the m are a sample
    without replacement,
    the part beyond sampling is multiplied by :math:`1 - m / M` (Cochran 1977, Sampling
    Techniques, §2.6), which is 0 if all answered.

    For a ratio :math:`\theta = S / n` of two sums pass the weights of the residual,
    :math:`S - \hat\theta n`, and divide the standard deviation by the sum n.

    Parameters
    ----------
    answers : sequence of Release
        Answers of one cohort, such as ``QuerySession.answers``. For a single source the
        variance between sources is unknown.
    weights : sequence of sequences of float
        For each answer, the weights of its entries.
    sampling : float
        Bound on the sampling variance of the sum: one quarter of the number of records for
        a count of correct predictions.
    n_sources : int, optional
        Number of sources that the figure is about. None: the population of such sources.

    Notes
    -----
    With fewer than two sources ``between`` is 0, and an interval is about these sources
    alone. The function only postprocesses released answers, at no cost.
    """
    if not (math.isfinite(sampling) and sampling >= 0):
        raise ValueError(f"Expected a finite sampling >= 0, got sampling={sampling!r}.")
    columns = [single_answers(answer) for answer in answers]
    if not columns or len({len(column) for column in columns}) != 1:
        raise ValueError(
            "Expected answers of the same sources, one or more, got answers of "
            f"{[len(column) for column in columns]} sources. Pass QuerySession.answers."
        )
    m = len(columns[0])
    x, variances = np.zeros(m), np.zeros(m)  # of each source, those of nested pools included
    for column, weight in zip(columns, weights, strict=True):
        w = np.asarray(weight, dtype=np.float64)
        x += np.array([one.values for one in column]) @ w
        variances += np.array([one.noise_std**2 for one in column]) * (w @ w)
    noise = float(variances.sum())
    if m < 2:
        return CohortSpread(noise, float(sampling), 0.0)
    beyond = max(m * float(x.var(ddof=1)) - noise - sampling, 0.0)
    if n_sources is not None:
        _checks.whole(n_sources=n_sources)
        beyond *= max(1 - m / n_sources, 0.0)
    return CohortSpread(noise, float(sampling), beyond)


def single_answers(answer: Release) -> list[Release]:
    """The answers of single sources in a pooled answer."""
    if not isinstance(answer, PooledRelease):
        return [answer]
    return [one for part in answer.parts if part is not None for one in single_answers(part)]


def count_estimate(correct: NoisyValue, wrong: NoisyValue, level: float) -> Estimate:
    """Number of records, with an interval for the noise alone."""
    low, high = _sum_interval(correct, wrong, 1 - level)
    value = max(correct.value + wrong.value, 0.0)
    return Estimate(value, max(low, 0.0), max(high, value), level, round(value))


def share_estimate(correct: NoisyValue, wrong: NoisyValue, level: float) -> Estimate:
    """Share of correct predictions, with a Clopper-Pearson interval for noisy counts."""
    alpha = (1 - level) / 3
    (c_low, c_high), (w_low, w_high) = correct.interval(alpha), wrong.interval(alpha)
    low = _lower_proportion(max(c_low, 0.0), max(w_high, 0.0), alpha)
    high = 1 - _lower_proportion(max(w_low, 0.0), max(c_high, 0.0), alpha)
    n, std = correct.value + wrong.value, math.hypot(correct.std, wrong.std)
    if n <= std:
        return Estimate(None, 0.0, 1.0, level, 0)
    value = min(max(correct.value / n, 0.0), 1.0)
    return Estimate(value, min(low, value), max(high, value), level, max(round(n), 0))


def mean_estimate(
    total: NoisyValue,
    correct: NoisyValue,
    wrong: NoisyValue,
    level: float,
    *,
    most: float,
    spread: Callable[[float, float, float], float] | None = None,
) -> Estimate:
    r"""Noisy total divided by the noisy number of records.

    Parameters
    ----------
    correct, wrong : NoisyValue
        Counts whose sum is the number of records.
    most : float
        The figure lies in [0, most].
    spread : callable, optional
        ``spread(low, high, most)`` bounds the variance of a record's contribution if the mean
        is between low and high. By default the bound for any numbers in [0, most].
    """
    n, std = correct.value + wrong.value, math.hypot(correct.std, wrong.std)
    if n <= std:
        return Estimate(None, 0.0, most, level, 0)
    alpha = (1 - level) / 3
    t_low, t_high = total.interval(alpha)
    n_low, n_high = _sum_interval(correct, wrong, alpha)
    value = _clip(total.value / n, most)
    count = max(round(n), 0)
    if n_low <= 0:
        return Estimate(value, 0.0, most, level, count)
    ends = _clip(max(t_low, 0) / n_high, most), _clip(max(t_high, 0) / n_low, most)
    variance = (spread or max_variance)(*ends, most)
    half_width = float(stats.norm.isf(alpha / 2)) * math.sqrt(variance / n_low)
    low, high = _clip(ends[0] - half_width, most), _clip(ends[1] + half_width, most)
    return Estimate(value, min(low, value), max(high, value), level, count)


def max_variance(low: float, high: float, most: float) -> float:
    """Largest variance of numbers in [0, most] with a mean between low and high.

    It is m (most - m) for a mean of m (Bhatia and Davis 2000), largest nearest the middle.
    """
    mean = min(max(most / 2, low), high)
    return mean * (most - mean)


def _sum_interval(one: NoisyValue, other: NoisyValue, alpha: float) -> tuple[float, float]:
    """Interval of the sum of two exact numbers."""
    pairs = one.interval(alpha / 2), other.interval(alpha / 2)
    return pairs[0][0] + pairs[1][0], pairs[0][1] + pairs[1][1]


def _lower_proportion(hits: float, misses: float, alpha: float) -> float:
    """Lower Clopper-Pearson bound for counts that need not be integers."""
    return float(special.betaincinv(hits, misses + 1, alpha / 2)) if hits > 0 else 0.0


def _clip(value: float, most: float) -> float:
    """The value clipped to [0, most]."""
    return min(max(value, 0.0), most)
