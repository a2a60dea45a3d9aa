"""How long does a charge take, compared with a durable insert into the same database?

The limit is one transaction of SQLite with the same journal and the same synchronization: one
row into one table, nothing checked. The figure depends on how long the disk takes to make a
write durable; the ratio does not hide it.
"""

import itertools
import sqlite3
from pathlib import Path

import pytest

from veracal.accounting.events import Budget, Pure
from veracal.ledger.ledger import open_ledger


@pytest.mark.benchmark(group="one durable charge")
def test_charge(benchmark, tmp_path: Path):
    ledger = open_ledger(tmp_path / "study.ledger", Budget(1000.0))
    event = Pure(0.001)
    benchmark.pedantic(ledger.charge, (event, "benchmark"), rounds=300, warmup_rounds=5)
    assert len(ledger.entries()) == 305


@pytest.mark.benchmark(group="one durable charge")
def test_bare_insert(benchmark, tmp_path: Path):
    database = sqlite3.connect(tmp_path / "bare.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE charges (number INTEGER PRIMARY KEY, text TEXT)")
    numbers = itertools.count()

    def insert() -> None:
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO charges VALUES (?, ?)", (next(numbers), "x" * 300))
        database.execute("COMMIT")

    benchmark.pedantic(insert, rounds=300, warmup_rounds=5)
    assert database.execute("SELECT count(*) FROM charges").fetchone() == (305,)
    database.close()
