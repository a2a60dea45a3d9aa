"""The tables of a ledger, and the few statements that touch them.

The database defends itself. An entry debits its account in the same statement, by a trigger;
no account exceeds its total, by a constraint; nothing is changed or deleted, by triggers. So
a charge cannot be entered without being counted, and no mistake in Python can overspend.
Accounts come into being with the opening, with an extension (one for each part) or with a run
(one for each item): an entry says how many it adds, and no more can be added to it. A
reservation is settled once, by a unique column.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache

from veracal.errors import LedgerError
from veracal.privacy.ledger.chain import Entry, digest
from veracal.privacy.ledger.units import Cost

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
