"""Rows of a matrix on disk, and scores of rows that do not depend on other rows.

The rounding of a matrix product depends on its shape and, within it, on the position of a row:
the same row, scored with fewer others or after another one, may differ in its last bits.
(OpenBLAS on some processors rounds the last four of 256 rows differently in single precision,
with ten classes, and about a hundred rows with a hundred classes.) Adding or removing one
individual would then change the scores of others, which no sensitivity covers. Here every
block has the same shape, and rows are placed only at positions where synthetic rows gave the
same bits as at the first position.
"""

import math
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Floats, Ints, aligned
from veracal.data.files import translate_os_errors
from veracal.errors import DataError

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


Score = Callable[[Array], Floats]
# Numbers compared at every position. A single one may agree by chance: for ten float32
# products, another order of additions gives the same sum in one of two cases.
_COMPARED = 40


def equivalent_positions(forward: Score, synthetic: Array, n_probes: int = 1) -> Ints:
    """Positions of a block at which rows get the same bits as at the first position.

    Position 0 and any others that qualify, ascending; only 0 if other rows of the block change
    the bits of a row.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    synthetic : array of shape (c, ...)
        One block of public rows. No record is read.
    n_probes : int
        Number of leading rows that are compared at every position: first among copies of
        themselves, then mixed with each other and with the remaining rows.
    """
    probes = synthetic[:n_probes]
    blocks = (np.repeat(row[None], len(synthetic), axis=0) for row in probes)
    outputs = [_bits(forward(aligned(block))) for block in blocks]
    same = np.all([(output == output[0]).all(axis=1) for output in outputs], axis=0)
    mixed, turn = aligned(synthetic.copy()), np.arange(len(synthetic)) % (n_probes + 1)
    is_probe = turn < n_probes
    mixed[is_probe] = probes[turn[is_probe]]
    positions, compared = np.flatnonzero(same), np.flatnonzero(same & is_probe)
    expected = np.stack([output[0] for output in outputs])[turn[compared]]
    agrees = (_bits(forward(mixed))[compared] == expected).all()
    return positions if agrees else positions[:1]


def score_at_positions(
    forward: Score, rows: Array | MappedRows, positions: Ints, block: Array
) -> Iterator[Floats]:
    """Score rows at equivalent positions of a block; copies of one row fill the others.

    Yields the scores of as many rows as there are positions, in the order of the rows.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    rows : array or MappedRows of shape (m, ...)
    positions : array of ints
        As returned by :func:`equivalent_positions`.
    block : array of shape (c, ...)
        Buffer of the type that ``forward`` takes; its content is overwritten.

    Guarantees
    ----------
    If the order of additions by which ``forward`` scores a row of a block depends on the shape
    of the block, the position in it and addresses modulo 64 bytes only, and not on values,
    then the score of a row is a function of that row only, bit for bit: adding, removing,
    changing or reordering other rows does not change it. With the first position alone this
    holds for any ``forward``, since all rows of a block are copies of one row.
    """
    block = aligned(block)  # in some libraries bits depend on addresses
    others = np.setdiff1d(np.arange(len(block)), positions)
    for start in range(0, len(rows), len(positions)):
        batch = np.asarray(rows[start : start + len(positions)])
        used, free = positions[: len(batch)], positions[len(batch) :]
        block[used] = batch
        block[others] = block[free] = batch[0]
        yield forward(block)[used]


def all_positions_equivalent(forward: Score, synthetic: Array) -> bool:
    """Whether a row gets the same bits at every position of a block, beside any other rows.

    Synthetic rows, as of :func:`equivalent_positions`, should differ from each other.

    Guarantees
    ----------
    At every position at least 40 numbers are compared with those of the first position,
    however few a row has (fewer only if there are fewer rows), and each row with itself at
    other positions.
    """
    block = aligned(synthetic.copy())
    unshifted = _bits(forward(block))
    most = max(1, len(synthetic) - 1)
    n_probes = min(most, math.ceil(_COMPARED / max(1, unshifted.shape[1])))
    if len(equivalent_positions(forward, synthetic, n_probes)) < len(synthetic):
        return False
    shifts = (1 << i for i in range((len(synthetic) - 1).bit_length()))
    return all(
        np.array_equal(
            _bits(forward(aligned(np.roll(block, shift, axis=0)))),
            np.roll(unshifted, shift, axis=0),
        )
        for shift in shifts
    )


def score_independently(forward: Score, synthetic: Array, *variants: Score) -> Score:
    """Return a function that scores m ≥ 1 rows by a network that takes batches of c rows.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    synthetic : array of shape (c, ...)
        One batch of public rows; the first should be as long as rows can be.
    *variants : functions like ``forward``
        The same network with other weights, which are checked as well: with particular
        weights, synthetic rows may not reveal an order of additions that records would.

    Guarantees
    ----------
    Those of :func:`score_at_positions` if all positions of a batch are equivalent
    (:func:`all_positions_equivalent`). Otherwise rows are scored in batches of one, which is
    slower and needs no check.
    """
    usable = all(all_positions_equivalent(one, synthetic) for one in (forward, *variants))
    batch = synthetic if usable else synthetic[:1]

    def score(rows: Array) -> Floats:
        parts = score_at_positions(forward, rows, np.arange(len(batch)), np.empty_like(batch))
        return np.concatenate(list(parts))

    return score


def _bits(scores: Floats) -> Ints:
    """Bits of scores as integers, so that NaN equals itself and −0 differs from 0."""
    flat = np.asarray(scores, dtype=np.float64).reshape(len(scores), -1)
    return np.ascontiguousarray(flat).view(np.int64)
