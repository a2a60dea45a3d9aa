"""One column of a table becomes numbers, by its declaration."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from veracal._types import Array, Bools, Floats, Ints
from veracal.data.columns import (
    Category,
    Column,
    Constant,
    Number,
    Slot,
    Target,
    Text,
    Unit,
    Vector,
)
from veracal.data.labels import TEXT
from veracal.errors import DataError

_SHOWN = 40  # characters of a wrong field that an error repeats


@dataclass(frozen=True, eq=False)
class Cells:
    """One column of a table: its values, which of them are missing, where it stands.

    Values may come with their numbers, null where there is none, for columns are converted
    faster together than one by one.
    """

    values: pl.Series
    missing: Bools
    where: str
    start: int
    numbers: pl.Series | None = None

    def refuse(self, wrong: Bools, expected: str, remedy: str) -> None:
        """Raise for the first wrong value, if any, naming its record."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            value = self.values[int(rows[0])]
            text = repr(value.to_list() if isinstance(value, pl.Series) else value)
            shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
            record = self.start + int(rows[0]) + 1
            raise DataError(self.where, expected, f"{shown} in record {record}", remedy)


def find_missing(
    values: pl.Series,
    marks: Sequence[str],
    where: str,
    start: int,
    numbers: pl.Series | None = None,
) -> Cells:
    """Find the missing values of a column: nulls, and fields that are a declared mark.

    A vector is missing as a whole if any of its entries is.
    """
    if isinstance(values.dtype, pl.Array):
        values = values.arr.to_list()
    if isinstance(values.dtype, pl.List):
        some = _is_missing(values.explode(empty_as_null=False, keep_nulls=False), marks)
        owner = np.repeat(np.arange(len(values)), values.list.len().fill_null(0).to_numpy())
        missing = values.is_null().to_numpy() | (
            np.bincount(owner, weights=some, minlength=len(values)) > 0
        )
    else:
        missing = _is_missing(values, marks)
    return Cells(values, missing, where, start, numbers)


def numbers_of(frame: pl.DataFrame, columns: Mapping[str, Column]) -> dict[str, pl.Series]:
    """Texts of numeric columns as numbers, null where they are none, all cores at work."""
    numeric = {name for name, column in columns.items() if isinstance(column, Number)}
    texts = [n for n, kind in frame.schema.items() if kind == pl.String and n in numeric]
    found = frame.select(pl.col(texts).cast(pl.Float64, strict=False))
    return {column.name: column for column in found.iter_columns()}


def _is_missing(values: pl.Series, marks: Sequence[str]) -> Bools:
    """Tell which values are null, or written as one of the marks."""
    found = np.zeros(len(values), dtype=bool)
    if values.null_count():
        found |= values.is_null().to_numpy()
    if values.dtype == pl.String and marks:
        found |= values.is_in(list(marks)).fill_null(True).to_numpy()
    elif values.dtype.is_integer():
        whole = [int(mark) for mark in marks if re.fullmatch(r"[+-]?[0-9]{1,18}", mark)]
        if whole:  # as integers: a float cannot tell all ids apart
            found |= values.cast(pl.Int128).is_in(whole).fill_null(True).to_numpy()
    elif values.dtype.is_float():
        numbers = [float(mark) for mark in marks if _is_float(mark)]
        if numbers:
            found |= values.is_in(numbers).fill_null(True).to_numpy()
        if any(math.isnan(number) for number in numbers):
            found |= values.is_nan().fill_null(True).to_numpy()
    return found


def _is_float(mark: str) -> bool:
    """Tell whether a mark can stand in a column of numbers."""
    try:
        float(mark)
    except ValueError:
        return False
    return "_" not in mark  # Python reads 1_0 as 10


def _treat(cells: Cells, column: Column) -> None:
    """Refuse missing values where no treatment was declared."""
    if getattr(column, "missing", None) is None:
        cells.refuse(
            cells.missing,
            "a value (no treatment of missing ones is declared)",
            "Declare missing = 'drop', 'indicator' or { constant = … } for the column.",
        )


def encode_column(cells: Cells, column: Column) -> Array:
    """Encode one column; what stands in rows to be dropped does not matter.

    Returns
    -------
    array of shape (n,), or (n, size) for a vector
        Numbers in their own scale, with NaN where an indicator is to tell of a missing
        value; positions among declared values or classes, the one after the last for an
        indicated missing value and -1 for an ignored one; ids; texts.
    """
    _treat(cells, column)
    match column:
        case Number():
            return _numbers(cells, column)
        case Category():
            return _categories(cells, column)
        case Vector():
            return _vectors(cells, column)
        case Text():
            return _texts(cells, column)
        case Target():
            values = tuple(map(str, column.classes))
            return _positions(cells, values, "Declare the class, or correct the record.")
        case Unit() | Slot():
            return _ids(cells)
        case _:
            raise AssertionError(column)


def _numbers(cells: Cells, column: Number) -> Floats:
    """Values in their own scale; NaN marks the missing ones that an indicator will tell."""
    numbers = _floats(cells)
    if cells.missing.any():
        numbers = np.where(cells.missing, _substitute(column), numbers)
    elif len(numbers) and numbers.min() >= column.lower and numbers.max() <= column.upper:
        return numbers  # no comparison holds for a NaN, which comes out of min and max
    # NaN fails every comparison, so rows of a missing value are named as such.
    fine = ((numbers >= column.lower) & (numbers <= column.upper)) | cells.missing
    if fine.all():
        return numbers
    bounds = f"a number in [{column.lower:g}, {column.upper:g}]"
    cells.refuse(~(np.isfinite(numbers) | cells.missing), bounds, "Correct the record.")
    if column.outside == "error":
        cells.refuse(~fine, bounds, "Widen the bounds, or declare outside = 'clip'.")
    return np.clip(numbers, column.lower, column.upper)


