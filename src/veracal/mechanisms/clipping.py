"""Clip rules, which bound the contribution of one example to a sum of gradients.

A clip rule maps the norms of per-example gradients to factors. Arrays may be numpy's or those
of any library that array-api-compat supports.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from array_api_compat import array_namespace

from veracal import _checks

# Computed norms may be wrong by a few units in the last place, also in float32. Factors target
# a norm this much below the bound; at least half of this margin remains after rounding.
_SLACK = 2e-6
_MIN_FACTOR = 1e-290  # below it a float64 has lost digits, and a product may be too large
_BLOCK_ENTRIES = 1 << 22  # gradient entries that are held in float64 at a time
_MAX_THRESHOLD_RATIO = 1e12  # a moving threshold stays within this factor of the bound


@runtime_checkable
class ClipRule(Protocol):
    r"""Protocol of clip rules: :math:`c(\lVert g \rVert) \lVert g \rVert \le C (1 - 10^{-6})`.

    Test custom rules with :func:`veracal.testing.check_clip_rule`. They are treated as
    discontinuous (:func:`is_continuous`), so their gradients are computed one by one.
    """

    @property
    def bound(self) -> float:
        """The bound C on the L2 norm of one example's contribution."""

    def factors(self, norms: Any) -> Any:
        """The factor c of each example, a finite float64 that depends on its norm alone."""


