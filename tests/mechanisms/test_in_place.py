"""In-place steps in chunks equal ordinary steps, bit for bit."""

import numpy as np
import pytest

from veracal.mechanisms import DPSGD, Flat, FullBatch, Poisson, dp_sgd
from veracal.mechanisms.clipping import ClippedSum
from veracal.mechanisms.optimizers import SGD, Adam, Langevin, Linear, Momentum

SIZE = 1_001  # weights, not a multiple of the chunk size


class Longest:
    """An optimizer that uses all weights together."""

    def start(self, weights):
        return np.zeros(1)

    def step(self, weights, gradient, state, t):
        longest = np.abs(gradient).max()
        return weights - gradient / longest, np.maximum(state, longest)


class HeavyBall:
    """An optimizer whose state is the weights."""

    def start(self, weights):
        return weights

    def step(self, weights, gradient, state, t):
        return weights + 0.9 * (weights - state) - 0.1 * gradient, weights


class Shifted:
    """An elementwise optimizer that moves arrays from one part of its state to another."""

    def part(self, start, end):
        return self

    def start(self, weights):
        return np.zeros_like(weights), np.zeros_like(weights)

    def step(self, weights, gradient, state, t):
        return weights - 0.1 * (gradient + state[0] + state[1]), (gradient, state[0])


class Swapped(Shifted):
    """An optimizer that returns its arguments."""

    def step(self, weights, gradient, state, t):
        return state[0] - 0.1 * gradient, (weights, state[0])


RULES = [
    SGD(0.1),
    SGD(Linear(0.1, 0.01, 5)),
    Momentum(0.1, nesterov=True),
    Adam(0.01, weight_decay=0.1),
    Langevin(0.1, 0.5),
    Longest(),
    HeavyBall(),
    Shifted(),
    Swapped(),
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(dp_sgd, "_STEP_CHUNK", 128)
    monkeypatch.setattr(dp_sgd, "_ENTRIES_PER_DRAW", 500)
    monkeypatch.setattr(dp_sgd, "_CHUNK", 300)


def train(optimizer, dtype, *, in_place):
    """Initial and final weights of a training run, and copies of its steps."""
    noise = None if isinstance(optimizer, Langevin) else 1.5
    training = DPSGD(Poisson(0.5), Flat(1.0), optimizer, noise, 5, 10.0, weight_decay=0.01)
    rng = np.random.default_rng(0)
    targets = rng.standard_normal((20, SIZE))
    first = rng.standard_normal(SIZE).astype(dtype)
    steps = []

    def total(weights, rows, clip):
        return ClippedSum((weights - targets[rows]).sum(0))

    done = training.run(
        first,
        total,
        20,
        rng=np.random.default_rng(1),
        on_step=lambda step: steps.append((step.noisy_sum.copy(), step.weights.copy())),
        in_place=in_place,
    )
    return first, done.weights, steps


@pytest.mark.parametrize("threaded", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("optimizer", RULES, ids=lambda rule: type(rule).__name__)
def test_in_place_steps_give_the_same_numbers(optimizer, dtype, threaded, monkeypatch):
    monkeypatch.setattr(dp_sgd, "_MIN_THREADED", 1 if threaded else 10**9)
    _, weights, steps = train(optimizer, dtype, in_place=False)
    first, trained, seen = train(optimizer, dtype, in_place=True)
    assert trained is first
    assert trained.dtype == dtype
    np.testing.assert_array_equal(trained, weights)
    for (noisy, after), (other, later) in zip(steps, seen, strict=True):
        np.testing.assert_array_equal(noisy, other)
        np.testing.assert_array_equal(after, later)


def test_an_interrupted_run_resumes_in_place():
    training = DPSGD(FullBatch(), Flat(1.0), Adam(0.01), 1.0, 4, 1.0)
    states = []

    def keep(step):
        states.append(copy_state(step.training_state))
        return step.number == 1

    def nothing(weights, rows, clip):
        return ClippedSum(np.zeros(SIZE))

    training.run(np.zeros(SIZE), nothing, 1, on_step=keep, in_place=True)
    ends = [
        training.run(
            states[-1].weights.copy(),
            nothing,
            1,
            rng=np.random.default_rng(3),
            start=copy_state(states[-1]),
            in_place=in_place,
        ).weights
        for in_place in (True, False)
    ]
    np.testing.assert_array_equal(*ends)


def copy_state(state):
    """A copy that may be overwritten."""
    arrays = type(state.state)(*(each.copy() for each in state.state))
    return type(state)(state.steps, state.weights.copy(), arrays, state.clip)


@pytest.mark.parametrize("weights", [np.zeros((2, 3)), np.float64(1.0), np.zeros(3)[:]])
def test_in_place_training_needs_a_writable_vector(weights):
    if isinstance(weights, np.ndarray) and weights.ndim == 1:
        weights.setflags(write=False)
    training = DPSGD(FullBatch(), Flat(1.0), SGD(0.1), 1.0, 1, 1.0)
    with pytest.raises(ValueError, match="a writable numpy vector"):
        training.run(weights, lambda *_: ClippedSum(np.zeros(3)), 1, in_place=True)
