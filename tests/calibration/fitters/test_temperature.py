"""The temperature found is the best there is, and never absurd."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from tests.calibration.fitters.sample_scores import both_kinds, logits
from veracal.calibration import TemperatureScaling
from veracal.calibration.fitters import slopes, where_level
from veracal.calibration.maps import Temperature
from veracal.data import Scores


def inverse(scores: Scores, **settings: object) -> float:
    fitter = TemperatureScaling(**settings).fit(scores)  # type: ignore[arg-type]
    assert isinstance(fitter.map_, Temperature)
    return fitter.map_.inverse


@pytest.mark.parametrize("k", [2, 10])
@pytest.mark.parametrize("true", [0.05, 0.7, 1.0, 3.0])
def test_the_loss_is_minimal(k: int, true: float) -> None:
    z, y = logits(2_000, k, inverse=true)

    def loss(log_beta: float) -> float:
        return float(-log_softmax(np.exp(log_beta) * z, axis=1)[np.arange(len(y)), y].mean())

    best = minimize_scalar(loss, bounds=(-4, 4), options={"xatol": 1e-10})
    for scores in both_kinds(z, y):
        assert inverse(scores) == pytest.approx(np.exp(best.x), rel=1e-6)
    assert inverse(both_kinds(z, y)[0]) == pytest.approx(true, rel=0.3)


@pytest.mark.parametrize("kind", [0, 1])
def test_slopes_are_those_of_the_loss(kind: int) -> None:
    z, y = logits(70_000, 3)  # more than one block
    scores = both_kinds(z, y)[kind]

    def loss(beta: float) -> float:
        return float(-log_softmax(beta * z, axis=1)[np.arange(len(y)), y].mean())

    h = 1e-4
    first, second = slopes(scores, 0.6)
    assert first == pytest.approx((loss(0.6 + h) - loss(0.6 - h)) / (2 * h), rel=1e-6)
    curvature = (loss(0.6 + h) - 2 * loss(0.6) + loss(0.6 - h)) / h**2
    assert second == pytest.approx(curvature, rel=1e-4)


def test_records_that_are_all_right_give_the_end_of_the_range() -> None:
    separable = Scores.from_logits([[1.0, 0.0], [0.0, 2.0]], [0, 1])
    assert inverse(separable) == 100
    assert inverse(separable, inverse_range=(0.5, 4.0)) == 4
    one = Scores.from_logits([[1e-3, 0.0]], [0])
    assert inverse(one) == 100
    far = Scores.from_logits([[50.0, 0.0], [0.0, 60.0]], [0, 1])  # where Newton's steps crawl
    assert inverse(far) == 100


def test_records_that_are_all_wrong_give_the_other_end() -> None:
    wrong = Scores.from_logits([[1.0, 0.0], [0.0, 2.0]], [1, 0])
    assert inverse(wrong) == 0.01
    assert inverse(wrong, inverse_range=(0.5, 4.0)) == 0.5


def test_where_no_temperature_makes_a_difference_it_is_one() -> None:
    assert inverse(Scores.from_logits(np.zeros((5, 3)), [0, 1, 2, 0, 0])) == 1
    sure = Scores.from_probabilities([[1.0, 0.0]], [0])
    assert inverse(sure) == 1


def test_a_label_of_probability_zero_asks_for_less_confidence() -> None:
    p = np.tile([0.9, 0.1], (100, 1))
    y = np.zeros(100, dtype=int)
    y[:10] = 1
    alone = inverse(Scores.from_probabilities(p, y))
    worse = inverse(Scores.from_probabilities(np.vstack([p, [1.0, 0.0]]), [*y, 1]))
    assert 0.01 < worse < 0.9 * alone
    # It counts as the spacing of floats at one, and as nothing smaller.
    same, less = (
        inverse(Scores.from_probabilities(np.vstack([p, [1.0, least]]), [*y, 1]))
        for least in (2.0**-52, 1e-300)
    )
    assert worse == pytest.approx(same, rel=1e-9) and less < 0.9 * worse


def test_other_classes_of_probability_zero_are_no_trouble() -> None:
    z, y = logits(500, 2)
    p = np.hstack([softmax(z, axis=1), np.zeros((500, 1))])
    padded = inverse(Scores.from_probabilities(p, y))
    assert padded == pytest.approx(inverse(Scores.from_logits(z, y)), rel=1e-9)


@given(st.floats(1e-3, 1e3), st.sampled_from([0.2, 1.0, 5.0]))
def test_roots_of_increasing_functions(zero: float, power: float) -> None:
    def cubic(x: float) -> tuple[float, float]:
        t = x**power - zero**power
        return t**3 + 1e-3 * t, (3 * t**2 + 1e-3) * power * x ** (power - 1)

    assert where_level(cubic, 1e-4, 1e4) == pytest.approx(zero, rel=1e-6)


def test_few_evaluations_are_enough() -> None:
    scores, _ = both_kinds(*logits(1_000, 5))
    calls = []

    def counted(beta: float) -> tuple[float, float]:
        calls.append(beta)
        return slopes(scores, beta)

    where_level(counted, 0.01, 100.0)
    assert len(calls) <= 10


@pytest.mark.parametrize(
    "bounds", [(2.0, 3.0), (0.1, 0.5), (0.0, 2.0), (-1.0, 2.0), (1e-7, 2.0), (0.1, np.nan)]
)
def test_invalid_ranges(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        TemperatureScaling(bounds).fit(Scores.from_logits([[1.0, 0.0]], [0]))
