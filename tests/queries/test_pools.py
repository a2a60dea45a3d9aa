"""Pools: dropout, invalid answers, the required number of sources, and charges."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from veracal.accounting.events import Budget, DiscreteLaplace, Parallel, Unit
from veracal.data import Scores
from veracal.errors import (
    AnswerError,
    BudgetError,
    ConflictError,
    DataError,
    DropoutError,
    LedgerError,
)
from veracal.ledger.ledger import open_ledger
from veracal.mechanisms.discrete_noise import add_discrete_laplace, discrete_laplace_std
from veracal.mechanisms.grid import Grid
from veracal.queries import QueryRequest
from veracal.queries.curator import Curator
from veracal.queries.pools import MultiSource, Pool, PooledRelease
from veracal.queries.query import (
    BinnedSum,
    gaussian_event,
    laplace_event,
)
from veracal.queries.score_queries import Brier, Correct, Count
from veracal.queries.sources import Public, Release

RNG = np.random.default_rng(0)
SCORES = Scores.from_logits(RNG.normal(size=(30, 4)), RNG.integers(4, size=30))
BINS = BinnedSum("b", lambda s: np.ones(len(s)), lambda s: s.predictions, 4, 0, 1, bits=0)
PRICE = 500_000


class HonestSource:
    """A source of thirty records with the requested noise."""

    def __init__(self, unit=None, relation="add-remove"):
        self.calls, self.unit, self.relation = 0, unit, relation

    def answer(self, query, *, micro_epsilon, request=None):
        self.calls += 1
        event = laplace_event(query, micro_epsilon, self.relation, self.unit)
        units = add_discrete_laplace(query.evaluate(SCORES), event.noise)
        std = discrete_laplace_std(event.noise) * query.grid.step
        return Release(
            query.name,
            tuple(units.tolist()),
            query.grid,
            std,
            micro_epsilon,
            event,
            private=True,
        )


class FaultySource(HonestSource):
    """One that raises, or makes something else of its answer."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def answer(self, query, *, micro_epsilon, request=None):
        release = super().answer(query, micro_epsilon=micro_epsilon, request=request)
        if isinstance(self.does, BaseException):
            raise self.does
        return self.does(release)


def units(*given):
    """A lie about the units, as many as are wanted."""
    return lambda release: replace(
        release, units=tuple(itertools.islice(itertools.cycle(given), len(release.units)))
    )


SILENCES = {
    "budget": BudgetError("x"),
    "failed": AnswerError("x"),
    "ledger": LedgerError("x"),
    "silent": DropoutError("x"),
    "unreachable": OSError("x"),
    "late": TimeoutError("x"),
    "refused": ConnectionRefusedError("x"),
}
LIES = {
    "None": lambda r: None,
    "text": lambda r: "41",
    "a number": lambda r: 41.0,
    "too many": lambda r: replace(r, units=(*r.units, 0)),
    "too few": lambda r: replace(r, units=()),
    "a list": lambda r: replace(r, units=list(r.units)),
    "1e308": units(int(1e308)),
    "-1e308": units(-int(1e308)),
    "floats": units(3.0),
    "1e308 as a float": units(1e308),
    "NaN": units(math.nan),
    "infinity": units(math.inf),
    "bools": units(True),
    "strings": units("3"),
    "numpy's": units(np.int64(3)),
    "2^64": units(2**64),
    "another grid": lambda r: replace(r, grid=Grid(33)),
    "another question": lambda r: replace(r, query="other"),
    "less noise": lambda r: replace(r, event=replace(r.event, noise=r.event.noise / 2)),
    "a little less": lambda r: replace(r, event=replace(r.event, noise=r.event.noise * 0.99)),
    "more sensitive": lambda r: replace(r, event=replace(r.event, sensitivity=7)),
    "no noise": lambda r: replace(r, event=None),
    "not private": lambda r: replace(r, event=None, noise_std=0.0, private=False),
    "another price": lambda r: replace(r, micro_epsilon=1),
    "std NaN": lambda r: replace(r, noise_std=math.nan),
    "std 0": lambda r: replace(r, noise_std=0.0),
    "Gaussian": lambda r: replace(r, event=gaussian_event(Count(), 1.0, "add-remove")),
    "another relation": lambda r: replace(r, event=replace(r.event, relation="replace-one")),
    "several": lambda r: PooledRelease(
        r.query, units(2**70)(r).units, r.grid, 0.1, PRICE, Parallel((r.event,)), private=True
    ),
}


