"""Labels, and their positions among the declared classes.

Arrays as a data set wants them: of known types, finite, and nobody else's to change.
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
_BLOCK = 65_536  # records compared at a time: as text, they take much more room


def refuse_mask(values: object, where: str) -> None:
    """Refuse a masked array: what it hides would come back as ordinary values."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(
            where, "a plain array", "a masked one", "Fill what is masked, or drop those rows."
        )


def check_classes(classes: Sequence[Label], where: str) -> tuple[Label, ...]:
    """Return declared classes as a tuple: at least two, all different, all str or all int."""
    result = tuple(c.item() if isinstance(c, np.generic) else c for c in classes)
    kinds = {type(label) for label in result}
    known = kinds in ({str}, {int})
    if not known or len(result) < 2 or len(set(result)) < len(result):
        raise DataError(
            f"{where}: classes",
            "at least two different labels, all text or all integers",
            repr(result)[:80],
            "Declare every class the records may have, whether or not it occurs.",
        )
    return result


def encode_labels(values: ArrayLike, classes: Sequence[Label], where: str) -> Ints:
    """Replace each value by its position among the declared classes.

    Raises
    ------
    DataError
        Naming the first value that was not declared, and its row.
    """
    refuse_mask(values, where)
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(where, "one dimension", f"shape {array.shape}", "Pass one value a row.")
    codes = np.empty(len(array), dtype=np.int64)
    for start in range(0, len(array), _BLOCK):
        block = array[start : start + _BLOCK]
        found = _positions(block, np.asarray(classes))
        codes[start : start + len(block)] = found
        if (found < 0).any():
            wrong = int(np.argmax(found < 0))
            listed = ", ".join(map(repr, list(classes)[:8])) + ", …" * (len(classes) > 8)
            raise DataError(
                where,
                f"one of {listed}",
                f"{str(block[wrong])!r} in record {start + wrong + 1}",
                "Declare the label, or correct the record.",
            )
    return codes


def _positions(values: Array, classes: Array) -> Ints:
    """Positions of values among classes, compared as written; -1 where there is none."""
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.dtype.kind == "f":
        whole = (values == np.rint(values)) & (np.abs(values) < 2**53)
        found = _positions(np.where(whole, values, 0).astype(np.int64), classes)
        return np.where(whole, found, -1)
    if values.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes))):
        known = (values >= 0) & (values < len(classes))
        return np.where(known, values.astype(np.int64, copy=False), -1)
    if not (values.dtype.kind in "iu" and classes.dtype.kind in "iu"):
        return _text_positions(values, classes)
    order = np.argsort(classes)
    place = np.searchsorted(classes[order], values)
    codes: Ints = order[np.minimum(place, len(classes) - 1)]
    return np.where(classes[codes] == values, codes, -1)


def _text_positions(values: Array, classes: Array) -> Ints:
    """The same for text, one by one: numpy's searchsorted errs on texts of 16 bytes or more."""
    known = {label: at for at, label in enumerate(classes.astype(TEXT).tolist())}
    written = values.astype(TEXT).tolist()
    return np.fromiter((known.get(text, -1) for text in written), np.int64, len(written))


_ROWS = 65_536  # rows checked at a time


def frozen(array: Array) -> Array:
    """Return an array that nobody can write to, copying it if somebody else could."""
    if not is_settled(array):
        array = array.copy() if array.base is not None else array
        array.flags.writeable = False
    return array.view()  # of a view, the flag cannot be set back


def is_settled(array: Array) -> bool:
    """Tell whether nobody can write to the memory of an array, through whatever view."""
    base: object = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    return base is None  # not a writeable array, nor a file that may change


def restore(record: object, state: dict[str, Any]) -> None:
    """Give an unpickled record its fields back, with arrays that cannot be written to."""
    for name, value in state.items():
        kept = frozen(value) if isinstance(value, np.ndarray) else value
        object.__setattr__(record, name, kept)


def row_numbers(index: ArrayLike, n: int) -> Ints:
    """Turn numbers of rows, or a mask of them, into numbers."""
    rows = np.asarray(index)
    if rows.dtype == bool:
        if rows.shape != (n,):
            raise ValueError(f"Expected a mask of shape ({n},), got shape {rows.shape}.")
        return np.flatnonzero(rows)
    return rows.astype(np.int64) if rows.size == 0 else rows


def check_features(X: Any, norm: float | None, where: str) -> Array | MappedRows:
    """Return features in a type the house knows, checked to be finite, not writeable."""
    refuse_mask(X, f"{where}: features")
    mapped = MappedRows.of(X) if isinstance(X, np.memmap) else None
    rows = mapped or (X if isinstance(X, MappedRows) else _in_memory(X, where))
    if rows.dtype.kind not in "fuT" or rows.ndim < 2:
        raise DataError(
            f"{where}: features",
            "floats or bytes of shape (n, d), images, or text of shape (n, 1 or 2)",
            f"{rows.dtype} of shape {rows.shape}",
            "Pass one row for each record; save a matrix on disk as float32.",
        )
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS]
        _check_finite(block, start, where)
        if norm is not None and block.dtype.kind == "f":
            _check_norm(block, norm, start, where)
    return rows


