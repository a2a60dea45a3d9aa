"""How long do 10,000 sources take for a query, compared with the necessary work?

Simulated sources with exact noise should answer a round in less than ten seconds. The limit for
comparison is the same sum over the same records as *one* source, and one vector of exact noise
with an entry for every source, without separate sources, answers or checks.

Curators with a ledger each pay durably, each into its own database. The limit for comparison is
a bare insert into as many databases of the same kind: opened, written, on the disk, closed.
There are fewer of them here, since it is the time for each that counts; the table multiplies.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulated_sources import SimulatedSources
from veracal.accounting import Budget
from veracal.calibration import BinnedGap, Gap
from veracal.calibration.bins import Bins
from veracal.data import Scores
from veracal.ledger import open_ledger
from veracal.mechanisms.discrete_noise import add_discrete_laplace
from veracal.queries import Curator, Pool, Query, laplace_event

SOURCES, HOLDERS, EACH, CLASSES = 10_000, 200, 10, 10
PRICE = 100_000  # millionths of epsilon
GOAL = 10.0  # seconds for a round
QUERIES = (Gap(inverse=0.5), BinnedGap(Bins(15), inverse=0.5))


def records(sources: int) -> tuple[Scores, np.ndarray]:
    """Ten records for every source."""
    rng = np.random.default_rng(0)
    n = sources * EACH
    scores = Scores.from_logits(rng.normal(size=(n, CLASSES)), rng.integers(CLASSES, size=n))
    return scores, np.repeat(np.arange(sources), EACH)


def seconds(work: Callable[[], object], *, turns: int = 3) -> float:
    """The best of some turns."""
    taken = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_simulated_sources(tables: list[str], query: Query):
    scores, place = records(SOURCES)
    exact = query.evaluate(scores)

    def round_() -> None:
        source = SimulatedSources(
            scores, place, micro_epsilon=10**6, min_sources=SOURCES, max_records=EACH
        )
        found = source.answer(query, micro_epsilon=PRICE)
        # A fast wrong answer is not a result: within six deviations of the exact sum.
        assert len(found.parts) == SOURCES and found.private
        assert (np.abs(found.values - query.grid.values(exact)) < 6 * found.noise_std).all()

    def limit() -> None:
        noise = laplace_event(query, PRICE, "add-remove").noise
        query.evaluate(scores)
        add_discrete_laplace(np.zeros(SOURCES * query.entries, dtype=np.int64), noise)

    ours, least = seconds(round_), seconds(limit)
    tables.append(
        f"{query.name}, {SOURCES:,} simulated sources of {EACH} records: {ours:.2f} s a round "
        f"(goal {GOAL:g} s; sum and noise alone {least:.2f} s, ratio {ours / least:.1f})"
    )


def test_holders_with_a_ledger_each(tables: list[str], tmp_path: Path):
    scores, place = records(HOLDERS)
    holders = [
        Curator(
            scores.take(np.flatnonzero(place == i)),
            open_ledger(tmp_path / f"{i}.ledger", Budget(1.0)),
        )
        for i in range(HOLDERS)
    ]
    bare = [tmp_path / f"{i}.bare" for i in range(HOLDERS)]
    for path in bare:
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE charges (number INTEGER PRIMARY KEY, text TEXT)")
        database.close()
    pool, asked = Pool(holders, min_sources=HOLDERS, max_records=EACH), iter(range(99))

    def round_() -> None:
        found = pool.answer(Gap(), micro_epsilon=PRICE, request=f"{next(asked)}")
        assert found.dropouts == (None,) * HOLDERS

    def inserts() -> None:
        for path in bare:
            database = sqlite3.connect(path, isolation_level=None)
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT INTO charges (text) VALUES (?)", ("x" * 300,))
            database.execute("COMMIT")
            database.close()

    ours, least = seconds(round_), seconds(inserts)
    # Every curator was charged for each of the three rounds, and for nothing else.
    assert {round(holder.ledger.spent().epsilon * 1e6) for holder in holders} == {3 * PRICE}
    tables.append(
        f"gap, {HOLDERS} holders with a ledger each: {1e3 * ours / HOLDERS:.2f} ms each, "
        f"{ours / HOLDERS * SOURCES:.0f} s for {SOURCES:,} (goal {GOAL:g} s; bare durable "
        f"inserts {least / HOLDERS * SOURCES:.0f} s, ratio {ours / least:.1f})"
    )
