"""Files load through their schema, whole or as a stream, or say what is wrong with them."""

import contextlib
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from veracal.data import (
    Category,
    Grouping,
    Ignore,
    Limits,
    Number,
    Schema,
    Target,
    Text,
    UnitColumn,
    Vector,
    load,
    scan,
)
from veracal.data.rows import MappedRows
from veracal.errors import DataError, LimitError, SchemaError

SCHEMA = Schema(
    {
        "age": Number(0, 120, missing="indicator"),
        "sex": Category(("f", "m")),
        "note": Ignore(),
        "y": Target(("no", "yes")),
    },
    groups={"sex": Grouping("sex")},
    missing=("", "NA"),
    name="people",
)
FRAME = pl.DataFrame(
    {
        "age": ["60", "NA", "120", ""],
        "sex": ["f", "m", "m", "f"],
        "note": ["a, b", 'say "hi"', "two\nlines", "ü"],
        "y": ["no", "yes", "no", "yes"],
    }
)
EXPECTED = [[0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]


def write(frame: pl.DataFrame, path: Path) -> Path:
    """Write a table in the form its suffix names."""
    match path.suffix:
        case ".csv":
            frame.write_csv(path)
        case ".tsv":
            frame.write_csv(path, separator="\t")
        case ".parquet":
            frame.write_parquet(path)
        case ".arrow" | ".feather":
            frame.write_ipc(path)
        case ".arrows":
            frame.write_ipc_stream(path)
        case ".npz":
            columns = {name: np.asarray(frame[name].to_list()) for name in frame.columns}
            np.savez(path, **columns)
    return path


@pytest.mark.parametrize(
    "suffix", [".csv", ".tsv", ".parquet", ".arrow", ".feather", ".arrows", ".npz"]
)
def test_every_form_gives_the_same_records(tmp_path: Path, suffix: str) -> None:
    path = write(FRAME, tmp_path / f"people{suffix}")
    data = load(path, schema=SCHEMA)
    assert data.X[:].tolist() == EXPECTED
    assert data.y.tolist() == [0, 1, 0, 1] and data.groups["sex"].codes.tolist() == [0, 1, 1, 0]
    assert data.name == "people"
    batches = list(scan(path, SCHEMA, rows=3))
    assert max(map(len, batches)) <= 3
    assert np.concatenate([batch.X for batch in batches]).tolist() == EXPECTED


def test_a_schema_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    path = write(FRAME, tmp_path / "people.csv")
    assert load(str(path), schema=tmp_path / "s.toml").X[:].tolist() == EXPECTED


def test_typed_parquet_columns(tmp_path: Path) -> None:
    frame = FRAME.with_columns(
        age=pl.Series([60, None, 120, None]), note=pl.Series([1, 2, 3, 4])
    )
    data = load(write(frame, tmp_path / "people.parquet"), schema=SCHEMA)
    assert data.X[:].tolist() == EXPECTED


def test_files_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    FRAME.write_csv(path, include_header=False)
    schema = Schema(SCHEMA.columns, missing=SCHEMA.missing, header=False)
    assert load(path, schema=schema).X[:].tolist() == EXPECTED
    FRAME.drop("note").write_csv(path, include_header=False)
    with pytest.raises(DataError, match="4 columns, as declared, found 3"):
        load(path, schema=schema)


def test_vectors_in_a_file_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text("0,1,no\n1,0,yes\n")
    schema = Schema({"v": Vector(2, 0, 1), "y": Target(("no", "yes"))}, header=False)
    assert load(path, schema=schema).X[:].tolist() == [[-1, 1], [1, -1]]


def test_a_declared_separator_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(b"\xef\xbb\xbfx;y\r\n0;no\r\n1;yes\r\n")
    schema = Schema({"x": Number(0, 1), "y": Target(("no", "yes"))}, separator=";")
    assert load(path, schema=schema).X[:].tolist() == [[-1], [1]]


def test_units_are_limited_as_declared(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(
        "x,u,y\n" + "".join(f"0,{i % 3},{'no' if i % 2 else 'yes'}\n" for i in range(60))
    )
    schema = Schema(
        {"x": Number(-1, 1), "u": UnitColumn(max_contributions=5), "y": Target(("no", "yes"))}
    )
    data = load(path, schema=schema)
    assert data.max_contributions == 5 and data.units is not None
    assert np.unique(data.units, return_counts=True)[1].tolist() == [5, 5, 5]
    assert all(batch.max_contributions is None for batch in scan(path, schema))


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    for suffix in (".csv", ".parquet", ".arrow"):
        calls.clear()
        load(
            write(FRAME, tmp_path / f"p{suffix}"),
            schema=SCHEMA,
            progress=lambda *c: calls.append(c),
        )
        assert calls and calls[-1][0] == calls[-1][1]


# Bad input -------------------------------------------------------------------------------


def bad_csv(text: str | bytes) -> Callable[[Path], Path]:
    """A CSV file with this content."""

    def make(folder: Path) -> Path:
        path = folder / "bad.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


HEAD = "age,sex,note,y\n"
GOOD = "1,f,n,no\n2,m,n,yes\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "an empty file"),
        (HEAD, "at least one record, found none"),
        (HEAD + "1,f,n,no\n", "at least two classes, found only 'no'"),
        (HEAD + GOOD + "3,f,n\n", r"4 fields in each record, found 3 in one \(line 4\)"),
        (HEAD + GOOD + "3,f,n,no,5\n", r"4 fields in each record, found 5"),
        (HEAD + GOOD + "3,x,n,no\n", "one of 'f', 'm', found 'x' in record 3"),
        (HEAD + GOOD + "old,f,n,no\n", "a number, found 'old' in record 3"),
        (HEAD + GOOD + "3,f,n,maybe\n", "one of 'no', 'yes', found 'maybe' in record 3"),
        (HEAD + GOOD + "3,,n,yes\n", "no treatment of missing ones"),
        ("age,sex,note,y,age\n" + GOOD, "'age' twice"),
        ("age,sex,,y\n" + GOOD, "none for column 3"),
        ("age,sex,note,y,z\n1,f,n,no,9\n", "also 'z'"),
        ("age,note,y\n1,n,no\n", "a column 'sex'"),
        ((HEAD + GOOD).encode() + b"3,\xff,n,no\n", "UTF-8 text"),
        (b"\xff\xfea\x00,\x00", "UTF-8 text"),
        (HEAD + '1,"f,n,no\n' + "x" * 5_000_000, "a closing quotation mark"),
    ],
)
def test_broken_csv(tmp_path: Path, content: str | bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        load(bad_csv(content)(tmp_path), schema=SCHEMA)


def test_the_line_of_a_ragged_record_counts_from_the_top(tmp_path, monkeypatch):
    """Whichever piece of the file it is in."""
    monkeypatch.setattr("veracal.data.tables._BLOCK", 64)
    path = tmp_path / "bad.csv"
    for at in (3, 10, 57):
        lines = [HEAD.strip(), *["1,f,n,no"] * 80]
        lines[at - 1] = "1,f,n"
        path.write_text("\n".join(lines))
        with pytest.raises(DataError, match=rf"\(line {at}\)"):
            load(path, schema=SCHEMA, limits=Limits(field_bytes=16))


def test_an_error_late_in_the_file_returns_nothing(tmp_path: Path) -> None:
    path = bad_csv(HEAD + GOOD * 200_000 + "3,x,n,no\n")(tmp_path)
    with pytest.raises(DataError, match="record 400001"):
        load(path, schema=SCHEMA)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows", ".npz"])
def test_truncated_and_foreign_files(tmp_path: Path, suffix: str) -> None:
    path = write(FRAME, tmp_path / f"p{suffix}")
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"not such a file at all", b"PAR1", b"ARROW1"):
        path.write_bytes(content)
        with pytest.raises(DataError):
            load(path, schema=SCHEMA)


