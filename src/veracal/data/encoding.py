"""Encoding of a table as a data set by its schema, each row independently of all others."""

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
    FillValue,
    Ignore,
    Number,
    Slot,
    Target,
    Text,
    UnitColumn,
    Vector,
)
from veracal.data.dataset import Dataset, Group
from veracal.data.labels import TEXT, read_only
from veracal.data.row_digests import digests_of_frame
from veracal.data.schema import Schema
from veracal.data.units import limit_contributions
from veracal.errors import DataError

_EXCERPT = 40  # characters of a wrong field that an error message shows


@dataclass(frozen=True, eq=False)
class Cells:
    """One column of a table: values, which of them are missing, and its name for errors.

    ``numbers`` optionally holds the values as floats, null where a value is no number:
    converting several columns together is faster than one by one.
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
            excerpt = text if len(text) <= _EXCERPT else text[:_EXCERPT] + "…"
            record = self.start + int(rows[0]) + 1
            raise DataError(self.where, expected, f"{excerpt} in record {record}", remedy)


def find_missing(
    values: pl.Series,
    marks: Sequence[str],
    where: str,
    start: int,
    numbers: pl.Series | None = None,
) -> Cells:
    """Find the missing values of a column: nulls, and fields equal to a declared mark.

    A vector is missing as a whole if any of its entries is.
    """
    if isinstance(values.dtype, pl.Array):
        values = values.arr.to_list()
    if isinstance(values.dtype, pl.List):
        entries = _is_missing(values.explode(empty_as_null=False, keep_nulls=False), marks)
        owner = np.repeat(np.arange(len(values)), values.list.len().fill_null(0).to_numpy())
        missing = values.is_null().to_numpy() | (
            np.bincount(owner, weights=entries, minlength=len(values)) > 0
        )
    else:
        missing = _is_missing(values, marks)
    return Cells(values, missing, where, start, numbers)


def numbers_of(frame: pl.DataFrame, columns: Mapping[str, Column]) -> dict[str, pl.Series]:
    """Convert text of numeric columns to floats in parallel, null where it is no number."""
    numeric = {name for name, column in columns.items() if isinstance(column, Number)}
    texts = [n for n, kind in frame.schema.items() if kind == pl.String and n in numeric]
    numbers = frame.select(pl.col(texts).cast(pl.Float64, strict=False))
    return {column.name: column for column in numbers.iter_columns()}


def _is_missing(values: pl.Series, marks: Sequence[str]) -> Bools:
    """Which values are null, or equal to one of the marks."""
    missing = np.zeros(len(values), dtype=bool)
    if values.null_count():
        missing |= values.is_null().to_numpy()
    if values.dtype == pl.String and marks:
        missing |= values.is_in(list(marks)).fill_null(True).to_numpy()
    elif values.dtype.is_integer():
        whole = [int(mark) for mark in marks if re.fullmatch(r"[+-]?[0-9]{1,18}", mark)]
        if whole:  # as integers, since floats do not represent all ids
            missing |= values.cast(pl.Int128).is_in(whole).fill_null(True).to_numpy()
    elif values.dtype.is_float():
        numbers = [float(mark) for mark in marks if _is_float(mark)]
        if numbers:
            missing |= values.is_in(numbers).fill_null(True).to_numpy()
        if any(math.isnan(number) for number in numbers):
            missing |= values.is_nan().fill_null(True).to_numpy()
    return missing


def _is_float(mark: str) -> bool:
    """Whether a mark can occur in a column of numbers."""
    try:
        float(mark)
    except ValueError:
        return False
    return "_" not in mark  # Python parses 1_0 as 10


def encode_column(cells: Cells, column: Column) -> Array:
    """Encode one column; the result for rows to be dropped is arbitrary.

    Returns
    -------
    array of shape (n,), or (n, size) for a vector
        Numbers in their own scale, with NaN where an indicator will mark a missing value;
        indices of declared values or classes, with the number of values for an indicated
        missing value and -1 for an ignored one; ids; texts.
    """
    if getattr(column, "missing", None) is None:
        cells.refuse(
            cells.missing,
            "a value (no treatment of missing ones is declared)",
            "Declare missing = 'drop', 'indicator' or { constant = … } for the column.",
        )
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
            return _indices(cells, values, "Declare the class, or correct the record.")
        case UnitColumn() | Slot():
            return _ids(cells)
        case _:
            raise AssertionError(column)


def _numbers(cells: Cells, column: Number) -> Floats:
    """Values in their own scale; NaN for missing ones that an indicator will mark."""
    numbers = _floats(cells)
    if cells.missing.any():
        numbers = np.where(cells.missing, _substitute(column), numbers)
    elif len(numbers) and numbers.min() >= column.lower and numbers.max() <= column.upper:
        return numbers  # false if there is a NaN, which min and max return
    # NaN fails every comparison, so missing values are excluded by name.
    valid = ((numbers >= column.lower) & (numbers <= column.upper)) | cells.missing
    if valid.all():
        return numbers
    bounds = f"a number in [{column.lower:g}, {column.upper:g}]"
    cells.refuse(~(np.isfinite(numbers) | cells.missing), bounds, "Correct the record.")
    if column.outside == "error":
        cells.refuse(~valid, bounds, "Widen the bounds, or declare outside = 'clip'.")
    return np.clip(numbers, column.lower, column.upper)


def _substitute(column: Number) -> float:
    """Value for a missing number: NaN where an indicator will mark it."""
    if isinstance(column.missing, FillValue):
        return float(column.missing.value)
    return math.nan if column.missing == "indicator" else column.lower


def _floats(cells: Cells) -> Floats:
    """Convert text or numbers to floats, rejecting present values that are no numbers."""
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
    """Indices of the declared values; their number for missing, -1 for ignored values."""
    values = tuple(map(str, column.values))
    if column.outside == "ignore":
        codes = _lookup(cells, values)
    else:
        codes = _indices(cells, values, "Declare the value, or correct the record.")
    if isinstance(column.missing, FillValue):
        codes[cells.missing] = values.index(str(column.missing.value))
    elif column.missing == "indicator":
        codes[cells.missing] = len(values)
    return codes


def _indices(cells: Cells, values: tuple[str, ...], remedy: str) -> Ints:
    """Indices of declared values, rejecting present values that are not declared."""
    codes = _lookup(cells, values)
    listed = ", ".join(map(repr, values[:8])) + (", …" if len(values) > 8 else "")
    cells.refuse((codes < 0) & ~cells.missing, f"one of {listed}", remedy)
    return np.maximum(codes, 0)


def _lookup(cells: Cells, values: tuple[str, ...]) -> Ints:
    """Indices of declared values, -1 for other values."""
    texts = _as_text(cells)
    codes = texts.cast(pl.Enum(values), strict=False).to_physical().cast(pl.Int64)
    return np.array(codes.fill_null(-1).to_numpy())


def _as_text(cells: Cells) -> pl.Series:
    """Convert values to text as a CSV file would hold them."""
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
    """Unit ids as integers or text; rows without one are dropped later."""
    if cells.values.dtype.is_integer():
        return np.array(cells.values.fill_null(0).to_numpy())
    if cells.values.dtype.is_float():  # larger ids may have been rounded
        large = (cells.values.abs() > 2.0**53).fill_null(False).to_numpy()
        cells.refuse(large & ~cells.missing, "ids up to 2^53 as floats", "Store them as text.")
    texts = _as_text(cells).fill_null("").to_numpy().astype(TEXT)
    cells.refuse((texts == "") & ~cells.missing, "an id", "List '' under missing, and drop it.")
    texts[cells.missing] = "(dropped)"
    return texts


def _texts(cells: Cells, column: Text) -> Array:
    """Texts, with the declared constant for missing ones."""
    filled = column.missing.value if isinstance(column.missing, FillValue) else ""
    texts = _as_text(cells).fill_null("").to_numpy().astype(TEXT)
    texts[cells.missing] = str(filled)
    return texts


def _vectors(cells: Cells, column: Vector) -> Floats:
    """Vectors of the declared length, with bounds checked or enforced."""
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


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Rows of a table as its schema encodes them, with or without labels.

    Attributes
    ----------
    X : array of shape (n, d), or of text
    groups : mapping of str to Group
    units, slots : array of ids, of shape (n,), optional
    y : array of ints of shape (n,), or None without labels
    numbers : array of ints of shape (n,)
        Row number in the table, from 0. Missing numbers were dropped by the schema.
    row_digests : array of shape (n,), optional
        Digest of each record, if requested.
    """

    X: Array
    groups: Mapping[str, Group]
    units: Array | None
    y: Ints | None
    numbers: Ints
    slots: Array | None = None
    row_digests: Array | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"EncodedRows(n={len(self)})"

    def take(self, index: Ints) -> "EncodedRows":
        """Select the rows of ``index``, in its order."""
        return EncodedRows(
            read_only(self.X[index]),
            {name: group.take(index) for name, group in self.groups.items()},
            None if self.units is None else self.units[index],
            None if self.y is None else self.y[index],
            self.numbers[index],
            None if self.slots is None else self.slots[index],
            None if self.row_digests is None else self.row_digests[index],
        )


