"""The contract of a clip rule.

The contract of a mechanism, for whoever writes one.

A mechanism states its cost as an event. These checks ask whether draws of it on two neighbors
are further apart than that cost allows.

Whether noise has the law it is taken for, on this machine, by drawing some.

The contract of an update rule.
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
    Update,
    add_discrete_gaussian,
    add_discrete_laplace,
    clipped_sum,
)

_SMALLEST, _LARGEST = float(np.nextafter(0, 1)), float(np.finfo(np.float64).max)


def check_clip(clip: ClipRule) -> None:
    r"""Raise ``AssertionError`` unless a clip rule keeps what a descent relies on.

    For every finite norm, from zero to the largest float64, the factor must be finite, not
    negative, and such that factor · norm is at most ``bound`` · (1 - 1e-6). It must follow
    from the example's own norm alone: not from the others in the batch, nor from earlier
    calls. Sums over neighboring batches are then compared, bad numbers included.

    Parameters
    ----------
    clip : Clip
        The rule, with settings of your choice. Call once for each that you use.

    Examples
    --------
    >>> from veracal.mechanisms.clipping import Flat
    >>> check_clip(Flat(0.5))
    """
    bound = clip.bound
    assert 0 < bound < np.inf, f"expected a finite bound > 0, got {bound!r}"
    norms = _norms(float(bound))
    _check_factors(clip, norms)
    _check_own_norm_decides(clip, norms)
    _check_neighbors(clip)
    assert clip.bound == bound, f"the bound changed from {bound!r} to {clip.bound!r}"


def _norms(bound: float) -> Floats:
    """Norms where rules go wrong, in no particular order."""
    near = bound * np.array([0.5, 1 - 1e-6, 1 - 1e-7, 1, 1 + 1e-15, 1 + 1e-12, 1.001, 2])
    wide = 10.0 ** np.arange(-300, 300, 7)
    extreme = np.array([0.0, _SMALLEST, 1e-310, _LARGEST / 2, _LARGEST])
    norms = np.concatenate([near, wide, extreme])
    return np.random.default_rng(0).permutation(norms)


def _check_factors(clip: ClipRule, norms: Floats) -> None:
    """Check the inequality the whole guarantee rests on."""
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
    # Where the factor has no digits left the product means nothing; clipped_sum drops those.
    lengths = np.where(factors > 1e-290, factors * norms, 0.0)
    worst = int(np.argmax(lengths))
    assert lengths[worst] <= clip.bound * (1 - 1e-6), (
        f"a gradient of norm {norms[worst]:g} keeps the length {lengths[worst]:g}, and "
        f"bound * (1 - 1e-6) is {clip.bound * (1 - 1e-6):g}"
    )


def _check_own_norm_decides(clip: ClipRule, norms: Floats) -> None:
    """Check that the rest of the batch and earlier calls do not matter."""
    together = np.asarray(clip.factors(norms))
    for i in (0, len(norms) // 2, len(norms) - 1):
        for others in (norms[i : i + 1], norms[[i, 0, 1]], norms[[i, -1]]):
            alone = np.asarray(clip.factors(others))[0]
            assert alone == together[i], (
                f"the factor of norm {norms[i]:g} is {together[i]:g} in one batch and "
                f"{alone:g} in another: one example would move the others"
            )
    empty = np.asarray(clip.factors(np.empty(0)))
    assert empty.shape == (0,), f"expected no factor for no norm, got shape {empty.shape}"


def _check_neighbors(clip: ClipRule) -> None:
    """Check that one example moves the sum by no more than the bound."""
    rng = np.random.default_rng(0)
    for trial in range(50):
        gradients = _gradients(clip.bound, rng)
        whole = clipped_sum(gradients, clip).total
        row = trial % len(gradients)
        rest = clipped_sum(np.delete(gradients, row, axis=0), clip).total
        other = np.array(gradients)
        other[row] = -0.5 * other[row - 1]
        replaced = clipped_sum(other, clip).total
        for name, changed, reach in (("removed", rest, 1), ("replaced", replaced, 2)):
            moved = float(np.linalg.norm(whole - changed))
            assert moved <= reach * clip.bound, (
                f"one {name} example moves the sum by {moved:g}, "
                f"more than {reach} * {clip.bound:g}"
            )


def _gradients(bound: float, rng: np.random.Generator) -> Array:
    """A batch of ordinary, huge, tiny and broken gradients."""
    lengths = bound * 10.0 ** rng.uniform(-3, 6, size=(6, 1))
    gradients: Any = rng.standard_normal((6, 3)) * lengths
    gradients[rng.integers(6), rng.integers(3)] = rng.choice([np.nan, np.inf, -np.inf, 1e300])
    return np.asarray(gradients)


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
    r"""Raise ``AssertionError`` if a mechanism costs more than its event says.

    Half of the draws choose a threshold that tells the neighbors apart; the other half certify
    how much. If an answer beyond it has probability at least p under one neighbor and at most q
    under the other, then :math:`\varepsilon \ge \log((p - \delta) / q)` (Clopper and Pearson
    1934 for p and q). A sound mechanism fails with probability alpha; one with nine tenths of
    its noise may pass. It is no proof: write that down elsewhere.

    Parameters
    ----------
    draw : callable
        ``draw(records, n)`` releases one number from the records, n times over, each time with
        fresh noise.
    event : Event
        What one of these releases is said to cost.
    first, second : records
        Neighbors that should be as far apart as they can be.
    delta : float in (0, 1)
    unit : Unit, optional
    draws : int
    alpha : float
        Probability of a false alarm.

    Returns
    -------
    float
        Epsilon that a release costs at least.

    Examples
    --------
    >>> from veracal.accounting.events import Laplace
    >>> rng = np.random.default_rng(0)
    >>> noisy = lambda records, n: len(records) + rng.laplace(scale=2.0, size=n)
    >>> check_mechanism(noisy, Laplace(noise=2.0), range(9), range(10)) < 0.5
    True
    """
    assert event_from_json(event_to_json(event)) == event, (
        "the event does not survive being written down"
    )
    claimed = epsilon_for(event, delta, unit)
    assert math.isfinite(claimed), f"the event promises nothing at delta={delta}"
    outputs = [_numbers(draw(records, draws), draws) for records in (first, second)]
    half = draws // 2
    certified = 0.0
    for upper in (True, False):
        for p, q in (outputs, outputs[::-1]):
            sign = 1 if upper else -1
            threshold = _best(sign * p[:half], sign * q[:half], delta)
            hits, others = (int((sign * x[half:] >= threshold).sum()) for x in (p, q))
            found = _bound(hits, others, draws - half, delta, alpha / 4)
            certified = max(certified, found)
    assert certified <= claimed, (
        f"a release costs at least epsilon = {certified:.3g} at delta = {delta:g}, but the "
        f"event says {claimed:.3g}: it takes more noise, or states too small a sensitivity"
    )
    return certified


def _numbers(values: ArrayLike, n: int) -> Floats:
    """What was drawn, as finite numbers."""
    found = np.asarray(values, dtype=np.float64)
    assert found.shape == (n,), f"expected {n} numbers, got an array of shape {found.shape}"
    assert np.isfinite(found).all(), "a release is not finite"
    return found


def _best(p: Floats, q: Floats, delta: float) -> float:
    """The threshold beyond which the first sample is most in excess of the second."""
    thresholds = np.unique(np.quantile(np.concatenate([p, q]), np.linspace(0, 1, 401)))
    hits, others = ((len(x) - np.searchsorted(np.sort(x), thresholds)) / len(x) for x in (p, q))
    # About the bound that the other half will certify: five standard errors off.
    hits, others = np.maximum(hits - delta, 1e-9), others + 1 / len(q)
    scores = np.log(hits / others) - 5 * np.sqrt((1 / hits + 1 / others) / len(q))
    return float(thresholds[np.argmax(scores)])


def _bound(hits: int, others: int, n: int, delta: float, alpha: float) -> float:
    """Epsilon that fits the counts at least."""
    least = special.betaincinv(hits, n - hits + 1, alpha / 2) if hits else 0.0
    most = special.betaincinv(others + 1, n - others, 1 - alpha / 2) if others < n else 1.0
    return math.log((least - delta) / most) if least > delta else 0.0


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


def check_update(update: Update) -> None:
    """Raise ``AssertionError`` unless an update rule keeps what a descent relies on.

    Weights and state must follow from the arguments alone, so that one descent says nothing
    about another; the arguments must stay as they are; the result must have the shape and
    the type of the weights, and be finite wherever the gradient is of ordinary size.

    Parameters
    ----------
    update : Update
        The rule, with settings of your choice.

    Examples
    --------
    >>> from veracal.mechanisms.optimizers import SGD
    >>> check_update(SGD(0.1))
    """
    for shape in ((3,), (2, 3), ()):
        for dtype in (np.float64, np.float32):
            weights: Floats = np.linspace(-1, 1, int(np.prod(shape))).astype(dtype)
            _check_steps(update, weights.reshape(shape))
    _check_no_memory_of_its_own(update)


def _check_steps(update: Update, weights: Floats) -> None:
    """Check some steps of one descent."""
    rng = np.random.default_rng(0)
    state = update.start(weights)
    for t, size in enumerate((0.0, 1.0, 1e-30, 1e6, 0.0)):
        gradient = np.asarray(size * rng.standard_normal(weights.shape), dtype=weights.dtype)
        before = copy.deepcopy((weights, gradient, state))
        found = update.step(weights, gradient, state, t)
        pair = isinstance(found, tuple) and len(found) == 2
        assert pair, f"expected (weights, state) from step, got {found!r}"
        assert same(before, (weights, gradient, state)), (
            f"step {t} changed the weights, the gradient or the state it was given"
        )
        assert same(found, update.step(weights, gradient, state, t)), (
            f"step {t} gives another result the second time"
        )
        moved, state = found
        _check_weights(np.asarray(moved), weights, t)
        weights = np.asarray(moved)


def _check_weights(moved: Floats, weights: Floats, t: int) -> None:
    """Check that weights are still weights."""
    assert (moved.shape, moved.dtype) == (weights.shape, weights.dtype), (
        f"expected weights {weights.shape} of {weights.dtype}, "
        f"got {moved.shape} of {moved.dtype}"
    )
    assert np.isfinite(moved).all(), f"step {t} made weights that are not finite: {moved}"


def _check_no_memory_of_its_own(update: Update) -> None:
    """Check that two descents with one rule do not meet."""
    weights = np.ones(2)
    alone, _ = _descend(update, weights, [1.0, -2.0, 3.0])
    update.step(weights, np.full(2, 7.0), update.start(weights), 0)
    after, _ = _descend(update, weights, [1.0, -2.0, 3.0])
    assert same(alone, after), (
        "a step of another descent changed this one: keep it in the state"
    )


def _descend(update: Update, weights: Any, gradients: list[float]) -> tuple[Any, Any]:
    """Follow some gradients."""
    state = update.start(weights)
    for t, size in enumerate(gradients):
        weights, state = update.step(weights, np.full(2, size), state, t)
    return weights, state


def same(one: Any, other: Any) -> bool:
    """Whether two nests of tuples and arrays hold the same, bit for bit."""
    if isinstance(one, tuple | list):
        pairs = zip(one, other, strict=True)
        return len(one) == len(other) and all(same(a, b) for a, b in pairs)
    if isinstance(one, np.ndarray | np.generic):
        return np.array_equal(one, other, equal_nan=True)
    return bool(one == other)
