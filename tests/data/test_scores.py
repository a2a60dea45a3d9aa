"""Scores know what they hold, and convert it exactly."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax

from veracal.data import Group, Scores
from veracal.errors import DataError

LOGITS = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0], [1.0, 1.0, 1.0]])


def test_logits_become_probabilities_and_stay_logits() -> None:
    scores = Scores.from_logits(LOGITS, [0, 2, 1])
    np.testing.assert_array_equal(scores.logits, LOGITS)
    np.testing.assert_allclose(scores.probabilities, softmax(LOGITS, axis=1), rtol=1e-15)
    np.testing.assert_allclose(
        np.exp(scores.log_probabilities), scores.probabilities, rtol=1e-14
    )
    assert scores.predictions.tolist() == [0, 2, 0]  # the first of equal ones
    assert scores.correct.tolist() == [True, True, False]
    np.testing.assert_allclose(scores.confidence, softmax(LOGITS, axis=1).max(axis=1))


@given(arrays(np.float64, (4, 3), elements=st.floats(1e-300, 1)))
def test_probabilities_survive_the_way_through_logits(raw: np.ndarray) -> None:
    given_ = raw / raw.sum(axis=1, keepdims=True)
    scores = Scores.from_probabilities(given_)
    assert (scores.probabilities == given_).all()
    back = Scores.from_logits(np.maximum(scores.logits, -1e9)).probabilities
    np.testing.assert_allclose(back, given_, rtol=1e-12, atol=1e-300)


def test_certainty_has_a_logit_of_minus_infinity() -> None:
    scores = Scores.from_probabilities([[1.0, 0.0]])
    assert scores.logits.tolist() == [[0, -np.inf]]
    assert scores.confidence.tolist() == [1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8", int])
def test_dtypes(dtype: object) -> None:
    scores = Scores.from_logits(LOGITS.astype(dtype))  # type: ignore[arg-type]
    assert scores.values.dtype in (np.float32, np.float64) and scores.values.dtype.isnative
    np.testing.assert_allclose(scores.probabilities, softmax(LOGITS, axis=1), rtol=1e-6)


def test_huge_logits_overflow_nothing() -> None:
    scores = Scores.from_logits(np.array([[3e38, -3e38], [1000, 0]], dtype=np.float32))
    assert scores.probabilities.tolist() == [[1, 0], [1, 0]]
    huge = Scores.from_logits(np.array([[1.7e308, -1.7e308]]))
    assert huge.probabilities.tolist() == [[1, 0]]
    assert huge.log_probabilities.tolist() == [[0, -np.inf]]


def test_sums_are_held_to_the_stated_tolerance() -> None:
    off = np.array([[0.5, 0.5 + 1e-5]])
    with pytest.raises(DataError, match="sum to 1"):
        Scores.from_probabilities(off)
    assert len(Scores.from_probabilities(off.astype(np.float32))) == 1
    assert len(Scores.from_probabilities(np.array([[0.5, 0.5 + 1e-7]]))) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("row", [0, 65_535, 65_536, 149_999])
@pytest.mark.parametrize(("wrong", "said"), [(1.5, "1.5"), (0.25, "0.75"), (np.nan, "nan")])
def test_a_wrong_record_is_named_wherever_it_is(
    dtype: type, row: int, wrong: float, said: str
) -> None:
    values = np.full((150_000, 2), 0.5, dtype=dtype)
    values[row, 1] = wrong
    with pytest.raises(DataError, match=rf"{said} in record {row + 1}\b"):
        Scores.from_probabilities(values)


def test_infinite_logits_are_detected_even_if_sums_are_finite() -> None:
    with pytest.raises(DataError, match="inf in record 1"):
        Scores.from_logits([[np.inf, -np.inf]])
    largest = np.finfo(np.float64).max
    assert len(Scores.from_logits([[largest, largest]])) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, ">i4"])
def test_labels_of_any_whole_numbers(dtype: object) -> None:
    fair = [[0.5, 0.5]] * 3
    labels = np.array([0, 1, 1], dtype=dtype)  # type: ignore[call-overload]
    assert Scores.from_probabilities(fair, labels).known_labels.tolist() == [0, 1, 1]
    with pytest.raises(DataError, match="'2' in record 2"):
        Scores.from_probabilities(fair, labels * 2)


def test_one_column_is_the_second_of_two_classes() -> None:
    logits = Scores.from_logits([1e-17, -1e-17, 0.0], ["b", "a", "a"], classes=["a", "b"])
    assert logits.predictions.tolist() == [1, 0, 0]  # by sign, though all sigmoids round to 1/2
    probabilities = Scores.from_probabilities([0.25], classes=["a", "b"])
    assert probabilities.values.tolist() == [[0.75, 0.25]]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([[0.5, np.nan]], "nan in record 1"),
        ([[0.5, 0.5], [np.inf, 0]], "inf in record 2"),
        ([[["a"]]], "real numbers"),
        ([["a", "b"]], "real numbers"),
        ([[1 + 1j, 0]], "real numbers"),
        (3.0, "real numbers"),
        ([[1.0], [2.0]], "at least two"),
        ([[np.longdouble("1e400"), 0]], "inf in record 1"),
    ],
)
def test_invalid_logits_are_refused(values: object, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Scores.from_logits(values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (LOGITS, r"in \[0, 1\].*pass logits as logits"),
        ([[0.5, 0.4]], "sum to 1, found 0.9"),
        ([[0.5, np.nan]], r"in \[0, 1\]"),
        ([[1.1, -0.1]], r"in \[0, 1\]"),
        ([0.5, 1.5], r"found 1\.5 in record 2"),  # and not -0.5, the complement
        (np.ma.masked_array([[0.5, 0.5]], mask=True), "a plain array"),
    ],
)
def test_invalid_probabilities_are_refused(values: object, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Scores.from_probabilities(values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"labels": [0, 1]},
        {"labels": [0, 1, 3]},
        {"labels": [0, 1, -1]},
        {"labels": ["a", "b", "c"]},
        {"classes": ["a", "b"]},
        {"classes": ["a", "b", "b"]},
        {"labels": [[0], [1], [2]]},
        {"units": [1]},
        {"units": [[1, 2], [3, 4], [5, 6]]},
        {"units": [1.0, 2.0, 3.0]},
        {"units": [np.nan, np.nan, np.nan]},
        {"units": np.array([None, "p", None], object)},
        {"units": ["p", "", "q"]},
        {"groups": {"g": Group(np.array([0]), ("x",))}},
        {"groups": {"g": np.array([0, 0, 0])}},
    ],
)
def test_parts_that_do_not_fit(settings: dict[str, object]) -> None:
    with pytest.raises(DataError):
        Scores.from_logits(LOGITS, **settings)  # type: ignore[arg-type]


def test_scores_without_labels_say_so() -> None:
    with pytest.raises(DataError, match="no labels"):
        _ = Scores.from_logits(LOGITS).correct


def test_take_keeps_rows_together() -> None:
    scores = Scores.from_logits(
        LOGITS,
        [0, 2, 1],
        groups={"g": Group(np.array([0, 1, 0]), ("x", "y"))},
        units=["p", "q", "p"],
    )
    part = scores.take(np.array([2, 0]))
    assert part.labels is not None and part.labels.tolist() == [1, 0]
    assert part.groups["g"].codes.tolist() == [0, 0] and part.units is not None
    assert part.units.tolist() == ["p", "p"]
    assert scores.take(np.array([False, True, False])).values.tolist() == [[0, 0, 3]]
    empty = scores.take([])
    assert empty.values.shape == (0, 3) and len(empty.groups["g"]) == 0
    assert scores.take(np.zeros(3, bool)).values.shape == (0, 3)


@pytest.mark.parametrize("mask", [[True], [True, False], [True] * 4, [[True] * 3]])
def test_a_mask_has_an_entry_for_each_record(mask: list[bool]) -> None:
    with pytest.raises(ValueError, match=r"a mask of shape \(3,\)"):
        Scores.from_logits(LOGITS).take(mask)


def whole() -> Scores:
    """Scores with every part."""
    return Scores.from_logits(
        LOGITS.copy(),
        np.array([0, 2, 1]),
        groups={"g": Group(np.array([0, 1, 0]), ("x", "y"))},
        units=np.array([1, 2, 3]),
    )


@pytest.mark.parametrize(
    "make",
    [
        whole,
        lambda: Scores.from_probabilities([0.5, 0.5, 0.5], [0, 1, 1], units=[1, 2, 3]),
        lambda: Scores(LOGITS.copy(), "logits", (0, 1, 2), np.array([0, 1, 2])),
        lambda: whole().take([2, 0]),
        lambda: whole().take(np.arange(3)),
        lambda: whole().merge({"a": [0], "b": [1, 2]}),
        lambda: whole().merge({"a": [0], "b": [1, 2]}, labels=["a", "b", "a"]),
        lambda: pickle.loads(pickle.dumps(whole())),
        lambda: pickle.loads(pickle.dumps(whole(), protocol=5)),
        lambda: copy.deepcopy(whole()),
        lambda: copy.copy(whole()),
    ],
)
def test_scores_cannot_be_changed(make: Callable[[], Scores]) -> None:
    scores = make()
    for array in (scores.values, scores.labels, scores.units):
        if array is not None:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True


def test_scores_are_independent_of_the_arrays_they_were_made_from() -> None:
    values, codes, units = LOGITS.copy(), np.array([0, 2, 1]), np.array([1, 2, 3])
    view = values.view()
    view.flags.writeable = False  # yet the array behind it can be written to
    cases = [Scores.from_logits(given, codes, units=units) for given in (values, view)] + [
        Scores(given, "logits", (0, 1, 2), codes, units=units) for given in (values, view)
    ]
    values[:], codes[:], units[:] = np.nan, 0, 9
    for scores in cases:
        assert (scores.values == LOGITS).all() and scores.known_labels.tolist() == [0, 2, 1]
        assert scores.units is not None and scores.units.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (([[np.nan, 1.0]], "logits", (0, 1)), "finite logits"),
        (([[0.5, 0.6]], "probabilities", (0, 1)), "sum to 1"),
        (([0.5, 0.6], "probabilities", (0, 1)), "Use Scores.from_probabilities"),
        (([[0.0, 1.0]], "scores", (0, 1)), "kind"),
        (([[0.0, 1.0]], "logits", (0, 1), [2]), "codes from 0 to 1, found 2"),
        (([[0.0, 1.0]], "logits", (0, 1), [0.5]), "whole numbers"),
        (([[0.0, 1.0]], "logits", ("a", "b"), ["a"]), "whole numbers"),
    ],
)
def test_the_constructor_checks_as_the_others_do(arguments: tuple, complaint: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=complaint):
        Scores(*arguments)


INTO = {"yes": ["e"], "no": ["n", "c"]}


def test_merging_logits_and_probabilities_agree() -> None:
    classes = ["e", "n", "c"]
    logits = Scores.from_logits(LOGITS, ["e", "c", "n"], classes=classes)
    probabilities = Scores.from_probabilities(
        logits.probabilities, ["e", "c", "n"], classes=classes
    )
    merged = logits.merge(INTO)
    np.testing.assert_allclose(
        merged.probabilities, probabilities.merge(INTO).values, rtol=1e-14
    )
    assert merged.classes == ("yes", "no") and merged.kind == "logits"
    group = {"g": Group(np.array([0, 1, 0]), ("x", "y"))}
    kept = Scores.from_logits(LOGITS, classes=classes, groups=group, units=[1, 2, 3]).merge(
        INTO
    )
    assert kept.groups["g"].codes.tolist() == [0, 1, 0] and kept.units is not None
    assert kept.units.tolist() == [1, 2, 3]
    assert merged.labels is not None and merged.labels.tolist() == [0, 1, 1]
    # The sum of the joined decides, not the larger of them: three equal classes make 1 to 2.
    assert merged.predictions.tolist() == [0, 1, 1]


def test_merging_takes_labels_of_the_new_classes() -> None:
    scores = Scores.from_logits(LOGITS, classes=["e", "n", "c"])
    assert scores.merge(INTO).labels is None
    merged = scores.merge(INTO, labels=["no", "no", "yes"])
    assert merged.labels is not None and merged.labels.tolist() == [1, 1, 0]
    with pytest.raises(DataError, match="expected 3"):
        scores.merge(INTO, labels=["no"])


@pytest.mark.parametrize(
    "into",
    [
        {"a": ["e"], "b": ["n"]},
        {"a": ["e", "n"], "b": ["c", "e"]},
        {"a": ["e", "z"], "b": ["n", "c"]},
        {"a": ["e", "n", "c"], "b": []},
        {"a": "en", "b": "c"},
    ],
)
def test_merging_needs_every_class_once(into: dict[str, list[str]]) -> None:
    with pytest.raises(DataError, match="exactly once"):
        Scores.from_logits(LOGITS, classes=["e", "n", "c"]).merge(into)  # type: ignore[arg-type]
