"""The plan of a pooled temperature depends on public facts alone."""

import math

import numpy as np
import pytest

from benchmarks.simulated_sources import SimulatedSources
from tests.calibration.private.conftest import miscalibrated
from veracal.accounting import Unit
from veracal.calibration import PooledTemperature, plan_pooled
from veracal.calibration.methods import METHODS, MethodSettings

TWO, ONE = (10, 30, 60), (10, 90)


@pytest.mark.parametrize(
    ("sources", "epsilon", "records", "shares"),
    [
        (50, 1.0, 1_500, TWO),
        (50, 1.0, None, TWO),  # nothing is known of the noise for a record
        (50, 0.1, 1_000, ONE),
        (10, 0.3, 100, ONE),
        (1, 0.1, 5_000, TWO),
    ],
)
def test_two_gaps_unless_the_first_could_not_say_where_to_go(sources, epsilon, records, shares):
    assert plan_pooled(sources, epsilon=epsilon, records=records).shares == shares


def test_the_rule_is_the_noise_of_the_first_gap_for_each_record():
    """Both sides of it, from the formula written out."""
    for records in (100, 400, 1_600, 6_400):
        noise = math.sqrt(2 * 30) / (0.3 * 0.5 * records)
        plan = plan_pooled(30, epsilon=0.5, records=records)
        assert plan.shares == (ONE if noise > 0.12 else TWO)


def test_more_noise_for_units_and_for_replacing():
    shapes = {"unit": Unit("patient", max_contributions=5), "relation": "replace-one"}
    assert plan_pooled(30, epsilon=0.5, records=900).shares == TWO
    for name, value in shapes.items():
        assert plan_pooled(30, epsilon=0.5, records=500, **{name: value}).shares == ONE


def test_a_narrow_range_needs_no_second_gap():
    assert plan_pooled(50, epsilon=1.0, temperatures=(2.0, 2.8)).shares == ONE


def test_what_it_expects_is_what_happens():
    """Mean distance between confidence and accuracy, by simulation with the noise alone."""
    scores = miscalibrated(4_000, 2.5, np.random.default_rng(0))
    plan = plan_pooled(100, epsilon=1.0, records=4_000, classes=2)
    off = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        source = SimulatedSources(scores, np.arange(4_000) % 100, micro_epsilon=10**6, rng=rng)
        result = PooledTemperature(epsilon=1.0, shares=plan.shares).fit(source)
        mapped = result.transform(scores)
        off.append(abs(float(mapped.confidence.mean() - mapped.correct.mean())))
    assert np.mean(off) == pytest.approx(plan.gap_error, rel=0.35)


def test_the_method_by_name_takes_the_plan():
    few, many = (
        METHODS["pooled"].fitter(MethodSettings(10**5, size=size, sources=50, classes=2))
        for size in (1_000, 100_000)
    )
    assert (few.shares, many.shares) == (ONE, TWO)


def test_the_advice_is_given_in_words():
    plan = plan_pooled(50, epsilon=1.0, records=1_500)
    assert "Query 50 sources 3 times" in plan.text() and "10 : 30 : 60" in plan.text()
    assert "Declare the number of records" in plan_pooled(50, epsilon=1.0).text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"sources": 0},
        {"records": 0},
        {"temperatures": (6.0, 0.5)},
        {"epsilon": None},
        {"epsilon": -1.0},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    settings = {"sources": 5, "epsilon": 1.0, **wrong}
    with pytest.raises(ValueError, match="Expected"):
        plan_pooled(settings.pop("sources"), **settings)
