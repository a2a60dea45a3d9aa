"""Contract suites of clip rules, mechanisms and optimizers, and tests of the noise samplers.

A mechanism states its cost as an event. ``check_mechanism`` tests whether its draws on two
neighbors are easier to distinguish than that cost allows. ``noise_pvalues`` tests the noise
distributions on this machine.
"""

import copy
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from veracal import _random
from veracal._types import Array, Floats, Ints
from veracal.accounting import Event, Unit, epsilon_for, event_from_json, event_to_json
from veracal.mechanisms import (
    ClipRule,
    Optimizer,
    add_discrete_gaussian,
    add_discrete_laplace,
    clipped_sum,
)

_SMALLEST, _LARGEST = float(np.nextafter(0, 1)), float(np.finfo(np.float64).max)


def check_clip_rule(clip: ClipRule) -> None:
    """Raise ``AssertionError`` unless a clip rule has the properties that DP-SGD relies on.

    For every finite norm, from zero to the largest float64, the factor must be finite and
    nonnegative, and factor · norm must be at most ``bound`` · (1 - 1e-6). The factor must
    depend only on the example's own norm: not on the rest of the batch, and not on earlier
    calls. Sums over neighboring batches are then compared, including NaN and infinite
    gradients.

    Parameters
    ----------
    clip : ClipRule
        The rule, with its settings. Call once for each setting that you use.

    Examples
    --------
    >>> from veracal.mechanisms.clipping import Flat
    >>> check_clip_rule(Flat(0.5))
    """
    bound = clip.bound
    assert 0 < bound < np.inf, f"expected a finite bound > 0, got {bound!r}"
    # Norms at which rules tend to fail, in random order.
    factors = [0.5, 1 - 1e-6, 1 - 1e-7, 1, 1 + 1e-15, 1 + 1e-12, 1.001, 2]
    wide = 10.0 ** np.arange(-300, 300, 7)
    extreme = [0.0, _SMALLEST, 1e-310, _LARGEST / 2, _LARGEST]
    norms = np.concatenate([float(bound) * np.array(factors), wide, extreme])
    norms = np.random.default_rng(0).permutation(norms)
    _check_factors(clip, norms)
    _check_sums(clip)
    assert clip.bound == bound, f"the bound changed from {bound!r} to {clip.bound!r}"


