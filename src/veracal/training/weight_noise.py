r"""Arbitrariness after noise on the weights: noise distributions, intervals and flips.

Both distributions are spherically symmetric. The second is a scale mixture of the first: a
vector of density proportional to :math:`e^{-\lVert b\rVert/s}` has the characteristic function
:math:`(1 + s^2\lVert k\rVert^2)^{-(d+1)/2}`, and so has :math:`s R N` with N standard normal
and R, independent of it, distributed as :math:`\chi_{d+1}`. The sum of two such vectors has the
square of that function, and is :math:`s R N` with R distributed as :math:`\chi_{2(d+1)}`.

The released noise is such a vector rounded to the public grid of the weights. Tails and
quantiles here are those of the unrounded vector; ``rounding`` bounds the distance between the
two, and intervals include it.

*Intervals.* A released weighted sum over the length of its row, :math:`Z = w\cdot x/\lVert
x\rVert`, is the unknown :math:`t = \theta\cdot x/\lVert x\rVert` of the weights without noise,
plus noise in one direction: a symmetric distribution with the tail :math:`S(y) = P(\text{noise}
> y)`. Another run decides for the second class with probability :math:`S(-t)`, so that its
disagreement is :math:`h(t) = 4 S(t) S(-t)`, which falls with :math:`|t|`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, roots_legendre
from scipy.stats import chi, gamma

from veracal import _checks
from veracal._types import Floats
from veracal.data import read_only
from veracal.training.arbitrariness import (
    ESTIMATED,
    NOT_SELECTED,
    OVER_THE_NOISE,
    SAME_RECORDS,
    SHARED_NOISE,
    Arbitrariness,
    PlaneDistances,
    describe_scope,
    failure_probability,
    max_disagreement,
    plane_distances,
    weight_matrix,
)

_NODES = 160  # radii over which the mixture is averaged; accurate to 1e-12
_TINY = 1e-18
_FAR = 1e200  # in units of the noise; the tail probability is 0 there


@dataclass(frozen=True)
class GaussianNoise:
    """Normal noise of a standard deviation on each weight.

    ``rounding`` is half the diagonal of a cell of the grid to which the noise is rounded.

    Examples
    --------
    >>> round(GaussianNoise(2.0, 3).quantile(0.025), 2)
    3.92
    """

    std: float
    dimension: int
    rounding: float = 0.0

    def __post_init__(self) -> None:
        _checks.positive(noise_std=self.std)
        _checks.whole(dimension=self.dimension)

    def tail_probability(self, distances: Floats) -> Floats:
        """Probability that the noise in one direction exceeds a distance."""
        with np.errstate(over="ignore"):
            result: Floats = ndtr(-np.asarray(distances) / self.std)
        return result

    def quantile(self, tail: float) -> float:
        """Upper quantile of the noise in one direction, for a tail probability below 1/2."""
        return -self.std * float(ndtri(tail))

    def length_quantile(self, tail: float) -> float:
        """Upper quantile of the length of the noise."""
        return self.std * float(chi.isf(tail, self.dimension))

    def difference(self) -> "GaussianNoise":
        """Distribution of the difference of two independent vectors."""
        return GaussianNoise(math.sqrt(2) * self.std, self.dimension, 2 * self.rounding)


@dataclass(frozen=True)
class GammaNoise:
    r"""Noise of density proportional to :math:`e^{-\lVert b\rVert/s}`, or a sum of such.

    Attributes
    ----------
    scale : float > 0
        The scale s: the length of one such vector is Gamma of shape d and scale s.
    dimension : int
    vectors : int
        Number of vectors that are added.
    rounding : float >= 0
        As for :class:`GaussianNoise`.

    Examples
    --------
    In one dimension it is the Laplace distribution:

    >>> noise = GammaNoise(1.0, 1)
    >>> tails = noise.tail_probability(np.array([0.5, 3.0]))
    >>> bool(np.allclose(tails, np.exp([-0.5, -3.0]) / 2))
    True
    """

    scale: float
    dimension: int
    vectors: int = 1
    rounding: float = 0.0

    def __post_init__(self) -> None:
        _checks.positive(noise_scale=self.scale)
        _checks.whole(dimension=self.dimension, vectors=self.vectors)

    def tail_probability(self, distances: Floats) -> Floats:
        """Probability that the noise in one direction exceeds a distance."""
        with np.errstate(over="ignore"):
            far = np.asarray(distances, dtype=np.float64) / self.scale
        return _tail_probability(far, self.dimension, self.vectors)

    def quantile(self, tail: float) -> float:
        """Upper quantile of the noise in one direction, for a tail probability below 1/2."""
        return self.scale * _quantile(tail, self.dimension, self.vectors)

    def length_quantile(self, tail: float) -> float:
        """Upper quantile of the length of the noise."""
        return self.scale * _length_quantile(tail, self.dimension, self.vectors)

    def difference(self) -> "GammaNoise":
        """Distribution of the difference of two independent vectors."""
        return GammaNoise(self.scale, self.dimension, 2 * self.vectors, 2 * self.rounding)


# Spherically symmetric noise on a vector of weights, rounded by less than ``rounding``.
WeightNoise = GaussianNoise | GammaNoise


@lru_cache(maxsize=16)
def mixture_radii(dimension: int, vectors: int) -> tuple[Floats, Floats]:
    """Radii R of the mixture, and their weights."""
    freedom = vectors * (dimension + 1)
    first, last = chi.ppf(_TINY, freedom), chi.isf(_TINY, freedom)
    nodes, weights = roots_legendre(_NODES)
    nodes = first + (last - first) * (nodes + 1) / 2
    weights = weights * chi.pdf(nodes, freedom)
    return read_only(nodes), read_only(weights / weights.sum())


def _tail_probability(distances: Floats, dimension: int, vectors: int) -> Floats:
    """Probability that noise of scale 1 exceeds distances in one direction."""
    result = np.zeros_like(distances)
    within = np.clip(distances, -_FAR, _FAR)
    for radius, weight in zip(*mixture_radii(dimension, vectors), strict=True):
        result += weight * ndtr(-within / radius)
    return np.where(within == 0, 0.5, result)  # exactly, despite the rounding of the weights


@lru_cache(maxsize=256)
def _quantile(tail: float, dimension: int, vectors: int) -> float:
    """Upper quantile of noise of scale 1 in one direction."""
    return _solve_tail(
        lambda distance: _tail_probability(np.array([distance]), dimension, vectors)[0],
        tail,
        _length_quantile(tail, dimension, vectors),
    )


@lru_cache(maxsize=256)
def _length_quantile(tail: float, dimension: int, vectors: int) -> float:
    """Upper quantile of the length of noise of scale 1."""
    one = vectors * float(gamma.isf(tail / vectors, dimension))
    if vectors == 1:
        return one
    nodes, weights = mixture_radii(dimension, vectors)
    return _solve_tail(lambda length: weights @ chi.sf(length / nodes, dimension), tail, one)


def _solve_tail(probability: Callable[[float], float], tail: float, most: float) -> float:
    """Solve ``probability(y) = tail`` for a decreasing probability, with y at most ``most``."""
    return float(
        brentq(lambda y: probability(y) - tail, 0.0, most, xtol=1e-12 * most, rtol=1e-12)
    )


def gaussian_disagreement(weights: ArrayLike, X: ArrayLike, noise_std: float) -> Floats:
    r"""Disagreement where the weights *without noise* are known (paper 004, Prop. 2).

    With :math:`t = w\cdot x / (\sigma\lVert x\rVert)` a run decides for the second class with
    probability :math:`\Phi(t)`, and :math:`\mu = 4\,\Phi(t)\,\Phi(-t)`. A row of zeros is
    never assigned to it, so its disagreement is 0.

    Notes
    -----
    A function of weights without noise: *internal*, a reference for the other estimates.
    """
    distances = plane_distances(weights, X)
    noise = GaussianNoise(noise_std, weight_matrix(weights).shape[1])
    return distances.high(_disagreement(noise, distances.sums[:, 0]))


def output_arbitrariness(
    weights: ArrayLike,
    X: ArrayLike,
    noise: WeightNoise,
    *,
    level: float = 0.95,
    individuals: int | None = None,
    threshold: float = 0.0,
) -> Arbitrariness:
    r"""Disagreement and flips after output perturbation, from the released weights.

    For two classes

    .. math:: h\bigl(|Z| + y_\beta\bigr) \le \mu \le h\bigl((|Z| - y_{\alpha/2})_+\bigr)

    with :math:`S(y_\beta) = \beta`: the lower end fails only if Z is nearer to 0 than t by
    :math:`y_\beta`, the upper only if it is further from 0 by :math:`y_{\alpha/2}`, on either
    side. (With :math:`y_\alpha` it would fail too often at t = 0.) Here
    :math:`\alpha = \beta` are half of the failure probability, divided by the number of
    individuals. For all individuals at once, both are replaced by the quantile of the *length*
    of the noise, which no direction exceeds.

    The estimate of a flip is for Gaussian noise on two classes:
    :math:`\Phi(-\kappa|Z|/(\sigma\sqrt{1+\kappa}))`, with
    :math:`\kappa = \tau^2/(\tau^2+\sigma^2)` and :math:`\tau^2` the mean square of the weights
    minus that of the noise. Without that shrinking (:math:`\kappa = 1`) the most
    arbitrary decisions would be called safer than they are.

    For K > 2 classes, each with independent noise, see :func:`_multiclass_interval`.

    Parameters
    ----------
    weights : array of shape (d,), or (k, d) for k >= 3
        As released.
    X : array of shape (n, d)
        Rows as the classifier reads them, with a 1 if there is an intercept.
    noise : WeightNoise
        Noise on each row of weights, which is public.
    level : float in (0, 1)
    individuals : int or None
        Number of individuals, fixed beforehand, for whom all intervals hold together. None: for
        all individuals at once, including any chosen after the release.
    threshold : float
        Decision threshold of the weighted sum of two classes. If it is not 0, it may have been
        chosen after the release, so the intervals for all individuals are used.

    Guarantees
    ----------
    Post-processing of the released weights. For any records, intervals hold with probability
    ``level`` over the noise of the release. The estimate of a flip has no guarantee.
    """
    w, failure = weight_matrix(weights), failure_probability(level)
    holds_for = describe_scope(individuals)
    if threshold:
        individuals, holds_for = None, describe_scope(None)
    distances = plane_distances(w, X, threshold)
    caveats: tuple[str, ...] = (OVER_THE_NOISE, SAME_RECORDS, SHARED_NOISE, NOT_SELECTED)
    flip = None
    if len(w) > 1:
        low, high = _multiclass_interval(distances.sums, noise, failure, individuals)
    else:
        low, high = _binary_interval(distances.sums[:, 0], noise, failure, individuals)
        flip = _estimate_flips(w[0], distances, noise, threshold, X)
        caveats += () if flip is None else (ESTIMATED,)
    low, high = distances.low(low), distances.high(high)
    return Arbitrariness(low, high, flip, level, holds_for, caveats)


def _binary_interval(
    sums: Floats, noise: WeightNoise, failure: float, individuals: int | None
) -> tuple[Floats, Floats]:
    """Lower and upper ends for two classes."""
    bound = noise.length_quantile(failure)
    near = far = bound
    if individuals is not None:
        tail = failure / (2 * individuals)  # half for each end
        far, near = noise.quantile(tail), noise.quantile(tail / 2)
        if far >= bound:  # with so many individuals, the bound for all is shorter
            far = near = bound
    distance = np.abs(sums)
    # The rounding of the noise of the release, and of that of another run.
    far, near = far + 2 * noise.rounding, near + 2 * noise.rounding
    low = _disagreement(noise, distance + far)
    return low, _disagreement(noise, np.maximum(distance - near, 0.0))


def _multiclass_interval(
    sums: Floats, noise: WeightNoise, failure: float, individuals: int | None
) -> tuple[Floats, Floats]:
    r"""Lower and upper ends for K > 2 classes, where the largest sum is the decision.

    For a pair of classes, :math:`Z_{cj} = (w_c - w_j)\cdot x/\lVert x\rVert` is its true value
    plus noise in one direction of the *difference* of two independent vectors, with tail
    :math:`S_2`. With r the quantile of that noise (for individuals named beforehand) or of its
    length (for all individuals), at the failure probability divided among all
    :math:`\frac{K(K-1)}2` pairs, :math:`|Z_{cj} - t_{cj}| \le r` for all of them. All pairs
    count, since the top class is known only after the release. Then another run ranks j above
    c with probability :math:`S_2(t_{cj}) \le S_2(Z_{cj} - r)`.

    *Upper end.* With the released decision c, a run that decides otherwise ranks some j above
    c, so that :math:`q \le U = \sum_{j\ne c} S_2(Z_{cj} - r)`, and
    :func:`~.arbitrariness.max_disagreement` of U bounds the disagreement.

    *Lower end.* A run decides for j only if it ranks j above c, and for c only if above the
    second, so that every probability has a bound :math:`a_j`. Of all probabilities within
    their bounds, those that fill the largest bounds first majorize all others, and have the
    largest :math:`\sum p_j^2`.
    """
    k = sums.shape[1]
    pairs, difference = k * (k - 1) // 2, noise.difference()
    r = difference.length_quantile(failure / pairs)
    if individuals is not None:
        r = min(r, difference.quantile(failure / (2 * individuals * pairs)))
    r += 2 * difference.rounding  # of the release, and of another run
    ordered = -np.sort(-sums, axis=1)
    gaps = ordered[:, :1] - ordered[:, 1:]  # between the decision and each other class
    overtake = difference.tail_probability(gaps - r)
    high = max_disagreement(np.minimum(overtake.sum(axis=1), 1.0), k)
    stay = difference.tail_probability(-(gaps[:, :1] + r))
    bounds = -np.sort(-np.hstack([stay, overtake]), axis=1)
    before = np.cumsum(bounds, axis=1) - bounds
    filled = np.clip(1 - before, 0.0, bounds)
    filled[:, 0] += np.maximum(1 - filled.sum(axis=1), 0.0)  # if they add up to less than 1
    low = k / (k - 1) * (1 - (filled**2).sum(axis=1))
    return low, high


def _estimate_flips(
    w: Floats, distances: PlaneDistances, noise: WeightNoise, threshold: float, X: ArrayLike
) -> Floats | None:
    """Estimated flip probabilities, available for Gaussian noise only."""
    if not isinstance(noise, GaussianNoise):
        return None
    ratios = w / noise.std
    with np.errstate(over="ignore"):
        spread = max(0.0, float(ratios @ ratios) / len(w) - 1)
    kappa = 1.0 if np.isinf(spread) else spread / (spread + 1)
    # The weights are shrunk, and the threshold is not.
    shrunk = kappa * distances.sums[:, 0]
    if threshold:
        shrunk -= (1 - kappa) * (plane_distances(w, X).sums[:, 0] - distances.sums[:, 0])
    side = np.where(distances.sums[:, 0] > 0, 1.0, -1.0)
    flips: Floats = ndtr(-side * shrunk / (noise.std * np.sqrt(1 + kappa)))
    return np.where(distances.fixed, 0.0, np.where(distances.unknown, 0.5, flips))


def _disagreement(noise: WeightNoise, distances: Floats) -> Floats:
    """The disagreement h at a distance."""
    tail = noise.tail_probability(distances)
    return 4 * tail * (1 - tail)
