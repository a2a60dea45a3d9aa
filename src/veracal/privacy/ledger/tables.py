"""The tables of a ledger, and the few statements that touch them.

The database defends itself. An entry debits its account in the same statement, by a trigger;
no account exceeds its total, by a constraint; nothing is changed or deleted, by triggers. So
a charge cannot be entered without being counted, and no mistake in Python can overspend.
"""

import sqlite3
from collections.abc import Iterable, Iterator
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
    request TEXT UNIQUE,
    account TEXT REFERENCES accounts (name),
    cost INTEGER NOT NULL CHECK (typeof(cost) = 'integer' AND cost >= 0),
    cost_delta INTEGER NOT NULL CHECK (typeof(cost_delta) = 'integer' AND cost_delta >= 0),
    answer BLOB,
    CHECK (cost + cost_delta > 0)
);
CREATE TRIGGER entries_debit AFTER INSERT ON entries BEGIN
    UPDATE accounts SET spent = spent + NEW.cost, spent_delta = spent_delta + NEW.cost_delta
        WHERE NEW.account IS NULL OR name = NEW.account;
END;
CREATE TRIGGER entries_follow BEFORE INSERT ON entries
    WHEN NEW.id IS NOT (SELECT coalesce(max(id), 0) + 1 FROM entries)
    BEGIN SELECT RAISE(ABORT, 'entries follow one another'); END;
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries do not change'); END;
CREATE TRIGGER entries_last BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries are not deleted'); END;
CREATE TRIGGER accounts_stay BEFORE UPDATE ON accounts
    WHEN NEW.name IS NOT OLD.name OR NEW.total IS NOT OLD.total
        OR NEW.total_delta IS NOT OLD.total_delta
        OR NEW.spent < OLD.spent OR NEW.spent_delta < OLD.spent_delta
    BEGIN SELECT RAISE(ABORT, 'totals do not change, and nothing is given back'); END;
CREATE TRIGGER accounts_last BEFORE DELETE ON accounts
    BEGIN SELECT RAISE(ABORT, 'accounts are not deleted'); END;
CREATE TRIGGER accounts_closed BEFORE INSERT ON accounts
    WHEN EXISTS (SELECT 1 FROM opening)
    BEGIN SELECT RAISE(ABORT, 'accounts are not added'); END;
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


def find(connection: sqlite3.Connection, request: str) -> tuple[Entry, bytes | None] | None:
    """The entry made under a request id, and its answer."""
    found = connection.execute(
        "SELECT record, hash, answer FROM entries WHERE request = ?", (request,)
    ).fetchone()
    if found is None:
        return None
    entry = Entry.from_text(found[0])
    whole = None if found[2] is None else digest(found[2])
    if digest(found[0]) != found[1] or entry.request != request or entry.answer != whole:
        raise LedgerError(
            f"Entry {entry.index} or its answer does not match its hash.", _VERIFY
        )
    return entry, found[2]


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


def append(connection: sqlite3.Connection, entry: Entry, answer: bytes | None) -> None:
    """Add an entry and its answer; the database debits the account in the same statement."""
    connection.execute(
        "INSERT INTO entries (id, record, hash, request, account, cost, cost_delta, answer) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            entry.index,
            entry.text,
            entry.hash,
            entry.request,
            entry.account,
            entry.cost,
            entry.cost_delta,
            answer,
        ),
    )


def _hash(record: object) -> str:
    """SHA-256 of a record as it stands in the file, where it may be anything."""
    return digest(record.encode()) if isinstance(record, str) else ""