def _check_factors(clip: ClipRule, norms: Floats) -> None:
    """Check the inequality on which the whole guarantee rests, and what a factor depends on."""
    given = norms.copy()
    factors = np.asarray(clip.factors(given))
    assert factors.shape == norms.shape, (
        f"expected one factor for each norm, {norms.shape}, got {factors.shape}"
    )
    assert np.array_equal(given, norms), "the rule changed the norms it was given"
    bad = ~((factors >= 0) & np.isfinite(factors))
    assert not bad.any(), (
        f"expected finite factors >= 0, got {factors[bad][:3]} for norms {norms[bad][:3]}"
    )
    # Denormal factors have no precision; clipped_sum drops such gradients.
    lengths = np.where(factors > 1e-290, factors * norms, 0.0)
    worst = int(np.argmax(lengths))
    assert lengths[worst] <= clip.bound * (1 - 1e-6), (
        f"a gradient of norm {norms[worst]:g} keeps the length {lengths[worst]:g}, and "
        f"bound * (1 - 1e-6) is {clip.bound * (1 - 1e-6):g}"
    )
    # The rest of the batch and earlier calls have no effect.
    together = np.asarray(clip.factors(norms))
    for i in (0, len(norms) // 2, len(norms) - 1):
        for others in (norms[i : i + 1], norms[[i, 0, 1]], norms[[i, -1]]):
            alone = np.asarray(clip.factors(others))[0]
            assert alone == together[i], (
                f"the factor of norm {norms[i]:g} is {together[i]:g} in one batch and "
                f"{alone:g} in another: one example would change the others"
            )
    empty = np.asarray(clip.factors(np.empty(0)))
    assert empty.shape == (0,), f"expected no factor for no norm, got shape {empty.shape}"


def _check_sums(clip: ClipRule) -> None:
    """Check that one example changes the sum by at most the bound."""
    rng = np.random.default_rng(0)
    for trial in range(50):
        # A batch of ordinary, huge, tiny and non-finite gradients.
        lengths = clip.bound * 10.0 ** rng.uniform(-3, 6, size=(6, 1))
        gradients: Any = rng.standard_normal((6, 3)) * lengths
        special_values = [np.nan, np.inf, -np.inf, 1e300]
        gradients[rng.integers(6), rng.integers(3)] = rng.choice(special_values)
        whole = clipped_sum(gradients, clip).total
        row = trial % len(gradients)
        rest = clipped_sum(np.delete(gradients, row, axis=0), clip).total
        other = np.array(gradients)
        other[row] = -0.5 * other[row - 1]
        replaced = clipped_sum(other, clip).total
        for name, changed, multiple in (("removed", rest, 1), ("replaced", replaced, 2)):
            moved = float(np.linalg.norm(whole - changed))
            assert moved <= multiple * clip.bound, (
                f"one {name} example moves the sum by {moved:g}, "
                f"more than {multiple} * {clip.bound:g}"
            )


Draw = Callable[[Any, int], ArrayLike]


def check_mechanism(
    draw: Draw,
    event: Event,
    first: Any,
    second: Any,
    *,
    delta: float = 1e-5,
    unit: Unit | None = None,
    draws: int = 20_000,
    alpha: float = 1e-6,
) -> float:
    r"""Raise ``AssertionError`` if a mechanism costs more than its event states.

    Half of the draws select a threshold that distinguishes the neighbors; the other half
    certify a bound. If an answer beyond it has probability at least p under one neighbor and at
    most q under the other, then :math:`\varepsilon \ge \log((p - \delta) / q)` (Clopper and
    Pearson 1934 for p and q). A sound mechanism fails with probability alpha; one with nine
    tenths of its noise may pass. The test is not a proof: document the proof elsewhere.

    Parameters
    ----------
    draw : callable
        ``draw(records, n)`` releases one number from the records, n times, each time with fresh
        noise.
    event : Event
        The stated cost of one release.
    first, second : records
        Neighbors that should be as different as possible.
    delta : float in (0, 1)
    unit : Unit, optional
    draws : int
    alpha : float
        Probability of a false alarm.

    Returns
    -------
    float
        Certified lower bound on the epsilon of a release.

    Examples
    --------
    >>> from veracal.accounting.events import Laplace
    >>> rng = np.random.default_rng(0)
    >>> noisy = lambda records, n: len(records) + rng.laplace(scale=2.0, size=n)
    >>> check_mechanism(noisy, Laplace(noise=2.0), range(9), range(10)) < 0.5
    True
    """
    assert event_from_json(event_to_json(event)) == event, (
        "the event does not round-trip through JSON"
    )
    claimed = epsilon_for(event, delta, unit)
    assert math.isfinite(claimed), f"the event promises nothing at delta={delta}"
    outputs = [np.asarray(draw(one, draws), dtype=np.float64) for one in (first, second)]
    for output in outputs:
        assert output.shape == (draws,), (
            f"expected {draws} numbers, got an array of shape {output.shape}"
        )
        assert np.isfinite(output).all(), "a release is not finite"
    half = draws // 2
    certified = 0.0
    for upper in (True, False):
        for p, q in (outputs, outputs[::-1]):
            sign = 1 if upper else -1
            threshold = _best_threshold(sign * p[:half], sign * q[:half], delta)
            hits, others = (int((sign * x[half:] >= threshold).sum()) for x in (p, q))
            # The smallest epsilon that is compatible with the counts, at level alpha / 4.
            n, level = draws - half, alpha / 8
            least = special.betaincinv(hits, n - hits + 1, level) if hits else 0.0
            most = special.betaincinv(others + 1, n - others, 1 - level) if others < n else 1.0
            if least > delta:
                certified = max(certified, math.log((least - delta) / most))
    assert certified <= claimed, (
        f"a release costs at least epsilon = {certified:.3g} at delta = {delta:g}, but the "
        f"event states {claimed:.3g}: add noise, or state a larger sensitivity"
    )
    return certified


def _best_threshold(p: Floats, q: Floats, delta: float) -> float:
    """The threshold beyond which the first sample exceeds the second the most."""
    thresholds = np.unique(np.quantile(np.concatenate([p, q]), np.linspace(0, 1, 401)))
    hits, others = ((len(x) - np.searchsorted(np.sort(x), thresholds)) / len(x) for x in (p, q))
    # Approximates the bound that the other half will certify, with five standard errors.
    hits, others = np.maximum(hits - delta, 1e-9), others + 1 / len(q)
    scores = np.log(hits / others) - 5 * np.sqrt((1 / hits + 1 / others) / len(q))
    return float(thresholds[np.argmax(scores)])


SCALE = 4.0
DRAWS = 20_000
CUTOFF = 60  # either distribution has probability below 1e-6 beyond it


def discrete_pvalue(draws: Ints, weights: Floats) -> float:
    r"""P-value of Pearson's test of integer draws against a distribution.

    Expected counts below 10 are pooled, so that :math:`\sum (O - E)^2 / E` approximately
    follows a chi-squared distribution.

    Parameters
    ----------
    draws : array of ints
    weights : array of shape (2 r + 1,)
        Weights of -r to r, not necessarily normalized. Draws beyond r count as r.
    """
    cutoff = len(weights) // 2
    counts = np.bincount(np.clip(draws, -cutoff, cutoff) + cutoff, minlength=len(weights))
    expected = weights / weights.sum() * len(draws)
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    pooled = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(observed, pooled).pvalue)


