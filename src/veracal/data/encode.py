"""A table becomes a data set, by its schema, one row at a time."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from veracal._types import Array, Floats, Ints
from veracal.data.cells import encode_column, find_missing
from veracal.data.checked import frozen
from veracal.data.columns import (
    Category,
    Column,
    Ignore,
    Number,
    Text,
    Vector,
)
from veracal.data.dataset import Dataset, Group
from veracal.data.schema import Schema
from veracal.errors import DataError

_SHOWN = 40  # characters of a wrong field that an error repeats


def encode(frame: pl.DataFrame, schema: Schema, *, where: str, start: int = 0) -> Dataset:
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

    Guarantees
    ----------
    Row i of the result depends on row i of the frame and on the schema alone; rows are
    dropped for what they are, never for what others are. A row outside its declaration
    raises, and then nothing of the frame is returned.
    """
    frame = join_vectors(frame, schema, where)
    check_columns(frame.columns, schema, where)
    dropped = np.zeros(frame.height, dtype=bool)
    encoded: dict[str, Array] = {}
    for name, column in schema.columns.items():
        if isinstance(column, Ignore):
            continue
        cells = find_missing(frame[name], schema.missing, f"{where}: column {name!r}", start)
        if column.missing == "drop":
            dropped |= cells.missing
        encoded[name] = encode_column(cells, column)
    kept = np.flatnonzero(~dropped)
    groups = {
        name: Group(
            _group_codes(
                encoded[grouping.column], schema.columns[grouping.column], grouping.edges
            ),
            grouping.names(schema.columns[grouping.column]),
        )
        for name, grouping in schema.groups.items()
    }
    whole = Dataset(
        frozen(_assemble(encoded, schema, frame.height)),
        encoded[schema.target],
        schema.classes,
        groups=groups,
        units=None if schema.unit is None else encoded[schema.unit],
        feature_names=schema.feature_names,
        size=schema.size,
        norm=schema.norm,
        may_drop=any(getattr(c, "missing", None) == "drop" for c in schema.columns.values()),
        name=schema.name,
    )
    return whole.take(kept) if len(kept) < frame.height else whole


def check_columns(names: Sequence[str], schema: Schema, where: str) -> None:
    """Refuse a table whose columns are not exactly the declared ones."""
    undeclared = [name for name in names if name not in schema.columns]
    needed = (name for name, c in schema.columns.items() if not isinstance(c, Ignore))
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
            f"only {', '.join(map(repr, list(names)[:8]))}"[:200],
            "Correct the schema or the table.",
        )


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
