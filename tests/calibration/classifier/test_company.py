"""Calibrated classifiers inside and outside of other estimators."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from tests.calibration.classifier.sample_classifiers import DATA, X, calibrated, training
from veracal.calibration.metrics import ece
from veracal.calibration.private_classifier import Guard
from veracal.data import Dataset, load, score
from veracal.training import NormClipper, PrivateSearch, make_private_pipeline


def test_pipelines_go_inside_and_outside() -> None:
    inside = calibrated(make_private_pipeline(NormClipper(1.0), training())).fit_records(DATA)
    outside = make_private_pipeline(NormClipper(1.0), calibrated(training())).fit_records(DATA)
    assert inside.private_ and outside.private_
    assert inside.event_ == outside.event_
    assert score(inside, DATA).values.shape == score(outside, DATA).values.shape == (400, 2)


def test_a_search_may_choose_among_calibrated_classifiers() -> None:
    model = calibrated(training(sampling_rate=1.0))
    search = PrivateSearch(model, {"estimator__optimizer": [0.1, 1.0]}, mean=2.0)
    assert search.fit_records(DATA).private_
    assert score(search, DATA).values.shape == (400, 2)


def test_it_is_copied_and_written_like_any_estimator() -> None:
    fitted = calibrated(guard=Guard(0.2), recalibrate="split").fit_records(DATA)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.private_ and again.event_ == fitted.event_
    fresh = clone(fitted)
    assert not hasattr(fresh, "map_") and fresh.event() == fitted.event_
    assert "PrepaidSource" not in repr(vars(fitted))


@pytest.mark.parametrize("changes", [{}, {"recalibrate": "split", "guard": Guard()}])
def test_scikit_learn_is_content(changes) -> None:
    quick = training(sampling_rate=1.0, steps=20, epochs=None)
    check_estimator(calibrated(quick, **changes), on_skip=None)  # one wants other arrays


def test_digits_are_better_calibrated_with_the_same_auc() -> None:
    digits = load("digits")
    rows = np.asarray(digits.X).reshape(len(digits), -1)
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = (
        Dataset(rows[part] / 16, digits.y[part], digits.classes, size=len(part))
        for part in (order[:1400], order[1400:])
    )
    model = calibrated(
        training(clip=0.1, optimizer=50.0, epochs=20),
        epsilon=8.0,
        size=1400,
        classes=digits.classes,
        random_state=0,
    ).fit_records(train)
    before, after = score(model.estimator_, test), score(model, test)
    assert ece(before) > 0.3 and ece(after) < 0.08
    np.testing.assert_array_equal(before.predictions, after.predictions)