def _substitute(column: Number) -> float:
    """What stands for a missing number: NaN where an indicator will tell of it."""
    if isinstance(column.missing, Constant):
        return float(column.missing.value)
    return math.nan if column.missing == "indicator" else column.lower


def _floats(cells: Cells) -> Floats:
    """Convert text or numbers to floats; a present value that is no number is refused."""
    values = cells.values
    if values.dtype.is_temporal() or values.dtype.is_nested():
        raise DataError(
            cells.where,
            "numbers",
            f"the type {values.dtype}",
            "Convert it, or ignore the column.",
        )
    numbers = values.cast(pl.Float64, strict=False) if cells.numbers is None else cells.numbers
    if numbers.null_count():
        cells.refuse(
            numbers.is_null().to_numpy() & ~cells.missing,
            "a number",
            "Correct the record, or list the mark under missing and declare a treatment.",
        )
        numbers = numbers.fill_null(0.0)
    return numbers.to_numpy()


def _categories(cells: Cells, column: Category) -> Ints:
    """Positions among the declared values; one more for missing, -1 for ignored values."""
    values = tuple(map(str, column.values))
    if column.outside == "ignore":
        codes = _lookup(cells, values)
    else:
        codes = _positions(cells, values, "Declare the value, or correct the record.")
    if isinstance(column.missing, Constant):
        codes[cells.missing] = values.index(str(column.missing.value))
    elif column.missing == "indicator":
        codes[cells.missing] = len(values)
    return codes


def _positions(cells: Cells, values: tuple[str, ...], remedy: str) -> Ints:
    """Positions among declared values; a present value that is not declared is refused."""
    codes = _lookup(cells, values)
    listed = ", ".join(map(repr, values[:8])) + (", …" if len(values) > 8 else "")
    cells.refuse((codes < 0) & ~cells.missing, f"one of {listed}", remedy)
    return np.maximum(codes, 0)


def _lookup(cells: Cells, values: tuple[str, ...]) -> Ints:
    """Positions among declared values, -1 where there is none."""
    texts = _as_text(cells)
    codes = texts.cast(pl.Enum(values), strict=False).to_physical().cast(pl.Int64)
    return np.array(codes.fill_null(-1).to_numpy())


def _as_text(cells: Cells) -> pl.Series:
    """Write values as text, as a CSV file would show them."""
    values = cells.values
    if values.dtype.is_nested() or values.dtype.is_temporal() or values.dtype == pl.Binary:
        raise DataError(
            cells.where,
            "text or whole numbers",
            f"the type {values.dtype}",
            "Convert the column.",
        )
    if values.dtype.is_float():
        whole = (values == values.floor()) | values.is_null() | pl.Series(cells.missing)
        cells.refuse(
            ~whole.fill_null(False).to_numpy(), "text or whole numbers", "Convert the column."
        )
        values = values.cast(pl.Int64, strict=False)
        cells.refuse(
            values.is_null().to_numpy() & ~cells.missing,
            "whole numbers of at most 64 bits",
            "Convert the column.",
        )
    return values.cast(pl.String)


def _ids(cells: Cells) -> Array:
    """Ids of units, as whole numbers or text; rows without one will have been dropped."""
    if cells.values.dtype.is_integer():
        return np.array(cells.values.fill_null(0).to_numpy())
    if cells.values.dtype.is_float():  # larger ones were rounded, because one is missing
        large = (cells.values.abs() > 2.0**53).fill_null(False).to_numpy()
        cells.refuse(large & ~cells.missing, "ids up to 2^53 as floats", "Store them as text.")
    texts = _as_text(cells).fill_null("").to_numpy().astype(TEXT)
    cells.refuse((texts == "") & ~cells.missing, "an id", "List '' under missing, and drop it.")
    texts[cells.missing] = "(dropped)"
    return texts


def _texts(cells: Cells, column: Text) -> Array:
    """Sentences, with the declared constant for the missing ones."""
    filled = column.missing.value if isinstance(column.missing, Constant) else ""
    texts = _as_text(cells).fill_null("").to_numpy().astype(TEXT)
    texts[cells.missing] = str(filled)
    return texts


def _vectors(cells: Cells, column: Vector) -> Floats:
    """Rows of numbers, all of the declared length, bounds checked or enforced."""
    values, present = cells.values, ~cells.missing
    if not isinstance(values.dtype, pl.List):
        raise DataError(
            cells.where,
            f"lists of {column.size} numbers",
            f"the type {values.dtype}",
            "Correct the declared size or the column.",
        )
    lengths = values.list.len().fill_null(column.size).to_numpy()
    expected = f"a list of {column.size} numbers"
    cells.refuse(present & (lengths != column.size), expected, "Correct the size.")
    rows = np.zeros((len(values), column.size))
    flat = values.filter(pl.Series(present)).explode(empty_as_null=False, keep_nulls=False)
    numbers = flat.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    rows[present] = numbers.reshape(-1, column.size)
    bounds = f"{column.size} numbers in [{column.lower:g}, {column.upper:g}]"
    cells.refuse(np.logical_not(np.isfinite(rows).all(axis=1)), bounds, "Correct the record.")
    if column.outside == "error":
        outside = ((rows < column.lower) | (rows > column.upper)).any(axis=1) & present
        cells.refuse(outside, bounds, "Widen the bounds, or declare outside = 'clip'.")
    return np.clip(rows, column.lower, column.upper)