def test_bit_flips_never_crash(tmp_path: Path) -> None:
    """A damaged file gives a clear error or some records, nothing else."""
    rng = np.random.default_rng(0)
    for suffix in (".parquet", ".arrow", ".npz", ".csv"):
        path = write(FRAME, tmp_path / f"p{suffix}")
        whole = np.frombuffer(path.read_bytes(), np.uint8)
        for _ in range(150):
            damaged = whole.copy()
            damaged[rng.integers(len(whole), size=3)] ^= rng.integers(1, 256, size=3).astype(
                np.uint8
            )
            path.write_bytes(damaged.tobytes())
            with contextlib.suppress(DataError):
                assert len(load(path, schema=SCHEMA)) <= 4


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing at that path"):
        load(tmp_path / "gone.csv", schema=SCHEMA)
    with pytest.raises(DataError, match="a file ending in .csv"):
        load(bad_csv("x")(tmp_path).rename(tmp_path / "x.xlsx"), schema=SCHEMA)
    with pytest.raises(DataError, match="veracal schema draft"):
        load(tmp_path / "x.csv")
    with pytest.raises(ValueError, match="no part for such a file"):
        load(tmp_path / "x.csv", schema=SCHEMA, part="train")
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match="nothing at that path"):
        load(tmp_path / "link.csv", schema=SCHEMA)


