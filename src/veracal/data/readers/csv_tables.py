"""CSV files as a stream of small tables, every field as text."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pyarrow as pa
import pyarrow.csv

from veracal._types import Progress
from veracal.data.limits import Limits, opened
from veracal.data.readers.ahead import ahead
from veracal.data.readers.quotes import QuoteChecked, whole_records
from veracal.data.readers.tables import check_names, clear_errors, frame_of, not_utf8, sound
from veracal.errors import DataError

_ROW = re.compile(r"Row #(\d+):")
_BLOCK = 2**22  # bytes of a file parsed at a time


def table_columns(path: Path, *, header: bool, separator: str, limits: Limits) -> list[str]:
    """Names in the first line of a CSV file, or as many made-up ones as it has fields."""
    with opened(path, limits) as file:
        line = _first_line(file, path, limits)
    try:
        names = next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error as cause:
        raise DataError(
            str(path), "a first line of fields", str(cause), "Correct the first line."
        ) from cause
    limits.check("columns", len(names), path)
    if not names:
        raise DataError(
            str(path), "fields in the first line", "an empty line", "Remove empty lines above."
        )
    if not header:
        return [f"column_{i}" for i in range(len(names))]
    check_names(names, path)
    return names


def read_csv(
    path: Path,
    *,
    names: Sequence[str] | None,
    separator: str,
    limits: Limits,
    progress: Progress | None = None,
) -> Iterator[pl.DataFrame]:
    """Stream a CSV file, every field as text exactly as it is written.

    Parameters
    ----------
    names : sequence of str, optional
        Columns of a file without a header line. None: the first line names them.
    """
    found = table_columns(path, header=names is None, separator=separator, limits=limits)
    if names is not None and len(names) != len(found):
        raise DataError(
            str(path),
            f"{len(names)} columns, as declared",
            f"{len(found)} in the first record",
            "Correct the schema, or set header = true if the first line names the columns.",
        )
    block = max(_BLOCK, 4 * limits.field_bytes)
    with clear_errors(path), opened(path, limits) as file:
        total = path.stat().st_size
        pieces = whole_records(QuoteChecked(file, separator, str(path)), block, str(path))
        parsed = _parsed(pieces, names, found, separator)
        # What reads and parses is a thread of ours, which has ended when this is left. If
        # threads of Arrow's held a file or bytes of Python's, they might still let go of it
        # when the interpreter ends, and take it down.
        with closing(ahead(parsed)) as tables:
            for table in tables:
                if progress:
                    progress(min(file.tell(), total), total)
                yield frame_of(table, path, limits)
        if progress:
            progress(total, total)


def _parsed(
    pieces: Iterable[bytes], names: Sequence[str] | None, found: Sequence[str], separator: str
) -> "Iterator[pa.RecordBatch]":
    """Have Arrow parse pieces of a file. Names and types are given, or it guesses types."""
    header, before = names is None, 0
    for piece in pieces:
        try:
            table = pa.csv.read_csv(
                _native(piece),
                pa.csv.ReadOptions(
                    block_size=len(piece) + 1,
                    use_threads=False,
                    column_names=names or found,
                    skip_rows=int(header),
                ),
                pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
                pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(names or found, pa.string()),
                    strings_can_be_null=False,
                    check_utf8=False,  # it would be checked twice: whoever reads it does
                ),
            )
        except pa.ArrowInvalid as cause:
            raise pa.ArrowInvalid(_ROW.sub(partial(_later, before), str(cause))) from cause
        assert set(table.schema.types) <= {pa.string()}
        before += table.num_rows + header
        header = False
        for batch in table.to_batches():
            yield sound(batch)


def _native(piece: bytes) -> "pa.Buffer":
    """Bytes in memory of Arrow's own, whose threads then never need the interpreter."""
    buffer = pa.allocate_buffer(len(piece))
    memoryview(buffer).cast("B")[:] = piece
    return buffer


def _later(before: int, row: re.Match[str]) -> str:
    """The number of a row, counted from the start of the file."""
    return f"Row #{before + int(row[1])}:"


def _first_line(file: BinaryIO, path: Path, limits: Limits) -> str:
    """Read the first line of text, within the limits."""
    raw = file.readline(limits.field_bytes + 1)
    limits.check("field_bytes", len(raw), f"{path}: first line")
    try:
        return raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as cause:
        raise not_utf8(path) from cause
