"""Whether noise has the law it is taken for, on this machine, by drawing some."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from scipy import stats

from veracal import _random
from veracal._types import Array, Floats, Ints
from veracal.privacy.answers.noise import add_discrete_gaussian, add_discrete_laplace

SCALE = 4.0
DRAWS = 20_000
REACH = 60  # beyond it, either law has less than a millionth


def discrete_law_pvalue(draws: Ints, weights: Floats) -> float:
    r"""How likely draws this far from a law on the integers are, by Pearson's test.

    Expected counts below 10 are pooled, so that :math:`\sum (O - E)^2 / E` has about the law
    of chi squared.

    Parameters
    ----------
    draws : array of ints
    weights : array of shape (2 r + 1,)
        Of -r to r, in any unit. Draws beyond r count as r.
    """
    reach = len(weights) // 2
    counts = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=len(weights))
    expected = weights / weights.sum() * len(draws)
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    awaited = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(observed, awaited).pvalue)


def laplace_pvalue(draws: Ints, scale: float) -> float:
    """The same for the discrete Laplace law."""
    k = np.arange(-REACH, REACH + 1)
    return discrete_law_pvalue(draws, np.exp(-np.abs(k) / scale))


def gaussian_pvalue(draws: Ints, scale: float) -> float:
    """The same for the discrete Gaussian law."""
    k = np.arange(-REACH, REACH + 1)
    return discrete_law_pvalue(draws, np.exp(-((k / scale) ** 2) / 2))


def normal_pvalue(draws: Array, scale: float) -> float:
    """The same for normal noise, by Kolmogorov and Smirnov's test."""
    return float(stats.kstest(draws / scale, stats.norm.cdf).pvalue)


def _integers(add: Callable[[Array, float], Ints]) -> Ints:
    """Noise alone: what is added to zeros."""
    return add(np.zeros(DRAWS, dtype=np.int64), SCALE)


def noise_pvalues() -> Mapping[str, float]:
    """Draw from every law that releases rest on, and test it.

    Each p-value is below q with probability about q, if the noise is right.
    """
    normal = _random.secret_generator().normal(0.0, SCALE, DRAWS)
    return MappingProxyType(
        {
            "discrete Laplace": laplace_pvalue(_integers(add_discrete_laplace), SCALE),
            "discrete Gaussian": gaussian_pvalue(_integers(add_discrete_gaussian), SCALE),
            "normal": normal_pvalue(normal, SCALE),
        }
    )
