"""How far one example may move a sum of gradients.

A clip rule turns the norms of per-example gradients into factors. Arrays may come from numpy
or from any library array-api-compat knows.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from array_api_compat import array_namespace

from veracal import _checks

# Computed norms may be a few units in the last place off, in float32 too. A factor aims this
# much below the bound, and keeps at least half of the distance.
_SLACK = 2e-6
_LEAST_FACTOR = 1e-290  # below it a float64 has lost digits, and a product may be too large
_BLOCK = 1 << 22  # gradient entries that are held in float64 at a time
_REACH = 1e12  # a moving threshold stays within this factor of the bound


@runtime_checkable
class ClipRule(Protocol):
    r"""What a clip rule is: :math:`c(\lVert g \rVert) \lVert g \rVert \le C (1 - 10^{-6})`.

    A rule of your own takes part once :func:`veracal.testing.check_clip_rule` passes it. It is taken
    for one that jumps (:func:`is_continuous`): records are then computed one by one.
    """

    @property
    def bound(self) -> float:
        """The most C that one example contributes, in the L2 norm."""

    def factors(self, norms: Any) -> Any:
        """The factor c of each example, from its own norm alone: a finite float64."""


@dataclass(frozen=True)
class Flat:
    r"""Shorten to the bound what is longer: :math:`\min(1, C / \lVert g \rVert)`.

    Abadi et al. 2016, Algorithm 1 (https://arxiv.org/abs/1607.00133).

    Examples
    --------
    >>> Flat(1.0).factors(np.array([0.5, 2.0])).round(3)
    array([1. , 0.5])
    """

    bound: float

    def __post_init__(self) -> None:
        _checks.positive(bound=self.bound)

    def factors(self, norms: Any) -> Any:
        """The factor of each example."""
        aim = _aim(self.bound)
        return aim / _at_least(aim, norms)


@dataclass(frozen=True)
class Automatic:
    r"""Give every example nearly the same length: :math:`C / (\lVert g \rVert + \gamma)`.

    AUTO-S of Bu et al. 2023 (https://arxiv.org/abs/2206.07136).
    """

    bound: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        _checks.positive(bound=self.bound, gamma=self.gamma)
        _checks.positive(**{"bound / gamma": self.bound / self.gamma})

    def factors(self, norms: Any) -> Any:
        """The factor of each example."""
        return _aim(self.bound) / (norms + self.gamma)


@dataclass(frozen=True)
class GlobalV1:
    r"""Scale all alike by C / Z, and leave out what is longer than Z.

    The first global rule (Bu et al. 2021, https://arxiv.org/abs/2106.07830): the direction
    of the sum stays that of the examples it keeps.

    Parameters
    ----------
    bound : float > 0
        The bound C.
    threshold : float >= bound
        The length Z.
    """

    bound: float
    threshold: float

    def __post_init__(self) -> None:
        _checks.positive(bound=self.bound, threshold=self.threshold)
        if self.threshold < self.bound:
            raise ValueError(
                f"Expected a threshold of at least the bound {self.bound!r}, "
                f"got threshold={self.threshold!r}."
            )

    def factors(self, norms: Any) -> Any:
        """The factor of each example."""
        scaled = _aim(self.bound) / self.threshold
        return _where(norms <= self.threshold, scaled, norms)


@dataclass(frozen=True)
class GlobalV2:
    """Keep what is no longer than the bound as it is, and leave out the rest."""

    bound: float

    def __post_init__(self) -> None:
        _checks.positive(bound=self.bound)

    def factors(self, norms: Any) -> Any:
        """The factor of each example."""
        return _where(norms <= _aim(self.bound), 1.0, norms)


@dataclass(frozen=True)
class GlobalAdapt:
    r"""Scale by C / Z, shorten to C what is longer than Z, and let Z follow the gradients.

    After a step, :math:`Z \leftarrow Z \exp(-\eta + f)`, where f is the noisy fraction of
    examples longer than :math:`\tau Z` (Esipova et al. 2023,
    https://arxiv.org/abs/2206.07737).

    Parameters
    ----------
    bound : float > 0
        The bound C, which stays.
    threshold : float > 0
        The length Z.
    rate : float > 0
        The rate :math:`\eta`.
    tolerance : float > 0
        The factor :math:`\tau`.
    count_noise : float > 0
        Standard deviation of the Gaussian noise on the number of examples longer than
        :math:`\tau Z`.

    Guarantees
    ----------
    The count comes from the batch of the gradient sum, so both are *one* noisy vector:
    an example moves the sum by C and the count by 1. :meth:`charged` gives the noise
    multiplier of that vector, for which a replaced example reaches twice as far at most.
    """

    bound: float
    threshold: float = 100.0
    rate: float = 0.1
    tolerance: float = 1.0
    count_noise: float = 10.0

    def __post_init__(self) -> None:
        _checks.positive(
            bound=self.bound,
            threshold=self.threshold,
            rate=self.rate,
            tolerance=self.tolerance,
            count_noise=self.count_noise,
        )
        if not self.bound / _REACH <= self.threshold <= self.bound * _REACH:
            raise ValueError(
                f"Expected a threshold within a factor {_REACH:g} of the bound "
                f"{self.bound!r}, got threshold={self.threshold!r}."
            )

    def factors(self, norms: Any) -> Any:
        """The factor of each example."""
        return _aim(self.bound) / _at_least(self.threshold, norms)

    def exceeding(self, norms: Any) -> int:
        """How many examples are longer than the tolerance times the threshold."""
        return int(array_namespace(norms).sum(norms > self.tolerance * self.threshold))

    def adapted(self, noisy_fraction: float) -> "GlobalAdapt":
        """The rule of the next step, from the noisy count / *expected* batch."""
        exponent = min(max(noisy_fraction - self.rate, -100.0), 100.0)
        moved = self.threshold * math.exp(exponent)
        # Noise alone may carry the threshold anywhere: keep it where floats are exact.
        kept = min(max(moved, self.bound / _REACH), self.bound * _REACH)
        return replace(self, threshold=kept)

    def charged(self, noise_multiplier: float) -> float:
        r"""Noise multiplier of sum and count together.

        .. math:: (\sigma^{-2} + \sigma_{count}^{-2})^{-1/2}
        """
        return 1 / math.hypot(1 / noise_multiplier, 1 / self.count_noise)


def is_continuous(clip: ClipRule) -> bool:
    """Whether a rule is known to change a gradient little where its norm changes little.

    ``Flat`` and ``Automatic`` are. ``GlobalV1`` and ``GlobalV2`` drop a gradient at a
    threshold, ``GlobalAdapt`` counts it at one, and nothing is known of any other rule, nor of
    a class that inherits from one of these. Gradients for such rules must not depend on other
    records by a single bit.

    Examples
    --------
    >>> is_continuous(Flat(1.0)), is_continuous(GlobalV2(1.0))
    (True, False)
    """
    return type(clip) in (Flat, Automatic)


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about records
class Selection:
    """Which examples count, and by how much.

    Attributes
    ----------
    kept : array of bool, of shape (n,)
        False where the norm is not finite.
    factors : array of shape (number kept,)
        Factors of the kept ones.
    exceeding : int
        How many lie above the threshold of an adaptive rule; 0 for other rules.
    """

    kept: Any
    factors: Any
    exceeding: int


@dataclass(frozen=True, eq=False, repr=False)
class Clipped:
    """A sum of clipped gradients, not yet noisy: it never leaves the step.

    Attributes
    ----------
    total : array
        The sum, in float64.
    exceeding : int
        See :class:`Selection`.
    """

    total: Any
    exceeding: int = 0


def selection(norms: Any, clip: ClipRule) -> Selection:
    """Leave out examples without a finite norm, and scale the others.

    For closed forms that know the norms without writing the gradients down. Index with
    ``kept`` before multiplying: zero times NaN is NaN. Factors are float64; sum in float64.

    Examples
    --------
    >>> selection(np.array([np.nan, 4.0]), Flat(1.0)).factors.round(3)
    array([0.25])
    """
    xp = array_namespace(norms)
    kept = xp.isfinite(norms)
    finite = xp.astype(norms if xp.all(kept) else norms[kept], xp.float64, copy=False)
    factors = clip.factors(finite)
    factors = _where(factors >= _LEAST_FACTOR, factors, factors)
    exceeding = clip.exceeding(finite) if isinstance(clip, GlobalAdapt) else 0
    return Selection(kept, factors, exceeding)


def clipped_sum(gradients: Any, clip: ClipRule) -> Clipped:
    r"""Sum of clipped per-example gradients, :math:`\sum_i c(\lVert g_i \rVert) g_i`.

    Parameters
    ----------
    gradients : array of shape (n, ...)
        One gradient for each example, of any float type; n may be 0.
    clip : Clip

    Returns
    -------
    Clipped
        Its total has shape (...) and is float64, whatever the gradients are: in float32
        the rounding of a large sum alone may exceed what the bound allows.

    Guarantees
    ----------
    Adding or removing one example moves the total by at most ``clip.bound`` in the L2
    norm, replacing one by at most twice that; float64 rounding takes less than the slack a
    factor keeps. An example with NaN or infinity, or with a norm beyond the largest
    float64, contributes exactly zero: it is left out, not multiplied by zero. All that is given
    the *gradients*: where the rule jumps, or a gradient does, compute each of them in a call of
    its own, as a matrix product may round a row differently beside others. Norms are then sums
    over one row each, the same bits beside any others (of numpy and torch).

    Examples
    --------
    >>> gradients = np.array([[3.0, 4.0], [np.nan, 0.0], [0.0, 0.5]])
    >>> clipped_sum(gradients, Flat(1.0)).total.round(3)
    array([0.6, 1.3])
    """
    xp = array_namespace(gradients)
    shape = tuple(gradients.shape[1:])
    total = xp.zeros(math.prod(shape), dtype=xp.float64)
    exceeding = 0
    for rows in _blocks(gradients, xp):
        chosen = selection(_norms(rows, xp), clip)
        total = total + chosen.factors @ rows[chosen.kept]
        exceeding += chosen.exceeding
    return Clipped(xp.reshape(total, shape), exceeding)


def pre_noised(gradients: Any, noise_std: float, *, rng: np.random.Generator) -> Any:
    """Add Gaussian noise to per-example gradients, before they are clipped.

    It earns no privacy: what is clipped afterwards has the bound it had before (Knolle et
    al. 2021).
    """
    if noise_std == 0:
        return gradients
    xp = array_namespace(gradients)
    noise = xp.asarray(rng.normal(0.0, noise_std, tuple(gradients.shape)))
    return xp.astype(xp.astype(gradients, xp.float64) + noise, gradients.dtype)


def _aim(bound: float) -> float:
    """The length a factor aims at."""
    return float(bound) * (1 - _SLACK)


def _at_least(least: float, norms: Any) -> Any:
    """Norms that are no less than that."""
    if isinstance(norms, np.ndarray):
        return np.maximum(norms, least)  # clip goes a long way around to the same
    return array_namespace(norms).clip(norms, min=least)


def _where(condition: Any, value: Any, like: Any) -> Any:
    """The value where the condition holds, and zero elsewhere."""
    if isinstance(like, np.ndarray):
        return np.where(condition, value, 0.0)
    xp = array_namespace(like)
    return xp.where(condition, value * xp.ones_like(like), xp.zeros_like(like))


def _blocks(gradients: Any, xp: Any) -> Iterator[Any]:
    """Gradients as float64 rows, some at a time."""
    n, entries = gradients.shape[0], math.prod(gradients.shape[1:])
    size = max(1, _BLOCK // max(1, entries))
    for start in range(0, n, size):
        block = gradients[start : start + size]
        yield xp.astype(xp.reshape(block, (block.shape[0], entries)), xp.float64)


def _norms(rows: Any, xp: Any) -> Any:
    """L2 norms that neither overflow nor underflow on the way; NaN or inf where one is in."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        norms = xp.linalg.vector_norm(rows, axis=1)
        extreme = ~((norms > 1e-140) & (norms < 1e140))  # squares lose digits, or are lost
        if xp.any(extreme):
            norms[extreme] = _scaled_norms(rows[extreme], xp)
        return norms


def _scaled_norms(rows: Any, xp: Any) -> Any:
    """L2 norms of rows that are first divided by their largest entry."""
    peaks = xp.max(xp.abs(rows), axis=1)
    scales = xp.where(xp.isfinite(peaks) & (peaks > 0), peaks, xp.ones_like(peaks))
    return peaks * xp.linalg.vector_norm(rows / scales[:, None], axis=1)
