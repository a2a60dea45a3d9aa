"""Each map does what its definition says, written out slowly."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.calibration.maps.sample_maps import LARGE, maps
from veracal.calibration import Bins
from veracal.calibration.maps import (
    Beta,
    Binned,
    CalibrationMap,
    Identity,
    Isotonic,
    Platt,
    Temperature,
)
from veracal.data import Group, Scores
from veracal.errors import DataError

ROWS = [[0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.34, 0.33, 0.33]]


def scores() -> Scores:
    return Scores.from_probabilities(ROWS, [0, 2, 1], name="three")


def test_identity_changes_nothing() -> None:
    given_ = scores()
    assert Identity().transform(given_) is given_


@pytest.mark.parametrize("inverse", [0.2, 1.0, 3.0])
def test_temperature_is_a_power_of_probabilities_and_a_multiple_of_logits(
    inverse: float,
) -> None:
    powers = [[p**inverse for p in row] for row in ROWS]
    expected = [[p / sum(row) for p in row] for row in powers]
    mapped = Temperature(inverse).transform(scores())
    assert mapped.kind == "probabilities"
    np.testing.assert_allclose(mapped.values, expected, rtol=1e-14)

    logits = Scores.from_logits(np.log(ROWS) + 5)  # any constant a row
    mapped = Temperature(inverse).transform(logits)
    assert mapped.kind == "logits"
    np.testing.assert_allclose(mapped.values, logits.values * inverse, rtol=1e-15)
    np.testing.assert_allclose(mapped.probabilities, expected, rtol=1e-14)


def test_temperature_says_its_value() -> None:
    assert Temperature(0.25).value == 4


@given(
    arrays(np.float64, (3, 4), elements=st.floats(-LARGE, LARGE)),
    st.floats(1e-6, 1e6),
)
def test_temperature_changes_no_prediction(logits: np.ndarray, inverse: float) -> None:
    given_ = Scores.from_logits(logits)
    mapped = Temperature(inverse).transform(given_)
    np.testing.assert_array_equal(mapped.predictions, given_.predictions)


@given(arrays(np.float64, (3, 4), elements=st.floats(0, 1)), st.floats(1e-6, 1e6))
def test_temperature_changes_no_prediction_of_probabilities(
    raw: np.ndarray, inverse: float
) -> None:
    raw[:, 0] += 1e-300
    given_ = Scores.from_probabilities(raw / raw.sum(axis=1, keepdims=True))
    mapped = Temperature(inverse).transform(given_)
    np.testing.assert_array_equal(mapped.predictions, given_.predictions)
    np.testing.assert_array_equal(mapped.values[given_.values == 0], 0)  # zero stays zero


def test_neighbors_that_a_product_would_round_together_stay_distinct() -> None:
    near = np.linspace(1, 2, 100, endpoint=False)
    close = np.stack([near, np.nextafter(near, 2)], axis=1)
    product = close * 1.1
    assert (product[:, 0] == product[:, 1]).any()  # so this is not an idle test
    assert (Temperature(1.1).transform(Scores.from_logits(close)).predictions == 1).all()
    least = Scores.from_logits([[0.0, 5e-324]])
    assert Temperature(0.1).transform(least).predictions == [1]
    beyond = Scores.from_logits([[1e308, 1.5e308]])
    mapped = Temperature(10).transform(beyond)
    assert mapped.predictions == [1] and mapped.probabilities.tolist() == [[0, 1]]


@pytest.mark.parametrize("form", ["scalar", "vector", "matrix"])
def test_platt_is_affine(form: str, rng: np.random.Generator) -> None:
    z, bias = rng.normal(size=(5, 3)), rng.normal(size=3)
    weights = {
        "scalar": np.array(-0.7),
        "vector": rng.normal(size=3),
        "matrix": rng.normal(size=(3, 3)),
    }[form]
    full = weights if form == "matrix" else np.diag(np.broadcast_to(weights, 3))
    expected = [full @ row + bias for row in z]
    map_ = Platt(weights, bias)
    assert map_.form == form
    mapped = map_.transform(Scores.from_logits(z))
    assert mapped.kind == "logits"
    np.testing.assert_allclose(mapped.values, expected, rtol=1e-13)

    p = Scores.from_probabilities(ROWS)
    exp = np.exp([full @ np.log(row) + bias for row in ROWS])
    np.testing.assert_allclose(
        map_.transform(p).values, exp / exp.sum(axis=1, keepdims=True), rtol=1e-13
    )


def test_platt_reads_probability_zero_as_the_spacing_of_floats_at_one() -> None:
    sure = Scores.from_probabilities([[1.0, 0.0]])
    least = Platt([1.0, 0.5], [0.0, 0.0]).transform(sure).values[0, 1]
    assert least == pytest.approx(2.0**-26, rel=1e-6)
    assert Platt(0.0, [0.0, 0.0]).transform(sure).values.tolist() == [[0.5, 0.5]]


def test_platt_refuses_the_other_kind_of_scores() -> None:
    vector = Platt([1.0, 2.0], [0.0, 0.0], reads="logits")
    assert len(vector.transform(Scores.from_logits([[1.0, 0.0]]))) == 1
    with pytest.raises(DataError, match="expected logits.*found probabilities"):
        vector.transform(Scores.from_probabilities([[0.5, 0.5]]))


def test_binned_gives_the_accuracy_to_the_top_and_the_rest_in_proportion() -> None:
    accuracies = [0.9, 0.2, 0.5, 1.0]
    mapped = Binned(Bins(4), accuracies).transform(scores())
    # 0.6 is in the third bin, 0.8 in the fourth, 0.34 in the second: a row at a time.
    expected = [[0.5, 0.5 * 0.3 / 0.4, 0.5 * 0.1 / 0.4], [0, 0, 1], [0.2, 0.4, 0.4]]
    np.testing.assert_allclose(mapped.values, expected, rtol=1e-14)
    assert mapped.predictions.tolist() == [0, 2, 1]  # the last prediction changed


def test_binned_keeps_the_prediction_where_it_can() -> None:
    # In proportion the second class would get 0.6 and win; so it gets as much as the first,
    # a little less, and the third the rest.
    sure = Scores.from_probabilities([[0.99, 0.01, 0.0]])
    mapped = Binned(Bins(1), [0.4]).transform(sure)
    np.testing.assert_allclose(mapped.values, [[0.4, 0.4, 0.2]], atol=1e-11)
    assert mapped.predictions == [0] and mapped.values[0, 1] < 0.4
    # Four others: mixed with equal shares of 0.15 until the largest is 0.4.
    mapped = Binned(Bins(1), [0.4]).transform(
        Scores.from_probabilities([[0.04, 0.01, 0.9, 0.01, 0.04]])
    )
    np.testing.assert_allclose(
        mapped.values, [[0.24, 0.06, 0.4, 0.06, 0.24]], rtol=1e-10
    )  # nobody was above: in proportion
    uneven = Scores.from_probabilities([[0.08, 0.01, 0.9, 0.01, 0.0]])
    t = (0.48 - 0.4) / (0.48 - 0.15)
    expected = [(1 - t) * v + t * 0.15 for v in (0.48, 0.06, 0.06, 0.0)]
    mapped = Binned(Bins(1), [0.4]).transform(uneven)
    np.testing.assert_allclose(mapped.values[0, [0, 1, 3, 4]], expected, rtol=1e-10)


@given(
    arrays(np.float64, (4, 5), elements=st.sampled_from([0.0, 1e-300, 1e-9, 0.2, 0.3, 1.0])),
    st.floats(0, 1),
)
def test_top_label_maps_change_only_predictions_they_have_to(
    raw: np.ndarray, accuracy: float
) -> None:
    raw[:, 0] += raw.sum(axis=1) == 0
    given_ = Scores.from_probabilities(raw / raw.sum(axis=1, keepdims=True))
    for map_ in (Binned(Bins(1), [accuracy]), Isotonic([[0.5]], [[accuracy]], "top-label")):
        mapped = map_.transform(given_)
        said = mapped.values[np.arange(4), given_.predictions]
        assert (said == accuracy).all()
        kept = mapped.predictions == given_.predictions
        assert kept.all() or accuracy < 0.2 * (1 + 1e-9)


@pytest.mark.parametrize(("confidence", "place"), [(0.5, 0), (np.nextafter(0.5, 1), 1), (1, 1)])
def test_binned_has_bins_closed_on_the_right(confidence: float, place: int) -> None:
    one = Scores.from_probabilities([[confidence, 1 - confidence]])
    mapped = Binned(Bins(2), [0.0, 1.0]).transform(one)
    assert mapped.values[0, 0] == place


def test_binned_divides_the_rest_equally_among_zeros() -> None:
    sure = Scores.from_probabilities([[0.0, 1.0, 0.0, 0.0]])
    mapped = Binned(Bins(2), [0.5, 0.4]).transform(sure)
    np.testing.assert_allclose(mapped.values, [[0.2, 0.4, 0.2, 0.2]])
    subnormal = Scores.from_probabilities([[1.0, 1e-323, 5e-324]])
    mapped = Binned(Bins(1), [0.4]).transform(subnormal)
    np.testing.assert_allclose(mapped.values, [[0.4, 0.4, 0.2]])  # in proportion, not equally


def test_isotonic_curves_are_straight_between_points_and_level_beyond() -> None:
    p = np.array([0.0, 0.1, 0.3, 0.6, 1.0])
    two = Scores.from_probabilities(p)
    mapped = Isotonic([[0.2, 0.4, 0.8]], [[0.1, 0.3, 0.5]], "one-vs-rest").transform(two)
    np.testing.assert_allclose(mapped.values[:, 1], [0.1, 0.1, 0.2, 0.4, 0.5])
    np.testing.assert_allclose(mapped.values[:, 0], 1 - mapped.values[:, 1])


def test_isotonic_one_vs_rest_scales_rows() -> None:
    halves = [[0.0, 1.0]] * 3, [[0.0, 1.0], [0.0, 0.5], [0.0, 0.0]]
    mapped = Isotonic(*halves, "one-vs-rest").transform(scores())
    np.testing.assert_allclose(mapped.values[0], [0.6 / 0.75, 0.15 / 0.75, 0])
    least = [[0.0, 1.0]] * 3, [[0.0, 1.5e-323], [5e-324, 5e-324], [0.0, 0.0]]
    tiny = Isotonic(*least, "one-vs-rest").transform(Scores.from_probabilities([[1.0, 0, 0]]))
    np.testing.assert_allclose(tiny.values, [[0.75, 0.25, 0]])  # too small for a factor
    none = Isotonic([[0.5]] * 3, [[0.0]] * 3, "one-vs-rest").transform(scores())
    np.testing.assert_allclose(none.values, 1 / 3)


def test_isotonic_top_label_maps_the_confidence() -> None:
    mapped = Isotonic([[0.0, 1.0]], [[0.0, 0.5]], "top-label").transform(scores())
    np.testing.assert_allclose(mapped.values[0], [0.3, 0.7 * 0.75, 0.7 * 0.25])


def test_beta_maps_log_odds() -> None:
    p = np.array([0.1, 0.5, 0.9])
    odds = p**2.0 / (1 - p) ** 0.5 * np.exp(0.3)
    mapped = Beta([2.0], [0.5], [0.3]).transform(Scores.from_probabilities(p))
    np.testing.assert_allclose(mapped.values[:, 1], odds / (1 + odds), rtol=1e-13)

    a, b, c = [1.0, 2.0, 0.5], [1.0, 0.0, 3.0], [0.1, 0.2, -0.3]
    one = np.array(
        [
            [1 / (1 + np.exp(-(a[j] * np.log(q) - b[j] * np.log(1 - q) + c[j])))]
            for row in ROWS
            for j, q in enumerate(row)
        ]
    ).reshape(3, 3)
    np.testing.assert_allclose(
        Beta(a, b, c).transform(scores()).values,
        one / one.sum(axis=1, keepdims=True),
        rtol=1e-13,
    )


def test_beta_finds_its_way_back_from_certainty() -> None:
    sure = Scores.from_probabilities([[1.0, 0.0], [0.0, 1.0]])
    mapped = Beta([0.5], [0.5], [0.0]).transform(sure)
    np.testing.assert_allclose(mapped.values[[0, 1], [1, 0]], 2.0**-26, rtol=1e-6)


@pytest.mark.parametrize("map_", maps(3), ids=repr)
def test_what_belongs_to_the_records_stays(map_: CalibrationMap) -> None:
    given_ = Scores.from_logits(
        np.eye(3),
        ["c", "a", "b"],
        classes=["a", "b", "c"],
        groups={"side": Group.from_values(["l", "r", "l"], ["l", "r"])},
        units=["u", "v", "v"],
        name="named",
    )
    mapped = map_.transform(given_)
    assert mapped.labels is not None and mapped.labels.tolist() == [2, 0, 1]
    assert mapped.classes == ("a", "b", "c")
    settings = "named" if map_ == Identity() else f"named, {map_.mark}"
    assert mapped.name == settings and map_.kind in map_.mark
    assert mapped.groups["side"].codes.tolist() == [0, 1, 0]
    assert mapped.units is not None and mapped.units.tolist() == ["u", "v", "v"]
    assert given_.values.tolist() == np.eye(3).tolist()  # and was not written to


@pytest.mark.parametrize("map_", maps(3), ids=repr)
def test_a_record_is_mapped_by_its_own_row(
    map_: CalibrationMap, rng: np.random.Generator
) -> None:
    given_ = Scores.from_logits(rng.normal(size=(20, 3)) * 4)
    whole = map_.transform(given_)
    alone = [map_.transform(given_.take([i])).values[0] for i in range(20)]
    np.testing.assert_allclose(whole.values, alone, rtol=1e-15, atol=1e-300)


@pytest.mark.parametrize("map_", maps(3), ids=repr)
def test_maps_are_records(map_: CalibrationMap) -> None:
    assert sum(map_ == other for other in maps(3)) == 1
    assert map_ != "a map"
    for same in (map_, copy.deepcopy(map_), pickle.loads(pickle.dumps(map_))):
        assert same == map_ and hash(same) == hash(map_)
        for value in vars(same).values():
            for array in value if isinstance(value, tuple) else [value]:
                if isinstance(array, np.ndarray):
                    with pytest.raises(ValueError, match="read-only"):
                        array[...] = 0


def test_equal_parameters_make_equal_maps() -> None:
    assert len({Platt(1, [0.0, -0.0]), Platt(1.0, [0, 0]), Platt(np.float32(1), (0, 0))}) == 1
    assert Platt(1.0, [0, 0]) != Platt([1.0, 1.0], [0, 0])


def test_parameters_are_copied() -> None:
    bias = np.zeros(2)
    map_ = Platt(1.0, bias)
    bias[:] = 5
    assert map_.bias.tolist() == [0, 0]


@pytest.mark.parametrize(
    "value", [0, -1, np.nan, np.inf, 1e-7, 1e7, True, "1", None, [1.0], 1j]
)
def test_invalid_temperatures(value: object) -> None:
    with pytest.raises(ValueError, match="Expected inverse"):
        Temperature(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "bias"),
    [
        (1.0, [0.0]),
        (1.0, 0.0),
        ([1.0], [0.0, 0.0]),
        (np.eye(3), [0.0, 0.0]),
        (np.ones((2, 2, 2)), [0.0, 0.0]),
        (np.nan, [0.0, 0.0]),
        (1.0, [0.0, np.inf]),
        (1.0, [0.0, 1e10]),
        ([[1.0], [1.0, 2.0]], [0.0, 0.0]),
        ("1", [0.0, 0.0]),
        (1.0, []),
        (np.ma.masked_array([1.0, 2.0], [True, False]), [0.0, 0.0]),
        (1.0, [0, 10**400]),
    ],
)
def test_invalid_platt_parameters(weights: object, bias: object) -> None:
    with pytest.raises(ValueError, match="xpected"):
        Platt(weights, bias)  # type: ignore[arg-type]


@pytest.mark.parametrize("accuracies", [[0.5], [0.5, 1.1], [0.5, -0.1], [0.5, np.nan], [], 0.5])
def test_invalid_accuracies(accuracies: object) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Binned(Bins(2), accuracies)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Expected bins"):
        Binned(2, [0.5, 0.5])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inputs", "outputs", "form"),
    [
        ([[0.0, 1.0]], [[1.0, 0.0]], "top-label"),  # falls
        ([[0.5, 0.5]], [[0.0, 1.0]], "top-label"),  # two answers to one question
        ([[1.0, 0.0]], [[0.0, 1.0]], "top-label"),
        ([[0.0, 1.0]], [[0.0]], "top-label"),
        ([[0.0, np.nan]], [[0.0, 1.0]], "top-label"),
        ([[0.0, 2.0]], [[0.0, 1.0]], "top-label"),
        ([[0.0]] * 2, [[0.0]] * 2, "one-vs-rest"),
        ([[0.0]] * 3, [[0.0]] * 3, "top-label"),
        ([], [], "one-vs-rest"),
        ([[]], [[]], "one-vs-rest"),
        ([[0.0]], [[0.0]], "binary"),
        (0.5, 0.5, "top-label"),
        ("0", "0", "top-label"),
    ],
)
def test_invalid_curves(inputs: object, outputs: object, form: str) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Isotonic(inputs, outputs, form)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ([-1.0], [1.0], [0.0]),
        ([1.0], [-1.0], [0.0]),
        ([1.0], [1.0], [np.nan]),
        ([1.0, 1.0], [1.0, 1.0], [0.0, 0.0]),
        ([1.0], [1.0] * 3, [0.0]),
        (1.0, 1.0, 0.0),
    ],
)
def test_invalid_beta_parameters(a: object, b: object, c: object) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Beta(a, b, c)  # type: ignore[arg-type]


@pytest.mark.parametrize("map_", [m for m in maps(3) if m.kind in ("platt", "beta")], ids=repr)
def test_maps_for_other_classes_are_refused(map_: CalibrationMap) -> None:
    with pytest.raises(DataError, match="3 classes"):
        map_.transform(Scores.from_logits([[1.0, 0.0]]))


def test_isotonic_curves_of_other_classes_are_refused() -> None:
    three = Isotonic([[0.5]] * 3, [[0.5]] * 3, "one-vs-rest")
    with pytest.raises(DataError, match="3 classes"):
        three.transform(Scores.from_logits([[1.0, 0.0]]))
    two = Isotonic([[0.5]], [[0.5]], "one-vs-rest")
    with pytest.raises(DataError, match="2 classes"):
        two.transform(scores())