def encode(
    frame: pl.DataFrame,
    schema: Schema,
    *,
    where: str,
    start: int = 0,
    row_digests: bool = False,
    written: bool = False,
) -> Dataset:
    """Encode rows of a table as a data set.

    Parameters
    ----------
    frame : polars.DataFrame
        Columns of text as in the file, or already typed.
    schema : Schema
        Declaration of each column.
    where : str
        Name of the table, for errors.
    start : int
        Number of records before the first row, for errors.
    row_digests : bool
        Whether to compute the digest of each record from the frame.
    written : bool
        Whether the file holds only text, as CSV does.

    Guarantees
    ----------
    Row i of the result depends on row i of the frame and on the schema only, and so does
    whether it is dropped. A row that violates its declaration raises, and then no row is
    returned.
    """
    rows = encode_rows(
        frame,
        schema,
        where=where,
        start=start,
        labeled=True,
        row_digests=row_digests,
        written=written,
    )
    assert rows.y is not None
    return Dataset(
        rows.X,
        rows.y,
        schema.classes,
        groups=rows.groups,
        units=rows.units,
        slots=rows.slots,
        row_digests=rows.row_digests,
        encoded=True,
        feature_names=schema.feature_names,
        size=schema.size,
        norm=schema.norm,
        may_drop=any(getattr(c, "missing", None) == "drop" for c in schema.columns.values()),
        name=schema.name,
    )


