"""The next piece of a file, read while the present one is worked on.

Whether the quotation marks of a CSV file are where they belong.

Texts that a file writes once and repeats by a number.

How large the batches of an Arrow file become once they are unpacked.

Each compressed buffer opens with its unpacked length, but which bytes are buffers stands in
the message's flatbuffer header, and pyarrow shows neither before it has unpacked everything.
Of the flatbuffers only the path to those lists is read here (format: Arrow columnar format,
"IPC"; numbers are positions of fields in File.fbs and Message.fbs).

Parquet and Arrow files as a stream of small tables, with nothing inferred about them.

CSV files as a stream of small tables, every field as text.
"""

import csv
import io
import itertools
import re
import struct
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from veracal._types import Ints, Progress
from veracal.data.arrays import check_expansion
from veracal.data.files import Limits, no_surprises, opened, readable
from veracal.errors import DataError, LimitError

T = TypeVar("T")
_END = object()


def ahead(items: Iterable[T]) -> Generator[T]:
    """Take items from an iterable on a second thread, one ahead of whoever wants them.

    It pays where making an item lets go of the interpreter, as Arrow does. Whoever stops early
    closes the generator, which waits for the item that is being made: when it is closed, no
    thread is left that would touch the file.

    Raises
    ------
    BaseException
        Whatever the iterable raises, after the items that came before it.
    """
    source = iter(items)
    del items
    with ThreadPoolExecutor(1, thread_name_prefix="reading") as thread:
        try:
            coming = thread.submit(next, source, _END)
            while (item := coming.result()) is not _END:
                coming = thread.submit(next, source, _END)
                yield item  # type: ignore[misc]
        finally:
            del source


_MARK, _RETURN, _FEED = b'"\r\n'


class QuoteChecked(io.RawIOBase):
    """A CSV file that complains, while it is read, of quotation marks gone astray.

    Parsers forgive: after a mark that is never closed, all further records become part of
    one field, and they are gone without a word. Here a mark opens a field only at its
    start, two stand for one inside, and what closes a field is followed by a separator or
    by the end of the line. A carriage return outside quotes must belong to a line feed.

    Parameters
    ----------
    file : binary file
    separator : str
        Character between fields.
    where : str
        The file's name, for errors.
    """

    def __init__(self, file: BinaryIO, separator: str, where: str) -> None:
        super().__init__()
        self._file, self._where = file, where
        self._ends = (separator.encode(), b"\n", b"\r")
        self._held = b""  # bytes that cannot be judged before more is seen
        self._before = b"\n"  # byte before the next one to be judged
        self._inside = False
        self._opened_in, self._line = 0, 1
        self._judged = 0  # bytes
        self.ended = 0  # place after the last record that is known to be whole

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def tell(self) -> int:
        """Place in the file up to which it was read."""
        return self._file.tell()

    def read(self, size: int = -1, /) -> bytes:
        """Read some bytes, judging them as they pass."""
        data = self._file.read(size)
        judged = self._held + data
        if data:
            # Marks and returns at the end may go on in what is read next.
            kept = len(judged) - len(judged.rstrip(b'"\r'))
            self._held = judged[len(judged) - kept :] if kept else b""
            judged = judged[: len(judged) - kept]
        self._judge(judged, last=not data)
        return data

    def _judge(self, data: bytes, *, last: bool) -> None:
        """Follow the marks through some bytes."""
        opened = None  # where in these bytes the field was opened that is open now
        outside, texts = 0, []  # where text outside of marks begins now, and all before it
        for start, stop in _events(data):
            if data[start] == _RETURN:
                if not self._inside:
                    raise self._error("lines that end in LF or CRLF", "a lone CR", data, start)
                continue
            marks = stop - start
            if not self._inside:
                if (data[start - 1 : start] or self._before) not in self._ends:
                    continue  # a mark in the middle of a plain field stands for itself
                self._inside, opened = True, start
                texts.append((outside, start))
                marks -= 1
            if marks % 2:
                self._inside, outside = False, stop
                if data[stop : stop + 1] not in (*self._ends, b""):
                    expected = "a separator or a line's end after a closing quotation mark"
                    raise self._error(expected, "more text", data, stop)
        if not self._inside:
            texts.append((outside, len(data)))
        self._note_end(data, texts)
        if self._inside and opened is not None:
            self._opened_in = self._line + data.count(b"\n", 0, opened)
        self._line += data.count(b"\n")
        self._before = data[-1:] or self._before
        if last and self._inside:
            self._line = self._opened_in
            raise self._error("a closing quotation mark", "none before the file's end", b"", 0)

    def _note_end(self, data: bytes, outside: list[tuple[int, int]]) -> None:
        """Remember where the last record in some bytes ends: at a line feed outside marks."""
        for start, stop in reversed(outside):
            if (place := data.rfind(b"\n", start, stop)) >= 0:
                self.ended = self._judged + place + 1
                break
        self._judged += len(data)

    def _error(self, expected: str, found: str, data: bytes, place: int) -> DataError:
        """Error that names the line of a place in the bytes at hand."""
        line = self._line + data.count(b"\n", 0, place)
        remedy = "Double the quotation marks inside a field, and put one at either end of it."
        if "quotation" not in expected:
            remedy = "Convert the line ends."
        return DataError(self._where, expected, f"{found} (line {line})", remedy)


