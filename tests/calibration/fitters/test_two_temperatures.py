"""Two temperatures fitted to public scores maximize the likelihood and recover known values."""

import math

import numpy as np
import pytest
from scipy.special import softmax

from tests.calibration.fitters.sample_scores import logits, nll
from veracal.calibration import TemperatureScaling, TwoTemperatures, TwoTemperatureScaling
from veracal.calibration.fitters import loss_and_slopes
from veracal.data import Scores


@pytest.mark.parametrize("k", [2, 5])
def test_the_map_behind_the_labels_is_recovered(k: int) -> None:
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(60_000, k))
    truth = TwoTemperatures(1.6, 0.5)
    p = truth.transform(Scores.from_logits(z)).probabilities
    y = (p.cumsum(axis=1) > rng.random((len(z), 1))).argmax(axis=1)
    result = TwoTemperatureScaling().fit(Scores.from_logits(z, y)).map_
    assert isinstance(result, TwoTemperatures)
    said = [m.transform(Scores.from_logits(z)).confidence for m in (truth, result)]
    # Its confidence is read at another temperature, so that it bends a little differently.
    assert np.abs(said[0] - said[1]).mean() < 0.01
    assert result.unsure > 2 * result.sure


@pytest.mark.parametrize("k", [2, 4])
def test_derivatives_are_those_of_the_loss(k: int) -> None:
    scores = Scores.from_logits(*logits(200, k))
    moves, step = np.array([0.3, -0.2]), 1e-6
    loss, slopes = loss_and_slopes(scores, 0.7, moves)
    map_ = TwoTemperatures(*(0.7 * math.exp(move) for move in moves), 0.7)
    assert loss == pytest.approx(nll(map_.transform(scores)), rel=1e-12)
    for i in range(2):
        away = step * np.eye(2)[i]
        ends = [loss_and_slopes(scores, 0.7, moves + d)[0] for d in (away, -away)]
        assert slopes[i] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_it_is_never_less_likely_than_one_temperature() -> None:
    rng = np.random.default_rng(3)
    for k in (2, 3, 10):
        z = 3 * rng.normal(size=(400, k))
        p = 0.8 * softmax(z, axis=1) + 0.2 / k  # some labels are random
        y = (p.cumsum(axis=1) > rng.random((len(z), 1))).argmax(axis=1)
        scores = Scores.from_logits(z, y)
        one, two = TemperatureScaling(), TwoTemperatureScaling()
        gain = nll(one.fit_transform(scores)) - nll(two.fit_transform(scores))
        assert gain > 1e-4


def test_records_of_equal_confidence_give_one_temperature() -> None:
    scores = Scores.from_logits([3.0, 3.0, 3.0, 3.0], [1, 1, 1, 0])
    mapped = TwoTemperatureScaling().fit_transform(scores)
    np.testing.assert_allclose(mapped.confidence, 0.75, atol=1e-6)
