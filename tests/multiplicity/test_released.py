"""What one released model tells of arbitrariness, against re-training."""

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import gamma

from veracal.errors import DataError
from veracal.multiplicity import released
from veracal.multiplicity.measures import disagreement
from veracal.multiplicity.runs import Runs
from veracal.training.perturbation.noise import spherical_gamma
from veracal.training.perturbation.rules import one_log
from veracal.training.perturbation.solver import minimize

RNG = np.random.default_rng(0)
told, certified = released.gaussian_arbitrariness, released.objective_certificate


def test_the_closed_form_is_what_runs_with_new_noise_show():
    w, X, sigma, m = RNG.normal(size=4), RNG.normal(size=(30, 4)), 1.3, 20_000
    runs = (w + sigma * RNG.normal(size=(m, 4))) @ X.T > 0
    tally = Runs(30)
    tally.add(runs.astype(int))
    found = disagreement(tally.counts[:, 1], m)
    np.testing.assert_allclose(
        released.gaussian_disagreement(w, X, sigma), found, atol=5 * 2 / np.sqrt(m)
    )


def test_a_row_of_zeros_is_never_above_the_threshold():
    assert released.gaussian_disagreement([1.0, 2.0], np.zeros((1, 2)), 1.0).tolist() == [0.0]
    found = released.gaussian_arbitrariness([1.0, 2.0], np.zeros((1, 2)), 1.0)
    assert (found.low[0], found.high[0], found.flip[0]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 3.0])
def test_intervals_cover_a_person_named_beforehand(t):
    """Each end fails in at most a twentieth, at its own distance t."""
    mu, level, trials = 4 * ndtr(t) * ndtr(-t), 0.9, 4_000
    low, high = np.empty(trials), np.empty(trials)
    for i, z in enumerate(RNG.normal(t, 1.0, trials)):
        found = released.gaussian_arbitrariness([z], [[1.0]], 1.0, level=level)
        low[i], high[i] = found.low[0], found.high[0]
    assert (low > mu).mean() <= 0.05 + 0.012
    assert (high < mu).mean() <= 0.05 + 0.012
    if t == 0.0:  # with one tail instead of two it would be twice as often
        assert (high < mu).mean() > 0.03


def test_intervals_for_everybody_hold_for_who_is_chosen_afterwards():
    w, d, level, failed = np.full(5, 0.7), 5, 0.8, 0
    for _ in range(400):
        noise = RNG.normal(size=d)
        X = np.stack([noise, -noise, w, w + noise])  # chosen by somebody who knows the noise
        truth = released.gaussian_disagreement(w, X, 1.0)
        found = released.gaussian_arbitrariness(w + noise, X, 1.0, level=level, people=None)
        failed += bool(((truth < found.low) | (truth > found.high)).any())
    assert failed / 400 <= 0.2 + 0.06
    named = released.gaussian_arbitrariness(w, np.eye(5), 1.0, people=1)
    everybody = released.gaussian_arbitrariness(w, np.eye(5), 1.0, people=None)
    assert (everybody.high >= named.high).all() and (everybody.low <= named.low).all()


def test_the_unshrunk_estimate_calls_arbitrary_decisions_safer_than_they_are():
    """Flips at distance 0 average 0.30 instead of 0.50, at distance 3 0.041 for 0.003."""
    for t, flat, truth in ((0.0, 0.304, 0.50), (3.0, 0.041, 0.003)):
        z = RNG.normal(t, 1.0, 400_000)
        assert ndtr(-np.abs(z) / np.sqrt(2)).mean() == pytest.approx(flat, abs=2e-3)
        contradicted = np.where(z > 0, ndtr(-t), ndtr(t))
        assert contradicted.mean() == pytest.approx(truth, abs=3e-3)


def test_the_shrunk_estimate_is_nearer_to_the_truth():
    d, X = 10, RNG.normal(size=(500, 10))
    w, shrunk, flat, truth = 0.3 * RNG.normal(size=d), [], [], []
    for _ in range(200):
        seen = w + RNG.normal(size=d)
        shrunk.append(released.gaussian_arbitrariness(seen, X, 1.0).flip.mean())
        far = X @ seen / np.linalg.norm(X, axis=1)
        flat.append(ndtr(-np.abs(far) / np.sqrt(2)).mean())
        t = X @ w / np.linalg.norm(X, axis=1)
        truth.append(np.where(far > 0, ndtr(-t), ndtr(t)).mean())
    near, far = (abs(np.mean(found) - np.mean(truth)) for found in (shrunk, flat))
    assert near < far / 3


