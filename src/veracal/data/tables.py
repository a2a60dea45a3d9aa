"""CSV, Parquet, Arrow and npz files as streams of small tables whose types are never inferred.

The suffix of a file determines its format. CSV fields are read as text, and the quotation marks
are checked, since parsers accept stray ones and lose records.
"""

import csv
import io
import re
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from veracal._types import Progress
from veracal.data.arrays import read_npz
from veracal.data.files import Limits, check_readable, open_file, translate_os_errors
from veracal.errors import DataError, LimitError

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".arrows", ".feather", ".ipc")
_POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_ROW = re.compile(r"Row #(\d+):")
_BLOCK = 2**22  # bytes of a file parsed at a time

Item = TypeVar("Item")
_END = object()


def text_separator(path: Path, separator: str | None = None) -> str | None:
    """Separator of a file of text fields: as declared, or by its suffix; None for other files."""
    usual = _SEPARATORS.get(path.suffix.lower())
    return usual and (separator or usual)


def stated_rows(path: Path, limits: Limits) -> int | None:
    """Number of records that a Parquet file states; None for other formats."""
    if path.suffix.lower() not in _PARQUET:
        return None
    with _parser_errors(path), open_file(path, limits) as handle:
        return int(pa.parquet.ParquetFile(handle).metadata.num_rows)


def stated_types(path: Path, limits: Limits) -> dict[str, pa.DataType]:
    """Types that a Parquet or Arrow file states for its columns; empty for other files."""
    suffix = path.suffix.lower()
    with open_file(path, limits) as file:
        try:
            if suffix in _PARQUET:
                schema = pa.parquet.read_schema(file)
            elif suffix in _ARROW:
                schema = _open_arrow(file).schema
            else:
                return {}
        except (pa.ArrowException, OSError):
            return {}  # reading the records raises a clear error
    return dict(zip(schema.names, schema.types, strict=True))


def read_table(
    path: Path,
    *,
    header: bool = True,
    names: Sequence[str] | None = None,
    separator: str | None = None,
    ignored: Collection[str] = (),
    rows: int = 65_536,
    limits: Limits,
    progress: Progress | None = None,
) -> Iterator[pl.DataFrame]:
    """Stream the records of a CSV, TSV, Parquet, Arrow or npz file.

    ``header``, ``names`` (of the columns of a file without a header) and ``separator`` are for
    CSV files only. ``ignored`` columns are not read if the format allows it.
    """
    suffix = path.suffix.lower()
    if separator := text_separator(path, separator):
        if not header and names is None:
            names = read_column_names(path, header=False, separator=separator, limits=limits)
        return _read_csv(path, None if header else names, separator, limits, progress)
    if suffix in _PARQUET:
        return _read_parquet(path, rows, ignored, limits, progress)
    if suffix in _ARROW:
        return _read_arrow(path, ignored, limits, progress)
    if suffix == ".npz":
        return iter([arrays_to_frame(read_npz(path, limits), path, limits)])
    check_readable(path, limits)
    known = ", ".join((*_SEPARATORS, *_PARQUET, *_ARROW, ".npz"))
    raise DataError(path, f"a file ending in {known}", repr(suffix), "Convert it to one.")


def _read_parquet(
    path: Path, rows: int, ignored: Collection[str], limits: Limits, progress: Progress | None
) -> Iterator[pl.DataFrame]:
    """Stream a Parquet file whose stated sizes are within the limits."""
    with _parser_errors(path), open_file(path, limits) as handle:
        file = pa.parquet.ParquetFile(handle, pre_buffer=False, buffer_size=2**20)
        names, metadata = file.schema_arrow.names, file.metadata
        limits.check("columns", len(names), path)
        limits.check("rows", metadata.num_rows, path)
        _check_names(names, path)
        for i in range(metadata.num_row_groups):
            limits.check("memory_bytes", metadata.row_group(i).total_byte_size, path)
        columns = [name for name in names if name not in ignored]
        done = 0
        for batch in file.iter_batches(batch_size=rows, columns=columns, use_threads=False):
            batch.validate(full=True)
            yield _to_frame(batch, path, limits)
            done += batch.num_rows
            if progress:
                progress(done, metadata.num_rows)


def _open_arrow(handle: Any) -> Any:
    """Open an Arrow IPC file or stream."""
    is_file = handle.read(6) == b"ARROW1"
    handle.seek(0)
    return pa.ipc.open_file(handle) if is_file else pa.ipc.open_stream(handle)


