"""What a calibrated classifier promises, and what it does not."""

import numpy as np
import pytest

from tests.calibration.private_classifier.sample_classifiers import (
    DATA,
    PublicWeights,
    X,
    Y,
    calibrated,
    training,
)
from veracal.accounting import Gaussian, NotPrivate, Unit
from veracal.calibration import PrivateTemperature
from veracal.data import Dataset, limit_contributions
from veracal.errors import DataError


def test_a_fit_with_everything_declared_is_private() -> None:
    fitted = calibrated(training(), classes=["no", "yes"], size=400, epsilon=1.0).fit(X, Y)
    assert fitted.private_ and fitted.not_private_because_ == ()
    assert 0.99 < fitted.statement_.epsilon <= 1.0
    assert fitted.classes_.tolist() == ["no", "yes"]
    # Training alone cost less, and must not state that cost.
    assert not fitted.estimator_.private_
    assert "part of a calibrated classifier" in fitted.estimator_.not_private_because_[-1]


@pytest.mark.parametrize(
    ("changes", "inner", "reason"),
    [
        ({"classes": None}, {}, "classes were read"),
        ({"size": None}, {}, "number of records was read"),
        ({"random_state": 1}, {}, "random_state was set"),
        ({}, {"random_state": 1}, "random_state was set"),
    ],
)
def test_what_breaks_the_guarantee_is_said(changes, inner, reason) -> None:
    settings = {"classes": ["no", "yes"], "size": 400, **changes}
    for how in ("reuse", "split"):
        fitted = calibrated(PublicWeights(**inner), recalibrate=how, **settings).fit(X, Y)
        assert not fitted.private_ and fitted.statement_.epsilon == np.inf
        assert fitted.statement_ == NotPrivate(fitted.not_private_because_)
        assert len(fitted.not_private_because_) == 1
        assert reason in fitted.not_private_because_[0]


def test_the_size_of_the_estimator_is_enough_where_it_gets_all_records() -> None:
    assert calibrated(PublicWeights(size=400), classes=["no", "yes"]).fit(X, Y).private_
    with pytest.raises(DataError, match="declared number of records"):
        calibrated(recalibrate="split").fit_records(Dataset(X, DATA.y, DATA.classes))


def test_a_fit_that_is_interrupted_claims_nothing() -> None:
    model = calibrated().fit_records(DATA)
    assert model.private_
    model.estimator = PublicWeights(fails=True)
    with pytest.raises(RuntimeError):
        model.fit_records(DATA)
    assert not model.private_ and model.statement_ == NotPrivate(("its fit did not finish",))


def test_a_model_that_says_it_cost_something_else_is_not_released() -> None:
    class Liar(PublicWeights):
        def _learn(self, facts, rng):
            super()._learn(facts, rng)
            self.__class__ = Dear
            return ()

    class Dear(PublicWeights):
        @property
        def event_(self):
            return Gaussian(1.0)

        @event_.setter
        def event_(self, event):
            pass

    with pytest.raises(ValueError, match="Do not release"):
        calibrated(Liar()).fit_records(DATA)


def test_seeds_repeat_everything_and_secrets_nothing() -> None:
    for how in ("reuse", "split"):
        scores = [
            calibrated(training(), recalibrate=how, random_state=s)
            for s in (7, 7, 8, None, None)
        ]
        result = [model.fit_records(DATA).logits(X).tobytes() for model in scores]
        assert result[0] == result[1] and len(set(result)) == 4


def test_units_pay_for_all_their_rows() -> None:
    unit = Unit("patient", max_contributions=2)
    ids = np.repeat(np.arange(200), 2).astype(str)
    plain_set = Dataset(X, DATA.y, DATA.classes, units=ids, size=400)
    people = limit_contributions(plain_set, max_contributions=2)
    model = calibrated(
        PublicWeights(unit=unit), unit=unit, method=PrivateTemperature(epsilon=0.1)
    )
    fitted = model.fit_records(people)
    noises = [release.event.noise for release in fitted.releases_]
    plain = calibrated(method=PrivateTemperature(epsilon=0.1)).event().events[1].events
    assert noises == [2 * event.noise for event in plain]
    assert fitted.statement_.max_contributions == 2
    with pytest.raises(DataError, match="units"):
        calibrated().fit_records(people)
