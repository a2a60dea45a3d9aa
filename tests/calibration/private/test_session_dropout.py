"""Queries to sources that drop out, differ in size or tamper with answers."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulated_sources import SimulatedSources
from tests.calibration.private.conftest import miscalibrated
from veracal.accounting import Budget
from veracal.calibration import (
    BinnedGap,
    BrierGain,
    CorrectWrong,
    Gap,
    PrivateTemperature,
    PrivateTwoTemperatures,
    Temperature,
    guard_map,
    measure_private,
)
from veracal.calibration.bins import Bins
from veracal.calibration.private.session import (
    QuerySession,
    combined_statement,
    find_unaffordable,
    unit_of,
)
from veracal.errors import BudgetError, DropoutError, VeracalError
from veracal.ledger import Item
from veracal.queries import Count, Pool, Public, QueryRequest, Release

QUERIES = [
    CorrectWrong(Bins(1)),
    Gap(),
    Gap(inverse=0.5),
    BinnedGap(Bins(5)),
    BrierGain(Temperature(0.5)),
]
ASKS = [QueryRequest(query, 100_000) for query in QUERIES]


def simulated(n=200, sources=5, *, seed=0, sizes=None, **settings):
    """Sources of scores that are twice too confident."""
    rng = np.random.default_rng(seed)
    scores = miscalibrated(n, 2.0, rng, classes=3)
    place = rng.integers(sources, size=n) if sizes is None else np.repeat(np.arange(5), sizes)
    usual = {"micro_epsilon": 10_000_000, "min_sources": 1, "max_records": n}
    settings = {**usual, "rng": np.random.default_rng(seed), **settings}
    return SimulatedSources(scores, place, sources=sources, **settings)


def list_requests(source, asks=ASKS):
    """All requests to a source."""
    session = QuerySession(source)
    for i, ask in enumerate(asks):
        session.ask(ask, str(i))
    return session


def dropout_sets(m):
    return [s for k in range(m + 1) for s in itertools.combinations(range(m), k)]


def check_every_dropout_set(m):
    """For any dropouts at any time: finite answers of the others, or a refusal."""
    whole = list_requests(simulated(sources=m)).answers
    for silent in dropout_sets(m):
        last = {i: j % (len(ASKS) + 1) for j, i in enumerate(silent)}  # answers given before
        out = {i for i, given in last.items() if given < len(ASKS)}
        left = [i for i in range(m) if i not in out]
        source = simulated(sources=m, dropouts=last)
        if not left:
            with pytest.raises(DropoutError):
                list_requests(source)
            continue
        session = list_requests(source)
        assert (session.n_present, session.n_sources) == (len(left), m)
        assert set(session._cohort.excluded) == {(i,) for i in out}
        for answer, all_of_it in zip(session.answers, whole, strict=True):
            parts = [all_of_it.parts[i] for i in left]
            # The same draws: as of a pool that never had the others.
            sums = tuple(sum(entry) for entry in zip(*(p.units for p in parts), strict=True))
            assert answer.units == sums
            assert answer.noise_std == pytest.approx(math.hypot(*(p.noise_std for p in parts)))
            assert np.isfinite(answer.values).all()


def test_every_set_of_silent_sources():
    check_every_dropout_set(5)


@pytest.mark.long
def test_every_set_of_eight_silent_sources():
    check_every_dropout_set(8)


@pytest.mark.parametrize(
    "number", [1e308, -1e308, math.nan, "41", int(1e308), -(2**80)], ids=str
)
@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
def test_lies_leave_finite_answers(number, bounded):
    def lie(release):
        return replace(release, units=(number,) * len(release.units))

    settings = {} if bounded else {"max_records": None}
    session = list_requests(simulated(tampering={1: lie, 3: lie}, **settings))
    honest = list_requests(simulated(dropouts=[1, 3]))
    assert session.n_present == 3
    for answer, right in zip(session.answers, honest.answers, strict=True):
        assert answer.units == right.units
    with pytest.raises(DropoutError, match="at least 4 of 5"):
        list_requests(simulated(tampering={1: lie, 3: lie}, min_sources=4))


def test_who_lies_later_is_out_of_the_earlier_answers_too():
    def lie(release):
        return replace(release, units=(2**70,)) if release.query == "gap" else release

    session = list_requests(simulated(tampering={0: lie}))
    assert session.answers[0].units == list_requests(simulated(dropouts=[0])).answers[0].units
    assert session.releases[0].units == list_requests(simulated()).answers[0].units


def test_sources_of_unequal_size():
    source = simulated(10_030, sizes=[0, 10_000, 1, 9, 20])
    session = list_requests(source)
    assert session.n_present == 5
    n = sum(session.answers[0].values)
    assert n == pytest.approx(10_030, abs=2_000)
    # What is declared is about the largest; without room for it that one is left out.
    session = list_requests(simulated(10_030, sizes=[0, 10_000, 1, 9, 20], max_records=20))
    assert session.n_present == 4 and (1,) in session._cohort.excluded


class Counting:
    """A source that counts its requests, and drops out in between."""

    def __init__(self, source, gives):
        self.source, self.gives, self.asked = source, gives, 0

    def answer(self, query, *, micro_epsilon, request=None):
        self.asked += 1
        if self.asked > self.gives:
            raise TimeoutError
        return self.source.answer(query, micro_epsilon=micro_epsilon, request=request)


@pytest.mark.parametrize("gives", [0, 2, 5])
def test_a_dropped_out_source_is_neither_queried_nor_charged_again(holder, rng, gives):
    holders = [holder(miscalibrated(20, 1.0, rng)) for _ in range(3)]
    late = Counting(holders[0], gives)
    session = list_requests(Pool([late, *holders[1:]], min_sources=2))
    assert late.asked == min(gives + 1, len(ASKS))
    assert holders[0].ledger.spent().epsilon == pytest.approx(0.1 * min(gives, 5))
    settings = combined_statement(session.answers, unit_of(session.source), covers="x")
    assert settings.epsilon == pytest.approx(0.5, abs=1e-12)
    charged = [release.requested for release in session.releases]
    # All its requests count, including the query that it did not answer.
    assert sum((0,) in paths for paths in charged) == min(gives + 1, len(ASKS))


def test_a_statement_counts_the_worst_source_whether_or_not_it_answered(holder, rng):
    poor, rich = (holder(miscalibrated(20, 1.0, rng), Budget(b)) for b in (0.1, 1.0))
    session = QuerySession(Pool([poor, rich], min_sources=1))
    session.ask(QueryRequest(Gap(), 100_000), "a")
    session.ask(QueryRequest(Gap(inverse=0.5), 300_000), "b")
    only = [replace(r, requested={(0,): r.requested[0,]}) for r in session.releases]
    assert combined_statement(only, unit_of(poor), covers="x").epsilon == pytest.approx(
        0.4, abs=1e-12
    )


def test_sources_that_cannot_pay_for_all_are_left_out_uncharged(holder, rng):
    budgets = (0.2, 1.0, 0.5, 0.3)
    holders = [holder(miscalibrated(30, 2.0, rng), Budget(b)) for b in budgets]
    fitter = PrivateTemperature(epsilon=0.5)
    fitter.fit(Pool(holders, min_sources=2))
    assert [h.ledger.spent().epsilon > 0 for h in holders] == [False, True, True, False]
    assert set(fitter.releases_[0].requested) == {(1,), (2,)}
    assert fitter.statement_.epsilon <= 0.5
    for min_sources, error in ((3, DropoutError), (None, BudgetError)):
        with pytest.raises(error):
            PrivateTemperature(epsilon=0.4).fit(
                Pool(holders, min_sources=min_sources), request="more"
            )
    assert holders[0].ledger.spent().epsilon == 0


def test_affording_in_pools_of_pools(holder, rng):
    poor, rich = (holder(miscalibrated(9, 1.0, rng), Budget(b)) for b in (0.1, 1.0))

    def items(relation, unit, part):
        return [Item("count", QueryRequest(Count(), 500_000).event(relation, unit), 1, part)]

    session = QuerySession(
        Pool([Pool([poor, rich], min_sources=1), Public(miscalibrated(9, 1.0, rng))])
    )
    session.check_affordable(items)
    assert set(session._cohort.excluded) == {(0, 0)}
    assert (session.n_present, session.n_sources) == (2, 3)
    with pytest.raises(BudgetError):
        find_unaffordable(Pool([Pool([poor]), rich]), items)


def test_a_single_source_is_queried_directly(holder, rng):
    one = holder(miscalibrated(20, 1.0, rng))
    session = QuerySession(one, "fit")
    first = session.ask(ASKS[0], "counts")
    assert session.answers == session.releases == (first,)
    assert (session.n_present, session.n_sources) == (1, 1)
    again = one.answer(QUERIES[0], micro_epsilon=100_000, request="fit: counts")
    assert again == first
    assert type(first) is Release


@pytest.mark.parametrize("fitter", [PrivateTemperature, PrivateTwoTemperatures])
def test_fits_are_of_the_sources_that_answered_everything(fitter):
    """As of a pool that never had the others: with the same draws, the same questions."""
    result = fitter(epsilon=4.0).fit(simulated(4_000, dropouts={1: 3, 3: 2}))
    present = [len(r.parts) - r.parts.count(None) for r in result.releases_]
    assert present == sorted(present, reverse=True) and present[-1] == 3  # as released
    assert np.isfinite(
        result.map_.transform(miscalibrated(9, 1.0, np.random.default_rng(0))).values
    ).all()


def test_a_search_with_dropouts_ends_where_one_without_them_does():
    asks = PrivateTemperature(epsilon=8.0)
    late = asks.fit(simulated(4_000, dropouts={1: 3, 3: 3})).temperature_
    # Dropped out at the last query: the queries before it were sent to all of them,
    # the answers are of those that stayed.
    never = PrivateTemperature(epsilon=8.0).fit(simulated(4_000, dropouts=[1, 3])).temperature_
    assert late.value == pytest.approx(never.value, rel=0.15)
    assert late.n == never.n


def test_measuring_over_silent_sources():
    source = simulated(3_000, dropouts={0: 1, 2: 0})
    result = measure_private(source, epsilon=4.0)
    assert all(r.dropouts[0] and r.dropouts[2] for r in result.releases.values())
    exact = measure_private(simulated(3_000, dropouts=[0, 2]), epsilon=4.0)
    assert result.overall == exact.overall
    assert result.plan.by_bins


def test_the_guard_over_silent_sources():
    result = guard_map(Temperature(0.5), simulated(3_000, dropouts=[0, 2]), epsilon=1.0)
    assert result.kept and result.release.parts[0] is None
    with pytest.raises(VeracalError):
        guard_map(Temperature(0.5), simulated(dropouts=range(5)), epsilon=1.0)
