"""A source that does not answer is named, not queried again, and counted."""

import numpy as np
import pytest

from benchmarks.simulated_sources import SimulatedSources
from tests.calibration.recalibration.conftest import Breaks, N, spent
from veracal.accounting import Budget
from veracal.calibration import recalibrate
from veracal.errors import BudgetError, DropoutError


def test_a_source_that_cannot_pay_is_excluded_uncharged_and_named(holders):
    sources = [*holders(2, Budget(1.0)), *holders(1, Budget(0.3))]
    with pytest.raises(BudgetError):
        recalibrate(sources, epsilon=1.0)
    result = recalibrate(sources, "temperature", epsilon=1.0, measure=0.3, min_sources=2)
    assert (result.n_sources, result.n_answered) == (3, 2) and result.dropouts[:2] == (
        None,
        None,
    )
    assert "cannot pay" in result.dropouts[2] and spent(sources)[2] == 0
    assert "2 of 3 sources answered every query" in result.text()
    assert "Source 3 dropped out: its budget cannot pay" in result.text()
    assert result.to_json()["sources"]["answered"] == 2
    assert result.before.count.value == pytest.approx(N, abs=300)
    with pytest.raises(DropoutError):
        recalibrate(sources, epsilon=0.9, min_sources=3, request="more")


@pytest.mark.parametrize("at", [2, 6])
def test_a_dropped_out_source_is_charged_and_not_queried_again(holders, at):
    """Whenever it happens, all figures are about the records of those that stayed."""
    sources = holders(3, Budget(40.0))
    broken = [*sources[:2], Breaks(sources[2], at)]
    result = recalibrate(broken, "temperature", epsilon=40.0, measure=0.3, min_sources=2)
    assert result.dropouts == (None, None, "it could not be reached")
    assert broken[2].left == 0  # it would have answered the next query, but got none
    assert result.before.count.value == pytest.approx(2 * N / 3, abs=30)
    assert result.after.ece.value < result.before.ece.value
    paid = spent(sources)
    assert paid[0] == paid[1] > paid[2] > 0
    assert result.statement.epsilon == pytest.approx(paid[0], abs=1e-9)


def test_records_at_two_sources_cost_twice(holders):
    sources = holders(3)
    once = recalibrate(sources, "binning", epsilon=0.5)
    twice = recalibrate(sources, "binning", epsilon=0.5, at_sources=2)
    assert twice.map == once.map and max(spent(sources)) <= 0.5
    assert twice.statement.epsilon == pytest.approx(2 * once.statement.epsilon)
    assert "records at one source only" in once.text()
    assert "records at one source only" not in twice.text()


def test_thousands_of_simulated_sources_are_a_pool_like_any_other(scores):
    place = np.arange(N) % 100
    source = SimulatedSources(scores, place, micro_epsilon=5_000_000)
    result = recalibrate(source, "temperature", epsilon=5.0, guard=0.3, measure=0.3)
    assert result.n_sources == result.n_answered == 100 and result.private
    assert result.statement.epsilon <= 5.0 and result.before.ece_noise_bias > 0
