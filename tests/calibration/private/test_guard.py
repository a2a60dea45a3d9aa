"""The guard: its query, when it keeps a map, and how often it errs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from assurance.audits import Copies
from tests.calibration.private.conftest import Quick, miscalibrated
from veracal.accounting import Pure, micro_epsilon
from veracal.calibration import BrierGain, guard_event, guard_map
from veracal.calibration.bins import Bins
from veracal.calibration.maps import Binned, Identity, Temperature
from veracal.calibration.private.estimates import noise_half_width
from veracal.data import Scores
from veracal.queries import Pool, Public


def test_a_map_that_helps_is_kept_and_one_that_harms_is_not(source_of, rng):
    source = source_of(miscalibrated(3_000, 3.0, rng))
    good = guard_map(Temperature(1 / 3), source, epsilon=0.4, records="held-out records")
    bad = guard_map(Temperature(3.0), source, epsilon=0.4)
    assert good.kept and good.map == Temperature(1 / 3) and good.gain > good.threshold
    assert not bad.kept and bad.map == Identity() and bad.gain <= bad.threshold
    assert "kept" in good.text() and "held-out records" in good.text() and "0.05" in good.text()
    assert "not kept" in bad.text() and "are not changed" in bad.text()
    if good.private:
        assert good.statement.epsilon == pytest.approx(0.4, abs=1e-12)
    else:
        assert good.statement is None and good.threshold == 0


def test_the_question_is_one_difference(rng):
    source = Quick(miscalibrated(100, 2.0, rng), rng)
    guard_map(Temperature(0.5), source, micro_epsilon=1_234)
    ((query, price, _),) = source.asked
    assert query == BrierGain(Temperature(0.5)) and price == 1_234
    assert query.sensitivity("add-remove") == 2**20
    assert query.sensitivity("replace-one") == 2**21


def test_it_is_charged_whether_or_not_the_map_is_kept(holder, rng):
    for map_ in (Temperature(0.5), Temperature(2.0)):
        source = holder(miscalibrated(2_000, 2.0, rng))
        guard_map(map_, source, epsilon=0.25)
        assert source.ledger.spent().epsilon == 0.25
        assert micro_epsilon(guard_event(map_, epsilon=0.25)) == 250_000


def test_there_is_no_second_try(holder, rng):
    source = holder(miscalibrated(50, 1.0, rng))
    first = guard_map(Temperature(0.9), source, epsilon=0.3)
    for _ in range(20):
        assert guard_map(Temperature(0.9), source, epsilon=0.3) == first
    assert source.ledger.spent().epsilon == 0.3


@pytest.mark.parametrize("beta", [0.01, 0.05, 0.3])
def test_a_useless_map_is_kept_as_rarely_as_stated(beta, rng):
    """The hardest case: a map that changes nothing at all."""
    n = 20_000
    many = Copies(BrierGain(Identity()), n)  # one answer with many noises
    source = Quick(miscalibrated(30, 1.0, rng), rng)
    result = guard_map(Identity(), source, epsilon=0.5, beta=beta)
    kept = int((source.answer(many, micro_epsilon=500_000).values > result.threshold).sum())
    assert result.kept == (result.gain > result.threshold)
    assert stats.binom.sf(kept - 1, n, beta) > 1e-4  # not more often
    assert stats.binom.cdf(kept, n, 0.8 * beta) > 1e-4  # nor far from the bound


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.7, 1e6])
@pytest.mark.parametrize("beta", [0.4, 0.05, 1e-4])
def test_one_noise_reaches_as_far_as_its_law_says(scale, beta):
    t, reach = math.exp(-1 / scale), noise_half_width([scale], beta)
    beyond = [t ** (r + 1) / (1 + t) for r in (reach, reach - 1)]
    assert beyond[0] <= beta * (1 + 1e-12)
    assert beyond[1] > beta * (1 - 1e-12) or reach == 0
    if scale > 5:
        assert reach == pytest.approx(scale * math.log(1 / (2 * beta)), rel=0.01, abs=1)


def test_the_bound_of_a_sum_is_below_the_sum_of_bounds(rng):
    scales = [3.0] * 20 + [10.0] * 5
    t = np.exp(-1 / np.array(scales))
    draws = rng.geometric(1 - t, size=(100_000, 25)) - rng.geometric(1 - t, size=(100_000, 25))
    sums = draws.sum(axis=1)
    for beta in (0.2, 0.05, 0.001):
        reach = noise_half_width(scales, beta)
        assert (sums > reach).mean() <= beta
        assert reach < 2.6 * np.quantile(sums, 1 - beta)  # Chernoff is not far off
        assert reach < sum(noise_half_width([s], beta / 25) for s in scales)
    assert noise_half_width([5.0, 5.0], 0.05) >= noise_half_width([5.0], 0.05)


def test_a_pool_errs_as_rarely_as_stated(rng):
    scores = miscalibrated(20, 1.0, rng)
    pool = Pool([Quick(scores, rng) for _ in range(4)])
    threshold = guard_map(Identity(), pool, epsilon=0.5, beta=0.2).threshold
    many = Copies(BrierGain(Identity()), 10_000)
    kept = int((pool.answer(many, micro_epsilon=500_000).values > threshold).sum())
    assert stats.binom.sf(kept - 1, 10_000, 0.2) > 1e-4
    assert kept > 100


def test_a_map_may_change_predictions(rng):
    scores = Scores.from_probabilities([[0.9, 0.1]] * 50, [1] * 50)
    result = guard_map(Binned(Bins(15), [0.1] * 15), Public(scores), epsilon=1.0)
    assert result.kept and result.gain == pytest.approx(50 * (0.81 - 0.01), abs=1e-3)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, float("nan")])
def test_an_invalid_beta_is_rejected_before_any_query(beta, rng):
    source = Quick(miscalibrated(10, 1.0, rng), rng)
    with pytest.raises(ValueError, match="beta"):
        guard_map(Identity(), source, epsilon=1.0, beta=beta)
    assert not source.asked


def test_noise_of_an_unknown_law_is_refused(rng):
    class Odd(Quick):
        def answer(self, query, **about):
            return replace(super().answer(query, **about), event=Pure(1.0))

    with pytest.raises(ValueError, match="discrete Laplace"):
        guard_map(Identity(), Odd(miscalibrated(10, 1.0, rng), rng), epsilon=1.0)