def test_a_path_that_vanishes_before_it_is_read(tmp_path: Path) -> None:
    path = write(FRAME, tmp_path / "p.csv")
    stream = scan(path, SCHEMA)
    path.unlink()
    with pytest.raises(DataError, match="nothing at that path"):
        next(stream)


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        (Limits(file_bytes=20), "at most 20 file bytes"),
        (Limits(rows=3), "at most 3 rows, found 4"),
        (Limits(columns=3), "at most 3 columns, found 4"),
        (Limits(field_bytes=2), "at most 2 field bytes"),
        (Limits(memory_bytes=50), "at most 50 memory bytes"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow", ".npz"])
def test_limits(tmp_path: Path, suffix: str, limits: Limits, complaint: str) -> None:
    path = write(FRAME, tmp_path / f"p{suffix}")
    with pytest.raises(LimitError, match=complaint if suffix != ".npz" else "at most"):
        load(path, schema=SCHEMA, limits=limits)


def test_limits_must_make_sense() -> None:
    with pytest.raises(ValueError, match="integer rows >= 1"):
        Limits(rows=0)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_long_category_names_are_read(tmp_path: Path, suffix: str) -> None:
    names = ["a rather long name of a category, " + word for word in ("one", "two")]
    frame = pl.DataFrame({"c": names * 100_000, "y": ["no", "yes"] * 100_000})
    schema = Schema({"c": Category(names), "y": Target(("no", "yes"))})
    path = tmp_path / f"p{suffix}"
    match suffix:
        case ".parquet":
            frame.write_parquet(path)
        case ".arrow":
            frame.with_columns(pl.col("c").cast(pl.Categorical)).write_ipc(
                path, compression="zstd"
            )
        case ".arrows":
            frame.write_ipc_stream(path, compression="zstd")
    assert load(path, schema=schema).X[:3].tolist() == [[1, 0], [0, 1], [1, 0]]


def test_a_small_file_of_much_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pl.DataFrame({"t": ["z" * 10_000] * 30_000, "y": ["no", "yes"] * 15_000}).write_parquet(
        path
    )
    schema = Schema({"t": Text(), "y": Target(("no", "yes"))})
    assert path.stat().st_size < 100_000
    with pytest.raises(LimitError, match="memory bytes"):
        load(path, schema=schema, limits=Limits(memory_bytes=2**26))


def test_row_groups_are_measured_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "g.parquet"
    pl.DataFrame(
        {"x": np.random.default_rng(0).random(10_000), "y": [0, 1] * 5_000}
    ).write_parquet(path)
    schema = Schema(
        {"x": Number(0, 0.5), "y": Target((0, 1))}
    )  # reading would find another error
    with pytest.raises(LimitError, match="memory bytes"):
        load(path, schema=schema, limits=Limits(memory_bytes=50_000))


def test_ignored_columns_are_not_read(tmp_path: Path) -> None:
    """Not even read: a schema could not read such a type."""
    path = tmp_path / "i.parquet"
    FRAME.with_columns(note=pl.Series([date(2020, 1, 1)] * 4)).write_parquet(path)
    assert load(path, schema=SCHEMA).X[:].tolist() == EXPECTED


def test_an_rng_repeats_the_choice_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("x,u,y\n" + "".join(f"{i / 100},0,{'ab'[i % 2]}\n" for i in range(100)))
    schema = Schema(
        {"x": Number(0, 1), "u": UnitColumn(max_contributions=5), "y": Target(("a", "b"))}
    )
    rows = [
        load(path, schema=schema, rng=np.random.default_rng(seed)).X[:, 0].tolist()
        for seed in (1, 1, 2)
    ]
    assert rows[0] == rows[1] != rows[2]


def test_a_folder_without_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(DataError, match="a folder with X.npy"):
        load(tmp_path / "x.csv", schema=SCHEMA)


def test_duplicate_columns_in_typed_files(tmp_path: Path) -> None:
    table = pa.table([[1], [2]], names=["x", "x"])
    with pa.ipc.new_file(tmp_path / "d.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="'x' twice"):
        load(tmp_path / "d.arrow", schema=SCHEMA)


def test_npz_with_arrays_of_different_lengths(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros(3), y=np.zeros(2))
    with pytest.raises(DataError, match="one entry for each record"):
        load(tmp_path / "d.npz", schema=SCHEMA)


def test_npz_with_pickled_objects(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError):
        load(tmp_path / "d.npz", schema=SCHEMA)


def test_a_zip_bomb(tmp_path: Path) -> None:
    path = tmp_path / "b.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * 50_000_000)
    with pytest.raises(LimitError, match="at most 1,000,000 memory bytes"):
        load(path, schema=SCHEMA, limits=Limits(memory_bytes=10**6))


# Rows on disk ----------------------------------------------------------------------------

MAPPED = Schema(
    {
        "X": Vector(3, -1, 1, center=0, spread=1),
        "y": Target((0, 1)),
        "units": UnitColumn(max_contributions=2),
    },
    norm=2.0,
    size=10,
)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """A folder with a matrix, labels and ids."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "X.npy", rng.uniform(-1, 1, size=(10, 3)).astype(np.float32))
    np.save(tmp_path / "y.npy", np.arange(10) % 2)
    np.save(tmp_path / "units.npy", np.arange(10) // 3)
    return tmp_path


def test_a_matrix_stays_on_disk(arrays: Path) -> None:
    for what in (arrays, arrays / "X.npy"):
        data = load(what, schema=MAPPED)
        assert isinstance(data.X, MappedRows)
        assert (
            len(data) == 7
            and data.max_contributions == 2
            and data.norm == 2
            and data.size == 10
        )
    streamed = list(scan(arrays, MAPPED, rows=4))
    assert [len(batch) for batch in streamed] == [4, 4, 2]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"X": Vector(3, -2, 1)}, "center = 0 and spread = 1"),
        ({"X": Vector(4, -1, 1, center=0, spread=1)}, "rows of 4 numbers"),
        ({"X": Vector(3, -0.5, 1, center=0, spread=1)}, r"numbers in \[-0.5, 1\]"),
        ({"units": Ignore()}, "exactly when the schema declares a unit"),
        ({"age": Number(0, 1)}, "column 'age': expected X as the only feature"),
    ],
)
def test_a_matrix_is_checked_against_its_schema(
    arrays: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        load(arrays, schema=Schema({**MAPPED.columns, **changes}))


def test_a_matrix_has_groups(arrays: Path) -> None:
    np.save(arrays / "group_sex.npy", np.array(["f", "m"] * 5))
    columns = {**MAPPED.columns, "sex": Category(("f", "m"), feature=False)}
    data = load(arrays, schema=Schema(columns, groups={"sex": Grouping("sex")}))
    assert len(data) == 7 and data.groups["sex"].names == ("f", "m")


def test_only_x_stands_for_its_folder(arrays: Path) -> None:
    with pytest.raises(DataError):
        load(arrays / "whatever.npy", schema=MAPPED)


def test_coded_columns_are_their_values(tmp_path: Path) -> None:
    """Marks count in dictionary columns, which pandas writes for its categories."""
    coded = FRAME.with_columns(
        pl.col("age").cast(pl.Categorical), pl.col("sex").cast(pl.Categorical)
    )
    coded.write_parquet(tmp_path / "c.parquet")
    assert load(tmp_path / "c.parquet", schema=SCHEMA).X[:].tolist() == EXPECTED


def test_rows_on_disk_are_checked_against_the_norm(arrays: Path) -> None:
    with pytest.raises(DataError, match="norm at most 0.5"):
        load(arrays, schema=Schema(MAPPED.columns, norm=0.5))


def test_a_link_out_of_the_folder(
    arrays: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "y.npy"
    (arrays / "y.npy").rename(elsewhere)
    (arrays / "y.npy").symlink_to(elsewhere)
    with pytest.raises(DataError, match="leads outside"):
        load(arrays, schema=MAPPED)


def test_unknown_names_are_no_files() -> None:
    with pytest.raises(DataError, match="breast-cancer"):
        load("breast-cancr")
    with pytest.raises(ValueError, match="which has its own"):
        load("breast-cancer", schema=SCHEMA)


def test_a_draft_is_no_schema(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("draft = true\n" + SCHEMA.to_toml())
    with pytest.raises(SchemaError, match="delete that line"):
        load(write(FRAME, tmp_path / "p.csv"), schema=tmp_path / "s.toml")
