"""Costs, shares and statements of several queries."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.calibration.private.conftest import miscalibrated
from veracal.accounting import Budget, Composed, Unit, epsilon_for, micro_epsilon
from veracal.calibration import Gap, PrivateTemperature
from veracal.calibration.private.session import (
    combined_statement,
    compose,
    divide_epsilon,
    micro_epsilon_of,
    unit_of,
)
from veracal.queries import Count, Pool, Public, QueryRequest, gaussian_event

SCORES = miscalibrated(20, 1.0, np.random.default_rng(0))


def test_a_price_is_given_in_one_way():
    assert micro_epsilon_of(0.3, None) == 300_000
    assert micro_epsilon_of(None, 7) == 7
    for wrong in (
        (None, None),
        (0.1, 5),
        (0.0, None),
        (float("nan"), None),
        (None, 0),
        (1e-9, None),
    ):
        with pytest.raises(ValueError, match="Expected"):
            micro_epsilon_of(*wrong)


@pytest.mark.parametrize("total", [7, 1_000_000, 999_999, 123_457])
def test_shares_never_sum_to_more(total):
    for shares in ([1], [1, 1, 1], [15, 12, 24, 49], [1, 2, 2, 2, 2, 1, 2]):
        if total < sum(shares):
            continue
        parts = divide_epsilon(total, shares)
        assert total - len(shares) < sum(parts) <= total
        assert all(
            abs(p - total * s / sum(shares)) < 1 for p, s in zip(parts, shares, strict=True)
        )
    with pytest.raises(ValueError, match="Increase it"):
        divide_epsilon(3, [1, 1, 1, 1])


def test_an_ask_costs_what_it_says(holder, rng):
    source = holder(miscalibrated(50, 1.0, rng))
    for relation in ("add-remove", "replace-one"):
        for unit in (Unit(), Unit("patient", 3)):
            event = compose(
                [
                    QueryRequest(Gap(), 100).event(relation, unit),
                    QueryRequest(Count(), 7).event(relation, unit),
                ]
            )
            assert micro_epsilon(event, unit) == 107
    QueryRequest(Gap(), 100).ask(source)
    assert source.ledger.spent().epsilon == 0.0001


def test_a_statement_covers_every_query(holder, rng):
    unit = Unit("patient", 2)
    scores = miscalibrated(50, 1.0, rng)
    mine = replace(scores, units=np.arange(50) // 2)
    one = holder(mine, Budget(1.0, unit=unit, relation="replace-one"))
    queries = [QueryRequest(Gap(), 200_000), QueryRequest(Count(), 100_000)]
    statement = combined_statement(
        [query.ask(one) for query in queries], unit_of(one), covers="this"
    )
    assert (statement.epsilon, statement.unit, statement.max_contributions) == (
        pytest.approx(0.3, abs=1e-12),
        "patient",
        2,
    )
    assert statement.relation == "replace-one"
    pool = Pool([holder(scores), holder(scores)])
    statement = combined_statement(
        [query.ask(pool) for query in queries], unit_of(pool), covers="this"
    )
    assert statement.epsilon == pytest.approx(0.3, abs=1e-12)  # of each source, not of both
    assert any("at one source only" in words for words in statement.covers)
    assert (
        combined_statement(
            [query.ask(Public(scores)) for query in queries], Unit(), covers="this"
        )
        is None
    )


def answer_of(paths, query):
    """An answer of a pool that queried these sources."""
    statement = Pool([Public(SCORES), Public(SCORES)]).answer(query.query, micro_epsilon=1)
    return replace(
        statement, private=True, requested={path: query.event("add-remove") for path in paths}
    )


def test_records_at_several_sources_cost_at_each():
    queries = [
        QueryRequest(Gap(), 200_000),
        QueryRequest(Count(), 100_000),
        QueryRequest(Gap(inverse=0.5), 50_000),
    ]
    # Of three sources one got all queries, one two, one a single one: 0.35, 0.3, 0.2.
    rows = [[(0,), (1,), (2,)], [(0,), (1,)], [(0,)]]
    releases = [answer_of(row, query) for row, query in zip(rows, queries, strict=True)]
    for times, epsilon in ((1, 0.35), (2, 0.65), (3, 0.85), (9, 0.85)):
        statement = combined_statement(releases, Unit(), covers="this", at_sources=times)
        assert statement.epsilon == pytest.approx(epsilon, abs=1e-9)
        assert any(f"at {times} of them at most" in words for words in statement.covers) == (
            times in (2, 3)
        )
    with pytest.raises(ValueError, match="at_sources"):
        combined_statement(releases, Unit(), covers="this", at_sources=0)


def test_with_a_delta_no_sources_cost_more_than_is_stated():
    delta, multiplier = 1e-6, 6.0
    first, second = (gaussian_event(q, multiplier, "add-remove") for q in (Gap(), Count()))
    columns = [(first, first, first), (first, first, second), (second,)]
    statement = Pool([Public(SCORES)]).answer(Count(), micro_epsilon=1)
    releases = [
        replace(
            statement,
            private=True,
            requested={(i,): column[k] for i, column in enumerate(columns) if len(column) > k},
        )
        for k in (0, 1, 2)
    ]
    settings = combined_statement(
        releases, Unit(), covers="this", delta=delta, at_sources=2
    ).epsilon
    for one, other in itertools.combinations(columns, 2):
        assert epsilon_for(Composed((*one, *other)), delta) <= settings + 1e-9


def test_moving_between_sources_is_said_to_cost_both(holder, rng):
    budget = Budget(1.0, relation="replace-one")
    pool = Pool([holder(SCORES, budget), holder(SCORES, budget)])
    statement = combined_statement(
        [QueryRequest(Gap(), 1_000).ask(pool)], unit_of(pool), covers="this"
    )
    assert any("moves to another counts" in words for words in statement.covers)


def test_ten_thousand_sources_are_stated_as_quickly_as_the_kinds_of_them():
    event = QueryRequest(Gap(), 1_000).event("add-remove")
    release = answer_of([(i,) for i in range(10_000)], QueryRequest(Gap(), 1_000))
    statement = combined_statement([release] * 3, Unit(), covers="this")
    assert statement.epsilon == pytest.approx(0.003, abs=1e-9)
    assert set(release.requested.values()) == {event}


def test_a_private_fitter_shows_in_a_notebook_without_a_warning():
    assert "PrivateTemperature" in PrivateTemperature(epsilon=1.0)._repr_html_()