def laplace_pvalue(draws: Ints, scale: float) -> float:
    """P-value for the discrete Laplace distribution."""
    k = np.arange(-CUTOFF, CUTOFF + 1)
    return discrete_pvalue(draws, np.exp(-np.abs(k) / scale))


def gaussian_pvalue(draws: Ints, scale: float) -> float:
    """P-value for the discrete Gaussian distribution."""
    k = np.arange(-CUTOFF, CUTOFF + 1)
    return discrete_pvalue(draws, np.exp(-((k / scale) ** 2) / 2))


def normal_pvalue(draws: Array, scale: float) -> float:
    """P-value for normal noise, by the Kolmogorov-Smirnov test."""
    return float(stats.kstest(draws / scale, stats.norm.cdf).pvalue)


def noise_pvalues() -> Mapping[str, float]:
    """Draw from every noise distribution that releases use, and test it.

    With correct noise, each p-value is below q with probability about q.
    """
    zeros = np.zeros(DRAWS, dtype=np.int64)
    normal = _random.secret_generator().normal(0.0, SCALE, DRAWS)
    return MappingProxyType(
        {
            "discrete Laplace": laplace_pvalue(add_discrete_laplace(zeros, SCALE), SCALE),
            "discrete Gaussian": gaussian_pvalue(add_discrete_gaussian(zeros, SCALE), SCALE),
            "normal": normal_pvalue(normal, SCALE),
        }
    )


def check_optimizer(optimizer: Optimizer) -> None:
    """Raise ``AssertionError`` unless an optimizer has the properties that DP-SGD relies on.

    Weights and state must depend on the arguments alone, so that training runs are independent;
    the arguments must stay unchanged; the result must have the shape and the type of the
    weights, and be finite for gradients of ordinary size.

    Parameters
    ----------
    optimizer : Optimizer
        The optimizer, with its settings.

    Examples
    --------
    >>> from veracal.mechanisms.optimizers import SGD
    >>> check_optimizer(SGD(0.1))
    """
    for shape in ((3,), (2, 3), ()):
        for dtype in (np.float64, np.float32):
            weights: Floats = np.linspace(-1, 1, int(np.prod(shape))).astype(dtype)
            _check_steps(optimizer, weights.reshape(shape))
    # Two training runs with one optimizer do not affect each other.
    ones = np.ones(2)
    alone = _run_steps(optimizer, ones, [1.0, -2.0, 3.0])
    optimizer.step(ones, np.full(2, 7.0), optimizer.start(ones), 0)
    assert is_identical(alone, _run_steps(optimizer, ones, [1.0, -2.0, 3.0])), (
        "a step of another training run changed this one: keep memory in the state"
    )


def _check_steps(optimizer: Optimizer, weights: Floats) -> None:
    """Check some steps of one training run."""
    rng = np.random.default_rng(0)
    state = optimizer.start(weights)
    for t, size in enumerate((0.0, 1.0, 1e-30, 1e6, 0.0)):
        gradient = np.asarray(size * rng.standard_normal(weights.shape), dtype=weights.dtype)
        before = copy.deepcopy((weights, gradient, state))
        result = optimizer.step(weights, gradient, state, t)
        pair = isinstance(result, tuple) and len(result) == 2
        assert pair, f"expected (weights, state) from step, got {result!r}"
        assert is_identical(before, (weights, gradient, state)), (
            f"step {t} changed the weights, the gradient or the state it was given"
        )
        assert is_identical(result, optimizer.step(weights, gradient, state, t)), (
            f"step {t} gives another result the second time"
        )
        moved, state = np.asarray(result[0]), result[1]
        assert (moved.shape, moved.dtype) == (weights.shape, weights.dtype), (
            f"expected weights {weights.shape} of {weights.dtype}, "
            f"got {moved.shape} of {moved.dtype}"
        )
        assert np.isfinite(moved).all(), f"step {t} made weights that are not finite: {moved}"
        weights = moved


def _run_steps(optimizer: Optimizer, weights: Any, gradients: list[float]) -> Any:
    """The weights after one step for each gradient."""
    state = optimizer.start(weights)
    for t, size in enumerate(gradients):
        weights, state = optimizer.step(weights, np.full(2, size), state, t)
    return weights


def is_identical(one: Any, other: Any) -> bool:
    """Whether two nested tuples of arrays are equal bit for bit."""
    if isinstance(one, tuple | list):
        pairs = zip(one, other, strict=True)
        return len(one) == len(other) and all(is_identical(a, b) for a, b in pairs)
    if isinstance(one, np.ndarray | np.generic):
        return np.array_equal(one, other, equal_nan=True)
    return bool(one == other)
