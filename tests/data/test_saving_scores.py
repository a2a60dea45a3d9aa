"""What is written of scores is read again, and files appear whole or not at all."""

from pathlib import Path

import numpy as np
import pytest

from veracal.data import Group, Scores, load_scores, save_scores
from veracal.data.files import placed, write_new
from veracal.errors import DataError

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
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))  # stands for a full disk
    try:
        with pytest.raises(DataError, match=r"a place to write, found .*File too large"):
            save_scores(Scores.from_logits(values), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_write_leaves_nothing(error):
    def interrupted() -> None:
        with placed(Path("f")) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert not list(Path().iterdir())


def test_a_file_of_a_faster_process_is_not_overwritten():
    def race() -> None:
        with placed(Path("f")) as file:
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
        placed(Path("f"), force=True) as file,
    ):
        file.write(b"ours")
    assert Path("target").read_text() == "mine"


def test_new_text_is_written_as_it_is():
    write_new(Path("f"), "ü\n")
    assert Path("f").read_bytes() == "ü\n".encode()
    with pytest.raises(DataError, match="one that exists"):
        write_new(Path("f"), "other")
