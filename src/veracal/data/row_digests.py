r"""Identify each row by the content of its record, never by what was computed from it.

A digest is BLAKE2b-128 of a record as the file holds it: the text of a CSV cell, the stored
value of a typed column, the bytes of an image file. It does not depend on the position of the
row, on other rows, on the machine, or on how values are later parsed, scaled or encoded.
Digests are not keyed, so a published one would confirm a guess of the record: they stay in
memory beside the records, and :mod:`veracal.privacy.partitions` stores them only under a
secret key.

The input of the hash is unambiguous. It starts with one tag for each column (numbers, texts or
lists), then come the numbers, each behind a byte that says whether it is whole, missing or
neither, and then the texts and lists, each with its length before it. A number counts as the
same in every type: the type that a file gives to a column may follow from a single record (a
writer turns whole numbers into floats where one is missing), which must not change the digests
of others.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from veracal._types import Array, Ints
from veracal.data.columns import Ignore, Number, Vector
from veracal.data.rows import MappedRows
from veracal.data.schema import Schema

DIGEST = np.dtype("V16")
_BYTES = 2**20  # bytes of records prepared at a time
_WHOLE = 2.0**53  # up to which all whole numbers are floats


def digests_of_frame(frame: pl.DataFrame, schema: Schema) -> Array:
    """Digest of each row of a table, from its declared columns that are not ignored.

    Parameters
    ----------
    frame : polars.DataFrame
        The table as its file holds it, before any value is parsed.
    schema : Schema
        Gives the columns and their order; ``name_0``, ``name_1``, … may stand for a vector.

    Returns
    -------
    array of shape (n,), of 16 bytes each
    """
    names: list[str] = []
    for name, column in schema.columns.items():
        if isinstance(column, Ignore):
            continue
        parts = column.feature_names(name) if isinstance(column, Vector) else (name,)
        names += [name] if name in frame.columns else list(parts)
    empty = [name for name in names if frame.schema[name] == pl.Null]
    casts = [pl.col(name).cast(_type_of_missing(schema, name)) for name in empty]
    frame = frame.select(names).with_columns(casts)
    rows = max(1, _BYTES // (16 * max(1, len(names)) + _list_bytes(frame)))
    return _joined([_frame_block(part) for part in frame.iter_slices(rows)])


def _type_of_missing(schema: Schema, name: str) -> Any:
    """Type of a column in which all values are missing, by its declaration."""
    column = schema.columns.get(name)
    if isinstance(column, Vector):
        return pl.List(pl.Float64)
    return pl.Int64 if column is None or isinstance(column, Number) else pl.String


def digests_of_arrays(*columns: "Array | MappedRows") -> Array:
    """Digest of each row of arrays with equal first axes, from the bytes of their numbers.

    Arrays of text count by their text. Numbers count as stored, type and shape included,
    in little-endian order.
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
    """Digest of one record that is a list of texts, and perhaps the bytes of a file."""
    parts = [_sized(text.encode()) for text in texts]
    head = b"record:%d;" % len(parts)
    return hashlib.blake2b(head + b"".join(parts) + content, digest_size=16).digest()


