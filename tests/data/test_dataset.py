"""A data set holds what was declared, or its construction fails."""

import pickle
import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from veracal._types import Frozen
from veracal.data import (
    Dataset,
    Group,
    ImageForm,
    Number,
    Schema,
    Scores,
    Target,
    TextForm,
    cross,
    load,
)
from veracal.data.dataset import concatenate
from veracal.data.rows import TEXT, MappedRows, encode_labels
from veracal.errors import DataError


@pytest.fixture
def small() -> Dataset:
    return Dataset.from_labels(
        np.arange(12.0).reshape(6, 2),
        ["a", "b", "a", "c", "b", "a"],
        ["a", "b", "c"],
        groups={"sex": Group.from_values(list("fmfmfm"), ["f", "m", "x"])},
        units=["p", "p", "q", "q", "r", "s"],
        feature_names=["u", "v"],
        size=100,
    )


def test_labels_are_coded_by_declared_position(small: Dataset) -> None:
    assert small.y.tolist() == [0, 1, 0, 2, 1, 0]
    assert small.labels.tolist() == ["a", "b", "a", "c", "b", "a"]
    assert small.groups["sex"].names == ("f", "m", "x")


def test_repr_shows_no_record(small: Dataset) -> None:
    text = repr(
        small._changed(X=np.full((6, 2), 7919.0), units=np.full(6, "zebra", dtype=TEXT))
    )
    assert "7919" not in text and "zebra" not in text


def test_take_keeps_rows_together(small: Dataset) -> None:
    part = small.take(np.array([5, 0]))
    assert part.X.tolist() == [[10, 11], [0, 1]]
    assert part.labels.tolist() == ["a", "a"]
    assert part.groups["sex"].codes.tolist() == [1, 0]
    assert part.units is not None and part.units.tolist() == ["s", "p"]
    assert part.size == 100  # the declared figure, not a count
    assert small.take(small.y == 0).X.tolist() == [[0, 1], [4, 5], [10, 11]]


def test_batches_and_concatenate_are_inverse(small: Dataset) -> None:
    batches = list(small.batches(4))
    assert [len(batch) for batch in batches] == [4, 2]
    whole = concatenate(batches)
    for name in ("X", "y", "units"):
        assert (getattr(whole, name) == getattr(small, name)).all()
    assert (whole.groups["sex"].codes == small.groups["sex"].codes).all()


def test_arrays_cannot_be_changed_by_accident(small: Dataset) -> None:
    with pytest.raises(ValueError, match="read-only"):
        small.X[0, 0] = 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
def test_only_finite_numbers(bad: float, dtype: str) -> None:
    X = np.zeros((3, 2), dtype=dtype)
    X[1, 1] = bad
    with pytest.raises(DataError, match="finite numbers, found .* in record 2"):
        Dataset(X, [0, 1, 0], ("a", "b"))


@pytest.mark.parametrize(
    ("X", "y", "classes", "complaint"),
    [
        (np.zeros(3), [0, 1, 0], ("a", "b"), "shape"),
        (np.zeros((3, 1), complex), [0, 1, 0], ("a", "b"), "complex"),
        (np.array([[object()]] * 3), [0, 1, 0], ("a", "b"), "other objects"),
        (np.zeros((3, 1)), [0, 1], ("a", "b"), "3 values, one for each record"),
        (np.zeros((3, 1)), [0, 1, 2], ("a", "b"), "codes from 0 to 1"),
        (np.zeros((3, 1)), [0, -1, 0], ("a", "b"), "codes from 0 to 1"),
        (np.zeros((3, 1)), [0.0, 1.0, 0.0], ("a", "b"), "whole numbers"),
        (np.zeros((3, 1)), [0, 0, 0], ("a",), "at least two different"),
        (np.zeros((3, 1)), [0, 0, 0], ("a", "a"), "at least two different"),
        (np.zeros((3, 1)), [0, 0, 0], ("a", 1), "all text or all integers"),
        (np.zeros((3, 1)), [0, 0, 0], (0.5, 1.5), "all text or all integers"),
        (np.zeros((3, 1)), [0, 0, 0], ([1], [2]), "all text or all integers"),
    ],
)
def test_inconsistent_arrays_are_refused(
    X: object, y: object, classes: object, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        Dataset(X, y, classes)  # type: ignore[arg-type]


def test_parts_of_other_lengths_are_refused() -> None:
    X, y = np.zeros((3, 1)), [0, 1, 0]
    with pytest.raises(DataError, match="group 's'"):
        Dataset(X, y, ("a", "b"), groups={"s": Group(np.array([0]), ("x",))})  # type: ignore[arg-type]
    with pytest.raises(DataError, match="units"):
        Dataset(X, y, ("a", "b"), units=np.array([1, 2]))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="units"):
        Dataset(X, y, ("a", "b"), units=np.array([1.5, 2, 3]))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="feature names"):
        Dataset(X, y, ("a", "b"), feature_names=("u", "v"))  # type: ignore[arg-type]


