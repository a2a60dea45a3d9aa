"""Sums over batches equal their definition for any blocks, precision and threads."""

import itertools
from functools import partial

import numpy as np
import pytest
from scipy import stats

from tests.training.closed_form import clipped_gradient_sum
from veracal.data.rows import MappedRows
from veracal.mechanisms import Automatic, Flat, GlobalAdapt, GlobalV1, GlobalV2
from veracal.training import gradient_sums as sums
from veracal.training.base import row_norms
from veracal.training.gradient_sums import (
    GradientSums,
    gradient_norms,
    plan_blocks,
)

N, D, K = 3_000, 12, 4


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    return X, rng.integers(0, K, N), rng.standard_normal((K, D + 1))


def subject(X, codes, rate=0.2, dtype=np.float64, **more) -> GradientSums:
    norms = np.hypot(row_norms(X), 1.0)
    settings = {"rng": np.random.default_rng(0), **more}
    return GradientSums(X, codes, norms, plan_blocks(rate * N, dtype), **settings)


@pytest.mark.parametrize(
    "rows", [np.arange(N), np.arange(3, N, 7), np.array([5]), np.arange(0)]
)
@pytest.mark.parametrize("clip", [Flat(0.5), GlobalAdapt(0.5, 2.0)], ids=repr)
def test_batch_sums_equal_the_formula(problem, rows, clip) -> None:
    X, codes, weights = problem
    result = subject(X, codes)(weights, rows, clip)
    slow = clipped_gradient_sum(weights, X[rows], codes[rows], clip)
    np.testing.assert_allclose(result.total, slow.total, rtol=1e-6, atol=1e-9)
    assert result.exceeding == slow.exceeding
    assert result.total.dtype == np.float64


def test_single_precision_stays_near_and_within_its_slack(problem) -> None:
    X, codes, weights = problem
    rows = np.arange(0, N, 3)
    narrow = subject(X.astype(np.float32), codes, rate=1 / 3, dtype=np.float32)
    result = narrow(weights.astype(np.float32), rows, Flat(0.5)).total
    slow = clipped_gradient_sum(weights, X[rows], codes[rows], Flat(0.5)).total
    slack = narrow._blocks.slack
    assert 1e-4 < slack < 0.01
    np.testing.assert_allclose(result, (1 - slack) * slow, rtol=2e-4, atol=2e-3)
    assert np.linalg.norm(result) < np.linalg.norm(slow)


def test_a_record_changes_the_bits_of_its_own_block_alone(problem, monkeypatch) -> None:
    """Given the block assignment, neighbors differ in one block."""
    X, codes, weights = problem
    blocks = np.random.default_rng(1).integers(12, size=N).astype(np.uint8)
    seen: list[np.ndarray] = []
    for gone in (None, 700):
        kept = np.arange(N) if gone is None else np.delete(np.arange(N), gone)
        narrow = subject(X[kept].astype(np.float32), codes[kept], rate=0.5, dtype=np.float32)
        assert narrow._blocks.count == 12
        monkeypatch.setattr(narrow, "_draw_blocks", lambda rows, kept=kept: blocks[kept[rows]])
        rows, cuts = narrow._assign_blocks(np.arange(len(kept)))
        each = [
            narrow._sum_blocks(weights, rows, list(pair), Flat(0.5), 0)[0]
            for pair in itertools.pairwise(cuts)
        ]
        seen.append(np.array(each))
    changed = np.flatnonzero((seen[0] != seen[1]).any(axis=(1, 2)))
    assert changed.tolist() == [blocks[700]]


def test_block_assignments_are_uniform_and_independent(problem) -> None:
    X, codes, _ = problem
    narrow = subject(X.astype(np.float32), codes, rate=1.0, dtype=np.float32)
    draws = np.array([narrow._draw_blocks(np.arange(N)) for _ in range(20)])
    counts = np.bincount(draws.ravel(), minlength=narrow._blocks.count)
    assert len(counts) == narrow._blocks.count == 24
    assert stats.chisquare(counts).pvalue > 1e-4
    assert (draws[0] == draws[1]).mean() < 0.1


@pytest.mark.parametrize("clip", [Flat(1.0), Automatic(1.0)], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [1.0, 1e3, 3e8, 1e17])
def test_the_gradient_of_a_row_does_not_depend_on_other_rows(clip, dtype, length) -> None:
    """Removing a row with a zero gradient changes nothing, for rows of any norm."""
    assert moved_by_company(lengthy(length, dtype), clip, dtype) < (
        1e-3 if dtype == np.float32 else 1e-8
    )


