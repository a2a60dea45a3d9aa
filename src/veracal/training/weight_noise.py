r"""Laws of the noise on weights: how far one direction goes, and how far any does.

Both laws look the same from every side. The second is a mixture of the first: a vector of
density proportional to :math:`e^{-\lVert b\rVert/s}` has the characteristic function
:math:`(1 + s^2\lVert k\rVert^2)^{-(d+1)/2}`, and so has :math:`s R N` with N standard normal
and R, independent of it, of the law :math:`\chi_{d+1}`. The sum of two such vectors has the
square of that function, and is :math:`s R N` with R of the law :math:`\chi_{2(d+1)}`.

What is drawn is such a vector rounded to the public grid of the weights. Tails and quantiles
here are those of the real vector; ``rounding`` says how far the other one is from it at most,
and intervals count it.

How arbitrary decisions are after noise on the weights, told from those weights.

A released weighted sum over the length of its row, :math:`Z = w\cdot x/\lVert x\rVert`, is the
unknown :math:`t = \theta\cdot x/\lVert x\rVert` of the weights without noise, plus noise in one
direction: a symmetric law with the tail :math:`S(y) = P(\text{noise} > y)`. Another run
decides for the second class with probability :math:`S(-t)`, so that its disagreement is
:math:`h(t) = 4 S(t) S(-t)`, which falls with :math:`|t|`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, roots_legendre
from scipy.stats import chi, gamma

from veracal import _checks
from veracal._types import Floats
from veracal.data import frozen
from veracal.training.arbitrariness import (
    ESTIMATED,
    NOT_SELECTED,
    OVER_THE_NOISE,
    SAME_RECORDS,
    SHARED_NOISE,
    Arbitrariness,
    PlaneDistances,
    weight_matrix,
    max_disagreement,
    plane_distances,
    spare_of,
    whom,
)

_NODES = 160  # radii over which the mixture is averaged: more change nothing before 1e-12
_TINY = 1e-18
_FAR = 1e200  # in units of the noise: further than all of it


class Noise(Protocol):
    """Noise on a vector of weights, the same in every direction."""

    @property
    def dimension(self) -> int:
        """Number of weights."""

    @property
    def rounding(self) -> float:
        """How far the noise that is drawn is from the real vector, at most."""

    def beyond(self, distances: Floats) -> Floats:
        """Probability that noise in one direction is above a distance."""

    def quantile(self, tail: float) -> float:
        """What noise in one direction is above with a probability below one half."""

    def reach(self, tail: float) -> float:
        """What the length of the noise is above with a probability."""

    def difference(self) -> "Noise":
        """Law of the difference of two such vectors, drawn apart from each other."""


@dataclass(frozen=True)
class GaussianNoise:
    """Normal noise on each weight.

    Attributes
    ----------
    std : float > 0
        Standard deviation.
    dimension : int
    rounding : float >= 0
        Half the diagonal of a cell of the grid to which it is rounded.

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

    def beyond(self, distances: Floats) -> Floats:
        """Probability that noise in one direction is above a distance."""
        with np.errstate(over="ignore"):
            found: Floats = ndtr(-np.asarray(distances) / self.std)
        return found

    def quantile(self, tail: float) -> float:
        """What noise in one direction is above with a probability below one half."""
        return -self.std * float(ndtri(tail))

    def reach(self, tail: float) -> float:
        """What the length of the noise is above with a probability."""
        return self.std * float(chi.isf(tail, self.dimension))

    def difference(self) -> "GaussianNoise":
        """Law of the difference of two such vectors."""
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
        How many of them are added.
    rounding : float >= 0
        Half the diagonal of a cell of the grid to which it is rounded.

    Examples
    --------
    In one dimension it is the law of Laplace:

    >>> noise = GammaNoise(1.0, 1)
    >>> bool(np.allclose(noise.beyond(np.array([0.5, 3.0])), np.exp([-0.5, -3.0]) / 2))
    True
    """

    scale: float
    dimension: int
    vectors: int = 1
    rounding: float = 0.0

    def __post_init__(self) -> None:
        _checks.positive(noise_scale=self.scale)
        _checks.whole(dimension=self.dimension, vectors=self.vectors)

    def beyond(self, distances: Floats) -> Floats:
        """Probability that noise in one direction is above a distance."""
        with np.errstate(over="ignore"):
            far = np.asarray(distances, dtype=np.float64) / self.scale
        return _tail_probability(far, self.dimension, self.vectors)

    def quantile(self, tail: float) -> float:
        """What noise in one direction is above with a probability below one half."""
        return self.scale * _quantile(tail, self.dimension, self.vectors)

    def reach(self, tail: float) -> float:
        """What the length of the noise is above with a probability."""
        return self.scale * _length_quantile(tail, self.dimension, self.vectors)

    def difference(self) -> "GammaNoise":
        """Law of the difference of two such vectors."""
        return GammaNoise(self.scale, self.dimension, 2 * self.vectors, 2 * self.rounding)


@lru_cache(maxsize=16)
def mixture_radii(dimension: int, vectors: int) -> tuple[Floats, Floats]:
    """Radii R of the mixture, and how much each counts."""
    freedom = vectors * (dimension + 1)
    first, last = chi.ppf(_TINY, freedom), chi.isf(_TINY, freedom)
    nodes, weights = roots_legendre(_NODES)
    found = first + (last - first) * (nodes + 1) / 2
    weights = weights * chi.pdf(found, freedom)
    return frozen(found), frozen(weights / weights.sum())


def _tail_probability(distances: Floats, dimension: int, vectors: int) -> Floats:
    """Probability that noise of scale 1 is above distances in one direction."""
    found = np.zeros_like(distances)
    within = np.clip(distances, -_FAR, _FAR)
    for radius, weight in zip(*mixture_radii(dimension, vectors), strict=True):
        found += weight * ndtr(-within / radius)
    return np.where(within == 0, 0.5, found)  # exactly, whatever the weights add up to


@lru_cache(maxsize=256)
def _quantile(tail: float, dimension: int, vectors: int) -> float:
    """What noise of scale 1 is above in one direction with a probability."""

    def above(distance: float) -> float:
        return float(_tail_probability(np.array([distance]), dimension, vectors)[0])

    return _solve_tail(above, tail, _length_quantile(tail, dimension, vectors))


@lru_cache(maxsize=256)
def _length_quantile(tail: float, dimension: int, vectors: int) -> float:
    """What the length of noise of scale 1 is above with a probability."""
    one = vectors * float(gamma.isf(tail / vectors, dimension))
    if vectors == 1:
        return one
    found, weights = mixture_radii(dimension, vectors)

    def longer(length: float) -> float:
        return float(weights @ chi.sf(length / found, dimension))

    return _solve_tail(longer, tail, one)


def _solve_tail(probability: Callable[[float], float], tail: float, most: float) -> float:
    """Where a falling probability reaches a tail, known to be before ``most``."""
    found = brentq(lambda y: probability(y) - tail, 0.0, most, xtol=1e-12 * most, rtol=1e-12)
    return float(found)


def gaussian_disagreement(weights: ArrayLike, X: ArrayLike, noise_std: float) -> Floats:
    r"""Disagreement where the weights *without noise* are known (paper 004, Prop. 2).

    With :math:`t = w\cdot x / (\sigma\lVert x\rVert)` a run decides for the second class with
    probability :math:`\Phi(t)`, and :math:`\mu = 4\,\Phi(t)\,\Phi(-t)`. A row of zeros is never
    decided for it, so that its disagreement is 0.

    Notes
    -----
    A function of weights that nobody may see: *internal*, an oracle for the other ways.
    """
    found = plane_distances(weights, X)
    noise = GaussianNoise(noise_std, weight_matrix(weights).shape[1])
    return found.high(_disagreement(noise, found.sums[:, 0]))


def output_arbitrariness(
    weights: ArrayLike,
    X: ArrayLike,
    noise: Noise,
    *,
    level: float = 0.95,
    people: int | None = None,
    threshold: float = 0.0,
) -> Arbitrariness:
    r"""Disagreement and flips after output perturbation, from the released weights.

    For two classes

    .. math:: h\bigl(|Z| + y_\beta\bigr) \le \mu \le h\bigl((|Z| - y_{\alpha/2})_+\bigr)

    with :math:`S(y_\beta) = \beta`: the lower end fails only if Z is nearer to 0 than t by
    :math:`y_\beta`, the upper only if it is further from 0 by :math:`y_{\alpha/2}`, on either
    side. (With :math:`y_\alpha` it would fail too often at t = 0.) Here
    :math:`\alpha = \beta` are half of what the level leaves, divided by the number of people.
    For everybody at once both are replaced by the quantile of the *length* of the noise, which
    no direction exceeds.

    The estimate of a flip is for Gaussian noise on two classes:
    :math:`\Phi(-\kappa|Z|/(\sigma\sqrt{1+\kappa}))`, with
    :math:`\kappa = \tau^2/(\tau^2+\sigma^2)` and :math:`\tau^2` what the mean square of the
    weights exceeds that of the noise by. Without that shrinking (:math:`\kappa = 1`) the most
    arbitrary decisions would be called safer than they are.

    Of K > 2 classes, each with weights and noise of its own, see :func:`_many`.

    Parameters
    ----------
    weights : array of shape (d,), or (k, d) for k >= 3
        As released.
    X : array of shape (n, d)
        Rows as predictions read them, with a 1 where there is an intercept.
    noise : Noise
        Of each row of weights: public numbers.
    level : float in (0, 1)
    people : int or None
        Of how many, fixed beforehand, all intervals hold together. None: of everybody at once,
        also of people chosen after the release.
    threshold : float
        What a weighted sum of two classes is compared with. If it is not 0 it may have been
        chosen after the release, so that intervals are those for everybody.

    Guarantees
    ----------
    Post-processing of the released weights. For any records, intervals hold with probability
    ``level`` over the noise of the release. The estimate of a flip promises nothing.
    """
    w, spare, holds_for = weight_matrix(weights), spare_of(level), whom(people)
    if threshold:
        people, holds_for = None, whom(None)
    where = plane_distances(w, X, threshold)
    caveats: tuple[str, ...] = (OVER_THE_NOISE, SAME_RECORDS, SHARED_NOISE, NOT_SELECTED)
    if len(w) > 1:
        low, high = _multiclass_interval(where.sums, noise, spare, people)
        return Arbitrariness(where.low(low), where.high(high), None, level, holds_for, caveats)
    low, high = _binary_interval(where.sums[:, 0], noise, spare, people)
    flip = _estimate_flips(w[0], where, noise, threshold, X)
    if flip is not None:
        caveats += (ESTIMATED,)
    return Arbitrariness(where.low(low), where.high(high), flip, level, holds_for, caveats)


def _binary_interval(
    sums: Floats, noise: Noise, spare: float, people: int | None
) -> tuple[Floats, Floats]:
    """Lower and upper ends for two classes."""
    everybody = noise.reach(spare)
    near = far = everybody
    if people is not None:
        tail = spare / (2 * people)  # half for either end
        far, near = noise.quantile(tail), noise.quantile(tail / 2)
        if far >= everybody:  # so many people that all others cost nothing more
            far = near = everybody
    away = np.abs(sums)
    # The noise of the release is off the law by its rounding, and so is that of another run.
    far, near = far + 2 * noise.rounding, near + 2 * noise.rounding
    return _disagreement(noise, away + far), _disagreement(noise, np.maximum(away - near, 0.0))


def _multiclass_interval(
    sums: Floats, noise: Noise, spare: float, people: int | None
) -> tuple[Floats, Floats]:
    r"""Lower and upper ends for K > 2 classes, of which the largest sum is the decision.

    For a pair of classes, :math:`Z_{cj} = (w_c - w_j)\cdot x/\lVert x\rVert` is its true value
    plus noise in one direction of the *difference* of two independent vectors, with tail
    :math:`S_2`. With r the quantile of that noise (for people named beforehand) or of its
    length (for everybody), at what the level leaves divided among all
    :math:`\frac{K(K-1)}2` pairs, :math:`|Z_{cj} - t_{cj}| \le r` for all of them: all pairs,
    since which class is on top is known only after the release. Then another run ranks j
    above c with probability :math:`S_2(t_{cj}) \le S_2(Z_{cj} - r)`.

    *Upper end.* With the released decision c, a run that decides otherwise ranks some j above
    c, so that :math:`q \le U = \sum_{j\ne c} S_2(Z_{cj} - r)`, and
    :func:`~.arbitrariness.most_disagreement` of U bounds the disagreement.

    *Lower end.* A run decides for j only if it ranks j above c, and for c only if above the
    second, so that every probability has a bound :math:`a_j`. Of all probabilities within
    their bounds, those that fill the largest bounds first majorize all others, and have the
    largest :math:`\sum p_j^2`.
    """
    k = sums.shape[1]
    pairs, difference = k * (k - 1) // 2, noise.difference()
    r = difference.reach(spare / pairs)
    if people is not None:
        r = min(r, difference.quantile(spare / (2 * people * pairs)))
    r += 2 * difference.rounding  # of the release, and of another run
    ordered = -np.sort(-sums, axis=1)
    gaps = ordered[:, :1] - ordered[:, 1:]  # of the decision from the others, from the second
    overtake = difference.beyond(gaps - r)
    high = max_disagreement(np.minimum(overtake.sum(axis=1), 1.0), k)
    stay = difference.beyond(-(gaps[:, :1] + r))
    bounds = -np.sort(-np.hstack([stay, overtake]), axis=1)
    before = np.cumsum(bounds, axis=1) - bounds
    filled = np.clip(1 - before, 0.0, bounds)
    filled[:, 0] += np.maximum(1 - filled.sum(axis=1), 0.0)  # bounds that cannot all be true
    low = k / (k - 1) * (1 - (filled**2).sum(axis=1))
    return low, high


def _estimate_flips(
    w: Floats, where: PlaneDistances, noise: Noise, threshold: float, X: ArrayLike
) -> Floats | None:
    """Estimated flips, which only Gaussian noise has."""
    if not isinstance(noise, GaussianNoise):
        return None
    ratios = w / noise.std
    with np.errstate(over="ignore"):
        spread = max(0.0, float(ratios @ ratios) / len(w) - 1)
    kappa = 1.0 if np.isinf(spread) else spread / (spread + 1)
    # What is shrunk are the weights, and not the threshold.
    shrunk = kappa * where.sums[:, 0]
    if threshold:
        shrunk -= (1 - kappa) * (plane_distances(w, X).sums[:, 0] - where.sums[:, 0])
    side = np.where(where.sums[:, 0] > 0, 1.0, -1.0)
    found: Floats = ndtr(-side * shrunk / (noise.std * np.sqrt(1 + kappa)))
    return np.where(where.fixed, 0.0, np.where(where.unknown, 0.5, found))


def _disagreement(noise: Noise, distances: Floats) -> Floats:
    """h, the disagreement at a distance."""
    tail = noise.beyond(distances)
    return 4 * tail * (1 - tail)
