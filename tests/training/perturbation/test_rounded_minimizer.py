"""The rounded minimizer is the same in every precision."""

from decimal import Decimal

import numpy as np
import pytest

from veracal.training import ObjectivePerturbation
from veracal.training import objective_perturbation as rounded_minimizer
from veracal.training.newton import build_problem, minimize
from veracal.training.objective_perturbation import (
    _round_in_decimal,
    _round_in_float64,
    _round_in_long_double,
    minimizer_grid_step,
    rounded_minimizers,
)


class KnownNoise:
    """Noise of known numbers whose further digits can be drawn."""

    def __init__(self, vector, width=Decimal(0)):
        self.vector, self.width, self.refined = [Decimal(float(x)) for x in vector], width, 0

    def intervals(self):
        return [(x - self.width, x + self.width) for x in self.vector]

    def refine(self):
        self.refined += 1
        self.width /= 10**15


def draw_problem(rng, n=20, d=3):
    rows = rng.normal(size=(n, d))
    return rows, np.where(rng.random((1, n)) < 0.5, 1, -1), rng.normal(size=d)


@pytest.mark.parametrize("n", [0, 1, 40])
@pytest.mark.parametrize("d", [1, 3])
def test_all_precisions_give_the_same_cell(rng, n, d):
    penalty = rng.uniform(0.5, 2.0, d)
    for _ in range(5):
        rows, signs, vector = draw_problem(rng, n, d)
        problem = build_problem(rows, signs, vector[None], penalty).of([0])
        w = minimize(rows, signs, vector[None], penalty=penalty)[0]
        result = _round_in_float64(problem, w, 2.0**-18)
        assert result == np.rint(w * 2.0**18).tolist()
        assert _round_in_decimal(problem, w + 1e-6, KnownNoise(vector), 2.0**-18) == result
        long = _round_in_long_double(problem, w + 1e-6, KnownNoise(vector), 2.0**-18)
        assert long in (result, None) if np.finfo(np.longdouble).nmant <= 52 else long == result


def test_a_grid_finer_than_float64_needs_more_digits(rng):
    rows, signs, vector = draw_problem(rng)
    penalty, step = np.ones(3), 2.0**-80
    problem = build_problem(rows, signs, vector[None], penalty).of([0])
    w = minimize(rows, signs, vector[None], penalty=penalty)[0]
    assert _round_in_float64(problem, w, step) is None
    result = _round_in_decimal(problem, w, KnownNoise(vector), step)
    # The gradient at that point is below half a step times the largest curvature.
    near = [Decimal(k) * Decimal(step) for k in result]
    g, _ = rounded_minimizer._decimal_gradient(
        problem, near, [Decimal(float(x)) for x in vector]
    )
    most = 1 + float((rows**2).sum()) / 4
    assert max(abs(float(x)) for x in g) <= most * step * 3


def test_noise_is_refined_if_its_digits_do_not_suffice():
    # Without rows the minimizer is minus the noise: just above half a step.
    noise = KnownNoise([-0.5 * 2.0**-10 - 2.0**-50], Decimal(2) ** -40)
    problem = build_problem(np.zeros((0, 1)), np.zeros((1, 0)), [[0.0]], np.ones(1)).of([0])
    assert _round_in_decimal(problem, np.array([0.5 * 2.0**-10]), noise, 2.0**-10) == [1]
    assert noise.refined


def test_a_ball_over_a_boundary_is_not_rounded():
    w = np.array([0.5 * 2.0**-10])
    assert rounded_minimizer._enclosing_cell(w, 1e-9, 2.0**-10) is None
    assert rounded_minimizer._enclosing_cell(w * 1.5, 1e-9, 2.0**-10) == [1]
    assert rounded_minimizer._enclosing_cell(w * 1.5, 1.0, 2.0**-10) is None


def test_the_float_bound_covers_the_rounding(rng):
    """Weights whose error exceeds their gradient bound are never treated as exact."""
    penalty, step = np.full(3, 0.1), 2.0**-30
    for _ in range(20):
        rows, signs, vector = draw_problem(rng, 200, 3)
        problem = build_problem(rows, signs, vector[None], penalty).of([0])
        w = minimize(rows, signs, vector[None], penalty=penalty)[0]
        right = _round_in_decimal(problem, w, KnownNoise(vector), step)
        assert _round_in_float64(problem, w, step) in (right, None)
        assert _round_in_float64(problem, w + rng.normal(size=3) * 1e-7, step) in (right, None)


def test_every_model_gets_independent_noise(rng):
    rows, signs, _ = draw_problem(rng)
    signs, vectors = np.vstack([signs, -signs]), rng.normal(size=(2, 3))
    step = minimizer_grid_step(1.0, 2.0, 3)
    result = rounded_minimizers(
        rows,
        signs,
        [KnownNoise(one) for one in vectors],
        penalty=np.full(3, 2.0),
        step=step,
        tol=1e-10,
        limit=1e-3,
    )
    expected = minimize(rows, signs, vectors, penalty=2.0)
    np.testing.assert_array_equal(result, np.rint(expected / step) * step)


def test_the_grid_is_public_and_finer_than_the_effect_of_a_row(rng):
    for R, penalty, d in [(1.0, 1.0, 1), (7.3, 0.02, 50), (1e-6, 1e6, 3)]:
        step = minimizer_grid_step(R, penalty, d)
        assert 2.0**-21 < step * penalty * np.sqrt(d) / R <= 2.0**-20
    steps = set()
    for n in (5, 40):
        X, y = rng.normal(size=(n, 2)), rng.integers(0, 2, n)
        model = ObjectivePerturbation(norm=2.0, classes=[0, 1], size=20).fit(X, y)
        units = np.c_[model.coef_, model.intercept_] / model.grid_step_
        assert (units == np.rint(units)).all()
        steps.add(model.grid_step_)
    assert len(steps) == 1