@pytest.mark.parametrize("query", [Count(), Brier(), BINS], ids=lambda q: q.name)
@pytest.mark.parametrize("what", [*SILENCES, *LIES])
def test_dropouts_and_invalid_answers_are_left_out(query, what):
    does = {**SILENCES, **LIES}[what]
    pool = Pool(
        [HonestSource(), FaultySource(does), HonestSource()], min_sources=2, max_records=30
    )
    pooled = pool.answer(query, micro_epsilon=PRICE)
    kept = [part for part in pooled.parts if part is not None]
    assert [part is None for part in pooled.parts] == [False, True, False]
    assert [why is None for why in pooled.dropouts] == [True, False, True]
    assert ("invalid" in pooled.dropouts[1]) == (what in LIES)
    assert pooled.units == tuple(
        sum(entry) for entry in zip(*(k.units for k in kept), strict=True)
    )
    assert pooled.event == Parallel(tuple(k.event for k in kept))
    assert pooled.noise_std == pytest.approx(math.sqrt(2) * kept[0].noise_std)
    assert pooled.private
    assert np.isfinite(pooled.values).all()
    # It may have charged nevertheless, and its request counts.
    assert pooled.requested == {(i,): kept[0].event for i in range(3)}
    with pytest.raises(DropoutError, match="at least 3 of 3 sources, got 2"):
        Pool([HonestSource(), FaultySource(does), HonestSource()], min_sources=3).answer(
            query, micro_epsilon=PRICE
        )


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), ConflictError("x"), DataError("a", "b", "c", "d"), KeyboardInterrupt()],
    ids=lambda e: type(e).__name__,
)
def test_programming_errors_and_interrupts_are_raised(error):
    with pytest.raises(type(error)):
        Pool([HonestSource(), FaultySource(error)], min_sources=1).answer(
            Count(), micro_epsilon=PRICE
        )


def test_by_default_the_first_dropout_raises():
    last = HonestSource()
    with pytest.raises(BudgetError):
        Pool([FaultySource(BudgetError("x")), last]).answer(Count(), micro_epsilon=PRICE)
    assert last.calls == 0
    with pytest.raises(DropoutError, match="invalid"):
        Pool([FaultySource(LIES["NaN"]), last]).answer(Count(), micro_epsilon=PRICE)


def test_too_few_answers_are_reported_with_reasons():
    pool = Pool(
        [FaultySource(TimeoutError("patient 7")) for _ in range(9)] + [HonestSource()],
        min_sources=2,
    )
    with pytest.raises(DropoutError) as error:
        pool.answer(Count(), micro_epsilon=PRICE)
    assert error.value.dropouts == ("it did not answer in time",) * 9 + (None,)
    assert "source 4" in str(error.value) and "4 more" in str(error.value)
    assert "patient" not in str(error.value)  # messages of a source may depend on records


@pytest.mark.parametrize("most", [None, 0, 30, 10**6])
def test_answers_are_limited_by_records_and_noise(most):
    """Written out slowly: within it counts, one unit beyond it does not."""
    query = Brier()
    event = laplace_event(query, PRICE, "add-remove")
    noise_bound = math.ceil(event.noise * math.log(2 * 2**40))
    limit = (2**62 if most is None else most * query.sensitivity("add-remove")) + noise_bound
    for sign in (1, -1):
        for at, kept in ((limit, True), (limit + 1, False)):
            pool = Pool(
                [HonestSource(), FaultySource(units(sign * at))],
                min_sources=1,
                max_records=most,
            )
            if most == 0:
                pool = Pool(
                    [FaultySource(units(0)), FaultySource(units(sign * at))],
                    min_sources=1,
                    max_records=0,
                )
            pooled = pool.answer(query, micro_epsilon=PRICE)
            assert (pooled.parts[1] is not None) == kept


def test_valid_noise_exceeds_the_limit_with_the_stated_probability():
    # P(|k| > r) = 2 t^(r+1) / (1 + t) at most, in each of the entries.
    for noise, entries in ((0.01, 1), (1.0, 1), (2.0**21, 15), (300.0, 4_000)):
        rare = math.log(2.0**40) + math.log(2 * entries)
        noise_bound = math.ceil(noise * rare)
        tail = math.log(2) - (noise_bound + 1) / noise - math.log1p(math.exp(-1 / noise))
        assert tail + math.log(entries) < -40 * math.log(2)


def test_units_of_several_rows_are_valid():
    patient = Unit("patient", 3)
    pooled = Pool([HonestSource(patient), HonestSource()], min_sources=1).answer(
        Count(), micro_epsilon=PRICE
    )
    assert pooled.dropouts == (None, None)
    assert [part.event.noise for part in pooled.parts] == [6.0, 2.0]


def test_the_relation_of_the_majority_is_used():
    odd = HonestSource(relation="replace-one")
    pooled = Pool([odd, HonestSource(), HonestSource()], min_sources=1).answer(
        Brier(), micro_epsilon=PRICE
    )
    assert "relation" in pooled.dropouts[0]
    assert pooled.event.relation == "add-remove"


def test_nonadditive_queries_are_rejected_before_any_charge():
    from veracal.calibration import AbsoluteGaps

    source = HonestSource()
    pool = Pool([source, HonestSource()], min_sources=1)
    with pytest.raises(ValueError, match="cannot be added"):
        pool.answer(AbsoluteGaps(), micro_epsilon=PRICE)
    with pytest.raises(ValueError, match="Gaussian"):
        pool.answer_gaussian(Count(), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="micro_epsilon"):
        pool.answer(Count(), micro_epsilon=0)
    assert source.calls == 0


