r"""Exact integer noise for released statistics.

Floating-point noise leaves holes: some outputs can occur under one data set and not under its
neighbor, which gives the record away. Here the statistic is an integer and the noise is drawn
exactly from a discrete law, by OpenDP, with the randomness of OpenSSL's private generator,
which is reseeded in every forked process. There is no seed and no state to keep.

OpenDP adds in unlimited integers and then saturates at 64 bits. That is a function of the
noisy value, so it costs no privacy, but it would bend the law. Totals are therefore at most
:math:`2^{62}` and noise at most :math:`2^{46}`, with which saturation has a probability below
:math:`e^{-65000}`; more is refused.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Ints
from veracal.accounting import MICRO, round_up_float
from veracal.mechanisms.grid import MOST_TOTAL

MOST_NOISE = 2**46  # such noise also leaves the 2^53 units of a float only with e^-128


def laplace_noise_scale(sensitivity: int, micro_epsilon: int) -> Fraction:
    r"""Scale of the discrete Laplace law that costs a given epsilon.

    .. math:: s = \Delta \cdot 10^6 / \mu\varepsilon

    Parameters
    ----------
    sensitivity : int
        In the L1 norm, in units of the grid, of all rows of one unit together.
    micro_epsilon : int
        What the unit pays, in millionths of epsilon. It is chosen first and the noise
        derived from it: a cost derived from the noise would have to be rounded up.

    Examples
    --------
    >>> laplace_noise_scale(1, 300_000)
    Fraction(10, 3)
    """
    _checks.whole(sensitivity=sensitivity, micro_epsilon=micro_epsilon)
    return Fraction(int(sensitivity) * MICRO, int(micro_epsilon))


def laplace_noise(sensitivity: int, micro_epsilon: int) -> float:
    """The scale as a float, the next one up where it is none.

    Guarantees
    ----------
    A release with this noise costs no more than ``micro_epsilon``, and rounded up to whole
    millionths exactly that.
    """
    return _usable(round_up_float(laplace_noise_scale(sensitivity, micro_epsilon)))


def gaussian_noise(sensitivity: float, noise_multiplier: float) -> float:
    """Parameter of the discrete Gaussian law: the product, rounded up."""
    _checks.positive(sensitivity=sensitivity, noise_multiplier=noise_multiplier)
    return _usable(round_up_float(Fraction(sensitivity) * Fraction(noise_multiplier)))


def add_discrete_laplace(units: ArrayLike, noise: float) -> Ints:
    r"""Add independent integers, :math:`P(k) \propto e^{-|k|/s}`, to every entry.

    Parameters
    ----------
    units : array of ints of shape (d,)
    noise : float
        The scale s, taken as the exact rational it stores.

    Returns
    -------
    array of int64 of shape (d,)

    Guarantees
    ----------
    For integers that move by at most :math:`\Delta` in the L1 norm, the result is
    :math:`\Delta/s`-differentially private, exactly (Ghosh, Roughgarden and Sundararajan
    2012; sampled as in Canonne, Kamath and Steinke 2020).
    """
    return _noised(make_laplace(_usable(noise)), units)


def add_discrete_gaussian(units: ArrayLike, noise: float) -> Ints:
    r"""Add independent integers, :math:`P(k) \propto e^{-k^2/2s^2}`, to every entry.

    Guarantees
    ----------
    For integers that move by at most :math:`\Delta` in the L2 norm, the result is
    :math:`\Delta^2/2s^2`-zCDP (Canonne, Kamath and Steinke 2020, Theorem 14).
    """
    return _noised(make_gaussian(_usable(noise)), units)


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


def discrete_laplace_reach(noise: float, level: float) -> int:
    r"""Units that the noise exceeds, up or down, with probability ``1 - level`` at most.

    :math:`P(|k| > r) = 2 t^{r+1} / (1 + t)` with :math:`t = e^{-1/s}`.

    Examples
    --------
    >>> discrete_laplace_reach(10.0, 0.95)
    30
    """
    _checks.positive(noise=noise)
    if not 0 < level < 1:
        raise ValueError(f"Expected level between 0 and 1, got level={level!r}.")
    tail = math.log1p(math.exp(-1 / noise)) + math.log1p(-level) - math.log(2)
    return max(0, math.ceil(-noise * tail) - 1)


def discrete_gaussian_reach(noise: float, level: float) -> int:
    r"""The same for the discrete Gaussian law, by :math:`P(|k| \ge r) \le 2 e^{-r^2 / 2 s^2}`.

    It is no wider than the continuous law (Canonne, Kamath and Steinke 2020, Corollary 17).
    """
    _checks.positive(noise=noise)
    if not 0 < level < 1:
        raise ValueError(f"Expected level between 0 and 1, got level={level!r}.")
    return math.ceil(noise * math.sqrt(2 * math.log(2 / (1 - level))))


def discrete_gaussian_std(noise: float) -> float:
    """Standard deviation, in units: by summation, or the parameter itself where it is large.

    From a parameter of 8 on the two agree to every digit of a float.
    """
    _checks.positive(noise=noise)
    if noise >= 8:
        return float(noise)
    k = np.arange(-128, 129)
    weights = np.exp(-((k / noise) ** 2) / 2)
    return float(np.sqrt((weights * k**2).sum() / weights.sum()))


def make_laplace(scale: float) -> Any:
    """OpenDP's mechanism that adds discrete Laplace noise to a list of integers."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance
    from opendp.mod import enable_features

    enable_features("contrib")  # proved, but not yet by OpenDP's full process
    return make_laplace(vector_domain(atom_domain(T="i64")), l1_distance(T="i64"), scale=scale)


def make_gaussian(scale: float) -> Any:
    """OpenDP's mechanism that adds discrete Gaussian noise to a list of integers."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")  # proved, but not yet by OpenDP's full process
    return make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=scale)


def _noised(measurement: object, units: ArrayLike) -> Ints:
    """Check the statistic, which must leave room for noise, and release it."""
    exact = np.asarray(units)
    if exact.ndim != 1 or exact.dtype.kind != "i":
        raise ValueError(
            f"Expected integers of shape (d,), got {exact.dtype} of shape {exact.shape}."
        )
    exact = exact.astype(np.int64)
    if ((exact > MOST_TOTAL) | (exact < -MOST_TOTAL)).any():
        raise ValueError(f"Expected integers within {MOST_TOTAL}, which noise must not leave.")
    assert callable(measurement)
    return np.array(measurement(exact.tolist()), dtype=np.int64)


def _usable(noise: float) -> float:
    """Refuse noise that is none, or that 64 bits would cut off."""
    _checks.positive(noise=noise)
    if noise > MOST_NOISE:
        raise ValueError(
            f"Expected noise of at most {MOST_NOISE} units of the grid, got noise={noise!r}: "
            "64 bits would cut it off. Use fewer bits, narrower bounds or a larger epsilon."
        )
    return float(noise)
