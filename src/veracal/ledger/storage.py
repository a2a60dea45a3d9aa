"""The SQLite file of a ledger: file system checks, schema, statements and transactions.

*File systems.* SQLite's write-ahead log shares memory between processes and relies on locks and
on ``fsync``. Network file systems do not guarantee these: two machines could both hold the lock
and spend the same budget (https://www.sqlite.org/wal.html).

*Schema.* The database enforces its invariants. A trigger debits the account of an entry in the
same statement, a constraint keeps every account within its total, and triggers prevent changes
and deletions. So no charge can be entered without being counted, and no error in Python can
overspend. Accounts are created with the opening, with an extension (one per partition) or with
a run (one per item): an entry states how many accounts it adds, and no more can be added. A
unique column ensures that a reservation is settled only once.

*Transactions.* A connection is opened, used for one transaction and closed, so a fork, a thread
or a crash leaves no open connection. The file uses write-ahead logging, and a commit reaches
the disk before it returns (``synchronous=FULL``); both settings are verified each time.

Only SQLite opens the file. Opening and closing it by other means would release the locks that
SQLite holds on it elsewhere in the process (https://www.sqlite.org/howtocorrupt.html).
"""

import fcntl
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from veracal.data import new_file
from veracal.errors import LedgerError
from veracal.ledger.chain import Caps, Entry, Opening, digest
from veracal.ledger.policies import Cost

_MOUNTS = Path("/proc/self/mountinfo")
_SHARED_FILE_SYSTEMS = re.compile(
    r"nfs.*|cifs|smb.*|9p|afs|afpfs|webdav|davfs.*|ceph|glusterfs|lustre|gpfs|beegfs|orangefs"
    r"|pvfs2?|ocfs2|gfs2?|coda|ncpfs|ncp|vboxsf|vmhgfs|prl_fs|virtiofs|fuse(\..*)?"
)


def check_local(folder: Path) -> None:
    """Raise if a folder is on a file system that other machines may share.

    On systems that do not list their mounts (other than Linux) nothing is checked.
    """
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    kind = file_system_type(os.path.realpath(folder), mounts)
    if kind is not None and _SHARED_FILE_SYSTEMS.fullmatch(kind):
        raise LedgerError(
            f"{folder}: expected a local file system, found {kind}.",
            "File systems shared between machines do not guarantee locks and fsync, so a budget "
            "could be spent twice. Keep the ledger on a local disk.",
        )


def file_system_type(path: str, mounts: str) -> str | None:
    r"""Type of the file system of a path, from the text of a mountinfo file.

    It is that of the deepest mount point above the path; of several mounts on one point, the
    last.

    Examples
    --------
    >>> mounts = '''1 0 8:1 / / rw - ext4 /dev/sda1 rw
    ... 2 1 0:40 / /mnt/my\\040share rw shared:2 - nfs4 host:/export rw'''
    >>> file_system_type("/mnt/my share/ledger", mounts), file_system_type("/mnt/mine", mounts)
    ('nfs4', 'ext4')
    """
    kind, depth = None, -1
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if not rest or len(fields.split()) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split()[4])
        parts = [part for part in point.split("/") if part]
        if path.split("/")[1 : len(parts) + 1] == parts and len(parts) >= depth:
            kind, depth = rest.split()[0], len(parts)
    return kind