def whole_records(file: QuoteChecked, block: int, where: str) -> Iterator[bytes]:
    """Pieces of a file of about a block each, cut between records.

    Raises
    ------
    LimitError
        For a record longer than a block.
    """
    rest, start = b"", 0
    while data := file.read(block):
        rest += data
        if file.ended > start:
            piece, rest = rest[: file.ended - start], rest[file.ended - start :]
            start = file.ended
            if piece.strip(b"\r\n"):
                yield piece
        if len(rest) > block:
            while file.ended <= start and file.read(block):
                pass  # a mark that is never closed is told as that
            raise LimitError(
                where,
                f"records of at most {block:,} bytes",
                "a longer one",
                "Pass Limits with a larger field_bytes, a quarter of that.",
            )
    if rest.strip(b"\r\n"):
        yield rest


def _events(data: bytes) -> list[tuple[int, int]]:
    """Where quotation marks in a row and lone carriage returns start and stop, in order."""
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


_AT_A_TIME = 2**24  # bytes of text written out at a time
_HARMLESS = 2**28  # bytes in all: two long category names pack well, and are no bomb


class Texts:
    """What the coded texts of one file come to, batch after batch.

    A code of a few bits may stand for a long text as often as it likes, so a file of a few
    kilobytes can hold gigabytes. They are counted before they are written out.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._written, self._packed = 0, path.stat().st_size

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut a batch into pieces whose texts take little room, or raise a LimitError."""
        sizes = self._sizes(batch)
        self._written += int(sizes.sum())
        check_expansion(
            self._packed, self._written, self._path, self._limits, harmless=_HARMLESS
        )
        numbers = np.cumsum(sizes) // _AT_A_TIME
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        for start, stop in itertools.pairwise([*starts, batch.num_rows]):
            yield batch.slice(start, stop - start)

    def _sizes(self, batch: pa.RecordBatch) -> Ints:
        """Bytes of coded text in each record."""
        sizes = np.zeros(batch.num_rows, dtype=np.int64)
        for name in batch.schema.names:
            column = batch.column(name)
            if pa.types.is_dictionary(column.type) and len(column.dictionary):
                texts = column.dictionary.cast(pa.large_string())
                lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy()
                where = f"{self._path}: column {name!r}"
                self._limits.check("field_bytes", int(lengths.max()), where)
                codes = pc.fill_null(column.indices, 0).to_numpy(zero_copy_only=False)
                sizes += lengths[codes]
        return sizes


_MAGIC = b"ARROW1"
_CONTINUED = b"\xff\xff\xff\xff"
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_MESSAGE_TYPE, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA = 1
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_IS_DICTIONARY, _IS_BATCH = 2, 3
_SMALL_BATCH = 2**26  # bytes of one batch, which is unpacked as a whole


