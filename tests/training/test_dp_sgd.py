"""From a budget to a DP-SGD run: noise, length and cost."""

from dataclasses import replace

import pytest

from veracal.accounting import (
    Budget,
    Composed,
    Gaussian,
    PoissonGaussian,
    Repeated,
    Unit,
    epsilon_for,
)
from veracal.mechanisms import (
    SGD,
    Automatic,
    Exponential,
    Flat,
    FullBatch,
    GlobalAdapt,
    Langevin,
    Poisson,
)
from veracal.training.dp_sgd import TrainingSpec, max_steps

GOAL = TrainingSpec(
    1.0, 1e-5, None, None, 5, 0.1, Flat(1.0), SGD(1.0), 0.0, "add-remove", Unit()
)


def test_computed_noise_spends_nearly_all_of_epsilon() -> None:
    descent = GOAL.dp_sgd(100.0)
    assert descent.sampler == Poisson(0.1) and descent.steps == 50
    assert 0.995 < epsilon_for(descent.event(), 1e-5) <= 1.0


def test_adaptive_clipping_counts_are_paid_from_the_same_epsilon() -> None:
    plain, adaptive = GOAL.dp_sgd(100.0), replace(GOAL, clip=GlobalAdapt(1.0)).dp_sgd(100.0)
    assert adaptive.noise_multiplier > plain.noise_multiplier
    assert 0.99 < epsilon_for(adaptive.event(), 1e-5) <= 1.0


def test_computed_noise_depends_on_relation_and_unit() -> None:
    noises = [
        replace(GOAL, **changes).dp_sgd(100.0).noise_multiplier
        for changes in ({}, {"relation": "replace-one"}, {"unit": Unit("patient", 2)})
    ]
    assert noises[0] < noises[1] < noises[2]


def test_all_records_at_once_are_a_full_batch() -> None:
    descent = replace(GOAL, rate=1.0, relation="replace-one").dp_sgd(100.0)
    assert descent.sampler == FullBatch() and descent.steps == 5
    event = descent.event()
    assert isinstance(event, Repeated) and isinstance(event.event, Gaussian)
    assert event.event.sensitivity == 2.0


def test_given_noise_and_length_determine_the_cost() -> None:
    goal = replace(GOAL, epsilon=None, noise_multiplier=2.0, epochs=None, steps=30)
    assert goal.dp_sgd(100.0).event() == Repeated(PoissonGaussian(2.0, rate=0.1), 30)


def test_given_noise_and_budget_determine_the_length() -> None:
    goal = replace(GOAL, noise_multiplier=2.0, epochs=None)
    descent = goal.dp_sgd(100.0)
    longer = replace(descent, steps=descent.steps + 1)
    assert epsilon_for(descent.event(), 1e-5) <= 1.0 < epsilon_for(longer.event(), 1e-5)


def test_langevin_ends_when_the_budget_is_spent_and_is_charged_step_by_step() -> None:
    optimizer = Langevin(Exponential(0.005, 0.028, every=10), temperature=6.08)
    goal = replace(GOAL, epochs=None, optimizer=optimizer)
    descent = goal.dp_sgd(20.0)
    event = descent.event()
    assert isinstance(event, Composed) and len(event.events) > 3
    assert sum(part.times for part in event.events) == descent.steps
    multipliers = descent.noise_multipliers()
    assert multipliers[0] == pytest.approx(20 * (2 * 0.005 * 6.08) ** 0.5)
    assert multipliers[-1] < multipliers[0]
    longer = replace(descent, steps=descent.steps + 1)
    assert epsilon_for(event, 1e-5) <= 1.0 < epsilon_for(longer.event(), 1e-5)


def test_only_langevin_depends_on_the_batch_size() -> None:
    assert GOAL.dp_sgd(100.0).event() == GOAL.dp_sgd(7.0).event()
    goal = replace(
        GOAL, epsilon=None, optimizer=Langevin(0.005, temperature=6.08), epochs=None, steps=3
    )
    assert goal.dp_sgd(100.0).event() != goal.dp_sgd(7.0).event()


def test_computed_noise_is_cached(monkeypatch) -> None:
    goal = replace(GOAL, clip=Automatic(0.123))
    first = goal.dp_sgd(100.0).noise_multiplier
    monkeypatch.setattr("veracal.training.dp_sgd.noise_for", None)
    assert replace(goal, weight_decay=0.1).dp_sgd(50.0).noise_multiplier == first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": None}, "epsilon, noise_multiplier or both, got neither"),
        ({"epsilon": 0.0}, "finite epsilon > 0"),
        ({"epsilon": -1.0}, "finite epsilon > 0"),
        ({"delta": 0.0}, "finite delta > 0"),
        ({"delta": 1.0}, "delta below 1"),
        ({"steps": 3}, "steps or epochs, got both"),
        ({"steps": 0, "epochs": None}, "integer steps >= 1"),
        ({"epochs": 0}, "finite epochs > 0"),
        ({"rate": 0.0}, "sampling_rate > 0"),
        ({"rate": 1.5}, "sampling_rate between 0 and 1"),
        ({"noise_multiplier": 1.0}, "the run ends when the budget is spent"),
        (
            {"optimizer": Langevin(0.1, temperature=1.0)},
            "the run ends when the budget is spent",
        ),
    ],
)
def test_invalid_settings_are_rejected(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GOAL, **changes)


def test_too_many_steps_are_rejected() -> None:
    with pytest.raises(ValueError, match="at most 10,000,000 steps"):
        replace(GOAL, rate=1e-8).length()


def test_a_budget_that_pays_for_no_step_is_rejected() -> None:
    with pytest.raises(ValueError, match="pays for one step"):
        replace(GOAL, noise_multiplier=0.01, epochs=None).dp_sgd(100.0)


def test_a_budget_for_too_many_steps_is_rejected() -> None:
    event = Gaussian(1.0)
    with pytest.raises(ValueError, match="ends within"):
        max_steps(Budget(10.0, 1e-5), lambda steps: event)
