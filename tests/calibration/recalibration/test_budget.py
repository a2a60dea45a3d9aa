"""Nothing is charged in vain or twice, and nothing is lost by an interruption."""

import pytest

from tests.calibration.recalibration.conftest import Breaks, spent
from veracal.accounting import Budget
from veracal.calibration import recalibrate
from veracal.errors import BudgetError


def test_nothing_is_charged_unless_everything_can_be_paid(holders):
    """Not even the map, which alone would fit: a guard that cannot be paid is known first."""
    rich, (poor,) = holders(1, Budget(2.0)), holders(1, Budget(1.0))
    with pytest.raises(BudgetError, match="no record was read"):
        recalibrate([*rich, poor], epsilon=1.05, guard=0.1)
    assert spent([*rich, poor]) == [0, 0]


def test_a_repetition_costs_nothing(holders):
    sources = holders(2)
    for request in (None, "spring"):
        first = recalibrate(sources, epsilon=0.4, measure=0.3, request=request)
        paid = spent(sources)
        again = recalibrate(sources, epsilon=0.4, measure=0.3, request=request)
        assert again.to_json() == first.to_json() and spent(sources) == paid
        assert paid[0] == paid[1] <= 0.4 * (1 if request is None else 2)


@pytest.mark.parametrize(("at", "request_id"), [(2, None), (5, "spring"), (6, None)])
def test_nothing_is_lost_when_a_source_fails_midway(holders, at, request_id):
    sources = holders(2, Budget(0.5))
    broken = [sources[0], Breaks(sources[1], at)]
    with pytest.raises(ConnectionError):
        recalibrate(broken, "temperature", epsilon=0.5, measure=0.3, request=request_id)
    before = spent(sources)
    assert 0 < before[0] <= 0.5
    result = recalibrate(broken, "temperature", epsilon=0.5, measure=0.3, request=request_id)
    assert result.private and max(spent(sources)) <= 0.5
    assert spent(sources)[0] == pytest.approx(result.statement.epsilon, abs=1e-9)


def test_whose_budget_is_short_is_said(holders):
    sources = [*holders(1), *holders(1, Budget(0.1))]
    with pytest.raises(BudgetError, match="source 1: .*min_sources"):
        recalibrate(sources, epsilon=0.5)
