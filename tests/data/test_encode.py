"""Encoding follows the schema, row by row, and refuses what it does not cover."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veracal.data import (
    Category,
    Dataset,
    FillValue,
    Grouping,
    Ignore,
    Number,
    Schema,
    Target,
    Text,
    UnitColumn,
    Vector,
)
from veracal.data.encoding import clip_rows, encode
from veracal.data.rows import TEXT
from veracal.errors import DataError

Y = Target(("no", "yes"))


def encoded(columns: dict[str, Any], values: dict[str, Any], **settings: Any) -> Dataset:
    """Encode a small table whose labels are all 'no' unless it has its own."""
    n = len(next(iter(values.values())))
    frame = pl.DataFrame({"y": ["no"] * n} | values, strict=False)
    return encode(frame, Schema({"y": Y} | columns, **settings), where="t")


def test_numbers_scale_by_their_bounds() -> None:
    data = encoded({"x": Number(0, 10)}, {"x": ["0", "2.5", "1e1"]})
    assert data.X[:].tolist() == [[-1], [-0.5], [1]]


def test_numbers_scale_by_a_declared_center_and_spread() -> None:
    data = encoded({"x": Number(0, 10, center=4, spread=2)}, {"x": [0, 4, 10]})
    assert data.X[:].tolist() == [[-2], [0], [3]]


def test_categories_become_one_column_each() -> None:
    data = encoded({"c": Category(("a", "b", "c"))}, {"c": ["b", "a", "b"]})
    assert data.X[:].tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0]]
    assert data.feature_names == ("c=a", "c=b", "c=c")


@pytest.mark.parametrize("values", [["1", "2"], [1, 2], [1.0, 2.0], ["1", 2]])
def test_categories_match_text_and_numbers_alike(values: list[object]) -> None:
    data = encoded(
        {"c": Category((1, "2"))},
        {"c": [str(v) for v in values] if values == ["1", 2] else values},
    )
    assert data.X[:].tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("mark", ["", "?", "NA"])
def test_treatments_of_missing_numbers(mark: str) -> None:
    values = {"x": ["0", mark, "10"]}
    marks = ("", "?", "NA")
    dropped = encoded({"x": Number(0, 10, missing="drop")}, values, missing=marks)
    assert dropped.X[:].tolist() == [[-1], [1]]
    constant = encoded({"x": Number(0, 10, missing=FillValue(7.5))}, values, missing=marks)
    assert constant.X[:].tolist() == [[-1], [0.5], [1]]
    indicated = encoded({"x": Number(0, 10, missing="indicator")}, values, missing=marks)
    assert indicated.X[:].tolist() == [[-1, 0], [0, 1], [1, 0]]


def test_treatments_of_missing_categories() -> None:
    values = {"c": ["a", None, "b"]}
    dropped = encoded({"c": Category(("a", "b"), missing="drop")}, values)
    assert dropped.X[:].tolist() == [[1, 0], [0, 1]]
    constant = encoded({"c": Category(("a", "b"), missing=FillValue("b"))}, values)
    assert constant.X[:].tolist() == [[1, 0], [0, 1], [0, 1]]
    indicated = encoded({"c": Category(("a", "b"), missing="indicator")}, values)
    assert indicated.X[:].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_missing_marks_in_typed_columns() -> None:
    number = {"x": Number(0, 10, missing="drop")}
    assert len(encoded(number, {"x": [1, -9, None]}, missing=("-9",))) == 1
    assert len(encoded(number, {"x": [1.0, float("nan")]}, missing=("nan",))) == 1
    with pytest.raises(DataError, match="nan in record 2"):
        encoded(number, {"x": [1.0, float("nan")]})


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (Number(0, 1), ["0", "?"]),
        (Category(("a",)), ["a", None]),
        (Vector(2, 0, 1), [[0, 1], None]),
        (Vector(2, 0, 1), [[0, 1], [0, None]]),
    ],
)
def test_missing_values_without_a_treatment(column: Any, values: list[object]) -> None:
    with pytest.raises(DataError, match="no treatment of missing ones is declared.*record 2"):
        encoded({"x": column}, {"x": values}, missing=("?",))


@pytest.mark.parametrize(
    ("column", "values", "complaint"),
    [
        (Number(0, 1), ["0", "old"], "a number, found 'old' in record 2"),
        (Number(0, 1), ["0", ""], "a number, found '' in record 2"),
        (Number(0, 1), ["0", "1_0"], "a number, found '1_0'"),
        (Number(0, 1), ["0", "nan"], r"\[0, 1\], found 'nan'"),
        (Number(0, 1), ["0", "inf"], r"\[0, 1\], found 'inf'"),
        (Number(0, 1), ["0", "1.5"], r"\[0, 1\], found '1.5' in record 2"),
        (Number(0, 1), [0, -1], r"\[0, 1\], found -1 in record 2"),
        (Number(0, 1), [pl.Series([1]).cast(pl.Date)[0]] * 2, "numbers, found the type Date"),
        (Number(0, 1), [[0], [1]], "numbers, found the type List"),
        (Category(("a", "b")), ["a", "A"], "one of 'a', 'b', found 'A' in record 2"),
        (Category(("a", "b")), ["a", "a "], "found 'a ' in record 2"),
        (Category((1, 2)), [1.0, 1.5], "whole numbers, found 1.5"),
        (Category(("a", "b")), [b"a", b"b"], "type Binary"),
        (Category((1, 2)), [1.0, 1e300], "at most 64 bits, found 1e\\+300 in record 2"),
        (Vector(2, 0, 1), [[0, 1], [0]], r"list of 2 numbers.*record 2"),
        (Vector(2, 0, 1), [[0, 1], [0, 3]], r"2 numbers in \[0, 1\].*record 2"),
        (Vector(2, 0, 1), [[0, 1], [0, float("nan")]], r"2 numbers in \[0, 1\].*record 2"),
        (Vector(2, 0, 1), [0, 1], "lists of 2 numbers"),
        (Number(0, 1), ["0", "x" * 1000], "x…"),
    ],
)
def test_values_outside_their_declaration(
    column: Any, values: list[object], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        encoded({"x": column}, {"x": values})


def test_declared_ways_around_the_bounds() -> None:
    clipped = encoded({"x": Number(0, 10, outside="clip")}, {"x": [-5, 50]})
    assert clipped.X[:].tolist() == [[-1], [1]]
    ignored = encoded({"c": Category(("a", "b"), outside="ignore")}, {"c": ["z", "b"]})
    assert ignored.X[:].tolist() == [[0, 0], [0, 1]]
    vectors = encoded({"v": Vector(2, 0, 1, outside="clip")}, {"v": [[-1, 0.5], [3, 0]]})
    assert vectors.X[:].tolist() == [[-1, 0], [1, -1]]


def test_vectors_come_as_lists_arrays_or_columns() -> None:
    column = {"v": Vector(3, 0, 2)}
    lists = encoded(column, {"v": [[0, 1, 2], [2, 2, 2]]})
    arrays = encoded(column, {"v": np.array([[0, 1, 2], [2, 2, 2]])})
    spread = encoded(column, {"v_0": ["0", "2"], "v_1": ["1", "2"], "v_2": ["2", "2"]})
    for data in (lists, arrays, spread):
        assert data.X[:].tolist() == [[-1, 0, 1], [1, 1, 1]]
    with pytest.raises(DataError, match="no 'v_1'"):
        encoded(column, {"v_0": ["0"], "v_2": ["1"]})
    some = encoded({"v": Vector(2, 0, 1, missing="drop")}, {"v": [[0, 1], None, [1, 1]]})
    assert some.X[:].tolist() == [[-1, 1], [1, 1]]


def test_text_makes_the_whole_of_x() -> None:
    data = encoded(
        {"a": Text(), "b": Text(missing=FillValue("none"))},
        {"a": ["x", "é"], "b": ["?", "z"]},
        missing=["?"],
    )
    assert data.X.dtype == TEXT and data.X[:].tolist() == [["x", "none"], ["é", "z"]]


def test_labels_units_and_groups() -> None:
    data = encoded(
        {
            "age": Number(0, 100, missing="indicator"),
            "sex": Category(("f", "m"), feature=False),
            "id": UnitColumn(),
            "note": Ignore(),
        },
        {
            "y": ["yes", "no", "no", "yes"],
            "age": ["0", "18", "18.5", "?"],
            "sex": ["m", "f", "m", "m"],
            "id": ["p1", "p1", "p2", "p3"],
            "note": ["a", "b", "c", "d"],
        },
        groups={"sex": Grouping("sex"), "ages": Grouping("age", (0, 18, 100))},
        missing=("?",),
        size=9,
    )
    assert data.y.tolist() == [1, 0, 0, 1] and data.size == 9
    assert data.units is not None and data.units.tolist() == ["p1", "p1", "p2", "p3"]
    ages = data.groups["ages"]
    assert [ages.names[c] for c in ages.codes] == ["[0, 18]", "[0, 18]", "(18, 100]", "missing"]
    assert data.groups["sex"].codes.tolist() == [1, 0, 1, 1]
    assert data.feature_names == ("age", "age=missing")


def test_labels_outside_the_classes() -> None:
    with pytest.raises(DataError, match="one of 'no', 'yes', found 'maybe' in record 1"):
        encoded({"x": Number(0, 1)}, {"x": ["0"], "y": ["maybe"]})


def test_a_missing_label_or_unit_drops_the_row_if_so_declared() -> None:
    columns = {
        "x": Number(0, 1),
        "u": UnitColumn(missing="drop"),
        "y": Target(("no", "yes"), missing="drop"),
    }
    data = encoded(columns, {"x": [0, 0, 1], "u": [1, None, 3], "y": [None, "no", "yes"]})
    assert data.X[:].tolist() == [[1]] and data.units is not None and data.units.tolist() == [3]


def test_columns_must_be_the_declared_ones() -> None:
    with pytest.raises(DataError, match="also 'z'.*ignore"):
        encoded({"x": Number(0, 1)}, {"x": [0], "z": [0]})
    with pytest.raises(DataError, match="a column 'x'"):
        encoded({"x": Number(0, 1)}, {"y": ["no"]})


def test_record_numbers_count_from_the_start_of_the_file() -> None:
    frame = pl.DataFrame({"y": ["no", "no"], "x": ["0", "bad"]})
    with pytest.raises(DataError, match="record 1002"):
        encode(frame, Schema({"y": Y, "x": Number(0, 1)}), where="t", start=1000)


def test_long_rows_are_scaled_to_the_declared_norm() -> None:
    data = encoded(
        {"a": Number(-9, 9, center=0, spread=1), "b": Number(-9, 9, center=0, spread=1)},
        {"a": [3, 0.3, 0], "b": [4, 0.4, 0]},
        norm=2.5,
    )
    np.testing.assert_allclose(data.X, [[1.5, 2], [0.3, 0.4], [0, 0]])
    assert data.norm == 2.5


@given(st.integers(1, 40), st.floats(1e-6, 1e6), st.integers(0, 2**32))
def test_no_computed_norm_exceeds_the_bound(d: int, norm: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(50, d)) * 10.0 ** rng.uniform(-8, 8, size=(50, 1))
    assert np.linalg.norm(clip_rows(X.copy(), norm), axis=1).max() <= norm


TABLE = Schema(
    {
        "y": Y,
        "x": Number(0, 10, missing="indicator"),
        "c": Category(("a", "b"), missing="drop"),
        "v": Vector(2, -1, 1, outside="clip"),
        "u": UnitColumn(missing="drop"),
    },
    groups={"c": Grouping("c")},
    missing=("?",),
    norm=1.0,
)
ROWS = st.tuples(
    st.sampled_from(["no", "yes"]),
    st.sampled_from(["?", "0", "3.7", "10"]),
    st.sampled_from(["a", "b", "?"]),
    st.lists(st.floats(-2, 2), min_size=2, max_size=2),
    st.text(min_size=1, max_size=3),
)


@given(st.lists(ROWS, min_size=1, max_size=12), st.data())
def test_what_a_row_becomes_depends_on_that_row_alone(
    rows: list[Any], data: st.DataObject
) -> None:
    """Each row encoded alone, and among any others in any order, gives the same bits."""

    def one(some: list[Any]) -> Dataset:
        frame = pl.DataFrame(
            some,
            schema={
                "y": pl.String,
                "x": pl.String,
                "c": pl.String,
                "v": pl.List(pl.Float64),
                "u": pl.String,
            },
            orient="row",
        )
        return encode(frame, TABLE, where="t")

    order = data.draw(st.permutations(range(len(rows))))
    shuffled = one([rows[i] for i in order])
    alone = [one([rows[i]]) for i in order]
    assert (shuffled.X == np.concatenate([a.X for a in alone])).all()
    assert (shuffled.y == np.concatenate([a.y for a in alone])).all()
    assert (
        shuffled.groups["c"].codes == np.concatenate([a.groups["c"].codes for a in alone])
    ).all()


def test_rows_without_an_id_are_no_unit() -> None:
    columns = {"x": Number(0, 1), "u": UnitColumn(missing="drop")}
    data = encoded(columns, {"x": [0, 1, 1], "u": ["p", "NA", None]}, missing=("NA",))
    assert data.units is not None and data.units.tolist() == ["p"]
    with pytest.raises(DataError, match="an id, found '' in record 2"):
        encoded(columns, {"x": [0, 1], "u": ["p", ""]})


def test_marks_count_inside_vectors() -> None:
    vector = {"v": Vector(2, -10, 10, center=0, spread=1, missing="drop")}
    rows = encoded(vector, {"v": [[1.0, 2.0], [-9.0, 3.0], [5.0, 6.0]]}, missing=("-9",))
    assert rows.X[:].tolist() == [[1, 2], [5, 6]]
    spread = {"v_0": ["1", "2", "3"], "v_1": ["1", "NA", "3"]}
    assert encoded(vector, spread, missing=("NA",)).X[:].tolist() == [[1, 1], [3, 3]]
    one = {"v": Vector(1, 0, 10, center=0, spread=1, missing="drop")}
    assert encoded(one, {"v": [[1.0], None, [5.0]]}).X[:].tolist() == [[1], [5]]


def test_whole_marks_do_not_go_through_floats() -> None:
    columns = {"x": Number(0, 1), "u": UnitColumn(missing="drop")}
    ids = [2**53, 2**53 + 1]
    data = encoded(columns, {"x": [0, 1], "u": ids}, missing=(str(2**53),))
    assert data.units is not None and data.units.tolist() == [2**53 + 1]


def test_very_long_rows_are_clipped_too() -> None:
    wide = Number(-1e300, 1e300, center=0, spread=1)
    data = encoded({"a": wide, "b": wide}, {"a": [3e200, 0.3], "b": [4e200, 0.4]}, norm=2.5)
    np.testing.assert_allclose(data.X, [[1.5, 2], [0.3, 0.4]])
