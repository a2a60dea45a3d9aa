"""Rows of a matrix on disk, read a window at a time.

Scores of rows in blocks of one shape, so that a row's score is its own.

Rounding follows the shape of a product and, inside it, the place: the same row, scored with
fewer others or after one more of them, may differ in its last bits. (OpenBLAS on some
processors rounds the last four of 256 rows differently in single precision, with ten classes,
and some hundred with a hundred.) So one person more or less would move the scores of others,
which no sensitivity allows for. Here every block has the same shape, and rows stand only at
places where a trial on made-up rows has found the bits of the first place.
"""

import math
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Floats, Ints, aligned
from veracal.data.files import no_surprises
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


Score = Callable[[Array], Floats]
# Numbers that are compared at every place. One alone may have the same bits by chance: with ten
# float32 products, another order of additions gives the same sum in one of two cases.
_COMPARED = 40


def places_alike(forward: Score, made_up: Array, tried: int = 1) -> Ints:
    """Places of a block at which a row has the bits that it has at the first.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    made_up : array of shape (c, ...)
        One block of public rows; nothing about records is read.
    tried : int
        How many of them, the first ones, are tried at every place: alone with copies of
        themselves, and then side by side with each other and with the rest.

    Returns
    -------
    array of ints, ascending
        At least the first place, 0; and only that where others in the block change a row's
        bits.
    """
    rows = made_up[:tried]
    repeated = (np.repeat(row[None], len(made_up), axis=0) for row in rows)
    copies = [_bits(forward(aligned(one))) for one in repeated]
    same = np.all([(found == found[0]).all(axis=1) for found in copies], axis=0)
    company, turn = aligned(made_up.copy()), np.arange(len(made_up)) % (tried + 1)
    mine = turn < tried
    company[mine] = rows[turn[mine]]
    places, asked = np.flatnonzero(same), np.flatnonzero(same & mine)
    alone = np.stack([found[0] for found in copies])[turn[asked]]
    return places if (_bits(forward(company))[asked] == alone).all() else places[:1]


def at_places(
    forward: Score, rows: Array | MappedRows, places: Ints, block: Array
) -> Iterator[Floats]:
    """Score rows that stand at some places of a block; copies of one stand at the others.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    rows : array or MappedRows of shape (m, ...)
    places : array of ints
        As :func:`places_alike` gives them.
    block : array of shape (c, ...)
        Room for a block in the type that ``forward`` takes; what is in it is lost.

    Yields
    ------
    array of shape (at most as many as there are places, d)
        Scores of the next rows, in their order.

    Guarantees
    ----------
    If ``forward`` scores each row of a block in an order of additions that the shape of the
    block, the place in it and addresses up to multiples of 64 bytes decide, and not the values,
    then the score of a row is a function
    of that row alone, bit for bit: adding, removing, changing or reordering other rows leaves
    it as it was. With the first place alone, that holds of whatever ``forward`` does with a
    block, as all of it is copies of one row.
    """
    block = aligned(block)  # on some libraries, bits follow from addresses, too
    others = np.setdiff1d(np.arange(len(block)), places)
    for start in range(0, len(rows), len(places)):
        some = np.asarray(rows[start : start + len(places)])
        mine, free = places[: len(some)], places[len(some) :]
        block[mine] = some
        block[others] = block[free] = some[0]
        yield forward(block)[mine]


def all_places_alike(forward: Score, made_up: Array) -> bool:
    """Whether every place of a block gives a row the same bits, and others change nothing.

    Parameters
    ----------
    forward, made_up
        As of :func:`places_alike`. Rows should differ from each other.

    Guarantees
    ----------
    At every place at least 40 numbers are compared with those of the first place, however few
    a row has (fewer only if there are fewer rows), and each row with itself at other places.
    """
    block = aligned(made_up.copy())
    straight = _bits(forward(block))
    most = max(1, len(made_up) - 1)
    tried = min(most, math.ceil(_COMPARED / max(1, straight.shape[1])))
    if len(places_alike(forward, made_up, tried)) < len(made_up):
        return False
    shifts = (1 << i for i in range((len(made_up) - 1).bit_length()))
    return all(
        np.array_equal(
            _bits(forward(aligned(np.roll(block, shift, axis=0)))),
            np.roll(straight, shift, axis=0),
        )
        for shift in shifts
    )


def each_by_itself(forward: Score, made_up: Array, *alike: Score) -> Score:
    """Score any number of rows through a network that takes a batch at a time.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    made_up : array of shape (c, ...)
        One batch of public rows; the first should be as long as rows can be.
    *alike : functions like ``forward``
        The same network with other weights, to be tried as well: weights may be such that
        made-up rows hide an order of additions, and records do not.

    Returns
    -------
    function of an array of shape (m, ...) to an array of shape (m, d), for m ≥ 1

    Guarantees
    ----------
    Those of :func:`at_places`, where every place of a batch is like the first
    (:func:`all_places_alike`). Where one is not, rows are scored in batches of one, which is
    slower and needs no trial.
    """
    whole = all(all_places_alike(one, made_up) for one in (forward, *alike))
    batch = made_up if whole else made_up[:1]

    def score(rows: Array) -> Floats:
        parts = at_places(forward, rows, np.arange(len(batch)), np.empty_like(batch))
        return np.concatenate(list(parts))

    return score


def _bits(scores: Floats) -> Ints:
    """Scores as integers: a NaN would differ from itself, and −0 would equal 0."""
    flat = np.asarray(scores, dtype=np.float64).reshape(len(scores), -1)
    return np.ascontiguousarray(flat).view(np.int64)
