"""Sources: what a release says, exact answers of public records, pools."""

import math
from dataclasses import replace

import numpy as np
import pytest

from veracal.accounting.events import Budget, Parallel
from veracal.data import Scores
from veracal.errors import BudgetError, ConflictError, DropoutError
from veracal.ledger.ledger import open_ledger
from veracal.mechanisms.grid import Grid
from veracal.queries.curator import Curator
from veracal.queries.pools import Pool
from veracal.queries.query import BinnedSum
from veracal.queries.score_queries import Brier, Correct, Count
from veracal.queries.sources import Public, Release, Source


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return Scores.from_logits(rng.normal(size=(90, 4)), rng.integers(4, size=90))


@pytest.fixture
def holders(scores, tmp_path):
    """Three holders of thirty records each, with a ledger each."""
    return [
        Curator(
            scores.take(np.arange(start, start + 30)),
            open_ledger(tmp_path / f"{start}.ledger", Budget(1.0)),
        )
        for start in (0, 30, 60)
    ]


def test_a_release_has_values_in_the_units_of_the_query():
    release = Release("x", (3, -6), Grid(2), 0.5, 250_000, None, private=False)
    assert release.values.tolist() == [0.75, -1.5]
    assert release.epsilon == 0.25
    with pytest.raises(ValueError, match=r"\.values"):
        _ = release.value
    assert replace(release, head="abc") == release


def test_public_sources_answer_exactly_and_are_not_private(scores):
    source = Public(scores)
    release = source.answer(Correct(), micro_epsilon=1)
    assert isinstance(source, Source)
    assert release.value == scores.correct.sum()
    assert (release.private, release.event, release.noise_std) == (False, None, 0.0)
    assert release.micro_epsilon == 0
    assert "90" in repr(source) and str(scores.values[0, 0]) not in repr(source)


def test_a_pool_answers_with_the_sum(scores):
    parts = [Public(scores.take(np.arange(i, 90, 3))) for i in range(3)]
    for query in (Count(), Brier()):
        whole = Public(scores).answer(query, micro_epsilon=1)
        assert Pool(parts).answer(query, micro_epsilon=1).units == whole.units


def test_each_source_of_a_pool_is_charged_and_adds_noise(holders):
    pool = Pool(holders)
    release = pool.answer(Count(), micro_epsilon=500_000, request="r")
    alone = [
        h.answer(Count(), micro_epsilon=500_000, request=f"r/{i}")
        for i, h in enumerate(holders)
    ]
    assert release.units == (sum(a.units[0] for a in alone),)
    assert release.noise_std == pytest.approx(math.sqrt(3) * alone[0].noise_std)
    assert release.micro_epsilon == 500_000
    assert release.event == Parallel(tuple(a.event for a in alone))
    assert release.private
    assert [h.ledger.spent().epsilon for h in holders] == [0.5] * 3
    assert isinstance(pool, Source)


def test_retries_are_forwarded_to_every_source_of_a_pool(holders):
    pool = Pool(holders)
    first = pool.answer(Count(), micro_epsilon=500_000, request="r")
    assert pool.answer(Count(), micro_epsilon=500_000, request="r") == first
    with pytest.raises(ConflictError):
        pool.answer(Correct(), micro_epsilon=500_000, request="r")
    pool.answer(Correct(), micro_epsilon=500_000, request="s")
    with pytest.raises(BudgetError):
        pool.answer(Count(), micro_epsilon=1, request="t")


def test_a_pool_with_a_public_source_is_not_private(holders, scores):
    mixed = Pool([holders[0], Public(scores)])
    assert not mixed.answer(Count(), micro_epsilon=1000).private


def test_a_pool_rejects_answers_to_another_query(scores):
    class Liar:
        def answer(self, query, *, micro_epsilon, request=None):
            return Release("x", (1, 2), Grid(3), 0.0, 0, None, private=False)

    with pytest.raises(DropoutError, match="another query"):
        Pool([Public(scores), Liar()]).answer(Count(), micro_epsilon=1)


def test_empty_pools_and_duplicate_sources_are_rejected(scores):
    same = Public(scores)
    for sources in ([], [same, same]):
        with pytest.raises(ValueError, match="sources"):
            Pool(sources)


def test_vectors_are_summed_by_entry(scores):
    query = BinnedSum("b", lambda s: np.ones(len(s)), lambda s: s.predictions, 4, 0, 1, bits=0)
    pool = Pool([Public(scores), Public(scores)])
    counts = np.bincount(scores.predictions, minlength=4)
    assert pool.answer(query, micro_epsilon=1).values.tolist() == (2 * counts).tolist()
