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
from typing import Any, Literal

import numpy as np
import polars as pl

from veracal._types import Array, Ints
from veracal.data.columns import Ignore, Number, Vector
from veracal.data.labels import TEXT
from veracal.data.rows import MappedRows
from veracal.data.schema import Schema

Kind = Literal["#", "s", "l"]  # numbers, texts, lists of numbers
DIGEST = np.dtype("V16")
_BYTES = 2**20  # bytes of records prepared at a time
_WHOLE = 2.0**53  # floats represent all integers up to it


def digests_of_frame(frame: pl.DataFrame, schema: Schema, *, written: bool = False) -> Array:
    """Digest each row of a table by its declared columns that are not ignored.

    Parameters
    ----------
    frame : polars.DataFrame
        The table as its file holds it, before values are parsed.
    schema : Schema
        Declares the columns and their order; ``name_0``, ``name_1``, … may form a vector.
    written : bool
        Whether the file holds only text (CSV); every cell is then hashed as written.

    Returns
    -------
    array of shape (n,), of 16 bytes each
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
    rows = max(1, _BYTES // (16 * max(1, len(kinds)) + _list_bytes(frame)))
    blocks = (_frame_block(part, list(kinds.values())) for part in frame.iter_slices(rows))
    return _joined(list(blocks))


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
        here = [np.asarray(column[start : start + rows]) for column in columns]
        blocks.append(_array_block(here))
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
    blocks = []
    for start in range(0, n, rows):
        here = slice(start, start + rows)
        blocks.append(_record_block(np.asarray(X[here]), y[here].tolist()))
    return _joined(blocks)


def as_digests(digests: Iterable[bytes]) -> Array:
    """Collect digests in an array."""
    return np.frombuffer(b"".join(digests), DIGEST)


def iterate_digests(digests: Array) -> Iterator[bytes]:
    """Iterate over digests as bytes."""
    data = digests.tobytes()
    return (data[i : i + 16] for i in range(0, len(data), 16))


def _joined(blocks: Sequence[Array]) -> Array:
    return np.concatenate(blocks) if blocks else np.empty(0, DIGEST)


def _record_block(X: Array, labels: Sequence[int]) -> Array:
    """Digests of rows of X with their labels."""
    tails = {label: f"\0{label}".encode() for label in set(labels)}
    blake2b = hashlib.blake2b
    pairs = zip(_contents(X), labels, strict=True)
    return as_digests(
        blake2b(row + tails[label], digest_size=16).digest() for row, label in pairs
    )


def _contents(X: Array) -> Iterator[bytes]:
    """Bytes of each row, without creating an array for each."""
    if X.dtype.kind == "T":
        return ("\0".join(row).encode() for row in X.tolist())
    if X.dtype.kind in "bi" or (X.dtype.kind == "u" and X.itemsize > 1):
        X = X.astype(np.float64)  # the type they have if one entry is no integer
    little = X.astype(X.dtype.newbyteorder("<"), copy=False)
    whole, width = little.tobytes(), X[:1].nbytes
    return (whole[i * width : (i + 1) * width] for i in range(len(X)))


def _frame_block(frame: pl.DataFrame, kinds: Sequence[Kind]) -> Array:
    """Digests of a few rows of a table."""
    fixed, texts, lists = [], [], []
    for column, kind in zip(frame.iter_columns(), kinds, strict=True):
        if kind == "#":
            numbers, words = _numbers(column)
            fixed.append(numbers)
            texts += words
        elif kind == "s":
            texts.append(_sized_cells(_as_text(column)))
        else:
            lists.append(_as_lists(column))
    parts: list[Iterable[bytes]] = []
    if fixed:
        parts.append(_slices(np.concatenate(fixed, axis=1)))
    if texts:
        named = [one.alias(str(i)) for i, one in enumerate(texts)]
        joined = pl.DataFrame(named).select(pl.concat_str(pl.all()).cast(pl.Binary))
        parts.append(joined.to_series().to_list())
    parts += [_list_contents(values) for values in lists]
    return _hashed(f"table:{','.join(kinds)};".encode(), frame.height, parts)


def _array_block(columns: Sequence[Array]) -> Array:
    """Digests of a few rows of arrays."""
    tags: list[str] = []
    parts: list[Iterable[bytes]] = []
    for column in columns:
        if column.dtype.kind in "TUO" or column.ndim == 1:
            tags.append("s")
            shaped = _texts_of(column.reshape(len(column), -1)).tolist()
            parts.append(_sized("".join(map(_netstring, row)).encode()) for row in shaped)
        else:
            little = column.dtype.newbyteorder("<")
            tags.append(f"{little.str}{column.shape[1:]}")
            parts.append(_slices(column.astype(little, copy=False).reshape(len(column), -1)))
    return _hashed(f"arrays:{';'.join(tags)};".encode(), len(columns[0]), parts)


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


def _numbers(column: pl.Series) -> tuple[Array, list[pl.Series]]:
    """Encode numbers as nine bytes each, and the text of cells that are no numbers."""
    values = column.cast(pl.Float64, strict=False)
    words, texts = _words(values), []
    if column.dtype == pl.String:
        is_word = values.is_null() & column.is_not_null()
        words["kind"][is_word.to_numpy()] = 3
        cells = pl.DataFrame({"word": is_word, "cell": _sized_cells(column)})
        none = pl.lit("")
        chosen = pl.when(pl.col("word")).then(pl.col("cell")).otherwise(none)
        texts = [cells.select(chosen).to_series()] if is_word.any() else []
    return words.view(np.uint8).reshape(len(column), 9), texts


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


def _as_lists(column: pl.Series) -> pl.Series:
    """Convert lists of any type to lists of floats."""
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    return column.cast(pl.List(pl.Float64), strict=False)


def _texts_of(values: Array) -> Array:
    """Convert an array to text as labels and groups are compared."""
    if values.dtype.kind == "f":
        whole = (np.abs(values) <= _WHOLE) & (np.trunc(values) == values)
        ints = np.where(whole, values, 0).astype(np.int64).astype(TEXT)
        return np.where(whole, ints, values.astype(TEXT))
    return values.astype(TEXT)


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


def _slices(rows: Array) -> Iterator[bytes]:
    """Bytes of each row of an array of shape (n, d)."""
    whole, width = np.ascontiguousarray(rows).tobytes(), rows.shape[1] * rows.dtype.itemsize
    return (whole[i * width : (i + 1) * width] for i in range(len(rows)))


def _sized_cells(texts: pl.Series) -> pl.Series:
    """Prefix each text with its length in bytes; "n" for a missing one."""
    cell = pl.col("cell")
    sized = pl.format("{}:{}", cell.str.len_bytes(), cell).fill_null("n")
    return texts.alias("cell").to_frame().select(sized).to_series()


def _list_contents(values: pl.Series) -> Iterator[bytes]:
    """Encode each list as its length and numbers; "n" for a missing list."""
    missing = values.is_null().to_list()
    counts = values.list.len().fill_null(0).to_list()
    flat = values.explode(empty_as_null=False, keep_nulls=False)
    whole, start = _words(flat).tobytes(), 0
    for is_missing, count in zip(missing, counts, strict=True):
        yield b"n" if is_missing else b"%d:" % count + whole[start : start + 9 * count]
        start += 9 * count


def _list_bytes(frame: pl.DataFrame) -> int:
    """Estimated bytes of the encoded lists of one row."""
    widths = [kind.size for kind in frame.dtypes if isinstance(kind, pl.Array)]
    widths += [1024 for kind in frame.dtypes if isinstance(kind, pl.List)]
    return 18 * sum(map(int, widths))


def _sized(content: bytes) -> bytes:
    return b"%d:" % len(content) + content


def _netstring(text: Any) -> str:
    return f"{len(text.encode())}:{text}"
