"""A draft proposes, warns of every field it read, and cannot be used unread."""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from veracal.data import Category, Ignore, Number, Schema, Target, UnitColumn, Vector, load
from veracal.data.schema_draft import Draft, draft
from veracal.errors import DataError, SchemaError

CSV = """patient,age,sex,ward,score,note,readmitted
p1,64,f,A,1.1,a long remark that should not become a category,no
p1,65,f,A,NA,,yes
p2,31,m,B,0.9,"a, b",no
p3,?,f,C,1.4,"line
two",yes
p4,71,NA,B,2.2,n,no
"""


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    path.write_text(CSV)
    return path


def accepted(text: str) -> Schema:
    """Read a draft as if it had been accepted unchanged."""
    assert "draft = true\n" in text
    return Schema.from_toml(text.replace("draft = true\n", ""))


def test_a_draft_describes_its_file(visits: Path) -> None:
    proposal = draft(visits, target="readmitted", unit="patient", groups=["sex", "age"])
    schema = accepted(proposal.text)
    columns = schema.columns
    assert isinstance(columns["patient"], UnitColumn)
    assert columns["age"] == Number(31, 71, missing="indicator")
    assert columns["score"] == Number(0.9, 2.2, missing="indicator")
    assert columns["ward"] == Category(("A", "B", "C"))
    assert columns["readmitted"] == Target(("no", "yes"))
    assert set(schema.missing) == {"", "?", "NA"}
    assert list(schema.groups) == ["sex", "age"]
    assert len(load(visits, schema=schema)) == 5


def fields(proposal: Draft, reason: str = "read from the records") -> set[tuple[str, str]]:
    """What a draft warns of for one reason."""
    return {(w.where, w.field) for w in proposal.warnings if w.reason == reason}


def write(folder: Path, text: str) -> Path:
    """Write a small CSV file."""
    path = folder / "t.csv"
    path.write_text(text)
    return path


def test_every_field_that_was_read_is_warned_of(visits: Path) -> None:
    proposal = draft(visits, target="readmitted", unit="patient", groups=["sex", "age"])
    marked = [line for line in proposal.text.splitlines() if "  # ! " in line]
    assert len(proposal.warnings) == len(marked) == len(fields(proposal))
    assert fields(proposal) == {
        ("schema", "missing"),
        ("column 'patient'", "missing"),
        *(("column 'age'", field) for field in ("kind", "lower", "upper", "missing")),
        *(("column 'sex'", field) for field in ("kind", "values", "missing")),
        *(("column 'ward'", field) for field in ("kind", "values", "missing")),
        *(("column 'score'", field) for field in ("kind", "lower", "upper", "missing")),
        *(("column 'note'", field) for field in ("kind", "values", "missing")),
        *(("column 'readmitted'", field) for field in ("classes", "missing")),
        ("group 'age'", "edges"),
    }


def test_that_nothing_was_missing_is_read_from_the_records_too(tmp_path: Path) -> None:
    proposal = draft(write(tmp_path, "x,y\n1,a\n7,b\n"), target="y")
    assert {("schema", "missing"), ("column 'x'", "missing")} <= fields(proposal)
    lines = proposal.text.splitlines()
    assert sum(line.startswith("# missing = ") and "  # ! n" in line for line in lines) == 3
    assert accepted(proposal.text).missing == ()


@pytest.mark.parametrize(
    "labels", [["a"] * 60, ["?"] * 60, [str(i) for i in range(60)]], ids=["one", "none", "many"]
)
def test_unknown_fields_are_to_be_filled_in(tmp_path: Path, labels: list[str]) -> None:
    rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    proposal = draft(write(tmp_path, "x,y\n" + rows), target="y")
    assert fields(proposal, "to be filled in") == {("column 'y'", "classes")}
    assert ("column 'y'", "classes") not in fields(proposal)
    assert proposal.text.count("  # ? to be filled in") == 1
    assert len(accepted(proposal.text).classes) == 2


