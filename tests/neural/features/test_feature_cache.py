"""Features on disk come back as they were, or not at all."""

import os
import stat

import numpy as np
import pytest

from veracal.data.dataset import Dataset, Group
from veracal.data.files import cache_folder, private_folder
from veracal.data.rows import MappedRows
from veracal.errors import DataError
from veracal.neural import features as feature_cache
from veracal.neural.features import CachedFeatures, cache_key

SECRET = b"k" * 32
EXTRACTOR = {"name": "extractor", "threads": 1}


@pytest.fixture
def features(rng):
    return rng.normal(size=(7, 5)).astype(np.float32)


@pytest.fixture
def entry(tmp_path, features):
    entry = CachedFeatures(private_folder(tmp_path / "features"), "ab" * 32, (7, 5))
    entry.write(features)
    return entry


def of(X, **others):
    return Dataset(np.asarray(X), np.zeros(len(X), int), (0, 1), **others)


def permissions(path):
    return stat.S_IMODE(path.stat().st_mode)


# ------------------------------------------------------------------ where


def test_a_named_folder_comes_before_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))

    assert cache_folder(tmp_path / "named") == tmp_path / "named"
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("VERACAL_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "veracal"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ignored", [None, "", "relative/cache"])
def test_without_a_word_it_is_in_the_home_folder(monkeypatch, tmp_path, ignored):
    monkeypatch.delenv("VERACAL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if ignored is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder() == tmp_path / ".cache" / "veracal"
    assert cache_folder("~/mine") == tmp_path / "mine"


# ------------------------------------------------------------------ who may read


def test_only_the_owner_can_read(entry):
    assert permissions(entry.path) == 0o600
    assert permissions(entry.folder) == 0o700


def test_a_folder_that_was_open_is_closed(tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    folder.chmod(0o777)

    assert permissions(private_folder(folder)) == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    def not_yours(path, mode):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.chmod", not_yours)
    with pytest.raises(DataError, match="Operation not permitted"):
        private_folder(tmp_path / "features")


def test_a_file_where_the_folder_should_be_is_refused(tmp_path):
    (tmp_path / "features").write_text("not a folder")

    with pytest.raises(DataError, match="expected a readable path"):
        private_folder(tmp_path / "features")


# ------------------------------------------------------------------ what comes back


def test_what_was_written_is_read(entry, features):
    np.testing.assert_array_equal(entry.read(), features)
    # An ordinary reader understands the file as well.
    np.testing.assert_array_equal(np.load(entry.path, allow_pickle=False), features)


def test_blocks_join_without_a_seam(tmp_path, features, monkeypatch):
    monkeypatch.setattr(feature_cache, "_BLOCK", 16)
    entry = CachedFeatures(private_folder(tmp_path), "cd" * 32, (7, 5))

    entry.write(features)

    np.testing.assert_array_equal(entry.read(), features)


def test_no_features_are_features_too(tmp_path):
    entry = CachedFeatures(private_folder(tmp_path), "cd" * 32, (0, 5))

    entry.write(np.empty((0, 5), np.float32))

    assert entry.read().shape == (0, 5)


def test_nothing_is_read_where_nothing_was_written(tmp_path):
    assert CachedFeatures(tmp_path, "ab" * 32, (7, 5)).read() is None


def test_any_changed_byte_is_noticed(entry):
    whole = entry.path.read_bytes()
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1
        entry.path.write_bytes(broken)
        assert entry.read() is None, f"byte {place}"


@pytest.mark.parametrize("keep", [0, 1, 100, 200, -1])
def test_a_file_cut_short_is_noticed(entry, keep):
    entry.path.write_bytes(entry.path.read_bytes()[:keep])

    assert entry.read() is None


def test_a_file_that_grew_is_noticed(entry):
    entry.path.write_bytes(entry.path.read_bytes() + b"\0")

    assert entry.read() is None


def test_a_file_under_another_name_is_noticed(entry):
    other = CachedFeatures(entry.folder, "cd" * 32, entry.shape)
    entry.path.rename(other.path)

    assert other.read() is None


def test_a_file_of_another_shape_is_noticed(entry):
    assert CachedFeatures(entry.folder, entry.key, (5, 7)).read() is None


def test_a_broken_file_is_written_again(entry, features):
    entry.path.write_bytes(b"broken")

    entry.write(features)

    np.testing.assert_array_equal(entry.read(), features)


def test_a_failed_write_leaves_what_was_there(entry, features, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        entry.write(features + 1)

    assert [path.name for path in entry.folder.iterdir()] == [entry.path.name]
    np.testing.assert_array_equal(entry.read(), features)


def test_an_interrupted_write_leaves_nothing_of_its_own(entry, features, monkeypatch):
    def stop(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        entry.write(features + 1)

    assert len(list(entry.folder.iterdir())) == 1


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    entry = CachedFeatures(tmp_path, "ab" * 32, (7, 5))
    entry.path.mkdir()

    with pytest.raises(DataError, match="Is a directory"):
        entry.read()


# ------------------------------------------------------------------ under which name


def test_the_key_follows_every_record_and_every_setting(rng):
    X = rng.integers(0, 256, (9, 4, 4), np.uint8)
    one_more = X.copy()
    one_more[5, 3, 3] ^= 1
    keys = [
        cache_key(of(X), EXTRACTOR, SECRET),
        cache_key(of(X[:8]), EXTRACTOR, SECRET),
        cache_key(of(X[::-1]), EXTRACTOR, SECRET),
        cache_key(of(one_more), EXTRACTOR, SECRET),
        cache_key(of(X.reshape(9, 2, 8)), EXTRACTOR, SECRET),
        cache_key(of(X), EXTRACTOR | {"threads": 2}, SECRET),
    ]

    assert len(set(keys)) == len(keys)


def test_the_key_is_blind_to_labels_and_people(rng):
    X = rng.integers(0, 256, (4, 2, 2), np.uint8)
    other = Dataset(
        X,
        np.array([0, 1, 0, 1]),
        (0, 1),
        groups={"sex": Group(np.array([0, 1, 1, 0]), ("f", "m"))},
        units=np.arange(4),
        name="other",
    )

    assert cache_key(other, EXTRACTOR, SECRET) == cache_key(of(X), EXTRACTOR, SECRET)


def test_the_key_depends_on_the_ends_of_texts():
    texts = [
        [["ab", "c"], ["d", ""]],
        [["a", "bc"], ["d", ""]],
        [["ab", "c"], ["", "d"]],
        [["ab", "ć"], ["d", ""]],
    ]
    keys = {cache_key(of(np.array(pairs)), EXTRACTOR, SECRET) for pairs in texts}

    assert len(keys) == len(texts)


def test_the_key_is_the_same_in_memory_and_on_disk(tmp_path, rng, monkeypatch):
    X = rng.integers(0, 256, (9, 4, 4), np.uint8)
    np.save(tmp_path / "x.npy", X)
    mapped = of_rows(np.load(tmp_path / "x.npy", mmap_mode="r"))
    whole = cache_key(of(X), EXTRACTOR, SECRET)
    monkeypatch.setattr(feature_cache, "_BLOCK", 40)  # two and a half images

    assert isinstance(mapped.X, MappedRows)
    assert cache_key(mapped, EXTRACTOR, SECRET) == whole == cache_key(of(X), EXTRACTOR, SECRET)


def of_rows(rows):
    return Dataset(rows, np.zeros(len(rows), int), (0, 1))
