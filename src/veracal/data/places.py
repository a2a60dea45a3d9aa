"""Where Veracal keeps what it can make again."""

import os
from contextlib import suppress
from pathlib import Path

from veracal.data.files import placed
from veracal.data.limits import no_surprises
from veracal.errors import DataError

_KEY = "names.key"
_KEY_BYTES = 32


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


def cache_secret(folder: Path) -> bytes:
    """Secret key of a cache folder, made at its first use.

    Names of files in a cache are hashes of records under this key. A name by a plain hash
    would tell whoever sees a listing, of a backup for example, whether a guess of the records
    is right.
    """
    path = folder / _KEY
    with no_surprises(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = path.exists()
    if not known:
        with suppress(DataError), placed(path) as file:  # somebody may be quicker
            file.write(os.urandom(_KEY_BYTES))
    with no_surprises(path):
        secret = path.read_bytes()
    if len(secret) != _KEY_BYTES:
        raise DataError(
            str(path),
            f"a key of {_KEY_BYTES} bytes",
            f"{len(secret)} bytes",
            "Remove the file: what is in the cache is then made again.",
        )
    return secret
