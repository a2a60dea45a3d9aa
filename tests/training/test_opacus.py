"""Private logistic regression is as accurate as Opacus' at the same cost.

Both train a linear layer from zero with the same epsilon and delta, rate of Poisson batches,
number of steps, clip bound and learning rate, and keep the last weights. Each finds its own
noise for the budget, Opacus by its PRV accountant, and draws its own batches and noise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from veracal.data import load
from veracal.training import PrivateLogisticRegression

EPSILON, DELTA, CLIP = 2.0, 1e-4, 1.0

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:::opacus", "ignore:Full backward hook"),
]


@dataclass(frozen=True, eq=False)
class Task:
    """A real data set, split in two, and its training settings."""

    X: Any
    y: Any
    train: int
    batch: int
    epochs: int
    rate: float

    @property
    def steps(self) -> int:
        return self.epochs * (self.train // self.batch)


@cache
def task(name: str) -> Task:
    """Rows of norm at most 1, in a fixed order."""
    data = load(name)
    order = np.random.default_rng(0).permutation(len(data))
    X = np.asarray(data.X[:], dtype=np.float32)[order]
    X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
    settings = {
        "digits": {"train": 1200, "batch": 60, "epochs": 10, "rate": 4.0},
        "breast-cancer": {"train": 400, "batch": 80, "epochs": 20, "rate": 4.0},
    }
    return Task(X, np.asarray(data.y)[order], **settings[name])


def our_accuracy(task: Task, seed: int, *, noise: float | None = None) -> float:
    """Accuracy of Veracal on the held-out rows, after one run."""
    n = task.train
    model = PrivateLogisticRegression(
        EPSILON if noise is None else None,
        DELTA,
        noise_multiplier=noise,
        steps=task.steps,
        sampling_rate=task.batch / n,
        clip=CLIP,
        optimizer=task.rate,
        average=0.0,  # as Opacus; by default Veracal averages the last half
        classes=list(range(task.y.max() + 1)),
        size=n,
        random_state=seed,
    ).fit(task.X[:n], task.y[:n])
    return float(model.score(task.X[n:], task.y[n:]))


@cache
def opacus_noise(task: Task) -> float:
    """The noise multiplier that Opacus computes for the budget."""
    return float(
        get_noise_multiplier(
            target_epsilon=EPSILON,
            target_delta=DELTA,
            sample_rate=task.batch / task.train,
            steps=task.steps,
            accountant="prv",
        )
    )


def opacus_accuracy(task: Task, seed: int) -> float:
    """Accuracy on the same rows after one run of Opacus, with its own loader."""
    generator = torch.Generator().manual_seed(seed)
    classes = int(task.y.max()) + 1
    layer = nn.Linear(task.X.shape[1], 1 if classes == 2 else classes)
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    X, y = torch.from_numpy(task.X), torch.from_numpy(task.y).long()
    records = TensorDataset(X[: task.train], y[: task.train])
    private, optimizer, loader = PrivacyEngine(accountant="prv").make_private(
        module=layer,
        optimizer=torch.optim.SGD(layer.parameters(), lr=task.rate),
        data_loader=DataLoader(records, batch_size=task.batch, generator=generator),
        noise_multiplier=opacus_noise(task),
        max_grad_norm=CLIP,
        noise_generator=generator,
    )
    for _ in range(task.epochs):
        for rows, labels in loader:
            optimizer.zero_grad()
            loss(private(rows), labels).backward()
            optimizer.step()
    with torch.no_grad():
        logits = layer(X[task.train :])
    result = (logits[:, 0] > 0).long() if classes == 2 else logits.argmax(1)
    return float((result == y[task.train :]).float().mean())


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, with one logit for two classes as in Veracal."""
    if logits.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float())
    return nn.functional.cross_entropy(logits, labels)


@dataclass(frozen=True)
class Mean:
    """Mean accuracy of several runs, and its standard error over runs."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f}"


def mean_of(accuracy: Callable[..., float], task: Task, runs: int, **settings: Any) -> Mean:
    """Run with the seeds 0, 1, …"""
    result = [accuracy(task, seed, **settings) for seed in range(runs)]
    return Mean(float(np.mean(result)), float(np.std(result, ddof=1) / math.sqrt(runs)))


def standard_error(peer: Mean, task: Task) -> float:
    """Standard error of the peer's accuracy over runs and records."""
    tested = len(task.X) - task.train
    return math.hypot(peer.error, math.sqrt(peer.value * (1 - peer.value) / tested))


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_accuracy_is_within_a_standard_error_of_opacus(name: str):
    # An accuracy that was measured on a few hundred records is known to one standard error, a
    # percent or two. The means over runs are known three times better, so two programs that
    # are equivalent differ by this much for one choice of seeds in 200, and one that adds three
    # times the noise is detected.
    given = task(name)
    theirs = mean_of(opacus_accuracy, given, 20)
    ours = mean_of(our_accuracy, given, 40)
    wrong = mean_of(our_accuracy, given, 40, noise=3 * opacus_noise(given))
    error = standard_error(theirs, given)

    result = f"ours {ours}, Opacus {theirs}, 3 × noise {wrong}; standard error {error:.4f}"
    assert abs(ours.value - theirs.value) <= error, result
    assert wrong.value < theirs.value - error, result


@pytest.mark.long
@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_runs_have_the_accuracy_of_opacus(name: str):
    # On the same held-out records only the runs are random. Three standard errors of
    # the difference are exceeded for one choice of seeds in 400 by equivalent programs,
    # and twice the noise is detected.
    given = task(name)
    theirs = mean_of(opacus_accuracy, given, 200)
    ours = mean_of(our_accuracy, given, 600)
    wrong = mean_of(our_accuracy, given, 600, noise=2 * opacus_noise(given))
    error = math.hypot(ours.error, theirs.error)

    result = f"ours {ours}, Opacus {theirs}, 2 × noise {wrong}; standard error {error:.4f}"
    assert abs(ours.value - theirs.value) <= 3 * error, result
    assert wrong.value < theirs.value - 3 * error, result


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_both_compute_the_same_noise(name: str):
    # PRV overestimates epsilon by up to 0.01, Veracal by less: half a percent of noise.
    given = task(name)
    model = PrivateLogisticRegression(
        EPSILON, DELTA, steps=given.steps, sampling_rate=given.batch / given.train
    )
    noise = model.event().event.noise
    assert opacus_noise(given) * 0.985 <= noise <= opacus_noise(given)