@pytest.mark.parametrize(
    "numbers",
    [
        (1000000, 1000001, 1000003),
        (0.1, 0.1 + 1e-16, 0.3),
        (3, 4, 4),
        (1.0, 1.0000000000000002, 1.0),
        (-1e300, 2, 1e300),
    ],
    ids=str,
)
def test_edges_are_exact_and_rise(tmp_path: Path, numbers: tuple[float, ...]) -> None:
    rows = "".join(f"{x!r},{'ab'[i % 2]}\n" for i, x in enumerate(numbers))
    path = write(tmp_path, "x,y\n" + rows)
    schema = accepted(draft(path, target="y", groups=["x"]).text)
    edges = schema.groups["x"].edges
    assert edges is not None and list(edges) == sorted(set(edges))
    assert (edges[0], edges[-1]) == (min(numbers), max(numbers))
    assert len(load(path, schema=schema)) == 3


def test_a_word_among_numbers_is_proposed_as_a_mark(tmp_path: Path) -> None:
    rows = "".join(f"{i},{'fm'[i % 2]},{'ab'[i % 2]}\n" for i in range(90))
    path = write(tmp_path, "age,sex,y\n" + rows + "unknown,unknown,a\n")
    proposal = draft(path, target="y")
    assert "# ! mostly numbers, but also 'unknown': a missing mark?" in proposal.text
    schema = accepted(proposal.text)
    assert schema.missing == ("unknown",)
    assert schema.columns["age"] == Number(0, 89, missing="indicator")
    # It is a mark for the whole table, so no other column has it as a value.
    assert schema.columns["sex"] == Category(("f", "m"), missing="indicator")
    assert len(load(path, schema=schema)) == 91


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (["90+"], "mostly numbers, but also '90+': write them as numbers?"),
        (["a", "b", "c", "d"], "too many values"),
        (["word"] * 40, "mostly"),
    ],
)
def test_other_words_among_numbers_are_not(
    tmp_path: Path, odd: list[str], expected: str
) -> None:
    rows = [*map(str, range(90)), *odd]
    text = "".join(f"{x},{i % 2},{i % 2}\n" for i, x in enumerate(rows))
    proposal = draft(write(tmp_path, "age,x,y\n" + text))
    assert accepted(proposal.text).columns["age"] == Ignore()
    assert accepted(proposal.text).missing == ()
    assert (expected in proposal.text) == (expected != "mostly")


def test_codes_for_yes_and_no_stay_categories(tmp_path: Path) -> None:
    path = write(tmp_path, "x,y\n" + "0,a\n1,b\n" * 5 + "unknown,a\n")
    assert accepted(draft(path).text).columns["x"] == Category(("0", "1", "unknown"))


def test_a_group_of_too_many_values_is_to_be_filled_in(tmp_path: Path) -> None:
    rows = "".join(f"town {i},{i},{i % 2}\n" for i in range(60))
    proposal = draft(write(tmp_path, "town,x,y\n" + rows), target="y", groups=["town", "town"])
    assert fields(proposal, "to be filled in") == {("column 'town'", "values")}
    assert list(accepted(proposal.text).groups) == ["town"]


def test_a_constant_column_can_be_a_group(tmp_path: Path) -> None:
    path = write(tmp_path, "c,x,y\n5,1,a\n5,9,b\n")
    assert "the same in every record" in draft(path).text
    schema = accepted(draft(path, groups=["c"]).text)
    assert schema.columns["c"] == Category(("5",))
    assert len(load(path, schema=schema)) == 2


