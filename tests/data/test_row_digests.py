"""A row is identified by the content of its record, whatever else changes."""

import hashlib
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from veracal.data import (
    Category,
    Dataset,
    Ignore,
    ImageForm,
    Number,
    Schema,
    Slot,
    Target,
    Text,
    TextForm,
    UnitColumn,
    Vector,
    limit_contributions,
    load,
    save_matrix,
    scan,
    split,
)
from veracal.data.dataset import concatenate
from veracal.data.row_digests import (
    digest_of_texts,
    digests_of_arrays,
    digests_of_frame,
    digests_of_records,
    iterate_digests,
)
from veracal.errors import DataError, SchemaError
from veracal.neural import extract

SCHEMA = Schema(
    {
        "age": Number(0, 120),
        "sex": Category(("f", "m")),
        "note": Ignore(),
        "ill": Target(("no", "yes")),
    },
    size=100,
)


def write(path: Path, lines: list[str], head: str = "age,sex,note,ill") -> Path:
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def digests(data: Dataset) -> list[bytes]:
    assert data.row_digests is not None
    return list(iterate_digests(data.row_digests))


LINES = ["50,f,a,no", "50.0,f,a,no", "50,m,b,yes", "7,m,c,no", "7,m,d,no"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "t.csv", LINES)


def test_a_digest_is_of_the_cells_as_written(table: Path) -> None:
    expected = digests(load(table, schema=SCHEMA, row_digests=True))
    assert expected[0] != expected[1]  # 50 and 50.0 are one number and two texts
    assert expected[3] == expected[4]  # which differ in an ignored column
    assert len(set(expected)) == 4


def test_as_written_out_slowly() -> None:
    frame = pl.DataFrame({"age": ["50"], "sex": ["f"], "ill": ["no"]})
    content = b"table:s,s,s;" + b"2:50" + b"1:f" + b"2:no"
    expected = hashlib.blake2b(content, digest_size=16).digest()
    assert list(iterate_digests(digests_of_frame(frame, SCHEMA, written=True))) == [expected]


def test_typed_columns_written_out_slowly() -> None:
    """Digests must agree with those recorded by earlier versions."""
    schema = Schema(
        {
            "n": Number(0, 9, missing="indicator"),
            "f": Number(0, 9),
            "t": Category(("é", "b")),
            "v": Vector(2, 0, 9),
            "y": Target((0, 1)),
        }
    )
    frame = pl.DataFrame(
        {"n": [None], "f": [1.5], "t": ["é"], "v": [[1.0, 2.0]], "y": [1]},
        schema={
            "n": pl.Int32,
            "f": pl.Float32,
            "t": pl.String,
            "v": pl.List(pl.Float32),
            "y": pl.Int8,
        },
    )
    whole = b"\1" + struct.pack("<q", 0) + b"\2" + struct.pack("<d", 1.5)
    whole += "2:é".encode() + b"1:1"
    whole += b"2:\0" + struct.pack("<q", 1) + b"\0" + struct.pack("<q", 2)
    expected = hashlib.blake2b(b"table:#,#,s,l,s;" + whole, digest_size=16).digest()
    assert list(iterate_digests(digests_of_frame(frame, schema))) == [expected]
    arrays = (np.array([[1, 2]], ">f4"), np.array(["é"]), np.array([7]))
    content = b"arrays:<f4(2,);s;s;" + struct.pack("<ff", 1, 2) + b"4:" + "2:é".encode()
    content += b"3:1:7"
    assert list(iterate_digests(digests_of_arrays(*arrays))) == [
        hashlib.blake2b(content, digest_size=16).digest()
    ]


def test_digests_are_computed_on_request(table: Path) -> None:
    assert load(table, schema=SCHEMA).row_digests is None


def test_cells_do_not_run_together() -> None:
    schema = Schema({"a": Text(), "b": Text(), "y": Target((0, 1))})
    frame = pl.DataFrame(
        {"a": ["ab", "a", "1:a", None, "n"], "b": ["c", "bc", "", "c", "c"], "y": ["0"] * 5}
    )
    assert len(set(iterate_digests(digests_of_frame(frame, schema)))) == 5


