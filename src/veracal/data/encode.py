"""A table becomes a data set, by its schema, one row at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from veracal._types import Array, Floats, Ints
from veracal.data.cells import encode_column, find_missing, numbers_of
from veracal.data.checked import frozen
from veracal.data.columns import (
    Category,
    Column,
    Ignore,
    Number,
    Target,
    Text,
    Vector,
)
from veracal.data.dataset import Dataset, Group
from veracal.data.row_digests import digests_of_frame
from veracal.data.schema import Schema
from veracal.data.units import limit_contributions
from veracal.errors import DataError

_SHOWN = 40  # characters of a wrong field that an error repeats


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table as its schema encodes them, whether or not anybody knows their labels.

    Attributes
    ----------
    X : array of shape (n, d), or of text
    groups : mapping of str to Group
    units, slots : array of ids, of shape (n,), optional
    y : array of ints of shape (n,), or None without labels
    numbers : array of ints of shape (n,)
        Which row of the table each of them is, counted from 0. Those that are left out were
        dropped by the schema.
    row_digests : array of shape (n,), optional
        Identity of each record, where it was asked for.
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
        return f"Rows(n={len(self)})"

    def take(self, index: Ints) -> "Rows":
        """Keep the rows of ``index``, in its order."""
        return Rows(
            frozen(self.X[index]),
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
    """Encode rows of a table.

    Parameters
    ----------
    frame : polars.DataFrame
        Columns of text as they stood in a file, or already typed.
    schema : Schema
        What each column was declared to be.
    where : str
        Name of the table, for errors.
    start : int
        Number of records before the first row, for errors.
    row_digests : bool
        Whether to compute the identity of each record, from the frame as it is.
    written : bool
        Whether the file holds nothing but text, as CSV does.

    Guarantees
    ----------
    Row i of the result depends on row i of the frame and on the schema alone; rows are
    dropped for what they are, never for what others are. A row outside its declaration
    raises, and then nothing of the frame is returned.
    """
    found = encode_rows(
        frame,
        schema,
        where=where,
        start=start,
        labeled=True,
        row_digests=row_digests,
        written=written,
    )
    assert found.y is not None
    return Dataset(
        found.X,
        found.y,
        schema.classes,
        groups=found.groups,
        units=found.units,
        slots=found.slots,
        row_digests=found.row_digests,
        encoded=True,
        feature_names=schema.feature_names,
        size=schema.size,
        norm=schema.norm,
        may_drop=any(getattr(c, "missing", None) == "drop" for c in schema.columns.values()),
        name=schema.name,
    )


def encode_nothing(schema: Schema, *, where: str) -> Dataset:
    """What a schema declares, as a data set without a row.

    Its form, classes, groups and declared figures are those of every table that the schema
    describes, so that whatever follows from them is known before a record is read.
    """
    numbers, text = pl.List(pl.Float64), pl.String()
    frame = pl.DataFrame(
        [
            pl.Series(name, [], numbers if isinstance(column, Vector) else text)
            for name, column in schema.columns.items()
        ]
    )
    whole = encode(frame, schema, where=where, row_digests=True)
    return limit_contributions(whole, at_most=schema.at_most)


def encode_rows(
    frame: pl.DataFrame,
    schema: Schema,
    *,
    where: str,
    start: int = 0,
    labeled: bool,
    row_digests: bool = False,
    written: bool = False,
) -> Rows:
    """Encode rows of a table, with their labels or without: then nobody looks at the target.

    Parameters and guarantees are those of :func:`encode`.
    """
    given, frame = frame, join_vectors(frame, schema, where)
    check_columns(frame.columns, schema, where, labeled=labeled)
    dropped = np.zeros(frame.height, dtype=bool)
    encoded: dict[str, Array] = {}
    numbers = numbers_of(frame, schema.columns)
    for name, column in schema.columns.items():
        if isinstance(column, Ignore) or (isinstance(column, Target) and not labeled):
            continue
        place = f"{where}: column {name!r}"
        cells = find_missing(frame[name], schema.missing, place, start, numbers.get(name))
        if getattr(column, "missing", None) == "drop":
            dropped |= cells.missing
        encoded[name] = encode_column(cells, column)
    rows = Rows(
        frozen(_assemble(encoded, schema, frame.height)),
        {name: _group(encoded, schema, name) for name in schema.groups},
        None if schema.unit is None else encoded[schema.unit],
        encoded.get(schema.target),
        start + np.arange(frame.height),
        None if schema.slot is None else encoded[schema.slot],
        digests_of_frame(given, schema, written=written) if row_digests else None,
    )
    return rows.take(np.flatnonzero(~dropped)) if dropped.any() else rows


def check_columns(
    names: Sequence[str], schema: Schema, where: str, *, labeled: bool = True
) -> None:
    """Refuse a table whose columns are not exactly the declared ones.

    Columns to be ignored need not be there, and without labels the target need not either.
    """
    undeclared = [name for name in names if name not in schema.columns]
    spared = Ignore if labeled else (Ignore, Target)
    needed = (name for name, c in schema.columns.items() if not isinstance(c, spared))
    absent = [name for name in needed if name not in names]
    if undeclared:
        raise DataError(
            where,
            f"only the {len(schema.columns)} declared columns",
            f"also {', '.join(map(repr, undeclared[:5]))}",
            "Declare each, with kind = 'ignore' if nobody needs it.",
        )
    if absent:
        raise DataError(
            where,
            f"a column {absent[0]!r}",
            f"{'' if len(names) > 8 else 'only '}{_listed(list(names), 8)}",
            "Correct the schema or the table.",
        )


def _listed(names: list[str], most: int) -> str:
    """The first names, shortened, and how many more there are."""
    shown = ", ".join(
        repr(name if len(name) <= 40 else f"{name[:40]}…") for name in names[:most]
    )
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def join_vectors(frame: pl.DataFrame, schema: Schema, where: str) -> pl.DataFrame:
    """Gather the columns ``name_0``, ``name_1``, … that stand for a declared vector."""
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
    norms = largest * np.linalg.norm(X / largest[:, None], axis=1)  # squares may overflow
    long = norms > norm
    # A computed norm may be an ulp too small, so aim a little below the bound.
    X[long] *= (norm * (1 - 1e-12) / norms[long])[:, None]
    return X


def _group(encoded: Mapping[str, Array], schema: Schema, name: str) -> Group:
    """The group each row is in."""
    grouping = schema.groups[name]
    column = schema.columns[grouping.column]
    codes = _group_codes(encoded[grouping.column], column, grouping.edges)
    return Group(codes, grouping.names(column))


def _group_codes(values: Array, column: Column, edges: Sequence[float] | None) -> Ints:
    """Codes of the group each row is in."""
    if edges is None:
        return values
    codes = np.clip(np.searchsorted(edges, values, side="left") - 1, 0, len(edges) - 2)
    if getattr(column, "missing", None) == "indicator":
        codes[np.isnan(values)] = len(edges) - 1
    return codes


def _assemble(encoded: dict[str, Array], schema: Schema, n: int) -> Array:
    """Put the columns of X side by side."""
    features = schema.features
    if all(isinstance(column, Text) for column in features.values()):
        return np.stack([encoded[name] for name in features], axis=1)
    X = np.zeros((n, len(schema.feature_names)))
    place = 0
    for name, column in features.items():
        width = len(column.feature_names(name))
        _fill(X[:, place : place + width], encoded[name], column)
        place += width
    return X if schema.norm is None else clip_rows(X, schema.norm)


def _fill(block: Floats, values: Array, column: Column) -> None:
    """Write one column's encoding into its place in X."""
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