def _read_arrow(
    path: Path, ignored: Collection[str], limits: Limits, progress: Progress | None
) -> Iterator[pl.DataFrame]:
    """Stream an Arrow IPC file (``.arrow``, ``.feather``) or stream (``.arrows``)."""
    check_readable(path, limits)
    with _parser_errors(path), pa.memory_map(str(path)) as handle:
        reader = _open_arrow(handle)
        names = reader.schema.names
        limits.check("columns", len(names), path)
        _check_names(names, path)
        total = getattr(reader, "num_record_batches", None)  # a stream does not state it
        batches = reader if total is None else map(reader.get_batch, range(total))
        for done, batch in enumerate(batches, 1):
            if progress:
                progress(done, total)
            kept = batch.drop_columns([n for n in names if n in ignored])
            kept.validate(full=True)
            yield _to_frame(kept, path, limits)


def arrays_to_frame(arrays: dict[str, Any], path: Path, limits: Limits) -> pl.DataFrame:
    """Convert arrays of equal length, such as those of an npz file, into a table."""
    limits.check("columns", len(arrays), path)
    lengths = {name: len(array) if array.ndim else None for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        actual = (f"{k}: {'a single value' if n is None else n}" for k, n in lengths.items())
        raise DataError(
            path,
            "arrays with one entry for each record",
            ", ".join(actual),
            "Save arrays of equal length.",
        )
    columns = {}
    for name, array in arrays.items():
        flat = array.reshape(len(array), -1) if array.ndim > 2 else array
        native = np.ascontiguousarray(flat, dtype=array.dtype.newbyteorder("="))
        columns[name] = native.tolist() if native.dtype.kind in "US" else native
    frame = pl.DataFrame(columns)
    _check_fields(frame, path, limits)
    return frame


def _check_names(names: Sequence[str], path: Path) -> None:
    """Reject columns without a name, and duplicate names."""
    for i, name in enumerate(names):
        if not name.strip():
            raise DataError(
                path, "a name for each column", f"none for column {i + 1}", "Name it."
            )
        if name in names[:i]:
            raise DataError(
                path,
                "columns of different names",
                f"{name!r} twice",
                "Rename one of them. If the first line is a record and not names, declare it: "
                "header = false in the schema, --no-header for a draft.",
            )


def _to_frame(batch: pa.RecordBatch, path: Path, limits: Limits) -> pl.DataFrame:
    """Convert a validated Arrow batch to polars, if a schema can read its types."""
    columns = []
    for field, values in zip(batch.schema, batch.columns, strict=True):
        if not is_supported(field.type):
            raise DataError(
                f"{path}: column {field.name!r}",
                "numbers, text, true and false, or lists of numbers",
                f"the type {field.type}",
                "Convert the column, or declare it as kind = 'ignore'.",
            )
        if pa.types.is_dictionary(values.type):
            entries = values.dictionary
            entries = entries.cast(pa.large_string()) if _is_text(entries.type) else entries
            values = entries.take(values.indices)
        # Column by column, so that metadata of the file is not interpreted.
        columns.append(pl.Series(field.name, pl.from_arrow(values)))
    frame = pl.DataFrame(columns)
    _check_fields(frame, path, limits)
    return frame


def _is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's three text types."""
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    )