def test_images_and_text_are_features_too() -> None:
    images = Dataset(np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 1]), ("a", "b"))
    assert images.X.dtype == np.uint8
    text = Dataset(np.array([["good"], ["bad"]]), np.array([0, 1]), ("a", "b"))
    assert text.X.dtype == TEXT and text.take(np.array([1])).X[0, 0] == "bad"


@pytest.mark.parametrize(
    ("values", "classes", "codes"),
    [
        (["1", "0"], [0, 1], [1, 0]),
        ([1.0, 0.0], [0, 1], [1, 0]),
        (np.array([1, 0], ">i2"), ["0", "1"], [1, 0]),
        ([True, False], ["False", "True"], [1, 0]),
        (["b", "a"], ["b", "a"], [0, 1]),
        ([], ["b", "a"], []),
    ],
)
def test_labels_match_as_they_are_written(
    values: object, classes: object, codes: object
) -> None:
    assert encode_labels(values, classes, "y").tolist() == codes  # type: ignore[arg-type]


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
        unique=True,
        min_size=2,
    ),
    st.randoms(),
)
def test_labels_of_any_length_are_encoded(classes: list[str], random: Random) -> None:
    wanted = [random.randrange(len(classes)) for _ in range(10)]
    long = [f"{name}: a name of more than fifteen bytes" for name in classes]
    for names in (classes, long):
        given_as = np.array([names[code] for code in wanted])
        assert encode_labels(given_as, names, "y").tolist() == wanted


@pytest.mark.parametrize("values", [["a", "z"], [0.5, 1], [" a"], [None], [[1]]])
def test_labels_outside_the_classes_are_refused(values: object) -> None:
    with pytest.raises(DataError):
        encode_labels(values, ["a", "b"] if values == ["a", "z"] else [0, 1], "y")  # type: ignore[arg-type]


def test_cross_names_every_combination() -> None:
    sex = Group(np.array([0, 1, 1]), ("f", "m"))
    age = Group(np.array([2, 0, 2]), ("young", "middle", "old"))
    both = cross(sex, age)
    assert len(both.names) == 6
    assert [both.names[code] for code in both.codes] == ["f & old", "m & young", "m & old"]


def test_rows_on_disk_equal_the_array(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(50_000, 3)).astype(np.float32)
    np.save(tmp_path / "X.npy", array)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    rows = MappedRows.of(mapped)
    assert rows is not None and rows.shape == array.shape and rows.nbytes == array.nbytes
    some = np.random.default_rng(1).integers(50_000, size=40_000)
    for key in (slice(None), slice(10, 20), slice(None, None, 7), slice(5, 5), some):
        assert (rows[key] == array[key]).all()
    assert (rows[-1] == array[-1]).all()
    assert (rows.take(some)[100:200] == array[some[100:200]]).all()
    assert (rows.take(some).take(np.array([3, 1]))[:] == array[some[[3, 1]]]).all()
    assert (np.asarray(rows) == array).all()
    with pytest.raises(ValueError, match="without a copy"):
        np.array(rows, copy=False)
    part = MappedRows.of(mapped[10:20][3:5])
    assert part is not None and (part[:] == array[13:15]).all()
    for other in (mapped[:, ::2], mapped[::-1], mapped.T, mapped.astype(np.float64)):
        assert MappedRows.of(other) is None
    assert MappedRows.of(np.load(tmp_path / "X.npy", mmap_mode="c")) is None


def test_a_data_set_of_rows_on_disk_stays_there(tmp_path: Path) -> None:
    array = np.arange(20.0).reshape(10, 2)
    np.save(tmp_path / "X.npy", array)
    data = Dataset(
        np.load(tmp_path / "X.npy", mmap_mode="r"), np.arange(10) % 2, ("even", "odd")
    )
    part = data.take(data.y == 1)
    assert isinstance(part.X, MappedRows) and (part.X[:] == array[1::2]).all()
    assert all(isinstance(batch.X, np.ndarray) for batch in part.batches(2))
    array[3, 1] = np.nan
    np.save(tmp_path / "X.npy", array)
    with pytest.raises(DataError, match="nan in record 4"):
        Dataset(np.load(tmp_path / "X.npy", mmap_mode="r"), np.arange(10) % 2, ("a", "b"))


