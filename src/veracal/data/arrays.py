"""Arrays in npz and npy files, in memory or mapped from disk, and folders of such files."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from veracal._types import Array
from veracal.data.columns import Ignore, Vector
from veracal.data.dataset import Dataset, Group
from veracal.data.files import (
    DEFAULT_LIMITS,
    Limits,
    inside,
    open_file,
    open_zip,
    translate_os_errors,
)
from veracal.data.labels import Label, check_ids, encode_labels
from veracal.data.row_digests import digests_of_arrays
from veracal.data.rows import MappedRows
from veracal.data.schema import Schema
from veracal.errors import DataError

_KINDS = "biufU"  # truth values, integers, floats and text


def read_npz(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> dict[str, Array]:
    """Read every array of an npz file.

    Parameters
    ----------
    path : path
        A file written by ``numpy.savez`` or ``numpy.savez_compressed``.
    limits : Limits
        Bounds on the stated size of all arrays, checked before any is unpacked.

    Returns
    -------
    dict of str to array
        By name, in alphabetical order.

    Raises
    ------
    DataError
        If the archive is damaged or holds anything but arrays of numbers and text.
    """
    path = Path(path)
    with open_zip(path, limits) as archive:
        foreign = [repr(name) for name in archive.names if not name.endswith(".npy")]
        if foreign or not archive.names:
            raise DataError(
                str(path),
                "an npz file: a zip of npy arrays",
                foreign[0] if foreign else "an empty archive",
                "Save it with numpy.savez.",
            )
        limits.check("memory_bytes", sum(map(archive.size, archive.names)), path)
        arrays = {}
        for name in archive.names:
            with archive.open(name) as member:
                array = _read_array(member, f"{path}: {name}", limits)
            arrays[name.removesuffix(".npy")] = array
    return arrays


def read_npy(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Array:
    """Read a small npy file, such as labels, into memory."""
    path = Path(path)
    with open_file(path, limits) as file:
        limits.check("memory_bytes", path.stat().st_size, path)
        return _read_array(file, str(path), limits)


def map_npy(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> MappedRows:
    """Open the rows of an npy file of any size without reading them.

    Parameters
    ----------
    path : path
        A C-ordered array of numbers in this machine's byte order; rows are its first axis.
    limits : Limits
        The bound on memory does not apply, since rows stay on disk.
    """
    path = Path(path)
    formats = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with open_file(path, limits) as file:
        try:
            version = np.lib.format.read_magic(file)
            shape, is_fortran, dtype = formats[version](file)
        except KeyError as cause:
            raise _not_npy(str(path), f"npy version {version}") from cause
        except Exception as cause:  # a header is a Python literal: many things can be wrong
            raise _not_npy(str(path), str(cause)) from cause
        offset, length = file.tell(), path.stat().st_size
    _check_array(dtype, shape, str(path), limits)
    problem = None
    if not shape:
        problem = "a single number"
    elif is_fortran and len(shape) > 1:
        problem = "columns one after the other (Fortran order)"
    elif dtype.kind not in "biuf":
        problem = f"type {dtype}"
    elif not dtype.isnative:
        problem = "another machine's byte order"
    elif math.prod(shape) == 0:
        problem = "no rows"
    if problem:
        raise DataError(
            str(path),
            "rows of numbers in C order",
            problem,
            "Save it again with numpy.save(path, numpy.ascontiguousarray(X, dtype='float32')).",
        )
    if offset + math.prod(shape) * dtype.itemsize != length:
        raise DataError(
            str(path),
            f"{math.prod(shape) * dtype.itemsize:,} bytes for {dtype} of shape {shape}",
            f"{length - offset:,}",
            "The file is truncated or was written to while it was saved: save it again.",
        )
    return MappedRows(path, dtype, shape, offset=offset)


def _read_array(stream: IO[bytes], where: str, limits: Limits) -> Array:
    """Read one array with numpy's reader, which then must have consumed the stream."""
    try:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
        has_more = bool(stream.read(1))
    except Exception as cause:  # of numpy, of zipfile, or of the header's Python literal
        raise _not_npy(where, str(cause).split("\n")[0][:160] or "damage") from cause
    if has_more:
        raise _not_npy(where, "more bytes than its header states")
    _check_array(array.dtype, array.shape, where, limits)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _check_array(
    dtype: np.dtype[Any], shape: tuple[int, ...], where: str, limits: Limits
) -> None:
    """Reject types that no schema reads, and shapes beyond the limits."""
    if dtype.kind not in _KINDS or dtype.itemsize == 0:
        raise DataError(
            where,
            "numbers or text",
            f"type {str(dtype)[:60]}",
            "Save numbers, or text with astype(str), one array for each column.",
        )
    if dtype.kind == "f" and dtype.itemsize > 8:
        raise DataError(
            where,
            "numbers of at most 64 bits",
            f"type {dtype}, which differs from machine to machine",
            "Save the array with astype('float64').",
        )
    if shape:
        limits.check("rows", shape[0], where)
        limits.check("columns", math.prod(shape[1:]), where)


def _not_npy(where: str, found: str) -> DataError:
    """Error for a file that numpy cannot read safely."""
    return DataError(
        where,
        "an array of numbers or text in npy format 1.0 or 2.0",
        found,
        "Save it with numpy.save. Python objects are never read, because unpickling runs code: "
        "save numbers, or text with astype(str).",
    )