def is_supported(kind: pa.DataType) -> bool:
    """Whether a schema can read columns of a type."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_supported(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        return bool(types.is_integer(inner) or types.is_floating(inner))
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal128(kind)
    return bool(_is_text(kind) or number or types.is_boolean(kind) or types.is_null(kind))


def _check_fields(frame: pl.DataFrame, path: Path, limits: Limits) -> None:
    """Reject text fields longer than the limit."""
    lengths = frame.select(pl.col(pl.String).str.len_bytes().max())
    for name, longest in lengths.to_dict(as_series=False).items():
        limits.check("field_bytes", longest[0] or 0, f"{path}: column {name!r}")


@contextmanager
def _parser_errors(path: Path) -> Iterator[None]:
    """Translate errors of the parsers into a :class:`DataError` that names the file."""
    try:
        with translate_os_errors(path):
            yield
    except (pa.ArrowException, UnicodeDecodeError, *_POLARS_ERRORS) as cause:
        # From the message: Arrow's own handler of ragged rows fails on text that is not UTF-8.
        if ragged := _RAGGED.search(str(cause)):
            line, expected, count = ragged.groups()
            raise DataError(
                path,
                f"{expected} fields in each record",
                f"{count} in one{f' (line {line})' if line else ''}",
                "Quote fields that hold the separator, or correct the record.",
            ) from cause
        if "UTF8" in str(cause) or isinstance(cause, UnicodeDecodeError):
            raise DataError(
                path, "UTF-8 text", "other bytes", "Save the file as UTF-8."
            ) from cause
        raise DataError(
            path,
            f"a well-formed {path.suffix.lstrip('.') or 'data'} file",
            str(cause).split("\n")[0][:160],
            "Write the file again.",
        ) from cause


def prefetch(items: Iterable[Item]) -> Generator[Item]:
    """Compute the items of an iterable on a second thread, one item ahead of the consumer.

    This saves time if computing an item releases the interpreter lock, as Arrow does. A
    consumer that stops early closes the generator, which waits for the item in progress: once
    it is closed, no thread is left that would touch the file. Any exception of the iterable is
    raised after the items before it.
    """
    source = iter(items)
    del items
    with ThreadPoolExecutor(1, thread_name_prefix="reading") as thread:
        try:
            following = thread.submit(next, source, _END)
            while (item := following.result()) is not _END:
                following = thread.submit(next, source, _END)
                yield item  # type: ignore[misc]
        finally:
            del source


_MARK, _RETURN, _FEED = b'"\r\n'


class QuoteChecked(io.RawIOBase):
    """A CSV file whose quotation marks are checked while it is read.

    Parsers accept a mark that is never closed: all further records become part of one field
    and are lost without an error. Here a mark opens a field only at its start, two marks
    inside a field stand for one, and a closing mark is followed by a separator or by the end
    of the line. A carriage return outside quotes must be followed by a line feed.
    """

    def __init__(self, file: BinaryIO, separator: str, where: str) -> None:
        super().__init__()
        self._file, self._where = file, where
        self._ends = (separator.encode(), b"\n", b"\r")
        self._pending = b""  # bytes whose check needs the bytes after them
        self._previous = b"\n"  # byte before the next one to check
        self._is_quoted = False
        self._opening_line, self._line = 0, 1
        self._checked = 0  # bytes
        self.record_end = 0  # position after the last complete record

    def readable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Position up to which the file was read."""
        return self._file.tell()

    def read(self, size: int = -1, /) -> bytes:
        """Read and check some bytes."""
        data = self._file.read(size)
        block = self._pending + data
        if data:
            # Marks and returns at the end may continue in the next block.
            kept = len(block) - len(block.rstrip(b'"\r'))
            self._pending = block[len(block) - kept :] if kept else b""
            block = block[: len(block) - kept]
        self._check(block, last=not data)
        return data

    def _check(self, data: bytes, *, last: bool) -> None:
        """Follow the quotation marks through a block of bytes."""
        opening = None  # position of the mark that opened the current field
        plain_start, plain = 0, []  # start of the current unquoted text; earlier ones
        for start, stop in _find_marks(data):
            if data[start] == _RETURN:
                if not self._is_quoted:
                    raise self._error("lines that end in LF or CRLF", "a lone CR", data, start)
                continue
            marks = stop - start
            if not self._is_quoted:
                if (data[start - 1 : start] or self._previous) not in self._ends:
                    continue  # a mark inside an unquoted field is an ordinary character
                self._is_quoted, opening = True, start
                plain.append((plain_start, start))
                marks -= 1
            if marks % 2:
                self._is_quoted, plain_start = False, stop
                if data[stop : stop + 1] not in (*self._ends, b""):
                    expected = "a separator or a line's end after a closing quotation mark"
                    raise self._error(expected, "more text", data, stop)
        if not self._is_quoted:
            plain.append((plain_start, len(data)))
        for start, stop in reversed(plain):  # a record ends at a line feed outside quotes
            if (position := data.rfind(b"\n", start, stop)) >= 0:
                self.record_end = self._checked + position + 1
                break
        self._checked += len(data)
        if self._is_quoted and opening is not None:
            self._opening_line = self._line + data.count(b"\n", 0, opening)
        self._line += data.count(b"\n")
        self._previous = data[-1:] or self._previous
        if last and self._is_quoted:
            self._line = self._opening_line
            raise self._error("a closing quotation mark", "none before the file's end", b"", 0)

    def _error(self, expected: str, problem: str, data: bytes, position: int) -> DataError:
        """Error that names the line of a position in the current block."""
        line = self._line + data.count(b"\n", 0, position)
        remedy = "Double the quotation marks inside a field, and put one at each end of it."
        if "quotation" not in expected:
            remedy = "Convert the line ends."
        return DataError(self._where, expected, f"{problem} (line {line})", remedy)


