"""Rows of a matrix on disk, read a window at a time."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Ints
from veracal.data.limits import no_surprises
from veracal.errors import DataError

_WINDOW = 1 << 24  # bytes mapped at a time: a system may hold all of a map it is asked for


class MappedRows:
    """Rows of a C-ordered array in a file, all of them or a chosen subset.

    A plain ``numpy.memmap`` keeps every page it has touched resident until the system
    needs them back. Each access here maps one window, copies what was asked for and
    unmaps it, so that a pass over a file of any size stays as small as its windows.

    Parameters
    ----------
    path : Path
        The file.
    dtype : numpy.dtype
        Type of the numbers in it.
    shape : tuple of int
        Shape of the whole array in the file; rows are its first axis.
    offset : int
        Byte at which the array starts.
    index : array of ints, optional
        Rows that belong to this view, in order. None means all.
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
        self._seen = _identity(self.path)

    @classmethod
    def of(cls, array: "np.memmap[Any, Any]") -> "MappedRows | None":
        """Wrap a ``numpy.memmap``, or consecutive rows of one; None if it is neither.

        A slice of a map reports the offset of the whole, so the place is taken from the
        address of its first number.
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
        """Shape of the chosen rows."""
        n = self._file_shape[0] if self._index is None else len(self._index)
        return (n, *self._file_shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._file_shape)

    @property
    def nbytes(self) -> int:
        """Bytes the chosen rows would take in memory."""
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
        chosen = rows if self._index is None else self._index[rows]
        if _identity(self.path) != self._seen:
            raise DataError(
                str(self.path),
                "the file that was checked when it was loaded",
                "one that has changed since",
                "Load it again, and let nobody write to it meanwhile.",
            )
        result = np.empty((len(chosen), *self._file_shape[1:]), self.dtype)
        order = np.argsort(chosen, kind="stable")
        span = max(1, _WINDOW // max(1, self._row_bytes))
        edges = np.flatnonzero(np.diff(chosen[order] // span)) + 1
        for part in np.split(order, edges) if len(order) else ():
            start, stop = int(chosen[part[0]]), int(chosen[part[-1]]) + 1
            result[part] = self._mapped(start, stop)[chosen[part] - start]
        return result

    def _rows(self, key: "slice | ArrayLike") -> Ints:
        """Turn what numpy would take for an index of the first axis into row numbers."""
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
        """Choose rows without reading them."""
        rows = self._rows(index)
        chosen = rows if self._index is None else self._index[rows]
        return MappedRows(
            self.path, self.dtype, self._file_shape, offset=self._offset, index=chosen
        )

    def windows(self, rows: int) -> Iterator[Array]:
        """Iterate over consecutive blocks of at most ``rows`` rows."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    @property
    def _row_bytes(self) -> int:
        """Bytes of one row in the file."""
        return int(np.prod(self._file_shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def _mapped(self, start: int, stop: int) -> "np.memmap[Any, Any]":
        """Map rows start to stop of the file."""
        return np.memmap(
            self.path,
            self.dtype,
            mode="r",
            offset=self._offset + start * self._row_bytes,
            shape=(stop - start, *self._file_shape[1:]),
        )


def _identity(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written to, replaced or cut."""
    with no_surprises(path):
        seen = path.stat()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns
