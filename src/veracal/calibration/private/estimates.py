r"""How far the noise of an answer reaches, whoever added it.

How much an answer would move had other sources been there.

Sources that fall silent leave a sample of those that were asked. What a sum over the sample
says about all of them is off by more than noise if sources differ.

Figures from noisy sums, with intervals for the noise and for which records there were.

Every interval is a union bound: the noise of each sum and the chance of the sample may each be
exceeded with a part of what the level leaves. That makes intervals a little too wide and never
too narrow, whatever the noise. Nothing is divided by a number of records that noise may have
made zero or negative: where the noisy number is not above the standard deviation of its noise,
the value is None, and the interval is all that the figure can be.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from veracal import _checks
from veracal._types import Floats
from veracal.accounting import DiscreteLaplace, Event, Parallel
from veracal.data import Estimate
from veracal.queries import PooledRelease, Release


@dataclass(frozen=True)
class Noisy:
    """A released number and the noise on it.

    Attributes
    ----------
    value : float
    std : float
        Standard deviation of the noise; 0 for an exact number.
    noises : tuple of float
        Scale of every discrete Laplace noise that was added, in steps; none to an exact number.
    step : float
        Of the grid.
    """

    value: float
    std: float = 0.0
    noises: tuple[float, ...] = ()
    step: float = 1.0

    def ends(self, alpha: float) -> tuple[float, float]:
        r"""Where the exact number lies, with probability :math:`1 - \alpha`."""
        reach = noise_reach(self.noises, alpha / 2) * self.step
        return self.value - reach, self.value + reach


@dataclass(frozen=True)
class NoisyAbsolute(Noisy):
    """A sum of absolute noisy numbers: off by at most the sum of their absolute noises."""

    def ends(self, alpha: float) -> tuple[float, float]:
        r"""Where the sum of the absolute exact numbers lies.

        :math:`|K| \le E + 1` in law, with E exponential of the same scale, so the sum of m of
        them is at most a Gamma variable of shape m, and m steps.
        """
        m = len(self.noises)
        if not m:
            return self.value, self.value
        reach = (float(stats.gamma.isf(alpha, m)) * max(self.noises) + m) * self.step
        return self.value - reach, self.value + reach


def noisy_numbers(release: Release) -> list[Noisy]:
    """The entries of an answer, each with its noise."""
    noises, step = scales(release.event), release.grid.step
    return [Noisy(float(value), release.noise_std, noises, step) for value in release.values]


def scales(event: Event | None) -> tuple[float, ...]:
    """Scale of every discrete Laplace noise in an answer, in units."""
    if isinstance(event, Parallel):
        return tuple(scale for part in event.events for scale in scales(part))
    if event is None:
        return ()
    if not isinstance(event, DiscreteLaplace):
        raise ValueError(f"Expected discrete Laplace noise, got {type(event).__name__}.")
    return (event.noise,)


def noise_reach(noises: Sequence[float], beta: float) -> float:
    r"""Units that the sum of discrete Laplace noises exceeds with probability beta at most.

    One noise of scale s: :math:`P(K > r) = t^{r+1} / (1 + t)` with :math:`t = e^{-1/s}`, solved
    for r. Several: Chernoff's bound, the least over :math:`\lambda` of
    :math:`(\log(1/\beta) + \sum_i \log M_i(\lambda)) / \lambda` with
    :math:`M(\lambda) = (1 - t)^2 / ((1 - t e^\lambda)(1 - t e^{-\lambda}))`.

    Examples
    --------
    >>> noise_reach([10.0], 0.05)  # about 10 ln(1 / 0.1)
    23
    >>> noise_reach([], 0.05)
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
        """Chernoff's bound at a share of the largest possible lambda."""
        rate = share * inverses.min()
        logs = 2 * np.log(-np.expm1(-inverses))
        logs -= np.log(-np.expm1(rate - inverses)) + np.log(-np.expm1(-rate - inverses))
        return float((logs.sum() - math.log(beta)) / rate)

    found = optimize.minimize_scalar(bound, bounds=(1e-6, 1 - 1e-9), method="bounded")
    return math.ceil(bound(float(found.x)))