@given(st.data())
def test_rows_on_disk_are_chosen_as_numpy_chooses(data: st.DataObject) -> None:
    array = np.arange(40.0).reshape(20, 2)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "X.npy", array)
        rows = MappedRows.of(np.load(Path(folder) / "X.npy", mmap_mode="r"))
        assert rows is not None
        first = data.draw(st.lists(st.integers(-20, 19), min_size=1, max_size=30))
        second = data.draw(st.lists(st.integers(-len(first), len(first) - 1), max_size=9))
        mask = data.draw(st.lists(st.booleans(), min_size=20, max_size=20))
        assert (rows[first] == array[first]).all()
        assert (rows[mask] == array[mask]).all()
        chosen = np.array(second, dtype=int)
        assert (rows.take(first).take(second)[:] == array[first][chosen]).all()
        assert (rows.take(first)[chosen] == array[first][chosen]).all()
        for wrong in ([20], [-21], [0.5], [[0]], [True, False]):
            with pytest.raises(IndexError):
                rows[wrong]
            with pytest.raises(IndexError):
                rows.take(wrong)


def test_a_slice_of_a_map_holds_its_own_rows(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(6, 2)
    np.save(tmp_path / "X.npy", array)
    whole = np.load(tmp_path / "X.npy", mmap_mode="r")
    for part in (whole[2:4], whole[4:1:-2], whole[:, :1][2:4], whole.astype(np.float32)[2:4]):
        assert (Dataset(part, np.array([0, 1]), ("a", "b")).X[:] == np.asarray(part)).all()
    edited = np.load(tmp_path / "X.npy", mmap_mode="c")
    edited[0, 0] = 555
    assert Dataset(edited, np.arange(6) % 2, ("a", "b")).X[0, 0] == 555


def test_a_file_that_changes_after_its_check_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.ones((4, 2)))
    data = Dataset(np.load(tmp_path / "X.npy", mmap_mode="r"), np.arange(4) % 2, ("a", "b"))
    assert data.X[:].sum() == 8
    np.save(tmp_path / "X.npy", np.full((5, 2), np.nan))
    with pytest.raises(DataError, match="has changed since"):
        data.X[:]
    (tmp_path / "X.npy").unlink()
    with pytest.raises(DataError, match="nothing at that path"):
        data.X[:]


def test_records_are_immutable() -> None:
    X, y, units, codes = np.ones((2, 1)), np.array([0, 1]), np.array([1, 2]), np.array([0, 0])
    data = Dataset(X, y, ("a", "b"), units=units, groups={"g": Group(codes, ("x", "y"))})
    X[0], y[0], units[0], codes[0] = np.nan, 7, 9, 1
    again = pickle.loads(pickle.dumps(data))
    for held in (data, data.take(np.array([0, 1])), again, again.take(np.array([0, 1]))):
        arrays = [held.X, held.y, held.units, held.groups["g"].codes]
        assert [a.tolist() for a in arrays] == [[[1], [1]], [0, 1], [1, 2], [0, 0]]
    view = X.view()
    view.flags.writeable = False
    X[0] = 1
    through_a_view = Dataset(view, np.array([0, 1]), ("a", "b"))
    X[0] = np.nan
    assert through_a_view.X.tolist() == [[1], [1]]
    for array in (
        data.X,
        data.y,
        data.units,
        data.groups["g"].codes,
        data.take([1]).y,
        again.X,
        again.y,
    ):
        with pytest.raises(ValueError, match="read-only|WRITEABLE"):
            array.flags.writeable = True


@pytest.mark.parametrize(
    "units",
    [
        np.array([None, "p", None], object),
        np.array(["", "p", "q"]),
        np.array([1.5, 2, 3], object),
        np.array([np.nan, 1, 2]),
        np.array([[1], [2], [3]]),
        np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
    ],
)
def test_missing_ids_are_refused(units: object) -> None:
    with pytest.raises(DataError, match="units"):
        Dataset(np.zeros((3, 1)), np.array([0, 1, 0]), ("a", "b"), units=units)  # type: ignore[arg-type]


