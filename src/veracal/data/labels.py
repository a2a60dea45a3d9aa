"""Labels, and their positions among the declared classes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Ints
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
