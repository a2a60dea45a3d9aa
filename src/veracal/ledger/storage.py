"""Which file systems can be trusted with a ledger.

SQLite's write-ahead log shares memory between processes and relies on locks and on ``fsync``.
Over a network these are promised by nobody: two machines would each believe that they hold
the lock, and both would spend the same budget (https://www.sqlite.org/wal.html).

The tables of a ledger, and the few statements that touch them.

The database defends itself. An entry debits its account in the same statement, by a trigger;
no account exceeds its total, by a constraint; nothing is changed or deleted, by triggers. So
a charge cannot be entered without being counted, and no mistake in Python can overspend.
Accounts come into being with the opening, with an extension (one for each part) or with a run
(one for each item): an entry says how many it adds, and no more can be added to it. A
reservation is settled once, by a unique column.

The file a ledger lives in: SQLite, with one short-lived connection for each operation.

A connection is opened, used for one transaction and closed, so that a fork, a thread or a
crash finds nothing half open. The file is in write-ahead mode, and a commit reaches the disk
before it returns (``synchronous=FULL``); both are read back each time.

The file is only ever opened by SQLite. Opening and closing it by other means would release
the locks that SQLite holds on it elsewhere in the process
(https://www.sqlite.org/howtocorrupt.html).
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
from veracal.ledger.chain import Entry, digest
from veracal.ledger.plan import Cost

_MOUNTS = Path("/proc/self/mountinfo")
_SHARED = re.compile(
    r"nfs.*|cifs|smb.*|9p|afs|afpfs|webdav|davfs.*|ceph|glusterfs|lustre|gpfs|beegfs|orangefs"
    r"|pvfs2?|ocfs2|gfs2?|coda|ncpfs|ncp|vboxsf|vmhgfs|prl_fs|virtiofs|fuse(\..*)?"
)


def refuse_shared(folder: Path) -> None:
    """Raise if a folder lies on a file system that other machines may share.

    Where the system does not list its mounts (elsewhere than on Linux) nothing is known and
    nothing refused.
    """
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    kind = kind_of(os.path.realpath(folder), mounts)
    if kind is not None and _SHARED.fullmatch(kind):
        raise LedgerError(
            f"{folder}: expected a local file system, found {kind}.",
            "Over a network or a bridge between machines, locks and fsync promise nothing, and "
            "a budget could be spent twice. Keep the ledger on a local disk.",
        )


def kind_of(path: str, mounts: str) -> str | None:
    r"""Type of the file system that holds a path, by the text of a mountinfo file.

    The deepest mount point above the path decides; of several on one point, the last.

    Examples
    --------
    >>> mounts = '''1 0 8:1 / / rw - ext4 /dev/sda1 rw
    ... 2 1 0:40 / /mnt/my\\040share rw shared:2 - nfs4 host:/export rw'''
    >>> kind_of("/mnt/my share/ledger", mounts), kind_of("/mnt/mine", mounts)
    ('nfs4', 'ext4')
    """
    found, depth = None, -1
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if not rest or len(fields.split()) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split()[4])
        parts = [part for part in point.split("/") if part]
        if path.split("/")[1 : len(parts) + 1] == parts and len(parts) >= depth:
            found, depth = rest.split()[0], len(parts)
    return found


_VERIFY = "Run `veracal ledger verify` on it; a damaged ledger neither charges nor answers."

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


def schema(connection: sqlite3.Connection) -> dict[str, str]:
    """Every table, index and trigger of a database, by name."""
    return dict(connection.execute("SELECT name, coalesce(sql, '') FROM sqlite_master"))


@lru_cache(maxsize=4)
def expected_schema(script: str) -> dict[str, str]:
    """What :func:`schema` says of a ledger that nobody has touched."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        return schema(connection)


def opening(connection: sqlite3.Connection) -> tuple[str, str]:
    """The opening record and its hash, the beginning of the chain."""
    found = connection.execute("SELECT record, hash FROM opening").fetchall()
    if len(found) != 1 or _hash(found[0][0]) != found[0][1]:
        raise LedgerError("The opening record does not match its hash.", _VERIFY)
    return found[0][0], found[0][1]


def head(connection: sqlite3.Connection) -> tuple[int, str]:
    """Index and hash of the last entry, or 0 and the hash of the opening."""
    last = connection.execute(
        "SELECT id, record, hash FROM entries ORDER BY id DESC LIMIT 1"
    ).fetchone()
    if last is None:
        return 0, opening(connection)[1]
    if _hash(last[1]) != last[2]:
        raise LedgerError(f"Entry {last[0]} does not match its hash.", _VERIFY)
    return last[0], last[2]


def find(
    connection: sqlite3.Connection, request: str, scope: int = 0
) -> tuple[Entry, bytes | None] | None:
    """The entry made under a request id, of a run or of the ledger itself, and its answer."""
    found = connection.execute(
        "SELECT record, hash, answer FROM entries WHERE scope = ? AND request = ?",
        (scope, request),
    ).fetchone()
    return None if found is None else _read(*found, request=request)


