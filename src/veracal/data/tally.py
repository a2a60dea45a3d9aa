"""Counting what a schema makes of a file."""

from dataclasses import dataclass
from pathlib import Path

from veracal.data.encode import encode
from veracal.data.formats import read_table
from veracal.data.limits import DEFAULT_LIMITS, Limits
from veracal.data.load import _written_names, scan
from veracal.data.schema import Schema
from veracal.data.tables import Progress

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


def tally(
    path: str | Path,
    schema: Schema,
    *,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> Tally:
    """Stream a file through its schema, as :func:`~veracal.data.scan` does, and count.

    Raises
    ------
    DataError
        At the first record that is not as declared.
    """
    path = Path(path)
    if (
        path.is_dir() or path.suffix.lower() == ".npy"
    ):  # arrays on disk, of which none is dropped
        kept = sum(map(len, scan(path, schema, limits=limits)))
        return Tally(kept, kept)
    read = kept = 0
    for frame in read_table(
        path,
        header=schema.header,
        names=_written_names(schema),
        separator=schema.separator,
        rows=_ROWS,
        limits=limits,
        progress=progress,
    ):
        limits.check("rows", read + frame.height, path)
        for piece in frame.iter_slices(_ROWS):
            kept += len(encode(piece, schema, where=path.name, start=read))
            read += piece.height
    return Tally(read, kept)
