"""Steps in place, a piece at a time, are the steps that they replace, bit for bit."""

import numpy as np
import pytest

from veracal.mechanisms import DPSGD, Flat, FullBatch, Poisson
from veracal.mechanisms import dp_sgd as ahead
from veracal.mechanisms import dp_sgd as pieces
from veracal.mechanisms.clipping import Clipped
from veracal.mechanisms.optimizers import SGD, Adam, Langevin, Linear, Momentum

SIZE = 1_001  # weights, in pieces of which the last is a short one


class Longest:
    """A rule that looks at all weights together."""

    def start(self, weights):
        return np.zeros(1)

    def step(self, weights, gradient, state, t):
        longest = np.abs(gradient).max()
        return weights - gradient / longest, np.maximum(state, longest)


class HeavyBall:
    """A rule that remembers the weights themselves."""

    def start(self, weights):
        return weights

    def step(self, weights, gradient, state, t):
        return weights + 0.9 * (weights - state) - 0.1 * gradient, weights


class Shifted:
    """A rule for each weight by itself, whose memory goes from one place to the next."""

    def part(self, start, end):
        return self

    def start(self, weights):
        return np.zeros_like(weights), np.zeros_like(weights)

    def step(self, weights, gradient, state, t):
        return weights - 0.1 * (gradient + state[0] + state[1]), (gradient, state[0])


class Swapped(Shifted):
    """A rule that gives back what it was given."""

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
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "_STEP_PIECE", 128)
    monkeypatch.setattr(ahead, "_DRAWN", 500)
    monkeypatch.setattr(ahead, "_PIECE", 300)


def descended(update, dtype, *, in_place):
    """Where a descent ends, and copies of what its steps show."""
    noise = None if isinstance(update, Langevin) else 1.5
    descent = DPSGD(Poisson(0.5), Flat(1.0), update, noise, 5, 10.0, weight_decay=0.01)
    rng = np.random.default_rng(0)
    targets = rng.standard_normal((20, SIZE))
    first = rng.standard_normal(SIZE).astype(dtype)
    shown = []

    def total(weights, rows, clip):
        return Clipped((weights - targets[rows]).sum(0))

    done = descent.run(
        first,
        total,
        20,
        rng=np.random.default_rng(1),
        on_step=lambda step: shown.append((step.noisy_sum.copy(), step.weights.copy())),
        in_place=in_place,
    )
    return first, done.weights, shown


@pytest.mark.parametrize("threaded", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("update", RULES, ids=lambda rule: type(rule).__name__)
def test_in_place_all_numbers_are_the_same(update, dtype, threaded, monkeypatch):
    monkeypatch.setattr(ahead, "_LEAST", 1 if threaded else 10**9)
    _, weights, shown = descended(update, dtype, in_place=False)
    first, found, seen = descended(update, dtype, in_place=True)
    assert found is first
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, weights)
    for (noisy, after), (other, later) in zip(shown, seen, strict=True):
        np.testing.assert_array_equal(noisy, other)
        np.testing.assert_array_equal(after, later)


def test_a_run_that_was_broken_off_goes_on_in_place():
    descent = DPSGD(FullBatch(), Flat(1.0), Adam(0.01), 1.0, 4, 1.0)
    standing = []

    def keep(step):
        one = step.standing
        state = type(one.state)(*(each.copy() for each in one.state))
        standing.append(type(one)(one.steps, one.weights.copy(), state, one.clip))
        return step.number == 1

    def nothing(weights, rows, clip):
        return Clipped(np.zeros(SIZE))

    descent.run(np.zeros(SIZE), nothing, 1, on_step=keep, in_place=True)
    ends = [
        descent.run(
            standing[-1].weights.copy(),
            nothing,
            1,
            rng=np.random.default_rng(3),
            start=keep_apart(standing[-1]),
            in_place=in_place,
        ).weights
        for in_place in (True, False)
    ]
    np.testing.assert_array_equal(*ends)


def keep_apart(standing):
    """A copy that may be written over."""
    state = type(standing.state)(*(each.copy() for each in standing.state))
    return type(standing)(standing.steps, standing.weights.copy(), state, standing.clip)


@pytest.mark.parametrize("weights", [np.zeros((2, 3)), np.float64(1.0), np.zeros(3)[:]])
def test_only_a_vector_that_may_be_written_over_is(weights):
    if isinstance(weights, np.ndarray) and weights.ndim == 1:
        weights.setflags(write=False)
    descent = DPSGD(FullBatch(), Flat(1.0), SGD(0.1), 1.0, 1, 1.0)
    with pytest.raises(ValueError, match="a vector of numpy that can be written over"):
        descent.run(weights, lambda *_: Clipped(np.zeros(3)), 1, in_place=True)
