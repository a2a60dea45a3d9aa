"""The map recalibrates the scores, by the announced answers."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.exceptions import NotFittedError

from tests.calibration.private_classifier.sample_classifiers import (
    DATA,
    PublicWeights,
    X,
    Y,
    calibrated,
)
from veracal.calibration import (
    Identity,
    PrivateBinning,
    PrivatePlatt,
    PrivateTemperature,
    Temperature,
    ece,
)
from veracal.calibration.private_classifier import Guard
from veracal.data import Dataset, score
from veracal.errors import BudgetError


def test_answers_have_the_announced_noise_and_are_all_kept(queried_scores) -> None:
    fitted = calibrated(guard=Guard(), unit=None).fit_records(DATA)
    events = [release.event for release in fitted.releases_]
    (_, mapping), (_, guarding) = queried_scores
    assert tuple(events) == (*mapping.events, guarding)
    assert all(release.private for release in fitted.releases_)


@pytest.mark.parametrize("how", ["reuse", "split"])
def test_an_overconfident_model_is_repaired(how) -> None:
    many = np.random.default_rng(1)
    rows = many.uniform(-1, 1, (8_000, 3))
    labels = (many.uniform(size=8_000) < 1 / (1 + np.exp(-4 * rows[:, 0]))).astype(int)
    train = Dataset(rows[:4_000], labels[:4_000], (0, 1), size=4_000)
    test = Dataset(rows[4_000:], labels[4_000:], (0, 1), size=4_000)
    fitted = calibrated(
        PublicWeights(steep=20.0),
        method=PrivateTemperature(epsilon=1.0),
        recalibrate=how,
        holdout=0.6,
        guard=Guard(1.0),
        random_state=0,
    ).fit_records(train)
    assert isinstance(fitted.map_, Temperature)
    assert fitted.map_.value == pytest.approx(5.0, rel=0.35)
    assert fitted.guard_result_.kept and fitted.guard_result_.statement is None
    assert ("optimistic" in fitted.guard_result_.text()) == (how == "reuse")
    before, after = score(fitted.estimator_, test), score(fitted, test)
    assert ece(before) > 0.1 and ece(after) < 0.04
    np.testing.assert_array_equal(before.predictions, after.predictions)


def test_a_guard_that_sees_nothing_to_gain_keeps_the_scores() -> None:
    fitted = calibrated(PublicWeights(steep=1.0), guard=Guard(0.001), random_state=2)
    fitted.fit_records(DATA)
    assert not fitted.guard_result_.kept and fitted.map_ == Identity()
    np.testing.assert_array_equal(fitted.logits(X), fitted.estimator_.logits(X))


def test_predictions_go_through_the_map() -> None:
    fitted = calibrated().fit_records(DATA)
    logits = fitted.estimator_.logits(X) * fitted.map_.inverse
    np.testing.assert_allclose(fitted.logits(X), logits)
    np.testing.assert_allclose(fitted.predict_proba(X), softmax(logits, axis=1))
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X))
    np.testing.assert_allclose(fitted.decision_function(X), logits[:, 1] - logits[:, 0])
    assert (fitted.predict(X) == np.where(logits[:, 1] > 0, "yes", "no")).all()
    alone = np.vstack([fitted.predict_proba(X[i : i + 1]) for i in (0, 200, 399)])
    assert alone.tobytes() == fitted.predict_proba(X)[[0, 200, 399]].tobytes()


def test_nothing_is_predicted_before_a_fit() -> None:
    for way in ("predict", "predict_proba", "predict_log_proba", "logits", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(calibrated(), way)(X)


def test_classes_in_another_order_are_not_mixed_up(queried_scores) -> None:
    other = Dataset(X, (Y == "no").astype(int), ("yes", "no"), size=400)
    calibrated().fit_records(other)
    calibrated().fit_records(DATA)
    first, second = (scores for scores, _ in queried_scores)
    assert first.classes == second.classes == ("no", "yes")
    np.testing.assert_array_equal(first.labels, second.labels)


@pytest.mark.parametrize(
    "method",
    [
        PrivateBinning(epsilon=1.0, bins=5),
        PrivatePlatt("vector", epsilon=1.0, steps=5),
        PrivatePlatt("matrix", epsilon=1.0, delta=1e-6, steps=5),
        PrivateTemperature("descent", epsilon=1.0, steps=5),
    ],
    ids=["binning", "vector", "matrix", "descent"],
)
@pytest.mark.parametrize("how", ["reuse", "split"])
def test_every_private_map_will_do(method, how) -> None:
    model = calibrated(method=method, recalibrate=how, classes=["no", "yes"])
    fitted = model.fit_records(DATA)
    assert fitted.private_ and fitted.event_ == model.event()
    np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1)
    assert hasattr(fitted, "logits") == (not isinstance(method, PrivateBinning))


def test_a_fitter_that_asks_for_more_than_it_announced_gets_nothing() -> None:
    class Greedy(PrivateTemperature):
        def fit(self, source, *, request=None):
            super().fit(source, request="first")
            return super().fit(source, request="second")

    class Dearer(PrivateTemperature):
        def event(self, relation="add-remove", unit=None):
            return PrivateTemperature(epsilon=0.01).event(relation, unit)

    for method in (Greedy(epsilon=0.1), Dearer(epsilon=0.1)):
        with pytest.raises(BudgetError, match="not declared, or is used up"):
            calibrated(method=method).fit_records(DATA)


def test_no_error_depends_on_a_record() -> None:
    huge = X.copy()
    huge[3] = np.finfo(float).max
    fitted = calibrated().fit_records(Dataset(huge, DATA.y, DATA.classes, size=400))
    assert np.isfinite(fitted.predict_proba(huge)).all()