@pytest.mark.parametrize("min_sources", [0, -1, 3, 1.5, True, "1"])
def test_the_minimum_is_a_number_of_sources(min_sources):
    with pytest.raises(ValueError, match="min_sources"):
        Pool([HonestSource(), HonestSource()], min_sources=min_sources)


def test_a_pool_of_pools(tmp_path):
    poor = Curator(SCORES, open_ledger(tmp_path / "a", Budget(0.1)))
    rich = Curator(SCORES, open_ledger(tmp_path / "b", Budget(1.0)))
    inner = Pool([poor, rich, FaultySource(LIES["1e308"])], min_sources=1, max_records=30)
    lost = Pool([FaultySource(OSError("x")), HonestSource()], min_sources=2)
    pool = Pool([HonestSource(), inner, lost], min_sources=2)
    assert isinstance(pool, MultiSource) and not isinstance(rich, MultiSource)
    assert pool.paths() == [(0,), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    pooled = pool.answer(Count(), micro_epsilon=PRICE, request="r")
    event = laplace_event(Count(), PRICE, "add-remove")
    assert set(pooled.dropped()) == {(1, 0), (1, 2), (2,)}
    assert pooled.requested == dict.fromkeys(pool.paths(), event)
    assert pooled.units[0] == pooled.parts[0].units[0] + pooled.parts[1].parts[1].units[0]
    assert (
        rich.answer(Count(), micro_epsilon=PRICE, request="r/1/1") == pooled.parts[1].parts[1]
    )
    # At a repeat without those, the others are not queried again.
    again = pool.round(QueryRequest(Correct(), PRICE), request="s", dropped=pooled.dropped())
    assert set(again.requested) == {(0,), (1, 1)}
    assert pooled.without({(0,): "x"}).units == pooled.parts[1].units
    with pytest.raises(DropoutError, match="got none"):
        pooled.without({(0,): "x", (1,): "x"})


def test_public_sources_answer_without_noise():
    pooled = Pool([Public(SCORES), HonestSource()], min_sources=1).answer(
        Count(), micro_epsilon=PRICE
    )
    assert pooled.dropouts == (None, None)
    assert not pooled.private
    assert set(pooled.requested) == {(1,)}
    far = Pool([Public(SCORES), HonestSource()], min_sources=1, max_records=10)
    assert far.answer(Count(), micro_epsilon=PRICE).dropouts[0] is not None


def test_gaussian_noise_is_validated(tmp_path):
    ledgers = [open_ledger(tmp_path / f"{i}", Budget(1.0, 1e-6), kind="open") for i in (0, 1)]

    class Halved:
        def __init__(self, holder):
            self.holder = holder

        def answer(self, query, *, micro_epsilon, request=None):
            raise NotImplementedError

        def answer_gaussian(self, query, *, noise_multiplier, request=None):
            release = self.holder.answer_gaussian(
                query, noise_multiplier=noise_multiplier / 2, request=request
            )
            return replace(release, query=query.name)

    one, other = (Curator(SCORES, ledger) for ledger in ledgers)
    pooled = Pool([one, Halved(other)], min_sources=1).answer_gaussian(
        BINS, noise_multiplier=20.0
    )
    assert "noise" in pooled.dropouts[1] and pooled.micro_epsilon is None
    assert pooled.requested[1,] == gaussian_event(BINS, 20.0, "add-remove")


def test_a_request_has_one_kind_of_noise():
    for wrong in ({}, {"micro_epsilon": 1, "noise_multiplier": 1.0}):
        with pytest.raises(ValueError, match="one of"):
            QueryRequest(Count(), **wrong)
    assert QueryRequest(Count(), PRICE).matches(DiscreteLaplace(2.0, 1))
    assert not QueryRequest(Count(), PRICE).matches(DiscreteLaplace(2.0, 2))
    assert not QueryRequest(Count(), PRICE).matches(DiscreteLaplace(3.0, 1))


def test_sources_need_different_ledgers_and_one_relation(tmp_path):
    def holder(name, relation="add-remove"):
        place = tmp_path / f"{name}.ledger"
        return Curator(SCORES, open_ledger(place, Budget(1.0, relation=relation)))

    one, other, odd = holder("one"), holder("other"), holder("odd", "replace-one")
    again = Curator(SCORES, one.ledger)
    for sources in ([one, again], [Pool([one, other]), one], [Pool([one, other]), again]):
        with pytest.raises(ValueError, match="share one"):
            Pool(sources)
    with pytest.raises(ValueError, match="one relation"):
        Pool([one, Pool([odd])], min_sources=1)
    parts = open_ledger(tmp_path / "parts.ledger", Budget(1.0), partitions=("a", "b"))
    assert Pool([Curator(SCORES, parts, partition=name) for name in "ab"]).sources
