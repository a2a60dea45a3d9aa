"""Two temperatures: interpolated by confidence, and the order of records is kept."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.calibration.maps.sample_maps import LARGE
from veracal.calibration.maps import Temperature, TwoTemperatures
from veracal.data import Scores

ROWS = [[0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.34, 0.33, 0.33]]
INVERSES = st.floats(math.exp(-2), math.exp(2))


def slowly(row: list[float], unsure: float, sure: float, at: float) -> list[float]:
    """The definition, one number at a time."""
    powers = [p**at for p in row]
    s = max(powers) / sum(powers)
    inverse = unsure ** (1 - s) * sure**s
    mapped = [p**inverse for p in row]
    return [p / sum(mapped) for p in mapped]


@pytest.mark.parametrize("at", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("unsure", "sure"), [(0.5, 2.0), (3.0, 1.0), (0.1, 0.2)])
def test_it_is_what_its_definition_says(unsure: float, sure: float, at: float) -> None:
    map_ = TwoTemperatures(unsure, sure, at)
    expected = [slowly(row, unsure, sure, at) for row in ROWS]
    mapped = map_.transform(Scores.from_probabilities(ROWS))
    assert mapped.kind == "probabilities"
    np.testing.assert_allclose(mapped.values, expected, rtol=1e-13)
    mapped = map_.transform(Scores.from_logits(np.log(ROWS) + 5))  # any constant a row
    assert mapped.kind == "logits"
    np.testing.assert_allclose(mapped.probabilities, expected, rtol=1e-12)


def test_equal_temperatures_are_one() -> None:
    scores = Scores.from_probabilities(ROWS)
    one, two = Temperature(1.7), TwoTemperatures(1.7, 1.7, 0.3)
    np.testing.assert_allclose(
        one.transform(scores).values, two.transform(scores).values, rtol=1e-14
    )


@given(arrays(np.float64, (3, 4), elements=st.floats(-LARGE, LARGE)), INVERSES, INVERSES)
def test_no_prediction_changes(logits: np.ndarray, unsure: float, sure: float) -> None:
    given_ = Scores.from_logits(logits)
    mapped = TwoTemperatures(unsure, sure, 0.8).transform(given_)
    np.testing.assert_array_equal(mapped.predictions, given_.predictions)


@given(INVERSES, INVERSES, st.floats(1e-3, 1e3))
def test_two_classes_keep_the_order_of_records(unsure: float, sure: float, at: float) -> None:
    z = np.linspace(-9 / at, 9 / at, 2_001)
    mapped = TwoTemperatures(unsure, sure, at).transform(Scores.from_logits(z)).logits
    assert (np.diff(mapped[:, 1] - mapped[:, 0]) > 0).all()


def test_a_steeper_map_would_turn_the_order_around() -> None:
    """So that the bound on the ratio is not an idle one."""
    x = np.linspace(0, 9, 2_001)
    s = 1 / (1 + np.exp(-x))
    assert (np.diff(x * np.exp(-4.4 * s)) > 0).all()
    assert not (np.diff(x * np.exp(-4.6 * s)) > 0).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"unsure": 0.0, "sure": 1.0}, "unsure between"),
        ({"unsure": 1.0, "sure": math.nan}, "sure"),
        ({"unsure": 1.0, "sure": 1.0, "at": math.inf}, "at"),
        ({"unsure": 1.0, "sure": 55.0}, "above e.4 times"),
        ({"unsure": 55.0, "sure": 1.0}, "above e.4 times"),
        ({"unsure": [1.0], "sure": 1.0}, "unsure"),
    ],
)
def test_what_is_no_map(settings: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TwoTemperatures(**settings)
