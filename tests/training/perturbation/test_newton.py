"""The minimizer is exact, for one model and for thousands, or an error is raised."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from veracal.errors import AnswerError
from veracal.training import newton as solver
from veracal.training.newton import (
    HessianProducts,
    Hessians,
    build_problem,
    compute_gradients,
    has_converged,
    minimize,
)


def gradient(w, X, signs, b, penalty):
    """The definition, row by row."""
    total = np.asarray(penalty) * w + b
    for row, sign in zip(X, signs, strict=True):
        total = total - expit(-sign * (row @ w)) * sign * row
    return total


def slow_newton(X, signs, b, penalty):
    """Undamped Newton steps, for well-behaved problems."""
    w = np.zeros(X.shape[1])
    for _ in range(30):
        bends = expit(X @ w) * expit(-(X @ w))
        H = (X.T * bends) @ X + np.diag(np.broadcast_to(penalty, len(w)))
        w = w - np.linalg.solve(H, gradient(w, X, signs, b, penalty))
    return w


@pytest.fixture
def problem(rng):
    X = rng.normal(size=(40, 4))
    signs = np.where(rng.random((5, 40)) < 0.4, 1, -1)
    return X, signs, rng.normal(size=(5, 4)) * 3


def test_without_noise_it_is_scikit_learn_on_augmented_rows(problem):
    X, signs, _ = problem
    rows = np.hstack([X, np.ones((40, 1))])
    known = LogisticRegression(C=0.7, fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    expected = known.fit(rows, signs[0]).coef_
    result = minimize(rows, signs[0], np.zeros((1, 5)), penalty=1 / 0.7)
    np.testing.assert_allclose(result, expected, atol=1e-9)
    free = LogisticRegression(C=0.7, tol=1e-12).fit(
        X, signs[0]
    )  # another penalty: another model
    assert abs(result[0, -1] - free.intercept_[0]) > 1e-3


@pytest.mark.parametrize("penalty", [1.3, np.array([0.5, 1.0, 2.0, 7.0])], ids=["one", "many"])
def test_it_equals_slow_newton_and_scipy(problem, penalty):
    X, signs, linear = problem
    result = minimize(X, signs, linear, penalty=penalty)
    for w, marks, b in zip(result, signs, linear, strict=True):
        np.testing.assert_allclose(w, slow_newton(X, marks, b, penalty), atol=1e-10)

        def objective(v, marks=marks, b=b):
            return np.logaddexp(0, -marks * (X @ v)).sum() + (penalty * v) @ v / 2 + b @ v

        assert optimize.minimize(objective, w, tol=1e-10).fun >= objective(w) - 1e-12


def test_shared_signs_are_those_of_every_model(problem):
    X, signs, linear = problem
    one = minimize(X, signs[0], linear, penalty=1.0)
    each = minimize(X, np.tile(signs[0], (5, 1)), linear, penalty=1.0)
    np.testing.assert_allclose(one, each, atol=1e-10)
    assert np.abs(one - minimize(X, signs, linear, penalty=1.0)).max() > 0.01


def test_thousands_of_models_together_equal_single_solutions(problem, rng):
    X, signs, _ = problem
    linear = rng.normal(size=(2_500, 4)) * 10
    together = minimize(X, signs[0], linear, penalty=0.5)
    for model in (0, 1023, 1024, 2499):
        alone = minimize(X, signs[0], linear[model], penalty=0.5)
        np.testing.assert_allclose(together[model], alone[0], atol=1e-9)


def test_many_features_are_solved_without_matrices(rng, monkeypatch):
    X = rng.normal(size=(60, 30))
    signs = np.where(rng.random((3, 60)) < 0.5, 1, -1)
    linear = rng.normal(size=(3, 30))
    expected = minimize(X, signs, linear, penalty=0.1)
    formed = []
    monkeypatch.setattr(Hessians, "add", lambda *_: formed.append(1))
    monkeypatch.setattr(solver, "_MAX_DENSE", 8)
    np.testing.assert_allclose(minimize(X, signs, linear, penalty=0.1), expected, atol=1e-9)
    assert not formed


def test_conjugate_gradients_solve_with_the_matrix(problem):
    X, signs, linear = problem
    task = build_problem(X, signs, linear, 0.8)
    weights, chosen = linear / 7, np.array([True, False, True, True, False])
    dense, products = Hessians(task), HessianProducts(task)
    compute_gradients(task, weights, dense)
    compute_gradients(task, weights, products)
    right, exactly = linear[chosen], np.full(3, 1e-14)
    np.testing.assert_allclose(
        products.solve(chosen, right, exactly), dense.solve(chosen, right, exactly), atol=1e-10
    )
    numbers = np.flatnonzero(chosen)
    whole = np.einsum("mij,mj->mi", dense.matrices(chosen), right)
    np.testing.assert_allclose(products.times(numbers, right), whole, atol=1e-10)


def test_without_rows_only_penalty_and_noise_remain():
    linear = np.array([[1.0, -2.0], [3e7, 0.0]])
    result = minimize(np.zeros((0, 2)), np.zeros(0), linear, penalty=np.array([2.0, 4.0]))
    np.testing.assert_allclose(result, -linear / [2.0, 4.0])


@settings(max_examples=100)
@given(
    n=st.integers(0, 25),
    d=st.integers(1, 5),
    length=st.floats(-4, 4),
    stiffness=st.floats(-7, 3),
    noise=st.floats(-3, 5),
    seed=st.integers(0, 2**32 - 1),
    whole=st.booleans(),
)
def test_any_finite_input_is_solved(n, d, length, stiffness, noise, seed, whole):
    rng = np.random.default_rng(seed)
    R = 10.0**length
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-2, 2, (n, 1))
    X = np.round(X) if whole else X  # ties, duplicates, rows of zeros
    X *= R / max(1e-300, np.linalg.norm(X, axis=1).max(initial=0.0))
    signs = np.where(rng.random((2, n)) < rng.random(), 1, -1)
    linear = rng.normal(size=(2, d)) * R * 10.0**noise
    penalty = R * R * 10.0**stiffness
    result = minimize(X, signs, linear, penalty=penalty, tol=1e-10 * min(1, R))
    for w, marks, b in zip(result, signs, linear, strict=True):
        left = np.linalg.norm(gradient(w, X, marks, b, penalty))
        bend = n * R * min(1.0, np.linalg.norm(w) * R / 4)
        assert left <= 1e-10 * min(1, R) + 1e-14 * (n * R + bend + 3 * np.linalg.norm(b))


def test_large_margins_need_continuation(rng):
    X = rng.normal(size=(200, 15))
    X *= 100 / np.linalg.norm(X, axis=1, keepdims=True)
    signs = np.where(expit(X @ rng.normal(size=15) * 3) > rng.random(200), 1, -1)
    linear = rng.normal(size=(1, 15)) * 20
    task = build_problem(X, signs, linear, 1e-3)
    plain = solver._newton(task, np.zeros((1, 15)), Hessians, tol=1e-10, passes=40)
    assert not has_converged(task, plain, tol=1e-10).any()
    result = minimize(X, signs, linear, penalty=1e-3)
    assert np.linalg.norm(gradient(result[0], X, signs, linear[0], 1e-3)) < 1e-6


def test_the_final_gradient_is_within_rounding(rng):
    X = rng.normal(size=(20_000, 5))
    signs = np.where(X[:, 0] + rng.normal(size=20_000) > 0, 1, -1)
    result = minimize(X, signs, np.zeros((1, 5)), penalty=1.0)
    assert np.linalg.norm(gradient(result[0], X, signs, 0.0, 1.0)) < 1e-10
    nearby = result + 1e-12
    assert not has_converged(
        build_problem(X, signs, np.zeros((1, 5)), 1.0), nearby + 1e-9, tol=1e-10
    )[0]


def test_unsolved_models_raise(problem, monkeypatch):
    X, signs, linear = problem
    good = minimize(X, signs, linear, penalty=1.0)
    off = good.copy()
    off[3, 1] += 1e-9  # one weight of one model
    monkeypatch.setattr(solver, "_solve", lambda *_: off)
    with pytest.raises(AnswerError, match="nothing is released"):
        minimize(X, signs, linear, penalty=1.0)
    minimize(X, signs, linear, penalty=1.0, tol=1e-6)
    with pytest.raises(AnswerError):
        minimize(X, signs, linear, penalty=1.0, tol=1e-6, limit=1e-12)


def test_memory_does_not_grow_with_models_times_rows(rng):
    X, signs = rng.normal(size=(20_000, 2)), np.where(rng.random(20_000) < 0.5, 1, -1)
    linear = rng.normal(size=(150, 2))
    tracemalloc.start()
    minimize(X, signs, linear, penalty=10.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 < 20_000 * 150 * 8 / 2


@pytest.mark.parametrize(
    ("signs", "linear", "penalty"),
    [
        (np.ones(3), np.zeros((1, 2)), 1.0),
        (np.ones((2, 4)), np.zeros((3, 2)), 1.0),
        (np.ones(4), np.zeros((1, 3)), 1.0),
        (np.ones(4), np.zeros((1, 2)), 0.0),
        (np.ones(4), np.zeros((1, 2)), np.array([1.0, -1.0])),
    ],
)
def test_wrong_shapes_and_penalties_are_rejected(signs, linear, penalty):
    with pytest.raises(ValueError, match="Expected"):
        minimize(np.zeros((4, 2)), signs, linear, penalty=penalty)