def problem(n=300, d=4):
    """Rows within a ball, and labels that follow a line."""
    X = RNG.normal(size=(n, d))
    X /= np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None]
    signs = np.where(
        X @ np.array([3.0, -2.0, 1.0, 0.5])[:d] + 0.3 * RNG.normal(size=n) > 0, 1, -1
    )
    return X, signs


def test_the_certificate_of_objective_perturbation_holds_for_everybody_at_once():
    X, signs = problem()
    used = one_log(2.0, 0.02, 1.0, "replace-one")
    given = {"penalty": used.lambda_total, "noise_scale": used.noise_scale}

    def fitted(m):
        noise = spherical_gamma(4, used.noise_scale, rng=RNG, size=m)
        return minimize(X, signs, noise, penalty=used.lambda_total)

    positive = (fitted(4_000) @ X.T > 0).mean(axis=0)
    failed, told = 0, []
    for weights in fitted(60):
        found = released.objective_certificate(weights, X, **given, level=0.9)
        flips = np.where(weights @ X.T > 0, 1 - positive, positive)
        known = found.high < 1
        error = 4 * np.sqrt(positive * (1 - positive) / 4_000)
        failed += bool((4 * positive * (1 - positive) > found.high + 4 * error)[known].any())
        told.append(found.told)
        assert (flips[known] < 0.5 + error[known]).all() or failed
    assert failed / 60 <= 0.1 + 0.1
    assert np.mean(told) > 0.05  # and it says something of somebody


def test_the_probability_of_noise_so_far_away_is_rounded_up_and_not_by_much():
    d, scale, level = 3, 2.0, 0.95
    radius = gamma.ppf(level, d, scale=scale)
    noise = spherical_gamma(d, scale, rng=RNG, size=400_000)
    away = np.linalg.norm(noise - np.array([radius, 0, 0]), axis=1)
    for distance in (0.5 * radius, radius, 1.5 * radius, 3 * radius):
        found = released._beyond(np.array([distance]), radius, d, scale)[0]
        truth = (away >= distance).mean()
        assert truth - 0.003 <= found <= truth + 0.005


def test_in_one_dimension_noise_has_two_directions():
    radius = gamma.ppf(0.9, 1, scale=1.0)
    found = released._beyond(np.array([radius + 2.0]), radius, 1, 1.0)[0]
    expected = 0.5 * np.exp(-2.0) + 0.5 * np.exp(-(2 * radius + 2.0))
    assert expected <= found <= expected + 2e-3


def test_a_weak_penalty_says_nothing_of_anybody():
    X, _ = problem()
    used = one_log(1.0, 1.0, 1.0, "replace-one")
    found = released.objective_certificate(
        np.full(4, 0.1), X, penalty=used.lambda_total, noise_scale=used.noise_scale
    )
    assert found.told == 0.0 and (found.high == 1.0).all()


def test_a_solver_that_stopped_early_widens_the_bound():
    X, w = np.eye(3), np.array([50.0, 20.0, 1.0])
    given = {"penalty": 1.0, "noise_scale": 1.0}
    exact = released.objective_certificate(w, X, **given).high
    early = released.objective_certificate(w, X, **given, residual=3.0).high
    assert (early >= exact).all() and (early > exact).any()


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: released.gaussian_arbitrariness([1.0], [[1.0, 2.0]], 1.0),
            DataError,
            "1 numb",
        ),
        (
            lambda: released.gaussian_arbitrariness([[1.0]], [[1.0]], 1.0),
            DataError,
            "two classes",
        ),
        (lambda: released.gaussian_arbitrariness([np.nan], [[1.0]], 1.0), DataError, "finite"),
        (lambda: released.gaussian_arbitrariness([1.0], [[1.0]], 0.0), ValueError, "noise_std"),
        (
            lambda: released.gaussian_arbitrariness([1.0], [[1.0]], 1.0, level=1.0),
            ValueError,
            "level",
        ),
        (
            lambda: released.objective_certificate([1.0], [[1.0]], penalty=0, noise_scale=1),
            ValueError,
            "penalty",
        ),
    ],
)
def test_what_cannot_be_meant(call, error, said):
    with pytest.raises(error, match=said):
        call()
