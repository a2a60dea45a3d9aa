"""A draft proposes, warns of every field it read, and cannot be used unread."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from veracal.data import Category, Ignore, Number, Schema, Target, Unit, Vector, load
from veracal.data.draft import draft
from veracal.errors import DataError, SchemaError

CSV = """patient,age,sex,ward,score,note,readmitted
p1,64,f,A,1.1,a long remark that nobody should turn into a category,no
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
    """Read a draft as somebody would who accepts it as it is."""
    assert "draft = true\n" in text
    return Schema.from_toml(text.replace("draft = true\n", ""))


def test_a_draft_describes_the_file_it_was_made_from(visits: Path) -> None:
    proposal = draft(visits, target="readmitted", unit="patient", groups=["sex", "age"])
    schema = accepted(proposal.text)
    columns = schema.columns
    assert isinstance(columns["patient"], Unit)
    assert columns["age"] == Number(31, 71, missing="indicator")
    assert columns["score"] == Number(0.9, 2.2, missing="indicator")
    assert columns["ward"] == Category(("A", "B", "C"))
    assert columns["readmitted"] == Target(("no", "yes"))
    assert set(schema.missing) == {"", "?", "NA"}
    assert list(schema.groups) == ["sex", "age"]
    assert len(load(visits, schema=schema)) == 5


def test_every_field_that_was_read_is_warned_of(visits: Path) -> None:
    proposal = draft(visits, target="readmitted", unit="patient")
    marked = [line for line in proposal.text.splitlines() if "  # ! " in line]
    assert len(proposal.warnings) == len(marked)
    warned = {(w.field, w.message.split(" =")[0]) for w in proposal.warnings}
    for field in (
        ("age", "lower"),
        ("age", "upper"),
        ("ward", "values"),
        ("readmitted", "classes"),
    ):
        assert field in warned
    assert any(w.field == "missing" for w in proposal.warnings)
    assert all("replace by public knowledge" in w.message for w in proposal.warnings)


def test_a_draft_is_refused_until_somebody_stands_for_it(visits: Path) -> None:
    with pytest.raises(SchemaError, match="somebody stands for"):
        Schema.from_toml(draft(visits).text)


def test_a_guessed_target_is_warned_of(visits: Path) -> None:
    proposal = draft(visits)
    assert ("readmitted", "guessed to be the target: pass --target") in {
        (w.field, w.message) for w in proposal.warnings
    }
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
    (tmp_path / "e.csv").write_text("a,b\n")
    with pytest.raises(DataError, match="at least one record"):
        draft(tmp_path / "e.csv")
    with pytest.raises(DataError, match="nothing at that path"):
        draft(tmp_path / "gone.csv")
