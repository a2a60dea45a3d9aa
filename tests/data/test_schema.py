"""A schema says what is publicly known, and is refused when it cannot be meant."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veracal.data import (
    Category,
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
from veracal.errors import DataError, LimitError, SchemaError

Y = Target(("no", "yes"))
X = Number(0, 1)

EVERYTHING = Schema(
    {
        "age": Number(0, 120, center=40, spread=20.5, missing=FillValue(40), outside="clip"),
        "sex": Category(("f", "m"), missing="indicator"),
        "ward": Category((1, 2), outside="ignore", missing=FillValue(1)),
        "scan": Vector(3, -1.5, 1, missing="drop"),
        "group only": Number(0, 9, feature=False, missing="drop"),
        "patient": UnitColumn(max_contributions=4, missing="drop"),
        'odd "name"\t\x7f é': Ignore(),
        "y": Target((0, 1), missing="drop"),
    },
    groups={"sex": Grouping("sex"), "ages": Grouping("age", (0, 18, 65.5, 120))},
    missing=("", "NA", "\x7f"),
    norm=3.5,
    size=1000,
    header=False,
    separator=";",
    name="visits",
)


def test_toml_round_trip() -> None:
    assert Schema.from_toml(EVERYTHING.to_toml()) == EVERYTHING


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
numbers = st.floats(-1e9, 1e9).map(lambda x: x + 0.0)


@given(
    st.dictionaries(
        names, st.tuples(numbers, numbers).filter(lambda p: p[0] < p[1]), min_size=1
    ),
    st.lists(names, min_size=2, max_size=5, unique=True),
    st.lists(names, max_size=3),
)
def test_toml_round_trip_of_any_names(
    columns: dict[str, tuple[float, float]], classes: list[str], marks: list[str]
) -> None:
    declared = {f"x {name}": Number(*bounds) for name, bounds in columns.items()}
    marks = [mark for mark in marks if mark not in classes]  # rejected by the schema
    schema = Schema({**declared, "y": Target(classes)}, missing=marks)
    assert Schema.from_toml(schema.to_toml()) == schema


def test_properties() -> None:
    schema = EVERYTHING
    assert (schema.target, schema.classes, schema.unit, schema.max_contributions) == (
        "y",
        (0, 1),
        "patient",
        4,
    )
    assert schema.feature_names == (
        "age", "sex=f", "sex=m", "sex=missing", "ward=1", "ward=2",
        "scan_0", "scan_1", "scan_2",
    )  # fmt: skip
    assert schema.groups["ages"].names(schema.columns["age"]) == (
        "[0, 18]", "(18, 65.5]", "(65.5, 120]",
    )  # fmt: skip
    assert schema.groups["sex"].names(schema.columns["sex"]) == ("f", "m", "missing")


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"x": X}, "exactly one target"),
        ({"y": Y, "z": Y, "x": X}, "exactly one target"),
        ({"y": Y, "u": UnitColumn(), "v": UnitColumn(), "x": X}, "at most one unit"),
        ({"y": Y}, "as features"),
        ({"y": Y, "x": Number(0, 1, feature=False)}, "as features"),
        ({"y": Y, "x": X, "t": Text()}, "as features"),
        ({"y": Y, "s": Text(), "t": Text(), "u": Text()}, "as features"),
        ({"y": Y, "x": Vector(2, 0, 1), "x_1": X}, "'x_1' twice"),
        ({"y": Y, "x": Number(1, 1)}, "lower < upper"),
        ({"y": Y, "x": Number(2, 1)}, "lower < upper"),
        ({"y": Y, "x": Number(0, float("inf"))}, "finite bounds"),
        ({"y": Y, "x": Number(float("nan"), 1)}, "finite bounds"),
        ({"y": Y, "x": Number("0", 1)}, "finite bounds"),
        ({"y": Y, "x": Number(0, 1, spread=0)}, "spread > 0"),
        ({"y": Y, "x": Number(0, 1, missing="mean")}, "'drop', 'indicator'"),
        ({"y": Y, "x": Number(0, 1, missing=FillValue(2))}, r"a number in \[0, 1\]"),
        ({"y": Y, "x": Number(0, 1, missing=FillValue("a"))}, r"a number in \[0, 1\]"),
        ({"y": Y, "x": Number(0, 1, outside="ignore")}, "'error' or 'clip'"),
        ({"y": Y, "x": Category(())}, "at least one value"),
        ({"y": Y, "x": Category((1, "1"))}, "each different"),
        ({"y": Y, "x": Category(("a",), missing=FillValue("b"))}, "one of the declared values"),
        ({"y": Y, "x": Category(("missing",), missing="indicator")}, "missing indicator"),
        ({"y": Y, "x": Category(("a",), outside="clip")}, "'error' or 'ignore'"),
        ({"y": Y, "x": Vector(0, 0, 1)}, "whole number of entries"),
        ({"y": Y, "x": Vector(2, 0, 1, missing="indicator")}, "'drop' or none"),
        ({"y": Y, "x": Text(missing="indicator")}, "'drop', {constant"),
        ({"y": Target(("a",)), "x": X}, "at least two"),
        ({"y": Target(("a", "b"), missing="indicator"), "x": X}, "not imputed"),
        ({"y": Y, "u": UnitColumn(max_contributions=0), "x": X}, "whole number > 0"),
        ({"y": Y, "u": UnitColumn(max_contributions=True), "x": X}, "whole number > 0"),
        ({"y": Y, "x": Vector(True, 0, 1)}, "whole number of entries"),
        ({"y": Y, "x": Number(0, 10**400)}, "finite bounds"),
        ({"y": Y, "x": Number(0, 1, feature="false")}, "feature = true or false"),
        ({"y": Y, "x": Category((True, False))}, "as the texts 'true' and 'false'"),
        ({"y": Y, "x": Category((("a",),))}, "text or whole numbers"),
        ({"y": Y, "x": Category((1.5,))}, "text or whole numbers"),
        ({"y": Y, "u": UnitColumn(missing=FillValue("a")), "x": X}, "are not imputed"),
    ],
)
def test_invalid_columns_are_refused(columns: dict[str, object], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Schema(columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"size": 0}, "whole number > 0"),
        ({"size": 1.5}, "whole number > 0"),
        ({"norm": -1}, "finite number > 0"),
        ({"norm": float("inf")}, "finite number > 0"),
        ({"missing": (1,)}, "marks as text"),
        ({"missing": "NA"}, "a list"),
        ({"missing": ("no",)}, "values that do not also mark"),
        ({"missing": ("a",)}, "values that do not also mark"),
        ({"name": 5}, "expected text"),
        ({"separator": "é"}, "separate fields"),
        ({"separator": '"'}, "separate fields"),
        ({"groups": {"g": Grouping("x", (0, float("inf")))}}, "finite numbers"),
        ({"groups": {"g": Grouping("x", ("0", "1"))}}, "finite numbers"),
        ({"groups": {"g": Grouping(["x"], (0, 1))}}, "a declared category"),
        ({"header": "yes"}, "true or false"),
        ({"separator": ",,"}, "one character"),
        ({"groups": {"g": Grouping("absent")}}, "a declared category"),
        ({"groups": {"g": Grouping("x")}}, "a number with edges"),
        ({"groups": {"g": Grouping("x", (0, 0.5))}}, "that cover"),
        ({"groups": {"g": Grouping("x", (0, 0.5, 0.5, 1))}}, "rising"),
        ({"groups": {"g": Grouping("c")}}, "outside = 'error'"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], complaint: str) -> None:
    columns = {"x": X, "c": Category(("a",), outside="ignore"), "y": Y}
    with pytest.raises(SchemaError, match=complaint):
        Schema(columns, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "format = 1, found no format"),
        ("format = 2", "update Veracal"),
        ("format = 1\na =", "TOML"),
        ("format = 1\nnorms = 3", "Did you mean 'norm'"),
        ("format = 1\ncolumns = 3", "a table"),
        ("format = 1\n[columns]\nx = 3", "a table"),
        ("format = 1\n[columns.x]\nlower = 0", "kind to be one of"),
        ("format = 1\n[columns.x]\nkind = ['number']", "kind to be one of"),
        ("format = 1\n[columns.x]\nkind = 'number'\nlower = 0", "'upper' to be declared"),
        ("format = 1\n[columns.x]\nkind = 'number'\nlowr = 0", "Did you mean 'lower'"),
        (
            "format = 1\n[columns.x]\nkind = 'category'\nvalues = 'ab'",
            "column 'x': values: expected a list",
        ),
        ("format = 1\nmissing = 'NA'", "missing: expected a list"),
        (
            "format = 1\n[columns.x]\nkind = 'text'\nmissing = {median = 1}",
            "constant",
        ),
        ("format = 1\ndraft = true", "a schema of public facts"),
        ("format = true", "format = 1, found format = True"),
        ("format = 1\n[columns.x]\nkind = 'category'\nvalues = 5", "a list"),
        ("format = 1\n[groups.g]\ncolumn = 'x'\nedges = 5", "a list"),
        ("format = 1\nname = 'h'", "schema: h: columns: expected exactly one target"),
    ],
)
def test_invalid_toml_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        Schema.from_toml(text)


def test_files_that_are_no_schema(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing at that path"):
        Schema.load(tmp_path / "none.toml")
    path = tmp_path / "s.toml"
    path.write_bytes(b"format = 1\nname = '\xff'")
    with pytest.raises(SchemaError, match="UTF-8"):
        Schema.load(path)
    path.write_bytes(b"#" * (2**24 + 1))
    with pytest.raises((SchemaError, LimitError), match="16 MiB"):
        Schema.load(path)
    path.write_text(EVERYTHING.to_toml())
    assert Schema.load(path) == EVERYTHING
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(SchemaError, match="TOML"):
        Schema.load(path)


@pytest.mark.parametrize("make", [Target, Category])
def test_a_text_is_no_list(make: Callable[[str], object]) -> None:
    with pytest.raises(SchemaError, match="a list, found 'ab'"):
        make("ab")


def test_numbers_of_numpy_are_numbers() -> None:
    column = Number(np.float32(0), np.int64(9), missing=FillValue(3))
    schema = Schema({"x": column, "c": Category(np.array([1, 2])), "y": Y})
    assert Schema.from_toml(schema.to_toml()) == schema


def test_bands_that_differ_have_names_that_differ() -> None:
    edges = (0, 1_000_000, 1_000_001, 1_000_002)
    schema = Schema({"x": Number(0, 1_000_002), "y": Y}, groups={"x": Grouping("x", edges)})
    names = schema.groups["x"].names(schema.columns["x"])
    assert names == ("[0, 1e+06]", "(1e+06, 1000001]", "(1000001, 1000002]")
