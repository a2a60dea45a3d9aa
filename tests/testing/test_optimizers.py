"""The contract suite passes every built-in optimizer, and fails each way to break one."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from veracal.mechanisms.optimizers import SGD, Adam, Exponential, Langevin, Linear, Momentum
from veracal.testing import check_optimizer

OURS = [
    SGD(0.1),
    SGD(Linear(0.1, 0.0, steps=3)),
    Momentum(0.1),
    Momentum(0.1, momentum=0.0, nesterov=True),
    Momentum(Exponential(0.1, 0.5), nesterov=True),
    Adam(1e-3),
    Adam(1e-3, betas=(0.0, 0.5), weight_decay=0.1),
    Langevin(0.1, 1.0),
    Langevin(0.1, 1.0, mode="langevin", records=50),
]


@pytest.mark.parametrize("optimizer", OURS, ids=repr)
def test_built_in_rules_pass(optimizer) -> None:
    check_optimizer(optimizer)


@dataclass
class Broken:
    """A rule that a test breaks in one place."""

    memory: list = field(default_factory=list)

    def start(self, weights):
        return np.zeros_like(weights)

    def step(self, weights, gradient, state, t):
        return weights - gradient, state


class InPlace(Broken):
    def step(self, weights, gradient, state, t):
        weights -= gradient
        return weights, state


class StateInPlace(Broken):
    def step(self, weights, gradient, state, t):
        state += 1
        return weights - gradient, state


class Remembers(Broken):
    def step(self, weights, gradient, state, t):
        self.memory.append(gradient)
        return weights - 0.1 * sum(self.memory), state


class RemembersAcrossRuns(Broken):
    def step(self, weights, gradient, state, t):
        if gradient.shape == (2,):  # hidden from the check that repeats a step
            self.memory.append(gradient)
        return weights - gradient / (1 + len(self.memory)), state


class Random(Broken):
    def step(self, weights, gradient, state, t):
        return weights + np.random.default_rng().random(), state


class Widens(Broken):
    def step(self, weights, gradient, state, t):
        return (weights - gradient).astype(np.float64), state


class Reshapes(Broken):
    def step(self, weights, gradient, state, t):
        return np.atleast_1d(weights - gradient), state


class Explodes(Broken):
    def step(self, weights, gradient, state, t):
        with np.errstate(all="ignore"):
            return weights - gradient / np.abs(gradient), state


class SingleProcess(Broken):
    def step(self, weights, gradient, state, t):
        return weights - gradient


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (InPlace, "changed the weights"),
        (StateInPlace, "changed the weights, the gradient or the state"),
        (Remembers, "another result the second time"),
        (RemembersAcrossRuns, "a step of another training run"),
        (Random, "another result the second time"),
        (Widens, "of float32"),
        (Reshapes, r"expected weights \(\)"),
        (Explodes, "not finite"),
        (SingleProcess, "expected \\(weights, state\\)"),
    ],
)
def test_faulty_rules_fail(broken, says) -> None:
    with pytest.raises(AssertionError, match=says):
        check_optimizer(broken())
