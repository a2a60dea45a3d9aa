r"""Exact integer noise for released statistics.

With floating-point noise, some outputs can occur under one data set and not under its neighbor,
which reveals the record. Here the statistic is an integer, and OpenDP draws the noise exactly
from a discrete distribution, with the randomness of OpenSSL's private generator, which is
reseeded in every forked process. There is no seed and no state.

OpenDP adds in unlimited integers and then saturates at 64 bits. Saturation is a function of the
noisy value, so it costs no privacy, but it would change the distribution. Totals are therefore
at most :math:`2^{62}` and noise at most :math:`2^{46}`, so that saturation has a probability
below :math:`e^{-65000}`; larger ones are rejected.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Ints
from veracal.accounting import MICRO, round_up_float
from veracal.mechanisms.grid import MAX_TOTAL

MAX_NOISE = 2**46  # such noise exceeds the 2^53 units of a float with probability e^-128


def laplace_noise(sensitivity: int, micro_epsilon: int) -> float:
    r"""Scale of discrete Laplace noise: :math:`\Delta \cdot 10^6 / \mu\varepsilon`, rounded up.

    Parameters
    ----------
    sensitivity : int
        In the L1 norm, in units of the grid, of all rows of one unit together.
    micro_epsilon : int
        Cost per unit, in millionths of epsilon. The noise is derived from the cost, because a
        cost derived from the noise would have to be rounded up.

    Guarantees
    ----------
    A release with this noise costs at most ``micro_epsilon``. Rounded up to whole millionths,
    its cost is exactly ``micro_epsilon``.

    Examples
    --------
    >>> laplace_noise(1, 250_000)
    4.0
    """
    _checks.whole(sensitivity=sensitivity, micro_epsilon=micro_epsilon)
    scale = Fraction(int(sensitivity) * MICRO, int(micro_epsilon))
    return _check_noise(round_up_float(scale))


def gaussian_noise(sensitivity: float, noise_multiplier: float) -> float:
    """Parameter of the discrete Gaussian distribution: the product, rounded up."""
    _checks.positive(sensitivity=sensitivity, noise_multiplier=noise_multiplier)
    return _check_noise(round_up_float(Fraction(sensitivity) * Fraction(noise_multiplier)))


def add_discrete_laplace(units: ArrayLike, noise: float) -> Ints:
    r"""Add independent integers, :math:`P(k) \propto e^{-|k|/s}`, to every entry.

    Parameters
    ----------
    units : array of ints of shape (d,)
    noise : float
        The scale s, taken as the exact rational it stores.

    Guarantees
    ----------
    For integers of L1 sensitivity :math:`\Delta`, the result is
    :math:`\Delta/s`-differentially private, exactly (Ghosh, Roughgarden and Sundararajan
    2012; sampled as in Canonne, Kamath and Steinke 2020).
    """
    return _release(make_laplace(_check_noise(noise)), units)


def add_discrete_gaussian(units: ArrayLike, noise: float) -> Ints:
    r"""Add independent integers, :math:`P(k) \propto e^{-k^2/2s^2}`, to every entry.

    Guarantees
    ----------
    For integers of L2 sensitivity :math:`\Delta`, the result is
    :math:`\Delta^2/2s^2`-zCDP (Canonne, Kamath and Steinke 2020, Theorem 14).
    """
    return _release(make_gaussian(_check_noise(noise)), units)


def discrete_laplace_std(noise: float) -> float:
    r"""Standard deviation, :math:`1 / (\sqrt2 \sinh(1/2s))`, in units.

    Examples
    --------
    >>> round(discrete_laplace_std(10.0), 3)  # a little below 10 times the root of 2
    14.136
    """
    _checks.positive(noise=noise)
    half = 1 / (2 * noise)
    return 1 / (math.sqrt(2) * math.sinh(half)) if half < 700 else 0.0


def discrete_laplace_bound(noise: float, level: float) -> int:
    r"""Bound on the absolute noise, in units, that holds with probability at least ``level``.

    :math:`P(|k| > r) = 2 t^{r+1} / (1 + t)` with :math:`t = e^{-1/s}`.

    Examples
    --------
    >>> discrete_laplace_bound(10.0, 0.95)
    30
    """
    _checks.positive(noise=noise)
    if not 0 < level < 1:
        raise ValueError(f"Expected level between 0 and 1, got level={level!r}.")
    tail = math.log1p(math.exp(-1 / noise)) + math.log1p(-level) - math.log(2)
    return max(0, math.ceil(-noise * tail) - 1)


def discrete_gaussian_bound(noise: float, level: float) -> int:
    r"""The same bound for discrete Gaussian noise.

    It follows from :math:`P(|k| \ge r) \le 2 e^{-r^2 / 2 s^2}`. The tails are not heavier than
    those of the continuous distribution (Canonne, Kamath and Steinke 2020, Corollary 17).
    """
    _checks.positive(noise=noise)
    if not 0 < level < 1:
        raise ValueError(f"Expected level between 0 and 1, got level={level!r}.")
    return math.ceil(noise * math.sqrt(2 * math.log(2 / (1 - level))))


def discrete_gaussian_std(noise: float) -> float:
    """Standard deviation, in units: by summation, or the parameter itself if it is large.

    For parameters of at least 8 both are equal in float64.
    """
    _checks.positive(noise=noise)
    if noise >= 8:
        return float(noise)
    k = np.arange(-128, 129)
    weights = np.exp(-((k / noise) ** 2) / 2)
    return float(np.sqrt((weights * k**2).sum() / weights.sum()))


def make_laplace(scale: float) -> Any:
    """OpenDP's mechanism that adds discrete Laplace noise to a list of integers."""
    from opendp import domains, measurements, metrics, mod

    mod.enable_features("contrib")  # proved, but not yet by OpenDP's full process
    integers = domains.vector_domain(domains.atom_domain(T="i64"))
    return measurements.make_laplace(integers, metrics.l1_distance(T="i64"), scale=scale)


def make_gaussian(scale: float) -> Any:
    """OpenDP's mechanism that adds discrete Gaussian noise to a list of integers."""
    from opendp import domains, measurements, metrics, mod

    mod.enable_features("contrib")  # proved, but not yet by OpenDP's full process
    integers = domains.vector_domain(domains.atom_domain(T="i64"))
    return measurements.make_gaussian(integers, metrics.l2_distance(T="f64"), scale=scale)


def _release(measurement: object, units: ArrayLike) -> Ints:
    """Check that statistic plus noise fits into 64 bits, and release it."""
    exact = np.asarray(units)
    if exact.ndim != 1 or exact.dtype.kind != "i":
        raise ValueError(
            f"Expected integers of shape (d,), got {exact.dtype} of shape {exact.shape}."
        )
    exact = exact.astype(np.int64)
    if ((exact > MAX_TOTAL) | (exact < -MAX_TOTAL)).any():
        raise ValueError(
            f"Expected integers of at most {MAX_TOTAL} in absolute value, so that noise fits "
            "into 64 bits."
        )
    assert callable(measurement)
    return np.array(measurement(exact.tolist()), dtype=np.int64)


def _check_noise(noise: float) -> float:
    """Raise unless the noise is positive and fits into 64 bits."""
    _checks.positive(noise=noise)
    if noise > MAX_NOISE:
        raise ValueError(
            f"Expected noise of at most {MAX_NOISE} units of the grid, got noise={noise!r}, "
            "which exceeds 64 bits. Use fewer bits, narrower bounds or a larger epsilon."
        )
    return float(noise)
