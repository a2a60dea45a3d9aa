"""Scores arrive as their file holds them, or not at all."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from veracal.data import Group, Limits, Scores, load_scores, save_scores, scan_scores
from veracal.data.files import atomic_file, write_new_text
from veracal.errors import DataError, LimitError

LOGITS = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0], [1.0, 1.0, 1.0]])
ROWS = 65_536  # of a batch


def test_files_of_every_form_agree(tmp_path: Path) -> None:
    labels, sex, ids = [0, 2, 1], ["f", "m", "f"], ["p", "p", "q"]
    np.savez(tmp_path / "s.npz", logits=LOGITS, labels=labels, sex=sex, id=ids)
    frame = pl.DataFrame({"logits": LOGITS.tolist(), "labels": labels, "sex": sex, "id": ids})
    frame.write_parquet(tmp_path / "s.parquet")
    frame.write_ipc(tmp_path / "s.arrow")
    spread = {f"logits_{i}": LOGITS[:, i] for i in range(3)}
    pl.DataFrame({**spread, "labels": labels, "sex": sex, "id": ids}).write_csv(
        tmp_path / "s.csv"
    )
    for name in ("s.npz", "s.parquet", "s.arrow", "s.csv"):
        scores = load_scores(tmp_path / name, groups={"sex": ["f", "m"]}, unit="id")
        assert scores.kind == "logits" and scores.values.tolist() == LOGITS.tolist()
        assert scores.known_labels.tolist() == labels
        assert scores.groups["sex"].codes.tolist() == [0, 1, 0]
        assert scores.units is not None and scores.units.tolist() == ids
    assert [len(s) for s in scan_scores(tmp_path / "s.parquet", rows=2)] == [2, 1]


def test_files_that_hold_no_scores(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=LOGITS)
    with pytest.raises(DataError, match="logits or probabilities"):
        load_scores(tmp_path / "s.npz")
    with pytest.raises(DataError, match="ending in '_test'"):
        load_scores(tmp_path / "s.npz", part="test")
    np.savez(tmp_path / "s.npz", logits=LOGITS, labels=[0, 1, 9])
    with pytest.raises(DataError, match="'9' in record 3"):
        load_scores(tmp_path / "s.npz")
    with pytest.raises(DataError, match="a column 'sex'"):
        load_scores(tmp_path / "s.npz", groups={"sex": ["f"]})
    with pytest.raises(LimitError):
        load_scores(tmp_path / "s.npz", limits=Limits(rows=2))
    pl.DataFrame({"logits": [[1.0, 2.0], [1.0]]}).write_parquet(tmp_path / "s.parquet")
    with pytest.raises(DataError, match="lists of one length"):
        load_scores(tmp_path / "s.parquet")
    (tmp_path / "s.csv").write_text("logits_0,logits_1\n1,a\n")
    with pytest.raises(DataError, match="nan in record 1"):
        load_scores(tmp_path / "s.csv")


def test_published_logits(data_folder) -> None:  # type: ignore[no-untyped-def]
    path = data_folder("logits_cifar/densenet40_cifar10.npz")
    scores = load_scores(path, part="test")
    assert len(scores) == 10_000 and scores.n_classes == 10
    assert scores.correct.mean() == pytest.approx(0.9242)
    assert len(load_scores(path, part="val")) == 5_000


def test_sets_of_one_file_have_names_of_their_own(tmp_path: Path) -> None:
    values = np.zeros((3, 2))
    np.savez(tmp_path / "s.npz", logits_test=values, logits_val=values + 1)
    names = [load_scores(tmp_path / "s.npz", part=part).name for part in ("test", "val")]
    assert names == ["s.npz: test", "s.npz: val"]


def parquet(folder: Path, **columns: object) -> Path:
    """Write a Parquet file."""
    pl.DataFrame(columns).write_parquet(folder / "s.parquet")
    return folder / "s.parquet"


def test_two_classes_may_have_one_column(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("probabilities,labels\n0.25,0\n1,1\n")
    assert load_scores(tmp_path / "s.csv").values.tolist() == [[0.75, 0.25], [0, 1]]
    path = parquet(tmp_path, logits=[1.5, -1.0])
    assert load_scores(path).values.tolist() == [[0, 1.5], [0, -1]]


def test_numbered_columns_keep_their_order_and_precision(tmp_path: Path) -> None:
    names = [f"logits_{i}" for i in range(12)]
    table = {name: np.full(2, i, np.float32) for i, name in enumerate(names)}
    scores = load_scores(parquet(tmp_path, **dict(sorted(table.items()))))
    assert scores.values.tolist() == [list(range(12))] * 2
    assert scores.values.dtype == np.float32


@pytest.mark.parametrize(
    "names",
    [
        ("logits_0", "logits_2"),
        ("logits_1", "logits_2"),
        ("logits_00", "logits_01"),
        ("logits_0", "logits_1", "logits_01"),
        ("logits", "logits_0"),
    ],
)
def test_numbered_columns_without_a_gap(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = parquet(tmp_path, **{name: [1.0, 2.0] for name in names}, labels=[0, 1])
    with pytest.raises(DataError, match=f"from logits_0 on, without a gap, found '{names[0]}'"):
        load_scores(path)


def test_logits_and_probabilities_are_not_both_taken(tmp_path: Path) -> None:
    both = {"logits": [[0.0, 1.0]], "probabilities": [[0.5, 0.5]]}
    with pytest.raises(DataError, match="logits or probabilities, found both"):
        load_scores(parquet(tmp_path, **both))
    spread = {"logits_0": [0.0], "logits_1": [1.0], "probabilities": [0.5]}
    with pytest.raises(DataError, match="logits or probabilities, found both"):
        load_scores(parquet(tmp_path, **spread))


@pytest.mark.parametrize("name", ["label", "y", "Label", "Y"])
def test_labels_of_another_name_are_not_passed_over(tmp_path: Path, name: str) -> None:
    path = parquet(tmp_path, logits=[[0.0, 1.0]], **{name: [1]})
    with pytest.raises(DataError, match=f"a column {name!r}. Rename it to 'labels'"):
        load_scores(path)
    assert load_scores(path, unit=name).labels is None
    assert load_scores(path, groups={name: [0, 1]}).labels is None
    np.savez(tmp_path / "s.npz", logits_test=LOGITS, label_test=[0, 2, 1])
    with pytest.raises(DataError, match="a column 'label_test'. Rename it to 'labels_test'"):
        load_scores(tmp_path / "s.npz", part="test")


def test_ids_keep_all_their_digits(tmp_path: Path) -> None:
    ids = [2**53, 2**53 + 1]
    scores = load_scores(parquet(tmp_path, logits=[0.0, 1.0], u=ids), unit="u")
    assert scores.units is not None and scores.units.tolist() == ids


@pytest.mark.parametrize("values", [[2**53, None, 2**53 + 1], ["p", None, "q"]])
@pytest.mark.parametrize("name", ["u", "g", "labels"])
def test_missing_values_are_refused(tmp_path: Path, name: str, values: list[object]) -> None:
    columns = {"u": [1, 2, 3], "g": [1, 2, 3], "labels": [0, 1, 1]} | {name: values}
    path = parquet(tmp_path, logits=[0.0, 1.0, 2.0], **columns)
    with pytest.raises(DataError, match=f"{name}: expected a value in every record.* record 2"):
        load_scores(path, unit="u", groups={"g": [1, 2, 3]})


def test_ids_are_neither_floats_nor_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="units: expected ids .*whole numbers or text"):
        load_scores(parquet(tmp_path, logits=[0.0, 1.0], u=[1.0, float("nan")]), unit="u")
    (tmp_path / "s.csv").write_text("logits,u\n1,01\n2,\n3,1\n")
    with pytest.raises(DataError, match="units: expected an id, found none in record 2"):
        load_scores(tmp_path / "s.csv", unit="u")


@pytest.mark.parametrize("labels", [np.eye(3)[[0, 2, 1]], np.array([[0], [2], [1]])])
def test_labels_are_one_a_record(tmp_path: Path, labels: np.ndarray) -> None:
    np.savez(tmp_path / "s.npz", logits=LOGITS, labels=labels)
    with pytest.raises(DataError, match=r"labels: expected one value a record.*argmax"):
        load_scores(tmp_path / "s.npz")


def test_scores_have_two_dimensions(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", logits=np.zeros((3, 2, 2)), labels=[0, 1, 1])
    with pytest.raises(DataError, match=r"logits: expected shape \(n, k\).*\(3, 2, 2\)"):
        load_scores(tmp_path / "s.npz")
    np.savez(tmp_path / "s.npz", logits_0=LOGITS, logits_1=LOGITS)
    with pytest.raises(DataError, match="logits_0: expected a number in each.*name the part"):
        load_scores(tmp_path / "s.npz")
    assert len(load_scores(tmp_path / "s.npz", part="1")) == 3


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"probabilities": 1.5}, r"found 1\.5 in record 70000"),
        ({"labels": 7}, "labels: expected one of 0, 1, found '7' in record 70000"),
        ({"g": "z"}, r"s\.parquet: group 'g': expected one of .*'z' in record 70000"),
        ({"u": None}, "u: expected a value in every record, found none in record 70000"),
        ({"u": ""}, "units: expected an id, found none in record 70000"),
    ],
)
def test_errors_name_the_record_of_the_file(
    tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    assert ROWS < 69_999
    columns: dict[str, list[object]] = {
        "probabilities": [0.5] * 70_001,
        "labels": [0] * 70_001,
        "g": ["a"] * 70_001,
        "u": ["p"] * 70_001,
    }
    for name, value in changes.items():
        columns[name][69_999] = value
    with pytest.raises(DataError, match=complaint):
        load_scores(parquet(tmp_path, **columns), groups={"g": ["a", "b"]}, unit="u")


def test_the_number_of_classes_stays_the_same(tmp_path: Path) -> None:
    path = parquet(tmp_path, logits=[[0.0, 1.0]] * 2 + [[0.0, 1.0, 2.0]] * 2)
    with pytest.raises(DataError, match="2 classes in every record, found 3 in record 3"):
        list(scan_scores(path, rows=2))


def test_the_limit_on_rows_holds_for_the_whole_file(tmp_path: Path) -> None:
    frame = pl.DataFrame({"logits": [0.0, 1.0]})
    pl.concat([frame] * 3, rechunk=False).write_ipc(tmp_path / "s.arrow", record_batch_size=2)
    with pytest.raises(LimitError, match="at most 5 rows"):
        load_scores(tmp_path / "s.arrow", limits=Limits(rows=5))
    assert len(load_scores(tmp_path / "s.arrow", limits=Limits(rows=6))) == 6


# ---------------------------------------------------------------- saving


SUFFIXES = (".npz", ".csv", ".parquet")
GROUP = Group.from_values(np.array(["a", "b"]), ["a", "b"])


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=SUFFIXES)
def path(request):
    return Path(f"s{request.param}")


def two(**more):
    return Scores.from_logits([[0.0, 1], [1, 0]], [0, 1], **more)


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_saved_scores_load_unchanged(path, dtype, kind, rng):
    values = rng.normal(size=(40, 3)).astype(dtype)
    if kind == "probabilities":
        values = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    classes, sexes = ["a", "b, c", "ü"], ["f", "m"]
    given = getattr(Scores, f"from_{kind}")(
        values,
        np.array(classes)[rng.integers(3, size=40)],
        classes=classes,
        groups={"sex": Group.from_values(np.array(sexes)[np.arange(40) % 2], sexes)},
        units=np.array([f"p{i // 4}" for i in range(40)]),
    )
    assert save_scores(given, str(path), unit="patient") == path
    loaded = load_scores(path, classes=classes, groups={"sex": sexes}, unit="patient")
    assert loaded.kind == kind and np.array_equal(loaded.values.astype(dtype), given.values)
    assert loaded.values.dtype == (np.float64 if path.suffix == ".csv" else dtype)
    assert np.array_equal(loaded.labels, given.labels)
    assert np.array_equal(loaded.groups["sex"].codes, given.groups["sex"].codes)
    assert loaded.units.tolist() == given.units.tolist()
    assert path.stat().st_mode & 0o077 == 0


def test_numbers_at_the_edges_come_back_bit_for_bit(path):
    edges = [[5e-324, -0.0], [np.finfo(float).max, 0.1 + 0.2], [1 / 3, -np.finfo(float).tiny]]
    given = Scores.from_logits(np.array(edges))
    loaded = load_scores(save_scores(given, path))
    assert loaded.values.tobytes() == given.values.tobytes() and loaded.labels is None


def test_classes_and_units_that_are_numbers(path):
    values, ids = [[0.0, 1], [1, 0]], np.array([10, 2])
    given = Scores.from_logits(values, [7, 3], classes=[7, 3], units=ids)
    save_scores(given, path)
    loaded = load_scores(path, classes=[7, 3], unit="unit")
    assert loaded.labels.tolist() == [0, 1] and loaded.classes == (7, 3)
    written = ids.astype(str) if path.suffix == ".csv" else ids
    assert loaded.units.tolist() == written.tolist()


@pytest.mark.parametrize("name", ["file", "allow_pickle", "self", "a b", "logits_x", "y"])
def test_groups_have_any_other_name(path, name):
    save_scores(two(groups={name: GROUP}), path)
    loaded = load_scores(path, groups={name: ["a", "b"]})
    assert loaded.groups[name].codes.tolist() == [0, 1] and loaded.labels.tolist() == [0, 1]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "name", ["labels", "logits", "logits_0", "logits_7", "probabilities", "probabilities_1"]
)
def test_groups_and_units_have_no_reserved_name(path, name):
    ids = np.array(["x", "y"])
    for given, unit in ((two(groups={name: GROUP}), "unit"), (two(units=ids), name)):
        with pytest.raises(DataError, match="distinct names"):
            save_scores(given, path, unit=unit)
    save_scores(two(), path, unit=name)  # there are no units, so no such column
    assert load_scores(path).labels.tolist() == [0, 1]


def test_group_and_unit_have_distinct_names(path):
    given = two(groups={"unit": GROUP}, units=np.array(["x", "y"]))
    with pytest.raises(DataError, match="distinct names"):
        save_scores(given, path)
    assert not path.exists()
    save_scores(given, path, unit="patient")


@pytest.mark.parametrize("name", ["s", "s.txt", "s.arrow", "npz"])
def test_the_suffix_determines_the_format(name):
    with pytest.raises(DataError, match="ends in .npz, .parquet, .csv"):
        save_scores(two(), name)
    assert not list(Path().iterdir())


def test_an_existing_file_is_kept_without_force(path):
    path.write_text("mine")
    with pytest.raises(DataError, match="one that exists"):
        save_scores(two(), path)
    assert path.read_text() == "mine"
    save_scores(two(), path, force=True)
    assert len(load_scores(path)) == 2 and len(list(Path().iterdir())) == 1


# ---------------------------------------------------------------- whole or not at all


def test_a_write_that_fails_leaves_what_was_there(path, monkeypatch):
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match="No space left"):
        save_scores(two(), path, force=True)
    assert path.read_text() == "old" and len(list(Path().iterdir())) == 1


def test_a_full_disk_raises_a_data_error(path, rng):
    resource = pytest.importorskip("resource")  # not on Windows
    values = rng.normal(size=(20_000, 3))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))  # simulates a full disk
    try:
        with pytest.raises(DataError, match=r"a place to write, found .*File too large"):
            save_scores(Scores.from_logits(values), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_write_leaves_nothing(error):
    def interrupted() -> None:
        with atomic_file(Path("f")) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert not list(Path().iterdir())


def test_a_file_of_a_faster_process_is_not_overwritten():
    def race() -> None:
        with atomic_file(Path("f")) as file:
            Path("f").write_text("theirs")
            file.write(b"ours")

    with pytest.raises(DataError, match="File exists"):
        race()
    assert Path("f").read_text() == "theirs" and len(list(Path().iterdir())) == 1


def test_a_link_is_not_followed_by_force():
    Path("target").write_text("mine")
    Path("f").symlink_to("target")
    with (
        pytest.raises(DataError, match="one that exists"),
        atomic_file(Path("f"), force=True) as file,
    ):
        file.write(b"ours")
    assert Path("target").read_text() == "mine"


def test_new_text_is_written_as_it_is():
    write_new_text(Path("f"), "ü\n")
    assert Path("f").read_bytes() == "ü\n".encode()
    with pytest.raises(DataError, match="one that exists"):
        write_new_text(Path("f"), "other")
