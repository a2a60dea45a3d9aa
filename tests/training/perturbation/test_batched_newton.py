"""Batched minimizers equal minimizers computed one by one."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from benchmarks.datasets import load
from veracal.errors import AnswerError
from veracal.training import ObjectivePerturbation
from veracal.training import batched_newton as many
from veracal.training.batched_newton import (
    TOL,
    BatchedProblem,
    FeaturePairs,
    Float32Rows,
    InverseHessians,
    noise_levels,
    solve_level,
)
from veracal.training.newton import minimize
from veracal.training.output_perturbation import spherical_gamma
from veracal.training.perturbation import RULES

SHAPES = {"credit": (489, 46, 19.5), "contraception": (1104, 9, 6.9), "thin": (30, 20, 3.0)}


def gradient_norms(weights, X, signs, b, penalty):
    """Relative norm of each gradient, by its definition."""
    rows = X * signs[:, None]
    gradients = penalty * weights + b - expit(-(weights @ rows.T)) @ rows
    size = np.linalg.norm(b, axis=1) + np.linalg.norm(penalty * weights, axis=1)
    return np.linalg.norm(gradients, axis=1) / size


def synthetic_problem(n, d, norm, rng):
    """Mostly short rows, with an appended one, and labels that depend on them."""
    X = rng.normal(size=(n, d)) * rng.gamma(2.0, size=(n, 1))
    X *= norm / np.linalg.norm(X, axis=1).max()
    signs = np.where(X[:, 0] + rng.normal(size=n) * X.std() > 0, 1, -1)
    return np.hstack([X, np.ones((n, 1))]), signs


def perturbed(d, norm, rule, epsilon, count, rng, C=1.0):
    """Penalty and noise of a rule."""
    model = ObjectivePerturbation(epsilon, C=C, rule=rule)
    used = model.perturbation(norm)
    noise = spherical_gamma(d, used.noise_scale, rng=rng, size=count)
    return model.penalties(used, d), noise


@pytest.mark.parametrize("epsilon", [0.5, 2.5])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_batched_minimizers_equal_single_ones(shape, rule, epsilon, rng):
    n, d, norm = SHAPES[shape]
    X, signs = synthetic_problem(n, d, norm, rng)
    penalty, noise = perturbed(d + 1, norm, rule, epsilon, 200, rng)
    result = BatchedProblem(X, signs, penalty).minimize(noise)
    # With the compatibility rule's penalty of a millionth for the intercept, some models are
    # slow.
    assert result.slow <= 10 * (penalty[-1] < 1e-3)
    assert gradient_norms(result.weights, X, signs, noise, penalty).max() <= TOL
    expected = minimize(X, signs, noise[:40], penalty=penalty)
    gaps = np.linalg.norm(result.weights[:40] - expected, axis=1)
    assert (gaps <= 1e-7 * np.linalg.norm(expected, axis=1)).all()


@pytest.mark.parametrize("name", ["credit", "contraception", "mammography", "dermatology"])
def test_real_tables_are_solved_together(name, data_folder, rng):
    data = load(name, variant="code", folder=data_folder("uci4").parent)
    norm = float(np.linalg.norm(data.X, axis=1).max())
    for rule in ("one-log", "diffprivlib-0.6.2"):
        for epsilon in (0.5, 2.5):
            model = ObjectivePerturbation(epsilon, norm=norm, rule=rule)
            task = model.binary(data)
            X, signs = np.asarray(task.rows), task.signs[0]
            penalty, noise = perturbed(X.shape[1], norm, rule, epsilon, 300, rng)
            result = BatchedProblem(X, signs, penalty).minimize(noise)
            assert result.slow == 0
            assert gradient_norms(result.weights, X, signs, noise, penalty).max() <= TOL


def test_single_precision_alone_is_not_enough(rng, monkeypatch):
    X, signs = synthetic_problem(300, 20, 5.0, rng)
    penalty, noise = perturbed(21, 5.0, "one-log", 1.0, 50, rng)
    searched = []
    search = BatchedProblem._search
    monkeypatch.setattr(
        BatchedProblem, "_search", lambda *args: searched.append(search(*args)) or searched[0]
    )
    task = BatchedProblem(X, signs, penalty)
    assert gradient_norms(task.minimize(noise).weights, X, signs, noise, penalty).max() <= TOL
    order = np.argsort(noise_levels(np.linalg.norm(noise, axis=1)), kind="stable")
    alone = (searched[0].T / np.sqrt(penalty)).astype(np.float64)
    assert gradient_norms(alone, X, signs, noise[order], penalty).max() > 3 * TOL


def test_solved_models_are_solved(rng):
    """Corrections from too far away are rejected, and all accepted ones are correct."""
    X, signs = synthetic_problem(200, 30, 8.0, rng)
    penalty, noise = perturbed(31, 8.0, "diffprivlib-0.6.2", 1.0, 64, rng)
    task = BatchedProblem(X, signs, penalty)
    exact = task.minimize(noise).weights
    scales, near = (
        np.sqrt(penalty),
        InverseHessians([np.eye(31, dtype=np.float32)], np.zeros(64, int)),
    )
    seen = []
    for away in 10.0 ** np.arange(-9, 1):
        weights = exact + away * rng.normal(size=exact.shape)
        moved, good = task._correct((weights * scales).T, (noise / scales).T, near)
        true = gradient_norms(moved.T / scales, X, signs, noise, penalty)
        assert (true[good] <= TOL).all()
        seen.append(good.mean())
    assert seen[0] == 1 and seen[-1] == 0 and 0 < np.mean(seen) < 1


@settings(max_examples=150)
@given(
    n=st.integers(0, 25),
    d=st.integers(1, 24),
    length=st.floats(-4, 4),
    stiffness=st.floats(-7, 3),
    noise=st.floats(-3, 5),
    own=st.booleans(),
    whole=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_finite_input_is_solved(n, d, length, stiffness, noise, own, whole, seed):
    rng = np.random.default_rng(seed)
    R = 10.0**length
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-2, 2, (n, 1))
    X = np.round(X) if whole else X  # ties, duplicates, rows of zeros
    X *= R / max(1e-300, np.linalg.norm(X, axis=1).max(initial=0.0))
    signs = np.where(rng.random(n) < rng.random(), 1, -1)
    linear = rng.normal(size=(3, d)) * R * 10.0**noise
    penalty = np.full(d, R * R * 10.0**stiffness)
    penalty[-1] *= 1e-3 if own else 1.0
    result = BatchedProblem(X, signs, penalty).minimize(linear).weights
    size = np.linalg.norm(linear, axis=1) + np.linalg.norm(penalty * result, axis=1)
    bend = R * np.minimum(1.0, np.linalg.norm(result, axis=1) * R / 4)
    lengths = gradient_norms(result, X, signs, linear, penalty) * size
    assert (lengths <= TOL * size + 1e-10 + 1e-14 * n * (R + bend)).all()


@pytest.mark.parametrize("C", [1e-4, 1e6])
@pytest.mark.parametrize("epsilon", [1e-3, 1e3])
def test_extreme_settings_are_solved(C, epsilon, rng):
    X, signs = synthetic_problem(150, 8, 4.0, rng)
    X[:5] = 0
    for rule in RULES:
        penalty, noise = perturbed(9, 4.0, rule, epsilon, 40, rng, C=C)
        result = BatchedProblem(X, signs, penalty).minimize(noise)
        expected = minimize(X, signs, noise, penalty=penalty)
        gaps = np.linalg.norm(np.sqrt(penalty) * (result.weights - expected), axis=1)
        size = np.linalg.norm(np.sqrt(penalty) * expected, axis=1)
        assert (gaps <= 1e-6 * np.maximum(1, size)).all()


@pytest.mark.parametrize("d", [3, 40])
def test_models_do_not_depend_on_other_models(d, rng, monkeypatch):
    X, signs = synthetic_problem(120, d, 4.0, rng)
    penalty, noise = perturbed(d + 1, 4.0, "one-log", 1.0, 90, rng)
    task = BatchedProblem(X, signs, penalty)
    together = task.minimize(noise).weights
    order = rng.permutation(90)
    np.testing.assert_allclose(task.minimize(noise[order]).weights, together[order], rtol=1e-6)
    monkeypatch.setattr(many, "_MODELS_TOGETHER", 7)
    np.testing.assert_allclose(task.minimize(noise).weights, together, rtol=1e-6)
    assert np.array_equal(task.minimize(noise).weights, task.minimize(noise).weights)
    assert task.minimize(noise[:0]).weights.shape == (0, d + 1)


def test_models_not_solved_together_are_solved_alone(rng, monkeypatch):
    X, signs = synthetic_problem(80, 5, 4.0, rng)
    penalty, noise = perturbed(6, 4.0, "one-log", 1.0, 30, rng)
    expected = minimize(X, signs, noise, penalty=penalty)
    solve = BatchedProblem._solve

    def partly(self, linear):
        weights, solved = solve(self, linear)
        weights[::3], solved[::3] = np.nan, False
        return weights, solved

    monkeypatch.setattr(BatchedProblem, "_solve", partly)
    result = BatchedProblem(X, signs, penalty).minimize(noise)
    assert result.slow == 10
    np.testing.assert_allclose(result.weights, expected, rtol=1e-6)
    monkeypatch.setattr(many, "minimize", lambda *_, **__: _raise())
    with pytest.raises(AnswerError):
        BatchedProblem(X, signs, penalty).minimize(noise)


def _raise():
    raise AnswerError("not found")


@pytest.mark.parametrize("shape", SHAPES)
def test_starting_points_are_near_the_minimizers(shape, rng):
    """Nearer than minimizers without noise or without data, on average over a level."""
    n, d, norm = SHAPES[shape]
    X, signs = synthetic_problem(n, d, norm, rng)
    penalty, noise = perturbed(d + 1, norm, "diffprivlib-0.6.2", 1.0, 100, rng)
    exact = BatchedProblem(X, signs, penalty).minimize(noise).weights
    scales, rows = np.sqrt(penalty), X * signs[:, None] / np.sqrt(penalty)
    starts = []
    for b, number in zip(noise, noise_levels(np.linalg.norm(noise, axis=1)), strict=True):
        center, response = solve_level(rows, scales, int(number))
        starts.append((center - response @ (b / scales)) / scales)

    def far(weights):
        return np.median(np.linalg.norm(weights - exact, axis=1))

    free = minimize(X, signs, np.zeros(d + 1), penalty=penalty)
    assert far(np.array(starts)) < 0.6 * min(far(-noise / penalty), far(free))


def test_equal_norms_have_equal_levels():
    norms = np.array([0.0, 1e-300, 1.0, 1.0, 1.7, 1e300])
    numbers = noise_levels(norms)
    assert numbers[2] == numbers[3] == 0 and numbers[4] == 1
    assert (np.diff(numbers) >= 0).all()


def test_systems_of_all_models_are_solved_at_once(rng):
    rows, bends = rng.normal(size=(50, 6)), rng.random((50, 9)).astype(np.float32)
    pairs = FeaturePairs(Float32Rows(rows))
    right = rng.normal(size=(6, 9)).astype(np.float32)
    result = pairs.solve(pairs.sums(bends), right)
    for model in range(9):
        matrix = (rows.T * bends[:, model]) @ rows + np.eye(6)
        np.testing.assert_allclose(
            result[:, model], np.linalg.solve(matrix, right[:, model]), 1e-4
        )


def test_memory_does_not_grow_with_models_times_rows(rng):
    X, signs = synthetic_problem(4_000, 3, 2.0, rng)
    penalty, noise = perturbed(4, 2.0, "one-log", 1.0, 4_000, rng)
    task = BatchedProblem(X, signs, penalty)
    tracemalloc.start()
    task.minimize(noise)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6 < 4_000 * 4_000 * 4


@pytest.mark.parametrize(
    ("signs", "linear", "penalty"),
    [
        (np.ones(3), np.zeros((1, 2)), 1.0),
        (np.ones((1, 4)), np.zeros((1, 2)), 1.0),
        (np.ones(4), np.zeros((1, 3)), 1.0),
        (np.ones(4), np.zeros((1, 2)), 0.0),
    ],
)
def test_wrong_shapes_and_penalties_are_rejected(signs, linear, penalty):
    with pytest.raises(ValueError, match="Expected"):
        BatchedProblem(np.zeros((4, 2)), signs, penalty).minimize(linear)
