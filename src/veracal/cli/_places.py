"""Places that a command writes to."""

import os
from pathlib import Path

from veracal.errors import DataError


def is_there(place: Path) -> bool:
    """Tell whether there is anything at a place, a link that leads nowhere included."""
    return os.path.lexists(place)


def check_new(place: Path, *, force: bool, what: str = "file", option: str = "--out") -> None:
    """Refuse to write over something unless that was wanted, and say how to want it."""
    if is_there(place) and not force:
        raise DataError(
            str(place),
            f"a new {what}",
            "one that exists",
            f"Add --force to replace it, or name another with {option}.",
        )
