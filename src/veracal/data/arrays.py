"""Arrays in npz and npy files, in memory or mapped from disk, and folders of such files."""

import math
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from veracal._types import Array
from veracal.data.dataset import Dataset, Group
from veracal.data.files import (
    DEFAULT_LIMITS,
    Limits,
    check_readable,
    inside,
    new_file,
    open_file,
    translate_os_errors,
)
from veracal.data.row_digests import digests_of_arrays
from veracal.data.rows import MappedRows, check_ids, encode_labels
from veracal.data.schema import (
    Category,
    Column,
    Grouping,
    Ignore,
    Schema,
    Slot,
    Target,
    UnitColumn,
    Vector,
)
from veracal.errors import DataError

_KINDS = "biufU"  # truth values, integers, floats and text


def read_npz(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> dict[str, Array]:
    """Read every array of an npz file, by name in alphabetical order.

    The stated size of all arrays is checked before any is unpacked. A ``DataError`` is raised
    if the archive is damaged or holds anything but arrays of numbers and text.
    """
    path = Path(path)
    npz = np.lib.npyio.NpzFile
    with (
        open_file(path, limits) as file,
        _numpy_errors(path),
        npz(file, allow_pickle=False) as archive,
    ):
        assert archive.zip is not None
        members = archive.zip.infolist()
        limits.check("members", len(members), path)
        limits.check("memory_bytes", sum(member.file_size for member in members), path)
        if len(set(archive.files)) < len(archive.files):
            raise ValueError("a name that occurs twice")
        arrays = {name: archive[name] for name in sorted(archive.files)}
    foreign = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if foreign or not arrays:
        raise DataError(
            path,
            "an npz file: a zip of npy arrays",
            repr(foreign[0]) if foreign else "an empty archive",
            "Save it with numpy.savez.",
        )
    for name, array in arrays.items():
        _check_array(array.dtype, array.shape, f"{path}: {name}", limits)
    return {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}


def read_npy(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Array:
    """Read a small npy file, such as labels, into memory."""
    path = Path(path)
    with open_file(path, limits) as file:
        limits.check("memory_bytes", path.stat().st_size, path)
        with _numpy_errors(path):
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise ValueError("more bytes than its header states")
    _check_array(array.dtype, array.shape, path, limits)
    return np.ascontiguousarray(array).reshape(array.shape)


def map_npy(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> MappedRows:
    """Open the rows of an npy file of any size without reading them.

    It holds a C-ordered array of numbers in this machine's byte order. The bound on memory does
    not apply, since rows stay on disk.
    """
    path = check_readable(Path(path), limits)
    with _numpy_errors(path):
        array = np.lib.format.open_memmap(path, mode="r")
        if array.offset + array.nbytes < path.stat().st_size:
            raise ValueError("more bytes than its header states")
    dtype, shape = array.dtype, array.shape
    _check_array(dtype, shape, path, limits)
    problems = {
        "a single number": not shape,
        "columns one after the other (Fortran order)": not array.flags.c_contiguous,
        f"type {dtype}": dtype.kind not in "biuf",
        "another machine's byte order": not dtype.isnative,
        "no rows": array.size == 0,
    }
    for problem, occurs in problems.items():
        if occurs:
            remedy = (
                "Save it again with numpy.save(path, numpy.ascontiguousarray(X, "
                "dtype='float32'))."
            )
            raise DataError(path, "rows of numbers in C order", problem, remedy)
    return MappedRows(path, dtype, shape, offset=array.offset)


@contextmanager
def _numpy_errors(path: Path) -> Iterator[None]:
    """Translate errors of numpy, of zipfile, and of the header, which is a Python literal."""
    try:
        yield
    except DataError:
        raise
    except Exception as cause:
        raise DataError(
            path,
            "undamaged arrays of numbers or text in npy or npz format",
            str(cause).split("\n")[0][:160] or "damage",
            "Save them with numpy.save or numpy.savez. Python objects are never read, because "
            "unpickling runs code: save numbers, or text with astype(str).",
        ) from cause


def _check_array(
    dtype: np.dtype[Any], shape: tuple[int, ...], where: object, limits: Limits
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


def find_array_folder(path: Path) -> Path | None:
    """Return the folder with ``X.npy`` that a path denotes; None for a path of a file."""
    if path.name == "X.npy":
        return path.parent
    with translate_os_errors(path):
        if not path.is_dir():
            return None
        if not (path / "X.npy").exists():
            raise DataError(
                path,
                "a folder with X.npy and y.npy",
                "one without X.npy",
                "Name a file inside it, or pass a form for images.",
            )
    return path


def load_matrix(
    folder: Path, schema: Schema, limits: Limits = DEFAULT_LIMITS, *, row_digests: bool = False
) -> Dataset:
    """Load a folder of npy files through its schema, leaving the features on disk.

    Parameters
    ----------
    folder : path
        Holds ``X.npy`` (rows of floats or bytes) and ``y.npy`` (labels as they are written).
        Optional are ``units.npy`` (unit ids, integers or text), ``slots.npy`` (slot ids for
        replace-one, likewise) and, for each declared group, ``group_<name>.npy`` with the
        names of its values or bands, such as ``[0, 18]``; nothing is cut here. Other files are
        ignored.
    schema : Schema
        Declares X as a vector that is not rescaled: rows are checked, not transformed.
    row_digests : bool
        Whether to compute a digest of each record from its numbers and texts in the files.
    """
    vector = _check_schema(schema, folder)
    declared = {name: g.names(schema.columns[g.column]) for name, g in schema.groups.items()}
    ids = _id_files(folder, schema, declared)
    rows = map_npy(inside(folder, Path("X.npy")), limits)
    if rows.shape[1:] != (vector.size,):
        raise DataError(
            folder / "X.npy",
            f"rows of {vector.size} numbers",
            f"{rows.shape[1:]}",
            "Correct size.",
        )
    columns: dict[str, Array] = {}
    for stem in ("y", *(f"group_{name}" for name in declared), *ids):
        columns[stem] = read_npy(inside(folder, Path(f"{stem}.npy")), limits)
        if columns[stem].shape != (len(rows),):
            raise DataError(
                folder / f"{stem}.npy",
                f"shape ({len(rows)},): {len(rows)} rows, as X has",
                f"shape {columns[stem].shape}",
                "Save one value for each row of X.npy.",
            )
    checked = {s: check_ids(columns[s], len(rows), str(folder / f"{s}.npy"), s) for s in ids}
    dataset = Dataset(
        rows,
        encode_labels(columns["y"], schema.classes, str(folder / "y.npy")),
        schema.classes,
        groups={
            name: Group.from_values(
                columns[f"group_{name}"], names, where=str(folder / f"group_{name}.npy")
            )
            for name, names in declared.items()
        },
        row_digests=digests_of_arrays(rows, *columns.values()) if row_digests else None,
        feature_names=vector.feature_names("X"),
        size=schema.size,
        name=schema.name,
        units=checked.get("units"),
        slots=checked.get("slots"),
    )
    _check_rows(rows, vector, schema.norm, folder)
    return dataset._changed(norm=schema.norm)


def _check_schema(schema: Schema, folder: Path) -> Vector:
    """Return the declaration of X, rejecting columns that such a folder cannot hold."""
    vector = schema.columns.get("X")
    if not isinstance(vector, Vector) or (vector.shift, vector.scale) != (0, 1):
        raise DataError(
            folder,
            "the schema to declare X as a vector with center = 0 and spread = 1",
            repr(vector)[:80],
            "Rows of a matrix on disk are not rescaled: declare so, or load an npz file.",
        )
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
    return vector


def _id_files(folder: Path, schema: Schema, groups: Collection[str]) -> list[str]:
    """Names of the files of ids, which must be declared, as groups must be."""
    with translate_os_errors(folder):
        if not folder.is_dir():
            raise DataError(
                folder, "a folder with X.npy and y.npy", "no folder", "Check the path."
            )
        # Broken links included: a lost units.npy must be noticed.
        stems = {path.stem for path in folder.iterdir() if path.suffix == ".npy"}
    for stem in sorted(stems):
        name = stem.removeprefix("group_")
        if name != stem and name not in groups:
            raise DataError(
                folder / f"{stem}.npy",
                "a declared group",
                "one without a declaration",
                f"Declare the group {name!r} in the schema, or remove the file.",
            )
    for kind, column in (("unit", schema.unit), ("slot", schema.slot)):
        if (f"{kind}s" in stems) != (column is not None):
            raise DataError(
                folder,
                f"{kind}s.npy exactly when the schema declares a {kind}",
                "only one of the two",
                f"Add the file, or declare its column as kind = '{kind}'.",
            )
    return [stem for stem in ("units", "slots") if stem in stems]


def _check_rows(rows: MappedRows, column: Vector, norm: float | None, folder: Path) -> None:
    """Check rows on disk against their declared bounds, a window at a time."""
    start = 0
    for window in rows.windows(65_536):
        wrong = (window < column.lower).any(axis=1) | (window > column.upper).any(axis=1)
        expected = f"numbers in [{column.lower:g}, {column.upper:g}]"
        if norm is not None and not wrong.any():
            wrong = np.linalg.norm(window.astype(np.float64), axis=1) > norm
            expected = f"rows of norm at most {norm:g}"
        if wrong.any():
            raise DataError(
                folder / "X.npy",
                expected,
                f"another in record {start + int(np.argmax(wrong)) + 1}",
                "Correct the file or the schema.",
            )
        start += len(window)


SCHEMA_FILE = "schema.toml"
_LONGEST_NAME = 255  # bytes, on the file systems in use


def save_matrix(dataset: Dataset, folder: str | Path, *, bounds: tuple[float, float]) -> Path:
    """Save a data set as ``X.npy``, ``y.npy``, its ids and groups, and its schema.

    ``load(folder, schema=folder / "schema.toml")`` maps it from disk.

    Parameters
    ----------
    dataset : Dataset
        With features of shape (n, d).
    folder : path
        A new folder. It is created atomically, and only its owner can enter it: features
        reveal almost as much about individuals as the records.
    bounds : two floats
        Public bounds on every number of X.
    """
    folder = new_file(Path(folder), "folder")
    if dataset.X.ndim != 2 or dataset.X.dtype.kind != "f":
        raise DataError(
            dataset.name,
            "features of shape (n, d)",
            f"{dataset.X.dtype} of shape {dataset.X.shape}",
            "Extract features first.",
        )
    check_group_names(dataset)
    columns: dict[str, Column] = {
        "X": Vector(dataset.X.shape[1], *bounds, center=0, spread=1),
        "y": Target(dataset.classes),
    }
    arrays = {"y": dataset.labels}
    if dataset.units is not None:
        columns["units"], arrays["units"] = (
            UnitColumn(dataset.max_contributions),
            plain_ids(dataset.units),
        )
    if dataset.slots is not None:
        columns["slots"], arrays["slots"] = Slot(), plain_ids(dataset.slots)
    for name, group in dataset.groups.items():
        columns[f"group_{name}"] = Category(group.names, feature=False)
        arrays[f"group_{name}"] = np.asarray(group.names)[group.codes]
    schema = Schema(
        columns,
        groups={name: Grouping(f"group_{name}") for name in dataset.groups},
        norm=dataset.norm,
        size=dataset.size,
        name=dataset.name,
    )
    with translate_os_errors(folder.parent):
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            X = np.lib.format.open_memmap(
                work / "X.npy", "w+", dtype=dataset.X.dtype, shape=dataset.X.shape
            )
            done = 0
            for batch in dataset.batches():
                X[done : done + len(batch)] = batch.X[:]
                done += len(batch)
            X.flush()
            for stem, array in arrays.items():
                np.save(work / f"{stem}.npy", array)
            (work / SCHEMA_FILE).write_text(schema.to_toml(), encoding="utf-8")
            for file in work.iterdir():
                file.chmod(0o600)
            work.rename(folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return folder


def check_group_names(dataset: Dataset) -> None:
    """Reject groups whose names cannot be part of a file name."""
    for name in dataset.groups:
        long = len(os.fsencode(f"group_{name}.npy")) > _LONGEST_NAME
        if Path(name).name != name or "\0" in name or long:
            raise DataError(
                dataset.name,
                "groups whose names can be file names",
                repr(name[:80]),
                "Rename the group.",
            )


def plain_ids(ids: Array) -> Array:
    """Convert ids to a type that npy files hold without pickling."""
    return np.array(ids.tolist(), dtype=np.str_) if ids.dtype.kind == "T" else ids
