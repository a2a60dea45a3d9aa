"""Training steps of peers: plain PyTorch and Opacus, each in its fastest configuration.

Every peer steps over the same tensors in memory, by batches whose row numbers were drawn
beforehand: the cost of a data loader or sampler is not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import pytest
import torch
from opacus.grad_sample import wrap_model
from opacus.optimizers import get_optimizer_class
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.nn import functional

from veracal.neural.architectures import cifar_cnn, mnist_cnn

CLIP, NOISE, RATE = 1.0, 1.0, 0.1
BATCHES = 64
MARKS = [  # for all tests that time Opacus
    pytest.mark.filterwarnings(
        "ignore:::opacus",
        "ignore:Full backward hook",
        "ignore:grad and param do not obey the gradient layout contract",
    ),
    pytest.mark.timeout(2_400),
]
T = TypeVar("T", nn.Module, Tensor)


@dataclass(frozen=True)
class Task:
    """A network and the shape of its images; ``warm`` steps precede the timed ones."""

    name: str
    build: Callable[[], nn.Module]
    picture: tuple[int, int, int]
    batch: int
    rows: int = 8_192
    warm: int = 3
    steps: int = 12


TASKS = (
    Task("MNIST CNN, batch 512", mnist_cnn, (1, 28, 28), 512),
    Task("CIFAR CNN, batch 256", cifar_cnn, (3, 32, 32), 256, 2_048, warm=1, steps=2),
)


@dataclass(frozen=True, eq=False)
class Problem:
    """Synthetic images, Poisson batches, and a network with initial weights."""

    task: Task
    X: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    batches: tuple[np.ndarray, ...] = field(repr=False)

    def module(self) -> nn.Module:
        """The network, with the same weights each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.task.build()


def problem_of(task: Task) -> Problem:
    """The same problem in every run."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((task.rows, *task.picture), dtype=np.float32)
    y = rng.integers(0, 10, task.rows)
    rate = task.batch / task.rows
    batches = (np.flatnonzero(rng.random(task.rows) < rate) for _ in range(BATCHES))
    return Problem(task, X, y, tuple(batches))


@dataclass(frozen=True, eq=False)
class Peer:
    """A step function, and a function that returns the current weights."""

    step: Callable[[Tensor], None]
    weights: Callable[[], np.ndarray]


def _weights_of(module: nn.Module) -> Callable[[], np.ndarray]:
    """Return a function for the current weights as one vector."""
    parameters = list(module.parameters())
    return lambda: torch.cat([one.detach().flatten() for one in parameters]).numpy().copy()


def _to_memory_format(what: T, channels_last: bool) -> T:
    """Convert a module or images to channels-last memory if requested."""
    return what.to(memory_format=torch.channels_last) if channels_last else what


def plain(problem: Problem, *, channels_last: bool = False, **settings: bool) -> Peer:
    """Plain training: cross-entropy, backward, optimizer step."""
    X, y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
    module = _to_memory_format(problem.module(), channels_last)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, **settings)

    def step(rows: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = module(_to_memory_format(X.index_select(0, rows), channels_last))
        functional.cross_entropy(logits, y.index_select(0, rows)).backward()
        optimizer.step()

    return Peer(step, _weights_of(module))


def opacus(
    problem: Problem, mode: str, *, noise: float = NOISE, channels_last: bool = False
) -> Peer:
    """A private step in one of Opacus' modes."""
    X, y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
    module = _to_memory_format(problem.module(), channels_last)
    settings = {"max_grad_norm": CLIP} if mode == "ghost" else {}
    wrapped = wrap_model(module, mode, **settings)
    optimizer = get_optimizer_class("flat", False, mode)(
        torch.optim.SGD(module.parameters(), lr=RATE),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
        expected_batch_size=problem.task.batch,
    )
    loss = nn.CrossEntropyLoss()
    if mode == "ghost":
        loss = DPLossFastGradientClipping(wrapped, optimizer, loss)

    def step(rows: Tensor) -> None:
        optimizer.zero_grad()
        images = _to_memory_format(X.index_select(0, rows), channels_last)
        loss(wrapped(images), y.index_select(0, rows)).backward()
        optimizer.step()

    return Peer(step, _weights_of(module))


PLAIN = {
    "SGD": partial(plain, foreach=False),
    "SGD(foreach)": partial(plain, foreach=True),
    "SGD(fused)": partial(plain, fused=True),
    "channels last": partial(plain, fused=True, channels_last=True),
}
OPACUS = {mode: partial(opacus, mode=mode) for mode in ("hooks", "functorch", "ew", "ghost")}
# Modes that are faster with channels-last memory are timed with it, too.
OPACUS |= {
    f"{mode}, channels last": partial(opacus, mode=mode, channels_last=True)
    for mode in ("hooks", "functorch", "ghost")
}
