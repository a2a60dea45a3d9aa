"""Records of a file, a few at a time."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from veracal import _checks
from veracal._types import Progress
from veracal.data.columns import Ignore, Vector
from veracal.data.dataset import Dataset
from veracal.data.encode import Rows, encode, encode_rows
from veracal.data.limits import DEFAULT_LIMITS, Limits
from veracal.data.readers.formats import is_text, read_table, text_columns
from veracal.data.readers.mapped import array_folder, load_mapped
from veracal.data.schema import Schema
from veracal.errors import DataError

_ROWS = 65_536


@dataclass(frozen=True)
class Tally:
    """Records of a file that were read, and those that its schema keeps.

    Both are figures about the records, private under add/remove: for their holder's eyes.
    """

    read: int
    kept: int

    @property
    def dropped(self) -> int:
        """Records that were dropped for a missing value."""
        return self.read - self.kept


def scan(
    path: str | Path,
    schema: Schema | str | Path,
    *,
    rows: int = _ROWS,
    limits: Limits = DEFAULT_LIMITS,
    row_digests: bool = False,
    progress: Progress | None = None,
) -> Iterator[Dataset]:
    """Stream a file of records through its schema, at most ``rows`` of them at a time.

    Memory does not grow with the file. Limits on rows per unit need the whole file and are
    not applied here: each batch has ``at_most=None``. ``row_digests`` is that of
    :func:`~veracal.data.load`.
    """
    for _, batch in _read(path, schema, rows, limits, progress, row_digests):
        yield batch


def tally(
    path: str | Path,
    schema: Schema | str | Path,
    *,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> Tally:
    """Stream a file through its schema and count.

    Raises
    ------
    DataError
        At the first record that is not as declared.
    """
    read = kept = 0
    for height, batch in _read(path, schema, _ROWS, limits, progress):
        read, kept = read + height, kept + len(batch)
    return Tally(read, kept)


def declared_schema(schema: Schema | str | Path | None, path: Path, limits: Limits) -> Schema:
    """Return the schema, from its file if need be; without one there is nothing to do."""
    if schema is None:
        raise DataError(
            str(path),
            "a schema: bounds, categories and classes that are publicly known",
            "none",
            "Nothing is inferred from records. Start from `veracal schema draft FILE`, replace "
            "what it read by public knowledge, and pass schema=.",
        )
    return schema if isinstance(schema, Schema) else Schema.load(schema, limits=limits)


def _read(
    path: str | Path,
    schema: Schema | str | Path,
    rows: int,
    limits: Limits,
    progress: Progress | None,
    row_digests: bool = False,
) -> Iterator[tuple[int, Dataset]]:
    """Stream how many records were read, and what became of them."""
    _checks.whole(rows=rows)
    path = Path(path)
    declared = declared_schema(schema, path, limits)
    if (folder := array_folder(path)) is not None:
        whole = load_mapped(folder, declared, limits, row_digests=row_digests)
        yield from ((len(batch), batch) for batch in whole.batches(rows))
        return
    names = _written_names(declared)
    with closing(pieces(path, declared, names, rows, limits, progress)) as stream:
        for start, piece in stream:
            batch = encode(
                piece,
                declared,
                where=path.name,
                start=start,
                row_digests=row_digests,
                written=is_text(path),
            )
            yield piece.height, batch


def scan_rows(
    path: str | Path,
    schema: Schema | str | Path,
    *,
    rows: int = _ROWS,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Rows]]:
    """Stream a table whose labels nobody knows, or needs, through its schema.

    The target's column may be there or not; nobody looks at it. Everything else is as for
    :func:`scan`: the same columns, checks and limits.

    Yields
    ------
    tuple of int and Rows
        How many rows of the table were read, and those that the schema keeps.
    """
    _checks.whole(rows=rows)
    path = Path(path)
    declared = declared_schema(schema, path, limits)
    if path.is_dir() or path.name == "X.npy":
        raise DataError(
            str(path),
            "a table: a CSV, TSV, Parquet, Arrow or npz file",
            "a matrix on disk",
            "Save its rows as an npz file, or load them with their labels.",
        )
    names = _written_names(declared)
    bare = not declared.header and is_text(path)
    if bare and text_columns(path, declared.separator, limits) == len(names) - 1:
        names.remove(declared.target)
    with closing(pieces(path, declared, names, rows, limits, progress)) as stream:
        for start, piece in stream:
            found = encode_rows(piece, declared, where=path.name, start=start, labeled=False)
            yield piece.height, found


def pieces(
    path: Path,
    schema: Schema,
    names: Sequence[str],
    rows: int,
    limits: Limits,
    progress: Progress | None,
) -> Generator[tuple[int, pl.DataFrame]]:
    """Stream a table as it stands: how many records came before, and at most ``rows`` more.

    Whoever stops early closes it: Arrow reads ahead in a thread, which must not be left to the
    end of the process.
    """
    frames = read_table(
        path,
        header=schema.header,
        names=names,
        separator=schema.separator,
        ignored=[name for name, c in schema.columns.items() if isinstance(c, Ignore)],
        rows=rows,
        limits=limits,
        progress=progress,
    )
    start = 0
    try:
        for frame in frames:
            limits.check("rows", start + frame.height, path)
            for piece in frame.iter_slices(rows):
                yield start, piece
                start += piece.height
    finally:
        if isinstance(frames, Generator):
            frames.close()


def _written_names(schema: Schema) -> list[str]:
    """Columns of a file without a header: a vector stands for as many as it has entries."""
    return [
        written
        for name, column in schema.columns.items()
        for written in (column.feature_names(name) if isinstance(column, Vector) else (name,))
    ]