def load_array_folder(
    folder: str | Path,
    *,
    classes: Sequence[Label],
    groups: Mapping[str, Sequence[Label]] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    size: int | None = None,
    name: str | None = None,
    row_digests: bool = False,
) -> Dataset:
    """Load a folder of npy files, leaving the features on disk.

    Parameters
    ----------
    folder : path
        Holds ``X.npy`` (rows of floats or bytes) and ``y.npy`` (labels as they are written).
        Optional are ``units.npy`` (unit ids, integers or text), ``slots.npy`` (slot ids for
        replace-one, likewise) and, for each declared group, ``group_<name>.npy``. Other files
        are ignored.
    classes : sequence of str or int
        Declared labels.
    groups : mapping of str to sequence of str or int, optional
        Declared groups and the values of each. A group's file holds these values. If the
        schema cuts a number into bands, they are the names of the bands, such as ``[0, 18]``
        and ``(18, 100]``; nothing is cut here.
    limits : Limits
    size : int, optional
        Declared number of rows.
    name : str, optional
        Name of the data set; by default that of the folder.
    row_digests : bool
        Whether to compute a digest of each record from its numbers and texts in the files.
    """
    folder = Path(folder)
    declared = dict(groups or {})
    files = _file_names(folder)
    _check_group_files(folder, files, declared)
    rows = map_npy(inside(folder, Path("X.npy")), limits)

    def column(stem: str) -> tuple[Array, str]:
        where = str(folder / f"{stem}.npy")
        array = read_npy(inside(folder, Path(f"{stem}.npy")), limits)
        if array.shape != (len(rows),):
            raise DataError(
                where,
                f"shape ({len(rows)},): {len(rows)} rows, as X has",
                f"shape {array.shape}",
                "Save one value for each row of X.npy.",
            )
        return array, where

    labels, where = column("y")
    group_columns = {group: column(f"group_{group}") for group in declared}
    ids = {stem: column(stem) for stem in ("units", "slots") if f"{stem}.npy" in files}
    columns = [labels, *(array for array, _ in (*group_columns.values(), *ids.values()))]
    checked = {
        stem: check_ids(array, len(array), where) for stem, (array, where) in ids.items()
    }
    return Dataset(
        rows,
        encode_labels(labels, classes, where),
        tuple(classes),
        groups={
            group: Group.from_values(values, declared[group], where=place)
            for group, (values, place) in group_columns.items()
        },
        units=checked.get("units"),
        slots=checked.get("slots"),
        row_digests=digests_of_arrays(rows, *columns) if row_digests else None,
        size=size,
        name=folder.name if name is None else name,
    )


def _file_names(folder: Path) -> set[str]:
    """Names in a folder, broken links included: a lost units.npy must be noticed."""
    with translate_os_errors(folder):
        if folder.is_dir():
            return {path.name for path in folder.iterdir()}
    raise DataError(
        str(folder), "a folder with X.npy and y.npy", "no folder", "Check the path."
    )


def _check_group_files(
    folder: Path, files: set[str], declared: Mapping[str, Sequence[Label]]
) -> None:
    """Reject a folder with a file of a group that was not declared."""
    for file in sorted(files):
        group = file.removeprefix("group_").removesuffix(".npy")
        if file == f"group_{group}.npy" and group not in declared:
            raise DataError(
                str(folder / file),
                "a declared group",
                "one without a declaration",
                f"Pass groups={{{group!r}: [its possible values]}}, or remove the file.",
            )


def find_array_folder(path: Path) -> Path | None:
    """Return the folder with ``X.npy`` that a path denotes; None for a path of a file."""
    if path.name == "X.npy":
        return path.parent
    with translate_os_errors(path):
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


def load_matrix(
    folder: Path, schema: Schema, limits: Limits, *, row_digests: bool = False
) -> Dataset:
    """Load a folder of arrays through its schema; rows of X are checked, not transformed."""
    column = schema.columns.get("X")
    if not isinstance(column, Vector) or (column.shift, column.scale) != (0, 1):
        raise DataError(
            str(folder),
            "the schema to declare X as a vector with center = 0 and spread = 1",
            repr(column)[:80],
            "Rows of a matrix on disk are not rescaled: declare so, or load an npz file.",
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
    _check_rows(dataset.X, column, schema.norm, folder)
    return dataset._changed(norm=schema.norm, feature_names=column.feature_names("X"))


def _check_columns(schema: Schema, folder: Path) -> None:
    """Reject a schema with columns that such a folder cannot hold."""
    grouping = {grouping.column for grouping in schema.groups.values()}
    known = {"X", schema.target, schema.unit, schema.slot, *grouping}
    for name, column in schema.columns.items():
        is_feature = name != "X" and getattr(column, "feature", False)
        if is_feature or (name not in known and not isinstance(column, Ignore)):
            raise DataError(
                f"{folder}: column {name!r}",
                "X as the only feature, and columns with feature = false that form groups",
                "another column",
                "Put the numbers into X, or remove the column from the schema.",
            )


def _check_rows(rows: object, column: Vector, norm: float | None, folder: Path) -> None:
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
