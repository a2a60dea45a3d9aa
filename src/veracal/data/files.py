"""How large and how strange an input may be before it is refused.

Files written whole or not at all.

Where Veracal keeps what it can make again.

JSON from strangers: one meaning, real numbers, bounded depth.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

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


def parse_json(text: str, where: str) -> Any:
    """Parse one JSON value, refusing what parsers disagree about.

    Raises
    ------
    DataError
        For anything that is not JSON, for a key that occurs twice in an object, NaN and
        infinity, nesting too deep to read, and text with halves of characters in it.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
        if "\\ud" in text.lower():  # may be half of a character, which no text can hold
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as cause:
        raise _not_json(where, "values nested too deep") from cause
    except ValueError as cause:
        raise _not_json(where, str(cause)) from cause
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object whose keys are all different."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key[:60]!r} twice")
        result[key] = value
    return result


def _no_constant(word: str) -> NoReturn:
    """Refuse NaN and infinity by name."""
    raise ValueError(f"the constant {word}")


def _finite(digits: str) -> float:
    """Refuse numbers too large for a float, which would become infinity."""
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:20]}")
    return value


def _not_json(where: str, found: str) -> DataError:
    """Error for text that is not the JSON we read."""
    return DataError(
        where, "strict JSON (RFC 8259), each key once", found, "Write the file again as JSON."
    )