def test_a_table_without_features_says_so(tmp_path: Path) -> None:
    rows = "".join(f"id{i},{i % 2}\n" for i in range(60))
    proposal = draft(write(tmp_path, "code,y\n" + rows))
    assert fields(proposal, "to be filled in") == {("schema", "columns")}


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator(tmp_path: Path, separator: str) -> None:
    path = write(tmp_path, "x,y\n1.5,a\n2.5,b\n".replace(",", separator))
    with pytest.raises(DataError, match="as separator") as caught:
        draft(path, target="y")
    assert repr(separator) in caught.value.remedy
    for header in (True, False):
        text = draft(path, separator=separator, header=header).text
        assert accepted(text).separator == separator
    assert len(load(path, schema=accepted(draft(path, separator=separator).text))) == 2


def test_decimal_commas_do_not_hide_the_separator(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="';' separates them"):
        draft(write(tmp_path, "x;y\n1,5;a\n2,5;b\n"))


@pytest.mark.parametrize("separator", ["", ";;", "é", "\n", '"', "x"])
def test_what_is_no_separator(visits: Path, separator: str) -> None:
    with pytest.raises(DataError, match="separate fields"):
        draft(visits, separator=separator)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_columns_of_other_types_are_ignored(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    table = pa.table(
        {
            "x": [1.5, 2.5],
            "day": pa.array([1, 2], pa.date32()),
            "raw": [b"a", b"b"],
            "part": [{"a": 1}, {"a": 2}],
            "y": [0, 1],
        }
    )
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        kind = pa.ipc.new_file if suffix == ".arrow" else pa.ipc.new_stream
        with kind(path, table.schema) as writer:
            writer.write_table(table)
    proposal = draft(path, target="y")
    schema = accepted(proposal.text)
    assert list(schema.columns) == table.column_names
    assert all(schema.columns[name] == Ignore() for name in ("day", "raw", "part"))
    assert "a schema cannot read the type date32[day]" in proposal.text
    assert len(load(path, schema=schema)) == 2
    for role in ({"target": "day"}, {"unit": "day"}, {"groups": ["day"]}):
        with pytest.raises(DataError, match="column 'day': expected single values"):
            draft(path, **role)  # type: ignore[arg-type]


def test_whole_numbers_in_floats_are_classes(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pl.DataFrame({"x": [1.5, 2.5, None], "y": [0.0, 1.0, None]}).write_parquet(path)
    schema = accepted(draft(path, target="y").text)
    assert schema.columns["y"] == Target(("0", "1"), missing="drop")
    assert len(load(path, schema=schema)) == 2


def test_lists(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pl.DataFrame({"v": [[1, 2], [3]], "w": [[0.0], [0.0]], "y": [0, 1]}).write_parquet(path)
    proposal = draft(path, target="y")
    assert accepted(proposal.text).columns["v"] == Ignore()
    assert accepted(proposal.text).columns["w"] == Vector(1, 0, 1)
    assert ("column 'w'", "size") in fields(proposal)
    assert fields(proposal, "to be filled in") == {
        ("column 'w'", "lower"),
        ("column 'w'", "upper"),
    }
    with pytest.raises(DataError, match="found lists"):
        draft(path, target="w")


def test_a_draft_is_refused_as_a_schema(visits: Path) -> None:
    with pytest.raises(SchemaError, match="a schema of public facts"):
        Schema.from_toml(draft(visits).text)


def test_a_guessed_target_is_warned_of(visits: Path) -> None:
    proposal = draft(visits)
    assert ("column 'readmitted'", "kind") in fields(proposal)
    assert "a guess: is this the column to predict?" in proposal.text
    assert accepted(draft(visits, groups=["readmitted"]).text).target == "note"
    assert accepted(proposal.text).target == "readmitted"


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".npz"])
def test_typed_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    columns = {
        "v": np.arange(12.0).reshape(4, 3),
        "k": np.array([1, 2, 3, 4]),
        "y": np.array([0, 1, 0, 1]),
    }
    frame = pl.DataFrame(columns)
    if suffix == ".npz":
        np.savez(path, **columns)  # type: ignore[arg-type]
    else:
        frame.write_parquet(path) if suffix == ".parquet" else frame.write_ipc(path)
    schema = accepted(draft(path, target="y").text)
    assert schema.columns["v"] == Vector(3, 0, 11)
    assert schema.columns["k"] == Number(1, 4)
    assert len(load(path, schema=schema)) == 4


def test_files_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text("1,a\n2,b\n3,a\n")
    schema = accepted(draft(path, header=False).text)
    assert list(schema.columns) == ["column_0", "column_1"] and not schema.header
    assert len(load(path, schema=schema)) == 3


def test_ids_and_free_text_are_not_proposed_as_features(tmp_path: Path) -> None:
    path = tmp_path / "i.csv"
    rows = (f"id{i},{'word ' * 10}{i},{i % 7},{i % 2}" for i in range(200))
    path.write_text("code,text,x,y\n" + "\n".join(rows) + "\n")
    columns = accepted(draft(path).text).columns
    assert columns["code"] == Ignore() and columns["text"] == Ignore()
    assert columns["x"] == Number(0, 6)


def test_wrong_requests(visits: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a column among"):
        draft(visits, target="outcome")
    with pytest.raises(DataError, match="one for both"):
        draft(visits, target="patient", unit="patient")
    for role in ("target", "unit"):
        with pytest.raises(DataError, match=f"found the {role} itself"):
            draft(visits, groups=["sex"], **{role: "sex"})  # type: ignore[arg-type]
    (tmp_path / "o.csv").write_text("u\n1\n2\n")
    with pytest.raises(DataError, match="A target column"):
        draft(tmp_path / "o.csv", unit="u")
    pl.DataFrame({"u": [1, 2]}).write_parquet(tmp_path / "o.parquet")
    with pytest.raises(DataError, match="expected a column to predict"):
        draft(tmp_path / "o.parquet", unit="u")
    (tmp_path / "e.csv").write_text("a,b\n")
    with pytest.raises(DataError, match="at least one record"):
        draft(tmp_path / "e.csv")
    with pytest.raises(DataError, match="nothing at that path"):
        draft(tmp_path / "gone.csv")


def test_a_long_list_of_columns_says_that_it_goes_on(tmp_path):
    names = [f"column_{i}" for i in range(16)]
    (tmp_path / "w.csv").write_text(",".join(names) + "\n" + ",".join("1" * 16) + "\n")
    with pytest.raises(DataError, match=r"'column_11', …, 'column_15', found 'y'"):
        draft(tmp_path / "w.csv", target="y")


def test_classes_that_are_written_as_marks_are_classes(tmp_path: Path) -> None:
    """As in credit approval, where - means refused; ? stays a mark."""
    path = tmp_path / "credit.csv"
    path.write_text("age,class\n30,+\n40,-\n?,-\n50,+\n")
    schema = accepted(draft(path, target="class").text)
    assert schema.columns["class"] == Target(("+", "-"))
    assert schema.missing == ("?",)


def test_a_label_may_be_missing_where_two_classes_are_left(tmp_path: Path) -> None:
    path = tmp_path / "credit.csv"
    path.write_text("age,class\n30,yes\n40,no\n20,-\n50,no\n")
    schema = accepted(draft(path, target="class").text)
    assert schema.columns["class"].classes == ("no", "yes") and schema.missing == ("-",)


def test_a_slot_is_proposed_in_place_of_a_unit(visits: Path) -> None:
    proposal = draft(visits, target="readmitted", slot="patient")
    assert '[columns.patient]\nkind = "slot"' in proposal.text.replace('"patient"', "patient")
    assert not [one for one in proposal.warnings if one.where == "column 'patient'"]
    with pytest.raises(DataError, match="Name one of them"):
        draft(visits, unit="patient", slot="patient")
    with pytest.raises(DataError, match="one for both"):
        draft(visits, target="patient", slot="patient")
    with pytest.raises(DataError, match="the slot itself"):
        draft(visits, target="readmitted", slot="patient", groups=["patient"])
