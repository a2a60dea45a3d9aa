"""Arrays with one row for each record: rows of a file on disk, and validation in memory.

Validated arrays have a supported type, hold finite values and are read-only. Labels become
indices of the declared classes.
"""

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Ints
from veracal.data.files import translate_os_errors
from veracal.errors import DataError

Label = str | int
TEXT = np.dtypes.StringDType()
_BLOCK = 65_536  # records checked at a time, since text takes much more memory
_WINDOW = 1 << 24  # bytes mapped at a time, since a system may keep a whole map resident


class MappedRows:
    """Rows of a C-ordered array in a file, all of them or a selection.

    A plain ``numpy.memmap`` keeps every page it has touched resident until the system
    reclaims them. Each access here maps one window, copies the requested rows and unmaps the
    window, so that a pass over a file of any size needs only the memory of a window.

    The array of that dtype and shape starts at the byte ``offset``; ``index`` selects rows.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        offset: int = 0,
        index: Ints | None = None,
    ) -> None:
        self.path, self.dtype, self._file_shape = Path(path), np.dtype(dtype), tuple(shape)
        self._offset, self._index = offset, index
        self._stat = _file_identity(self.path)

    @classmethod
    def of(cls, array: "np.memmap[Any, Any]") -> "MappedRows | None":
        """Wrap a ``numpy.memmap``, or consecutive rows of one; None for any other array.

        A slice of a map reports the offset of the whole map, so the offset is computed from
        the address of its first number.
        """
        whole = array
        while isinstance(whole.base, np.memmap):
            whole = whole.base
        shared = isinstance(whole.base, mmap.mmap) and whole.filename and whole.mode != "c"
        if not shared or not array.flags.c_contiguous:
            return None
        start = whole.offset + array.ctypes.data - whole.ctypes.data
        return cls(Path(str(whole.filename)), array.dtype, array.shape, offset=start)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selected rows."""
        n = self._file_shape[0] if self._index is None else len(self._index)
        return (n, *self._file_shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._file_shape)

    @property
    def nbytes(self) -> int:
        """Memory of the selected rows in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"MappedRows({self.path.name!r}, shape={self.shape}, dtype={self.dtype})"

    def __getitem__(self, key: "slice | ArrayLike") -> Array:
        """Copy rows into memory: a slice, row numbers or a mask, or one row."""
        if isinstance(key, int | np.integer):
            row: Array = self[np.asarray([key])][0]
            return row
        rows = self._rows(key)
        selected = rows if self._index is None else self._index[rows]
        if _file_identity(self.path) != self._stat:
            raise DataError(
                self.path,
                "the file that was checked when it was loaded",
                "one that has changed since",
                "Load it again, and do not write to it meanwhile.",
            )
        result = np.empty((len(selected), *self._file_shape[1:]), self.dtype)
        order = np.argsort(selected, kind="stable")
        span = max(1, _WINDOW // max(1, self._row_bytes))
        edges = np.flatnonzero(np.diff(selected[order] // span)) + 1
        for part in np.split(order, edges) if len(order) else ():
            start, stop = int(selected[part[0]]), int(selected[part[-1]]) + 1
            result[part] = self._map(start, stop)[selected[part] - start]
        return result

    def _rows(self, key: "slice | ArrayLike") -> Ints:
        """Convert an index of the first axis, as numpy accepts it, into row numbers."""
        if isinstance(key, slice):
            return np.arange(*key.indices(len(self)))
        rows = np.asarray(key)
        if rows.dtype == bool and rows.shape == (len(self),):
            return np.flatnonzero(rows)
        rows = rows.astype(np.int64) if rows.size == 0 else rows
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise IndexError(
                f"Expected row numbers or a mask of {len(self)} rows, got {key!r}."
            )
        if len(rows) and not -len(self) <= int(rows.min()) <= int(rows.max()) < len(self):
            raise IndexError(f"Expected row numbers below {len(self)}, got {int(rows.max())}.")
        return np.where(rows < 0, rows + len(self), rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("Rows on disk cannot become an array without a copy.")
        return np.asarray(self[:], dtype=dtype)

    def take(self, index: "slice | ArrayLike") -> "MappedRows":
        """Select rows without reading them."""
        rows = self._rows(index)
        selected = rows if self._index is None else self._index[rows]
        return MappedRows(
            self.path, self.dtype, self._file_shape, offset=self._offset, index=selected
        )

    def windows(self, rows: int) -> Iterator[Array]:
        """Iterate over consecutive blocks of at most ``rows`` rows."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    @property
    def _row_bytes(self) -> int:
        """Bytes of one row in the file."""
        return int(np.prod(self._file_shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def _map(self, start: int, stop: int) -> "np.memmap[Any, Any]":
        """Map rows start to stop of the file."""
        return np.memmap(
            self.path,
            self.dtype,
            mode="r",
            offset=self._offset + start * self._row_bytes,
            shape=(stop - start, *self._file_shape[1:]),
        )


def _file_identity(path: Path) -> tuple[int, int, int]:
    """Inode, size and time of a file: they change when it is written or replaced."""
    with translate_os_errors(path):
        status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def reject_masked(values: object, where: str) -> None:
    """Reject a masked array: masked entries would become ordinary values."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(
            where, "a plain array", "a masked one", "Fill masked entries, or drop the rows."
        )


def check_classes(classes: Sequence[Label], where: str) -> tuple[Label, ...]:
    """Return declared classes as a tuple: at least two, distinct, all str or all int."""
    result = tuple(c.item() if isinstance(c, np.generic) else c for c in classes)
    known = set(map(type, result)) in ({str}, {int})
    if not known or len(result) < 2 or len(set(result)) < len(result):
        raise DataError(
            f"{where}: classes",
            "at least two different labels, all text or all integers",
            repr(result)[:80],
            "Declare every class that records may have, whether or not it occurs.",
        )
    return result


def first_of(values: Sequence[object], most: int = 8) -> str:
    """List the first values, for an error message."""
    return ", ".join(map(repr, values[:most])) + ", …" * (len(values) > most)


def encode_labels(values: ArrayLike, classes: Sequence[Label], where: str) -> Ints:
    """Replace each value by its index among the declared classes.

    An error names the first value that is not declared, and its record.
    """
    reject_masked(values, where)
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(where, "one dimension", f"shape {array.shape}", "Pass one value a row.")
    codes = np.empty(len(array), dtype=np.int64)
    for start in range(0, len(array), _BLOCK):
        block = array[start : start + _BLOCK]
        indices = _indices(block, np.asarray(classes))
        codes[start : start + len(block)] = indices
        if (indices < 0).any():
            wrong = int(np.argmax(indices < 0))
            raise DataError(
                where,
                f"one of {first_of(list(classes))}",
                f"{str(block[wrong])!r} in record {start + wrong + 1}",
                "Declare the label, or correct the record.",
            )
    return codes


def _indices(values: Array, classes: Array) -> Ints:
    """Indices of values among classes, compared as text; -1 where there is none."""
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.dtype.kind == "f":
        whole = (values == np.rint(values)) & (np.abs(values) < 2**53)
        indices = _indices(np.where(whole, values, 0).astype(np.int64), classes)
        return np.where(whole, indices, -1)
    if values.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes))):
        known = (values >= 0) & (values < len(classes))
        return np.where(known, values.astype(np.int64, copy=False), -1)
    if values.dtype.kind in "iu" and classes.dtype.kind in "iu":
        order = np.argsort(classes)
        ranks = np.searchsorted(classes[order], values)
        codes: Ints = order[np.minimum(ranks, len(classes) - 1)]
        return np.where(classes[codes] == values, codes, -1)
    # numpy's searchsorted is wrong for texts of 16 bytes or more.
    index = {label: i for i, label in enumerate(classes.astype(TEXT).tolist())}
    texts = values.astype(TEXT).tolist()
    return np.fromiter((index.get(text, -1) for text in texts), np.int64, len(texts))


def read_only(array: Array) -> Array:
    """Return a read-only array, copying it if its memory is writable elsewhere."""
    if not is_immutable(array):
        array = array.copy() if array.base is not None else array
        array.flags.writeable = False
    return array.view()  # the flag of a view cannot be reset


def is_immutable(array: Array) -> bool:
    """Whether the memory of an array is read-only through every view."""
    base: object = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    return base is None  # neither a writable array nor a file that may change


def restore_state(record: object, state: dict[str, Any]) -> None:
    """Set the fields of an unpickled record, with read-only arrays."""
    for name, value in state.items():
        kept = read_only(value) if isinstance(value, np.ndarray) else value
        object.__setattr__(record, name, kept)


def row_numbers(index: ArrayLike, n: int) -> Ints:
    """Convert row numbers or a mask into row numbers."""
    rows = np.asarray(index)
    if rows.dtype == bool:
        if rows.shape != (n,):
            raise ValueError(f"Expected a mask of shape ({n},), got shape {rows.shape}.")
        return np.flatnonzero(rows)
    return rows.astype(np.int64) if rows.size == 0 else rows


def check_features(X: Any, norm: float | None, where: str) -> Array | MappedRows:
    """Return finite features of a supported type, read-only.

    The norm of a row may exceed the bound by rounding only.
    """
    where = f"{where}: features"
    reject_masked(X, where)
    rows = (MappedRows.of(X) if isinstance(X, np.memmap) else None) or X
    if not isinstance(rows, MappedRows):
        rows = _in_memory(X, where)
    if rows.dtype.kind not in "fuT" or rows.ndim < 2:
        raise DataError(
            where,
            "floats or bytes of shape (n, d), images, or text of shape (n, 1 or 2)",
            f"{rows.dtype} of shape {rows.shape}",
            "Pass one row for each record; save a matrix on disk as float32.",
        )
    for start in range(0, len(rows) if rows.dtype.kind == "f" else 0, _BLOCK):
        block = rows[start : start + _BLOCK]
        if not np.isfinite(block).all():
            finite = np.isfinite(block).reshape(len(block), -1).all(axis=1)
            row = int(np.argmin(finite))
            value = block[row][~np.isfinite(block[row])].flat[0]
            raise DataError(
                where,
                "finite numbers",
                f"{value} in record {start + row + 1}",
                "Declare a treatment of missing values, or correct the record.",
            )
        if norm is not None:
            norms = np.linalg.norm(block.reshape(len(block), -1).astype(np.float64), axis=1)
            long = np.flatnonzero(norms > norm * (1 + 1e-9))
            if len(long):
                raise DataError(
                    where,
                    f"rows of norm at most {norm:g}",
                    f"{norms[long[0]]:g} in record {start + int(long[0]) + 1}",
                    "Scale the rows down, or declare a larger norm.",
                )
    return rows


def _in_memory(X: Any, where: str) -> Array:
    """Return a read-only array of a supported type."""
    array = np.asarray(X)
    if array.dtype.kind in "UO":
        if not all(isinstance(value, str) for value in array.flat):
            raise DataError(
                where, "numbers or text", "other objects", "Encode them by a schema."
            )
        array = array.astype(TEXT)
    elif array.dtype.kind in "biu" and array.dtype != np.uint8:
        array = array.astype(np.float64)
    elif array.dtype == np.float16 or not array.dtype.isnative:
        array = array.astype(np.result_type(array.dtype.newbyteorder("="), np.float32))
    elif not is_immutable(array):
        array = array.copy()
    return read_only(np.asarray(array))


def check_codes(where: str, codes: ArrayLike, k: int, n: int | None = None) -> Ints:
    """Return a read-only array of integers in [0, k)."""
    reject_masked(codes, where)
    array = np.asarray(codes)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            where,
            "whole numbers of shape (n,)",
            f"{array.dtype} of shape {array.shape}",
            "Encode the labels as indices of the classes.",
        )
    if n is not None:
        check_length(where, len(array), n)
    if len(array) and (array.min() < 0 or array.max() >= k):
        bad = array[(array < 0) | (array >= k)][0]
        raise DataError(
            where, f"codes from 0 to {k - 1}", str(bad), "Declare the class, or correct it."
        )
    return read_only(array.astype(np.int64, copy=not is_immutable(array)))


def check_ids(units: ArrayLike, n: int, where: str, what: str = "units") -> Array:
    """Return ids of units or slots as a read-only array of integers or text.

    None may be missing: all rows without one would count as one individual.
    """
    where = f"{where}: {what}"
    reject_masked(units, where)
    array = np.asarray(units)
    if array.dtype.kind == "O":  # anything but text and integers counts as missing
        known = (str, int, np.integer)
        ids = [
            str(id_) if isinstance(id_, known) and not isinstance(id_, bool) else ""
            for id_ in array.flat
        ]
        array = np.array(ids, TEXT)
    elif array.dtype.kind in "UT":
        array = array.astype(TEXT)
    if array.ndim != 1 or array.dtype.kind not in "iuT":
        raise DataError(
            where,
            "ids of shape (n,), whole numbers or text",
            f"{array.dtype} of shape {array.shape}",
            "Pass one id for each row.",
        )
    check_length(where, len(array), n)
    if array.dtype.kind == "T" and (array == "").any():
        row = int(np.flatnonzero(array == "")[0])
        raise DataError(where, "an id", f"none in record {row + 1}", "Drop rows without one.")
    return read_only(array.copy())


def reject_shared_slots(slots: Array, where: str) -> None:
    """Raise if two rows share a slot. The message names them, for the data holder only."""
    if len(np.unique(slots)) == len(slots):
        return
    first: dict[object, int] = {}
    for row, slot in enumerate(slots.tolist()):
        if slot in first:
            raise DataError(
                f"{where}: slots",
                "one row for each slot",
                f"the same slot in records {first[slot] + 1} and {row + 1}",
                "Give each slot its own id, which a replacement record inherits.",
            )
        first[slot] = row


def check_length(where: str, length: int, n: int) -> None:
    """Reject an array whose length is not the number of records."""
    if length != n:
        raise DataError(
            where, f"{n} values, one for each record", str(length), "Pass one a record."
        )
