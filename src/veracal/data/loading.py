"""Load a data set by name or from a path, as a whole or in batches."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from veracal import _checks
from veracal._types import Progress
from veracal.data.arrays import find_array_folder, load_matrix
from veracal.data.builtin import CatalogEntry, entry
from veracal.data.dataset import Dataset, check_learnable, concatenate, limit_contributions
from veracal.data.encoding import EncodedRows, declare_dataset, encode, encode_rows
from veracal.data.files import DEFAULT_LIMITS, Limits
from veracal.data.images import ImageForm, load_images
from veracal.data.schema import Ignore, Schema, Vector, read_toml
from veracal.data.tables import read_column_names, read_table, stated_rows, text_separator
from veracal.data.texts import TextForm, load_text
from veracal.errors import DataError

_ROWS = 65_536


@dataclass(frozen=True)
class RecordCount:
    """Numbers of records that were read from a file and that its schema kept.

    Both are figures about the records, private under add-remove, for the data holder only.
    """

    read: int
    kept: int

    @property
    def dropped(self) -> int:
        """Number of records that were dropped for a missing value."""
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
    """Stream a file through its schema in batches of at most ``rows`` records.

    Memory does not grow with the file. Bounds on the rows of a unit need the whole file and
    are not applied here: each batch has ``max_contributions=None``. ``row_digests`` is that of
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
    """Stream a file through its schema and count its records.

    The first record that violates the schema raises a :class:`~veracal.errors.DataError`.
    """
    read = kept = 0
    for height, batch in _read(path, schema, _ROWS, limits, progress):
        read, kept = read + height, kept + len(batch)
    return RecordCount(read, kept)


