"""The default map of a calibrated classifier depends on its settings alone."""

import numpy as np
import pytest

from veracal.accounting import Budget
from veracal.calibration import (
    Guard,
    PrivateCalibratedClassifier,
    PrivateTemperature,
    PrivateTwoTemperatures,
)
from veracal.data import Dataset
from veracal.ledger import Item, open_ledger
from veracal.queries import Curator
from veracal.training import PrivateLogisticRegression


@pytest.fixture(scope="module")
def data() -> Dataset:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_000, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-9)
    y = (X[:, 0] + 0.3 * rng.normal(size=len(X)) > 0).astype(int)
    return Dataset(X, y, classes=(0, 1), norm=1.0, size=2_000, name="made")


def model(**settings) -> PrivateCalibratedClassifier:
    inner = PrivateLogisticRegression(noise_multiplier=2.0, epochs=2)
    observed = {"epsilon": 8.0, "delta": 1e-5, "share": 0.1, "classes": (0, 1), **settings}
    return PrivateCalibratedClassifier(inner, **observed)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"size": 2_000}, "two temperatures"),  # 2,000 × 0.8 = 1,600
        ({"size": 1_800}, "temperature"),
        ({}, "temperature"),  # though the data set has a size
        ({"size": 2_000, "share": 0.09}, "temperature"),
        ({"size": 2_000, "recalibrate": "split"}, "two temperatures"),  # 200 × 8
        ({"size": 2_000, "recalibrate": "split", "holdout": 0.05}, "temperature"),
        ({"size": 2_000, "recalibrate": "split", "epsilon": 7.0}, "temperature"),
    ],
)
def test_two_temperatures_where_the_declared_size_is_enough(data, settings, kind):
    fitted = model(**settings).fit_records(data)
    assert fitted.map_.kind == kind
    assert fitted.event_ == fitted.event()


def test_a_guard_takes_half_of_the_share_and_so_of_what_is_enough(data):
    observed = model(size=2_000, guard=Guard())  # 2,000 × 0.4 = 800, below 1,500
    assert observed.event().events[1] == PrivateTemperature(epsilon=0.4, classes=2).event()
    fitted = observed.fit_records(data)
    assert fitted.event_ == observed.event() and fitted.map_.kind != "two temperatures"
    larger = model(size=2_000, guard=Guard(), share=0.2).event().events[1]
    assert larger == PrivateTwoTemperatures(epsilon=0.8, classes=2).event()


def test_a_size_that_only_the_data_set_declares_changes_no_cost(data, tmp_path):
    """A holder charges before it names the data set; its fit must cost what was charged."""
    observed = model()
    before = observed.event()
    plan = [Item("training", before, 1)]
    ledger = open_ledger(tmp_path / "ledger", Budget(8.0, 1e-5), kind="plan", plan=plan)
    fitted = Curator(data, ledger).fit(observed)
    assert fitted.event_ == before and fitted.map_.kind == "temperature"
    assert fitted.private_
