"""One column of a table becomes numbers, by its declaration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from veracal._types import Array, Bools, Floats, Ints
from veracal.data.columns import Category, Column, Constant, Number, Target, Text, Unit, Vector
from veracal.data.labels import TEXT
from veracal.errors import DataError

_SHOWN = 40  # characters of a wrong field that an error repeats


@dataclass(frozen=True, eq=False)
class Cells:
    """One column of a table: its values, which of them are missing, where it stands."""

    values: pl.Series
    missing: Bools
    where: str
    start: int

    def refuse(self, wrong: Bools, expected: str, remedy: str) -> None:
        """Raise for the first wrong value, if any, naming its record."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            value = self.values[int(rows[0])]
            text = repr(value.to_list() if isinstance(value, pl.Series) else value)
            shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
            record = self.start + int(rows[0]) + 1
            raise DataError(self.where, expected, f"{shown} in record {record}", remedy)


def find_missing(values: pl.Series, marks: Sequence[str], where: str, start: int) -> Cells:
    """Find the missing values of a column: nulls, and fields that are a declared mark."""
    numbers = [float(mark) for mark in marks if _is_float(mark)]
    if values.dtype == pl.String and marks:
        missing = values.is_in(list(marks)).fill_null(True).to_numpy()
    elif values.dtype.is_numeric() and numbers:
        floats = values.cast(pl.Float64)
        missing = floats.is_in(numbers).fill_null(True).to_numpy()
        if any(math.isnan(number) for number in numbers):
            missing = missing | floats.is_nan().fill_null(True).to_numpy()
    elif values.null_count():
        missing = values.is_null().to_numpy()
    else:
        missing = np.zeros(len(values), dtype=bool)
    return Cells(values, missing, where, start)


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
        case Unit():
            return _ids(cells)
        case _:
            raise AssertionError(column)


def _numbers(cells: Cells, column: Number) -> Floats:
    """Values in their own scale; NaN marks the missing ones that an indicator will tell."""
    numbers = _floats(cells)
    if cells.missing.any():
        numbers = np.where(cells.missing, _substitute(column), numbers)
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
    numbers = values.cast(pl.Float64, strict=False)
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
    """Ids of units, as whole numbers or text."""
    if cells.values.dtype.is_integer():
        return np.array(cells.values.fill_null(0).to_numpy())
    return _as_text(cells).fill_null("").to_numpy().astype(TEXT)


def _texts(cells: Cells, column: Text) -> Array:
    """Sentences, with the declared constant for the missing ones."""
    filled = column.missing.value if isinstance(column.missing, Constant) else ""
    texts = _as_text(cells).fill_null("").to_numpy().astype(TEXT)
    texts[cells.missing] = str(filled)
    return texts


def _vectors(cells: Cells, column: Vector) -> Floats:
    """Rows of numbers, all of the declared length, bounds checked or enforced."""
    values = cells.values
    if isinstance(values.dtype, pl.List):
        lengths = values.list.len().fill_null(column.size).to_numpy()
        cells.refuse(lengths != column.size, f"a list of {column.size} numbers", "Correct it.")
        values = values.list.to_array(column.size)
    if not isinstance(values.dtype, pl.Array) or values.dtype.shape != (column.size,):
        raise DataError(
            cells.where,
            f"lists of {column.size} numbers",
            f"the type {values.dtype}",
            "Correct the declared size or the column.",
        )
    flat = values.explode(empty_as_null=True, keep_nulls=True)
    return _checked_vectors(cells, flat, column)


def _checked_vectors(cells: Cells, flat: pl.Series, column: Vector) -> Floats:
    """Check entries of vectors against their declaration."""
    present = ~cells.missing
    rows = np.zeros((len(present), column.size))
    numbers = flat.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    if len(numbers) != rows.size:  # a missing vector takes one place instead of all
        places = np.repeat(np.arange(len(present)), np.where(present, column.size, 1))
        numbers = numbers[present[places]]
    rows[present] = numbers.reshape(-1, column.size)
    bounds = f"{column.size} numbers in [{column.lower:g}, {column.upper:g}]"
    cells.refuse(np.logical_not(np.isfinite(rows).all(axis=1)), bounds, "Correct the record.")
    if column.outside == "error":
        outside = ((rows < column.lower) | (rows > column.upper)).any(axis=1) & present
        cells.refuse(outside, bounds, "Widen the bounds, or declare outside = 'clip'.")
    return np.clip(rows, column.lower, column.upper)