def _declared_schema(schema: Schema | str | Path | None, path: Path, limits: Limits) -> Schema:
    """Return the schema of a table, loading it from its file if necessary, or raise."""
    if schema is None:
        raise DataError(
            path,
            "a schema: bounds, categories and classes that are publicly known",
            "none",
            "Nothing is inferred from records. Start from `veracal schema draft FILE`, replace "
            "the values it read by public knowledge, and pass schema=.",
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
    """Stream the number of records read and the batch encoded from them."""
    _checks.whole(rows=rows)
    path = Path(path)
    declared = _declared_schema(schema, path, limits)
    if (folder := find_array_folder(path)) is not None:
        dataset = load_matrix(folder, declared, limits, row_digests=row_digests)
        yield from ((len(batch), batch) for batch in dataset.batches(rows))
        return
    with closing(_pieces(path, declared, rows, limits, progress)) as stream:
        for start, piece in stream:
            batch = encode(
                piece,
                declared,
                where=path.name,
                start=start,
                row_digests=row_digests,
                written=text_separator(path) is not None,
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
    """Stream a table without labels, or whose labels are not needed, through its schema.

    The target column may be present; it is not read. Everything else is as for :func:`scan`.
    Each batch is the number of rows read from the table, and those that the schema keeps.
    """
    _checks.whole(rows=rows)
    path = Path(path)
    declared = _declared_schema(schema, path, limits)
    if path.is_dir() or path.name == "X.npy":
        raise DataError(
            path,
            "a table: a CSV, TSV, Parquet, Arrow or npz file",
            "a matrix on disk",
            "Save its rows as an npz file, or load them with their labels.",
        )
    pieces = _pieces(path, declared, rows, limits, progress, labeled=False)
    with closing(pieces) as stream:
        for start, piece in stream:
            encoded = encode_rows(piece, declared, where=path.name, start=start, labeled=False)
            yield piece.height, encoded


def _pieces(
    path: Path,
    schema: Schema,
    rows: int,
    limits: Limits,
    progress: Progress | None,
    *,
    labeled: bool = True,
) -> Generator[tuple[int, pl.DataFrame]]:
    """Stream a table unencoded: the number of earlier records and at most ``rows`` more.

    A caller that stops early closes the generator: Arrow prefetches in a thread, which must
    not outlive the caller.
    """
    names = [  # of a file without a header, where each entry of a vector is a column
        part
        for name, column in schema.columns.items()
        for part in (column.feature_names(name) if isinstance(column, Vector) else (name,))
    ]
    separator = text_separator(path, schema.separator)
    if not labeled and separator is not None and not schema.header:
        first = read_column_names(path, header=False, separator=separator, limits=limits)
        if len(first) == len(names) - 1:
            names.remove(schema.target)
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
    """Load a built-in data set by its name, or a file of records through its schema.

    Parameters
    ----------
    what : str or Path
        The name of a built-in set (``veracal data list``), or the path of a CSV, TSV,
        Parquet, Arrow or npz file, of a folder with ``X.npy`` and ``y.npy``, which stays on
        disk, of a folder or zip archive of images, or of a text file.
    schema : Schema, ImageForm, TextForm or path of a TOML file
        Public facts about the file. A TOML file holds a schema, or the attributes of an
        ``ImageForm`` as its table ``[images]``. Built-in sets have their own schema.
    part, variant : str, optional
        For built-in synthetic sets: partition ('train' or 'test') and published version. A
        part also selects images whose form finds it in their path.
    rng : Generator, optional
        For synthetic sets, and for sampling the rows of a unit with more than the schema
        allows. By default from secret entropy.
    row_digests : bool
        Whether to compute a digest of each record, which a split by a key or by a ledger's
        assignment needs if rows have no unit ids: of the cells of the declared columns as the
        file holds them, or of the bytes of an image file.
    progress : callable, optional
        Called with the amount done and the total.

    Raises
    ------
    DataError
        At the first record that violates the schema. No partial result is returned.

    Examples
    --------
    >>> load("breast-cancer").classes
    ('malignant', 'benign')
    """
    if (built_in := _built_in(what, schema)) is not None:
        return built_in.load(part=part, variant=variant, rng=rng, row_digests=row_digests)
    path = Path(what)
    if variant is not None:
        raise ValueError(f"Expected no variant for a file, got variant={variant!r}.")
    if isinstance(schema, str | Path):
        entries, where = read_toml(Path(schema), limits), str(schema)
        kind = ImageForm if "images" in entries else Schema
        schema = kind.from_settings(entries, where)
    if isinstance(schema, ImageForm):
        return load_images(
            path, schema, part=part, limits=limits, row_digests=row_digests, progress=progress
        )
    if part is not None:
        raise ValueError(f"Expected no part for such a file, got part={part!r}.")
    if isinstance(schema, TextForm):
        return load_text(
            path, schema, limits=limits, row_digests=row_digests, progress=progress
        )
    declared = _declared_schema(schema, path, limits)
    if (folder := find_array_folder(path)) is not None:
        dataset = load_matrix(folder, declared, limits, row_digests=row_digests)
    else:
        rows = stated_rows(path, limits)
        if rows is not None:  # a small file can state a billion rows
            limits.check("memory_bytes", 8 * rows * len(declared.feature_names), path)
        parts, used = [], 0
        for batch in scan(
            path, declared, limits=limits, row_digests=row_digests, progress=progress
        ):
            # nbytes of an array of text counts only its pointers.
            arrays = [batch.X[:]] if batch.units is None else [batch.X[:], batch.units]
            texts = [array for array in arrays if array.dtype.kind == "T"]
            used += batch.X.nbytes + sum(int(np.strings.str_len(t).sum()) for t in texts)
            limits.check("memory_bytes", used, path)
            parts.append(batch)
        if not parts:
            raise DataError(path, "at least one record", "none", "Name a file with records.")
        dataset = concatenate(parts)
    check_learnable(dataset, path)
    return limit_contributions(dataset, max_contributions=declared.max_contributions, rng=rng)


def declare(what: str | Path, *, schema: Schema | None = None) -> Dataset:
    """Return the declared facts of the data set that :func:`load` would return, without rows.

    Its shape, classes, groups, name and declared facts are those of the loaded data set. The
    file is not opened.

    Examples
    --------
    >>> declare("breast-cancer").X.shape
    (0, 30)
    """
    if (built_in := _built_in(what, schema)) is not None:
        return built_in.declare()
    return declare_dataset(
        _declared_schema(schema, Path(what), DEFAULT_LIMITS), where=str(what)
    )


def _built_in(what: str | Path, schema: object) -> CatalogEntry | None:
    """Look up a name, which has neither a suffix nor a separator; None for a path."""
    path = Path(what)
    if not isinstance(what, str) or path.suffix or len(path.parts) != 1 or path.exists():
        return None
    if schema is not None:
        raise ValueError(f"Expected no schema for {what!r}, which has its own.")
    return entry(what)
