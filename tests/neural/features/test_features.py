"""Features are computed record by record, cached on request; all else is unchanged."""

import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest

from veracal.data.dataset import Dataset, Group
from veracal.data.files import Limits
from veracal.errors import DataError, LimitError
from veracal.neural import extract
from veracal.neural import features as module


@dataclass(frozen=True)
class Corners:
    """First and last byte of an image: an extractor that needs no extra."""

    shift: int = 0
    handed_over: list = field(default_factory=list, compare=False)

    name = "corners"
    dimension = 2
    block = 4
    norm = 500.0

    def check(self, X, where):
        if X.dtype != np.uint8:
            raise DataError(where, "bytes", str(X.dtype), "Pass bytes.")

    def fingerprint(self):
        return {"name": self.name, "shift": self.shift}

    def scorer(self, record):
        def score(rows):
            self.handed_over.append(len(rows))
            flat = rows.reshape(len(rows), -1)
            return flat[:, [0, -1]].astype(np.float32) + self.shift

        return score


@pytest.fixture
def pictures(rng):
    return Dataset(
        rng.integers(0, 256, (10, 3, 3), np.uint8),
        np.arange(10) % 2,
        ("ill", "well"),
        groups={"sex": Group(np.arange(10) % 2, ("f", "m"))},
        units=np.arange(10) // 2,
        size=12,
        max_contributions=2,
        norm=3.0,
        name="pictures",
    )


def corners(pictures):
    return pictures.X[:, [0, 2], [0, 2]].astype(np.float32)


def test_features_replace_records_and_nothing_else(pictures, tmp_path):
    result = extract(pictures, Corners(), cache=tmp_path)

    np.testing.assert_array_equal(result.X, corners(pictures))
    assert result.X.dtype == np.float32
    assert result.norm == 500.0
    assert result.feature_names == ()
    for same in ("classes", "size", "max_contributions", "name"):
        assert getattr(result, same) == getattr(pictures, same)
    np.testing.assert_array_equal(result.y, pictures.y)
    np.testing.assert_array_equal(result.units, pictures.units)
    np.testing.assert_array_equal(result.groups["sex"].codes, pictures.groups["sex"].codes)


def test_the_second_time_nothing_is_computed(pictures, tmp_path):
    extract(pictures, Corners(), cache=tmp_path)
    again, steps = Corners(), []

    result = extract(pictures, again, cache=tmp_path, progress=lambda *p: steps.append(p))

    assert again.handed_over == []
    assert steps == [(10, 10)]
    np.testing.assert_array_equal(result.X, corners(pictures))


def test_other_settings_are_other_features(pictures, tmp_path):
    extract(pictures, Corners(), cache=tmp_path)

    result = extract(pictures, Corners(shift=1), cache=tmp_path)

    np.testing.assert_array_equal(result.X, corners(pictures) + 1)


def test_the_default_folder_is_the_one_of_the_environment(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "own"))

    extract(pictures, Corners())

    assert len(list((tmp_path / "own" / "features").iterdir())) == 1


def test_false_keeps_nothing(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("HOME", str(tmp_path))

    result = extract(pictures, Corners(), cache=False)

    np.testing.assert_array_equal(result.X, corners(pictures))
    assert not list(tmp_path.iterdir())


def test_a_broken_file_is_computed_again(pictures, tmp_path):
    extract(pictures, Corners(), cache=tmp_path)
    (kept,) = (tmp_path / "features").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-40] + bytes(8) + whole[-32:])
    again = Corners()

    result = extract(pictures, again, cache=tmp_path)

    assert sum(again.handed_over) == 10
    np.testing.assert_array_equal(result.X, corners(pictures))
    assert kept.read_bytes() == whole


def test_progress_is_reported_after_each_block(pictures):
    steps = []

    extract(pictures, Corners(), cache=False, progress=lambda *p: steps.append(p))

    assert steps == [(0, 10), (4, 10), (8, 10), (10, 10)]


def test_records_of_another_kind_are_refused_first(tmp_path):
    numbers = Dataset(np.ones((3, 2)), np.zeros(3, int), (0, 1))

    with pytest.raises(DataError, match="expected bytes, found float64"):
        extract(numbers, Corners(), cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_features_too_large_for_memory_are_refused(pictures):
    extract(pictures, Corners(), cache=False, limits=Limits(memory_bytes=80))

    with pytest.raises(LimitError, match="at most 79 memory bytes, found 80"):
        extract(pictures, Corners(), cache=False, limits=Limits(memory_bytes=79))


def test_records_that_change_meanwhile_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((10, 3, 3), np.uint8))
    rows = np.load(tmp_path / "x.npy", mmap_mode="r+")
    dataset = Dataset(rows, np.zeros(10, int), (0, 1))

    def meddle(done, total):
        rows[0] = 1
        rows.flush()

    with pytest.raises(DataError, match="found records that changed during extraction"):
        extract(dataset, Corners(), cache=tmp_path, progress=meddle)
    assert not list((tmp_path / "features").iterdir())


def test_a_full_disk_costs_the_copy_and_not_the_work(pictures, tmp_path, monkeypatch):
    def full(entry, features):
        raise DataError(str(entry.folder), "room", "none", "Make some.")

    monkeypatch.setattr(module.CachedFeatures, "write", full)
    with pytest.warns(UserWarning, match="computed but not cached.*expected room") as caught:
        result = extract(pictures, Corners(), cache=tmp_path)

    np.testing.assert_array_equal(result.X, corners(pictures))
    assert caught[0].filename == __file__


def test_features_that_are_no_numbers_are_refused(pictures):
    class Broken(Corners):
        def scorer(self, record):
            return lambda rows: np.full((len(rows), 2), np.nan, np.float32)

    with pytest.raises(DataError, match="expected finite numbers, found nan"):
        extract(pictures, Broken(), cache=False)


def test_no_records_give_no_features(tmp_path):
    empty = Dataset(np.empty((0, 3, 3), np.uint8), np.empty(0, int), (0, 1))

    assert extract(empty, Corners(), cache=tmp_path).X.shape == (0, 2)
    assert extract(empty, Corners(), cache=tmp_path).X.shape == (0, 2)


def test_a_file_larger_than_memory_is_read_a_block_at_a_time(tmp_path):
    shape = (5_000, 64, 64)  # 20 MB of images, 40 kB of features
    pictures = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, shape)
    pictures[:, 0, 0] = np.arange(5_000) % 251
    pictures.flush()
    dataset = Dataset(np.load(tmp_path / "x.npy", mmap_mode="r"), np.zeros(5_000, int), (0, 1))
    extractor = Corners()

    tracemalloc.start()
    try:
        result = extract(dataset, extractor, cache=tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    np.testing.assert_array_equal(result.X[:, 0], np.arange(5_000) % 251)
    assert set(extractor.handed_over) == {4}
    assert peak < 6e6
