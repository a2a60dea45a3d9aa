"""Every method by name, private and not, and fitters of one's own."""

import pytest

from tests.calibration.recalibration.conftest import N, spent
from veracal.accounting import Budget
from veracal.calibration import IsotonicCalibration, PlattScaling, metrics, recalibrate
from veracal.calibration.maps import Identity
from veracal.calibration.methods import METHODS, method_names
from veracal.calibration.private import PrivateTemperature

GAUSSIAN = {"delta": 1e-6, "size": N, "classes": 2}


@pytest.mark.parametrize(
    "name", [name for name in method_names() if name not in ("descent", "platt")]
)
def test_every_method_keeps_the_budget_and_states_what_was_paid(holders, name):
    sources = holders(2)
    found = recalibrate(sources, name, epsilon=0.9, measure=0.2, classes=2)
    paid = spent(sources)
    assert paid[0] == paid[1] <= 0.9
    if name == "none":
        assert paid[0] == 0 and found.map == Identity() and found.statement is None
        return
    assert found.statement.epsilon == pytest.approx(paid[0], abs=1e-9)
    assert paid[0] == pytest.approx(0.9, abs=2e-5) or not found.guard.kept
    assert sum(r.micro_epsilon for r in found.releases) == round(paid[0] * 1e6)
    assert found.method != "auto" and found.method in found.text()


@pytest.mark.long
@pytest.mark.parametrize("name", ["descent", "platt"])
def test_methods_with_gaussian_noise_keep_the_total_with_everything_beside_them(holders, name):
    (source,) = holders(1, Budget(3.0, 1e-6), kind="open")
    found = recalibrate(source, name, epsilon=2.0, guard=0.2, measure=None, **GAUSSIAN)
    assert found.statement.delta == 1e-6 and 1.9 < found.statement.epsilon <= 2.0
    assert "at delta" in found.text() and found.budget.total <= 2_000_000
    assert (found.temperature is not None) == (name == "descent")
    assert ("noise of the answers alone" in found.text()) == (name == "descent")


@pytest.mark.parametrize(
    "name", [name for name in method_names(private=False) if name not in ("none", "descent")]
)
def test_every_method_without_privacy(scores, name):
    found = recalibrate(scores, name, private=False)
    assert not found.private and found.statement is None
    assert metrics.ece(found.transform(scores)) < metrics.ece(scores) / 2
    assert found.after.ece.value == pytest.approx(
        metrics.ece(found.transform(scores)), abs=1e-4
    )


def test_public_records_are_read_directly_where_asking_takes_a_delta(scores):
    for name, fitter in (
        ("platt", PlattScaling("vector")),
        ("isotonic", IsotonicCalibration()),
    ):
        found = recalibrate(scores, name, private=False, guard=None, measure=None)
        assert found.map == fitter.fit(scores).map_ and found.releases == ()
        assert not found.private and "NOT private" in found.text()


def test_a_fitter_of_ones_own_is_used_but_for_its_price(holders):
    sources = holders(2)
    own = PrivateTemperature(epsilon=77.0, inverses=(0.1, 0.2))
    found = recalibrate(sources, own, epsilon=0.5)
    assert found.method == "PrivateTemperature" and 5 <= found.temperature.value <= 10
    assert spent(sources) == pytest.approx([0.5, 0.5], abs=1e-5)
    assert own.epsilon == 77.0 and not hasattr(own, "map_")


def test_the_range_of_temperatures_is_the_one_that_was_declared(holders):
    found = recalibrate(
        holders(1)[0], "temperature", epsilon=1.0, temperatures=(0.5, 2.0), guard=None
    )
    assert 1.8 < found.temperature.value <= 2.0 + 1e-9


def test_every_entry_says_what_it_is():
    for name, method in METHODS.items():
        assert name == method.name and method.summary and (method.private or method.public)
