"""Steps of network training as others take them: plain PyTorch and Opacus, each at its best.

Every peer steps over the same tensors in memory, by batches whose row numbers were drawn
beforehand: what a loader or a sampler costs is not held against it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from opacus.grad_sample import wrap_model
from opacus.optimizers import get_optimizer_class
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.nn import functional

from veracal.training.deep.models import cifar_cnn, mnist_cnn

CLIP, NOISE, RATE = 1.0, 1.0, 0.1
BATCHES = 64


@dataclass(frozen=True)
class Task:
    """A network and the form of its pictures."""

    name: str
    build: Callable[[], nn.Module]
    picture: tuple[int, int, int]
    batch: int
    rows: int = 8_192


TASKS = (
    Task("MNIST CNN, batch 512", mnist_cnn, (1, 28, 28), 512),
    Task("CIFAR CNN, batch 256", cifar_cnn, (3, 32, 32), 256, 2_048),
)


@dataclass(frozen=True, eq=False)
class Problem:
    """Made-up pictures, Poisson batches, and a network with the weights to start at."""

    task: Task
    X: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    batches: tuple[np.ndarray, ...] = field(repr=False)

    def module(self) -> nn.Module:
        """The network, the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.task.build()


def problem_of(task: Task) -> Problem:
    """The same numbers in every run."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((task.rows, *task.picture), dtype=np.float32)
    y = rng.integers(0, 10, task.rows)
    rate = task.batch / task.rows
    batches = (np.flatnonzero(rng.random(task.rows) < rate) for _ in range(BATCHES))
    return Problem(task, X, y, tuple(batches))


@dataclass(frozen=True, eq=False)
class Peer:
    """One way to take a step, and the weights it has come to."""

    step: Callable[[Tensor], None]
    weights: Callable[[], np.ndarray]


def _weights_of(module: nn.Module) -> Callable[[], np.ndarray]:
    """All weights as one vector, as they are when asked for."""
    parameters = list(module.parameters())
    return lambda: torch.cat([one.detach().flatten() for one in parameters]).numpy().copy()


def plain(problem: Problem, **settings: bool) -> Peer:
    """A module, cross-entropy, backward and an optimizer's step."""
    X, y, module = torch.from_numpy(problem.X), torch.from_numpy(problem.y), problem.module()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, **settings)

    def step(rows: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = module(X.index_select(0, rows))
        functional.cross_entropy(logits, y.index_select(0, rows)).backward()
        optimizer.step()

    return Peer(step, _weights_of(module))


def opacus(problem: Problem, mode: str, *, noise: float = NOISE) -> Peer:
    """A private step in one of Opacus' modes."""
    X, y, module = torch.from_numpy(problem.X), torch.from_numpy(problem.y), problem.module()
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
        loss(wrapped(X.index_select(0, rows)), y.index_select(0, rows)).backward()
        optimizer.step()

    return Peer(step, _weights_of(module))


PLAIN = {
    "SGD": partial(plain, foreach=False),
    "SGD(foreach)": partial(plain, foreach=True),
    "SGD(fused)": partial(plain, fused=True),
}
OPACUS = {mode: partial(opacus, mode=mode) for mode in ("hooks", "functorch", "ew", "ghost")}
