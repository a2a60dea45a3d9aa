"""Records of a file, a few at a time.

From a name or a path to a data set.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from veracal import _checks
from veracal._types import Progress
from veracal.data.arrays import find_array_folder, load_matrix
from veracal.data.builtin import entry
from veracal.data.columns import Ignore, Vector
from veracal.data.dataset import Dataset, check_learnable, concatenate
from veracal.data.encoding import EncodedRows, declare_dataset, encode, encode_rows
from veracal.data.files import DEFAULT_LIMITS, Limits
from veracal.data.formats import is_text, read_table, stated_rows, text_columns
from veracal.data.images import ImageForm, load_images
from veracal.data.schema import Schema
from veracal.data.texts import TextForm, load_text
from veracal.data.units import limit_contributions
from veracal.errors import DataError

_ROWS = 65_536


@dataclass(frozen=True)
class RecordCount:
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


def count_records(
    path: str | Path,
    schema: Schema | str | Path,
    *,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> RecordCount:
    """Stream a file through its schema and count.

    Raises
    ------
    DataError
        At the first record that is not as declared.
    """
    read = kept = 0
    for height, batch in _read(path, schema, _ROWS, limits, progress):
        read, kept = read + height, kept + len(batch)
    return RecordCount(read, kept)


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
    if (folder := find_array_folder(path)) is not None:
        whole = load_matrix(folder, declared, limits, row_digests=row_digests)
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
) -> Iterator[tuple[int, EncodedRows]]:
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


def load(
    what: str | Path,
    *,
    schema: Schema | ImageForm | TextForm | str | Path | None = None,
    part: str | None = None,
    variant: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    rng: np.random.Generator | None = None,
    row_digests: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Load a known data set by its name, or a file of records through its schema.

    Parameters
    ----------
    what : str or Path
        A name that ``veracal data list`` shows, or the path of a CSV, TSV, Parquet, Arrow
        or npz file, of a folder with ``X.npy`` and ``y.npy``, which stays on disk, of a
        folder or zip of images, or of a file of sentences.
    schema : Schema or path of one, ImageForm or TextForm
        What is publicly known about the file. Named sets bring their own.
    part, variant : str, optional
        For named sets: which part ('train', 'test', …) and which published version. A
        part may also be asked of images whose form finds it in their path.
    limits : Limits
        What is refused as too large before it is parsed.
    rng : Generator, optional
        For sets that are drawn at random, and for the choice of rows where a unit has more
        than the schema allows. By default from secret entropy.
    row_digests : bool
        Whether to compute the identity of each record, which splitting by a key or by a
        ledger's assignment needs where rows have no unit ids: a digest of the declared
        columns' cells as the file holds them, or of an image file's bytes.
    progress : callable, optional
        Called with how much is done and how much there is.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        If anything is not as declared. Nothing is returned then, not even a part.

    Examples
    --------
    >>> load("breast-cancer").classes
    ('malignant', 'benign')
    """
    if isinstance(what, str) and _is_name(what):
        _check_no_schema(what, schema)
        return entry(what).load(part=part, variant=variant, rng=rng, row_digests=row_digests)
    path = Path(what)
    if variant is not None:
        raise ValueError(f"Expected no variant for a file, got variant={variant!r}.")
    if isinstance(schema, ImageForm):
        return load_images(
            path,
            schema,
            part=part,
            limits=limits,
            row_digests=row_digests,
            progress=progress,
        )
    if part is not None:
        raise ValueError(f"Expected no part for such a file, got part={part!r}.")
    if isinstance(schema, TextForm):
        return load_text(
            path, schema, limits=limits, row_digests=row_digests, progress=progress
        )
    declared = declared_schema(schema, path, limits)
    if (folder_of_arrays := find_array_folder(path)) is not None:
        whole = load_matrix(folder_of_arrays, declared, limits, row_digests=row_digests)
    else:
        whole = _gather(path, declared, limits, progress, row_digests)
    check_learnable(whole, path)
    return limit_contributions(whole, at_most=declared.at_most, rng=rng)


def declare(what: str | Path, *, schema: Schema | None = None) -> Dataset:
    """What is declared about the records that :func:`load` would read, and none of them.

    Parameters
    ----------
    what : str or Path
        As of :func:`load`. The file itself is not opened, and nothing is fetched.
    schema : Schema, optional
        Of a file. Named sets bring what is published about them.

    Returns
    -------
    Dataset
        Without a row; its form, classes, groups, name and declared figures are those of the
        loaded records.

    Examples
    --------
    >>> declare("breast-cancer").X.shape
    (0, 30)
    """
    if isinstance(what, str) and _is_name(what):
        _check_no_schema(what, schema)
        return entry(what).declare()
    return declare_dataset(declared_schema(schema, Path(what), DEFAULT_LIMITS), where=str(what))


def _is_name(what: str) -> bool:
    """Tell a name from a path: names have neither a suffix nor a separator."""
    return not Path(what).suffix and len(Path(what).parts) == 1 and not Path(what).exists()


def _check_no_schema(name: str, schema: object) -> None:
    """Refuse a schema for a named set."""
    if schema is not None:
        raise ValueError(f"Expected no schema for {name!r}, which brings its own.")


def _gather(
    path: Path,
    schema: Schema,
    limits: Limits,
    progress: Progress | None,
    row_digests: bool,
) -> Dataset:
    """Collect a streamed file, within the limit on memory."""
    stated = stated_rows(path, limits)
    if stated is not None:  # a few bytes can state a billion rows
        limits.check("memory_bytes", 8 * stated * len(schema.feature_names), path)
    parts, taken = [], 0
    for batch in scan(path, schema, limits=limits, row_digests=row_digests, progress=progress):
        taken += _held_bytes(batch)
        limits.check("memory_bytes", taken, path)
        parts.append(batch)
    if not parts:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    return concatenate(parts)


def _held_bytes(batch: Dataset) -> int:
    """Bytes that a batch takes; an array of text says only those of its pointers."""
    texts = [a for a in (batch.X[:], batch.units) if a is not None and a.dtype.kind == "T"]
    return batch.X.nbytes + sum(int(np.strings.str_len(text).sum()) for text in texts)
