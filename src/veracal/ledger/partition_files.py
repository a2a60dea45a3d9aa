"""The files of a stored partition assignment: an SQLite file and its secret key.

Both are created atomically on a local disk, readable by their owner only. Connections are
short-lived, so a fork, a thread or a crash leaves no open connection.
"""

import fcntl
import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from veracal.errors import LedgerError
from veracal.ledger.storage import check_local, check_path, open_existing, rolling_back

FORMAT = 1
APPLICATION = 0x56435054  # "VCPT", in the header of the file
SIDE_FILES = ("-wal", "-shm", "-journal")
KEY_BYTES = 32
_SYNCHRONOUS = 3  # EXTRA: the deletion of a journal reaches the disk, too


def key_path(path: Path) -> Path:
    """Path of a store's secret key."""
    return Path(f"{path}.key")


def read_key(path: Path) -> bytes:
    """Read a secret key from a file that only its owner can read."""
    remedy = (
        "Restore the key file that was created with the partitions: without it, individuals "
        "cannot be recognized and would change partitions."
    )
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as cause:
        raise LedgerError(
            f"{path}: expected a secret key, found {cause.strerror or cause}.", remedy
        ) from cause
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise LedgerError(
                f"{path}: expected a regular file with one name, found a link.", remedy
            )
        if status.st_mode & 0o077:
            raise LedgerError(
                f"{path}: expected a secret key that only its owner can read, found mode "
                f"{stat.S_IMODE(status.st_mode):o}.",
                "Remove the permissions of other users (chmod 600).",
            )
        secret = file.read(KEY_BYTES + 1)
    if len(secret) != KEY_BYTES:
        raise LedgerError(
            f"{path}: expected a key of {KEY_BYTES} bytes, found {len(secret)}.", remedy
        )
    return secret


@contextmanager
def locked_folder(path: Path) -> Iterator[int]:
    """The folder of a store, locked against concurrent creation."""
    if "\0" in str(path):
        raise LedgerError(f"{str(path)!r}: expected a file name, found one with a null byte.")
    with _translate_errors(path):
        check_local(path.parent)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(folder)


def publish(path: Path, folder: int, write: Callable[[Path], object]) -> None:
    """Create a file atomically, readable by its owner only."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(name))
        with Path(name).open("rb") as file:
            os.fsync(file.fileno())
        Path(name).rename(path)
        os.fsync(folder)
    finally:
        for ending in ("", *SIDE_FILES):
            Path(name + ending).unlink(missing_ok=True)


@contextmanager
def transaction(path: Path, *, write: bool) -> Iterator[sqlite3.Connection]:
    """A transaction; the writes of a block are on the disk once it ends normally."""
    with _translate_errors(path):
        check_path(path)
        with rolling_back(connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            _check_database(connection, path)
            yield connection
            connection.execute("COMMIT")


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing store so that commits reach the disk."""
    return open_existing(path, f"synchronous = {_SYNCHRONOUS}")


def _check_database(connection: sqlite3.Connection, path: Path) -> None:
    """Raise unless the database is a partition store with the required settings."""

    def pragma(name: str) -> object:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    if pragma("application_id") != APPLICATION:
        raise LedgerError(f"{path}: expected partition assignments, found another database.")
    if (version := pragma("user_version")) != FORMAT:
        raise LedgerError(
            f"{path}: expected partitions of format {FORMAT}, found format {version}.",
            "They were written by another version of Veracal: use that version.",
        )
    settings = (pragma("journal_mode"), pragma("synchronous"))
    if settings != ("delete", _SYNCHRONOUS):
        raise LedgerError(
            f"{path}: expected synchronous commits, found journal_mode={settings[0]} and "
            f"synchronous={settings[1]}. Keep it on another file system."
        )


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and the operating system to :class:`LedgerError`."""
    try:
        yield
    except sqlite3.Error as cause:
        raise LedgerError(
            f"{path}: {cause}. Nothing was assigned or charged.",
            "Check that the disk has free space and that the owner has write permission, then "
            "start again; if the file is damaged, restore it with its key from a backup.",
        ) from cause
    except FileNotFoundError as cause:
        raise LedgerError(
            f"{path}: expected the assignment of individuals to partitions, but the file does "
            "not exist.",
            "Check the path, or restore the file beside its ledger.",
        ) from cause
    except OSError as cause:
        raise LedgerError(
            f"{path}: {cause.strerror or cause}. Nothing was assigned."
        ) from cause
