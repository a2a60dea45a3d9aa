"""Sources declare whom they protect, and whether they can pay."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulated_sources import SimulatedSources
from veracal.accounting import Budget, Unit
from veracal.calibration.prepaid_source import PrepaidSource
from veracal.calibration.private.session import find_unaffordable, unit_of
from veracal.calibration.recalibration.sources import profile_source
from veracal.data import Scores
from veracal.errors import BudgetError
from veracal.ledger import Item, open_ledger
from veracal.queries import (
    Correct,
    Count,
    Curator,
    DeclaredSource,
    PayingSource,
    Pool,
    Public,
    laplace_event,
)
from veracal.queries.sources import is_declared

SCORES = Scores.from_logits(np.eye(3), [0, 1, 1])
PATIENT = Unit("patient", max_contributions=3)
EVENT = laplace_event(Count(), 500_000, "replace-one", PATIENT)


@pytest.fixture
def holder(tmp_path):
    budget = Budget(1.0, relation="replace-one", unit=PATIENT)
    mine = replace(SCORES, units=np.arange(3))
    return Curator(mine, open_ledger(tmp_path / "a.ledger", budget))


class RemoteOptions:
    """A source that nothing here has heard of, with an account that it answers for."""

    partition = None

    def __init__(self, holder, relation="replace-one", unit=PATIENT):
        self._holder, self.relation, self.unit = holder, relation, unit

    def answer(self, query, *, micro_epsilon, request=None):
        raise TimeoutError

    def unpaid(self, items, *, request=None):
        return self._holder.unpaid(items, request=request)

    def require(self, items):
        self._holder.require(items)


def costs(relation, unit, part):
    return [Item("count", laplace_event(Count(), 600_000, relation, unit), 2, part)]


def test_sources_say_whom_they_protect(holder):
    paid = PrepaidSource(SCORES, EVENT, unit=PATIENT)
    many = SimulatedSources(
        SCORES, [0, 1, 1], micro_epsilon=10**6, relation="replace-one", unit=PATIENT
    )
    for source in (holder, paid, many, RemoteOptions(holder)):
        assert is_declared(source)
        assert isinstance(source, DeclaredSource)
        assert (source.relation, source.unit) == ("replace-one", PATIENT)
        assert unit_of(source) == PATIENT
        assert profile_source(source).relation == "replace-one"
        pool = Pool([source, Public(SCORES)], min_sources=1)
        pooled = pool.answer(Count(), micro_epsilon=500_000)
        assert set(pooled.requested.values()) == {EVENT}


def test_an_undeclared_source_has_no_known_unit(holder):
    odd = [
        RemoteOptions(holder, "both"),
        RemoteOptions(holder, unit=None),
        RemoteOptions(holder, ["x"]),
    ]
    for source in (Public(SCORES), object(), *odd):
        assert not is_declared(source)
        assert unit_of(source) == Unit()
        assert find_unaffordable(source, costs) == {}
    assert PrepaidSource(SCORES, laplace_event(Count(), 1, "add-remove")).unit == Unit()


def test_a_paying_source_is_checked_beforehand(holder):
    for source in (holder, RemoteOptions(holder)):
        assert isinstance(source, PayingSource)
        with pytest.raises(BudgetError, match="needs"):
            find_unaffordable(source, costs)
    assert not isinstance(Public(SCORES), PayingSource)
    both = Pool([RemoteOptions(holder), Public(SCORES)], min_sources=1)
    assert set(find_unaffordable(both, costs)) == {(0,)}
    assert holder.ledger.entries() == ()


def test_a_silent_source_is_counted_by_what_it_declares(holder):
    pool = Pool([RemoteOptions(holder), Public(SCORES)], min_sources=1)
    assert dict(pool.answer(Count(), micro_epsilon=500_000).requested) == {(0,): EVENT}


def test_several_that_are_silent_together_are_counted_one_by_one():
    many = SimulatedSources(
        SCORES,
        [0, 1, 1],
        micro_epsilon=10**6,
        relation="replace-one",
        unit=PATIENT,
        dropouts=[0, 1],
        min_sources=1,
    )
    release = Pool([many, Public(SCORES)], min_sources=1).answer(Count(), micro_epsilon=500_000)
    assert dict(release.requested) == {(0, 0): EVENT, (0, 1): EVENT}


def test_two_relations_do_not_make_a_pool(holder):
    with pytest.raises(ValueError, match="one neighboring relation"):
        Pool([holder, RemoteOptions(holder, "add-remove")])


def test_a_holder_whose_ledger_is_gone_is_silent_and_still_counts(holder):
    pool = Pool([holder, Public(SCORES)], min_sources=1)
    holder.ledger.path.unlink()
    release = pool.answer(Correct(), micro_epsilon=500_000)
    assert release.dropouts == ("its ledger cannot be used", None)
    assert set(release.requested) == {(0,)}
