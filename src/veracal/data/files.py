"""Files written whole or not at all."""

import os
import tempfile
from pathlib import Path

from veracal.errors import DataError


def write_new(path: Path, text: str) -> None:
    """Write a text file that was not there before, or raise and leave nothing behind."""
    if path.exists():
        raise DataError(
            str(path), "a new file", "one that exists", "Name another, or remove it."
        )
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
