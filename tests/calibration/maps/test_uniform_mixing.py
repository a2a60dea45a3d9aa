"""A temperature with uniform mixing."""

import numpy as np
import pytest

from veracal.calibration import Temperature, UniformMixing, from_json
from veracal.data import Scores


@pytest.fixture
def scores():
    return Scores.from_logits(3 * np.random.default_rng(0).normal(size=(50, 4)))


def test_it_is_the_mixture_written_out(scores):
    mapped = UniformMixing(0.5, 0.3).transform(scores).values
    for row, logits in zip(mapped, scores.values, strict=True):
        powers = [np.exp(0.5 * z) for z in logits]
        expected = [0.7 * power / sum(powers) + 0.3 / 4 for power in powers]
        np.testing.assert_allclose(row, expected, rtol=1e-12)


def test_without_weight_it_is_a_temperature(scores):
    same = Temperature(0.5).transform(scores).probabilities
    np.testing.assert_allclose(
        UniformMixing(0.5, 0.0).transform(scores).values, same, rtol=1e-12
    )


def test_confidences_fall_toward_an_equal_share_and_predictions_stay(scores):
    sure = [UniformMixing(0.5, weight).transform(scores) for weight in (0.0, 0.5, 0.99)]
    assert (np.diff([s.confidence for s in sure], axis=0) < 0).all()
    assert sure[-1].confidence.max() < 0.26 and sure[-1].confidence.min() > 0.25
    for mapped in sure:
        np.testing.assert_array_equal(mapped.predictions, scores.predictions)


def test_it_is_written_and_read_back():
    assert (
        from_json(UniformMixing(0.25, 0.5).to_json())
        == UniformMixing(0.25, 0.5)
        != UniformMixing(0.25, 0.4)
    )
    assert UniformMixing(0.25, 0.5).value == 4.0


@pytest.mark.parametrize("wrong", [(0.0, 0.5), (1.0, -0.1), (1.0, 1.0), (1.0, np.nan)])
def test_what_is_no_share_is_refused(wrong):
    with pytest.raises(ValueError, match="Expected (inverse|uniform_weight) between"):
        UniformMixing(*wrong)