def declare_dataset(schema: Schema, *, where: str) -> Dataset:
    """Return the facts that a schema declares as a data set without rows.

    Its shape, classes, groups and declared facts are those of every table that the schema
    describes. Costs that follow from them are thus known before a record is read.
    """
    numbers, text = pl.List(pl.Float64), pl.String()
    frame = pl.DataFrame(
        [
            pl.Series(name, [], numbers if isinstance(column, Vector) else text)
            for name, column in schema.columns.items()
        ]
    )
    dataset = encode(frame, schema, where=where, row_digests=True)
    return limit_contributions(dataset, max_contributions=schema.at_most)


def encode_rows(
    frame: pl.DataFrame,
    schema: Schema,
    *,
    where: str,
    start: int = 0,
    labeled: bool,
    row_digests: bool = False,
    written: bool = False,
) -> EncodedRows:
    """Encode rows of a table with or without labels; without, the target column is not read.

    Parameters and guarantees are those of :func:`encode`.
    """
    original, frame = frame, join_vectors(frame, schema, where)
    check_columns(frame.columns, schema, where, labeled=labeled)
    dropped = np.zeros(frame.height, dtype=bool)
    encoded: dict[str, Array] = {}
    numbers = numbers_of(frame, schema.columns)
    for name, column in schema.columns.items():
        if isinstance(column, Ignore) or (isinstance(column, Target) and not labeled):
            continue
        label = f"{where}: column {name!r}"
        cells = find_missing(frame[name], schema.missing, label, start, numbers.get(name))
        if getattr(column, "missing", None) == "drop":
            dropped |= cells.missing
        encoded[name] = encode_column(cells, column)
    rows = EncodedRows(
        read_only(_assemble(encoded, schema, frame.height)),
        {name: _group(encoded, schema, name) for name in schema.groups},
        None if schema.unit is None else encoded[schema.unit],
        encoded.get(schema.target),
        start + np.arange(frame.height),
        None if schema.slot is None else encoded[schema.slot],
        digests_of_frame(original, schema, written=written) if row_digests else None,
    )
    return rows.take(np.flatnonzero(~dropped)) if dropped.any() else rows


