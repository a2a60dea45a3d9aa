"""Sums over batches equal their definition, however they are cut and computed."""

import numpy as np
import pytest

from veracal.data.rows import MappedRows
from veracal.privacy import Flat, GlobalAdapt
from veracal.training import sums
from veracal.training.facts import row_norms
from veracal.training.softmax import clipped_gradient_sum
from veracal.training.sums import GradientSums, blocks_for

N, D, K = 3_000, 12, 4


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    return X, rng.integers(0, K, N), rng.standard_normal((K, D + 1))


def subject(X, codes, rate=0.2, dtype=np.float64, size=N, **more) -> GradientSums:
    norms = np.hypot(row_norms(X), 1.0)
    return GradientSums(X, codes, norms, blocks_for(size, rate, dtype), **more)


@pytest.mark.parametrize(
    "rows", [np.arange(N), np.arange(3, N, 7), np.array([5]), np.arange(0)]
)
@pytest.mark.parametrize("clip", [Flat(0.5), GlobalAdapt(0.5, 2.0)], ids=repr)
def test_a_batch_is_summed_as_the_formula_says(problem, rows, clip) -> None:
    X, codes, weights = problem
    found = subject(X, codes)(weights, rows, clip)
    slow = clipped_gradient_sum(weights, X[rows], codes[rows], clip)
    np.testing.assert_allclose(found.total, slow.total, rtol=1e-6, atol=1e-9)
    assert found.exceeding == slow.exceeding
    assert found.total.dtype == np.float64


def test_single_precision_stays_near_and_within_its_slack(problem) -> None:
    X, codes, weights = problem
    rows = np.arange(0, N, 3)
    narrow = subject(X.astype(np.float32), codes, rate=1 / 3, dtype=np.float32)
    found = narrow(weights.astype(np.float32), rows, Flat(0.5)).total
    slow = clipped_gradient_sum(weights, X[rows], codes[rows], Flat(0.5)).total
    slack = narrow._blocks.slack
    assert 1e-4 < slack < 0.01
    np.testing.assert_allclose(found, (1 - slack) * slow, rtol=2e-4, atol=2e-3)
    assert np.linalg.norm(found) < np.linalg.norm(slow)


def test_a_record_changes_the_bits_of_its_own_block_alone(problem) -> None:
    """Blocks are cut by the numbers of rows: a row less shifts no other block."""
    X, codes, weights = problem
    narrow = subject(X.astype(np.float32), codes, rate=0.5, dtype=np.float32)
    seen: list[np.ndarray] = []
    rows = np.arange(0, N, 2)
    edges = narrow._blocks.edges
    assert len(edges) > 5
    for chosen in (rows, np.delete(rows, 700)):
        cuts = np.searchsorted(chosen, edges)
        each = [narrow(weights, part, Flat(0.5)).total for part in np.split(chosen, cuts)]
        seen.append(np.array(each))
    changed = (seen[0] != seen[1]).any(axis=(1, 2))
    assert changed.sum() == 1 and changed[np.searchsorted(edges, rows[700], side="right")]


def test_a_block_that_chance_made_large_is_summed_in_double_precision(problem) -> None:
    X, codes, weights = problem
    narrow = subject(X.astype(np.float32), codes, rate=0.01, dtype=np.float32)
    assert narrow._blocks.most < 60
    found = narrow(weights, np.arange(N), Flat(0.5)).total
    slow = clipped_gradient_sum(weights, X, codes, Flat(0.5)).total
    np.testing.assert_allclose(found, (1 - narrow._blocks.slack) * slow, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_threads_find_the_same_sum(problem, dtype, monkeypatch) -> None:
    X, codes, weights = problem
    monkeypatch.setattr(sums, "_SHARED", 1)
    rows, clip = np.arange(0, N, 2), GlobalAdapt(0.5, 2.0)
    both = subject(X.astype(dtype), codes, rate=0.5, dtype=dtype)
    alone = both(weights, rows, clip)
    with both.two_threads():
        shared = both(weights, rows, clip)
        again = both(weights, rows, clip)
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
    # Hundred gradients of nothing but noise, each of length 0.5 in a direction of its own.
    assert 0.5 * np.sqrt(100) * 0.6 < np.linalg.norm(noisy) < 0.5 * np.sqrt(100) * 1.4
    faint = subject(X, codes, pre_noise=1e-9, rng=rng)(weights, rows, Flat(0.5)).total
    plain = subject(X, codes)(weights, rows, Flat(0.5)).total
    np.testing.assert_allclose(faint, plain, rtol=1e-5, atol=1e-6)


def test_blocks_come_from_declared_figures_alone() -> None:
    assert np.array_equal(blocks_for(1_000, 0.5, np.float32).edges, [250, 500, 750])
    assert len(blocks_for(1_000_000, 1e-5, np.float32).edges) == 0
    assert blocks_for(50_000, 1.0, np.float64).slack < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("long", [1e30, 1e38, 1e150, 1e300, 1.7e308])
def test_a_row_of_any_length_neither_breaks_nor_exceeds_a_sum(problem, dtype, long) -> None:
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


def test_norms_of_rows_neither_overflow_nor_vanish() -> None:
    rows = np.array([[3e200, 4e200], [3e-200, 4e-200], [0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(row_norms(rows), [5e200, 5e-200, 0, 5])
    assert row_norms(np.array([[1.7e308, 1.7e308]]))[0] == np.inf
