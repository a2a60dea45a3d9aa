"""Schedules are what they say, and levels never promise more noise than there is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veracal.mechanisms.optimizers import (
    Exponential,
    Linear,
    group_noise_levels,
    value_at,
    values,
)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Exponential(2.0, decay=0.1), [2 * math.exp(-0.1 * t) for t in range(5)]),
        (
            Exponential(1.5, decay=0.02, every=2),
            [1.5 * math.exp(-0.02 * e) for e in (0, 0, 1, 1, 2)],
        ),
        (Exponential(1.0, decay=-1.0), [math.exp(t) for t in range(5)]),
        (Linear(1.0, 0.0, steps=5), [1, 0.8, 0.6, 0.4, 0.2]),
        (Linear(1.0, 3.0, steps=2), [1, 2, 3, 3, 3]),
    ],
)
def test_values_equal_their_definition(schedule, expected) -> None:
    np.testing.assert_allclose(schedule.values(5), expected, rtol=1e-14)
    assert [schedule.at(t) for t in range(5)] == schedule.values(5).tolist()
    assert [value_at(schedule, t) for t in range(5)] == values(schedule, 5).tolist()


def test_a_number_is_a_constant_schedule() -> None:
    assert values(0.25, 3).tolist() == [0.25] * 3
    assert value_at(1, 7) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Exponential(0.0, 0.1),
        lambda: Exponential(math.nan, 0.1),
        lambda: Exponential(-1.0, 0.1),
        lambda: Exponential(1.0, math.inf),
        lambda: Exponential(1.0, 0.1, every=0),
        lambda: Linear(1.0, -1.0, steps=3),
        lambda: Linear(1.0, 0.0, steps=0),
    ],
)
def test_schedules_reject_invalid_values(wrong) -> None:
    with pytest.raises(ValueError, match="Expected"):
        wrong()


multipliers = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=300)


@given(multipliers, st.integers(1, 70))
def test_levels_count_every_step_once_with_at_most_its_noise(noise, most) -> None:
    grouped = group_noise_levels(noise, most)
    assert len(grouped) <= most and sum(count for _, count in grouped) == len(noise)
    assert [m for m, _ in grouped] == sorted({m for m, _ in grouped})
    charged = np.repeat([m for m, _ in grouped], [count for _, count in grouped])
    # Sorted against sorted: each step finds a level that is no higher than itself.
    assert (charged <= np.sort(noise)).all()
    assert grouped[0][0] == min(noise)  # and the lowest is not lower than it need be
    assert {m for m, _ in grouped} <= set(noise)


@given(st.lists(st.sampled_from([0.5, 1.0, 1.5, 7.0]), min_size=1))
def test_few_distinct_values_stay_exact(noise) -> None:
    assert group_noise_levels(noise) == tuple((m, noise.count(m)) for m in sorted(set(noise)))


@pytest.mark.parametrize(
    "noise",
    [
        Exponential(1.5, 0.002).values(400),
        Exponential(5.0, 0.001).values(2_000),
        Exponential(0.5, -0.01).values(1_000),
        Linear(1.0, 4.0, steps=1_000).values(1_000),
        np.random.default_rng(0).uniform(0.8, 30.0, 5_000),
    ],
    ids=["decays", "decays slowly", "grows", "linear", "random"],
)
def test_levels_cost_at_least_and_hardly_more_than_the_steps(noise) -> None:
    grouped = group_noise_levels(noise)
    assert len(grouped) <= 64
    for cost in (lambda s: s**-2.0, lambda s: np.expm1(s**-2.0)):
        exact = cost(np.asarray(noise)).sum()
        charged = sum(count * cost(m) for m, count in grouped)
        assert exact <= charged * (1 + 1e-12) and charged <= 1.05 * exact


@pytest.mark.parametrize("noise", [[], [0.0, 1.0], [-1.0], [math.nan], [math.inf]])
def test_levels_reject_steps_without_noise(noise) -> None:
    with pytest.raises(ValueError, match="noise multipliers > 0"):
        group_noise_levels(noise)
