"""Parquet and Arrow files as a stream of small tables, with nothing inferred about them."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from veracal._types import Progress
from veracal.data.limits import Limits, no_surprises, opened, readable
from veracal.data.readers.archives import check_expansion
from veracal.data.readers.coded import Texts
from veracal.data.readers.ipc_sizes import check_batches
from veracal.errors import DataError

_POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_HARMLESS = 2**26  # bytes that may come of a few packed ones


def read_parquet(
    path: Path,
    *,
    rows: int,
    ignored: Collection[str] = (),
    limits: Limits,
    progress: Progress | None = None,
) -> Iterator[pl.DataFrame]:
    """Stream a Parquet file, at most ``rows`` records at a time, without ignored columns."""
    with clear_errors(path), opened(path, limits) as handle:
        file = _open_parquet(handle, path, limits)
        names, total = file.schema_arrow.names, file.metadata.num_rows
        wanted = [name for name in names if name not in ignored]
        done, texts = 0, Texts(path, limits)
        for batch in file.iter_batches(batch_size=rows, columns=wanted, use_threads=False):
            for piece in texts.pieces(batch):
                yield frame_of(sound(piece), path, limits)
            done += batch.num_rows
            if progress:
                progress(done, total)


def parquet_rows(path: Path, limits: Limits) -> int:
    """Number of records in a Parquet file, by its own word."""
    with clear_errors(path), opened(path, limits) as handle:
        return int(pa.parquet.ParquetFile(handle).metadata.num_rows)


def _open_parquet(handle: BinaryIO, path: Path, limits: Limits) -> "pa.parquet.ParquetFile":
    """Open a Parquet file whose sizes are within the limits, texts staying coded."""
    settings = {"pre_buffer": False, "buffer_size": 2**20}
    file = pa.parquet.ParquetFile(handle, **settings)
    names = file.schema_arrow.names
    limits.check("columns", len(names), path)
    limits.check("rows", file.metadata.num_rows, path)
    check_names(names, path)
    packed = unpacked = 0
    for i in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(i)
        packed += sum(group.column(j).total_compressed_size for j in range(group.num_columns))
        unpacked += group.total_byte_size
        limits.check("memory_bytes", group.total_byte_size, path)
    # Of all groups together: many small ones make a large table, too.
    check_expansion(packed, unpacked, path, limits, harmless=_HARMLESS)
    texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
    handle.seek(0)
    return pa.parquet.ParquetFile(handle, read_dictionary=texts, **settings)


def read_arrow(
    path: Path,
    *,
    ignored: Collection[str] = (),
    limits: Limits,
    progress: Progress | None = None,
) -> Iterator[pl.DataFrame]:
    """Stream an Arrow IPC file (``.arrow``, ``.feather``) or stream (``.arrows``)."""
    readable(path, limits)
    with clear_errors(path):
        check_batches(path, limits)
    with clear_errors(path), pa.memory_map(str(path)) as handle:
        magic = handle.read(6) == b"ARROW1"
        handle.seek(0)
        reader = pa.ipc.open_file(handle) if magic else pa.ipc.open_stream(handle)
        names = reader.schema.names
        limits.check("columns", len(names), path)
        check_names(names, path)
        total = reader.num_record_batches if magic else None
        texts = Texts(path, limits)
        batches = map(reader.get_batch, range(total or 0)) if magic else reader
        for done, batch in enumerate(batches, 1):
            if progress:
                progress(done, total)
            kept = batch.drop_columns([n for n in names if n in ignored])
            for piece in texts.pieces(kept):
                yield frame_of(sound(piece), path, limits)


def frame_of_arrays(arrays: dict[str, Any], path: Path, limits: Limits) -> pl.DataFrame:
    """Make a table of equally long arrays, as an npz file holds them."""
    limits.check("columns", len(arrays), path)
    lengths = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        raise DataError(
            str(path),
            "arrays with one entry for each record",
            ", ".join(
                f"{name}: {n if n >= 0 else 'a single value'}" for name, n in lengths.items()
            ),
            "Save arrays of equal length.",
        )
    native = {
        name: np.ascontiguousarray(
            array.reshape(len(array), -1) if array.ndim > 2 else array,
            dtype=array.dtype.newbyteorder("="),
        )
        for name, array in arrays.items()
    }
    texts = {name: a.tolist() if a.dtype.kind in "US" else a for name, a in native.items()}
    frame = pl.DataFrame(texts)
    _check_fields(frame, path, limits)
    return frame


def check_names(names: Sequence[str], path: Path) -> None:
    """Refuse columns without a name, or with one that is taken."""
    for i, name in enumerate(names):
        if not name.strip():
            raise DataError(
                str(path), "a name for each column", f"none for column {i + 1}", "Name it."
            )
        if name in names[:i]:
            raise DataError(
                str(path),
                "columns of different names",
                f"{name!r} twice",
                "Rename one of them; if the first line holds a record and no names, say so: "
                "header = false in the schema, --no-header for a draft.",
            )


def sound(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch in which no offset leads astray, and text is UTF-8."""
    batch.validate(full=True)
    return batch


