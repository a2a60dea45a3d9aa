"""Shared by the gates of networks: small networks, replayable fits, and patches."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from veracal.data import Dataset
from veracal.mechanisms import ClippedSum, ClipRule, Step
from veracal.neural.gradient_sums import NetworkSums
from veracal.neural.network import PrivateNetwork

# The first use of vmap imports hundreds of modules: once, before gates are forked.
torch.func.vmap(torch.sin)(torch.zeros(1))
Patches = Mapping[str, object]
DEEP = "veracal.neural."
TRIAL = DEEP + "gradients.choice."
ADDING = DEEP + "gradients.engines."
LAYERS = DEEP + "gradients.layers."
SUMS = DEEP + "gradient_sums.NetworkSums."
LOOP = "veracal.mechanisms.dp_sgd.DPSGD."


class Attention(nn.Module):
    """Tokens, attention of linear layers, a normalization and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(6, 4)
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> Any:
        """Logits of sequences of tokens."""
        x = self.tokens(ids)
        y = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.head(self.norm(x + y).mean(1))


class Tied(nn.Module):
    """One layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        """Logits of rows."""
        return self.head(self.line(torch.tanh(self.line(x))))


def convolved() -> nn.Module:
    """A convolution with materialized gradients, and one without."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 2),
        nn.GroupNorm(1, 2),
        nn.Conv2d(2, 16, 5),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def frozen() -> nn.Module:
    """A frozen layer, followed by a trained one."""
    return nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 2))


class Views:
    """Three views of each example, of different lengths and directions."""

    views = 3

    def __call__(self, inputs: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Views of one example after the other."""
        return torch.stack([inputs, -0.5 * inputs, inputs.flip(-1)], 1).flatten(0, 1)


def shared_positions() -> nn.Module:
    """A linear layer applied at several positions of every example."""
    return nn.Sequential(nn.Linear(4, 40), nn.Flatten(), nn.Linear(120, 2))


# For each network, the shape of a record, and whether records are tokens.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "plain": (lambda: nn.Linear(4, 2), (4,), False),
    "places": (shared_positions, (3, 4), False),
    "convolved": (convolved, (1, 6, 6), False),
    "attention": (Attention, (5,), True),
    "tied": (Tied, (4,), False),
    "frozen": (frozen, (4,), False),
    "views": (lambda: nn.Linear(4, 2), (4,), False),
}


def network(name: str) -> nn.Module:
    """A network with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return NETWORKS[name][0]()


@contextmanager
def patched(patches: Patches) -> Iterator[None]:
    """Apply the patches, and switch off the trials, which would detect many mutants."""
    with ExitStack() as stack:
        for name, instead in patches.items():
            stack.enter_context(mock.patch(name, instead))
        # The trial would detect many mutants; the gate must detect them without it.
        stack.enter_context(
            mock.patch("veracal.neural.gradients.choice._compare_sums", return_value=None)
        )
        stack.enter_context(
            mock.patch("veracal.neural.gradients.choice._time_block", return_value=0.0)
        )
        stack.enter_context(
            mock.patch("veracal.neural.gradients.choice._find_failure", return_value=None)
        )
        stack.enter_context(
            mock.patch("veracal.neural.network.check_behavior", return_value=None)
        )
        yield


def fitted(module: nn.Module, X: Any, y: Any, **settings: Any) -> Any:
    """Fit a network to records and return it with its steps; a fit must not stop."""
    steps: list[Step] = []

    def watch(model: PrivateNetwork, step: Step) -> None:
        steps.append(step)

    usual = {"epsilon": None, "delta": 1e-9, "on_step": watch, "gradients": "ghost"}
    model = PrivateNetwork(module, **{**usual, **settings})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings(
                "ignore", ".*(logits|did not change|paid for|almost nothing)"
            )
            if X.dtype.kind == "i":  # a data set has no tokens
                model.fit(X, y, classes=(0, 1))
            else:
                model.fit_records(Dataset(X, y, (0, 1)))
    except (ValueError, IndexError, RuntimeError, RuntimeWarning) as error:
        raise AssertionError(f"records stop the fit: {error}") from error
    return model, tuple(steps)


def summed_otherwise(change: Callable[[ClippedSum, int, ClipRule], ClippedSum]) -> Patches:
    """Change the sum of a batch, given its number of rows."""
    original = NetworkSums.__call__

    def call(sums: NetworkSums, weights: Any, rows: Any, clip: ClipRule) -> ClippedSum:
        return change(original(sums, weights, rows, clip), len(rows), clip)

    return {SUMS + "__call__": call}


def random_records(name: str, n: int, rng: np.random.Generator) -> Any:
    """Records of many lengths for a network."""
    _, shape, tokens = NETWORKS[name]
    if tokens:
        return rng.integers(0, 6 if rng.random() < 0.5 else 1, (n, *shape))
    lengths = rng.choice([0.0, 1e-6, 0.3, 1.0, 30.0, 1e4, 1e12, 3e38], n)
    X = rng.standard_normal((n, *shape)) * lengths.reshape(-1, *[1] * len(shape))
    if rng.random() < 0.5:  # the same at all places, so that their gradients add up
        X[:] = X.reshape(n, -1)[:, :1].reshape(n, *[1] * len(shape))
    with np.errstate(over="ignore"):
        return np.clip(X, -3e38, 3e38).astype(np.float32)
