"""Where Veracal keeps what it can make again."""

import os
from pathlib import Path

from veracal.data.limits import no_surprises


def cache_folder(folder: Path | str | None = None) -> Path:
    """Name the folder where Veracal keeps what it can make again.

    It is the one named, or ``$VERACAL_CACHE``, or ``$XDG_CACHE_HOME/veracal``, or
    ``~/.cache/veracal``, whichever comes first. Nothing is made.
    """
    named = folder if folder is not None else os.environ.get("VERACAL_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification tells programs to ignore a relative path.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "veracal"


def private_folder(folder: Path) -> Path:
    """Make a folder that only its owner can enter, or raise if it is somebody else's."""
    with no_surprises(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # made earlier with more; fails unless it is ours
    return folder