def frame_of(batch: pa.RecordBatch, path: Path, limits: Limits) -> pl.DataFrame:
    """Hand a sound Arrow batch to polars, once it is of types we know."""
    for field in batch.schema:
        if not is_known(field.type):
            raise DataError(
                f"{path}: column {field.name!r}",
                "numbers, text, true and false, or lists of numbers",
                f"the type {field.type}",
                "Convert the column, or declare it as kind = 'ignore'.",
            )
    # One column at a time: what else a file says of its columns is not wanted.
    series = (pl.Series(name, _column(batch.column(name))) for name in batch.schema.names)
    frame = pl.DataFrame(list(series))
    _check_fields(frame, path, limits)
    return frame


def _column(values: pa.Array) -> pl.Series:
    """Hand one column to polars, a coded one as the values it stands for."""
    if pa.types.is_dictionary(values.type):
        words = values.dictionary
        words = words.cast(pa.large_string()) if _is_text(words.type) else words
        values = words.take(values.indices)
    series = pl.from_arrow(values)
    assert isinstance(series, pl.Series)
    return series


def _is_text(kind: pa.DataType) -> bool:
    """Tell whether a type is one of Arrow's three for text."""
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    )


def is_known(kind: pa.DataType) -> bool:
    """Tell whether a column's type can be read by a schema."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_known(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        return bool(types.is_integer(inner) or types.is_floating(inner))
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal128(kind)
    return bool(_is_text(kind) or number or types.is_boolean(kind) or types.is_null(kind))


def _check_fields(frame: pl.DataFrame, path: Path, limits: Limits) -> None:
    """Refuse text fields longer than the limit."""
    lengths = frame.select(pl.col(pl.String).str.len_bytes().max())
    for name, longest in lengths.to_dict(as_series=False).items():
        limits.check("field_bytes", longest[0] or 0, f"{path}: column {name!r}")


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Say what a parser's complaint means for the file."""
    try:
        with no_surprises(path):
            yield
    except (pa.ArrowException, UnicodeDecodeError, *_POLARS_ERRORS) as cause:
        # From the message: Arrow's own handler of such rows fails where they are not UTF-8.
        if ragged := _RAGGED.search(str(cause)):
            line, expected, found = ragged.groups()
            raise DataError(
                str(path),
                f"{expected} fields in each record",
                f"{found} in one{f' (line {line})' if line else ''}",
                "Quote fields that hold the separator, or correct the record.",
            ) from cause
        if "UTF8" in str(cause):
            raise not_utf8(path) from cause
        raise DataError(
            str(path),
            f"a well-formed {path.suffix.lstrip('.') or 'data'} file",
            str(cause).split("\n")[0][:160],
            "Write the file anew.",
        ) from cause


def not_utf8(path: Path) -> DataError:
    """Error for text in another encoding."""
    return DataError(str(path), "UTF-8 text", "other bytes", "Save the file as UTF-8.")
