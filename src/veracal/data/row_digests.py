r"""Digests that identify rows by the content of their records, not by computed features.

A digest is BLAKE2b-128 of a record as the file holds it: the text of a CSV cell, the stored
value of a typed column, the bytes of an image file. It does not depend on the position of the
row, on other rows, on the machine, or on how values are later parsed, scaled or encoded.
Digests are not keyed, so a published digest would confirm a guess of the record: they stay in
memory with the records, and :mod:`veracal.ledger.partitions` stores them only under a secret
key.

The input of the hash is unambiguous. It starts with one tag for each column (numbers, texts or
lists), followed by the numbers, each after a byte for its kind (integer, missing, no number,
other), and then by the texts and lists, each after its length.

The type that a file gives to a column may depend on a single record: writers turn integers into
floats if one is missing, into text if one is a word, and give all decimals the largest scale
among them. This must not change the digests of other records. The hash input therefore depends
on the declaration of a column and not on its stored type: a declared number is hashed as the
nearest float, and as its text only if it is no number; any other value is hashed as the text by
which a schema compares it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import polars as pl

from veracal._types import Array, Ints
from veracal.data.rows import TEXT, MappedRows
from veracal.data.schema import Ignore, Number, Schema, Vector

Kind = Literal["#", "s", "l"]  # numbers, texts, lists of numbers
DIGEST = np.dtype("V16")
_BYTES = 2**20  # bytes of records prepared at a time
_WHOLE = 2.0**53  # floats represent all integers up to it


def digests_of_frame(frame: pl.DataFrame, schema: Schema, *, written: bool = False) -> Array:
    """Digest each row of a table by its declared columns that are not ignored, in their order.

    The table is as its file holds it, before values are parsed. If the file holds only text
    (``written``), every cell is hashed as written.
    """
    kinds: dict[str, Kind] = {}
    for name, column in schema.columns.items():
        if isinstance(column, Ignore):
            continue
        number: Kind = "s" if written else "#"
        if not isinstance(column, Vector):
            kinds[name] = number if isinstance(column, Number) else "s"
        elif name in frame.columns:
            kinds[name] = "l"
        else:
            kinds |= dict.fromkeys(column.feature_names(name), number)
    frame = frame.select(list(kinds))
    widths = [kind.size for kind in frame.dtypes if isinstance(kind, pl.Array)]
    widths += [1024 for kind in frame.dtypes if isinstance(kind, pl.List)]  # an estimate
    row_bytes = 16 * max(1, len(kinds)) + 18 * sum(map(int, widths))
    pieces = frame.iter_slices(max(1, _BYTES // row_bytes))
    return _joined([_frame_block(piece, list(kinds.values())) for piece in pieces])


def digests_of_arrays(*columns: "Array | MappedRows") -> Array:
    """Digest each row of arrays with equal first axes.

    One-dimensional arrays are hashed as text, whatever their type. Rows of numbers are hashed
    as stored in little-endian order, with their type and shape.
    """
    n = len(columns[0])
    width = sum(int(column.nbytes) for column in columns) // max(1, n)
    rows = max(1, _BYTES // max(1, width))
    blocks = []
    for start in range(0, n, rows):
        tags: list[str] = []
        parts: list[Iterable[bytes]] = []
        for column in columns:
            values = np.asarray(column[start : start + rows])
            if values.dtype.kind in "TUO" or values.ndim == 1:
                tags.append("s")
                parts.append(_sized_texts(values.reshape(len(values), -1)))
            else:
                little = values.dtype.newbyteorder("<")
                tags.append(f"{little.str}{values.shape[1:]}")
                numbers = values.astype(little, copy=False)
                parts.append(_slices(numbers.reshape(len(values), -1)))
        size = min(rows, n - start)
        blocks.append(_hashed(f"arrays:{';'.join(tags)};".encode(), size, parts))
    return _joined(blocks)


def digest_of_texts(texts: Iterable[str], content: bytes = b"") -> bytes:
    """Digest one record that consists of texts and, optionally, the bytes of a file."""
    parts = [_sized(text.encode()) for text in texts]
    head = b"record:%d;" % len(parts)
    return hashlib.blake2b(head + b"".join(parts) + content, digest_size=16).digest()


def digests_of_records(X: "Array | MappedRows", y: Ints) -> Array:
    """Digest each row of a data set that was made from arrays, by X and y as given."""
    n = len(y)
    rows = max(1, _BYTES // max(1, X.nbytes // max(1, n)))
    tails = {label: f"\0{label}".encode() for label in np.unique(y).tolist()}
    blocks = []
    for start in range(0, n, rows):
        block = np.asarray(X[start : start + rows])
        if block.dtype.kind == "T":
            contents: Iterable[bytes] = ("\0".join(row).encode() for row in block.tolist())
        else:
            if block.dtype.kind in "bi" or (block.dtype.kind == "u" and block.itemsize > 1):
                block = block.astype(np.float64)  # the type if one entry is no integer
            little = block.astype(block.dtype.newbyteorder("<"), copy=False)
            contents = _slices(little.reshape(len(block), -1))
        labels = y[start : start + rows].tolist()
        digests = (
            hashlib.blake2b(row + tails[label], digest_size=16).digest()
            for row, label in zip(contents, labels, strict=True)
        )
        blocks.append(as_digests(digests))
    return _joined(blocks)


def as_digests(digests: Iterable[bytes]) -> Array:
    """Collect digests in an array."""
    return np.frombuffer(b"".join(digests), DIGEST)


def iterate_digests(digests: Array) -> Iterator[bytes]:
    """Iterate over digests as bytes."""
    return _slices(digests.reshape(-1, 1))


def _joined(blocks: Sequence[Array]) -> Array:
    return np.concatenate(blocks) if blocks else np.empty(0, DIGEST)


def _hashed(head: bytes, n: int, parts: Sequence[Iterable[bytes]]) -> Array:
    """Hash the common head and the parts of each row."""
    prefix = hashlib.blake2b(head, digest_size=16)
    digests = bytearray()
    contents = parts[0] if len(parts) == 1 else map(b"".join, zip(*parts, strict=True))
    for content in contents if parts else [b""] * n:
        row = prefix.copy()
        row.update(content)
        digests += row.digest()
    return np.frombuffer(bytes(digests), DIGEST)


def _slices(rows: Array) -> Iterator[bytes]:
    """Bytes of each row of an array of shape (n, d), without creating an array for each."""
    whole, width = np.ascontiguousarray(rows).tobytes(), rows.shape[1] * rows.dtype.itemsize
    return (whole[i * width : (i + 1) * width] for i in range(len(rows)))


def _sized(content: bytes) -> bytes:
    return b"%d:" % len(content) + content


def _sized_texts(values: Array) -> Iterator[bytes]:
    """Encode rows of values as the texts by which labels and groups are compared."""
    texts = values.astype(TEXT)
    if values.dtype.kind == "f":
        whole = (np.abs(values) <= _WHOLE) & (np.trunc(values) == values)
        ints = np.where(whole, values, 0).astype(np.int64).astype(TEXT)
        texts = np.where(whole, ints, texts)
    for row in texts.tolist():
        yield _sized(b"".join(_sized(text.encode()) for text in row))


def _frame_block(frame: pl.DataFrame, kinds: Sequence[Kind]) -> Array:
    """Digests of a few rows of a table."""
    numbers: list[Array] = []
    texts: list[pl.Series] = []
    lists: list[Iterable[bytes]] = []
    for column, kind in zip(frame.iter_columns(), kinds, strict=True):
        if kind == "s":
            texts.append(_sized_cells(_as_text(column)))
        elif kind == "l":
            lists.append(_list_contents(column))
        else:
            values = column.cast(pl.Float64, strict=False)
            words = _words(values)
            is_word = values.is_null() & column.is_not_null()
            if column.dtype == pl.String and is_word.any():  # cells that are no numbers
                words["kind"][is_word.to_numpy()] = 3
                none = pl.Series([""]).new_from_index(0, len(column))
                texts.append(_sized_cells(column).zip_with(is_word, none))
            numbers.append(words.view(np.uint8).reshape(len(column), 9))
    parts: list[Iterable[bytes]] = []
    if numbers:
        parts.append(_slices(np.concatenate(numbers, axis=1)))
    if texts:
        named = [one.alias(str(i)) for i, one in enumerate(texts)]
        joined = pl.DataFrame(named).select(pl.concat_str(pl.all()).cast(pl.Binary))
        parts.append(joined.to_series().to_list())
    return _hashed(f"table:{','.join(kinds)};".encode(), frame.height, [*parts, *lists])


def _as_text(column: pl.Series) -> pl.Series:
    """Convert cells to the text that a schema compares, whatever their stored type."""
    if column.dtype.is_float():
        whole = (column.abs() <= _WHOLE) & (column == column.floor())
        ints, rest = column.cast(pl.Int64, strict=False), column.cast(pl.String)
        return ints.cast(pl.String).zip_with(whole.fill_null(False), rest)
    if column.dtype.is_decimal():
        texts = column.cast(pl.String)
        has_point = texts.str.contains(".", literal=True).fill_null(False)
        return texts.str.replace(r"\.?0+$", "").zip_with(has_point, texts)
    return column.cast(pl.String)


def _sized_cells(texts: pl.Series) -> pl.Series:
    """Prefix each text with its length in bytes; "n" for a missing one."""
    cell = pl.col("cell")
    sized = pl.format("{}:{}", cell.str.len_bytes(), cell).fill_null("n")
    return texts.alias("cell").to_frame().select(sized).to_series()


def _words(values: pl.Series) -> Array:
    """Encode floats as a kind byte and eight little-endian bytes.

    The kind is 0 for an integer up to 2^53, 1 for a missing value and 2 for other values.
    """
    words = np.zeros(len(values), [("kind", "u1"), ("value", "<i8")])
    filled = values.fill_null(0).to_numpy()
    filled = np.where(np.isnan(filled), np.nan, filled)  # one NaN for all payloads
    whole = (np.abs(filled) <= _WHOLE) & (np.trunc(filled) == filled)
    words["kind"] = np.where(whole, 0, 2)
    words["value"] = np.ascontiguousarray(filled, "<f8").view("<i8")
    words["value"][whole] = filled[whole].astype(np.int64)
    words["kind"][values.is_null().to_numpy()] = 1
    return words


def _list_contents(column: pl.Series) -> Iterator[bytes]:
    """Encode each list as its length and numbers; "n" for a missing list."""
    lists = column.arr.to_list() if isinstance(column.dtype, pl.Array) else column
    values = lists.cast(pl.List(pl.Float64), strict=False)
    missing = values.is_null().to_list()
    counts = values.list.len().fill_null(0).to_list()
    flat = values.explode(empty_as_null=False, keep_nulls=False)
    whole, start = _words(flat).tobytes(), 0
    for is_missing, count in zip(missing, counts, strict=True):
        yield b"n" if is_missing else b"%d:" % count + whole[start : start + 9 * count]
        start += 9 * count
