"""Prices, shares and statements of several questions."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.calibration.private.conftest import miscalibrated
from veracal.accounting import Budget, Composed, Unit, epsilon_for, micro_epsilon
from veracal.calibration.private.session import (
    PricedQuery,
    composed,
    price,
    split,
    stated,
    unit_of,
)
from veracal.calibration.queries import Gap
from veracal.queries import Count, Pool, Public, gaussian_event

SCORES = miscalibrated(20, 1.0, np.random.default_rng(0))


def test_a_price_is_given_in_one_way():
    assert price(0.3, None) == 300_000
    assert price(None, 7) == 7
    for wrong in (
        (None, None),
        (0.1, 5),
        (0.0, None),
        (float("nan"), None),
        (None, 0),
        (1e-9, None),
    ):
        with pytest.raises(ValueError, match="Expected"):
            price(*wrong)


@pytest.mark.parametrize("total", [7, 1_000_000, 999_999, 123_457])
def test_shares_never_sum_to_more(total):
    for shares in ([1], [1, 1, 1], [15, 12, 24, 49], [1, 2, 2, 2, 2, 1, 2]):
        if total < sum(shares):
            continue
        parts = split(total, shares)
        assert total - len(shares) < sum(parts) <= total
        assert all(
            abs(p - total * s / sum(shares)) < 1 for p, s in zip(parts, shares, strict=True)
        )
    with pytest.raises(ValueError, match="Spend more"):
        split(3, [1, 1, 1, 1])


def test_an_ask_costs_what_it_says(holder, rng):
    source = holder(miscalibrated(50, 1.0, rng))
    for relation in ("add-remove", "replace-one"):
        for unit in (Unit(), Unit("patient", 3)):
            event = composed(
                [
                    PricedQuery(Gap(), 100).event(relation, unit),
                    PricedQuery(Count(), 7).event(relation, unit),
                ]
            )
            assert micro_epsilon(event, unit) == 107
    PricedQuery(Gap(), 100).of(source)
    assert source.ledger.spent().epsilon == 0.0001


def test_a_statement_is_about_everything_asked(holder, rng):
    unit = Unit("patient", 2)
    scores = miscalibrated(50, 1.0, rng)
    mine = replace(scores, units=np.arange(50) // 2)
    one = holder(mine, Budget(1.0, unit=unit, relation="replace-one"))
    asks = [PricedQuery(Gap(), 200_000), PricedQuery(Count(), 100_000)]
    made = stated([ask.of(one) for ask in asks], unit_of(one), covers="this")
    assert (made.epsilon, made.unit, made.at_most) == (
        pytest.approx(0.3, abs=1e-12),
        "patient",
        2,
    )
    assert made.relation == "replace-one"
    pool = Pool([holder(scores), holder(scores)])
    made = stated([ask.of(pool) for ask in asks], unit_of(pool), covers="this")
    assert made.epsilon == pytest.approx(0.3, abs=1e-12)  # of each source, not of both
    assert any("at two" in words for words in made.covers)
    assert stated([ask.of(Public(scores)) for ask in asks], Unit(), covers="this") is None


def asked_of(paths, ask):
    """An answer of a pool in which these sources were asked."""
    made = Pool([Public(SCORES), Public(SCORES)]).answer(ask.query, micro_epsilon=1)
    return replace(made, private=True, asked={path: ask.event("add-remove") for path in paths})


def test_whoever_has_records_at_several_sources_pays_at_each():
    asks = [
        PricedQuery(Gap(), 200_000),
        PricedQuery(Count(), 100_000),
        PricedQuery(Gap(inverse=0.5), 50_000),
    ]
    # Of three sources one was asked everything, one twice, one once: 0.35, 0.3, 0.2.
    rows = [[(0,), (1,), (2,)], [(0,), (1,)], [(0,)]]
    releases = [asked_of(row, ask) for row, ask in zip(rows, asks, strict=True)]
    for times, epsilon in ((1, 0.35), (2, 0.65), (3, 0.85), (9, 0.85)):
        made = stated(releases, Unit(), covers="this", at_sources=times)
        assert made.epsilon == pytest.approx(epsilon, abs=1e-9)
        assert any(f"more than {times} of" in words for words in made.covers) == (
            times in (2, 3)
        )
    with pytest.raises(ValueError, match="at_sources"):
        stated(releases, Unit(), covers="this", at_sources=0)


def test_with_a_delta_no_sources_cost_more_than_is_stated():
    delta, multiplier = 1e-6, 6.0
    first, second = (gaussian_event(q, multiplier, "add-remove") for q in (Gap(), Count()))
    columns = [(first, first, first), (first, first, second), (second,)]
    made = Pool([Public(SCORES)]).answer(Count(), micro_epsilon=1)
    releases = [
        replace(
            made,
            private=True,
            asked={(i,): column[k] for i, column in enumerate(columns) if len(column) > k},
        )
        for k in (0, 1, 2)
    ]
    told = stated(releases, Unit(), covers="this", delta=delta, at_sources=2).epsilon
    for one, other in itertools.combinations(columns, 2):
        assert epsilon_for(Composed((*one, *other)), delta) <= told + 1e-9


def test_moving_between_sources_is_said_to_cost_both(holder, rng):
    budget = Budget(1.0, relation="replace-one")
    pool = Pool([holder(SCORES, budget), holder(SCORES, budget)])
    made = stated([PricedQuery(Gap(), 1_000).of(pool)], unit_of(pool), covers="this")
    assert any("moves to another source" in words for words in made.covers)


def test_ten_thousand_sources_are_stated_as_quickly_as_the_kinds_of_them():
    event = PricedQuery(Gap(), 1_000).event("add-remove")
    release = asked_of([(i,) for i in range(10_000)], PricedQuery(Gap(), 1_000))
    made = stated([release] * 3, Unit(), covers="this")
    assert made.epsilon == pytest.approx(0.003, abs=1e-9)
    assert set(release.asked.values()) == {event}
