"""Limits on input files, atomic writes, the cache, strict JSON, and settings."""

import difflib
import json
import math
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from veracal import _checks
from veracal.errors import DataError, LimitError, SchemaError

_GIB = 2**30


@dataclass(frozen=True)
class Limits:
    """Bounds on the size of an input.

    Sizes that a file states are checked before it is parsed or an array is allocated, the rest
    while it is read.

    Attributes
    ----------
    file_bytes : int
        Size of one file on disk.
    rows, columns : int
        Records in a table or array; columns, or numbers in one record.
    field_bytes : int
        Length of one text field, and of a table's header line.
    memory_bytes : int
        Memory of a loaded data set, or of a file that is read as a whole. Streaming has no
        such bound.
    members : int
        Files in one archive or folder.
    """

    file_bytes: int = 64 * _GIB
    rows: int = 1_000_000_000
    columns: int = 200_000
    field_bytes: int = 2**20
    memory_bytes: int = 8 * _GIB
    members: int = 2_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            _checks.whole(**{field.name: getattr(self, field.name)})

    def check(self, limit: str, size: int, where: object) -> None:
        """Raise a :class:`LimitError` if ``size`` is above the limit of that name."""
        allowed = getattr(self, limit)
        if size > allowed:
            raise LimitError(
                where,
                f"at most {allowed:,} {limit.replace('_', ' ')}",
                f"{size:,}",
                f"Nothing was read. If the input can be trusted, pass Limits({limit}={size}).",
            )


DEFAULT_LIMITS: Limits = Limits()