def test_order_batches_schema_and_columns_do_not_matter(table: Path, tmp_path: Path) -> None:
    expected = digests(load(table, schema=SCHEMA, row_digests=True))
    other = Schema({**SCHEMA.columns, "age": Number(0, 200, center=1, spread=3)}, norm=0.1)
    assert digests(load(table, schema=other, row_digests=True)) == expected
    batches = scan(table, SCHEMA, rows=2, row_digests=True)
    assert [one for batch in batches for one in digests(batch)] == expected
    turned = write(tmp_path / "r.csv", LINES[::-1])
    assert digests(load(turned, schema=SCHEMA, row_digests=True)) == expected[::-1]
    swapped = write(
        tmp_path / "s.csv",
        [",".join(np.array(line.split(","))[[3, 1, 0, 2]]) for line in LINES],
        "ill,sex,age,note",
    )
    assert digests(load(swapped, schema=SCHEMA, row_digests=True)) == expected
    quoted = write(tmp_path / "q.csv", ['"50","f",,"no"', '50,"m",b,"yes"'])
    assert digests(load(quoted, schema=SCHEMA, row_digests=True)) == [expected[0], expected[2]]


def test_digests_follow_their_rows(table: Path) -> None:
    data = load(table, schema=SCHEMA, row_digests=True)
    expected = digests(data)
    assert digests(data.take(np.array([3, 0, 3]))) == [expected[3], expected[0], expected[3]]
    parts = list(data.batches(2))
    assert digests(concatenate(parts)) == expected
    assert digests(limit_contributions(data, max_contributions=1)) == expected
    assert (
        digests(limit_contributions(data, max_contributions=1, unit=[0, 1, 2, 3, 4]))
        == expected
    )
    assert digests(pickle.loads(pickle.dumps(data))) == expected
    parts = split(data, key="k").parts
    assert sorted(one for part in parts.values() for one in digests(part)) == sorted(expected)


def test_dropped_rows_take_their_digests_along(tmp_path: Path) -> None:
    schema = Schema(
        {"age": Number(0, 120, missing="drop"), "ill": Target(("no", "yes"))}, missing=["?"]
    )
    whole = write(tmp_path / "a.csv", ["1,no", "?,no", "3,yes"], "age,ill")
    rest = write(tmp_path / "b.csv", ["1,no", "3,yes"], "age,ill")
    first, second = (load(path, schema=schema, row_digests=True) for path in (whole, rest))
    assert digests(first) == digests(second)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_typed_tables_count_by_their_stored_values(tmp_path: Path, suffix: str) -> None:
    schema = Schema(
        {
            "age": Number(0, 120, missing="indicator"),
            "v": Vector(2, -9, 9),
            "sex": Category(("f", "m"), missing="indicator"),
            "ill": Target((0, 1)),
        }
    )

    def rows(age: Any, kind: Any, v: list[list[float]]) -> list[bytes]:
        frame = pl.DataFrame(
            {
                "age": pl.Series(age, dtype=kind),
                "v": v,
                "sex": ["f", None, "m"],
                "ill": [0, 1, 1],
            }
        )
        path = tmp_path / f"t.{suffix}"
        frame.write_parquet(path) if suffix == "parquet" else frame.write_ipc(path)
        return digests(load(path, schema=schema, row_digests=True))

    v = [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]
    narrow = rows([50, None, 50], pl.Int32, v)
    assert rows([50, None, 50], pl.Int64, v) == narrow  # whatever width a writer chose
    # Whatever type either: one missing or broken value makes a writer choose another for all.
    assert rows([50, None, 50], pl.Float64, v) == narrow
    assert rows([50, None, 50.5], pl.Float64, v)[:2] == narrow[:2]
    assert rows([50, None, 50.5], pl.Float64, v)[2] != narrow[2]
    assert rows([50, 0, 50], pl.Int32, v)[1] != narrow[1]  # missing is not zero
    assert rows([50, None, 50], pl.Int32, [*v[:2], [1.0, np.nextafter(2, 3)]])[2] != narrow[2]


NUMBERS = Schema({"a": Number(-9, 9, missing="indicator"), "y": Target((0, 1))})


def number_digests(values: list[Any], kind: Any) -> list[bytes]:
    frame = pl.DataFrame(
        {"a": pl.Series(values, dtype=kind, strict=False), "y": [1] * len(values)}
    )
    return list(iterate_digests(digests_of_frame(frame, NUMBERS)))


@pytest.mark.parametrize(
    "kind", [pl.Int8, pl.UInt8, pl.UInt64, pl.Int128, pl.Float32, pl.Float64, pl.Boolean]
)
def test_a_number_is_the_same_in_every_type(kind: Any) -> None:
    """The type of a column follows from all of its records."""
    assert number_digests([0, 1, None], kind) == number_digests([0, 1, None], pl.Int64)


