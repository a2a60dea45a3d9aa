"""Closed-form gradients equal the gradients of autograd, example by example."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.training.closed_form import clipped_gradient_sum
from veracal.mechanisms import (
    Automatic,
    ClipRule,
    Flat,
    GlobalAdapt,
    GlobalV1,
    GlobalV2,
    clipped_sum,
)
from veracal.training.gradient_sums import (
    compute_logits,
    gradient_norms,
    residuals,
    rounding_slack,
)

CLIPS: tuple[ClipRule, ...] = (
    Flat(0.7),
    Automatic(0.7),
    GlobalV1(0.7, 2.0),
    GlobalV2(0.7),
    GlobalAdapt(0.7, 2.0),
)


def gradients_by_autograd(weights, X, codes, intercept) -> np.ndarray:
    """One backward pass for each example, as PyTorch computes it."""
    result = []
    for row, code in zip(X, codes, strict=True):
        w = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
        x = torch.tensor(np.append(row, 1.0) if intercept else row, dtype=torch.float64)
        z = w @ x
        if len(weights) == 1:
            target = torch.tensor(float(code), dtype=torch.float64)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(z[0], target)
        else:
            loss = torch.nn.functional.cross_entropy(z[None], torch.tensor([int(code)]))
        loss.backward()
        result.append(w.grad.numpy())
    return np.array(result).reshape(len(X), *weights.shape)


@st.composite
def problems(draw):
    k, d, n = draw(st.sampled_from([1, 3, 5])), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    intercept = draw(st.booleans())
    numbers = st.floats(-30, 30, allow_subnormal=False)
    weights = draw(arrays(float, (k, d + intercept), elements=numbers))
    X = draw(arrays(float, (n, d), elements=numbers))
    codes = draw(arrays(int, (n,), elements=st.integers(0, max(1, k - 1))))
    return weights, X, codes, intercept


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(CLIPS))
def test_the_closed_form_equals_autograd_example_by_example(problem, clip) -> None:
    weights, X, codes, intercept = problem
    gradients = gradients_by_autograd(weights, X, codes, intercept)
    residual = residuals(compute_logits(weights, X, intercept=intercept), codes)
    lengths = np.sqrt((X**2).sum(axis=1) + intercept)
    np.testing.assert_allclose(
        gradient_norms(residual, lengths),
        np.linalg.norm(gradients.reshape(len(X), -1), axis=1),
        rtol=1e-7,
        atol=1e-12,
    )
    result = clipped_gradient_sum(weights, X, codes, clip, intercept=intercept)
    slow = clipped_sum(gradients, clip)
    threshold = {GlobalV1: 2.0, GlobalV2: 0.7 * (1 - 2e-6), GlobalAdapt: 2.0}.get(type(clip))
    norms = gradient_norms(residual, lengths)
    if threshold is None or not np.isclose(norms, threshold, rtol=1e-6).any():
        np.testing.assert_allclose(result.total, slow.total, rtol=1e-6, atol=1e-9)
        assert result.exceeding == slow.exceeding


def test_several_models_at_once_have_the_gradients_of_each() -> None:
    rng = np.random.default_rng(0)
    weights, X = rng.standard_normal((4, 3, 6)), rng.standard_normal((4, 7, 5))
    codes = rng.integers(0, 3, (4, 7))
    together = residuals(compute_logits(weights, X, intercept=True), codes)
    for model in range(4):
        alone = residuals(
            compute_logits(weights[model], X[model], intercept=True), codes[model]
        )
        np.testing.assert_allclose(together[model], alone, rtol=1e-12)


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("k", [1, 3])
def test_several_models_at_once_have_the_clipped_sums_of_each(clip, intercept, k) -> None:
    rng = np.random.default_rng(0)
    weights, X = rng.standard_normal((4, k, 5 + intercept)), rng.standard_normal((7, 5))
    X[2] = 1e200  # its norm overflows
    codes = rng.integers(0, max(2, k), 7)
    together = clipped_gradient_sum(weights, X, codes, clip, intercept=intercept)
    alone = [clipped_gradient_sum(w, X, codes, clip, intercept=intercept) for w in weights]
    np.testing.assert_allclose(together.total, [one.total for one in alone], rtol=1e-12)
    assert together.exceeding == sum(one.exceeding for one in alone)


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
@pytest.mark.parametrize("k", [1, 4])
def test_one_example_changes_the_sum_by_at_most_the_bound(clip, k) -> None:
    rng = np.random.default_rng(1)
    weights, X = rng.standard_normal((k, 6)), 10.0 ** rng.uniform(-3, 3, (60, 1))
    X = X * rng.standard_normal((60, 5))
    codes = rng.integers(0, max(2, k), 60)
    whole = clipped_gradient_sum(weights, X, codes, clip).total
    reached = []
    for i in range(60):
        rest = clipped_gradient_sum(
            weights, np.delete(X, i, axis=0), np.delete(codes, i), clip
        ).total
        reached.append(np.linalg.norm(whole - rest))
    assert 0.5 * clip.bound < max(reached) <= clip.bound


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, 1e200])
def test_a_row_that_is_not_finite_or_too_long_contributes_zero(broken) -> None:
    rng = np.random.default_rng(2)
    weights, X, codes = rng.standard_normal((3, 5)), rng.standard_normal((4, 4)), [0, 1, 2, 0]
    X[2, 1] = broken
    with np.errstate(invalid="ignore", over="ignore"):
        result = clipped_gradient_sum(weights, X, np.array(codes), Flat(1.0)).total
    rest = clipped_gradient_sum(
        weights, np.delete(X, 2, axis=0), np.array([0, 1, 0]), Flat(1.0)
    ).total
    np.testing.assert_allclose(result, rest, rtol=1e-12)


def test_extreme_logits_have_residuals_and_no_warning() -> None:
    logits = np.array([[1e4, -1e4, 0.0], [-1e300, 1e300, 0.0]])
    result = residuals(logits, np.array([1, 1]))
    np.testing.assert_allclose(result, [[1, -1, 0], [0, 0, 0]])
    np.testing.assert_allclose(
        residuals(np.array([[1e4], [-1e4]]), np.array([0, 0])), [[1], [0]]
    )


def test_the_slack_covers_the_rounding_of_a_block() -> None:
    """The worst case: terms of one sign that round in the same direction."""
    rng = np.random.default_rng(3)
    block = 175
    X = np.abs(rng.standard_normal((block, 64))).astype(np.float32)
    scaled = (np.ones((block, 1)) / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    exact = scaled.astype(float).T @ X.astype(float)
    rounded = (scaled.T @ X).astype(float)
    assert 0 < np.linalg.norm(rounded - exact) <= rounding_slack(np.float32, block, block) / 2
    assert rounding_slack(np.float32, block, block) < 0.004
    assert rounding_slack(np.float64, 100_000, 700) < 1e-7
