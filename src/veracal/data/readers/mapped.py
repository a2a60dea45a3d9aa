"""Matrices that stay on disk."""

from pathlib import Path

import numpy as np

from veracal.data.columns import Ignore, Vector
from veracal.data.dataset import Dataset
from veracal.data.limits import Limits, no_surprises
from veracal.data.readers.arrays import load_array_folder
from veracal.data.rows import MappedRows
from veracal.data.schema import Schema
from veracal.errors import DataError


def array_folder(path: Path) -> Path | None:
    """Folder with ``X.npy`` that a path means, if it means one."""
    if path.name == "X.npy":
        return path.parent
    with no_surprises(path):
        if not path.is_dir():
            return None
        if not (path / "X.npy").exists():
            raise DataError(
                str(path),
                "a folder with X.npy and y.npy",
                "one without X.npy",
                "Name a file inside it, or pass a form for images.",
            )
    return path


def load_mapped(
    folder: Path, schema: Schema, limits: Limits, *, row_digests: bool = False
) -> Dataset:
    """Open a matrix on disk whose rows are used as they are, once they are checked."""
    column = schema.columns.get("X")
    if not isinstance(column, Vector) or (column.shift, column.scale) != (0, 1):
        raise DataError(
            str(folder),
            "the schema to declare X as a vector with center = 0 and spread = 1",
            repr(column)[:80],
            "Rows of a matrix on disk are not rescaled: say so, or load an npz file.",
        )
    _check_columns(schema, folder)
    dataset = load_array_folder(
        folder,
        classes=schema.classes,
        groups={
            name: schema.groups[name].names(schema.columns[g.column])
            for name, g in schema.groups.items()
        },
        limits=limits,
        size=schema.size,
        name=schema.name,
        row_digests=row_digests,
    )
    declared = {"unit": (dataset.units, schema.unit), "slot": (dataset.slots, schema.slot)}
    for kind, (ids, column_name) in declared.items():
        if (ids is None) != (column_name is None):
            raise DataError(
                str(folder),
                f"{kind}s.npy exactly when the schema declares a {kind}",
                "only one of the two",
                f"Add the file, or declare its column as kind = '{kind}'.",
            )
    _check_mapped(dataset.X, column, schema.norm, folder)
    return dataset._changed(norm=schema.norm, feature_names=column.feature_names("X"))


def _check_columns(schema: Schema, folder: Path) -> None:
    """Refuse a schema with columns that such a folder cannot hold."""
    grouping = {grouping.column for grouping in schema.groups.values()}
    known = {"X", schema.target, schema.unit, schema.slot, *grouping}
    for name, column in schema.columns.items():
        is_feature = name != "X" and getattr(column, "feature", False)
        if is_feature or (name not in known and not isinstance(column, Ignore)):
            raise DataError(
                f"{folder}: column {name!r}",
                "X as the only feature, and columns with feature = false that form groups",
                "another column",
                "Put the numbers into X, or take the column out of the schema.",
            )


def _check_mapped(rows: object, column: Vector, norm: float | None, folder: Path) -> None:
    """Check rows on disk against their declared bounds, a window at a time."""
    assert isinstance(rows, MappedRows)
    if rows.shape[1:] != (column.size,):
        raise DataError(
            str(folder / "X.npy"),
            f"rows of {column.size} numbers",
            f"{rows.shape[1:]}",
            "Correct size.",
        )
    start = 0
    for window in rows.windows(65_536):
        wrong = (window < column.lower).any(axis=1) | (window > column.upper).any(axis=1)
        expected = f"numbers in [{column.lower:g}, {column.upper:g}]"
        if norm is not None and not wrong.any():
            wrong = np.linalg.norm(window.astype(np.float64), axis=1) > norm
            expected = f"rows of norm at most {norm:g}"
        if wrong.any():
            raise DataError(
                str(folder / "X.npy"),
                expected,
                f"another in record {start + int(np.argmax(wrong)) + 1}",
                "Correct the file or the schema.",
            )
        start += len(window)
