"""Arrays in npz and npy files, in memory or on disk."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from veracal._types import Array
from veracal.data.checked import check_ids
from veracal.data.dataset import Dataset, Group
from veracal.data.labels import Label, encode_labels
from veracal.data.limits import DEFAULT_LIMITS, Limits, inside, no_surprises, opened
from veracal.data.readers.archives import open_archive
from veracal.data.readers.npy import NpyHeader, read_header
from veracal.data.row_digests import digests_of_arrays
from veracal.data.rows import MappedRows
from veracal.errors import DataError


def read_npz(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> dict[str, Array]:
    """Read every array of an npz file.

    Parameters
    ----------
    path : path
        A file made by ``numpy.savez`` or ``numpy.savez_compressed``.
    limits : Limits
        What is refused as too large before it is unpacked.

    Returns
    -------
    dict of str to array
        By name, in the order of the names.

    Raises
    ------
    DataError
        If the archive is damaged, strange, or holds Python objects.
    """
    path = Path(path)
    with open_archive(path, limits) as archive:
        limits.check("memory_bytes", sum(map(archive.size, archive.names)), path)
        for name in archive.names:
            if not name.endswith(".npy"):
                raise _foreign(path, repr(name))
        if not archive.names:
            raise _foreign(path, "an empty archive")
        return {
            name.removesuffix(".npy"): _unpacked(archive.read(name), f"{path}: {name}", limits)
            for name in archive.names
        }


def read_npy(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Array:
    """Read a small npy file, such as labels, into memory."""
    path = Path(path)
    with opened(path, limits) as file:
        length = path.stat().st_size
        limits.check("memory_bytes", length, path)
        header = read_header(file, length, str(path), limits)
        return _array(file.read(header.nbytes), header)


def map_npy(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> MappedRows:
    """Open the rows of an npy file, of any size, without reading them.

    Parameters
    ----------
    path : path
        A C-ordered array of numbers in this machine's byte order; rows are its first axis.
    limits : Limits
        Memory is not among them here: rows stay on disk.
    """
    path = Path(path)
    with opened(path, limits) as file:
        header = read_header(file, path.stat().st_size, str(path), limits)
    problem = _unmappable(header)
    if problem:
        raise DataError(
            str(path),
            "rows of numbers, one after the other",
            problem,
            "Save it again with numpy.save(path, numpy.ascontiguousarray(X, dtype='float32')).",
        )
    return MappedRows(path, header.dtype, header.shape, offset=header.offset)


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
        Holds ``X.npy`` (rows of floats or bytes) and ``y.npy`` (labels as they are
        written); if rows belong to people, ``units.npy`` (ids, whole numbers or text); for
        replace-one, ``slots.npy`` (likewise); for each declared group,
        ``group_<name>.npy``. Other files are left alone.
    classes : sequence of str or int
        Declared labels.
    groups : mapping of str to sequence of str or int, optional
        Declared groups, and the values each may have. A group's file holds these values. By
        a schema that cuts a number into bands, they are the names of the bands, such as
        ``[0, 18]`` and ``(18, 100]``, and not the numbers: nothing is cut here.
    limits : Limits
    size : int, optional
        Declared number of rows.
    name : str, optional
        What to call the data set; by default as the folder.
    row_digests : bool
        Whether to identify each record, by its numbers and words as the files hold them.
    """
    folder = Path(folder)
    declared = dict(groups or {})
    found = _file_names(folder)
    _check_group_files(folder, found, declared)
    rows = map_npy(inside(folder, Path("X.npy")), limits)

    def column(stem: str) -> tuple[Array, str]:
        where = str(folder / f"{stem}.npy")
        array = read_npy(inside(folder, Path(f"{stem}.npy")), limits)
        return _as_long(array, len(rows), where), where

    labels, where = column("y")
    more = [column(f"group_{g}") for g in declared]
    ids = {stem: column(stem) for stem in ("units", "slots") if f"{stem}.npy" in found}
    columns = [labels, *(array for array, _ in (*more, *ids.values()))]
    return Dataset(
        rows,
        encode_labels(labels, classes, where),
        tuple(classes),
        groups={g: _group(v, *one) for (g, v), one in zip(declared.items(), more, strict=True)},
        units=_ids(*ids["units"]) if "units" in ids else None,
        slots=_ids(*ids["slots"]) if "slots" in ids else None,
        row_digests=digests_of_arrays(rows, *columns) if row_digests else None,
        size=size,
        name=folder.name if name is None else name,
    )


def _as_long(array: Array, n: int, where: str) -> Array:
    """Refuse an array of another length than X, or of another shape than a column."""
    if array.shape != (n,):
        raise DataError(
            where,
            f"shape ({n},): {n} rows, as X has",
            f"shape {array.shape}",
            "Save one value for each row of X.npy.",
        )
    return array


def _group(names: Sequence[Label], values: Array, where: str) -> Group:
    """Return an attribute that divides the rows."""
    return Group.from_values(values, names, where=where)


def _ids(ids: Array, where: str) -> Array:
    """Return whom each row belongs to."""
    return check_ids(ids, len(ids), where)


def _unpacked(data: bytes, where: str, limits: Limits) -> Array:
    """Turn a member of an npz file into an array."""
    header = read_header(io.BytesIO(data), len(data), where, limits)
    return _array(memoryview(data)[header.offset :], header)


def _array(data: bytes | memoryview, header: NpyHeader) -> Array:
    """Give bytes the shape their header states."""
    flat = np.frombuffer(data, header.dtype, count=math.prod(header.shape))
    return flat.reshape(header.shape, order="F" if header.fortran else "C").copy()


def _unmappable(header: NpyHeader) -> str | None:
    """Say why rows of an array cannot be mapped, if they cannot."""
    if not header.shape:
        return "a single number"
    if header.fortran and len(header.shape) > 1:
        return "columns one after the other (Fortran order)"
    if header.dtype.kind not in "biuf":
        return f"type {header.dtype}"
    if not header.dtype.isnative:
        return "another machine's byte order"
    return "no rows" if math.prod(header.shape) == 0 else None


def _file_names(folder: Path) -> set[str]:
    """Names in a folder, broken links among them: a lost units.npy must be missed."""
    with no_surprises(folder):
        if folder.is_dir():
            return {path.name for path in folder.iterdir()}
    raise DataError(
        str(folder), "a folder with X.npy and y.npy", "no folder", "Check the path."
    )


def _check_group_files(
    folder: Path, found: set[str], declared: Mapping[str, Sequence[Label]]
) -> None:
    """Refuse a folder with a group that nobody declared."""
    for file in sorted(found):
        group = file.removeprefix("group_").removesuffix(".npy")
        if file == f"group_{group}.npy" and group not in declared:
            raise DataError(
                str(folder / file),
                "a declared group",
                "one without a declaration",
                f"Pass groups={{{group!r}: [its possible values]}}, or remove the file.",
            )


def _foreign(path: Path, found: str) -> DataError:
    """Error for a zip archive that is not an npz file."""
    return DataError(
        str(path), "an npz file: a zip of npy arrays", found, "Save it with numpy.savez."
    )
