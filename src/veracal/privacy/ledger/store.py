"""The file a ledger lives in: SQLite, with one short-lived connection for each operation.

A connection is opened, used for one transaction and closed, so that a fork, a thread or a
crash finds nothing half open. The file is in write-ahead mode, and a commit reaches the disk
before it returns (``synchronous=FULL``); both are read back each time.

The file is only ever opened by SQLite. Opening and closing it by other means would release
the locks that SQLite holds on it elsewhere in the process
(https://www.sqlite.org/howtocorrupt.html).
"""

import fcntl
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import quote

from veracal.data.files import new_file
from veracal.errors import LedgerError
from veracal.privacy.ledger import tables
from veracal.privacy.ledger.chain import digest
from veracal.privacy.ledger.filesystems import refuse_shared
from veracal.privacy.ledger.units import Cost

FORMAT = 2
APPLICATION = 0x56434C47  # "VCLG", in the header of the file
PATIENCE = 60.0  # seconds to wait for other writers
_FULL = 2  # of PRAGMA synchronous
_BESIDE = ("-wal", "-shm", "-journal")
_UNTOUCHED = "Nothing was released, and nothing that was charged before is lost."
_HELD: ContextVar[frozenset[Path]] = ContextVar("_HELD", default=frozenset())
_REMEDIES = {
    "SQLITE_BUSY": "Others are writing to it; ask again.",
    "SQLITE_PROTOCOL": "Others are writing to it; ask again.",
    "SQLITE_READONLY": "Allow its owner to write to it and to its folder.",
    "SQLITE_CANTOPEN": "Allow its owner to write to it and to its folder.",
    "SQLITE_FULL": "Make room on the disk, then ask again.",
    "SQLITE_IOERR": "Make sure that the disk is sound and has room, then ask again.",
    "SQLITE_NOTADB": "This is no ledger: name another file.",
    "SQLITE_CORRUPT": "The file is damaged: look for what wrote to it or for a failing disk.",
    "SQLITE_CONSTRAINT": "The ledger does not add up: run `veracal ledger verify` on it.",
}


def create(
    path: Path, record: str, accounts: Mapping[str, Cost], *, filter: int | None
) -> None:
    """Make a ledger file: whole, for its owner's eyes only, and never over another file."""
    new_ledger(path)
    with _clear(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        try:
            _fill(Path(name), record, accounts, filter)
            _publish(Path(name), path)
        finally:
            for ending in ("", *_BESIDE):
                Path(name + ending).unlink(missing_ok=True)


def new_ledger(path: Path) -> None:
    """Refuse a path where a ledger cannot be made."""
    if "\0" in str(path):
        raise LedgerError(
            f"{str(path)!r}: expected the name of a file, found a zero byte in it."
        )
    new_file(path)
    for ending in _BESIDE:  # a log without its ledger would be replayed into the new one
        new_file(Path(f"{path}{ending}"))
    refuse_shared(path.parent)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """One state of the ledger, however many others write meanwhile."""
    with _clear(path), _connected(path) as connection:
        connection.execute("BEGIN")
        _check_file(connection, path)
        yield connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """The ledger, held against every other writer, until all is committed or nothing is.

    Guarantees
    ----------
    What the block reads stays true until it ends. When the block ends well, what it wrote is
    on the disk; when an exception or the end of the process leaves it, nothing is.
    """
    if path in _HELD.get():
        raise LedgerError(
            f"{path}: what is computed for an answer cannot use the ledger that waits for it. "
            "Charge before, or afterwards."
        )
    with _clear(path), _connected(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        _check_file(connection, path)
        token = _HELD.set(_HELD.get() | {path})
        try:
            yield connection
        finally:
            _HELD.reset(token)
        connection.execute("COMMIT")


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that is closed in the end, with whatever was not committed undone."""
    _check_place(path)
    connection = _connect(path)
    try:
        yield connection
    finally:
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # it is undone by the next one to open the file
                connection.execute("ROLLBACK")
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    """Open a file that exists, so that commits reach the disk."""
    uri = f"file:{quote(os.fsencode(path))}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_place(path: Path) -> None:
    """Refuse a file that two names or two machines may lead to."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        link = stat.S_ISLNK(found.st_mode) or stat.S_ISREG(found.st_mode)
        raise LedgerError(
            f"{path}: expected a file of its own, found {'a link' if link else 'none'}.",
            "Under a second name the log beside it is not found. Name the file itself.",
        )
    refuse_shared(path.parent)


def _check_file(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is no ledger, or not as a ledger must be."""
    if _pragma(connection, "application_id") != APPLICATION:
        raise LedgerError(f"{path}: expected a ledger, found another database. Name another.")
    if (found := _pragma(connection, "user_version")) != FORMAT:
        raise LedgerError(
            f"{path}: expected a ledger of format {FORMAT}, found format {found}.",
            "It was written by another version of Veracal: use that one.",
        )
    settings = (_pragma(connection, "journal_mode"), _pragma(connection, "synchronous"))
    if settings != ("wal", _FULL):
        raise LedgerError(
            f"{path}: expected a write-ahead log that reaches the disk with each commit, found "
            f"journal_mode={settings[0]} and synchronous={settings[1]}. Keep the ledger on "
            "another file system."
        )
    if len(connection.execute("PRAGMA database_list").fetchall()) != 1:
        raise LedgerError(f"{path}: expected one database, found others attached to it.")
    if tables.schema(connection) != tables.expected_schema(tables.SCHEMA):
        raise LedgerError(f"{path}: its tables or their triggers were changed.")


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    """A setting, read back."""
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _fill(path: Path, record: str, accounts: Mapping[str, Cost], filter: int | None) -> None:
    """Write the tables of a new ledger."""
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.executescript(tables.SCHEMA)
        tables.add_accounts(connection, accounts, filter=filter, entry=None)
        connection.execute("INSERT INTO opening VALUES (1, ?, ?)", (record, digest(record)))
    finally:
        connection.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _publish(temporary: Path, path: Path) -> None:
    """Give a finished ledger its name, unless somebody was quicker, and make that last."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Not a hard link, which never overwrites: killed in between, it leaves two names.
        fcntl.flock(folder, fcntl.LOCK_EX)
        new_ledger(path)
        temporary.rename(path)
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _clear(path: Path) -> Iterator[None]:
    """Turn what SQLite and the operating system say into a clear error."""
    try:
        yield
    except sqlite3.Error as cause:
        name = getattr(cause, "sqlite_errorname", None) or ""
        remedy = next((text for key, text in _REMEDIES.items() if name.startswith(key)), "")
        raise LedgerError(f"{path}: {cause}. {_UNTOUCHED} {remedy}".strip()) from cause
    except UnicodeDecodeError as cause:  # from SQLite, about names in a damaged file
        raise LedgerError(f"{path}: {_REMEDIES['SQLITE_CORRUPT']}") from cause
    except FileNotFoundError as cause:
        raise LedgerError(
            f"{path}: expected a ledger, found nothing. Check the spelling, or make one with "
            "`veracal ledger open`."
        ) from cause
    except OSError as cause:
        raise LedgerError(f"{path}: {cause.strerror or cause}. {_UNTOUCHED}") from cause