SCHEMA = """
CREATE TABLE opening (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    record TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE TABLE accounts (
    name TEXT PRIMARY KEY,
    filter INTEGER CHECK (filter IS NULL OR typeof(filter) = 'integer'),
    entry INTEGER REFERENCES entries (id),
    total INTEGER NOT NULL CHECK (typeof(total) = 'integer'),
    total_delta INTEGER NOT NULL CHECK (typeof(total_delta) = 'integer'),
    spent INTEGER NOT NULL DEFAULT 0
        CHECK (typeof(spent) = 'integer' AND 0 <= spent AND spent <= total),
    spent_delta INTEGER NOT NULL DEFAULT 0
        CHECK (typeof(spent_delta) = 'integer'
            AND 0 <= spent_delta AND spent_delta <= total_delta)
) WITHOUT ROWID;
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    record TEXT NOT NULL,
    hash TEXT NOT NULL,
    scope INTEGER NOT NULL CHECK (typeof(scope) = 'integer'),
    request TEXT,
    run INTEGER CHECK (run IS NULL OR typeof(run) = 'integer'),
    account TEXT REFERENCES accounts (name),
    filter INTEGER CHECK (filter IS NULL OR typeof(filter) = 'integer'),
    cost INTEGER NOT NULL CHECK (typeof(cost) = 'integer' AND cost >= 0),
    cost_delta INTEGER NOT NULL CHECK (typeof(cost_delta) = 'integer' AND cost_delta >= 0),
    outcome TEXT NOT NULL,
    settles INTEGER UNIQUE REFERENCES entries (id),
    adds INTEGER NOT NULL CHECK (typeof(adds) = 'integer' AND adds >= 0),
    answer BLOB,
    UNIQUE (scope, request),
    CHECK (cost + cost_delta > 0 OR settles IS NOT NULL OR outcome = 'extended'),
    CHECK (cost + cost_delta = 0 OR filter IS NOT NULL OR account IS NOT NULL),
    CHECK (settles IS NULL OR cost + cost_delta = 0),
    CHECK (adds = 0 OR outcome IN ('extended', 'run'))
);
CREATE INDEX entries_adding ON entries (id) WHERE adds > 0;
CREATE INDEX entries_of_runs ON entries (run) WHERE run IS NOT NULL;
CREATE INDEX entries_reserved ON entries (id) WHERE outcome = 'reserved';
CREATE TRIGGER entries_debit AFTER INSERT ON entries BEGIN
    UPDATE accounts SET spent = spent + NEW.cost, spent_delta = spent_delta + NEW.cost_delta
        WHERE name = NEW.account OR (NEW.account IS NULL AND filter = NEW.filter);
END;
CREATE TRIGGER entries_settle BEFORE INSERT ON entries
    WHEN NEW.settles IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM entries WHERE id = NEW.settles AND outcome IN ('reserved', 'run'))
    BEGIN SELECT RAISE(ABORT, 'only a reservation or a run is settled'); END;
CREATE TRIGGER entries_follow BEFORE INSERT ON entries
    WHEN NEW.id IS NOT (SELECT coalesce(max(id), 0) + 1 FROM entries)
    BEGIN SELECT RAISE(ABORT, 'entries follow one another'); END;
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries do not change'); END;
CREATE TRIGGER entries_last BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries are not deleted'); END;
CREATE TRIGGER accounts_stay BEFORE UPDATE ON accounts
    WHEN NEW.name IS NOT OLD.name OR NEW.total IS NOT OLD.total
        OR NEW.filter IS NOT OLD.filter OR NEW.entry IS NOT OLD.entry
        OR NEW.total_delta IS NOT OLD.total_delta
        OR NEW.spent < OLD.spent OR NEW.spent_delta < OLD.spent_delta
    BEGIN SELECT RAISE(ABORT, 'totals do not change, and nothing is given back'); END;
CREATE TRIGGER accounts_last BEFORE DELETE ON accounts
    BEGIN SELECT RAISE(ABORT, 'accounts are not deleted'); END;
CREATE TRIGGER accounts_closed BEFORE INSERT ON accounts
    WHEN EXISTS (SELECT 1 FROM opening) AND NOT EXISTS (
        SELECT 1 FROM entries WHERE id = NEW.entry AND id = (SELECT max(id) FROM entries)
            AND adds > (SELECT count(*) FROM accounts WHERE entry = NEW.entry))
    BEGIN SELECT RAISE(ABORT, 'accounts are only added by an extension or a run'); END;
CREATE TRIGGER opening_stays BEFORE UPDATE ON opening
    BEGIN SELECT RAISE(ABORT, 'the opening does not change'); END;
CREATE TRIGGER opening_lasts BEFORE DELETE ON opening
    BEGIN SELECT RAISE(ABORT, 'the opening is not deleted'); END;
"""


# ---------------------------------------------------------------- statements

COPIED_COLUMNS = (  # columns of entries that repeat fields of the record
    "scope",
    "request",
    "run",
    "account",
    "filter",
    "cost",
    "cost_delta",
    "outcome",
    "settles",
)
_VERIFY = "Run `veracal ledger verify` on it; a damaged ledger rejects charges and answers."


def opening_record(connection: sqlite3.Connection) -> tuple[Opening, str]:
    """The opening and the hash of its record, the start of the chain."""
    rows = connection.execute("SELECT record, hash FROM opening").fetchall()
    if len(rows) != 1 or _hash(rows[0][0]) != rows[0][1]:
        raise LedgerError("The opening record does not match its hash.", _VERIFY)
    return Opening.from_text(rows[0][0]), rows[0][1]


