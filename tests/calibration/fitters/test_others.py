"""Histogram binning, isotonic and beta calibration against their definitions."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from tests.calibration.fitters.sample_scores import both_kinds, logits, nll
from veracal.calibration import (
    BetaCalibration,
    Bins,
    HistogramBinning,
    IsotonicCalibration,
    MapFitter,
)
from veracal.calibration.maps import Beta, Binned, Isotonic
from veracal.data import Scores
from veracal.errors import DataError


def test_binning_is_the_accuracy_of_each_bin() -> None:
    scores, _ = both_kinds(*logits(500, 3))
    map_ = HistogramBinning(10).fit(scores).map_
    assert isinstance(map_, Binned)
    edges = np.linspace(0, 1, 11)
    for b, (low, high) in enumerate(pairwise(edges)):
        inside = (scores.confidence > low) & (scores.confidence <= high)
        expected = scores.correct[inside].mean() if inside.any() else (low + high) / 2
        assert map_.accuracies[b] == pytest.approx(expected, rel=1e-15)


def test_binned_confidence_is_accuracy_on_the_records_of_the_fit() -> None:
    scores, _ = both_kinds(*logits(500, 2))
    mapped = HistogramBinning(Bins(15)).fit_transform(scores)
    said = mapped.probabilities[np.arange(500), scores.predictions]
    for value in np.unique(said):
        assert scores.correct[said == value].mean() == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "fitter", [HistogramBinning(), IsotonicCalibration("top-label")], ids=repr
)
def test_top_label_maps_repair_without_loss_of_accuracy(fitter: MapFitter) -> None:
    scores, _ = both_kinds(*logits(5_000, 10))  # so sure that proportions would change winners
    mapped = fitter.fit_transform(scores)
    assert scores.confidence.mean() - scores.correct.mean() > 0.2
    assert abs(mapped.confidence.mean() - mapped.correct.mean()) < 0.01
    assert mapped.correct.mean() >= scores.correct.mean()


def test_equal_inputs_weigh_as_many_as_they_are() -> None:
    scores = Scores.from_probabilities([0.2, 0.2, 0.2, 0.4], [1, 1, 1, 0])
    mapped = IsotonicCalibration().fit_transform(scores)
    np.testing.assert_allclose(mapped.values[:, 1], 0.75)  # and not (1 + 0) / 2


@pytest.mark.parametrize("bins", [0, -1, 1.5, 10_001, "15", None])
def test_invalid_bins(bins: object) -> None:
    with pytest.raises(ValueError, match="bins"):
        HistogramBinning(bins).fit(Scores.from_logits([[1.0, 0.0]], [0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["one-vs-rest", "top-label"])
def test_isotonic_is_scikit_learns_regression(form: str) -> None:
    _, scores = both_kinds(*logits(700, 2))
    top = form == "top-label"
    x = scores.confidence if top else scores.probabilities[:, 1]
    hits = scores.correct if top else scores.labels == 1
    peer = IsotonicRegression(out_of_bounds="clip").fit(x, hits)
    fitter = IsotonicCalibration(form).fit(scores)  # type: ignore[arg-type]
    grid = Scores.from_probabilities(np.linspace(0, 1, 501))
    mapped = fitter.transform(grid).probabilities
    column = grid.predictions if top else 1
    queried = grid.confidence if top else grid.probabilities[:, 1]
    np.testing.assert_allclose(
        mapped[np.arange(501), column], peer.predict(queried), atol=1e-12
    )


def test_isotonic_distinguishes_close_inputs() -> None:
    # scikit-learn pools inputs closer than 1e-15 and then misses the points it pooled.
    x = np.array([0.0, 9e-16, 9e-16, 9e-16, 1.8e-15])
    scores = Scores.from_probabilities(x, [0, 0, 0, 0, 1])
    mapped = IsotonicCalibration().fit_transform(scores)
    assert mapped.values[:, 1].tolist() == [0, 0, 0, 0, 1]
    peer = IsotonicRegression(out_of_bounds="clip").fit(x, [0, 0, 0, 0, 1]).predict(x)
    assert np.abs(peer - mapped.values[:, 1]).max() > 0.1


def test_isotonic_keeps_no_needless_points() -> None:
    scores, _ = both_kinds(*logits(5_000, 2))
    map_ = IsotonicCalibration().fit(scores).map_
    assert isinstance(map_, Isotonic)
    y = map_.outputs[0]
    assert len(y) < 200 and not ((y[:-2] == y[1:-1]) & (y[1:-1] == y[2:])).any()


def test_isotonic_gives_zero_to_a_class_without_records() -> None:
    z, y = logits(300, 3)
    scores = Scores.from_logits(z[y < 2], y[y < 2])
    mapped = IsotonicCalibration().fit_transform(scores)
    assert (mapped.values[:, 2] == 0).all()


def test_isotonic_forms() -> None:
    with pytest.raises(ValueError, match="form"):
        IsotonicCalibration("binary").fit(Scores.from_logits([[1.0, 0.0]], [0]))  # type: ignore[arg-type]


def test_beta_is_logistic_regression_on_two_logarithms() -> None:
    _, scores = both_kinds(*logits(3_000, 2))
    p = scores.probabilities[:, 1]
    features = np.stack([np.log(p), -np.log(1 - p)], axis=1)
    peer = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(features, scores.labels)
    assert (peer.coef_ > 0).all()  # otherwise the bounds matter
    map_ = BetaCalibration().fit(scores).map_
    assert isinstance(map_, Beta)
    ours = [*map_.a, *map_.b, *map_.c]
    np.testing.assert_allclose(ours, [*peer.coef_[0], *peer.intercept_], rtol=2e-3, atol=1e-4)


def test_beta_stays_rising_where_free_regression_would_fall(rng: np.random.Generator) -> None:
    p = rng.uniform(0.01, 0.99, size=2_000)
    features = np.stack([np.log(p), -np.log(1 - p)], axis=1)
    labels = (rng.random(2_000) < expit(features @ [-0.5, 1.0])).astype(int)
    scores = Scores.from_probabilities(p, labels)
    free = LogisticRegression(C=np.inf, max_iter=10_000).fit(features, labels)
    assert free.coef_[0, 0] < 0 < free.coef_[0, 1]
    map_ = BetaCalibration().fit(scores).map_
    assert isinstance(map_, Beta) and map_.a == 0 < map_.b
    # The paper's way: again without the coefficient that came out negative.
    again = LogisticRegression(C=np.inf, max_iter=10_000).fit(features[:, 1:], labels)
    loss = -again.predict_log_proba(features[:, 1:])[np.arange(2_000), labels].mean()
    assert nll(map_.transform(scores)) == pytest.approx(loss, abs=1e-6)


def test_beta_undoes_what_a_temperature_cannot(rng: np.random.Generator) -> None:
    p = rng.uniform(0.01, 0.99, size=20_000)
    labels = (rng.random(20_000) < p).astype(int)
    crooked = p**2 / (p**2 + (1 - p) ** 0.5)
    scores = Scores.from_probabilities(crooked, labels)
    mapped = BetaCalibration().fit_transform(scores).probabilities[:, 1]
    assert np.abs(mapped - p).mean() < 0.1 * np.abs(crooked - p).mean()


def test_beta_has_a_limit_of_classes() -> None:
    with pytest.raises(DataError, match="1,000 classes"):
        BetaCalibration().fit(Scores.from_logits(np.zeros((1, 1_001)), [0]))
    with pytest.raises(ValueError, match="ridge"):
        BetaCalibration(ridge=-1).fit(Scores.from_logits([[1.0, 0.0]], [0]))
