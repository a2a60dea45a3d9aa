"""Linear training steps of peers: plain PyTorch and Opacus in their fastest configurations.

Every peer steps over the same tensors in memory, by batches whose row numbers were drawn
beforehand: what a loader or a sampler costs is not held against it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from os import sched_getaffinity, sched_setaffinity

import numpy as np
import torch
from opacus.grad_sample import wrap_model
from opacus.optimizers import get_optimizer_class
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.nn import functional

CLIP, NOISE, RATE = 1.0, 1.0, 0.5
BATCHES = 400  # together larger than a cache, so that rows come from memory


@dataclass(frozen=True)
class Shape:
    """Size of a problem, as the issue that set the goals gives it."""

    rows: int
    features: int
    classes: int
    batch: int

    def __str__(self) -> str:
        return f"{self.rows}×{self.features}×{self.classes}, batch {self.batch}"

    @property
    def name(self) -> str:
        """The same in letters that any terminal shows."""
        return f"{self.rows}x{self.features}x{self.classes} by {self.batch}"


SHAPES = (
    Shape(45_000, 2048, 10, 256),
    Shape(45_000, 2048, 10, 32),
    Shape(68_000, 768, 101, 256),
    Shape(17_000, 768, 397, 1024),
)


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows of norm 1 around one center for each class, Poisson batches, weights to start at."""

    shape: Shape
    X: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    batches: tuple[np.ndarray, ...] = field(repr=False)
    start: np.ndarray = field(repr=False)


def problem_of(shape: Shape) -> Problem:
    """The same numbers in every run."""
    rng = np.random.default_rng(0)
    k, d = shape.classes, shape.features
    centers = rng.standard_normal((k, d), dtype=np.float32)
    y = rng.integers(0, k, shape.rows)
    X = rng.standard_normal((shape.rows, d), dtype=np.float32)
    # Some rows are easy and some are not, so that some gradients are clipped and some are not.
    X += rng.uniform(0, 0.4, (shape.rows, 1)).astype(np.float32) * centers[y]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    rate = shape.batch / shape.rows
    batches = (np.flatnonzero(rng.random(shape.rows) < rate) for _ in range(BATCHES))
    return Problem(shape, X, y, tuple(batches), centers * np.float32(5 * np.log(k) / d**0.5))


@dataclass(frozen=True, eq=False)
class Peer:
    """One way to take a step, and the weights it has come to."""

    step: Callable[[Tensor], None]
    weights: Callable[[], np.ndarray]


def _layer(problem: Problem) -> nn.Linear:
    """A linear layer at the start."""
    layer = nn.Linear(problem.shape.features, problem.shape.classes)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(problem.start))
        layer.bias.zero_()
    return layer


def _weights_of(layer: nn.Linear) -> Callable[[], np.ndarray]:
    """The weights with the intercept in the last column, as they are when asked for."""

    def weights() -> np.ndarray:
        parts = [layer.weight.detach(), layer.bias.detach()[:, None]]
        return torch.hstack(parts).numpy().copy()

    return weights


def plain(problem: Problem, **settings: bool) -> Peer:
    """A layer, cross-entropy, backward and an optimizer's step."""
    X, y, layer = torch.from_numpy(problem.X), torch.from_numpy(problem.y), _layer(problem)
    optimizer = torch.optim.SGD(layer.parameters(), lr=RATE, **settings)

    def step(rows: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        # index_select is a third faster than X[rows].
        logits = layer(X.index_select(0, rows))
        functional.cross_entropy(logits, y.index_select(0, rows)).backward()
        optimizer.step()

    return Peer(step, _weights_of(layer))


def bare(problem: Problem) -> Peer:
    """The same without a module or an optimizer: two tensors and their gradients."""
    X, y, layer = torch.from_numpy(problem.X), torch.from_numpy(problem.y), _layer(problem)
    weight, bias = layer.weight, layer.bias

    def step(rows: Tensor) -> None:
        logits = functional.linear(X.index_select(0, rows), weight, bias)
        loss = functional.cross_entropy(logits, y.index_select(0, rows))
        slopes = torch.autograd.grad(loss, (weight, bias))
        with torch.no_grad():
            weight.sub_(slopes[0], alpha=RATE)
            bias.sub_(slopes[1], alpha=RATE)

    return Peer(step, _weights_of(layer))


def opacus(problem: Problem, mode: str, *, wrap: bool = True, noise: float = NOISE) -> Peer:
    """A private step in one of Opacus' modes, around the layer or by hooks on it."""
    X, y, layer = torch.from_numpy(problem.X), torch.from_numpy(problem.y), _layer(problem)
    settings = {"max_grad_norm": CLIP} if mode == "ghost" else {}
    wrapped = wrap_model(layer, mode, wrap_model=wrap, **settings)
    optimizer = get_optimizer_class("flat", False, mode)(
        torch.optim.SGD(layer.parameters(), lr=RATE),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
        expected_batch_size=problem.shape.batch,
    )
    loss = nn.CrossEntropyLoss()
    if mode == "ghost":
        loss = DPLossFastGradientClipping(wrapped, optimizer, loss)
    forward = wrapped if wrap else layer

    def step(rows: Tensor) -> None:
        optimizer.zero_grad()
        loss(forward(X.index_select(0, rows)), y.index_select(0, rows)).backward()
        optimizer.step()

    return Peer(step, _weights_of(layer))


PLAIN = {
    "module, SGD": partial(plain, foreach=False),
    "module, SGD(foreach)": partial(plain, foreach=True),
    "module, SGD(fused)": partial(plain, fused=True),
    "tensors, autograd.grad": bare,
}
OPACUS = {
    "hooks": partial(opacus, mode="hooks"),
    "functorch": partial(opacus, mode="functorch"),
    "ew": partial(opacus, mode="ew"),
    "ghost": partial(opacus, mode="ghost"),
    "ghost, not wrapped": partial(opacus, mode="ghost", wrap=False),
}


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Leave this thread, and those it starts, one core or all; torch gets as many threads."""
    before = sched_getaffinity(0)
    sched_setaffinity(0, set(sorted(before)[:count]))
    torch.set_num_threads(count)
    try:
        yield
    finally:
        sched_setaffinity(0, before)
