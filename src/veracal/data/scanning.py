"""Records of a file, a few at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from veracal import _checks
from veracal._types import Progress
from veracal.data.columns import Ignore, Vector
from veracal.data.dataset import Dataset
from veracal.data.encode import encode
from veracal.data.limits import DEFAULT_LIMITS, Limits
from veracal.data.readers.formats import read_table
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
    progress: Progress | None = None,
) -> Iterator[Dataset]:
    """Stream a file of records through its schema, at most ``rows`` of them at a time.

    Memory does not grow with the file. Limits on rows per unit need the whole file and are
    not applied here: each batch has ``at_most=None``.
    """
    for _, batch in _read(path, schema, rows, limits, progress):
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
) -> Iterator[tuple[int, Dataset]]:
    """Stream how many records were read, and what became of them."""
    _checks.whole(rows=rows)
    path = Path(path)
    declared = declared_schema(schema, path, limits)
    if (folder := array_folder(path)) is not None:
        whole = load_mapped(folder, declared, limits)
        yield from ((len(batch), batch) for batch in whole.batches(rows))
        return
    frames = read_table(
        path,
        header=declared.header,
        names=_written_names(declared),
        separator=declared.separator,
        ignored=[name for name, c in declared.columns.items() if isinstance(c, Ignore)],
        rows=rows,
        limits=limits,
        progress=progress,
    )
    start = 0
    for frame in frames:
        limits.check("rows", start + frame.height, path)
        for piece in frame.iter_slices(rows):
            yield piece.height, encode(piece, declared, where=path.name, start=start)
            start += piece.height


def _written_names(schema: Schema) -> list[str]:
    """Columns of a file without a header: a vector stands for as many as it has entries."""
    return [
        written
        for name, column in schema.columns.items()
        for written in (column.feature_names(name) if isinstance(column, Vector) else (name,))
    ]
