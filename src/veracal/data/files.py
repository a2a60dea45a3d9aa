"""Files written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from veracal.data.limits import no_surprises
from veracal.errors import DataError

Writer = TypeVar("Writer")


def new_file(path: Path, what: str = "file") -> Path:
    """Return a path where nothing is, in a folder that exists, or raise."""
    with no_surprises(path):
        if os.path.lexists(path):  # a link that leads nowhere is there, too
            raise DataError(
                str(path), f"a new {what}", "one that exists", "Name another, or remove it."
            )
        if not path.parent.is_dir():
            raise DataError(
                str(path),
                f"a {what} in a folder that exists",
                "no such folder",
                "Make it first.",
            )
    return path


def by_suffix(path: Path, writers: Mapping[str, Writer]) -> Writer:
    """What writes files of a suffix, or an error that names those there are."""
    found = writers.get(path.suffix.lower())
    if found is None:
        raise DataError(
            str(path),
            f"a file that ends in {', '.join(writers)}",
            repr(path.suffix) if path.suffix else "no suffix",
            "Name it so; the suffix says how it is written.",
        )
    return found


def check_place(path: Path, *, force: bool) -> None:
    """Refuse a place where a file could not be put, before the work and not after it."""
    with no_surprises(path):
        replaceable = force and path.is_file() and not path.is_symlink()
    if not replaceable:
        new_file(path)


@contextmanager
def placed(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """Open a file that appears under its name once everything is written.

    It is for its owner's eyes only. If writing fails, what was there stays.

    Parameters
    ----------
    path : path
    force : bool
        Whether the file may take the place of one that is there.
    """
    check_place(path, force=force)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if force:
                Path(temporary).replace(path)
            else:
                os.link(temporary, path)  # fails if somebody was quicker
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as cause:
        raise DataError(
            str(path), "a place to write", cause.strerror or str(cause), "Name another place."
        ) from cause


def write_new(path: Path, text: str) -> None:
    """Write a text file that was not there before, or raise and leave nothing behind."""
    with placed(path) as file:
        file.write(text.encode())
