"""Two private temperatures: their queries, their cost and their accuracy."""

import math

import numpy as np
import pytest
from sklearn.base import clone

from tests.calibration.private.conftest import Quick, miscalibrated
from veracal.accounting import Budget, Unit, micro_epsilon
from veracal.calibration import (
    ConfidenceWeightedGaps,
    PrivateTemperature,
    PrivateTwoTemperatures,
    TwoTemperatures,
    ece,
)
from veracal.calibration.private.temperature import (
    TWO_SHARES,
    GapObservation,
    map_at,
    slope_matrix,
    two_temperature_posterior,
)
from veracal.data import Scores
from veracal.errors import BudgetError
from veracal.queries import Public

ACCURACY = 0.8


def bent(n, unsure, sure, rng, *, classes=2):
    """Scores whose right map is known."""
    z = rng.normal(scale=2.0, size=(n, classes))
    p = TwoTemperatures(unsure, sure).transform(Scores.from_logits(z)).probabilities
    labels = (rng.random((n, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=classes - 1)
    return Scores.from_logits(z, labels)


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize(("unsure", "sure"), [(1.5, 0.7), (0.5, 1.0), (3.0, 2.0)])
def test_both_gaps_vanish_where_it_ends(unsure, sure, classes, rng):
    scores = bent(20_000, unsure, sure, rng, classes=classes)
    result = PrivateTwoTemperatures(epsilon=20.0).fit(Public(scores))
    left = ConfidenceWeightedGaps(result.map_).evaluate(scores) / 2**20 / len(scores)
    assert np.abs(left).max() < 3e-3
    at_one = (
        ConfidenceWeightedGaps(TwoTemperatures(1.0, 1.0)).evaluate(scores) / 2**20 / len(scores)
    )
    assert np.abs(at_one).max() > 4 * np.abs(left).max()
    assert not result.private_ and result.statement_ is None


def test_it_repairs_what_one_temperature_leaves(rng):
    scores, unseen = (bent(30_000, 2.2, 0.7, rng, classes=5) for _ in range(2))
    source = Quick(scores, rng)
    one, two = (
        [ece(clone(fitter).fit(source).transform(unseen)) for _ in range(5)]
        for fitter in (PrivateTemperature(epsilon=0.1), PrivateTwoTemperatures(epsilon=0.1))
    )
    assert np.mean(two) < 0.6 * min(np.mean(one), ece(unseen))


@pytest.mark.parametrize("classes", [2, 10])
def test_it_does_no_worse_where_one_is_right(classes, rng):
    scores = miscalibrated(30_000, 2.0, rng, classes=classes)
    source = Quick(scores, rng)
    for _ in range(5):
        result = PrivateTwoTemperatures(epsilon=0.1).fit(source)
        assert ece(result.transform(scores)) < 0.012 < 0.07 < ece(scores)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("unit", [Unit(), Unit("patient", 3)], ids=str)
def test_it_costs_what_it_says(relation, unit):
    fitter = PrivateTwoTemperatures(epsilon=0.7, classes=4)
    cost = micro_epsilon(fitter.event(relation, unit), unit)
    assert 700_000 - len(TWO_SHARES) <= cost <= 700_000
    assert len(fitter.items(relation, unit)) == len(TWO_SHARES) == 6


def test_it_runs_on_every_kind_of_source(source_of, rng):
    scores = bent(8_000, 1.5, 0.7, rng)
    fitter = PrivateTwoTemperatures(epsilon=4.0)
    source = source_of(scores, Budget(4.0), kind="plan", plan=fitter.items())
    fitter.fit(source)
    left = ConfidenceWeightedGaps(fitter.map_).evaluate(scores) / 2**20 / len(scores)
    assert np.abs(left).max() < 0.01
    assert len(fitter.releases_) == 6
    if fitter.private_:
        assert 3.99 < fitter.statement_.epsilon <= 4.0


def test_a_holder_charges_all_of_it_and_nothing_twice(holder, rng):
    source = holder(bent(500, 1.0, 1.0, rng), Budget(1.0))
    fitter = PrivateTwoTemperatures(epsilon=1.0)
    first = clone(fitter).fit(source)
    assert clone(fitter).fit(source).map_ == first.map_  # the same answers, at no cost
    with pytest.raises(BudgetError):
        clone(fitter).fit(source, request="again")


class SameForAll(Quick):
    """A source whose answers are the same whatever its records are, noise included."""

    def answer(self, query, *, micro_epsilon, request=None):
        key = query.name, tuple(sorted(query.settings.items()))
        self._exact[key] = np.full(query.entries, 90 << query.grid.bits)
        return super().answer(query, micro_epsilon=micro_epsilon, request=request)


def test_it_depends_on_answers_alone(rng):
    """Other records with the same noisy answers get the same queries and the same result."""
    said = []
    for scores in (bent(2_000, 1.5, 0.7, rng), bent(2_000, 0.5, 1.0, rng), bent(3, 1, 1, rng)):
        source = SameForAll(scores, np.random.default_rng(1))
        result = PrivateTwoTemperatures(epsilon=0.5).fit(source)
        said.append((source.asked, result.map_, result.unsure_, result.sure_))
    assert said[0] == said[1] == said[2]
    prices = [micro for _, micro, _ in source.asked]
    assert prices == [5_000 * share for share in TWO_SHARES] and sum(prices) == 500_000


@pytest.mark.parametrize("n", [0, 1, 5])
def test_noise_alone_leaves_temperatures_near_one_another(n, rng):
    scores = bent(max(n, 1), 1.0, 1.0, rng).take(np.arange(n))
    for _ in range(30):
        result = PrivateTwoTemperatures(epsilon=0.05).fit(Quick(scores, rng))
        assert 0.04 < result.map_.at < 25
        assert abs(math.log(result.map_.sure / result.map_.unsure)) <= 4
        for estimate in (result.unsure_, result.sure_):
            assert math.isfinite(estimate.low) and math.isfinite(estimate.high)
            assert estimate.low < estimate.value < estimate.high


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_intervals_hold_the_right_temperatures(epsilon, rng):
    """With records and noise drawn again each time; the map is evaluated on true probabilities."""
    hits = 0
    for _ in range(40):
        scores = miscalibrated(4_000, 1.3, rng, classes=3)
        result = PrivateTwoTemperatures(epsilon=epsilon).fit(Quick(scores, rng))
        hits += result.unsure_.low <= 1.3 <= result.unsure_.high
        hits += result.sure_.low <= 1.3 <= result.sure_.high
    assert hits >= 68  # of 80 at a level of 0.95, though two of a fit go together


def test_slopes_have_no_direction_that_rises():
    assert np.linalg.eigvalsh(slope_matrix([5.0, 40.0, 10.0])).min() >= -1e-12
    np.testing.assert_allclose(slope_matrix([5.0, 3.0, 10.0]), [[5, 3], [3, 10]])
    np.testing.assert_allclose(slope_matrix([-5.0, 0.0, -1.0]), 0, atol=1e-12)


def test_the_root_is_that_of_the_lines_where_there_is_no_noise():
    slopes, root = np.array([[40.0, 15.0], [15.0, 90.0]]), np.array([0.3, -0.2])
    places = [np.zeros(2), np.array([0.2, 0.1])]
    seen = [GapObservation(place, -slopes @ (place - root), 1e-3) for place in places]
    offsets, _ = two_temperature_posterior(slopes, seen, ACCURACY)
    np.testing.assert_allclose(offsets, root, atol=0.02)


def test_a_sum_of_gaps_determines_the_mean_and_not_the_difference():
    slopes = np.array([[40.0, 15.0], [15.0, 90.0]])
    offsets, stds = two_temperature_posterior(
        slopes, [GapObservation(np.zeros(2), np.array([30.0]), 1.0)], ACCURACY
    )
    assert offsets.mean() > 0.15 and abs(np.diff(offsets)[0]) < 0.1
    unseen, wide = two_temperature_posterior(slopes, [], ACCURACY)
    assert unseen.tolist() == [0, 0] and (stds < wide).all()


def test_maps_stay_within_what_a_map_may_be():
    result = map_at(2.0, np.array([30.0, -30.0]))
    assert result.unsure > result.sure and math.log(result.unsure / result.sure) < 4
    assert map_at(2.0, np.zeros(2)) == TwoTemperatures(2.0, 2.0, 2.0)
    for at in (1e-6, 1e6):
        for move in (-50.0, 50.0):
            assert 1e-6 <= map_at(at, np.full(2, move)).sure <= 1e6


@pytest.mark.parametrize("classes", [2, 10])
def test_logits_far_from_right_are_not_thrown_further(classes, rng):
    """Where one temperature lies outside the public range, answers near its end mislead."""
    scores = miscalibrated(5_000, 1 / 100, rng, classes=classes)
    source = Quick(scores, rng)
    for _ in range(10):
        result = PrivateTwoTemperatures(epsilon=5.0).fit(source).map_
        assert max(result.sure, result.unsure) < 20 * math.e**2
        assert ece(result.transform(scores)) < ece(scores)


def test_no_query_is_repeated_at_the_same_cost():
    fitter = PrivateTwoTemperatures(epsilon=1.0)
    queried = [(ask.query.name, ask.micro_epsilon) for ask in fitter._queries()]
    assert len(set(queried)) == len(queried)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epsilon": 1.0, "micro_epsilon": 5},
        {"epsilon": 1.0, "temperatures": (2.0, 1.0)},
        {"epsilon": 1.0, "temperatures": (1.0, 1e7)},
        {"epsilon": 1.0, "level": 1.0},
        {"micro_epsilon": 3},
    ],
)
def test_invalid_settings_are_rejected_before_any_query(settings, rng):
    source = Quick(bent(10, 1.0, 1.0, rng), rng)
    for act in (lambda f: f.fit(source), lambda f: f.event()):
        with pytest.raises(ValueError, match="Expected"):
            act(PrivateTwoTemperatures(**settings))
    assert not source.asked
