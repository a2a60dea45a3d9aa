"""Platt scaling is multinomial regression on the logits."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from tests.calibration.fitters.sample_scores import both_kinds, logits, nll
from veracal.calibration import PlattScaling, TemperatureScaling
from veracal.calibration.maps import Platt
from veracal.data import Scores
from veracal.errors import DataError

FORMS = ["scalar", "vector", "matrix"]


def biased(n: int, k: int) -> Scores:
    """Scores whose classes are off by different weights and amounts."""
    z, y = logits(n, k)
    return Scores.from_logits(z * np.linspace(0.5, 2, k) + np.linspace(-1, 1, k), y)


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_is_minimal(form: str) -> None:
    scores = biased(800, 3)
    map_ = PlattScaling(form).fit(scores).map_  # type: ignore[arg-type]
    assert isinstance(map_, Platt) and map_.form == form

    def loss(weights: np.ndarray, bias: np.ndarray) -> float:
        full = weights if weights.ndim == 2 else np.diag(np.broadcast_to(weights, 3))
        log_p = log_softmax(scores.values @ full.T + bias, axis=1)
        return float(-log_p[np.arange(800), scores.labels].mean())

    weights = np.asarray(map_.weights)
    best = loss(weights, map_.bias)
    assert best == pytest.approx(nll(map_.transform(scores)), rel=1e-12)
    for h in (1e-2, -1e-2):  # no single parameter can be changed to advantage
        for i in range(3):
            step = np.zeros(3)
            step[i] = h
            assert loss(weights, map_.bias + step) > best
        for place in np.ndindex(weights.shape):
            moved = weights.copy()
            moved[place] += h
            assert loss(moved, map_.bias) > best


def test_each_form_holds_the_one_before() -> None:
    scores = biased(2_000, 4)
    losses = [nll(TemperatureScaling().fit_transform(scores))]
    losses += [nll(PlattScaling(f).fit_transform(scores)) for f in FORMS]  # type: ignore[arg-type]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] - losses[1] > 1e-3 and losses[1] - losses[2] > 1e-3


def test_a_matrix_is_multinomial_regression() -> None:
    scores = biased(2_000, 3)
    peer = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
    peer.fit(scores.values, scores.labels)
    ours = PlattScaling("matrix").fit_transform(scores).probabilities
    np.testing.assert_allclose(ours, peer.predict_proba(scores.values), atol=2e-5)


def test_two_classes_are_logistic_regression() -> None:
    z, y = logits(2_000, 2)
    margin = 2 * (z[:, 1] - z[:, 0]) + 1
    scores = Scores.from_logits(margin, y)
    peer = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(margin[:, None], y)
    fitted = PlattScaling("scalar").fit(scores)
    np.testing.assert_allclose(
        fitted.transform(scores).probabilities, peer.predict_proba(margin[:, None]), atol=2e-5
    )
    assert isinstance(fitted.map_, Platt)
    assert fitted.map_.weights == pytest.approx(peer.coef_.item(), rel=1e-3)
    assert fitted.map_.bias @ [-1, 1] == pytest.approx(peer.intercept_.item(), abs=1e-3)


def test_a_classifier_that_is_always_wrong_is_turned_round() -> None:
    z, y = logits(2_000, 2, inverse=1)
    scores = Scores.from_logits(z, 1 - y)
    map_ = PlattScaling("scalar").fit(scores).map_
    assert isinstance(map_, Platt) and map_.weights == pytest.approx(-1, rel=0.1)


@pytest.mark.parametrize("form", FORMS)
def test_separable_records_and_absent_classes_stay_finite(form: str) -> None:
    scores = Scores.from_logits([[1.0, 0, 0], [0, 2.0, 0], [3.0, 1, 0]], [0, 1, 0])
    map_ = PlattScaling(form).fit(scores).map_  # type: ignore[arg-type]
    assert isinstance(map_, Platt)
    assert np.abs(map_.weights).max() < 1_000 and np.abs(map_.bias).max() < 1_000


def test_a_larger_ridge_stays_closer_to_the_identity() -> None:
    scores = biased(500, 3)
    free, held = (PlattScaling("vector", ridge=r).fit(scores).map_ for r in (1e-6, 10.0))
    assert isinstance(free, Platt) and isinstance(held, Platt)
    assert np.abs(held.weights - 1).max() < 0.1 < np.abs(free.weights - 1).max()


def test_vector_and_matrix_know_what_they_were_fitted_on() -> None:
    as_logits, as_probabilities = both_kinds(*logits(100, 3))
    for form in ("vector", "matrix"):
        fitter = PlattScaling(form).fit(as_logits)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="expected logits"):
            fitter.transform(as_probabilities)
    free = PlattScaling("scalar").fit(as_logits)
    np.testing.assert_allclose(
        free.transform(as_probabilities).probabilities,
        free.transform(as_logits).probabilities,
        atol=1e-9,
    )


def test_invalid_settings() -> None:
    scores = biased(10, 2)
    with pytest.raises(ValueError, match="form"):
        PlattScaling("tensor").fit(scores)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ridge"):
        PlattScaling(ridge=0).fit(scores)
    wide = Scores.from_logits(np.zeros((1, 2_001)), [0])
    with pytest.raises(DataError, match="2,000 classes"):
        PlattScaling("matrix").fit(wide)
