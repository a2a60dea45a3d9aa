"""Objective perturbation: its distribution, its split over classes, and its private rules."""

import math

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit

from veracal.accounting import NotPrivate, Pure, Unit
from veracal.data import Dataset
from veracal.training import ObjectivePerturbation


def slow_releases(X, signs, *, epsilon, C, norm, relation, draws, rng, more_noise=1.0):
    """An independent implementation: rows one by one, noise by definition, plain Newton."""
    rows = np.array([[*(row * min(1, norm / np.linalg.norm(row))), 1.0] for row in X])
    R = math.sqrt(norm**2 + 1)
    penalty = max(1 / C, R**2 / 4 / (math.exp(epsilon / 2) - 1))
    left = epsilon - math.log(1 + R**2 / 4 / penalty)
    scale = more_noise * (2 if relation == "replace-one" else 1) * R / left
    d = rows.shape[1]
    noise = rng.normal(size=(draws, d))
    # A sum of d exponentials is Gamma of shape d.
    lengths = rng.exponential(scale, size=(draws, d)).sum(axis=1)
    noise *= (lengths / np.sqrt((noise**2).sum(axis=1)))[:, None]
    W, pairs = np.zeros((draws, d)), np.array([np.outer(row, row).ravel() for row in rows])
    for _ in range(14):
        margins = W @ rows.T
        pulls = -expit(-signs * margins) * signs
        G = pulls @ rows + penalty * W + noise
        bends = expit(margins) * expit(-margins)
        H = (bends @ pairs).reshape(-1, d, d) + penalty * np.eye(d)
        W -= np.linalg.solve(H, G[:, :, None])[:, :, 0]
    assert np.abs(G).max() < 1e-6
    return W


def weights_of(model):
    return np.hstack([model.coef_, model.intercept_[:, None]])


def agree(some, others, level=1e-3):
    """Whether all coordinates, and the length, have the same distribution."""
    views = [*zip(some.T, others.T, strict=True)]
    views.append((np.linalg.norm(some, axis=1), np.linalg.norm(others, axis=1)))
    return min(stats.ks_2samp(one, other).pvalue for one, other in views) > level


@pytest.fixture
def table(rng):
    X = rng.normal(size=(30, 2)) * 2  # some rows are longer than the norm of 2 below
    return X, (X[:, 0] + rng.normal(size=30) > 0).astype(int)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_its_distribution_is_that_of_a_slow_implementation(table, relation):
    X, y = table
    fits = []
    for seed in range(350):
        model = ObjectivePerturbation(
            2.0, C=0.2, norm=2.0, classes=[0, 1], relation=relation, random_state=seed
        )
        fits.append(weights_of(model.fit(X, y))[0])
    known = dict(epsilon=2.0, C=0.2, norm=2.0, draws=6_000)
    rng = np.random.default_rng(7)
    signs = 2 * y - 1
    slow = slow_releases(X, signs, relation=relation, rng=rng, **known)
    assert agree(np.array(fits), slow)
    other = {"add-remove": "replace-one", "replace-one": "add-remove"}[relation]
    assert not agree(np.array(fits), slow_releases(X, signs, relation=other, rng=rng, **known))


def test_one_vs_rest_has_the_distribution_of_its_share(table):
    # Of sixty declared classes only two have records: the others are draws of one distribution.
    X, y = table
    fits = []
    for seed in range(200):
        model = ObjectivePerturbation(
            60.0, C=0.2, norm=2.0, classes=[*range(60)], random_state=seed
        )
        fits.append(weights_of(model.fit(X, y))[2:])
    assert model.epsilon_per_class_ == 1.0
    drawn = np.concatenate(fits)
    known = dict(epsilon=1.0, C=0.2, norm=2.0, relation="add-remove", draws=len(drawn))
    rng, none = np.random.default_rng(7), -np.ones(30)
    assert agree(drawn, slow_releases(X, none, rng=rng, **known))
    assert not agree(drawn, slow_releases(X, none, rng=rng, more_noise=1.1, **known))


def test_it_minimizes_the_stated_objective(table):
    X, y = table
    model = ObjectivePerturbation(1e6, C=0.5, norm=100.0, random_state=0).fit(X, y)  # no noise
    assert model.lambda_total_ == 2.0

    def objective(w):
        return np.logaddexp(0, (1 - 2 * y) * (X @ w[:2] + w[2])).sum() + w @ w

    expected = optimize.minimize(objective, np.zeros(3), tol=1e-9).x
    np.testing.assert_allclose(weights_of(model)[0], expected, atol=1e-3)


def test_without_intercept_the_norm_bound_is_the_norm(table):
    model = ObjectivePerturbation(fit_intercept=False, norm=3.0, random_state=0).fit(*table)
    assert model.intercept_.tolist() == [0.0]
    assert model.norm_bound_ == pytest.approx(3.0)
    assert model.noise_scale_ == pytest.approx(3.0 / model.epsilon_prime_)


def test_the_unit_shares_epsilon_among_its_rows():
    model = ObjectivePerturbation(1.0, unit=Unit("patient", max_contributions=3))
    event = model.event()
    assert event == Pure(0.3333333333333333)
    alone = ObjectivePerturbation(event.epsilon)
    assert model.perturbation(2.0, 5) == alone.perturbation(2.0, 5)


def test_epsilon_is_split_over_more_than_two_classes():
    model = ObjectivePerturbation(1.0)
    assert model.perturbation(2.0, 2) == model.perturbation(2.0)
    assert model.perturbation(2.0, 7).epsilon_prime < 1 / 7
    scales = [model.perturbation(2.0, k).noise_scale for k in (2, 3, 4)]
    assert scales[0] < scales[1] < scales[2]


@pytest.mark.parametrize("rule", ["one-log", "cms11"])
def test_private_rules_cost_epsilon(rule, table):
    X, y = table
    model = ObjectivePerturbation(0.7, rule=rule, norm=2.0, classes=[0, 1], size=30).fit(X, y)
    assert model.event() == model.event_ == Pure(0.7)
    assert model.private_ and model.statement_.epsilon == pytest.approx(0.7)


def test_the_diffprivlib_rule_is_never_called_private(table):
    X, y = table
    model = ObjectivePerturbation(
        rule="diffprivlib-0.6.2", norm=2.0, classes=[0, 1], size=30, relation="replace-one"
    ).fit(X, y)
    assert not model.private_ and model.event_ is None
    assert isinstance(model.statement_, NotPrivate)
    for text in (model.statement_.text(), repr(model), type(model).__doc__):
        assert "not epsilon-" in text
    assert "not epsilon" not in repr(ObjectivePerturbation())
    with pytest.raises(ValueError, match="not private"):
        model.event()
    assert model.intercept_penalty_ < model.lambda_total_


def test_public_figures_do_not_depend_on_the_records(rng):
    figures = []
    for n in (1, 40):
        X, y = rng.normal(size=(n, 2)) * 9, rng.integers(0, 2, n)
        data = Dataset(X, y, ("no", "yes", "perhaps"), size=25)
        model = ObjectivePerturbation(norm=3.0, C=4.0).fit_records(data)
        figures.append(
            {k: v for k, v in vars(model).items() if isinstance(v, float | tuple | str)}
        )
    assert figures[0] == figures[1]
    assert {"lambda_total_", "noise_scale_", "epsilon_per_class_", "norm_bound_"} <= set(
        figures[0]
    )