def test_masked_arrays_are_refused() -> None:
    masked = np.ma.masked_array([[1.0], [3.0]], mask=[[1], [0]])
    with pytest.raises(DataError, match="masked"):
        Dataset(masked, np.array([0, 1]), ("a", "b"))
    with pytest.raises(DataError, match="masked"):
        encode_labels(np.ma.masked_array([0, 1], mask=[0, 1]), [0, 1], "y")


def test_declared_bounds_must_hold() -> None:
    X, y, units = np.array([[3.0, 4.0], [0, 1]]), np.array([0, 1]), np.array([7, 7])
    with pytest.raises(DataError, match="norm at most 4.9, found 5 in record 1"):
        Dataset(X, y, ("a", "b"), norm=4.9)
    assert Dataset(X, y, ("a", "b"), norm=5).norm == 5
    with pytest.raises(DataError, match="at most 1 rows of one unit, found 2"):
        Dataset(X, y, ("a", "b"), units=units, max_contributions=1)
    once = Dataset(X, y, ("a", "b"), units=np.array([1, 2]), max_contributions=1)
    assert once.take([1, 0]).max_contributions == 1
    assert once.take([1, 1]).max_contributions is None  # twice is twice


def test_choosing_rows() -> None:
    data = Dataset(np.arange(3.0)[:, None], np.array([0, 1, 0]), ("a", "b"))
    assert len(data.take([])) == 0 and len(data.take(np.zeros(3, bool))) == 0
    with pytest.raises(ValueError, match="mask of shape"):
        data.take(np.array([True, False]))


def test_groups_have_different_names() -> None:
    with pytest.raises(DataError, match="different names"):
        Group(np.array([0, 1]), ("a", "a"))
    with pytest.raises(DataError, match="a list"):
        Group(np.array([0, 1]), "ab")  # type: ignore[arg-type]


def test_an_error_names_the_wrong_label() -> None:
    with pytest.raises(DataError, match="'1.5' in record 3"):
        encode_labels([0, 1, 1.5], [0, 1], "y")
    with pytest.raises(DataError, match="'nan' in record 2"):
        encode_labels([0, np.nan], [0, 1], "y")


# ---------------------------------------------------------------- forms and pickling


FORM = ImageForm(
    classes=("a", "b"),
    height=4,
    width=4,
    mode="gray",
    patterns=(r"(?P<part>train|test)/(?P<label>[ab])/.+\.png",),
)


def test_images_load_by_their_form(tmp_path: Path) -> None:
    for part, label in (("train", "a"), ("train", "b"), ("test", "a")):
        (tmp_path / part / label).mkdir(parents=True)
        Image.new("L", (4, 4), 9).save(tmp_path / part / label / "1.png")
    assert load(tmp_path, schema=FORM).X.shape == (3, 4, 4)
    assert len(load(tmp_path, schema=FORM, part="train")) == 2
    with pytest.raises(ValueError, match="no variant"):
        load(tmp_path, schema=FORM, variant="code")


def test_sentences_load_by_their_form(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("s\ty\ngood\t1\nbad\t0\n")
    form = TextForm(text=("s",), label="y", classes=("0", "1"))
    assert load(tmp_path / "t.tsv", schema=form).X[:, 0].tolist() == ["good", "bad"]
    with pytest.raises(ValueError, match="no part"):
        load(tmp_path / "t.tsv", schema=form, part="train")


def test_records_cross_process_boundaries() -> None:
    group = {"g": Group(np.array([0, 1]), ("x", "y"))}
    data = Dataset(np.zeros((2, 1)), np.array([0, 1]), ("a", "b"), groups=group)
    schema = Schema({"x": Number(0, 1), "y": Target((0, 1))})
    scores = Scores.from_logits(np.zeros((2, 2)), groups=group)
    again = pickle.loads(pickle.dumps((data, schema, scores, FORM)))
    assert again[1] == schema and again[3] == FORM
    assert again[0].groups["g"].codes.tolist() == [0, 1]
    assert again[2].groups["g"].names == ("x", "y")


def test_mappings_stay_as_they_are() -> None:
    given = {"a": 1}
    mapping = Frozen(given)
    given["a"] = 2
    assert mapping == {"a": 1} and repr(mapping) == "{'a': 1}" and len(mapping) == 1
    with pytest.raises(TypeError, match="item assignment"):
        mapping["a"] = 2  # type: ignore[index]
