"""The file of a calibrator's book: SQLite, of which every change is on the disk at once."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veracal.data.limits import no_surprises
from veracal.errors import DataError

APPLICATION = 0x5643424B  # "VCBK", in the header of the file
FORMAT = 1
_PATIENCE = 60.0  # seconds to wait for another command that writes to the same book
_FULL = 2  # of PRAGMA synchronous
_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE sources (
    id TEXT PRIMARY KEY,
    terms TEXT NOT NULL,
    fault TEXT
) STRICT;
CREATE TABLE requests (
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('sent', 'answered', 'refused', 'unusable')),
    purpose TEXT NOT NULL,
    event TEXT NOT NULL,
    raw BLOB NOT NULL,
    reply BLOB,
    PRIMARY KEY (source, id)
) STRICT;
CREATE TABLE heads (
    source TEXT NOT NULL,
    number INTEGER NOT NULL,
    hash TEXT NOT NULL,
    previous TEXT NOT NULL,
    signature TEXT NOT NULL,
    request TEXT NOT NULL,
    PRIMARY KEY (source, number)
) STRICT;
CREATE TABLE runs (
    run TEXT NOT NULL,
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (run, source, id)
) STRICT;
CREATE TABLE rounds (
    run TEXT NOT NULL,
    question TEXT NOT NULL,
    closed TEXT NOT NULL,
    PRIMARY KEY (run, question)
) STRICT;
CREATE TABLE labels (
    run TEXT NOT NULL,
    source TEXT NOT NULL,
    label TEXT NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (run, source, label)
) STRICT;
"""


def opened(path: Path | None) -> sqlite3.Connection:
    """Open the file, or make it for its owner's eyes only; None keeps all in memory."""
    if path is None:
        connection = sqlite3.connect(":memory:", isolation_level=None)
    else:
        with no_surprises(path):
            new = not path.exists()
        if new:
            _make(path)
        with kept(path):
            connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
    with kept(path):
        connection.execute(f"PRAGMA synchronous = {_FULL}")
        _check(connection, path)
    return connection


@contextmanager
def kept(path: Path | None) -> Iterator[None]:
    """Tell what the disk or the file does not allow, in a line for the owner."""
    try:
        yield
    except sqlite3.Error as cause:
        raise DataError(
            str(path),
            "a book of a calibrator that can be read and written",
            str(cause),
            "Make room on the disk, or name the right file. What was answered is not lost: "
            "sources repeat their answers at no cost.",
        ) from cause


@contextmanager
def writing(connection: sqlite3.Connection, path: Path | None) -> Iterator[None]:
    """One change, whole or not at all."""
    with kept(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _make(path: Path) -> None:
    """An empty file, before anything secret could be in it."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as cause:
        raise DataError(
            str(path), "a place for a book", cause.strerror or "none", "Name another place."
        ) from cause


def _check(connection: sqlite3.Connection, path: Path | None) -> None:
    """Fill a new file; refuse one that is something else, or of a later version."""
    with writing(connection, path):
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if (application, version, tables) == (0, 0, 0):
            for statement in _TABLES.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        elif (application, version) != (APPLICATION, FORMAT):
            raise DataError(
                str(path),
                f"a book of a calibrator, of format {FORMAT}",
                "another file" if application != APPLICATION else f"format {version}",
                "Name the right file, or a new one.",
            )