def check_readable(path: Path, limits: Limits = DEFAULT_LIMITS) -> Path:
    """Return the path of a regular, non-empty file within the limits, or raise."""
    with translate_os_errors(path):
        if path.is_dir():
            raise DataError(path, "a file", "a folder", "Name a file inside it.")
        if not path.is_file():
            raise FileNotFoundError
        size = path.stat().st_size
    if size == 0:
        raise DataError(path, "a file with records", "an empty file", "Name another file.")
    limits.check("file_bytes", size, path)
    return path


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Translate errors of the operating system about a path into a :class:`DataError`."""
    try:
        yield
    except FileNotFoundError as cause:
        raise DataError(
            path, "an existing file", "nothing at that path", "Check the spelling."
        ) from cause
    except OSError as cause:
        raise DataError(
            path, "a readable path", cause.strerror or str(cause), "Check its permissions."
        ) from cause


@contextmanager
def open_file(path: Path, limits: Limits = DEFAULT_LIMITS) -> Iterator[BinaryIO]:
    """Open a file for reading after the checks of :func:`check_readable`."""
    check_readable(path, limits)
    with translate_os_errors(path), path.open("rb") as file:
        yield file


def inside(folder: Path, path: Path) -> Path:
    """Return ``path`` with links resolved, or raise if it leads out of ``folder``.

    Data folders are copied between machines: a link or a ``..`` in one must not make the
    loader read a file that the owner of the folder did not put there.
    """
    root = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(folder / path))
    if not target.is_relative_to(root):
        raise DataError(
            path,
            f"a file inside {folder}",
            "a path or link that leads outside of it",
            "Copy the file into the folder.",
        )
    return target


def new_file(path: Path, what: str = "file") -> Path:
    """Return the path of a file to be created in an existing folder, or raise."""
    with translate_os_errors(path):
        if os.path.lexists(path):  # also a broken link
            raise DataError(
                path, f"a new {what}", "one that exists", "Name another, or remove it."
            )
        if not path.parent.is_dir():
            raise DataError(
                path,
                f"a {what} in a folder that exists",
                "no such folder",
                "Create the folder first.",
            )
    return path


def check_suffix(path: Path, allowed: Collection[str]) -> str:
    """Return the suffix of a path in lower case, or raise an error that lists the allowed ones."""
    suffix = path.suffix.lower()
    if suffix not in allowed:
        raise DataError(
            path,
            f"a file that ends in {', '.join(allowed)}",
            repr(path.suffix) if path.suffix else "no suffix",
            "The suffix determines the format: rename the file.",
        )
    return suffix


def check_output_path(path: Path, *, force: bool) -> None:
    """Reject a path that could not be written, before the work that fills it."""
    with translate_os_errors(path):
        replaceable = force and path.is_file() and not path.is_symlink()
    if not replaceable:
        new_file(path)


@contextmanager
def atomic_file(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """Open a file for an atomic write: it appears under its name when it is complete.

    Only its owner can read it. With ``force`` it may replace an existing file, which stays
    unchanged if writing fails.
    """
    check_output_path(path, force=force)
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
                os.link(temporary, path)  # fails if another process was faster
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as cause:
        raise DataError(
            path, "a place to write", cause.strerror or str(cause), "Name another place."
        ) from cause


def write_new_text(path: Path, text: str) -> None:
    """Write a new text file atomically."""
    with atomic_file(path) as file:
        file.write(text.encode())


_KEY = "names.key"
_KEY_BYTES = 32


def cache_folder(folder: Path | str | None = None) -> Path:
    """Return the path of the cache folder, without creating it.

    It is the argument, or ``$VERACAL_CACHE``, or ``$XDG_CACHE_HOME/veracal``, or
    ``~/.cache/veracal``, whichever is set first.
    """
    named = folder if folder is not None else os.environ.get("VERACAL_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires programs to ignore a relative path.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "veracal"


def private_folder(folder: Path) -> Path:
    """Create a folder that only its owner can enter, or raise if another user owns it."""
    with translate_os_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may exist with other permissions; fails for other owners
    return folder


def cache_secret(folder: Path) -> bytes:
    """Return the secret key of a cache folder, creating it at the first use.

    File names in the cache are hashes of records under this key. With an unkeyed hash, a
    listing of the folder, in a backup for example, would confirm a guess of the records.
    """
    path = folder / _KEY
    with translate_os_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        exists = path.exists()
    if not exists:
        with suppress(DataError), atomic_file(path) as file:  # another process may be faster
            file.write(os.urandom(_KEY_BYTES))
    with translate_os_errors(path):
        secret = path.read_bytes()
    if len(secret) != _KEY_BYTES:
        raise DataError(
            path,
            f"a key of {_KEY_BYTES} bytes",
            f"{len(secret)} bytes",
            "Remove the file. Cached features are then computed again.",
        )
    return secret


def parse_json(text: str, where: str) -> Any:
    """Parse one JSON value strictly, rejecting input that parsers read differently.

    That is invalid JSON, duplicate keys, NaN and infinity, nesting beyond the recursion limit,
    and lone surrogates.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite
        )
        if "\\ud" in text.lower():  # may be a lone surrogate
            json.dumps(value, ensure_ascii=False).encode()
    except (RecursionError, ValueError) as cause:
        is_deep = isinstance(cause, RecursionError)
        raise DataError(
            where,
            "strict JSON (RFC 8259), each key once",
            "values nested too deeply" if is_deep else str(cause),
            "Write the file again as strict JSON.",
        ) from cause
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, rejecting duplicate keys."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key[:60]!r} twice")
        result[key] = value
    return result


def _finite(digits: str) -> float:
    """Reject NaN, Infinity, and numbers that overflow a float."""
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:20]}")
    return value


def construct_from_settings(kind: Any, settings: object, where: str) -> Any:
    """Construct a dataclass from a table of settings.

    Unknown and missing settings are rejected by name, and errors of the class name ``where``.
    """
    settings = expect_table(settings, where)
    known = {known.name: known for known in fields(kind)}
    for name in settings:
        if name not in known:
            similar = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {similar[0]!r}?" if similar else "Remove it."
            words = ", ".join(known) or "no settings"
            raise SchemaError(where, f"only {words}", repr(name), hint)
    for name, entry in known.items():
        required = entry.default is MISSING and entry.default_factory is MISSING
        if required and name not in settings:
            raise SchemaError(
                where,
                f"{name!r} to be declared",
                "no such entry",
                "Declare it: nothing is inferred.",
            )
    try:
        return kind(**settings)
    except DataError as error:
        if error.where.startswith(where):
            raise
        raise SchemaError(
            f"{where}: {error.where}", error.expected, error.found, error.remedy
        ) from error


def expect_table(entry: object, where: str) -> dict[str, Any]:
    """Return a TOML table, or raise if the entry is none."""
    if not isinstance(entry, dict):
        raise SchemaError(where, "a table", repr(entry)[:40], "Write it as [section.name].")
    return entry