def read_caps(connection: sqlite3.Connection) -> Caps:
    """The current caps of a ledger."""
    caps = Caps(opening_record(connection)[0])
    for entry in account_entries(connection):
        if entry.extension is not None:
            released = connection.execute(  # whether anything may have been released before
                "SELECT EXISTS (SELECT 1 FROM entries WHERE id < ? AND settles IS NULL "
                "AND outcome NOT IN ('extended', 'run'))",
                (entry.index,),
            ).fetchone()[0]
            caps = caps.extended(*entry.extension, entry.index, after_releases=bool(released))
    return caps


def head(connection: sqlite3.Connection) -> tuple[int, str]:
    """Index and hash of the last entry, or 0 and the hash of the opening."""
    last = connection.execute(
        "SELECT id, record, hash FROM entries ORDER BY id DESC LIMIT 1"
    ).fetchone()
    if last is None:
        return 0, opening_record(connection)[1]
    if _hash(last[1]) != last[2]:
        raise LedgerError(f"Entry {last[0]} does not match its hash.", _VERIFY)
    return last[0], last[2]


def find(
    connection: sqlite3.Connection, request: str, scope: int = 0
) -> tuple[Entry, bytes | None] | None:
    """The entry of a request id, in a run or in the ledger itself, and its answer."""
    where = "scope = ? AND request = ?"
    return next(iter(_select(connection, where, scope, request, request=request)), None)


def settlement(connection: sqlite3.Connection, index: int) -> tuple[Entry, bytes | None] | None:
    """The entry that settles another, and its answer."""
    return next(iter(_select(connection, "settles = ?", index, settles=index)), None)


def account_entries(connection: sqlite3.Connection) -> list[Entry]:
    """Entries that add accounts: extensions, and the first entry of each run."""
    return [entry for entry, _ in _select(connection, "adds > 0")]


def run_entries(connection: sqlite3.Connection, run: int) -> list[Entry]:
    """The entries that began a run, one per partition that it reads."""
    return [entry for entry, _ in _select(connection, "run = ? AND outcome = 'run'", run)]


def entry(connection: sqlite3.Connection, index: int) -> Entry:
    """An entry by its index."""
    for match, _ in _select(connection, "id = ?", index):
        return match
    raise LedgerError(f"The ledger has no entry {index}.", _VERIFY)


def pending(connection: sqlite3.Connection) -> list[Entry]:
    """Unsettled reservations."""
    settled = "SELECT settles FROM entries WHERE settles IS NOT NULL"
    matches = _select(connection, f"outcome = 'reserved' AND id NOT IN ({settled})")
    return [entry for entry, _ in matches]


def _select(
    connection: sqlite3.Connection, where: str, *values: object, **expected: object
) -> list[tuple[Entry, bytes | None]]:
    """Entries that satisfy a condition, in order, and their answers.

    Raise unless all match their hashes, and their records have the expected values.
    """
    rows = connection.execute(
        f"SELECT record, hash, answer FROM entries WHERE {where} ORDER BY id",  # noqa: S608
        values,
    )
    selected = []
    for record, stated, answer in rows.fetchall():
        entry = Entry.from_text(record)
        if _hash(record) != stated:
            raise LedgerError(f"Entry {entry.index} does not match its hash.", _VERIFY)
        if entry.answer != (None if answer is None else digest(answer)):
            raise LedgerError(
                f"The answer of entry {entry.index} does not match its hash.", _VERIFY
            )
        if any(getattr(entry, name) != value for name, value in expected.items()):
            raise LedgerError(f"Entry {entry.index} does not match its columns.", _VERIFY)
        selected.append((entry, answer))
    return selected


def balances(connection: sqlite3.Connection) -> dict[str, tuple[Cost, Cost]]:
    """Amount spent and total of every account."""
    rows = connection.execute(
        "SELECT name, spent, spent_delta, total, total_delta FROM accounts ORDER BY name"
    ).fetchall()
    if not all(isinstance(amount, int) for row in rows for amount in row[1:]):
        raise LedgerError("An account contains a value that is not an integer.", _VERIFY)
    return {name: (Cost(a, b), Cost(c, d)) for name, a, b, c, d in rows}


def entries(connection: sqlite3.Connection) -> Iterator[Entry]:
    """All entries, in order."""
    for (text,) in connection.execute("SELECT record FROM entries ORDER BY id"):
        yield Entry.from_text(text)


def hashes(connection: sqlite3.Connection, indexes: Iterable[int]) -> dict[int, str]:
    """Hashes of entries, computed from their records; missing entries are omitted."""
    result = {}
    for index in set(indexes):
        row = connection.execute("SELECT record FROM entries WHERE id = ?", (index,)).fetchone()
        if row is not None:
            result[index] = _hash(row[0])
    return result