@dataclass(frozen=True)
class CohortSpread:
    """Variance of a sum over the sources that answered, by where it comes from.

    Attributes
    ----------
    noise : float
        Of the noise that they added.
    sampling : float
        Of which records they have, as the caller bounds it.
    between : float
        Beyond both: of which sources answered.
    """

    noise: float
    sampling: float
    between: float

    @property
    def std(self) -> float:
        """Standard deviation of all of it."""
        return math.sqrt(self.noise + self.sampling + self.between)


def between(
    answers: Sequence[Release],
    weights: Sequence[Sequence[float]],
    *,
    sampling: float = 0.0,
    asked: int | None = None,
) -> CohortSpread:
    r"""Variance of a weighted sum of answers, that of which sources answered included.

    Each of the m sources that answered contributes :math:`x_i = \sum_j w_j a_{ij}`, with
    noise of variance :math:`\sigma_i^2`. If they are a random sample, the variance of
    :math:`\sum_i x_i` that is no noise is estimated without bias by

    .. math:: m \Bigl( \tfrac{1}{m-1} \sum_i (x_i - \bar x)^2
              - \tfrac1m \sum_i \sigma_i^2 \Bigr) .

    It holds the chance of which records a source has, so it is taken to be no less than
    ``sampling``. Where the figure is about the ``asked`` sources themselves, of which m are a
    sample without replacement, the part beyond sampling shrinks by :math:`1 - m / M` (Cochran
    1977, Sampling Techniques, §2.6), to nothing if all answered.

    For a ratio :math:`\theta = S / n` of two sums give the weights of its residual,
    :math:`S - \hat\theta n`, and divide the standard deviation by the sum n.

    Parameters
    ----------
    answers : sequence of Release
        Of one cohort, as ``QuerySession.answers``. An answer that is not a pool's is one of a
        single source, about which nothing beyond sampling can be told.
    weights : sequence of sequences of float
        For each answer a weight of every entry.
    sampling : float
        Variance of the sum by which records there are, at most: one quarter of the number of
        records for a count of right predictions.
    asked : int, optional
        Number of sources that the figure is about. Without it, it is about sources like these.

    Returns
    -------
    Spread

    Notes
    -----
    With fewer than two sources nothing can be told about others: ``between`` is 0, and an
    interval is about these sources alone.

    It is made of released answers, and costs nothing.
    """
    if not (math.isfinite(sampling) and sampling >= 0):
        raise ValueError(f"Expected a finite sampling >= 0, got sampling={sampling!r}.")
    x, variances = contributions_of(answers, weights)
    m, noise = len(x), float(variances.sum())
    if m < 2:
        return CohortSpread(noise, float(sampling), 0.0)
    beyond = max(m * float(x.var(ddof=1)) - noise - sampling, 0.0)
    if asked is not None:
        _checks.whole(asked=asked)
        beyond *= max(1 - m / asked, 0.0)
    return CohortSpread(noise, float(sampling), beyond)


def contributions_of(
    answers: Sequence[Release], weights: Sequence[Sequence[float]]
) -> tuple[Floats, Floats]:
    """What each source contributes to a weighted sum, and the variance of its noise.

    Returns
    -------
    pair of arrays of shape (m,)
        Of the sources that answered, pools inside of a pool taken apart.
    """
    columns = [single_answers(answer) for answer in answers]
    if not columns or len({len(column) for column in columns}) != 1:
        raise ValueError(
            "Expected answers of the same sources, one or more, got answers of "
            f"{[len(column) for column in columns]} sources. Take those of "
            "QuerySession.answers."
        )
    x, variances = np.zeros(len(columns[0])), np.zeros(len(columns[0]))
    for column, weight in zip(columns, weights, strict=True):
        w = np.asarray(weight, dtype=np.float64)
        x += np.array([one.values for one in column]) @ w
        variances += np.array([one.noise_std**2 for one in column]) * (w @ w)
    return x, variances


def single_answers(answer: Release) -> list[Release]:
    """The answers of single sources that an answer is the sum of."""
    if not isinstance(answer, PooledRelease):
        return [answer]
    return [one for part in answer.parts if part is not None for one in single_answers(part)]


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
