"""Figures are queried if the budget suffices for them."""

import math
from dataclasses import replace

import pytest

from tests.calibration.recalibration.conftest import FACTOR, N, spent
from veracal.accounting import Budget, Unit
from veracal.calibration import metrics, recalibrate
from veracal.calibration.recalibration.sources import SourceProfile, measure_share


def test_counts_that_the_map_keeps_are_queried_once(holders):
    def names(method):
        source = holders(1)[0]
        result = recalibrate(source, method, epsilon=1.0, measure=0.5, guard=None)
        return [release.query for release in result.releases]

    assert names("temperature") == [
        "correct and wrong", "gap", "gap", "gap", "absolute gaps by bin",
        "absolute gaps by bin, mapped",
    ]  # fmt: skip
    assert names("binning") == [
        "correct and wrong by bin", "correct and wrong", "absolute gaps by bin",
        "correct and wrong, mapped", "absolute gaps by bin, mapped",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "size", "epsilon", "on"),
    [
        (1, N, 1.0, True),
        (1, 500, 1.0, False),
        (1, None, 9.0, False),
        (2, 40_000, 1.0, True),
    ],
)
def test_figures_are_measured_where_the_budget_has_room(holders, count, size, epsilon, on):
    sources = holders(count, Budget(10.0))
    result = recalibrate(sources if count > 1 else sources[0], epsilon=epsilon, size=size)
    assert (result.before is not None) == on == (result.after is not None)
    assert (result.budget.measure > 0) == on
    assert result.budget.total == epsilon * 1e6 >= max(spent(sources)) * 1e6 - 1e-6
    assert ("No figures" in result.text()) != on


def test_the_rule_for_figures_is_about_noise_that_can_be_computed():
    """A quarter of the budget must bring the mean absolute noise to 0.02: written out."""
    one = SourceProfile(1, "add-remove", Unit(), sums_only=False, exact=False)
    many = SourceProfile(50, "replace-one", Unit("patient", 2), sums_only=True, exact=False)
    for queried, size, bins in ((one, 600, 15), (many, 250_000, 15), (many, 600, 10)):
        for epsilon in (0.3, 1.0, 4.0):
            paid = 0.25 * epsilon / 3  # for each calibration error
            scale = (1 if queried is one else 2 * 2) / paid
            noise = scale if queried is one else bins * math.sqrt(2 / math.pi * 2 * 50) * scale
            share = measure_share(epsilon, queried, size, bins)
            assert (share > 0) == (noise / size <= 0.02)
            assert share <= 0.25 and (share == 0.25 or share == 0 or noise / size < 0.005)
    assert measure_share(99.0, one, None, 15) == 0
    assert measure_share(99.0, replace(one, exact=True), None, 15) == 0.25


def test_no_figures_unless_requested(holders):
    result = recalibrate(holders(1, Budget(10.0))[0], epsilon=9.0, size=N, measure=None)
    assert result.before is result.after is None and result.budget.measure == 0


def test_figures_are_those_of_the_records(holders, scores):
    result = recalibrate(holders(1, Budget(90.0))[0], epsilon=90.0, measure=0.25)
    for side, these in ((result.before, scores), (result.after, result.transform(scores))):
        assert side.accuracy.value == pytest.approx(metrics.accuracy(these), abs=0.002)
        assert side.ece.value == pytest.approx(metrics.ece(these), abs=0.005)
    assert result.before.ece.value > 0.1 > 0.05 > result.after.ece.value
    assert result.temperature.low < FACTOR < result.temperature.high