@dataclass(frozen=True)
class Flat:
    r"""Scale longer gradients down to the bound: :math:`\min(1, C / \lVert g \rVert)`.

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
        aim = _target_norm(self.bound)
        return aim / _clip_below(aim, norms)


@dataclass(frozen=True)
class Automatic:
    r"""Normalize gradients to nearly equal norms: :math:`C / (\lVert g \rVert + \gamma)`.

    AUTO-S of Bu et al. 2023 (https://arxiv.org/abs/2206.07136).
    """

    bound: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        _checks.positive(bound=self.bound, gamma=self.gamma)
        _checks.positive(**{"bound / gamma": self.bound / self.gamma})

    def factors(self, norms: Any) -> Any:
        """The factor of each example."""
        return _target_norm(self.bound) / (norms + self.gamma)


@dataclass(frozen=True)
class GlobalV1:
    r"""Scale all gradients by C / Z, and drop those longer than Z.

    The first global rule (Bu et al. 2021, https://arxiv.org/abs/2106.07830): it preserves the
    direction of the sum of the retained gradients.

    Parameters
    ----------
    bound : float > 0
        The bound C.
    threshold : float
        The norm Z, not below the bound.
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
        scaled = _target_norm(self.bound) / self.threshold
        return _where_or_zero(norms <= self.threshold, scaled, norms)


@dataclass(frozen=True)
class GlobalV2:
    """Keep gradients within the bound unchanged, and drop longer ones."""

    bound: float

    def __post_init__(self) -> None:
        _checks.positive(bound=self.bound)

    def factors(self, norms: Any) -> Any:
        """The factor of each example."""
        return _where_or_zero(norms <= _target_norm(self.bound), 1.0, norms)


@dataclass(frozen=True)
class GlobalAdapt:
    r"""Scale by C / Z, clip gradients longer than Z to C, and adapt Z to the gradients.

    After a step, :math:`Z \leftarrow Z \exp(-\eta + f)`, where f is the noisy fraction of
    examples longer than :math:`\tau Z` (Esipova et al. 2023,
    https://arxiv.org/abs/2206.07737).

    Parameters
    ----------
    bound, threshold : float > 0
        The bound C, which is constant, and the initial norm Z.
    rate, tolerance : float > 0
        The rate :math:`\eta` and the factor :math:`\tau`.
    count_noise : float > 0
        Standard deviation of the Gaussian noise on the number of examples longer than
        :math:`\tau Z`.

    Guarantees
    ----------
    The count is taken over the batch of the gradient sum, so both are *one* noisy vector: an
    example changes the sum by C and the count by 1. :meth:`combined_noise_multiplier` is the
    noise multiplier of that vector. Replacing an example changes it by at most twice as much.
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
        if not 1 / _MAX_THRESHOLD_RATIO <= self.threshold / self.bound <= _MAX_THRESHOLD_RATIO:
            raise ValueError(
                f"Expected a threshold within a factor {_MAX_THRESHOLD_RATIO:g} of the bound "
                f"{self.bound!r}, got threshold={self.threshold!r}."
            )

    def factors(self, norms: Any) -> Any:
        """The factor of each example."""
        return _target_norm(self.bound) / _clip_below(self.threshold, norms)

    def exceeding(self, norms: Any) -> int:
        """Number of examples whose norm exceeds the tolerance times the threshold."""
        return int(array_namespace(norms).sum(norms > self.tolerance * self.threshold))

    def adapt(self, noisy_fraction: float) -> "GlobalAdapt":
        """The rule of the next step, from the noisy count / *expected* batch."""
        exponent = min(max(noisy_fraction - self.rate, -100.0), 100.0)
        threshold = self.threshold * math.exp(exponent)
        # Noise alone may move the threshold arbitrarily far: keep it within a safe range.
        low, high = self.bound / _MAX_THRESHOLD_RATIO, self.bound * _MAX_THRESHOLD_RATIO
        return replace(self, threshold=min(max(threshold, low), high))

    def combined_noise_multiplier(self, noise_multiplier: float) -> float:
        r"""Noise multiplier of the vector of sum and count.

        .. math:: (\sigma^{-2} + \sigma_{count}^{-2})^{-1/2}
        """
        return 1 / math.hypot(1 / noise_multiplier, 1 / self.count_noise)


def is_continuous(clip: ClipRule) -> bool:
    """Whether the clipped gradient is known to be continuous in the gradient.

    True for ``Flat`` and ``Automatic``. ``GlobalV1`` and ``GlobalV2`` drop a gradient at a
    threshold, and ``GlobalAdapt`` counts it at one. Other rules, and subclasses of these, are
    treated as discontinuous. For such rules, no bit of a gradient may depend on other records.

    Examples
    --------
    >>> is_continuous(Flat(1.0)), is_continuous(GlobalV2(1.0))
    (True, False)
    """
    return type(clip) in (Flat, Automatic)


@dataclass(frozen=True, eq=False, repr=False)  # no repr: it depends on records without noise
class ClipSelection:
    """The examples that contribute to a sum, and their factors.

    Attributes
    ----------
    kept : array of bool, of shape (n,)
        False where the norm is not finite.
    factors : array of shape (number kept,)
    exceeding : int
        Number of examples above the threshold of an adaptive rule; 0 for other rules.
    """

    kept: Any
    factors: Any
    exceeding: int


@dataclass(frozen=True, eq=False, repr=False)
class ClippedSum:
    """A sum of clipped gradients before noise is added; it must not be released."""

    total: Any  # in float64
    exceeding: int = 0  # see ClipSelection


def select_and_scale(norms: Any, clip: ClipRule) -> ClipSelection:
    """Drop examples without a finite norm, and compute the factors of the others.

    For closed forms that compute norms without materializing the gradients. Index with
    ``kept`` before multiplying, since zero times NaN is NaN. Factors are float64; sum in
    float64.

    Examples
    --------
    >>> select_and_scale(np.array([np.nan, 4.0]), Flat(1.0)).factors.round(3)
    array([0.25])
    """
    xp = array_namespace(norms)
    kept = xp.isfinite(norms)
    finite = xp.astype(norms if xp.all(kept) else norms[kept], xp.float64, copy=False)
    factors = clip.factors(finite)
    factors = _where_or_zero(factors >= _MIN_FACTOR, factors, factors)
    exceeding = clip.exceeding(finite) if isinstance(clip, GlobalAdapt) else 0
    return ClipSelection(kept, factors, exceeding)


def clipped_sum(gradients: Any, clip: ClipRule) -> ClippedSum:
    r"""Sum of clipped per-example gradients, :math:`\sum_i c(\lVert g_i \rVert) g_i`.

    Parameters
    ----------
    gradients : array of shape (n, ...)
        One gradient per example, of any float type; n may be 0.

    Returns
    -------
    ClippedSum
        Its total has shape (...) and is float64 for gradients of any type: in float32, the
        rounding error of a large sum alone may exceed the margin below the bound.

    Guarantees
    ----------
    Adding or removing one example changes the total by at most ``clip.bound`` in the L2
    norm, and replacing one by at most twice that; float64 rounding takes less than the margin
    of the factors. An example with NaN or infinity, or with a norm beyond the largest float64,
    contributes exactly zero: it is dropped, not multiplied by zero. These guarantees hold for
    given *gradients*. If the rule or a gradient is discontinuous, compute each gradient in a
    call of its own, since a matrix product may round a row differently beside other rows. Norms
    are sums over one row each, with the same bits beside any other rows (for numpy and torch).

    Examples
    --------
    >>> gradients = np.array([[3.0, 4.0], [np.nan, 0.0], [0.0, 0.5]])
    >>> clipped_sum(gradients, Flat(1.0)).total.round(3)
    array([0.6, 1.3])
    """
    xp = array_namespace(gradients)
    shape = tuple(gradients.shape[1:])
    entries = math.prod(shape)
    total, exceeding = xp.zeros(entries, dtype=xp.float64), 0
    size = max(1, _BLOCK_ENTRIES // max(1, entries))
    for start in range(0, gradients.shape[0], size):
        block = gradients[start : start + size]
        rows = xp.astype(xp.reshape(block, (block.shape[0], entries)), xp.float64)
        chosen = select_and_scale(_norms(rows, xp), clip)
        total = total + chosen.factors @ rows[chosen.kept]
        exceeding += chosen.exceeding
    return ClippedSum(xp.reshape(total, shape), exceeding)


def add_gradient_noise(gradients: Any, noise_std: float, *, rng: np.random.Generator) -> Any:
    """Add Gaussian noise to per-example gradients before they are clipped.

    This noise does not lower the privacy cost, since clipping follows (Knolle et al. 2021).
    """
    if noise_std == 0:
        return gradients
    xp = array_namespace(gradients)
    noise = xp.asarray(rng.normal(0.0, noise_std, tuple(gradients.shape)))
    return xp.astype(xp.astype(gradients, xp.float64) + noise, gradients.dtype)


def _target_norm(bound: float) -> float:
    """The norm that factors scale to: the bound minus a margin for rounding."""
    return float(bound) * (1 - _SLACK)


def _clip_below(least: float, norms: Any) -> Any:
    """Elementwise maximum of norms and a number."""
    if isinstance(norms, np.ndarray):
        return np.maximum(norms, least)  # faster than clip, with the same result
    return array_namespace(norms).clip(norms, min=least)


def _where_or_zero(condition: Any, value: Any, like: Any) -> Any:
    """The value where the condition holds, zero elsewhere."""
    if isinstance(like, np.ndarray):
        return np.where(condition, value, 0.0)
    xp = array_namespace(like)
    return xp.where(condition, value * xp.ones_like(like), xp.zeros_like(like))


def _norms(rows: Any, xp: Any) -> Any:
    """L2 norms without intermediate overflow or underflow; NaN and inf propagate."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        norms = xp.linalg.vector_norm(rows, axis=1)
        extreme = ~((norms > 1e-140) & (norms < 1e140))  # squares lose digits or overflow
        if xp.any(extreme):  # divide these rows by their largest entry first
            peaks = xp.max(xp.abs(rows[extreme]), axis=1)
            scales = xp.where(xp.isfinite(peaks) & (peaks > 0), peaks, xp.ones_like(peaks))
            scaled = rows[extreme] / scales[:, None]
            norms[extreme] = peaks * xp.linalg.vector_norm(scaled, axis=1)
        return norms