def _in_memory(X: Any, where: str) -> Array:
    """Return an array of a type the house knows, that nobody else can write to."""
    array = np.asarray(X)
    if array.dtype.kind in "UO":
        array = _text(array, where)
    elif array.dtype.kind in "biu" and array.dtype != np.uint8:
        array = array.astype(np.float64)
    elif array.dtype == np.float16 or not array.dtype.isnative:
        array = array.astype(np.result_type(array.dtype.newbyteorder("="), np.float32))
    elif not is_settled(array):
        array = array.copy()
    return frozen(np.asarray(array))


def _text(array: Array, where: str) -> Array:
    """Return an array of text, refusing objects of any other kind."""
    if not all(isinstance(value, str) for value in array.flat):
        raise DataError(
            f"{where}: features", "numbers or text", "other objects", "Encode them by a schema."
        )
    return array.astype(TEXT)


def _check_finite(block: Array, start: int, where: str) -> None:
    """Refuse a block of rows with NaN or infinity in it."""
    if block.dtype.kind != "f" or np.isfinite(block).all():
        return
    row = int(np.flatnonzero(~np.isfinite(block.reshape(len(block), -1)).all(axis=1))[0])
    value = block[row][~np.isfinite(block[row])].flat[0]
    raise DataError(
        f"{where}: features",
        "finite numbers",
        f"{value} in record {start + row + 1}",
        "Declare how missing values are treated, or correct the record.",
    )


def _check_norm(block: Array, norm: float, start: int, where: str) -> None:
    """Refuse a block with a row longer than declared, beyond what rounding explains."""
    norms = np.linalg.norm(block.reshape(len(block), -1).astype(np.float64), axis=1)
    long = np.flatnonzero(norms > norm * (1 + 1e-9))
    if len(long):
        raise DataError(
            f"{where}: features",
            f"rows of norm at most {norm:g}",
            f"{norms[long[0]]:g} in record {start + int(long[0]) + 1}",
            "Scale the rows down, or declare a larger norm.",
        )


def check_codes(where: str, codes: ArrayLike, k: int, n: int | None = None) -> Ints:
    """Return an array of whole numbers in [0, k) that nobody can write to."""
    refuse_mask(codes, where)
    array = np.asarray(codes)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            where,
            "whole numbers of shape (n,)",
            f"{array.dtype} of shape {array.shape}",
            "Encode the labels by their position among the classes.",
        )
    if n is not None:
        same_length(where, len(array), n)
    if len(array) and (array.min() < 0 or array.max() >= k):
        bad = array[(array < 0) | (array >= k)][0]
        raise DataError(
            where, f"codes from 0 to {k - 1}", str(bad), "Declare the class, or correct it."
        )
    return frozen(array.astype(np.int64, copy=not is_settled(array)))


def check_ids(units: ArrayLike, n: int, where: str, what: str = "units") -> Array:
    """Return ids of units or slots, as whole numbers or text that nobody can write to.

    Raises
    ------
    DataError
        For an id that is missing: all who lack one would count as one person.
    """
    refuse_mask(units, f"{where}: {what}")
    array = np.asarray(units)
    if array.dtype.kind == "O":
        array = np.array([_plain_id(value) for value in array.flat], dtype=TEXT)
    elif array.dtype.kind in "UT":
        array = array.astype(TEXT)
    if array.ndim != 1 or array.dtype.kind not in "iuT":
        raise DataError(
            f"{where}: {what}",
            "ids of shape (n,), whole numbers or text",
            f"{array.dtype} of shape {array.shape}",
            "Pass one id for each row.",
        )
    same_length(f"{where}: {what}", len(array), n)
    if array.dtype.kind == "T" and (array == "").any():
        row = int(np.flatnonzero(array == "")[0])
        raise DataError(
            f"{where}: {what}", "an id", f"none in record {row + 1}", "Drop rows without one."
        )
    return frozen(array.copy())


def check_slots(slots: ArrayLike, n: int, where: str) -> Array:
    """Return ids of slots, each held by one row.

    Raises
    ------
    DataError
        For a slot that two rows claim, which are named: it says so to the data holder only.
    """
    array = check_ids(slots, n, where, "slots")
    refuse_shared_slots(array, where)
    return array


def refuse_shared_slots(slots: Array, where: str) -> None:
    """Raise if two rows claim one slot."""
    if len(np.unique(slots)) == len(slots):
        return
    first: dict[object, int] = {}
    for row, slot in enumerate(slots.tolist()):
        if slot in first:
            raise DataError(
                f"{where}: slots",
                "one row for each slot",
                f"the same slot in records {first[slot] + 1} and {row + 1}",
                "Give each place an id of its own, which a replacement inherits.",
            )
        first[slot] = row


def check_digests(digests: ArrayLike, n: int, where: str) -> Array:
    """Return digests of rows, as an array that nobody can write to."""
    array = np.asarray(digests)
    if array.dtype != np.dtype("V16") or array.ndim != 1:
        raise DataError(
            f"{where}: row digests",
            "16 bytes for each row",
            f"{array.dtype} of shape {array.shape}",
            "Load the records with row_digests=True.",
        )
    same_length(f"{where}: row digests", len(array), n)
    return frozen(array)


def _plain_id(value: object) -> str:
    """Write an id as text; what is neither text nor a whole number counts as missing."""
    known = isinstance(value, str | int | np.integer) and not isinstance(value, bool)
    return str(value) if known else ""


def same_length(where: str, found: int, n: int) -> None:
    """Refuse a part with another number of rows than X."""
    if found != n:
        raise DataError(where, f"{n} rows, as X has", str(found), "Pass one value a row.")