def check_batches(path: Path, limits: Limits) -> None:
    """Raise a :class:`LimitError` if a batch would unpack to more than the limits allow."""
    with pa.memory_map(str(path)) as file:
        data = file.read_buffer()
        found = _in_file(data) if data[:6].to_pybytes() == _MAGIC else _in_stream(data)
        try:
            for header, body in found:
                unpacked = sum(_unpacked_sizes(header, body))
                limits.check("memory_bytes", unpacked, path)
                check_expansion(body.size, unpacked, path, limits, harmless=_SMALL_BATCH)
        except (struct.error, IndexError, OverflowError) as cause:
            raise pa.ArrowInvalid(f"a header that cannot be followed: {cause}") from cause


def _in_file(data: pa.Buffer) -> Iterator[tuple[bytes, pa.Buffer]]:
    """Headers and bodies that the footer of a file names."""
    size = struct.unpack("<i", data[data.size - 10 : data.size - 6])[0]
    if not 0 < size <= data.size - 16:
        raise IndexError("the footer's size")
    footer = data[data.size - 10 - size : data.size - 10].to_pybytes()
    root = struct.unpack_from("<I", footer)[0]
    for blocks in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES):
        place = _follow(footer, root, blocks)
        count = 0 if place is None else struct.unpack_from("<I", footer, place)[0]
        for i in range(count):
            start, header, _, body = struct.unpack_from(
                "<qiiq", footer, (place or 0) + 4 + 24 * i
            )
            if min(start, header, body) < 0 or start + header + body > data.size:
                raise IndexError("the place of a batch")
            message = data[start : start + header].to_pybytes()
            prefix = 8 if message[:4] == _CONTINUED else 4
            yield message[prefix:], data[start + header : start + header + body]


def _in_stream(data: pa.Buffer) -> Iterator[tuple[bytes, pa.Buffer]]:
    """Headers and bodies of the messages of a stream."""
    for message in pa.ipc.MessageReader.open_stream(data):
        if message.body is not None:
            yield message.metadata.to_pybytes(), message.body


def _unpacked_sizes(header: bytes, body: pa.Buffer) -> Iterator[int]:
    """Sizes of the buffers of a batch after unpacking."""
    message = struct.unpack_from("<I", header)[0]
    kind = _field(header, message, _MESSAGE_TYPE)
    batch = _follow(header, message, _MESSAGE_HEADER)
    if kind is not None and batch is not None and header[kind] == _IS_DICTIONARY:
        batch = _follow(header, batch, _DICTIONARY_DATA)
    if kind is None or batch is None or header[kind] not in (_IS_DICTIONARY, _IS_BATCH):
        return
    place = _follow(header, batch, _BATCH_BUFFERS)
    packed = _field(header, batch, _BATCH_COMPRESSION) is not None
    count = 0 if place is None else struct.unpack_from("<I", header, place)[0]
    for i in range(count):
        offset, length = struct.unpack_from("<qq", header, (place or 0) + 4 + 16 * i)
        unpacked = -1
        if packed and length >= 8:
            unpacked = struct.unpack("<q", body[offset : offset + 8])[0]
        yield length if unpacked < 0 else unpacked


def _field(header: bytes, table: int, number: int) -> int | None:
    """Place of a field of a flatbuffer table, if it is there."""
    vtable = table - struct.unpack_from("<i", header, table)[0]
    if vtable < 0:
        raise IndexError("a table of fields")
    if 4 + 2 * number >= struct.unpack_from("<H", header, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", header, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None


def _follow(header: bytes, table: int, number: int) -> int | None:
    """Place that a field of a flatbuffer table points to, if it is there."""
    place = _field(header, table, number)
    return None if place is None else place + int(struct.unpack_from("<I", header, place)[0])


_POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_SMALL_TABLE = 2**26  # bytes that may come of a few packed ones


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
    check_expansion(packed, unpacked, path, limits, harmless=_SMALL_TABLE)
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
