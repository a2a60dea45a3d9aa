"""Every method by name, private and not, and custom fitters."""

import pytest

from tests.calibration.recalibration.conftest import N, spent
from veracal import calibration
from veracal.accounting import Budget
from veracal.calibration import (
    Identity,
    IsotonicCalibration,
    PlattScaling,
    PrivateTemperature,
    recalibrate,
)
from veracal.calibration.methods import METHODS, method_names

GAUSSIAN = {"delta": 1e-6, "size": N, "classes": 2}


@pytest.mark.parametrize(
    "name", [name for name in method_names() if name not in ("descent", "platt")]
)
def test_every_method_keeps_the_budget_and_states_what_was_paid(holders, name):
    sources = holders(2)
    result = recalibrate(sources, name, epsilon=0.9, measure=0.2, classes=2)
    paid = spent(sources)
    assert paid[0] == paid[1] <= 0.9
    if name == "none":
        assert paid[0] == 0 and result.map == Identity() and result.statement is None
        return
    assert result.statement.epsilon == pytest.approx(paid[0], abs=1e-9)
    assert paid[0] == pytest.approx(0.9, abs=2e-5) or not result.guard.kept
    assert sum(r.micro_epsilon for r in result.releases) == round(paid[0] * 1e6)
    assert result.method != "auto" and result.method in result.text()


@pytest.mark.long
@pytest.mark.parametrize("name", ["descent", "platt"])
def test_methods_with_gaussian_noise_keep_the_total_with_everything_beside_them(holders, name):
    (source,) = holders(1, Budget(3.0, 1e-6), kind="open")
    result = recalibrate(source, name, epsilon=2.0, guard=0.2, measure=None, **GAUSSIAN)
    assert result.statement.delta == 1e-6 and 1.9 < result.statement.epsilon <= 2.0
    assert "at delta" in result.text() and result.budget.total <= 2_000_000
    assert (result.temperature is not None) == (name == "descent")
    assert ("noise of the answers alone" in result.text()) == (name == "descent")


@pytest.mark.parametrize(
    "name", [name for name in method_names(private=False) if name not in ("none", "descent")]
)
def test_every_method_without_privacy(scores, name):
    result = recalibrate(scores, name, private=False)
    assert not result.private and result.statement is None
    assert calibration.ece(result.transform(scores)) < calibration.ece(scores) / 2
    assert result.after.ece.value == pytest.approx(
        calibration.ece(result.transform(scores)), abs=1e-4
    )


def test_public_records_are_read_directly_where_asking_takes_a_delta(scores):
    for name, fitter in (
        ("platt", PlattScaling("vector")),
        ("isotonic", IsotonicCalibration()),
    ):
        result = recalibrate(scores, name, private=False, guard=None, measure=None)
        assert result.map == fitter.fit(scores).map_ and result.releases == ()
        assert not result.private and "NOT private" in result.text()


def test_a_fitter_of_ones_own_is_used_but_for_its_price(holders):
    sources = holders(2)
    own = PrivateTemperature(epsilon=77.0, temperatures=(5.0, 10.0))
    result = recalibrate(sources, own, epsilon=0.5)
    assert result.method == "PrivateTemperature" and 5 <= result.temperature.value <= 10
    assert spent(sources) == pytest.approx([0.5, 0.5], abs=1e-5)
    assert own.epsilon == 77.0 and not hasattr(own, "map_")


def test_the_range_of_temperatures_is_the_one_that_was_declared(holders):
    result = recalibrate(
        holders(1)[0], "temperature", epsilon=1.0, temperatures=(0.5, 2.0), guard=None
    )
    assert 1.8 < result.temperature.value <= 2.0 + 1e-9


def test_every_entry_says_what_it_is():
    for name, method in METHODS.items():
        assert name == method.name and method.summary and (method.private or method.public)