def at_the_threshold(make, dtype, monkeypatch) -> float:
    """Equal rows, and thresholds between the norms that rounding gives them."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((1, 64)) / 4, 120, axis=0).astype(dtype)
    X[0] = 0.0
    weights, seen = rng.standard_normal((10, 64)).astype(dtype), []

    def spy(residual, lengths):
        seen.append(gradient_norms(residual, lengths))
        return seen[-1]

    with monkeypatch.context() as patches:
        patches.setattr(sums, "gradient_norms", spy)
        moved_by_company(X, Flat(1.0), dtype, weights=weights)
    every = np.concatenate(seen)
    norms = np.unique(every[np.isfinite(every)])
    between = (norms[:-1] + norms[1:]) / 2 if len(norms) > 1 else norms
    clips = [
        make(float(one) / (1 - 2e-6)) for one in between
    ]  # a rule clips slightly below its bound
    return max(moved_by_company(X, one, dtype, weights=weights) / one.bound for one in clips)


@pytest.mark.parametrize("make", [GlobalV2, partial(GlobalV1, 0.1), partial(GlobalAdapt, 0.1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_rows_cannot_move_a_row_across_a_threshold(make, dtype, monkeypatch) -> None:
    assert at_the_threshold(make, dtype, monkeypatch) <= 1e-3


def test_plain_products_would_fail_these_tests(monkeypatch) -> None:
    monkeypatch.setattr(sums, "is_continuous", lambda clip: True)
    assert at_the_threshold(GlobalV2, np.float32, monkeypatch) > 0.9


def lengthy(length: float, dtype) -> np.ndarray:
    """Rows of one norm in random directions, the first of them zero."""
    X = np.random.default_rng(4).standard_normal((201, 40))
    X *= length / np.linalg.norm(X, axis=1, keepdims=True)
    X[0] = 0.0
    return X.astype(dtype)


def moved_by_company(X, clip, dtype, weights=None) -> float:
    """Change of the sum when the first row, whose gradient is zero, is removed."""
    rng = np.random.default_rng(5)
    codes = np.zeros(len(X), int)
    if weights is None:
        weights = rng.standard_normal((10, X.shape[1])).astype(dtype)
    ends = [
        GradientSums(
            rows, codes, row_norms(rows), plan_blocks(100, dtype), rng=rng, intercept=False
        )(weights, np.arange(len(rows)), clip)
        for rows in (X, X[1:])
    ]
    assert ends[0].exceeding == ends[1].exceeding
    return float(np.linalg.norm(ends[0].total - ends[1].total))


def test_a_large_block_is_summed_in_double_precision(problem) -> None:
    X, codes, weights = problem
    narrow = subject(X.astype(np.float32), codes, rate=0.01, dtype=np.float32)
    assert narrow._blocks.dtype == np.float32 and narrow._blocks.most < 60
    result = narrow(weights, np.arange(N), Flat(0.5)).total
    slow = clipped_gradient_sum(weights, X, codes, Flat(0.5)).total
    np.testing.assert_allclose(result, (1 - narrow._blocks.slack) * slow, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_threads_give_the_same_sum(problem, dtype, monkeypatch) -> None:
    X, codes, weights = problem
    monkeypatch.setattr(sums, "_TWO_THREADS_FROM", 1)
    rows, clip = np.arange(0, N, 2), GlobalAdapt(0.5, 2.0)
    alone = subject(X.astype(dtype), codes, rate=0.5, dtype=dtype)(weights, rows, clip)
    result = []
    for _ in range(2):
        both = subject(
            X.astype(dtype), codes, rate=0.5, dtype=dtype
        )  # the same block assignment
        with both.two_threads():
            result.append(both(weights, rows, clip))
    shared, again = result
    np.testing.assert_allclose(shared.total, alone.total, rtol=1e-9, atol=1e-12)
    assert shared.exceeding == alone.exceeding
    assert np.array_equal(shared.total, again.total)


def test_rows_on_disk_give_the_sums_of_rows_in_memory(problem, tmp_path) -> None:
    X, codes, weights = problem
    np.save(tmp_path / "X.npy", X.astype(np.float32))
    mapped = MappedRows.of(np.load(tmp_path / "X.npy", mmap_mode="r"))
    rows = np.arange(1, N, 5)
    held = subject(X.astype(np.float32), codes, dtype=np.float32)(weights, rows, Flat(0.5))
    read = subject(mapped, codes, dtype=np.float32)(weights, rows, Flat(0.5))
    assert np.array_equal(held.total, read.total)


def test_pre_noise_is_added_before_the_clip(problem) -> None:
    X, codes, weights = problem
    rows, rng = np.arange(100), np.random.default_rng(5)
    noisy = subject(X, codes, pre_noise=50.0, rng=rng)(weights, rows, Flat(0.5)).total
    # A hundred gradients of pure noise, each of norm 0.5 in an independent direction.
    assert 0.5 * np.sqrt(100) * 0.6 < np.linalg.norm(noisy) < 0.5 * np.sqrt(100) * 1.4
    faint = subject(X, codes, pre_noise=1e-9, rng=rng)(weights, rows, Flat(0.5)).total
    plain = subject(X, codes)(weights, rows, Flat(0.5)).total
    np.testing.assert_allclose(faint, plain, rtol=1e-5, atol=1e-6)


def test_blocks_come_from_declared_figures_alone() -> None:
    assert plan_blocks(500, np.float32).count == 4
    assert plan_blocks(10, np.float32).count == 1
    assert plan_blocks(1_000_000, np.float32).dtype == np.float64  # too many to sum in float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("long", [1e30, 1e38, 1e150, 1e300, 1.7e308])
def test_rows_of_any_norm_keep_sums_finite_and_bounded(problem, dtype, long) -> None:
    X, codes, weights = problem
    odd = X.copy()
    odd[[5, 900]] = long
    odd[5, 0] = -long
    rows = np.arange(N)
    narrow = weights.astype(dtype)
    both = subject(odd, codes, rate=1.0, dtype=dtype)(narrow, rows, Flat(0.5)).total
    rest = subject(odd, codes, rate=1.0, dtype=dtype)(narrow, np.delete(rows, 5), Flat(0.5))
    assert np.isfinite(both).all()
    assert np.linalg.norm(both - rest.total) <= 0.5


def test_row_norms_neither_overflow_nor_underflow() -> None:
    rows = np.array([[3e200, 4e200], [3e-200, 4e-200], [0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(row_norms(rows), [5e200, 5e-200, 0, 5])
    assert row_norms(np.array([[1.7e308, 1.7e308]]))[0] == np.inf