def split_records(file: QuoteChecked, block: int, where: str) -> Iterator[bytes]:
    """Cut a file between records, each at most a block long, into pieces of about one block."""
    rest, start = b"", 0
    while data := file.read(block):
        rest += data
        if file.record_end > start:
            piece, rest = rest[: file.record_end - start], rest[file.record_end - start :]
            start = file.record_end
            if piece.strip(b"\r\n"):
                yield piece
        if len(rest) > block:
            while file.record_end <= start and file.read(block):
                pass  # an unclosed mark raises its own error here
            raise LimitError(
                where,
                f"records of at most {block:,} bytes",
                "a longer one",
                "Pass Limits with a larger field_bytes, a quarter of that.",
            )
    if rest.strip(b"\r\n"):
        yield rest


def _find_marks(data: bytes) -> list[tuple[int, int]]:
    """Return start and stop of each run of quotation marks and each lone carriage return."""
    if b'"' not in data and b"\r" not in data:
        return []
    values = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero(values == _MARK)
    starts = marks[np.diff(marks, prepend=-2) > 1]
    stops = marks[np.diff(marks, append=len(data) + 1) > 1] + 1
    returns = np.flatnonzero(values == _RETURN)
    followed = values[np.minimum(returns + 1, len(values) - 1)]
    lone = returns[followed != _FEED]
    events = zip(
        [*starts.tolist(), *lone.tolist()], [*stops.tolist(), *(lone + 1).tolist()], strict=True
    )
    return sorted(events) if len(lone) else list(events)


def read_column_names(path: Path, *, header: bool, separator: str, limits: Limits) -> list[str]:
    """Read the names in the first line of a CSV file; without a header, generate names."""
    with _parser_errors(path), open_file(path, limits) as file:
        raw = file.readline(limits.field_bytes + 1)
        limits.check("field_bytes", len(raw), f"{path}: first line")
        line = raw.decode("utf-8-sig").rstrip("\r\n")
    try:
        names = next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error as cause:
        raise DataError(
            path, "a first line of fields", str(cause), "Correct the first line."
        ) from cause
    limits.check("columns", len(names), path)
    if not names:
        raise DataError(
            path, "fields in the first line", "an empty line", "Remove empty lines above."
        )
    if not header:
        return [f"column_{i}" for i in range(len(names))]
    _check_names(names, path)
    return names


def _read_csv(
    path: Path,
    names: Sequence[str] | None,
    separator: str,
    limits: Limits,
    progress: Progress | None,
) -> Iterator[pl.DataFrame]:
    """Stream a CSV file, every field as text exactly as it is written.

    Without ``names`` the first line names the columns.
    """
    first = read_column_names(path, header=names is None, separator=separator, limits=limits)
    if names is not None and len(names) != len(first):
        raise DataError(
            path,
            f"{len(names)} columns, as declared",
            f"{len(first)} in the first record",
            "Correct the schema, or set header = true if the first line names the columns.",
        )
    block = max(_BLOCK, 4 * limits.field_bytes)
    with _parser_errors(path), open_file(path, limits) as file:
        total = path.stat().st_size
        pieces = split_records(QuoteChecked(file, separator, str(path)), block, str(path))
        parsed = _parse_csv(pieces, names or first, separator, header=names is None)
        # Our own thread reads and parses, and it ends with this block. A thread of Arrow's that
        # holds a Python object could release it while the interpreter shuts down, and crash.
        with closing(prefetch(parsed)) as tables:
            for table in tables:
                if progress:
                    progress(min(file.tell(), total), total)
                yield _to_frame(table, path, limits)
        if progress:
            progress(total, total)


def _parse_csv(
    pieces: Iterable[bytes], names: Sequence[str], separator: str, *, header: bool
) -> "Iterator[pa.RecordBatch]":
    """Parse pieces of a file with Arrow, which would infer names and types not given."""
    before = 0
    for piece in pieces:
        # Arrow's own memory, so that its threads never need the interpreter.
        buffer = pa.allocate_buffer(len(piece))
        memoryview(buffer).cast("B")[:] = piece
        try:
            table = pa.csv.read_csv(
                buffer,
                pa.csv.ReadOptions(
                    block_size=len(piece) + 1,
                    use_threads=False,
                    column_names=names,
                    skip_rows=int(header),
                ),
                pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
                pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=False,
                    check_utf8=False,  # validated below
                ),
            )
        except pa.ArrowInvalid as cause:
            message = str(cause)
            if row := _ROW.search(message):  # count it from the start of the file
                message = message.replace(row[0], f"Row #{before + int(row[1])}:")
            raise pa.ArrowInvalid(message) from cause
        assert set(table.schema.types) <= {pa.string()}
        before += table.num_rows + header
        header = False
        for batch in table.to_batches():
            batch.validate(full=True)
            yield batch