def settlement(connection: sqlite3.Connection, index: int) -> tuple[Entry, bytes | None] | None:
    """The entry that settles another, and its answer."""
    found = connection.execute(
        "SELECT record, hash, answer FROM entries WHERE settles = ?", (index,)
    ).fetchone()
    return None if found is None else _read(*found, settles=index)


def _read(
    record: str, stated: str, answer: bytes | None, **expected: object
) -> tuple[Entry, bytes | None]:
    """An entry and its answer, if both match their hashes and the columns that found them."""
    entry = Entry.from_text(record)
    whole = None if answer is None else digest(answer)
    matches = all(getattr(entry, name) == value for name, value in expected.items())
    if digest(record) != stated or entry.answer != whole or not matches:
        raise LedgerError(
            f"Entry {entry.index} or its answer does not match its hash.", _VERIFY
        )
    return entry, answer


def adding(connection: sqlite3.Connection) -> list[Entry]:
    """Entries that add accounts: extensions, and the first entry of each run."""
    return _some(connection, "adds > 0")


def begun(connection: sqlite3.Connection, run: int) -> list[Entry]:
    """The entries that began a run, one for each part that it reads."""
    return _some(connection, "run = ? AND outcome = 'run'", run)


def entry(connection: sqlite3.Connection, index: int) -> Entry:
    """An entry by its index."""
    (found,) = _some(connection, "id = ?", index) or (None,)
    if found is None:
        raise LedgerError(f"The ledger has no entry {index}.", _VERIFY)
    return found


def pending(connection: sqlite3.Connection) -> list[Entry]:
    """Reservations that nothing settles yet."""
    return _some(
        connection,
        "outcome = 'reserved' AND id NOT IN "
        "(SELECT settles FROM entries WHERE settles IS NOT NULL)",
    )


def _some(connection: sqlite3.Connection, where: str, *values: object) -> list[Entry]:
    """Entries of which something holds, in order."""
    rows = connection.execute(
        f"SELECT record, hash FROM entries WHERE {where} ORDER BY id",  # noqa: S608
        values,
    ).fetchall()
    found = [Entry.from_text(record) for record, _ in rows]
    for entry, (record, stated) in zip(found, rows, strict=True):
        if _hash(record) != stated:
            raise LedgerError(f"Entry {entry.index} does not match its hash.", _VERIFY)
    return found


def released_before(connection: sqlite3.Connection, index: int) -> bool:
    """Whether something may have been released before an entry."""
    rows = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM entries WHERE id < ? AND settles IS NULL "
        "AND outcome NOT IN ('extended', 'run'))",
        (index,),
    )
    return bool(rows.fetchone()[0])


def balances(connection: sqlite3.Connection) -> list[tuple[str, Cost, Cost]]:
    """Name, spending and total of every account."""
    rows = connection.execute(
        "SELECT name, spent, spent_delta, total, total_delta FROM accounts ORDER BY name"
    )
    found = rows.fetchall()
    if not all(isinstance(amount, int) for row in found for amount in row[1:]):
        raise LedgerError("An account holds something else than whole numbers.", _VERIFY)
    return [(name, Cost(a, b), Cost(c, d)) for name, a, b, c, d in found]


def entries(connection: sqlite3.Connection) -> Iterator[Entry]:
    """Every entry, in order."""
    for (text,) in connection.execute("SELECT record FROM entries ORDER BY id"):
        yield Entry.from_text(text)


def hashes(connection: sqlite3.Connection, indexes: Iterable[int]) -> dict[int, str]:
    """Hashes of some entries, computed from their records; none for those there are not."""
    found = {}
    for index in set(indexes):
        row = connection.execute("SELECT record FROM entries WHERE id = ?", (index,)).fetchone()
        if row is not None:
            found[index] = _hash(row[0])
    return found


def answers(connection: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    """Index and answer of every entry that has one."""
    yield from connection.execute("SELECT id, answer FROM entries WHERE answer IS NOT NULL")


def append(
    connection: sqlite3.Connection, entry: Entry, answer: bytes | None, adds: int = 0
) -> None:
    """Add an entry and its answer; the database debits the account in the same statement."""
    connection.execute(
        "INSERT INTO entries (id, record, hash, scope, request, run, account, filter, cost, "
        "cost_delta, outcome, settles, adds, answer) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            entry.index,
            entry.text,
            entry.hash,
            entry.scope,
            entry.request,
            entry.run,
            entry.account,
            entry.filter,
            entry.cost,
            entry.cost_delta,
            entry.outcome,
            entry.settles,
            adds,
            answer,
        ),
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
    """SHA-256 of a record as it stands in the file, where it may be anything."""
    return digest(record.encode()) if isinstance(record, str) else ""


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
    if schema(connection) != expected_schema(SCHEMA):
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
        connection.executescript(SCHEMA)
        add_accounts(connection, accounts, filter=filter, entry=None)
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