def test_a_column_without_a_value_is_one_of_missing_values() -> None:
    missing = number_digests([None], pl.Int64)
    assert number_digests([None], pl.Null) == number_digests([None], pl.Float64) == missing
    schema = Schema({"a": Category(("a",), missing="indicator"), "y": Target((0, 1))})
    one, other = (
        list(
            iterate_digests(
                digests_of_frame(
                    pl.DataFrame({"a": pl.Series([None], dtype=kind), "y": [1]}), schema
                )
            )
        )
        for kind in (pl.Null, pl.String)
    )
    assert one == other


WORDS = Schema(
    {
        "a": Number(-1e20, 1e20, missing="indicator"),
        "b": Category(("1", "true", "2.5"), missing="indicator"),
        "v": Vector(2, 0, 9, missing="drop"),
        "y": Target(("0", "1", "x")),
    },
    missing=("?",),
)


@pytest.mark.parametrize(
    ("name", "few", "one_more"),
    [
        ("a", pl.Series([7, 12]), pl.Series(["7", "12", "?"])),
        ("a", pl.Series([0.5, None]), pl.Series(["0.50", None, "?"])),
        ("a", pl.Series([2**60 + 1, 5]), pl.Series([2.0**60, 5.0, None])),
        ("a", pl.Series([2**60 + 1, 5]), pl.Series([2**60 + 1, 5, 2**63], dtype=pl.UInt64)),
        (
            "a",
            pl.Series(["1.5", "20"]).cast(pl.Decimal(9, 1)),
            pl.Series(["1.5", "20", "0.001"]).cast(pl.Decimal(9, 3)),
        ),
        ("b", pl.Series([None, None], dtype=pl.Null), pl.Series([None, None, 1])),
        ("b", pl.Series([1, None]), pl.Series(["1", None, "?"])),
        ("b", pl.Series([1, None]), pl.Series([1.0, None, 2.5])),
        ("b", pl.Series([True, None]), pl.Series(["true", None, "?"])),
        (
            "b",
            pl.Series(["2.5", "1"]).cast(pl.Decimal(9, 1)),
            pl.Series(["2.5", "1", "0.001"]).cast(pl.Decimal(9, 3)),
        ),
        ("v", pl.Series([[1, 2], [3, 4]]), pl.Series([["1", "2"], ["3", "4"], ["?", "4"]])),
        ("v", pl.Series([None, None], dtype=pl.Null), pl.Series([None, None, [1.0, 2.0]])),
        ("y", pl.Series([0, 1]), pl.Series(["0", "1", "x"])),
    ],
)
def test_one_record_changes_the_type_of_all_and_the_digest_of_none(
    name: str, few: pl.Series, one_more: pl.Series
) -> None:
    def expected(values: pl.Series) -> list[bytes]:
        n = len(values)
        columns = {"a": [1] * n, "b": ["1"] * n, "v": [[1, 2]] * n, "y": ["0"] * n}
        return list(
            iterate_digests(digests_of_frame(pl.DataFrame({**columns, name: values}), WORDS))
        )

    assert expected(few) == expected(one_more)[:2]
    assert len(set(expected(one_more))) == len(one_more.unique())


def test_words_among_numbers_have_different_digests() -> None:
    values = pl.Series("a", ["1", "?", "n", None, "", "1:?"])
    rows = {"b": ["x"] * 6, "v": [[1, 2]] * 6, "y": ["0"] * 6}
    expected = iterate_digests(digests_of_frame(pl.DataFrame({"a": values, **rows}), WORDS))
    assert len(set(expected)) == 6


def test_one_label_or_number_changes_the_type_of_an_array_and_no_other_digest() -> None:
    X = np.arange(4, dtype="f4").reshape(2, 2)
    for few, one_more in [([0, 1], ["0", "1", "x"]), ([0, 1], [0.0, 1.0, np.nan])]:
        one = list(iterate_digests(digests_of_arrays(X, np.array(few))))
        assert (
            list(iterate_digests(digests_of_arrays(X[[0, 1, 0]], np.array(one_more))))[:2]
            == one
        )
    whole = Dataset(np.array([[1, 2], [3, 4]]), np.array([0, 1]), (0, 1))
    more = Dataset(np.array([[1, 2], [3, 4], [0.5, 1]]), np.array([0, 1, 1]), (0, 1))
    before, after = (list(iterate_digests(digests_of_records(d.X, d.y))) for d in (whole, more))
    assert after[:2] == before


