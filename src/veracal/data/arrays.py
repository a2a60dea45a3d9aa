"""Headers of npy files, read before anything is allocated.

Members of a zip archive, none of which is read before all of them are checked.

Arrays in npz and npy files, in memory or on disk.

Matrices that stay on disk.
"""

import io
import math
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from veracal._types import Array
from veracal.data.columns import Ignore, Vector
from veracal.data.dataset import Dataset, Group
from veracal.data.files import DEFAULT_LIMITS, Limits, inside, no_surprises, opened
from veracal.data.labels import Label, check_ids, encode_labels
from veracal.data.row_digests import digests_of_arrays
from veracal.data.rows import MappedRows
from veracal.data.schema import Schema
from veracal.errors import DataError, LimitError

_MAGIC = b"\x93NUMPY"
_LARGEST_HEADER = 10_000  # numpy's own bound; a plain array's header takes about 100 bytes
_KINDS = "biufU"


@dataclass(frozen=True)
class NpyHeader:
    """What an npy file says about its array.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        Truth values, real numbers or text; never Python objects.
    fortran : bool
        Whether the first axis is the one that runs fastest.
    offset : int
        Bytes before the numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO, length: int, where: str, limits: Limits) -> NpyHeader:
    """Read a header and check it against the limits and the real length of the file.

    Parameters
    ----------
    file : binary file
        At its start; left where the numbers begin.
    length : int
        Bytes of the file, header included.
    where : str
        What to call it in an error.
    limits : Limits
    """
    raw = _raw_header(file, where)
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    parse = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    try:
        shape, fortran, dtype = parse(stream)
    except Exception as cause:  # a header is a Python literal: many things can be wrong
        raise _not_npy(where, f"a header that cannot be read ({cause})") from cause
    header = NpyHeader(shape, dtype, fortran, len(raw))
    _check_dtype(dtype, where)
    _check_size(header, length, where, limits)
    return header


def _raw_header(file: BinaryIO, where: str) -> bytes:
    """Read the header's bytes once its stated length is known to be sane."""
    start = file.read(8)
    if start[:6] != _MAGIC or len(start) < 8:
        raise _not_npy(where, "another kind of file")
    if start[6:] not in (b"\1\0", b"\2\0"):
        raise _not_npy(where, f"npy version {start[6]}.{start[7]}")
    form = "<H" if start[6] == 1 else "<I"
    count = file.read(struct.calcsize(form))
    if len(count) < struct.calcsize(form):
        raise _not_npy(where, "a header that breaks off")
    size = struct.unpack(form, count)[0]
    if size > _LARGEST_HEADER:
        raise _not_npy(where, f"a header of {size:,} bytes")
    text = file.read(size)
    if len(text) < size:
        raise _not_npy(where, "a header that breaks off")
    return start + count + text


def _check_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Refuse types that need pickle, and those we have no use for."""
    if dtype.hasobject:
        raise DataError(
            where,
            "numbers or text",
            "Python objects, which only pickle can read",
            "Pickle runs whatever code the file holds, so it is never used here. Save the "
            "array as numbers, or as text with astype(str).",
        )
    if dtype.kind not in _KINDS or dtype.itemsize == 0 or dtype.names or dtype.subdtype:
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


def _check_size(header: NpyHeader, length: int, where: str, limits: Limits) -> None:
    """Check the stated shape against the limits, then against the bytes that are there."""
    if any(side < 0 for side in header.shape):
        raise _not_npy(where, f"shape {header.shape}")
    if header.shape:
        limits.check("rows", header.shape[0], where)
        limits.check("columns", math.prod(header.shape[1:]), where)
    if header.offset + header.nbytes != length:
        raise DataError(
            where,
            f"{header.nbytes:,} bytes for {header.dtype} of shape {header.shape}",
            f"{length - header.offset:,}",
            "The file is cut short or was written to while it was saved: save it again.",
        )


def _not_npy(where: str, found: str) -> DataError:
    """Error for what is not an npy file of the usual kind."""
    return DataError(
        where, "an array in npy format 1.0 or 2.0", found, "Save it with numpy.save."
    )


NO_BOMB = 2**20  # bytes; what is smaller is no bomb, however well it packs
_END, _END64, _LOCATOR64, _ENTRY = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2"
_DAMAGED = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
)


class Archive:
    """Checked members of an open zip archive.

    Guarantees
    ----------
    Every name is a relative path that stays below its root, no two are equal, none is a
    link, none is encrypted, and no member may grow beyond the limits when it is unpacked.
    """

    def __init__(
        self, path: Path, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]
    ) -> None:
        self._path, self._archive, self._members = path, archive, members

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files, sorted."""
        return tuple(sorted(self._members))

    def size(self, name: str) -> int:
        """Bytes of a member once unpacked."""
        return self._members[name].file_size

    def read(self, name: str) -> bytes:
        """Unpack one member."""
        where = f"{self._path}: {name}"
        try:
            with self._archive.open(self._members[name]) as member:
                data = member.read(self.size(name) + 1)
        except _DAMAGED as cause:
            raise _damaged(where, str(cause)) from cause
        if len(data) != self.size(name):
            raise _damaged(where, f"{len(data):,} bytes instead of {self.size(name):,}")
        return data


