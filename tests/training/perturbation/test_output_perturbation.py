"""Output perturbation: the noise covers the sensitivity to one row."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import LogisticRegression

from veracal.accounting import Gaussian, Pure, Unit, delta_for, epsilon_for
from veracal.data import Dataset
from veracal.errors import AnswerError
from veracal.training import OutputPerturbation
from veracal.training import newton as solver
from veracal.training.newton import MAX_RESIDUAL, minimize
from veracal.training.output_perturbation import gaussian_noise_multiplier, sensitivity

RELATIONS = ["add-remove", "replace-one"]


def weights_of(model):
    return np.hstack([model.coef_, model.intercept_[:, None]])


@pytest.fixture
def table(rng):
    X = rng.normal(size=(30, 2)) * 2
    return X, (X[:, 0] + rng.normal(size=30) > 0).astype(int)


def test_the_sensitivity_is_the_formula():
    for C, R in [(1.0, 1.0), (0.01, 7.0)]:
        gamma = MAX_RESIDUAL * R
        assert sensitivity(C, R, "add-remove") == pytest.approx(R * C + 2 * gamma * C)
        assert sensitivity(C, R, "replace-one") == pytest.approx(2 * R * C + 2 * gamma * C)


@settings(max_examples=100)
@given(
    st.integers(0, 8),
    st.sampled_from(RELATIONS),
    st.floats(-3, 3),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 3, 30, 300]),
)
def test_neighbors_differ_by_at_most_the_sensitivity(n, relation, size, seed, crowd):
    rng = np.random.default_rng(seed)
    C, R = 10.0**size, 2.0
    rows = rng.normal(size=(n + 2, 3))
    rows *= R / np.linalg.norm(rows, axis=1, keepdims=True) * rng.random((n + 2, 1)) ** 0.1
    signs = np.where(rng.random(n + 2) < 0.5, 1, -1)
    kept = [i for i in range(n) for _ in range(crowd)]
    other = kept if relation == "add-remove" else [*kept, n + 1]
    one, two = (
        minimize(rows[rows_of], signs[rows_of], np.zeros(3), penalty=1 / C)
        for rows_of in ([*kept, n], other)
    )
    assert np.linalg.norm(one - two) <= sensitivity(C, R, relation)


def test_the_sensitivity_is_nearly_reached():
    # Many rows make the weights long; a misclassified row has a full gradient and no curvature.
    crowd, row = np.tile([0.0, 2.0], (8_000, 1)), np.array([[1.65, 1.1]])
    far = [
        minimize(
            np.vstack([crowd, *extra]),
            np.append(np.ones(8_000), -np.ones(len(extra))),
            np.zeros(2),
            penalty=100.0,
        )
        for extra in ([row], [], [row * [-1, 1]])
    ]
    assert np.linalg.norm(far[0] - far[1]) > 0.7 * sensitivity(0.01, 2.0, "add-remove")
    assert np.linalg.norm(far[0] - far[2]) > 0.7 * sensitivity(0.01, 2.0, "replace-one")
    # The bound of add-remove therefore fails under replace-one.
    assert np.linalg.norm(far[0] - far[2]) > sensitivity(0.01, 2.0, "add-remove")


def test_an_intercept_without_penalty_breaks_the_bound():
    X = np.linspace(-0.1, 0.1, 5)[:, None]
    y = np.array([0, 0, 1, 1, 1])
    flipped = np.array([0, 0, 0, 1, 1])
    free = [
        LogisticRegression(C=0.01, tol=1e-9).fit(X, labels).intercept_[0]
        for labels in (y, flipped)
    ]
    bound = sensitivity(0.01, math.hypot(0.1, 1.0), "replace-one")
    assert abs(free[0] - free[1]) > 10 * bound
    rows = np.hstack([X, np.ones((5, 1))])
    ours = [
        minimize(rows, 2 * labels - 1, np.zeros(2), penalty=100.0) for labels in (y, flipped)
    ]
    assert np.linalg.norm(ours[0] - ours[1]) <= bound


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("delta", [0.0, 1e-4])
@pytest.mark.parametrize("k", [2, 4])
def test_the_noise_has_the_distribution_of_the_event(table, relation, delta, k):
    X, y = table
    settings_ = dict(C=0.1, norm=2.0, classes=[*range(k)], relation=relation)
    drawn = []
    for seed in range(160 if k == 2 else 60):
        model = OutputPerturbation(0.9, delta, random_state=seed, **settings_).fit(X, y)
        drawn.append(weights_of(model))
    exact = weights_of(OutputPerturbation(1e9, random_state=0, **settings_).fit(X, y))
    lengths = np.linalg.norm(np.array(drawn) - exact, axis=2).ravel()
    R = math.sqrt(5.0)
    bound = (R if relation == "add-remove" else 2 * R) * 0.1
    models = 1 if k == 2 else k
    if delta == 0:
        law, unit = stats.gamma(3), bound / (0.9 / models)
    else:
        law, unit = stats.chi(3), math.sqrt(models) * bound * model.event().noise
    assert stats.kstest(lengths / unit, law.cdf).pvalue > 0.01
    assert stats.kstest(lengths / unit / 1.2, law.cdf).pvalue < 0.01


def test_the_event_needs_no_norm():
    assert OutputPerturbation(0.5).event() == Pure(0.5)
    event = OutputPerturbation(0.5, 1e-6, relation="replace-one").event()
    assert isinstance(event, Gaussian) and event.sensitivity == 1.0
    assert event.relation == "replace-one"
    assert 0.4999 < epsilon_for(event, 1e-6) <= 0.5
    # The analytic Gaussian: the older formula, which fails above epsilon 1, has more noise.
    assert event.noise < math.sqrt(2 * math.log(1.25 / 1e-6)) / 0.5
    assert delta_for(Gaussian(0.95 * event.noise), 0.5) > 1e-6


def test_the_unit_pays_epsilon_for_all_its_rows():
    unit = Unit("patient", max_contributions=4)
    event = OutputPerturbation(0.5, 1e-6, unit=unit).event()
    assert 0.4999 < epsilon_for(event, 1e-6, unit) <= 0.5 < epsilon_for(event, 1e-6) * 4.5
    assert OutputPerturbation(0.5, unit=unit).event() == Pure(0.125)


def test_a_fit_has_its_parameters_as_attributes(table):
    X, y = table
    model = OutputPerturbation(2.0, C=0.1, norm=2.0, classes=[0, 1, 2], size=30).fit(X, y)
    assert model.private_ and model.statement_.epsilon == 2.0
    assert model.epsilon_per_class_ <= 2 / 3 and model.noise_std_ is None
    assert model.noise_scale_ == pytest.approx(model.sensitivity_ / model.epsilon_per_class_)
    model = OutputPerturbation(2.0, 1e-5, norm=2.0, classes=[0, 1, 2], size=30).fit(X, y)
    assert model.noise_scale_ is None and model.epsilon_per_class_ is None
    expected = model.event_.noise * math.sqrt(3) * model.sensitivity_
    assert model.noise_std_ == pytest.approx(expected)
    assert model.statement_.delta == 1e-5 and model.statement_.epsilon <= 2.0


def test_an_inexact_minimizer_is_not_released(table, monkeypatch):
    X, y = table
    right = solver._solve

    def off(problem, tol):
        return right(problem, tol) + 1e-3

    monkeypatch.setattr(solver, "_solve", off)
    model = OutputPerturbation(norm=2.0, classes=[0, 1], size=30)
    with pytest.raises(AnswerError, match="nothing is released"):
        model.fit_records(Dataset(X, y, (0, 1), size=30))
    assert not hasattr(model, "coef_")


def test_noise_for_a_budget_is_cached():
    gaussian_noise_multiplier.cache_clear()
    first = OutputPerturbation(0.5, 1e-6).event()
    assert OutputPerturbation(0.5, 1e-6).event() == first
    assert gaussian_noise_multiplier.cache_info().hits == 1
