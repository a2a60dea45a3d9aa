"""A temperature of many sources: its queries, its cost, its result."""

import math

import numpy as np
import pytest

from tests.calibration.private.conftest import miscalibrated
from veracal.accounting import Budget, Unit, epsilon_for
from veracal.calibration import PooledTemperature, metrics
from veracal.calibration.maps import Temperature, UniformMixing
from veracal.calibration.private.pooled import CENTER
from veracal.calibration.sources import PrepaidSource, SimulatedSources
from veracal.data import Scores
from veracal.errors import BudgetError
from veracal.queries import Pool, Public

MICRO = 1_000_000


def simulated(scores, sources, seed=0, **settings):
    """Sources of equal size with noise that repeats itself."""
    place = np.arange(len(scores)) % sources
    rng = np.random.default_rng(seed)
    return SimulatedSources(scores, place, micro_epsilon=MICRO, rng=rng, **settings)


@pytest.fixture(scope="module")
def scores():
    return miscalibrated(3_000, 3.0, np.random.default_rng(0), classes=4)


def test_it_asks_for_counts_and_two_gaps_at_their_shares(scores):
    result = PooledTemperature(micro_epsilon=MICRO).fit(simulated(scores, 30))
    assert [release.query for release in result.releases_] == [
        "correct and wrong",
        "gap",
        "gap",
    ]
    assert [release.micro_epsilon for release in result.releases_] == [
        100_000,
        300_000,
        600_000,
    ]
    assert (result.n_sources_, result.n_answered_) == (30, 30)
    assert isinstance(result.map_, Temperature)


def test_the_first_gap_is_where_the_prior_is_and_the_second_where_the_answers_point(scores):
    queried = []

    class Seen(PrepaidSource):
        def answer(self, query, **settings):
            queried.append(query)
            return super().answer(query, **settings)

    fitter = PooledTemperature(micro_epsilon=20 * MICRO)
    fitter.fit(Seen(scores, fitter.event()))
    first, second = (query.inverse for query in queried[1:])
    assert math.log(first) == pytest.approx(CENTER, abs=1e-4)
    assert 1 / second == pytest.approx(3.0, rel=0.25)
    for inverse in (first, second, fitter.map_.inverse):
        assert (inverse * 2**16).is_integer()


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("rows", [1, 3])
def test_it_costs_what_it_says_and_no_more_than_epsilon(relation, rows):
    unit = Unit("patient", max_contributions=rows)
    fitter = PooledTemperature(epsilon=0.7, classes=4)
    cost = epsilon_for(fitter.event(relation, unit), 0.0, unit)
    assert 0.7 - 1e-5 < cost <= math.nextafter(math.nextafter(0.7, 1), 1)
    assert len(fitter.items(relation, unit)) == 3


def test_one_question_more_is_not_paid_for(scores):
    """The event is all: a source that was announced it answers these three and no fourth."""
    fitter = PooledTemperature(epsilon=1.0)
    source = PrepaidSource(scores, fitter.event())
    fitter.fit(source)
    with pytest.raises(BudgetError):
        fitter.fit(source, request="once more")


def test_a_holder_pays_before_it_answers_and_repeats_for_nothing(holder, scores):
    source = holder(scores, Budget(1.0))
    first = PooledTemperature(epsilon=1.0).fit(source)
    again = PooledTemperature(epsilon=1.0).fit(source)
    assert first.map_ == again.map_ and len(source.ledger.entries()) == 3
    assert first.statement_.epsilon == pytest.approx(source.ledger.spent().epsilon)
    poor = holder(scores, Budget(0.9))
    with pytest.raises(BudgetError):
        PooledTemperature(epsilon=1.0).fit(poor)
    assert poor.ledger.entries() == ()