@contextmanager
def open_archive(path: Path, limits: Limits) -> Iterator[Archive]:
    """Open a zip file whose directory passes every check."""
    with opened(path, limits) as file:
        _count_entries(file, path, limits)
        try:
            archive = zipfile.ZipFile(file)
        except _DAMAGED as cause:
            raise _damaged(str(path), str(cause)) from cause
        with archive:
            yield Archive(path, archive, _checked(archive, path, limits))


def check_expansion(
    packed: int, unpacked: int, where: object, limits: Limits, *, harmless: int = NO_BOMB
) -> None:
    """Refuse what would grow more than ``limits.expansion`` times, to more than is harmless."""
    if unpacked <= max(harmless, limits.expansion * packed):
        return
    raise LimitError(
        str(where),
        f"data that unpacks to at most {limits.expansion} times its packed size",
        f"{packed:,} bytes that unpack to {unpacked:,}",
        "Nothing was unpacked. If the file can be trusted, pass "
        f"Limits(expansion={-(-unpacked // max(packed, 1))}).",
    )


def _checked(
    archive: zipfile.ZipFile, path: Path, limits: Limits
) -> Mapping[str, zipfile.ZipInfo]:
    """Check every entry of the directory, then their sum."""
    members: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        if entry.is_dir():
            continue
        _check_entry(entry, f"{path}: {entry.orig_filename!r}", limits)
        if entry.filename in members:
            raise DataError(
                str(path),
                "members of different names",
                f"{entry.filename!r} twice",
                "Nothing was unpacked. Make the archive again.",
            )
        members[entry.filename] = entry
    packed, unpacked = path.stat().st_size, sum(m.file_size for m in members.values())
    check_expansion(packed, unpacked, path, limits)
    return members


def _check_entry(entry: zipfile.ZipInfo, where: str, limits: Limits) -> None:
    """Refuse a member that is strange, or too large."""
    if strange := _strange(entry):
        raise DataError(
            where,
            "a plain file, stored or deflated, with a relative name",
            strange,
            "Nothing was unpacked. Make the archive again from the files themselves.",
        )
    limits.check("memory_bytes", entry.file_size, where)
    check_expansion(entry.compress_size, entry.file_size, where, limits)


def _strange(entry: zipfile.ZipInfo) -> str | None:
    """Say what is wrong with an entry, if anything is."""
    name = entry.orig_filename
    if "\0" in name or "\\" in name or name[1:2] == ":":
        return "a name with a forbidden character"
    if name.startswith("/") or not {"..", ".", ""}.isdisjoint(name.split("/")):
        return "a name that may lead out of the archive"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "a symbolic link"
    if entry.flag_bits & 0x1:
        return "an encrypted member"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"compression method {entry.compress_type}"
    return None


def _count_entries(file: BinaryIO, path: Path, limits: Limits) -> None:
    """Count the directory's entries without keeping them, and stop above the limit.

    The number an archive states about itself may be a lie, and ``zipfile`` would build an
    object for each entry before anybody could ask.
    """
    start, size = _directory(file, path)
    file.seek(start)
    count = taken = 0
    while taken < size:
        head = file.read(46)
        if len(head) < 46 or head[:4] != _ENTRY:
            raise _damaged(str(path), "a directory that breaks off")
        more = sum(struct.unpack("<3H", head[28:34]))  # name, extra field, comment
        file.seek(more, 1)
        taken += 46 + more
        count += 1
        limits.check("members", count, path)
    file.seek(0)


def _directory(file: BinaryIO, path: Path) -> tuple[int, int]:
    """Find where the central directory starts, and how many bytes it takes."""
    length = file.seek(0, 2)
    base = file.seek(max(0, length - 22 - 0xFFFF))
    tail = file.read()
    place = tail.rfind(_END)
    if place < 0 or len(tail) - place < 22:
        raise DataError(str(path), "a zip archive", "another kind of file", "Name a zip file.")
    size = struct.unpack("<L", tail[place + 12 : place + 16])[0]
    end = base + place
    if place >= 20 and tail[place - 20 : place - 16] == _LOCATOR64:
        end -= 20 + 56
        file.seek(max(end, 0))
        record = file.read(56)
        if record[:4] != _END64 or len(record) < 56:
            raise _damaged(str(path), "a directory that is not where it should be")
        size = struct.unpack("<Q", record[40:48])[0]
    if size > end:
        raise _damaged(str(path), "a directory larger than the file")
    return end - size, size


def _damaged(where: str, found: str) -> DataError:
    """Error for an archive that cannot be read to its end."""
    return DataError(
        where, "an undamaged zip archive", found or "damage", "Fetch or make the file again."
    )


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
