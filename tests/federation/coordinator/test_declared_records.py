"""What a source can weigh: no more than the records that it says it has."""

import numpy as np
import pytest

from veracal.calibration import BinnedGap, CorrectTotal, CorrectWrong, Gap, Temperature
from veracal.calibration.bins import Bins
from veracal.calibration.queries.platt import platt_counts
from veracal.calibration.queries.scalars import MappedQuery
from veracal.federation.coordinator.remote import claimed_records, noise_bound, too_large
from veracal.mechanisms.discrete_noise import add_discrete_gaussian, add_discrete_laplace
from veracal.queries import QueryRequest, Release, noise_std

_DRAWS = 1_500


def released(wanted, units):
    event = wanted.event("add-remove")
    query = wanted.query
    std = noise_std(event) * query.grid.step
    return Release(query.name, tuple(units), query.grid, std, None, event, private=True)


@pytest.mark.parametrize("entries", [1, 2, 15])
@pytest.mark.parametrize("noise", [0.05, 1.0, 300.0])
@pytest.mark.parametrize("add", [add_discrete_laplace, add_discrete_gaussian])
def test_noise_exceeds_its_bound_with_the_stated_probability(entries, noise, add):
    query = BinnedGap(Bins(entries))
    wanted = (
        QueryRequest(query, micro_epsilon=1_000_000)
        if add is add_discrete_laplace
        else QueryRequest(query, noise_multiplier=1.0)
    )
    event = wanted.event("add-remove")
    event = type(event)(noise, event.sensitivity, event.relation)
    bound = noise_bound(event, entries, rare=0.05)
    drawn = add(np.zeros(_DRAWS * entries, dtype=np.int64), noise).reshape(_DRAWS, entries)
    beyond = (np.abs(drawn).sum(axis=1) > bound).mean()
    assert beyond <= 0.05 + 5 * np.sqrt(0.05 * 0.95 / _DRAWS)
    if add is add_discrete_laplace and noise > 1:
        assert beyond > 0.01  # the bound is attained


@pytest.mark.parametrize("query", [Gap(0.5, 2), BinnedGap(), CorrectWrong(), CorrectTotal()])
def test_an_answer_is_bounded_by_the_number_of_records(query):
    wanted = QueryRequest(query, micro_epsilon=10_000_000)
    row = query.sensitivity("add-remove")
    within = [100 * row] + [0] * (query.entries - 1)
    beyond = [200 * row] + [0] * (query.entries - 1)
    assert not too_large(wanted, released(wanted, within), 100)
    assert too_large(wanted, released(wanted, beyond), 100)


def test_the_bound_applies_to_the_sum_over_bins():
    wanted = QueryRequest(BinnedGap(), micro_epsilon=10_000_000)
    units = [(-1) ** i * 20 * 2**20 for i in range(15)]
    assert too_large(wanted, released(wanted, units), 100)
    assert not too_large(wanted, released(wanted, units), 300)


@pytest.mark.parametrize(
    ("query", "units"),
    [
        (CorrectWrong(Bins(1)), (70, 30)),
        (MappedQuery(CorrectWrong(Bins(1)), Temperature(0.5)), (70, 30)),
        (CorrectWrong(Bins(2)), (40, 10, 30, 20)),
        (CorrectTotal(Bins(2)), (5, 40, 50, 60)),
        (platt_counts(2), (70, 30)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_counts_imply_the_number_of_records(query, units):
    wanted = QueryRequest(query, micro_epsilon=1_000_000)
    result = claimed_records(query, released(wanted, units))
    assert 100 < result < 200
    less = QueryRequest(query, micro_epsilon=10_000)
    assert claimed_records(query, released(less, units)) > 1_000  # so much noise leaves it open


@pytest.mark.parametrize("query", [Gap(0.5, 2), BinnedGap()])
def test_other_answers_imply_no_number_of_records(query):
    wanted = QueryRequest(query, micro_epsilon=1_000_000)
    assert claimed_records(query, released(wanted, [0] * query.entries)) is None
