"""The contract of an update rule."""

import copy
from typing import Any

import numpy as np

from veracal._types import Floats
from veracal.privacy.descent.updates import Update


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
    >>> from veracal.privacy.descent.updates import SGD
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