def test_ids_that_were_rounded_are_refused(tmp_path: Path) -> None:
    """Where one of them is missing a writer makes all whole numbers floats."""
    schema = Schema(
        {"who": UnitColumn(1, missing="drop"), "x": Number(0, 9), "y": Target((0, 1))}
    )
    for ids, fine in (([3, 2**60, None], False), ([3, 2**53, None], True)):
        frame = {"who": pl.Series(ids, dtype=pl.Float64), "x": [1, 2, 3], "y": [0, 1, 1]}
        pl.DataFrame(frame).write_parquet(tmp_path / "t.parquet")
        if fine:
            assert load(tmp_path / "t.parquet", schema=schema).units.tolist() == [
                "3",
                str(2**53),
            ]
        else:
            with pytest.raises(DataError, match="as text"):
                load(tmp_path / "t.parquet", schema=schema)


def test_floats_differ_to_the_last_bit() -> None:
    values = [0.5, np.nextafter(0.5, 1), 2.0**53, 2.0**60, np.inf, -np.inf, 1e300, -0.5, 5e-324]
    assert len(set(number_digests(values, pl.Float64))) == len(values)
    assert number_digests([-0.0], pl.Float64) == number_digests([0], pl.Int64)


def test_arrays_in_files(tmp_path: Path) -> None:
    X, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1] * 3)
    schema = Schema({"X": Vector(2, 0, 20, center=0, spread=1), "y": Target((0, 1))})
    np.savez(tmp_path / "a.npz", X=X, y=y)
    expected = digests(load(tmp_path / "a.npz", schema=schema, row_digests=True))
    assert len(set(expected)) == 6
    np.savez(tmp_path / "b.npz", X=X[::-1], y=y[::-1])
    assert digests(load(tmp_path / "b.npz", schema=schema, row_digests=True)) == expected[::-1]
    for name, order in (("c", slice(None)), ("d", slice(None, None, -1))):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "X.npy", np.ascontiguousarray(X[order]))
        np.save(tmp_path / name / "y.npy", np.ascontiguousarray(y[order]))
    one, other = (
        digests(load(tmp_path / name, schema=schema, row_digests=True)) for name in "cd"
    )
    assert one == other[::-1] and len(set(one)) == 6


def test_images_count_by_their_files_bytes(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    form = ImageForm(("cat", "dog"), 4, 4, (r"(?P<label>\w+)/.*",), mode="gray")
    for label, name, level in (("cat", "a", 6), ("cat", "b", 9), ("dog", "c", 6)):
        (tmp_path / label).mkdir(exist_ok=True)
        image = pillow.fromarray(np.arange(0, 16 * level, level, dtype=np.uint8).reshape(4, 4))
        image.save(tmp_path / label / f"{name}.png", compress_level=level)
    data = load(tmp_path, schema=form, row_digests=True)
    content = (tmp_path / "dog/c.png").read_bytes()
    assert digests(data)[2] == digest_of_texts(["dog", ""], content)
    assert len(set(digests(data))) == 3 and data.encoded
    expected = digests(data)
    (tmp_path / "cat/a.png").rename(tmp_path / "cat/z.png")
    assert sorted(digests(load(tmp_path, schema=form, row_digests=True))) == sorted(expected)


def test_texts_count_by_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\ngood\t1\nbad\t0\n")
    form = TextForm(("text",), "label", ("0", "1"))
    data = load(path, schema=form, row_digests=True)
    assert digests(data) == [digest_of_texts(["good", "1"]), digest_of_texts(["bad", "0"])]


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "wine", "synthetic-clipping"])
def test_named_sets_have_digests(name: str) -> None:
    data = load(name, row_digests=True)
    assert len(set(digests(data))) >= len(data) - 2


class Twice:
    """A frozen network that another machine computes otherwise."""

    name, dimension, block, norm = "twice", 2, 64, None

    def __init__(self, factor: float) -> None:
        self.factor = np.float32(factor)

    def check(self, X: Any, where: str) -> None: ...

    def fingerprint(self) -> dict[str, str | int]:
        return {"factor": str(self.factor)}

    def scorer(self, record: tuple[int, ...]) -> Any:
        return lambda rows: (rows[:, :2] * self.factor).astype(np.float32)


