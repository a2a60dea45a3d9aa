"""Penalty and noise keep the budget on the worst-case neighbors, with little slack."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assurance.gate_perturbation import worst_loss
from tests.training.perturbation.density import log_density
from veracal.training.newton import minimize
from veracal.training.output_perturbation import spherical_gamma
from veracal.training.perturbation import (
    NOT_PRIVATE,
    RULES,
    cms11,
    diffprivlib_062,
    divide_epsilon,
    one_log,
)

RELATIONS = ["add-remove", "replace-one"]
PRIVATE = [one_log, cms11]
GRID = [(0.01, 1.0, 1.0), (0.5, 1.0, 10.0), (1.0, 0.01, 2.0), (2.5, 1.0, 5.0), (8.0, 1e4, 3.0)]


def test_the_formulas():
    used = one_log(1.0, 1.0, 10.0, "replace-one")
    penalty = 25 / (math.exp(0.5) - 1)
    assert used.lambda_total == pytest.approx(penalty) == used.intercept_penalty
    assert used.epsilon_prime == pytest.approx(0.5)
    assert used.noise_scale == pytest.approx(2 * 10 / 0.5)
    used = one_log(1.0, 0.001, 10.0, "add-remove")
    assert used.lambda_total == 1000.0
    assert used.noise_scale == pytest.approx(10 / (1 - math.log(1.025)))
    used = cms11(1.0, 1.0, 10.0, "replace-one")
    assert used.lambda_total == pytest.approx(25 / (math.exp(0.25) - 1))
    used = cms11(1.0, 0.001, 10.0, "replace-one")
    assert used.noise_scale == pytest.approx(20 / (1 - 2 * math.log(1.025)))


def test_the_formulas_of_diffprivlib():
    used = diffprivlib_062(0.5, 1.0, 10.0, "replace-one")
    more = 2.5 / (math.exp(0.125) - 1) - 0.5
    assert used.lambda_total == pytest.approx(1 + more)
    assert used.intercept_penalty == pytest.approx(more)
    assert used.noise_scale == pytest.approx(2 * 10 / 0.25)
    used = diffprivlib_062(3.0, 1.0, 1.5, "add-remove")
    assert used.noise_scale == pytest.approx(3.0 / (3.0 - 2 * math.log(1.75)))
    assert used.lambda_total == 1.0 and used.intercept_penalty == 1e-6


@given(st.floats(1e-6, 500), st.floats(1e-6, 1e6), st.floats(1e-3, 1e3))
def test_half_of_epsilon_remains_for_the_noise(epsilon, C, R):
    used = one_log(epsilon, C, R, "add-remove")
    assert used.epsilon_prime >= epsilon / 2 * (1 - 1e-9)
    assert used.lambda_total >= 1 / C
    spent = used.epsilon_prime + math.log1p(R * R / 4 / used.lambda_total)
    assert spent <= epsilon * (1 + 1e-12)
    older = cms11(epsilon, C, R, "add-remove")
    assert used.noise_scale <= older.noise_scale * (1 + 1e-9)


def test_there_is_no_cliff():
    near = [
        0.4463 + step / 1e5 for step in range(-20, 20)
    ]  # where epsilon' of the published rule is near 0
    smooth, cliff = (
        [rule(epsilon, 1.0, 1.0, "replace-one").noise_scale for epsilon in near]
        for rule in (one_log, cms11)
    )
    assert max(smooth) / min(smooth) < 1.01
    assert max(cliff) / min(cliff) > 100


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("rule", PRIVATE)
def test_the_worst_neighbors_stay_within_epsilon(rule, relation):
    for epsilon, C, R in GRID:
        used = rule(epsilon, C, R, relation)
        assert worst_loss(used, R, relation) <= epsilon
    assert (
        worst_loss(one_log(0.5, 1.0, 10.0, relation), 10.0, relation) > 0.35
    )  # and use most of it


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("rule", PRIVATE)
def test_close_but_wrong_rules_are_detected(rule, relation):
    epsilon, R = 0.5, 10.0
    used = rule(epsilon, 1.0, R, relation)
    unpenalized = replace(used, intercept_penalty=1e-6)
    assert worst_loss(unpenalized, R, relation) > epsilon
    bent = rule(epsilon, 1.0, math.sqrt(R), relation).lambda_total  # R instead of R squared
    assert worst_loss(replace(used, lambda_total=bent), R, relation) > epsilon
    if rule is one_log:  # the other rule has more noise than necessary
        halved = replace(used, noise_scale=used.noise_scale / 2)
        assert worst_loss(halved, R, relation) > epsilon
    # Under replace-one, the noise of add-remove.
    wrong = one_log(epsilon, 1.0, R, "add-remove")
    assert worst_loss(wrong, R, "replace-one") > epsilon


def test_diffprivlib_is_not_private():
    # The supremum in two dimensions is 1.02, and actual neighbors come close to it.
    used = diffprivlib_062(0.5, 1.0, 10.0, "replace-one")
    even = replace(used, intercept_penalty=used.lambda_total)  # even without an intercept
    assert 0.94 < worst_loss(even, 10.0, "replace-one") < 1.03
    assert set(NOT_PRIVATE) == {"diffprivlib-0.6.2"} < set(RULES)


@settings(max_examples=120)
@given(
    rule=st.sampled_from(PRIVATE),
    relation=st.sampled_from(RELATIONS),
    epsilon=st.floats(0.05, 5),
    n=st.integers(0, 6),
    d=st.integers(2, 4),
    R=st.floats(0.5, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_neighbors_stay_within_epsilon(rule, relation, epsilon, n, d, R, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n + 2, d))
    rows *= R / np.linalg.norm(rows, axis=1, keepdims=True)
    signs = np.where(rng.random(n + 2) < 0.5, 1, -1)
    weights = rng.normal(size=(20, d)) * 10.0 ** rng.uniform(-2, 3, (20, 1)) / R
    used = rule(epsilon, 10.0, R, relation)
    kept = [*range(n)]
    first, second = ([*kept, n], kept if relation == "add-remove" else [*kept, n + 1])
    one, other = (
        log_density(
            weights,
            rows[rows_of],
            signs[rows_of],
            penalty=used.lambda_total,
            noise_scale=used.noise_scale,
        )
        for rows_of in (first, second)
    )
    assert np.abs(one - other).max() <= epsilon


def test_the_density_is_that_of_the_release(rng):
    rows, signs = rng.normal(size=(3, 2)), np.array([1, -1, 1])
    axis, step = np.linspace(-15, 15, 501, retstep=True)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    known = {"penalty": 2.0, "noise_scale": 1.5}
    density = np.exp(log_density(points, rows, signs, **known))
    assert density.sum() * step**2 == pytest.approx(1, abs=2e-3)
    # The releases match the density in each of sixteen cells.
    noise = spherical_gamma(2, 1.5, rng=rng, size=20_000)
    released = minimize(rows, signs, noise, penalty=2.0)
    edges = np.array([-15.05, -1.05, -0.03, 0.99, 15.05])
    counts, *_ = np.histogram2d(*released.T, bins=(edges, edges))
    chances, *_ = np.histogram2d(*points.T, bins=(edges, edges), weights=density * step**2)
    assert np.abs(counts / 20_000 - chances).max() < 0.012
    wrong = np.exp(log_density(points, rows, signs, penalty=2.0, noise_scale=1.8))
    chances, *_ = np.histogram2d(*points.T, bins=(edges, edges), weights=wrong * step**2)
    assert np.abs(counts / 20_000 - chances).max() > 0.012


@given(st.floats(1e-6, 1e6), st.integers(1, 1000))
def test_parts_never_exceed_the_whole(epsilon, parts):
    part = divide_epsilon(epsilon, parts)
    assert parts * Fraction(repr(part)) <= Fraction(repr(epsilon))
    assert part == pytest.approx(epsilon / parts, rel=1e-12)
    assert parts * Fraction(repr(math.nextafter(part, math.inf))) >= Fraction(repr(epsilon)) * (
        1 - Fraction(1, 10**14)
    )
