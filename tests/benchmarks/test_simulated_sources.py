"""Simulated sources answer as many curators would."""

import math

import numpy as np
import pytest

from benchmarks.simulated_sources import SimulatedSources, sums_by_source
from veracal.accounting import Unit
from veracal.calibration import BinnedGap, CorrectWrong, Gap
from veracal.calibration.bins import Bins
from veracal.calibration.private.session import unit_of
from veracal.data import Scores
from veracal.errors import BudgetError, DataError, DropoutError
from veracal.queries import Brier, Count, DenseSum, laplace_event
from veracal.testing import check_source

RNG = np.random.default_rng(0)
SCORES = Scores.from_logits(RNG.normal(size=(60, 3)), RNG.integers(3, size=60))
PLACE = np.arange(60) % 4


@pytest.mark.parametrize(
    "query", [Count(), Brier(), Gap(), CorrectWrong(Bins(2))], ids=lambda q: q.name
)
def test_they_keep_the_contract_of_a_source(query):
    check_source(lambda total: SimulatedSources(SCORES, PLACE, micro_epsilon=total), query)


def test_every_source_answers_about_its_own_records_with_noise_of_its_own():
    source = SimulatedSources(SCORES, PLACE, sources=5, micro_epsilon=10**12)
    result = source.answer(BinnedGap(Bins(3)), micro_epsilon=10**11)  # next to no noise
    for i, part in enumerate(result.parts):
        exact = BinnedGap(Bins(3)).evaluate(SCORES.take(np.flatnonzero(PLACE == i)))
        assert np.abs(np.array(part.units) - exact).max() < 1_000
    assert result.private and result.units == tuple(
        np.sum([part.units for part in result.parts], axis=0).tolist()
    )
    assert len({part.units for part in source.answer(Count(), micro_epsilon=1).parts}) == 5


@pytest.mark.parametrize("rng", [None, np.random.default_rng(1)], ids=["secret", "seeded"])
def test_the_noise_of_all_sources_has_the_law_of_one(rng):
    """The probabilities are those of the discrete Laplace distribution, not of a close one."""
    n, scale = 20_000, 2.0
    source = SimulatedSources(SCORES, PLACE, sources=n, micro_epsilon=10**7, rng=rng)
    result = source.answer(Count(), micro_epsilon=500_000)
    noise = np.array([part.units[0] for part in result.parts[4:]])
    assert result.private == (rng is None)

    def off(s):
        t = math.exp(-1 / s)
        k = np.arange(-5, 6)
        p = (1 - t) / (1 + t) * t ** np.abs(k)
        seen = np.array([(noise == j).mean() for j in k])
        return (np.abs(seen - p) / np.sqrt(p * (1 - p) / len(noise))).max()

    assert off(scale) < 5
    assert off(scale * 1.1) > 5


def test_units_and_relation_are_those_that_were_said():
    unit = Unit("patient", 2)
    source = SimulatedSources(
        SCORES, PLACE, micro_epsilon=10**6, relation="replace-one", unit=unit
    )
    result = source.answer(Brier(), micro_epsilon=10**6)
    assert result.parts[0].event == laplace_event(Brier(), 10**6, "replace-one", unit)
    assert unit_of(source) == unit
    with pytest.raises(BudgetError):
        source.answer(Count(), micro_epsilon=1)


def test_silence_begins_when_it_was_said():
    source = SimulatedSources(
        SCORES, PLACE, micro_epsilon=10**6, dropouts={1: 1, 2: 0}, min_sources=1
    )
    silent = [source.answer(q, micro_epsilon=10).dropouts for q in (Count(), Brier())]
    assert [why is not None for why in silent[0]] == [False, False, True, False]
    assert [why is not None for why in silent[1]] == [False, True, True, False]
    again = source.answer(Count(), micro_epsilon=10)
    assert again.dropouts == silent[0]
    with pytest.raises(DropoutError):
        SimulatedSources(SCORES, PLACE, micro_epsilon=10, dropouts=[0]).answer(
            Count(), micro_epsilon=1
        )


@pytest.mark.parametrize(
    "place", [PLACE[:-1], PLACE - 1, PLACE + 0.5, PLACE[:, None]], ids=range(4)
)
def test_wrong_places_are_refused(place):
    with pytest.raises(DataError, match="index"):
        SimulatedSources(SCORES, place, micro_epsilon=1)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="sources"):
        SimulatedSources(SCORES, PLACE, micro_epsilon=1, sources=3)


DENSE = DenseSum("d", lambda s: s.values[:, :2] / 7, 2, 1.0, power=2)


@pytest.mark.parametrize(
    "query", [Count(), Brier(), CorrectWrong(Bins(3)), DENSE], ids=lambda q: q.name
)
@pytest.mark.parametrize("n", [0, 1, 2_500])
def test_sums_by_source_equal_separate_evaluations(query, n):
    rng = np.random.default_rng(n)
    scores = Scores.from_logits(rng.normal(size=(n, 4)), rng.integers(4, size=n))
    place = rng.integers(5, size=n)
    together = sums_by_source(query, scores, place, 6)  # one of them has no record
    for i in range(6):
        alone = query.evaluate(scores.take(np.flatnonzero(place == i)))
        assert together[i].tolist() == alone.tolist()
