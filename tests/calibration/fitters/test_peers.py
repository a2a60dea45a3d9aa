"""The same answers as other libraries, where they mean the same thing."""

import warnings
from typing import Self

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from tests.calibration.fitters.sample_scores import logits
from veracal.calibration import (
    BetaCalibration,
    CalibratedClassifier,
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    TemperatureScaling,
)
from veracal.data import Scores

pytestmark = pytest.mark.full

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its dependencies, when they are imported
    binning = pytest.importorskip("netcal.binning", reason="netcal is not installed")
    scaling = pytest.importorskip("netcal.scaling", reason="netcal is not installed")


class Says(ClassifierMixin, BaseEstimator):
    """A classifier that says its input: logits, or probabilities."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.classes_ = np.arange(k)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X.argmax(axis=1)

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        return X[:, 1] - X[:, 0] if self.k == 2 else X


class SaysProbabilities(Says):
    """The same, of probabilities alone."""

    decision_function = None  # type: ignore[assignment]

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return X


@pytest.mark.parametrize("k", [2, 4])
def test_temperature_is_scikit_learns(k: int) -> None:
    z, y = logits(1_500, k)
    for said, X in ((Says(k), z), (SaysProbabilities(k), softmax(z, axis=1))):
        frozen = FrozenEstimator(said)
        peer = CalibratedClassifierCV(frozen, method="temperature").fit(X, y)
        ours = CalibratedClassifier(frozen).fit(X, y)
        np.testing.assert_allclose(ours.predict_proba(X), peer.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("k", [2, 4])
def test_isotonic_is_scikit_learns(k: int) -> None:
    z, y = logits(1_500, k)
    p, other = (softmax(x, axis=1) for x in (z, logits(500, k, seed=1)[0]))
    peer = CalibratedClassifierCV(FrozenEstimator(SaysProbabilities(k)), method="isotonic")
    ours = CalibratedClassifier(SaysProbabilities(k), IsotonicCalibration())
    np.testing.assert_allclose(
        ours.fit(p, y).predict_proba(other), peer.fit(p, y).predict_proba(other), atol=1e-12
    )


def test_scikit_learn_guesses_what_numbers_are_and_we_do_not() -> None:
    rng = np.random.default_rng(0)
    X = rng.dirichlet(np.ones(3), size=500)  # logits that happen to look like probabilities
    y = (softmax(4 * X, axis=1).cumsum(axis=1) > rng.random((500, 1))).argmax(axis=1)
    ours = CalibratedClassifier(Says(3)).fit(X, y)
    assert ours.kind_ == "logits" and ours.map_.inverse == pytest.approx(4, rel=0.3)
    peer = CalibratedClassifierCV(FrozenEstimator(Says(3)), method="temperature").fit(X, y)
    assert np.abs(peer.predict_proba(X) - ours.predict_proba(X)).max() > 0.1


def test_sigmoid_of_scikit_learn_smooths_its_targets() -> None:
    # The only difference: with many records it goes away.
    gaps = []
    for n in (50, 50_000):
        z, y = logits(n, 2)
        peer = CalibratedClassifierCV(FrozenEstimator(Says(2)), method="sigmoid").fit(z, y)
        ours = CalibratedClassifier(Says(2), PlattScaling("scalar")).fit(z, y)
        gaps.append(np.abs(peer.predict_proba(z) - ours.predict_proba(z)).max())
    assert gaps[0] > 5e-3 and gaps[1] < 1e-4


@pytest.mark.parametrize("k", [2, 4])
def test_temperature_is_netcals(k: int) -> None:
    z, y = logits(1_500, k)
    p = softmax(z, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = scaling.TemperatureScaling().fit(p[:, 1] if k == 2 else p, y)
    map_ = TemperatureScaling().fit(Scores.from_probabilities(p, y)).map_
    assert map_.to_json()["inverse"] == pytest.approx(float(peer.temperature[0]), rel=1e-3)


def test_beta_is_netcals() -> None:
    z, y = logits(1_500, 2)
    p = softmax(z, axis=1)[:, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = scaling.BetaCalibration().fit(p, y).transform(p)
    ours = BetaCalibration().fit_transform(Scores.from_probabilities(p, y))
    np.testing.assert_allclose(ours.probabilities[:, 1], expected, atol=1e-4)


def test_binning_of_the_top_label_is_netcals() -> None:
    z, y = logits(1_500, 4)
    scores = Scores.from_logits(z, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = binning.HistogramBinning(15).fit(scores.confidence, scores.correct.astype(int))
        expected = peer.transform(scores.confidence)
    mapped = HistogramBinning(15).fit_transform(scores).probabilities
    np.testing.assert_allclose(mapped[np.arange(1_500), scores.predictions], expected)
