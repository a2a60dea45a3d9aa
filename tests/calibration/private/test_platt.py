"""A private affine map by descent, and what both methods share."""

import numpy as np
import pytest
from scipy import optimize

from tests.calibration.private.conftest import miscalibrated
from veracal.accounting import Budget, epsilon_for
from veracal.calibration import Platt, PrivatePlatt
from veracal.calibration.queries.scalars import loss_at
from veracal.data import Scores
from veracal.errors import DataError
from veracal.queries import Public

FORMS = ["scalar", "vector", "matrix"]


def shifted(n, rng):
    """Scores with a wrong temperature, and a bias toward the first class."""
    scores = miscalibrated(n, 1.6, rng, classes=3)
    return Scores.from_logits(scores.values + np.array([1.0, 0.0, -0.5]), scores.labels)


def loss(scores):
    return float(np.mean(loss_at(scores, 1.0)))


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_source_improves_the_loss(source_of, rng, form):
    scores = shifted(1_000, rng)
    settings = {"epsilon": 8.0, "delta": 1e-5, "classes": 3, "size": 1_000, "steps": 12}
    fitter = PrivatePlatt(form, method="descent", **settings)
    source = source_of(scores, Budget(8.0, 1e-5), kind="plan", plan=fitter.items())
    result = fitter.fit(source)
    assert result.map_.form == form
    assert loss(result.transform(scores)) < loss(scores) - 0.01
    exact = PrivatePlatt(form, method="descent", **settings)
    exact.fit(Public(scores))
    flat = [np.concatenate([np.ravel(m.weights), m.bias]) for m in (result.map_, exact.map_)]
    # The noise of all parameters: at most 5 standard deviations.
    assert np.abs(flat[0] - flat[1]).max() < 5 * result.noise_std_ + 1e-12
    if result.private_:
        assert result.statement_.epsilon <= 8.0 + 1e-9


def test_many_steps_minimize_the_loss(rng):
    scores = shifted(1_000, rng)
    fitter = PrivatePlatt(
        "scalar",
        method="descent",
        epsilon=1.0,
        delta=1e-5,
        classes=3,
        size=1_000,
        steps=120,
        learning_rate=3.0,
    )
    result = fitter.fit(Public(scores))

    def at(parameters):
        return loss(Platt(parameters[0], parameters[1:]).transform(scores))

    best = optimize.minimize(at, np.array([1.0, 0, 0, 0])).fun
    assert loss(result.transform(scores)) == pytest.approx(best, abs=2e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_fit_costs_at_most_epsilon(form, relation):
    fitter = PrivatePlatt(
        form, method="descent", epsilon=3.0, delta=1e-6, classes=3, size=100, steps=20
    )
    assert 2.9 < epsilon_for(fitter.event(relation), 1e-6) <= 3.0


def test_the_map_insists_on_the_kind_it_was_fitted_on(rng):
    fitter = PrivatePlatt(
        "vector", epsilon=1.0, delta=1e-5, classes=3, size=100, steps=2, reads="logits"
    )
    result = fitter.fit(Public(shifted(100, rng)))
    with pytest.raises(DataError, match="logits"):
        result.transform(Scores.from_probabilities([[0.2, 0.3, 0.5]]))


def test_other_classes_than_declared_are_refused_before_a_charge(holder, rng):
    fitter = PrivatePlatt("vector", epsilon=1.0, delta=1e-5, classes=4, size=100, steps=2)
    source = holder(shifted(100, rng), Budget(1.0, 1e-5), kind="plan", plan=fitter.items())
    with pytest.raises(DataError, match="4 classes"):
        fitter.fit(source)
    assert [used for _, used in source.ledger.planned()] == [0] * len(fitter.items())


def test_scores_of_another_kind_than_it_reads_are_refused_before_a_charge(holder, rng):
    fitter = PrivatePlatt(
        epsilon=1.0, delta=1e-5, classes=3, size=100, steps=2, reads="probabilities"
    )
    source = holder(shifted(100, rng), Budget(1.0, 1e-5), kind="plan", plan=fitter.items())
    with pytest.raises(DataError, match="expected probabilities"):
        fitter.fit(source)
    assert [used for _, used in source.ledger.planned()] == [0] * len(fitter.items())


def test_undeclared_classes_are_required():
    with pytest.raises(ValueError, match="got classes=None. Declare classes="):
        PrivatePlatt(epsilon=1.0, delta=1e-5, size=100).event()


@pytest.mark.parametrize(
    "settings",
    [
        {"form": "full"},
        {"classes": None},
        {"classes": 1},
        {"delta": None},
        {"size": None},
        {"form": "matrix", "classes": 201},
        {"clip": 0.0},
    ],
)
def test_nonsense_is_refused(settings, rng):
    usual = {"form": "vector", "epsilon": 1.0, "delta": 1e-5, "classes": 3, "size": 100}
    with pytest.raises(ValueError, match="Expected"):
        PrivatePlatt(method="descent", **{**usual, **settings}).event()
