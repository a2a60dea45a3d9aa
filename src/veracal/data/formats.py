"""The reader for a file, chosen by the suffix of its name."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import polars as pl

from veracal._types import Progress
from veracal.data.arrays import read_npz
from veracal.data.files import Limits, check_readable
from veracal.data.tables import (
    arrays_to_frame,
    parquet_rows,
    read_arrow,
    read_column_names,
    read_csv,
    read_parquet,
)
from veracal.errors import DataError

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".arrows", ".feather", ".ipc")
SUFFIXES = (*_SEPARATORS, *_PARQUET, *_ARROW, ".npz")


def stated_rows(path: Path, limits: Limits) -> int | None:
    """Number of records that a Parquet file states; None for other formats."""
    return parquet_rows(path, limits) if path.suffix.lower() in _PARQUET else None


def is_text(path: Path) -> bool:
    """Whether a file has separated text fields, by its suffix."""
    return path.suffix.lower() in _SEPARATORS


def text_columns(path: Path, separator: str | None, limits: Limits) -> int:
    """Number of fields in the first line of a text file."""
    between = separator or _SEPARATORS[path.suffix.lower()]
    return len(read_column_names(path, header=False, separator=between, limits=limits))


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

    Parameters
    ----------
    header : bool
        Whether the first line of a CSV file names the columns.
    names : sequence of str, optional
        Names for the columns of a CSV file without a header; by default generated.
    separator : str, optional
        Character between the fields of a CSV file; by default that of its suffix.
    ignored : collection of str
        Columns that are not needed and not read if the format allows it.
    """
    suffix = path.suffix.lower()
    if suffix in _SEPARATORS:
        separator = separator or _SEPARATORS[suffix]
        if not header and names is None:
            names = read_column_names(path, header=False, separator=separator, limits=limits)
        return read_csv(
            path,
            names=None if header else names,
            separator=separator,
            limits=limits,
            progress=progress,
        )
    if suffix in _PARQUET:
        return read_parquet(path, rows=rows, ignored=ignored, limits=limits, progress=progress)
    if suffix in _ARROW:
        return read_arrow(path, ignored=ignored, limits=limits, progress=progress)
    if suffix == ".npz":
        return iter([arrays_to_frame(read_npz(path, limits), path, limits)])
    check_readable(path, limits)
    raise DataError(
        str(path), f"a file ending in {', '.join(SUFFIXES)}", repr(suffix), "Convert it to one."
    )
