"""Labels as indices of the declared classes, and validation of the arrays of a data set.

Validated arrays have a supported type, hold finite values and are read-only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Ints
from veracal.data.rows import MappedRows
from veracal.errors import DataError

Label = str | int
TEXT = np.dtypes.StringDType()
_BLOCK = 65_536  # records checked at a time, since text takes much more memory


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
    """Reject an array whose number of rows differs from that of X."""
    if length != n:
        raise DataError(where, f"{n} rows, as X has", str(length), "Pass one value a row.")
