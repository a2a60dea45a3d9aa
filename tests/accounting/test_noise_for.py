"""The noise for a budget is sufficient and nearly minimal."""

import math

import pytest

from veracal.accounting.epsilon import epsilon_for, noise_for
from veracal.accounting.events import (
    Budget,
    Composed,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    Repeated,
    Unit,
)
from veracal.mechanisms.sampling import plan_training


def batches(rate, times, relation="add-remove"):
    return lambda noise: Repeated(PoissonGaussian(noise, 1.0, relation, rate), times)


def decaying(noise):
    return Composed(
        tuple(
            Repeated(PoissonGaussian(noise * math.exp(-0.05 * i), rate=0.01), 50)
            for i in range(6)
        )
    )


@pytest.mark.parametrize(
    ("budget", "release"),
    [
        (Budget(1.0, 1e-5), batches(0.01, 1000)),
        (Budget(0.1, 1e-6), batches(0.1, 100)),
        (Budget(20.0, 1e-5), batches(0.004, 14062)),
        (Budget(1.0, 1e-5, "replace-one"), batches(0.01, 100, "replace-one")),
        (Budget(1.0, 1e-5, unit=Unit("patient", 3)), batches(0.01, 100)),
        (Budget(8.0, 1e-4), lambda noise: Repeated(Gaussian(noise), 100)),
        (Budget(1.0), lambda noise: Repeated(Laplace(noise), 6)),
        (Budget(0.5), lambda noise: DiscreteLaplace(noise, 7)),
        (Budget(1.0, 1e-5), decaying),
        (  # where a coarser grid of losses came out below the finest
            Budget(12.44698004752253, 7.733309080711013e-07, "replace-one"),
            batches(0.009921488415605155, 2, "replace-one"),
        ),
    ],
)
def test_noise_is_the_smallest_within_the_budget(budget, release):
    noise = noise_for(budget, release)
    assert epsilon_for(release(noise), budget.delta, budget.unit) <= budget.epsilon
    less = noise * (1 - 1e-3)
    assert epsilon_for(release(less), budget.delta, budget.unit) > budget.epsilon


def test_published_noise_of_a_recalibration():
    # n = 5000, 100 full-batch steps, epsilon 8: mu = 1.828, a multiplier of 5.47.
    noise = noise_for(Budget(8.0, 5000**-1.1), lambda noise: Repeated(Gaussian(noise), 100))
    assert noise == pytest.approx(5.47, rel=2e-3)


def test_a_budget_without_delta_has_no_gaussian_noise():
    with pytest.raises(ValueError, match="Allow a larger delta"):
        noise_for(Budget(1.0), Gaussian)


def test_a_cost_independent_of_the_noise_raises():
    with pytest.raises(ValueError, match="cost decreases with the noise"):
        noise_for(Budget(1.0), lambda noise: Pure(0.1))
    with pytest.raises(ValueError, match="some noise can meet"):
        noise_for(Budget(1.0), lambda noise: Pure(2.0))


def test_events_and_budget_share_a_relation():
    with pytest.raises(ValueError, match="Expected events under replace-one"):
        noise_for(Budget(1.0, 1e-5, "replace-one"), Gaussian)


# ---------------------------------------------------------------- plans


def test_a_plan_is_within_its_budget():
    plan = plan_training(records=10_000, batch=100, steps=200, delta=1e-5, epsilon=2.0)
    assert plan.rate == 0.01 and plan.passes == 2
    assert plan.statement.epsilon <= 2.0
    assert plan.statement.epsilon == epsilon_for(plan.event, 1e-5)
    again = plan_training(
        records=10_000, batch=100, steps=200, delta=1e-5, noise_multiplier=plan.noise_multiplier
    )
    assert again.event == plan.event


def test_full_batches_are_not_sampled():
    plan = plan_training(records=50, batch=50, steps=10, delta=1e-5, noise_multiplier=5.0)
    assert plan.event == Repeated(Gaussian(5.0), 10)
    assert plan.statement.epsilon_without_poisson is None


def test_decaying_noise_is_charged_by_level():
    plan = plan_training(
        records=1000, batch=100, steps=30, delta=1e-5, noise_multiplier=2.0, decay=0.1
    )
    parts = sorted(plan.event.events, key=lambda part: part.event.noise)
    assert [part.times for part in parts] == [10, 10, 10]
    assert [p.event.noise for p in parts] == pytest.approx(
        [2 * math.exp(-0.2), 2 * math.exp(-0.1), 2.0]
    )


def test_many_steps_need_no_memory():
    plan = plan_training(records=10**6, batch=1, steps=10**9, delta=1e-5, noise_multiplier=50.0)
    assert plan.event == Repeated(PoissonGaussian(50.0, rate=1e-6), 10**9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"records": 0}, "records"),
        ({"batch": 2000}, "batch <= records"),
        ({"steps": 0}, "steps"),
        ({"delta": 0.0}, "delta"),
        ({"epsilon": None}, "got neither"),
        ({"noise_multiplier": 1.0}, "got both"),
        ({"steps": 10**10}, "at most 1,000,000,000 steps"),
        ({"steps": 10**8, "decay": 0.1}, "at most 10,000,000 steps"),
    ],
)
def test_impossible_plans_are_rejected(wrong, message):
    settings = {"records": 1000, "batch": 10, "steps": 5, "delta": 1e-5, "epsilon": 1.0}
    with pytest.raises(ValueError, match=message):
        plan_training(**settings | wrong)
