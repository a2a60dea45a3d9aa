"""Nothing is charged if a ledger cannot pay for all queries."""

import numpy as np
import pytest
from sklearn.base import clone

from tests.calibration.private.conftest import miscalibrated
from veracal.accounting import Budget
from veracal.calibration import (
    PrivateBinning,
    PrivatePlatt,
    PrivateTemperature,
    PrivateTwoTemperatures,
    ece,
    measure_private,
)
from veracal.errors import BudgetError
from veracal.queries import Pool

FITTERS = [
    PrivateTemperature(epsilon=0.9),
    PrivateTwoTemperatures(epsilon=0.9),
    PrivateBinning(epsilon=0.9),
]


@pytest.mark.parametrize("fitter", FITTERS, ids=lambda fitter: type(fitter).__name__)
def test_a_fit_that_is_too_dear_costs_nothing(fitter, holder, rng):
    source = holder(miscalibrated(300, 2.0, rng), Budget(0.6))
    with pytest.raises(BudgetError, match="no record was read"):
        clone(fitter).fit(source)
    with pytest.raises(BudgetError):
        clone(fitter).fit(source, request="mine")
    assert source.ledger.entries() == ()


def test_a_measurement_that_is_too_dear_costs_nothing(holder, rng):
    source = holder(miscalibrated(300, 2.0, rng), Budget(0.6))
    with pytest.raises(BudgetError):
        measure_private(source, epsilon=0.9)
    assert source.ledger.entries() == ()


def test_a_pool_of_which_one_cannot_pay_charges_none(holder, rng):
    rich, poor = (holder(miscalibrated(300, 2.0, rng), Budget(b)) for b in (1.0, 0.3))
    with pytest.raises(BudgetError):
        PrivateTemperature(epsilon=0.5).fit(Pool([rich, poor]))
    assert rich.ledger.entries() == poor.ledger.entries() == ()


def test_a_descent_that_was_not_planned_costs_nothing(holder, rng):
    planned = PrivatePlatt("scalar", epsilon=1.0, delta=1e-5, classes=2, size=300, steps=3)
    source = holder(
        miscalibrated(300, 2.0, rng), Budget(1.0, 1e-5), kind="plan", plan=planned.items()
    )
    with pytest.raises(BudgetError):
        clone(planned).set_params(epsilon=0.9).fit(source)
    assert source.ledger.entries() == ()
    assert clone(planned).fit(source).private_


@pytest.mark.parametrize("request_id", [None, "mine"])
def test_what_was_paid_for_before_it_broke_off_counts(holder, rng, request_id):
    source = holder(miscalibrated(300, 2.0, rng), Budget(0.9))
    first = PrivateTwoTemperatures(epsilon=0.9).fit(source, request=request_id)
    again = PrivateTwoTemperatures(epsilon=0.9).fit(source, request=request_id)
    assert again.map_ == first.map_ and source.ledger.remaining().epsilon < 1e-5


def test_the_same_queries_under_another_id_are_charged_again(holder, rng):
    source = holder(miscalibrated(300, 2.0, rng), Budget(1.5))
    PrivateTemperature(epsilon=0.9).fit(source, request="one")
    entries = source.ledger.entries()
    with pytest.raises(BudgetError):
        PrivateTemperature(epsilon=0.9).fit(source, request="two")
    assert source.ledger.entries() == entries


def test_mapped_scores_are_other_records_to_the_ledger(holder, rng):
    """Measure, recalibrate, measure again: the usual order, without a name or a version."""
    scores = miscalibrated(4_000, 3.0, rng)
    source = holder(scores, Budget(30.0))
    before = measure_private(source, epsilon=10.0).overall.ece.value
    map_ = PrivateTemperature(epsilon=5.0).fit(source).map_
    mapped = map_.transform(scores)
    other = type(source)(mapped, source.ledger)
    after = measure_private(other, epsilon=10.0).overall.ece.value
    assert before == pytest.approx(ece(scores), abs=0.02)
    assert after == pytest.approx(ece(mapped), abs=0.02) and after < before / 3
    assert mapped.name.startswith("scores, temperature ")
    assert map_.transform(scores).name == mapped.name
    assert np.array_equal(mapped.labels, scores.labels)
