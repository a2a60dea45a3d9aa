"""Encoding of a table as a data set by its schema, each row independently of all others."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from veracal._types import Array, Bools, Floats, Ints
from veracal.data.dataset import Dataset, Group, Records, limit_contributions
from veracal.data.row_digests import digests_of_frame
from veracal.data.rows import TEXT, first_of, read_only
from veracal.data.schema import (
    Category,
    Column,
    FillValue,
    Ignore,
    Number,
    Schema,
    Slot,
    Target,
    Text,
    UnitColumn,
    Vector,
)
from veracal.errors import DataError

_EXCERPT = 40  # characters of a wrong field that an error message shows


@dataclass(frozen=True, eq=False)
class Cells:
    """One column of a table: values, which of them are missing, and its name for errors."""

    values: pl.Series
    missing: Bools
    where: str
    start: int

    def refuse(self, wrong: Bools, expected: str, remedy: str) -> None:
        """Raise for the first wrong value, if any, naming its record."""
        if not wrong.any():
            return
        row = int(np.argmax(wrong))
        value = self.values[row]
        text = repr(value.to_list() if isinstance(value, pl.Series) else value)
        excerpt = text if len(text) <= _EXCERPT else text[:_EXCERPT] + "…"
        raise DataError(
            self.where, expected, f"{excerpt} in record {self.start + row + 1}", remedy
        )

    def bad_type(self, expected: str, remedy: str = "Convert the column.") -> DataError:
        """Error for a type that cannot be read."""
        return DataError(self.where, expected, f"the type {self.values.dtype}", remedy)


def _find_cells(values: pl.Series, marks: Sequence[str], where: str, start: int) -> Cells:
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
    return Cells(values, missing, where, start)


def _is_missing(values: pl.Series, marks: Sequence[str]) -> Bools:
    """Which values are null, or equal to one of the marks."""
    tests = []
    if values.dtype == pl.String and marks:
        tests.append(values.is_in(list(marks)))
    elif values.dtype.is_integer():
        whole = [int(mark) for mark in marks if re.fullmatch(r"[+-]?[0-9]{1,18}", mark)]
        if whole:  # as integers, since floats do not represent all ids
            tests.append(values.cast(pl.Int128).is_in(whole))
    elif values.dtype.is_float():
        numbers = []
        for mark in marks:
            try:
                numbers += [float(mark)] if "_" not in mark else []  # Python parses 1_0 as 10
            except ValueError:
                continue  # a word, which no column of numbers holds
        if numbers:
            tests.append(values.is_in(numbers))
        if any(math.isnan(number) for number in numbers):
            tests.append(values.is_nan())
    missing = np.zeros(len(values), dtype=bool)
    if values.null_count():  # known to polars, while each operation on a series has a price
        missing |= values.is_null().to_numpy()
    for test in tests:
        missing |= test.fill_null(True).to_numpy()
    return missing


def _encode_column(cells: Cells, column: Column, numbers: pl.Series | None) -> Array:
    """Encode one column; the result for rows to be dropped is arbitrary.

    ``numbers`` optionally holds the values as floats, null where a value is no number.

    It has shape (n,), or (n, size) for a vector: numbers in their own scale, with NaN where an
    indicator will mark a missing value; indices of declared values or classes, with the number
    of values for an indicated missing value and -1 for an ignored one; ids; texts.
    """
    treatment = getattr(column, "missing", None)
    constant = treatment.value if isinstance(treatment, FillValue) else None
    if treatment is None:
        cells.refuse(
            cells.missing,
            "a value (no treatment of missing ones is declared)",
            "Declare missing = 'drop', 'indicator' or { constant = … } for the column.",
        )
    match column:
        case Number():
            return _encode_numbers(cells, column, numbers)
        case Vector():
            return _encode_vectors(cells, column)
        case Category():
            values = tuple(map(str, column.values))
            codes = _encode_values(cells, values, "value", ignore=column.outside == "ignore")
            if constant is not None:
                codes[cells.missing] = values.index(str(constant))
            elif treatment == "indicator":
                codes[cells.missing] = len(values)
            return codes
        case Target():
            return _encode_values(cells, tuple(map(str, column.classes)), "class")
        case Text():
            texts = _as_text(cells).fill_null("").to_numpy().astype(TEXT)
            texts[cells.missing] = "" if constant is None else str(constant)
            return texts
    assert isinstance(column, UnitColumn | Slot)
    if cells.values.dtype.is_integer():
        return np.array(cells.values.fill_null(0).to_numpy())
    if cells.values.dtype.is_float():  # larger ids may have been rounded
        large = (cells.values.abs() > 2.0**53).fill_null(False).to_numpy()
        cells.refuse(large & ~cells.missing, "ids up to 2^53 as floats", "Store them as text.")
    ids = _as_text(cells).fill_null("").to_numpy().astype(TEXT)
    cells.refuse((ids == "") & ~cells.missing, "an id", "List '' under missing, and drop it.")
    ids[cells.missing] = "(dropped)"
    return ids


def _encode_numbers(cells: Cells, column: Number, numbers: pl.Series | None) -> Floats:
    """Values in their own scale, with bounds checked or enforced."""
    if cells.values.dtype.is_temporal() or cells.values.dtype.is_nested():
        raise cells.bad_type("numbers", "Convert it, or ignore the column.")
    if numbers is None:
        numbers = cells.values.cast(pl.Float64, strict=False)
    if numbers.null_count():
        cells.refuse(
            numbers.is_null().to_numpy() & ~cells.missing,
            "a number",
            "Correct the record, or list the mark under missing and declare a treatment.",
        )
        numbers = numbers.fill_null(0.0)
    result: Floats = numbers.to_numpy()
    if cells.missing.any():
        fill = math.nan if column.missing == "indicator" else column.lower
        if isinstance(column.missing, FillValue):
            fill = float(column.missing.value)
        result = np.where(cells.missing, fill, result)
    # NaN fails every comparison, so missing values are excluded by name.
    valid = ((result >= column.lower) & (result <= column.upper)) | cells.missing
    if valid.all():
        return result
    bounds = f"a number in [{column.lower:g}, {column.upper:g}]"
    cells.refuse(~(np.isfinite(result) | cells.missing), bounds, "Correct the record.")
    if column.outside == "error":
        cells.refuse(~valid, bounds, "Widen the bounds, or declare outside = 'clip'.")
    return np.clip(result, column.lower, column.upper)


def _encode_vectors(cells: Cells, column: Vector) -> Floats:
    """Vectors of the declared length, with bounds checked or enforced."""
    values, present = cells.values, ~cells.missing
    if not isinstance(values.dtype, pl.List):
        raise cells.bad_type(
            f"lists of {column.size} numbers", "Correct the declared size or the column."
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


def _encode_values(
    cells: Cells, values: tuple[str, ...], what: str, *, ignore: bool = False
) -> Ints:
    """Indices of declared values; others are rejected, or get -1."""
    texts = _as_text(cells)
    indices = texts.cast(pl.Enum(values), strict=False).to_physical().cast(pl.Int64)
    codes: Ints = np.array(indices.fill_null(-1).to_numpy())
    if ignore:
        return codes
    remedy = f"Declare the {what}, or correct the record."
    cells.refuse((codes < 0) & ~cells.missing, f"one of {first_of(values)}", remedy)
    return np.maximum(codes, 0)


def _as_text(cells: Cells) -> pl.Series:
    """Convert values to text as a CSV file would hold them."""
    values = cells.values
    if values.dtype.is_nested() or values.dtype.is_temporal() or values.dtype == pl.Binary:
        raise cells.bad_type("text or whole numbers")
    if values.dtype.is_float():
        whole = ((values == values.floor()) | values.is_null()).fill_null(False).to_numpy()
        cells.refuse(~(whole | cells.missing), "text or whole numbers", "Convert the column.")
        values = values.cast(pl.Int64, strict=False)
        cells.refuse(
            values.is_null().to_numpy() & ~cells.missing,
            "whole numbers of at most 64 bits",
            "Convert the column.",
        )
    return values.cast(pl.String)


@dataclass(frozen=True, eq=False)
class EncodedRows(Records):
    """Rows of a table as its schema encodes them; ``y`` is None without labels.

    ``numbers`` are row numbers in the table, from 0; missing ones were dropped by the schema.
    """

    X: Array
    groups: Mapping[str, Group]
    units: Array | None
    y: Ints | None
    numbers: Ints
    slots: Array | None = None
    row_digests: Array | None = None
    _by_row = ("X", "y", "units", "slots", "row_digests", "numbers")

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"EncodedRows(n={len(self)})"


def encode(
    frame: pl.DataFrame,
    schema: Schema,
    *,
    where: str,
    start: int = 0,
    row_digests: bool = False,
    written: bool = False,
) -> Dataset:
    """Encode rows of a table, whose columns are text as in the file or typed, as a data set.

    Errors name the table (``where``) and count ``start`` records before the first row.
    ``written`` says that the file holds only text, as CSV does, which row digests need.

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
    return limit_contributions(dataset, max_contributions=schema.max_contributions)


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
    original, frame = frame, _join_vectors(frame, schema, where)
    _check_columns(frame.columns, schema, where, labeled=labeled)
    # Converting the texts of all numeric columns together is faster than one by one.
    numeric = {name for name, column in schema.columns.items() if isinstance(column, Number)}
    texts = [n for n, kind in frame.schema.items() if kind == pl.String and n in numeric]
    numbers = frame.select(pl.col(texts).cast(pl.Float64, strict=False)).get_columns()
    floats = dict(zip(texts, numbers, strict=True))
    dropped = np.zeros(frame.height, dtype=bool)
    encoded: dict[str, Array] = {}
    for name, column in schema.columns.items():
        if isinstance(column, Ignore) or (isinstance(column, Target) and not labeled):
            continue
        cells = _find_cells(frame[name], schema.missing, f"{where}: column {name!r}", start)
        if getattr(column, "missing", None) == "drop":
            dropped |= cells.missing
        encoded[name] = _encode_column(cells, column, floats.get(name))
    rows = EncodedRows(
        read_only(_assemble(encoded, schema, frame.height)),
        {name: _group(encoded, schema, name) for name in schema.groups},
        None if schema.unit is None else encoded[schema.unit],
        encoded.get(schema.target),
        start + np.arange(frame.height),
        None if schema.slot is None else encoded[schema.slot],
        digests_of_frame(original, schema, written=written) if row_digests else None,
    )
    return rows._select(np.flatnonzero(~dropped)) if dropped.any() else rows


