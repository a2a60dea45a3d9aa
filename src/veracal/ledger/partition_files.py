"""The two files of a stored assignment: an SQLite file and its secret key.

Both are made whole or not at all, for their owner's eyes only, on a disk of this machine.
Connections are short: a fork, a thread or a crash finds nothing half open.
"""

import fcntl
import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from veracal.errors import LedgerError
from veracal.ledger.storage import refuse_shared

FORMAT = 1
APPLICATION = 0x56435054  # "VCPT", in the header of the file
BESIDE = ("-wal", "-shm", "-journal")
KEY_BYTES = 32
_PATIENCE = 60.0  # seconds to wait for other writers
_SYNCHRONOUS = 3  # EXTRA: the end of a journal reaches the disk, too


def key_path(path: Path) -> Path:
    """File of a store's secret key."""
    return Path(f"{path}.key")


def read_key(path: Path) -> bytes:
    """Read a secret key from a file that is its owner's alone."""
    remedy = (
        "Put the file back that was made with the partitions: without it nobody can be "
        "recognized, and individuals would change partitions."
    )
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as cause:
        raise LedgerError(
            f"{path}: expected a secret key, found {cause.strerror or cause}.", remedy
        ) from cause
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise LedgerError(f"{path}: expected a file of its own, found a link.", remedy)
        if found.st_mode & 0o077:
            raise LedgerError(
                f"{path}: expected a secret key that only its owner can read, found mode "
                f"{stat.S_IMODE(found.st_mode):o}.",
                "Take the others' permissions away (chmod 600).",
            )
        secret = file.read(KEY_BYTES + 1)
    if len(secret) != KEY_BYTES:
        raise LedgerError(
            f"{path}: expected a key of {KEY_BYTES} bytes, found {len(secret)}.", remedy
        )
    return secret


@contextmanager
def held_folder(path: Path) -> Iterator[int]:
    """The folder of a store, held against others who would create one in it."""
    if "\0" in str(path):
        raise LedgerError(f"{str(path)!r}: expected the name of a file, found a zero byte.")
    with _clear_errors(path):
        refuse_shared(path.parent)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(folder)


def publish(path: Path, folder: int, write: Callable[[Path], object]) -> None:
    """Put a file, for its owner's eyes only, whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(name))
        with Path(name).open("rb") as file:
            os.fsync(file.fileno())
        Path(name).rename(path)
        os.fsync(folder)
    finally:
        for ending in ("", *BESIDE):
            Path(name + ending).unlink(missing_ok=True)


@contextmanager
def transaction(path: Path, *, write: bool) -> Iterator[sqlite3.Connection]:
    """One state of a store's file; what a block writes is on the disk once it ends well."""
    with _clear_errors(path):
        _check_file(path)
        connection = connect(path)
        try:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            _check_database(connection, path)
            yield connection
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                with suppress(sqlite3.Error):  # undone by the next one to open the file
                    connection.execute("ROLLBACK")
            connection.close()


def connect(path: Path) -> sqlite3.Connection:
    """Open a file that exists, so that commits reach the disk."""
    uri = f"file:{quote(os.fsencode(path))}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)
    try:
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")
        connection.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_file(path: Path) -> None:
    """Refuse a file that two names or two machines may lead to."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise LedgerError(
            f"{path}: expected a file of its own, found a link. Name the file itself."
        )
    refuse_shared(path.parent)


def _check_database(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is no store, or not as a store must be."""

    def pragma(name: str) -> object:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    if pragma("application_id") != APPLICATION:
        raise LedgerError(
            f"{path}: expected assignments to partitions, found another database."
        )
    if (found := pragma("user_version")) != FORMAT:
        raise LedgerError(
            f"{path}: expected partitions of format {FORMAT}, found format {found}.",
            "They were written by another version of Veracal: use that one.",
        )
    settings = (pragma("journal_mode"), pragma("synchronous"))
    if settings != ("delete", _SYNCHRONOUS):
        raise LedgerError(
            f"{path}: expected commits that reach the disk, found journal_mode={settings[0]} "
            f"and synchronous={settings[1]}. Keep it on another file system."
        )


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the operating system say into a clear error."""
    try:
        yield
    except sqlite3.Error as cause:
        raise LedgerError(
            f"{path}: {cause}. Nothing was assigned or charged.",
            "Make sure that the disk has room and that the owner may write to it, then start "
            "again; if the file is damaged, restore it with its key from a backup.",
        ) from cause
    except FileNotFoundError as cause:
        raise LedgerError(
            f"{path}: expected the assignment of individuals to partitions, found nothing.",
            "Check the spelling, or put it back beside its ledger.",
        ) from cause
    except OSError as cause:
        raise LedgerError(
            f"{path}: {cause.strerror or cause}. Nothing was assigned."
        ) from cause
