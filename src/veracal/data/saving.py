"""A matrix of records written to a folder, from which it can be mapped again."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from veracal._types import Array
from veracal.data.columns import Category, Column, Slot, Target, Unit, Vector
from veracal.data.dataset import Dataset
from veracal.data.files import new_file
from veracal.data.limits import no_surprises
from veracal.data.schema import Grouping, Schema
from veracal.errors import DataError

SCHEMA_FILE = "schema.toml"
_LONGEST_NAME = 255  # bytes, on the file systems in use


def save_matrix(dataset: Dataset, folder: str | Path, *, bounds: tuple[float, float]) -> Path:
    """Write a data set as ``X.npy``, ``y.npy`` and what belongs to it, with its schema.

    ``load(folder, schema=folder / "schema.toml")`` maps it again.

    Parameters
    ----------
    dataset : Dataset
        With features of shape (n, d).
    folder : path
        A new folder. It appears whole or not at all, and only its owner can enter it:
        features say almost as much about people as the records do.
    bounds : two floats
        Public bounds on every number of X.
    """
    folder = new_folder(folder)
    if dataset.X.ndim != 2 or dataset.X.dtype.kind != "f":
        raise DataError(
            dataset.name,
            "features of shape (n, d)",
            f"{dataset.X.dtype} of shape {dataset.X.shape}",
            "Extract features first.",
        )
    check_group_names(dataset)
    with no_surprises(folder.parent):
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            _write(dataset, work, bounds)
            work.rename(folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return folder


def new_folder(folder: str | Path) -> Path:
    """Return the path of a folder that is still to be made, or raise."""
    return new_file(Path(folder), "folder")


def check_group_names(dataset: Dataset) -> None:
    """Refuse groups whose names cannot be part of a file's."""
    for name in dataset.groups:
        long = len(os.fsencode(_group_file(name))) > _LONGEST_NAME
        if Path(name).name != name or "\0" in name or long:
            raise DataError(
                dataset.name,
                "groups whose names can be files'",
                repr(name[:80]),
                "Rename the group.",
            )


def matrix_schema(dataset: Dataset, bounds: tuple[float, float]) -> Schema:
    """Schema of a saved matrix: what was declared of the data set, and no more."""
    columns: dict[str, Column] = {
        "X": Vector(dataset.X.shape[1], *bounds, center=0, spread=1),
        "y": Target(dataset.classes),
    }
    if dataset.units is not None:
        columns["units"] = Unit(dataset.at_most)
    if dataset.slots is not None:
        columns["slots"] = Slot()
    for name, group in dataset.groups.items():
        columns[f"group_{name}"] = Category(group.names, feature=False)
    return Schema(
        columns,
        groups={name: Grouping(f"group_{name}") for name in dataset.groups},
        norm=dataset.norm,
        size=dataset.size,
        name=dataset.name,
    )


def _write(dataset: Dataset, folder: Path, bounds: tuple[float, float]) -> None:
    """Write the files of a data set, its rows a block at a time."""
    X = np.lib.format.open_memmap(
        folder / "X.npy", "w+", dtype=dataset.X.dtype, shape=dataset.X.shape
    )
    done = 0
    for batch in dataset.batches():
        X[done : done + len(batch)] = batch.X[:]
        done += len(batch)
    X.flush()
    np.save(folder / "y.npy", dataset.labels)
    if dataset.units is not None:
        np.save(folder / "units.npy", plain_ids(dataset.units))
    if dataset.slots is not None:
        np.save(folder / "slots.npy", plain_ids(dataset.slots))
    for name, group in dataset.groups.items():
        np.save(folder / _group_file(name), np.asarray(group.names)[group.codes])
    (folder / SCHEMA_FILE).write_text(
        matrix_schema(dataset, bounds).to_toml(), encoding="utf-8"
    )
    for file in folder.iterdir():
        file.chmod(0o600)


def _group_file(name: str) -> str:
    """File with the groups of each row."""
    return f"group_{name}.npy"


def plain_ids(ids: Array) -> Array:
    """Ids in a type that npy files hold without pickling."""
    return np.array(ids.tolist(), dtype=np.str_) if ids.dtype.kind == "T" else ids