def digests_of_records(X: "Array | MappedRows", y: Ints) -> Array:
    """Digest of each row of a data set that was made from arrays: of X and y as given."""
    n = len(y)
    rows = max(1, _BYTES // max(1, X.nbytes // max(1, n)))
    blocks = []
    for start in range(0, n, rows):
        here = slice(start, start + rows)
        blocks.append(_record_block(np.asarray(X[here]), y[here].tolist()))
    return _joined(blocks)


def as_digests(found: Iterable[bytes]) -> Array:
    """Gather digests into an array."""
    return np.frombuffer(b"".join(found), DIGEST)


def each(digests: Array) -> Iterator[bytes]:
    """Iterate over digests as bytes."""
    whole = digests.tobytes()
    return (whole[i : i + 16] for i in range(0, len(whole), 16))


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
    """The bytes of each row; an array per row would cost more than its hash."""
    if X.dtype.kind == "T":
        return ("\0".join(row).encode() for row in X.tolist())
    little = X.astype(X.dtype.newbyteorder("<"), copy=False)
    whole, width = little.tobytes(), X[:1].nbytes
    return (whole[i * width : (i + 1) * width] for i in range(len(X)))


def _frame_block(frame: pl.DataFrame) -> Array:
    """Digests of a few rows of a table."""
    tags, fixed, texts, lists = [], [], [], []
    for column in frame.iter_columns():
        kind, values = _canonical(column)
        tags.append(kind)
        if kind == "#":
            fixed.append(_fixed(values))
        elif kind == "s":
            texts.append(values)
        else:
            lists.append(values)
    parts: list[Iterable[bytes]] = []
    if fixed:
        parts.append(_slices(np.concatenate(fixed, axis=1)))
    if texts:
        parts.append(_texts(texts))
    parts += [_list_contents(values) for values in lists]
    return _hashed(f"table:{','.join(tags)};".encode(), frame.height, parts)


def _array_block(columns: Sequence[Array]) -> Array:
    """Digests of a few rows of arrays."""
    tags: list[str] = []
    parts: list[Iterable[bytes]] = []
    for column in columns:
        if column.dtype.kind in "TUO":
            tags.append("s")
            shaped = column.reshape(len(column), -1).astype(np.dtypes.StringDType()).tolist()
            parts.append(_sized("".join(map(_netstring, row)).encode()) for row in shaped)
        else:
            little = column.dtype.newbyteorder("<")
            tags.append(f"{little.str}{column.shape[1:]}")
            parts.append(_slices(column.astype(little, copy=False).reshape(len(column), -1)))
    return _hashed(f"arrays:{';'.join(tags)};".encode(), len(columns[0]), parts)


def _hashed(head: bytes, n: int, parts: Sequence[Iterable[bytes]]) -> Array:
    """Hash the parts of each row, one after the other, behind what all rows share."""
    started = hashlib.blake2b(head, digest_size=16)
    digests = bytearray()
    contents = parts[0] if len(parts) == 1 else map(b"".join, zip(*parts, strict=True))
    for content in contents if parts else [b""] * n:
        row = started.copy()
        row.update(content)
        digests += row.digest()
    return np.frombuffer(bytes(digests), DIGEST)


def _canonical(column: pl.Series) -> tuple[str, pl.Series]:
    """A tag for the type of a column, and its values in the one type that stands for it.

    Widths are left out of it: a file written anew by another library may store 7 in four
    bytes or in eight.
    """
    kind = column.dtype
    if isinstance(kind, pl.Array):
        column, kind = column.arr.to_list(), pl.List(kind.inner)
    if isinstance(kind, pl.List):
        wide = pl.Float64 if kind.inner.is_float() else pl.Int64
        return "l", column.cast(pl.List(wide))
    if kind == pl.Boolean:
        return "#", column.cast(pl.Int64)
    if kind.is_float() or kind in (pl.UInt64, pl.Int128):
        return "#", column.cast(pl.Float64)
    if kind.is_integer():
        return "#", column.cast(pl.Int64)
    return "s", column.cast(pl.String)


def _fixed(values: pl.Series) -> Array:
    """Each number as nine bytes."""
    return _words(values).view(np.uint8).reshape(len(values), 9)


def _words(values: pl.Series) -> Array:
    """Numbers as eight little-endian bytes, after one that says how to read them.

    That is 0 for a whole number, whatever type it came in (as a float: up to 2^53), 1 where it
    is missing and 2 for any other float.
    """
    words = np.zeros(len(values), [("kind", "u1"), ("value", "<i8")])
    filled = values.fill_null(0).to_numpy()
    if values.dtype.is_float():
        filled = np.where(np.isnan(filled), np.nan, filled)  # one NaN, whatever its payload
        whole = (np.abs(filled) <= _WHOLE) & (np.trunc(filled) == filled)
        words["kind"] = np.where(whole, 0, 2)
        words["value"] = np.ascontiguousarray(filled, "<f8").view("<i8")
        words["value"][whole] = filled[whole].astype(np.int64)
    else:
        words["value"] = filled
    words["kind"][values.is_null().to_numpy()] = 1
    return words


def _slices(rows: Array) -> Iterator[bytes]:
    """The bytes of each row of an array of shape (n, d)."""
    whole, width = np.ascontiguousarray(rows).tobytes(), rows.shape[1] * rows.dtype.itemsize
    return (whole[i * width : (i + 1) * width] for i in range(len(rows)))


def _texts(columns: Sequence[pl.Series]) -> Iterable[bytes]:
    """All texts of each row, each after its length in bytes; "n" for a missing one."""
    named = [column.alias(str(i)) for i, column in enumerate(columns)]
    sized = [
        pl.when(pl.col(c.name).is_null())
        .then(pl.lit("n"))
        .otherwise(pl.format("{}:{}", pl.col(c.name).str.len_bytes(), pl.col(c.name)))
        for c in named
    ]
    joined = pl.DataFrame(named).select(pl.concat_str(sized).cast(pl.Binary)).to_series()
    found: list[bytes] = joined.to_list()
    return found


def _list_contents(values: pl.Series) -> Iterator[bytes]:
    """The numbers of each list after their count; "n" for a missing list."""
    missing = values.is_null().to_list()
    counts = values.list.len().fill_null(0).to_list()
    flat = values.explode(empty_as_null=False, keep_nulls=False)
    whole, start = _words(flat).tobytes(), 0
    for is_missing, count in zip(missing, counts, strict=True):
        yield b"n" if is_missing else b"%d:" % count + whole[start : start + 9 * count]
        start += 9 * count


def _list_bytes(frame: pl.DataFrame) -> int:
    """About how many bytes the lists of one row take once they are prepared."""
    widths = [kind.size for kind in frame.dtypes if isinstance(kind, pl.Array)]
    widths += [1024 for kind in frame.dtypes if isinstance(kind, pl.List)]
    return 18 * sum(map(int, widths))


def _sized(content: bytes) -> bytes:
    return b"%d:" % len(content) + content


def _netstring(text: Any) -> str:
    return f"{len(text.encode())}:{text}"
