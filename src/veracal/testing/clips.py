"""The contract of a clip rule."""

from typing import Any

import numpy as np

from veracal._types import Array, Floats
from veracal.privacy.descent.clipping import Clip, clipped_sum

_SMALLEST, _LARGEST = float(np.nextafter(0, 1)), float(np.finfo(np.float64).max)


def check_clip(clip: Clip) -> None:
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
    >>> from veracal.privacy.descent.clipping import Flat
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


def _check_factors(clip: Clip, norms: Floats) -> None:
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


def _check_own_norm_decides(clip: Clip, norms: Floats) -> None:
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


def _check_neighbors(clip: Clip) -> None:
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