def _check_columns(names: Sequence[str], schema: Schema, where: str, *, labeled: bool) -> None:
    """Reject a table whose columns are not exactly the declared ones.

    Ignored columns may be absent, and so may the target of an unlabeled table.
    """
    undeclared = [name for name in names if name not in schema.columns]
    if undeclared:
        raise DataError(
            where,
            f"only the {len(schema.columns)} declared columns",
            f"also {', '.join(map(repr, undeclared[:5]))}",
            "Declare each of them, with kind = 'ignore' if it is not needed.",
        )
    optional = Ignore if labeled else (Ignore, Target)
    for required, column in schema.columns.items():
        if required not in names and not isinstance(column, optional):
            short = [repr(n if len(n) <= 40 else f"{n[:40]}…") for n in names[:8]]
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            raise DataError(
                where,
                f"a column {required!r}",
                f"{'' if more else 'only '}{', '.join(short)}{more}",
                "Correct the schema or the table.",
            )


def _join_vectors(frame: pl.DataFrame, schema: Schema, where: str) -> pl.DataFrame:
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
    column, edges = schema.columns[grouping.column], grouping.edges
    codes = encoded[grouping.column]
    if edges is not None:
        values = codes
        codes = np.clip(np.searchsorted(edges, values, side="left") - 1, 0, len(edges) - 2)
        if getattr(column, "missing", None) == "indicator":
            codes[np.isnan(values)] = len(edges) - 1
    return Group(codes, grouping.names(column))


def _assemble(encoded: dict[str, Array], schema: Schema, n: int) -> Array:
    """Stack the encoded columns into X."""
    features = schema.features
    if all(isinstance(column, Text) for column in features.values()):
        return np.stack([encoded[name] for name in features], axis=1)
    X = np.zeros((n, len(schema.feature_names)))
    start = 0
    for name, column in features.items():
        values, stop = encoded[name], start + len(column.feature_names(name))
        block, start = X[:, start:stop], stop
        if isinstance(column, Category):
            known = np.flatnonzero((values >= 0) & (values < block.shape[1]))
            block[known, values[known]] = 1
            continue
        assert isinstance(column, Number | Vector)
        scaled = (values - column.shift) / column.scale
        if isinstance(column, Vector):
            block[:] = scaled
            continue
        block[:, 0] = scaled
        if column.missing == "indicator":
            missing = np.isnan(values)
            block[missing, 0] = 0
            block[:, 1] = missing
    return X if schema.norm is None else clip_rows(X, schema.norm)
