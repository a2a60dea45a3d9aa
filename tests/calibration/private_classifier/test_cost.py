"""A classifier and its map are charged as one, before a record is read."""

import numpy as np
import pytest
from sklearn.base import clone

from tests.calibration.private_classifier.sample_classifiers import (
    DATA,
    FITS,
    PublicWeights,
    calibrated,
    training,
)
from veracal.accounting import Budget, Composed, Parallel, Statement, epsilon_for
from veracal.calibration import Identity, PrivateTemperature, guard_event
from veracal.calibration import private_classifier as module
from veracal.calibration.private_classifier import Guard
from veracal.errors import BudgetError
from veracal.ledger import Item, open_ledger
from veracal.queries import Curator
from veracal.training import NormClipper, ObjectivePerturbation, make_private_pipeline


def test_reuse_costs_the_composition_of_training_and_map() -> None:
    model = calibrated(training(), method=PrivateTemperature(epsilon=0.05))
    parts = (training().event(), PrivateTemperature(epsilon=0.05).event())
    assert model.event() == Composed(parts)
    assert epsilon_for(model.event(), 1e-5) > epsilon_for(parts[0], 1e-5)


def test_split_costs_the_larger_of_its_parts() -> None:
    model = calibrated(training(), method=PrivateTemperature(epsilon=0.8), recalibrate="split")
    parts = (training().event(), PrivateTemperature(epsilon=0.8).event())
    assert model.event() == Parallel(parts)
    each = [epsilon_for(part, 1e-5) for part in parts]
    assert epsilon_for(model.event(), 1e-5) == pytest.approx(max(each))


@pytest.mark.parametrize("how", ["reuse", "split"])
def test_a_guard_is_charged_whether_or_not_it_keeps_the_map(how) -> None:
    plain = calibrated(recalibrate=how).event()
    guarded = calibrated(recalibrate=how, guard=Guard(0.3)).event()
    assert guarded.events == (*plain.events, guard_event(Identity(), epsilon=0.3))
    for steep in (0.1, 2.0, 50.0):  # calibrated or not
        model = calibrated(PublicWeights(steep=steep), recalibrate=how, guard=Guard(0.3))
        assert model.fit_records(DATA).event_ == guarded


@pytest.mark.parametrize(
    ("estimator", "level", "delta"),
    [
        (training(), None, 1e-5),
        (training(), "epsilon", 1e-5),
        (ObjectivePerturbation(norm=2.0), None, 0.0),
        (
            make_private_pipeline(NormClipper(1.0), training()),
            "privatelogisticregression__noise_multiplier",
            1e-5,
        ),
    ],
    ids=["noise", "epsilon", "pure", "pipeline"],
)
@pytest.mark.parametrize("how", ["reuse", "split"])
def test_a_total_is_met(estimator, level, delta, how) -> None:
    model = calibrated(
        estimator, epsilon=2.0, delta=delta, noise_parameter=level, share=0.1, recalibrate=how
    )
    cost = epsilon_for(model.event(), delta)
    assert 2.0 * 0.99 < cost <= 2.0
    if how == "reuse":
        spent = epsilon_for(model.event().events[1], 0.0)
        assert spent == pytest.approx(0.2, rel=1e-4)


def test_a_total_is_shared_by_map_and_guard() -> None:
    both = calibrated(epsilon=2.0, share=0.1, guard=Guard()).event()
    assert [epsilon_for(event, 0.0) for event in both.events[1:]] == pytest.approx([0.1, 0.1])
    assert 1.98 < epsilon_for(both, 1e-5) <= 2.0
    separate = calibrated(epsilon=2.0, guard=Guard(), recalibrate="split").event()
    assert [epsilon_for(event, 0.0) for event in separate.events[1:]] == pytest.approx(
        [2.0, 2.0]
    )


def test_without_a_share_the_planner_chooses_it() -> None:
    spent = []
    for size in (1_000, 100_000):
        model = calibrated(epsilon=3.0, delta=1e-6, size=size, classes=["no", "yes"])
        spent.append(model._budget_share())
        plan = module.plan_temperatures(size, 2, Budget(3.0, 1e-6))
        cost = epsilon_for(model.event().events[1], 0.0)
        assert cost == pytest.approx(plan.share * 3.0, rel=1e-3)
    assert spent[1] <= 0.02 < spent[0]


def test_the_cost_does_not_depend_on_records() -> None:
    for how in ("reuse", "split"):
        model = calibrated(recalibrate=how, guard=Guard())
        before = model.event()
        for records in (DATA, DATA.take(np.arange(7)), DATA.take(np.arange(0))):
            assert clone(model).fit_records(records).event_ == before


def test_a_holder_charges_first_and_exactly_that(tmp_path, queried_scores) -> None:
    model = calibrated(guard=Guard())
    event = model.event()
    budget = Budget(epsilon_for(event, 1e-5) + 1e-6, 1e-5)
    ledger = open_ledger(tmp_path / "a", budget, kind="plan", plan=[Item("training", event)])
    holder = Curator(DATA, ledger)
    fitted = holder.fit(model)
    assert fitted.private_ and fitted.event_ == event
    assert isinstance(fitted.statement_, Statement)
    assert len(fitted.statement_.covers) == 3
    FITS.clear()
    with pytest.raises(BudgetError):
        holder.fit(clone(model))
    assert not FITS
