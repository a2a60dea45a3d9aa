"""How large and how strange an input may be before it is refused."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

from veracal import _checks
from veracal.errors import DataError, LimitError

_GIB = 2**30


@dataclass(frozen=True)
class Limits:
    """Bounds that are checked before an input is parsed or an array allocated.

    Attributes
    ----------
    file_bytes : int
        Size of one file on disk.
    rows, columns : int
        Records in a table or array; columns, or numbers in one record.
    field_bytes : int
        Length of one text field, and of a table's header line.
    memory_bytes : int
        What a data set may take in memory once loaded; streaming has no such bound.
    expansion : int
        How many times larger than its compressed form an archive member may be.
    members : int
        Files in one archive or folder.
    """

    file_bytes: int = 64 * _GIB
    rows: int = 1_000_000_000
    columns: int = 200_000
    field_bytes: int = 2**20
    memory_bytes: int = 8 * _GIB
    expansion: int = 200
    members: int = 2_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            _checks.whole(**{field.name: getattr(self, field.name)})

    def check(self, limit: str, found: int, where: object) -> None:
        """Raise a :class:`LimitError` if ``found`` is above the limit of that name."""
        allowed = getattr(self, limit)
        if found > allowed:
            raise LimitError(
                str(where),
                f"at most {allowed:,} {limit.replace('_', ' ')}",
                f"{found:,}",
                f"Nothing was read. If the input can be trusted, pass Limits({limit}={found}).",
            )


DEFAULT_LIMITS = Limits()


def readable(path: Path, limits: Limits = DEFAULT_LIMITS) -> Path:
    """Return the path of a regular, non-empty file within the limits, or raise."""
    with no_surprises(path):
        if path.is_dir():
            raise DataError(str(path), "a file", "a folder", "Name a file inside it.")
        if not path.is_file():
            raise _vanished(path)
        size = path.stat().st_size
    if size == 0:
        raise DataError(str(path), "a file with records", "an empty file", "Name another file.")
    limits.check("file_bytes", size, path)
    return path


@contextmanager
def no_surprises(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a path into a clear error."""
    try:
        yield
    except FileNotFoundError as cause:
        raise _vanished(path) from cause
    except OSError as cause:
        raise DataError(
            str(path), "a readable path", cause.strerror or str(cause), "Check its permissions."
        ) from cause


@contextmanager
def opened(path: Path, limits: Limits = DEFAULT_LIMITS) -> Iterator[BinaryIO]:
    """Open a file that passes :func:`readable`."""
    readable(path, limits)
    with no_surprises(path), path.open("rb") as file:
        yield file


def inside(folder: Path, path: Path) -> Path:
    """Return ``path``, resolved, if it stays in ``folder`` once links are followed.

    Archives and data folders come from elsewhere; a link or a ``..`` in one must not
    make us read a file that its owner did not put there.
    """
    root = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(folder / path))
    if not target.is_relative_to(root):
        raise DataError(
            str(path),
            f"a file inside {folder}",
            "a path or link that leads outside of it",
            "Copy the file into the folder.",
        )
    return target


def _vanished(path: Path) -> DataError:
    """Error for a path where nothing is."""
    return DataError(
        str(path), "an existing file", "nothing at that path", "Check the spelling."
    )