def test_exact_answers_end_near_the_right_temperature_and_are_marked(scores):
    thirds = [Public(scores.take(np.arange(i, len(scores), 3))) for i in range(3)]
    result = PooledTemperature(epsilon=1.0).fit(Pool(thirds))
    assert not result.private_ and result.statement_ is None
    assert result.map_.value == pytest.approx(3.0, rel=0.1)
    assert metrics.ece(result.transform(scores)) < 0.02


def test_uniform_mixing_follows_the_largest_temperature():
    """Labels that have nothing to do with the scores: only an equal share is right."""
    rng = np.random.default_rng(1)
    scores = Scores.from_logits(9 * rng.normal(size=(4_000, 4)), rng.integers(0, 4, 4_000))
    result = PooledTemperature(epsilon=1.0, classes=4).fit(simulated(scores, 40))
    assert isinstance(result.map_, UniformMixing) and result.uniform_weight_ > 0.3
    assert (
        result.uniform_weight_ * 2**16
    ).is_integer() and result.map_.uniform_weight == result.uniform_weight_
    assert result.map_.value == pytest.approx(6.0, abs=1e-3)
    mapped = result.transform(scores)
    assert metrics.ece(mapped) < 0.1 < 0.2 < metrics.ece(Temperature(1 / 6).transform(scores))
    np.testing.assert_array_equal(mapped.predictions, scores.predictions)
    plain = PooledTemperature(epsilon=1.0).fit(simulated(scores, 40))
    assert (
        isinstance(plain.map_, Temperature) and plain.uniform_weight_ == 0.0
    )  # classes not declared
    assert result.temperature_.high == pytest.approx(6.0, abs=1e-3)


def test_the_interval_holds_the_right_temperature_as_often_as_it_says():
    """Fresh records and fresh noise each time; without sampling it would be too narrow."""
    rng, held, noise_only = np.random.default_rng(2), 0, 0
    trials = 120
    for trial in range(trials):
        scores = miscalibrated(400, 2.5, rng)
        result = PooledTemperature(epsilon=50.0).fit(
            SimulatedSources(
                scores,
                np.arange(400) % 20,
                micro_epsilon=50 * MICRO,
                rng=np.random.default_rng(trial),
            )
        )
        interval = result.temperature_
        held += interval.low <= 2.5 <= interval.high
        assert interval.low <= result.map_.value <= interval.high
        noise_only += abs(math.log(result.map_.value / 2.5)) < 0.03
    assert held / trials > 0.9
    assert noise_only / trials < 0.6  # as narrow as the noise alone, it would fail


def test_sources_that_fall_silent_widen_the_interval_if_they_differ():
    rng = np.random.default_rng(3)
    kinds = [miscalibrated(1_000, t, rng) for t in (1.2, 5.0)]
    mixed = Scores.from_logits(
        np.concatenate([k.values for k in kinds]),
        np.concatenate([k.known_labels for k in kinds]),
    )
    place = np.arange(2_000) // 100
    widths = []
    for silent in ((), range(1, 20, 4)):
        source = SimulatedSources(
            mixed,
            place,
            micro_epsilon=40 * MICRO,
            min_sources=1,
            dropouts=list(silent),
            rng=np.random.default_rng(4),
        )
        result = PooledTemperature(epsilon=40.0).fit(source)
        widths.append(math.log(result.temperature_.high / result.temperature_.low))
    assert result.n_answered_ == 15 and result.n_sources_ == 20
    assert widths[1] > 1.3 * widths[0]


def test_with_few_shares_one_gap_is_queried(scores):
    result = PooledTemperature(epsilon=1.0, shares=(10, 90)).fit(simulated(scores, 30))
    assert len(result.releases_) == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epsilon": 1.0, "temperatures": (3.0, 0.5)}, "range of temperatures"),
        ({"epsilon": 1.0, "shares": (10,)}, "one gap or more"),
        ({"epsilon": 1.0, "shares": (10, 0)}, "shares"),
        ({"epsilon": 1.0, "level": 1.0}, "level"),
        ({"epsilon": 1e-6}, "millionth"),
        ({}, "one of epsilon"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        PooledTemperature(**settings).event()