def answers(connection: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    """Index and answer of every entry that has one."""
    yield from connection.execute("SELECT id, answer FROM entries WHERE answer IS NOT NULL")


def append(
    connection: sqlite3.Connection, entry: Entry, answer: bytes | None, adds: int = 0
) -> None:
    """Append an entry and its answer; the database debits the account in the same statement."""
    values: dict[str, object] = {"id": entry.index, "record": entry.text, "hash": entry.hash}
    values |= {name: getattr(entry, name) for name in COPIED_COLUMNS}
    values |= {"adds": adds, "answer": answer}
    connection.execute(
        f"INSERT INTO entries ({', '.join(values)}) "  # noqa: S608
        f"VALUES ({', '.join('?' * len(values))})",
        tuple(values.values()),
    )


def add_accounts(
    connection: sqlite3.Connection,
    accounts: Mapping[str, Cost],
    *,
    filter: int | None,
    entry: int | None,
) -> None:
    """Add accounts, with the opening (``entry=None``) or with the last entry."""
    connection.executemany(
        "INSERT INTO accounts (name, filter, entry, total, total_delta) VALUES (?, ?, ?, ?, ?)",
        [(name, filter, entry, total.amount, total.delta) for name, total in accounts.items()],
    )


def _hash(record: object) -> str:
    """SHA-256 of a record as stored; a damaged file may contain any type."""
    return digest(record.encode()) if isinstance(record, str) else ""


# ---------------------------------------------------------------- files and transactions

FORMAT = 2
APPLICATION = 0x56434C47  # "VCLG", in the header of the file
BUSY_TIMEOUT = 60.0  # seconds to wait for other writers
SETTINGS = ("synchronous = FULL", "foreign_keys = ON")
_FULL = 2  # of PRAGMA synchronous
SIDE_FILES = ("-wal", "-shm", "-journal")
_OPEN_FOR_WRITING: ContextVar[frozenset[Path]] = ContextVar(
    "_OPEN_FOR_WRITING", default=frozenset()
)
_REMEDIES = {
    "SQLITE_BUSY": "Other processes are writing to it; try again.",
    "SQLITE_PROTOCOL": "Other processes are writing to it; try again.",
    "SQLITE_READONLY": "Give its owner write permission for the file and its folder.",
    "SQLITE_CANTOPEN": "Give its owner write permission for the file and its folder.",
    "SQLITE_FULL": "Free space on the disk, then try again.",
    "SQLITE_IOERR": "Check that the disk works and has free space, then try again.",
    "SQLITE_NOTADB": "Use another file.",
    "SQLITE_CORRUPT": "The file is damaged: check for other writers and for a failing disk.",
    "SQLITE_CONSTRAINT": "The file is inconsistent: run `veracal ledger verify` on the ledger.",
}


def create_file(
    path: Path, record: str, accounts: Mapping[str, Cost], *, filter: int | None
) -> None:
    """Create a ledger file atomically, readable by its owner only, never over another."""
    with (
        translate_errors(path),
        locked_folder(path) as folder,
        publish(path, folder) as temporary,
    ):
        with connect(temporary, *SETTINGS) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.executescript(SCHEMA)
            add_accounts(connection, accounts, filter=filter, entry=None)
            connection.execute("INSERT INTO opening VALUES (1, ?, ?)", (record, digest(record)))
        check_new_path(path)


@contextmanager
def publish(path: Path, folder: int) -> Iterator[Path]:
    """A temporary file, readable by its owner only, that becomes the file of a path at the end.

    The folder is open and locked (:func:`locked_folder`).
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        # Not a hard link: a process killed in between would leave two names.
        temporary.rename(path)
        os.fsync(folder)
    finally:
        for ending in ("", *SIDE_FILES):
            Path(name + ending).unlink(missing_ok=True)


@contextmanager
def locked_folder(path: Path) -> Iterator[int]:
    """The open folder of a path, locked against concurrent creation."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(folder)


def check_new_path(path: Path, what: str = "file") -> None:
    """Raise if an SQLite file cannot be created at a path."""
    if "\0" in str(path):
        raise LedgerError(f"{str(path)!r}: expected a file name, found one with a null byte.")
    for ending in ("", *SIDE_FILES):  # SQLite would replay the log of a deleted file
        new_file(Path(f"{path}{ending}"), what)
    check_local(path.parent)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A read transaction: a consistent state of the ledger, despite concurrent writers."""
    with translate_errors(path), connect(path, *SETTINGS) as connection:
        connection.execute("BEGIN")
        _check_file(connection, path)
        yield connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A write transaction, which excludes every other writer.

    Guarantees
    ----------
    What the block reads stays valid until it ends. If the block ends normally, its writes are
    on the disk; after an exception or the end of the process, none of them is.
    """
    if path in _OPEN_FOR_WRITING.get():
        raise LedgerError(
            f"{path}: the computation of an answer cannot use the ledger that waits for it. "
            "Charge before or afterwards."
        )
    with translate_errors(path), connect(path, *SETTINGS) as connection:
        connection.execute("BEGIN IMMEDIATE")
        _check_file(connection, path)
        token = _OPEN_FOR_WRITING.set(_OPEN_FOR_WRITING.get() | {path})
        try:
            yield connection
        finally:
            _OPEN_FOR_WRITING.reset(token)
        connection.execute("COMMIT")


@contextmanager
def connect(path: Path, *settings: str) -> Iterator[sqlite3.Connection]:
    """A connection to an existing SQLite file, rolled back and closed at the end."""
    check_path(path)
    uri = f"file:{quote(os.fsencode(path))}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)
    try:
        for setting in (*settings, "trusted_schema = OFF"):
            connection.execute(f"PRAGMA {setting}")
        yield connection
    finally:
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # the next connection rolls back
                connection.execute("ROLLBACK")
        connection.close()


def check_path(path: Path) -> None:
    """Raise if a file has two names or may be shared between machines."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        link = stat.S_ISLNK(status.st_mode) or stat.S_ISREG(status.st_mode)
        raise LedgerError(
            f"{path}: expected a regular file with one name, found "
            f"{'a link' if link else 'something else'}.",
            "Under a second name SQLite does not find the log. Use the file itself.",
        )
    check_local(path.parent)


def check_settings(
    connection: sqlite3.Connection,
    path: Path,
    what: str,
    *,
    application: int,
    version: int,
    settings: tuple[str, int],
) -> None:
    """Raise unless a database has this format, and this journal mode and synchronization."""
    actual_application, actual_version, journal_mode, synchronous = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version", "journal_mode", "synchronous")
    )
    if actual_application != application:
        raise LedgerError(f"{path}: expected {what}, found another database.")
    if actual_version != version:
        raise LedgerError(
            f"{path}: expected {what} of format {version}, found format {actual_version}.",
            "It was written by another version of Veracal: use that version.",
        )
    if (journal_mode, synchronous) != settings:
        raise LedgerError(
            f"{path}: expected commits that reach the disk (journal_mode={settings[0]} and "
            f"synchronous={settings[1]}), found journal_mode={journal_mode} and "
            f"synchronous={synchronous}. Keep it on another file system."
        )


def _check_file(connection: sqlite3.Connection, path: Path) -> None:
    """Raise unless the database is an unmodified ledger with the required settings."""
    check_settings(
        connection,
        path,
        "a ledger",
        application=APPLICATION,
        version=FORMAT,
        settings=("wal", _FULL),
    )
    if len(connection.execute("PRAGMA database_list").fetchall()) != 1:
        raise LedgerError(f"{path}: expected one database, found others attached to it.")
    if _read_schema(connection) != _expected_schema(SCHEMA):
        raise LedgerError(f"{path}: its tables or triggers were changed.")


def _read_schema(connection: sqlite3.Connection) -> dict[str, str]:
    """Every table, index and trigger of a database, by name."""
    return dict(connection.execute("SELECT name, coalesce(sql, '') FROM sqlite_master"))


@lru_cache(maxsize=4)
def _expected_schema(script: str) -> dict[str, str]:
    """The schema of an unmodified ledger."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        return _read_schema(connection)


@contextmanager
def translate_errors(
    path: Path,
    *,
    outcome: str = "Nothing was released, and no earlier charge is lost.",
    missing: str = "expected a ledger, but the file does not exist. Check the path, or create a "
    "ledger with `veracal ledger open`.",
) -> Iterator[None]:
    """Translate errors of SQLite and the operating system to :class:`LedgerError`."""
    try:
        yield
    except sqlite3.Error as cause:
        name = getattr(cause, "sqlite_errorname", None) or ""
        remedy = next((text for key, text in _REMEDIES.items() if name.startswith(key)), "")
        raise LedgerError(f"{path}: {cause}. {outcome} {remedy}".strip()) from cause
    except UnicodeDecodeError as cause:  # raised by SQLite for names in a damaged file
        raise LedgerError(f"{path}: {_REMEDIES['SQLITE_CORRUPT']}") from cause
    except FileNotFoundError as cause:
        raise LedgerError(f"{path}: {missing}") from cause
    except OSError as cause:
        raise LedgerError(f"{path}: {cause.strerror or cause}. {outcome}") from cause
