"""A saved matrix loads again as it was, and appears whole or not at all."""

from pathlib import Path

import numpy as np
import pytest

from veracal.data import Dataset, Group, load
from veracal.data.arrays import check_group_names, save_matrix
from veracal.data.rows import TEXT, MappedRows
from veracal.errors import DataError


def dataset(**changes: object) -> Dataset:
    """Five rows with everything a data set may have."""
    settings: dict[str, object] = {
        "groups": {"sex": Group(np.array([0, 1, 0, 1, 1]), ("f", "m", "x"))},
        "units": np.array(["p", "q", "q", "r", "é"], dtype=TEXT),
        "size": 50,
        "norm": 2.0,
        "name": "saved",
    }
    X = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    return Dataset(X, np.array([0, 1, 1, 0, 1]), ("no", "yes"), **{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{}, {"groups": {}, "units": None}, {"units": np.arange(5)}]
)
def test_a_matrix_loads_as_it_was(tmp_path: Path, changes: dict[str, object]) -> None:
    data = dataset(**changes)
    folder = save_matrix(data, tmp_path / "m", bounds=(-1, 1))
    again = load(folder, schema=folder / "schema.toml")
    assert isinstance(again.X, MappedRows) and (again.X[:] == data.X).all()
    assert again.labels.tolist() == data.labels.tolist() and again.classes == data.classes
    assert (again.size, again.norm, again.name) == (50, 2.0, "saved")
    assert set(again.groups) == set(data.groups)
    for name, group in data.groups.items():
        assert again.groups[name].names == group.names
        assert (again.groups[name].codes == group.codes).all()
    assert (again.units is None) == (data.units is None)
    if data.units is not None and again.units is not None:
        assert again.units.tolist() == data.units.tolist()


def test_only_its_owner_enters(tmp_path: Path) -> None:
    folder = save_matrix(dataset(), tmp_path / "m", bounds=(-1, 1))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_nothing_is_overwritten_or_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(DataError, match="a new folder"):
        save_matrix(dataset(), tmp_path / "m", bounds=(-1, 1))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match="a new folder"):
        save_matrix(dataset(), tmp_path / "link", bounds=(-1, 1))
    (tmp_path / "link").unlink()
    with pytest.raises(DataError, match="a folder in a folder that exists"):
        save_matrix(dataset(), tmp_path / "no" / "m", bounds=(-1, 1))

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match="No space left"):
        save_matrix(dataset(), tmp_path / "n", bounds=(-1, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_is_no_matrix_is_refused(tmp_path: Path) -> None:
    images = Dataset(np.zeros((2, 4, 4), np.uint8), np.array([0, 1]), ("a", "b"))
    with pytest.raises(DataError, match="shape \\(n, d\\)"):
        save_matrix(images, tmp_path / "m", bounds=(0, 1))


@pytest.mark.parametrize("name", ["../out", "a/b", "x" * 250, "é" * 130, "a\0b"])
def test_groups_that_cannot_be_files_are_refused(tmp_path: Path, name: str) -> None:
    data = dataset(groups={name: Group(np.zeros(5, int), ("x",))})
    with pytest.raises(DataError, match="Rename the group"):
        check_group_names(data)
    with pytest.raises(DataError, match="Rename the group"):
        save_matrix(data, tmp_path / "m", bounds=(-1, 1))
    assert not list(tmp_path.iterdir())