def check_columns(
    names: Sequence[str], schema: Schema, where: str, *, labeled: bool = True
) -> None:
    """Reject a table whose columns are not exactly the declared ones.

    Ignored columns may be absent, and so may the target of an unlabeled table.
    """
    undeclared = [name for name in names if name not in schema.columns]
    optional = Ignore if labeled else (Ignore, Target)
    required = (name for name, c in schema.columns.items() if not isinstance(c, optional))
    absent = [name for name in required if name not in names]
    if undeclared:
        raise DataError(
            where,
            f"only the {len(schema.columns)} declared columns",
            f"also {', '.join(map(repr, undeclared[:5]))}",
            "Declare each of them, with kind = 'ignore' if it is not needed.",
        )
    if absent:
        raise DataError(
            where,
            f"a column {absent[0]!r}",
            f"{'' if len(names) > 8 else 'only '}{_excerpt(list(names), 8)}",
            "Correct the schema or the table.",
        )


def _excerpt(names: list[str], most: int) -> str:
    """The first names, shortened, and the number of further ones."""
    text = ", ".join(
        repr(name if len(name) <= 40 else f"{name[:40]}…") for name in names[:most]
    )
    return text + (f" and {len(names) - most} more" if len(names) > most else "")


def join_vectors(frame: pl.DataFrame, schema: Schema, where: str) -> pl.DataFrame:
    """Join the columns ``name_0``, ``name_1``, … of a declared vector."""
    for name, column in schema.columns.items():
        parts = column.feature_names(name) if isinstance(column, Vector) else ()
        if parts and name not in frame.columns and parts[0] in frame.columns:
            absent = [part for part in parts if part not in frame.columns]
            if absent:
                raise DataError(
                    where,
                    f"columns {parts[0]!r} to {parts[-1]!r}",
                    f"no {absent[0]!r}",
                    "Correct the size of the vector.",
                )
            joined = pl.concat_list([pl.col(part) for part in parts]).alias(name)
            frame = frame.with_columns(joined).drop(parts)
    return frame


def clip_rows(X: Floats, norm: float) -> Floats:
    r"""Scale rows down to a Euclidean norm of at most ``norm``.

    Guarantees
    ----------
    The computed norm of every row is at most ``norm``; shorter rows are unchanged.
    """
    largest = np.maximum(np.abs(X).max(axis=1, initial=0), np.finfo(X.dtype).tiny)
    norms = largest * np.linalg.norm(X / largest[:, None], axis=1)  # or squares overflow
    long = norms > norm
    # A computed norm may be an ulp too small, so aim a little below the bound.
    X[long] *= (norm * (1 - 1e-12) / norms[long])[:, None]
    return X


def _group(encoded: Mapping[str, Array], schema: Schema, name: str) -> Group:
    """Group of each row."""
    grouping = schema.groups[name]
    column = schema.columns[grouping.column]
    codes = _group_codes(encoded[grouping.column], column, grouping.edges)
    return Group(codes, grouping.names(column))


def _group_codes(values: Array, column: Column, edges: Sequence[float] | None) -> Ints:
    """Codes of the group of each row."""
    if edges is None:
        return values
    codes = np.clip(np.searchsorted(edges, values, side="left") - 1, 0, len(edges) - 2)
    if getattr(column, "missing", None) == "indicator":
        codes[np.isnan(values)] = len(edges) - 1
    return codes


def _assemble(encoded: dict[str, Array], schema: Schema, n: int) -> Array:
    """Stack the encoded columns into X."""
    features = schema.features
    if all(isinstance(column, Text) for column in features.values()):
        return np.stack([encoded[name] for name in features], axis=1)
    X = np.zeros((n, len(schema.feature_names)))
    start = 0
    for name, column in features.items():
        stop = start + len(column.feature_names(name))
        _fill(X[:, start:stop], encoded[name], column)
        start = stop
    return X if schema.norm is None else clip_rows(X, schema.norm)


def _fill(block: Floats, values: Array, column: Column) -> None:
    """Write the encoding of one column into its slice of X."""
    if isinstance(column, Category):
        known = np.flatnonzero((values >= 0) & (values < block.shape[1]))
        block[known, values[known]] = 1
        return
    assert isinstance(column, Number | Vector)
    scaled = (values - column.shift) / column.scale
    if isinstance(column, Vector):
        block[:] = scaled
    elif column.missing == "indicator":
        missing = np.isnan(values)
        block[:, 0] = np.where(missing, 0, scaled)
        block[:, 1] = missing
    else:
        block[:, 0] = scaled
