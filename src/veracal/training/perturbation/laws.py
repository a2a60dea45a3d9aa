r"""Laws of the noise on weights: how far one direction goes, and how far any does.

Both laws look the same from every side. The second is a mixture of the first: a vector of
density proportional to :math:`e^{-\lVert b\rVert/s}` has the characteristic function
:math:`(1 + s^2\lVert k\rVert^2)^{-(d+1)/2}`, and so has :math:`s R N` with N standard normal
and R, independent of it, of the law :math:`\chi_{d+1}`. The sum of two such vectors has the
square of that function, and is :math:`s R N` with R of the law :math:`\chi_{2(d+1)}`.

What is drawn is such a vector rounded to the public grid of the weights. Tails and quantiles
here are those of the real vector; ``rounding`` says how far the other one is from it at most,
and intervals count it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, roots_legendre
from scipy.stats import chi, gamma

from veracal import _checks
from veracal._types import Floats
from veracal.data.checked import frozen

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
        return _beyond(far, self.dimension, self.vectors)

    def quantile(self, tail: float) -> float:
        """What noise in one direction is above with a probability below one half."""
        return self.scale * _quantile(tail, self.dimension, self.vectors)

    def reach(self, tail: float) -> float:
        """What the length of the noise is above with a probability."""
        return self.scale * _reach(tail, self.dimension, self.vectors)

    def difference(self) -> "GammaNoise":
        """Law of the difference of two such vectors."""
        return GammaNoise(self.scale, self.dimension, 2 * self.vectors, 2 * self.rounding)


@lru_cache(maxsize=16)
def radii(dimension: int, vectors: int) -> tuple[Floats, Floats]:
    """Radii R of the mixture, and how much each counts."""
    freedom = vectors * (dimension + 1)
    first, last = chi.ppf(_TINY, freedom), chi.isf(_TINY, freedom)
    nodes, weights = roots_legendre(_NODES)
    found = first + (last - first) * (nodes + 1) / 2
    weights = weights * chi.pdf(found, freedom)
    return frozen(found), frozen(weights / weights.sum())


def _beyond(distances: Floats, dimension: int, vectors: int) -> Floats:
    """Probability that noise of scale 1 is above distances in one direction."""
    found = np.zeros_like(distances)
    within = np.clip(distances, -_FAR, _FAR)
    for radius, weight in zip(*radii(dimension, vectors), strict=True):
        found += weight * ndtr(-within / radius)
    return np.where(within == 0, 0.5, found)  # exactly, whatever the weights add up to


@lru_cache(maxsize=256)
def _quantile(tail: float, dimension: int, vectors: int) -> float:
    """What noise of scale 1 is above in one direction with a probability."""

    def above(distance: float) -> float:
        return float(_beyond(np.array([distance]), dimension, vectors)[0])

    return _solved(above, tail, _reach(tail, dimension, vectors))


@lru_cache(maxsize=256)
def _reach(tail: float, dimension: int, vectors: int) -> float:
    """What the length of noise of scale 1 is above with a probability."""
    one = vectors * float(gamma.isf(tail / vectors, dimension))
    if vectors == 1:
        return one
    found, weights = radii(dimension, vectors)

    def longer(length: float) -> float:
        return float(weights @ chi.sf(length / found, dimension))

    return _solved(longer, tail, one)


def _solved(probability: Callable[[float], float], tail: float, most: float) -> float:
    """Where a falling probability reaches a tail, known to be before ``most``."""
    found = brentq(lambda y: probability(y) - tail, 0.0, most, xtol=1e-12 * most, rtol=1e-12)
    return float(found)
