"""Invalid settings are rejected before a record is read."""

import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from tests.calibration.private_classifier.sample_classifiers import (
    DATA,
    FITS,
    PublicWeights,
    calibrated,
    training,
)
from veracal.accounting import Unit
from veracal.calibration import PrivatePlatt
from veracal.calibration.private_classifier import Guard
from veracal.training import NormClipper, make_private_pipeline


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recalibrate": "both"}, "recalibrate to be one of"),
        ({"relation": "swap"}, "relation to be one of"),
        ({"epsilon": -1.0}, "finite epsilon > 0"),
        ({"delta": 2.0}, "delta between 0 and 1"),
        ({"delta": 0.01, "size": 400}, "delta below 1 / size"),
        ({"share": 0.0}, "share between 0 and 1"),
        ({"share": 1.5}, "share between 0 and 1"),
        ({"holdout": 1.0}, "holdout between 0 and 1"),
        ({"guard": True}, "guard to be a Guard or None"),
        ({"unit": "patient"}, "unit to be a Unit or None"),
        ({"size": 0}, "integer size >= 1"),
        ({"method": "temperature"}, "a private fitter such as"),
        ({"method": PrivatePlatt(reads="probabilities")}, "a fitter that reads logits"),
        ({"unit": Unit("patient", 2)}, "the patient of each row"),
        ({"relation": "replace-one"}, "the same relation"),
        ({"noise_parameter": "nothing", "epsilon": 1.0}, "a parameter of"),
        ({"random_state": "x"}, "random_state to be None"),
        ({"classes": ["a", "b"]}, "classes of the model"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_a_record_is_read(
    changes, said, queried_scores
):
    with pytest.raises(ValueError, match=said):
        calibrated(**changes).fit_records(DATA)
    assert not FITS and not queried_scores


def test_another_unit_than_that_of_the_training_is_refused() -> None:
    with pytest.raises(ValueError, match="the same unit"):
        calibrated(unit=Unit("patient", 2)).event()


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), FrozenEstimator(PublicWeights().fit_records(DATA))]
)
def test_what_does_not_say_its_cost_is_refused(estimator) -> None:
    with pytest.raises(ValueError, match="a private classifier with an event"):
        calibrated(estimator).event()


def test_a_pipeline_must_name_what_sets_its_noise() -> None:
    pipe = make_private_pipeline(NormClipper(1.0), training())
    with pytest.raises(ValueError, match="Expected noise_parameter"):
        calibrated(pipe, epsilon=1.0).event()


def test_a_guard_is_checked_at_construction() -> None:
    for wrong in ({"epsilon": 0.0}, {"beta": 0.5}, {"beta": 0.0}):
        with pytest.raises(ValueError, match="Expected"):
            Guard(**wrong)
