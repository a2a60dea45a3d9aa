"""How far the noise of an answer reaches, whoever added it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from veracal.privacy import DiscreteLaplace, Event, Parallel, Release


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