@pytest.mark.parametrize("from_file", [True, False])
def test_features_do_not_determine_the_partition(table: Path, from_file: bool) -> None:
    rng = np.random.default_rng(0)
    data = Dataset(rng.normal(size=(300, 2)), rng.integers(2, size=300), (0, 1))
    if from_file:
        data = load("breast-cancer")
    others = [2, np.nextafter(np.float32(2), np.float32(3))]
    splits = [split(extract(data, Twice(one), cache=False), key="k") for one in others]
    expected = [part.y.tolist() for part in split(data, key="k").parts.values()]
    for one in splits:
        assert [part.y.tolist() for part in one.parts.values()] == expected


def test_encoded_records_without_digests_have_no_identity(table: Path) -> None:
    data = load(table, schema=SCHEMA)
    with pytest.raises(DataError, match="row_digests=True"):
        split(data, key="k")
    assert split(data).secret
    by_unit = limit_contributions(data, max_contributions=1, unit=np.arange(5))
    assert not split(by_unit, key="k").secret


def test_digests_are_neither_displayed_nor_saved(tmp_path: Path) -> None:
    data = load("breast-cancer")._changed(norm=None)
    assert data.row_digests is not None
    text = repr(data) + repr(split(data, key="k"))
    assert "digest" not in text
    first = digests(data)[0]
    assert first.hex() not in text
    save_matrix(data, tmp_path / "saved", bounds=(-1, 1))
    for file in (tmp_path / "saved").iterdir():
        assert first not in file.read_bytes() and first.hex().encode() not in file.read_bytes()


def test_digests_of_another_form_are_refused() -> None:
    with pytest.raises(DataError, match="row digests"):
        Dataset(np.zeros((2, 1)), np.zeros(2, int), (0, 1), row_digests=np.zeros(2))
    with pytest.raises(DataError, match="row digests"):
        Dataset(np.zeros((2, 1)), np.zeros(2, int), (0, 1), row_digests=np.zeros(3, "V16"))


# Slots -----------------------------------------------------------------------------------

PLACES = Schema({"bed": Slot(), "x": Number(0, 9), "y": Target(("a", "b"))})


def test_slots_are_read_and_saved(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ["b1,1,a", "b2,2,b"], "bed,x,y")
    data = load(path, schema=PLACES)
    assert data.slots is not None and data.slots.tolist() == ["b1", "b2"]
    assert PLACES.slot == "bed" and Schema.from_toml(PLACES.to_toml()) == PLACES
    save_matrix(data, tmp_path / "saved", bounds=(-1, 1))
    again = load(tmp_path / "saved", schema=tmp_path / "saved" / "schema.toml")
    assert again.slots is not None and again.slots.tolist() == ["b1", "b2"]
    assert data.take(np.array([1, 0])).slots.tolist() == ["b2", "b1"]  # type: ignore[union-attr]
    assert data.take(np.array([1, 1])).slots is None  # a row taken twice holds no slot


def test_two_rows_cannot_hold_one_slot(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ["b1,1,a", "b2,2,b", "b1,3,a"], "bed,x,y")
    with pytest.raises(DataError, match="the same slot in records 1 and 3"):
        load(path, schema=PLACES)
    batches = list(scan(path, PLACES, rows=2))
    with pytest.raises(DataError, match="records 1 and 3"):
        concatenate(batches)


def test_a_slot_cannot_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [",1,a"], "bed,x,y")
    with pytest.raises(DataError, match="'bed'"):
        load(path, schema=PLACES)


def test_a_schema_has_one_slot_and_no_unit() -> None:
    for other in (Slot(), UnitColumn()):
        with pytest.raises(SchemaError, match="at most one slot, and none together"):
            Schema({"bed": Slot(), "who": other, "x": Number(0, 1), "y": Target((0, 1))})
    with pytest.raises(SchemaError, match="max_contributions"):
        Schema.from_toml('format = 1\n[columns.bed]\nkind = "slot"\nmax_contributions = 1\n')


# The cache of features -------------------------------------------------------------------


def test_a_cache_confirms_no_guess_of_the_records(tmp_path: Path) -> None:
    """Without the folder's secret key an entry does not identify its records."""
    data = load("wine")
    names = []
    for folder in ("one", "two"):
        extract(data, Twice(2), cache=tmp_path / folder)
        kept = sorted((tmp_path / folder / "features").glob("*.npy"))
        assert len(kept) == 1
        names.append(kept[0].name)
        extract(data, Twice(2), cache=tmp_path / folder)
        assert sorted((tmp_path / folder / "features").glob("*.npy")) == kept
    assert names[0] != names[1]
