"""Files written whole or not at all."""

import os
import tempfile
from pathlib import Path

from veracal.data.limits import no_surprises
from veracal.errors import DataError


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


def write_new(path: Path, text: str) -> None:
    """Write a text file that was not there before, or raise and leave nothing behind."""
    new_file(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # fails if somebody was quicker: nothing is overwritten
        finally:
            Path(temporary).unlink()
    except OSError as cause:
        raise DataError(
            str(path), "a place to write", cause.strerror or str(cause), "Name another place."
        ) from cause
