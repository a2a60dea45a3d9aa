"""Where each map of calibration puts the decision."""

import math

import numpy as np
import pytest

from veracal.artifact.classifier import decision_threshold
from veracal.calibration import (
    Beta,
    Binned,
    Identity,
    Isotonic,
    Platt,
    Temperature,
    TwoTemperatures,
)
from veracal.calibration.bins import Bins
from veracal.data import Scores
from veracal.errors import DataError

Z = np.linspace(-12, 12, 4_801)


def decided(map_, z=Z):
    """Class of each logit, by the map itself."""
    return map_.transform(
        Scores.from_logits(np.stack([np.zeros(len(z)), z], axis=1))
    ).predictions


@pytest.mark.parametrize(
    "map_",
    [
        Identity(),
        Temperature(0.3),
        TwoTemperatures(3.0, 0.5),
        Platt(2.0, [0.3, 1.0]),
        Platt(-0.5, [0.3, 1.0]),
        Platt([5.0, 0.7], [0.3, -1.0]),
        Platt([[1.0, 0.2], [0.4, 0.9]], [0.0, 2.0]),
        Platt([[1.0, 2.0], [0.4, 0.9]], [0.0, 2.0]),
        Beta([0.7], [1.4], [0.8]),
        Beta([0.0], [1.4], [-0.8]),
        Isotonic([[0.0, 0.3, 1.0]], [[0.1, 0.5, 0.9]], "one-vs-rest"),
        Isotonic([[0.2, 0.3]], [[0.1, 0.9]], "one-vs-rest"),
        Binned(Bins(4), [0.0, 0.1, 0.6, 0.9]),
        Isotonic([[0.5, 1.0]], [[0.51, 0.8]], "top-label"),
    ],
    ids=repr,
)
def test_the_threshold_is_where_the_map_decides(map_):
    c = decision_threshold(map_, 2)
    off = np.abs(Z - c) > 1e-9
    above = decided(map_)[off] == 1
    assert np.array_equal(above, Z[off] > c) or np.array_equal(above, Z[off] < c)
    assert 0 < above.mean() < 1


@pytest.mark.parametrize(
    "map_",
    [
        Platt(0.0, [0.3, 1.0]),
        Platt([3.0, 0.0], [1.0, 0.0]),
        Beta([0.0], [0.0], [0.8]),
        Isotonic([[0.0, 1.0]], [[0.1, 0.4]], "one-vs-rest"),
        Isotonic([[0.0, 1.0]], [[0.6, 0.7]], "one-vs-rest"),
    ],
    ids=repr,
)
def test_a_map_that_predicts_one_class_has_no_threshold(map_):
    assert math.isinf(decision_threshold(map_, 2)) and len(set(decided(map_))) == 1


@pytest.mark.parametrize(
    "map_",
    [
        Temperature(0.3),
        TwoTemperatures(3.0, 0.5),
        Platt(0.5, [2.0, 2.0, 2.0]),
        Binned(Bins(3), [0.0, 0.4, 0.9]),
        Isotonic([[0.0, 1.0]], [[0.34, 0.8]], "top-label"),
    ],
    ids=repr,
)
def test_maps_of_many_classes_that_keep_every_decision(map_):
    logits = np.random.default_rng(0).normal(size=(2_000, 3)) * 3
    scores = Scores.from_logits(logits)
    assert decision_threshold(map_, 3) == 0.0
    np.testing.assert_array_equal(map_.transform(scores).predictions, scores.predictions)


@pytest.mark.parametrize(
    ("map_", "classes"),
    [
        (Binned(Bins(4), [0.9, 0.9, 0.45, 0.9]), 2),
        (Binned(Bins(3), [0.9, 0.3, 0.9]), 3),
        (Isotonic([[0.5, 1.0]], [[0.5, 0.8]], "top-label"), 2),
        (Platt(1.0, [0.0, 0.0, 0.1]), 3),
        (Platt(-1.0, [0.0, 0.0, 0.0]), 3),
        (Platt([1.0, 1.0, 2.0], [0.0, 0.0, 0.0]), 3),
        (Beta([1.0] * 3, [1.0] * 3, [0.0] * 3), 3),
        (Isotonic([[0.0, 1.0]] * 3, [[0.0, 1.0]] * 3, "one-vs-rest"), 3),
    ],
    ids=repr,
)
def test_maps_that_may_change_other_decisions_are_rejected(map_, classes):
    with pytest.raises(DataError, match="veracal audit"):
        decision_threshold(map_, classes)
