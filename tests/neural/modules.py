"""Small networks with every kind of layer, and examples for them."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from veracal.neural.examples import Block, compute_logits, example_losses


class Attention(nn.Module):
    """Embeddings, positions, torch's attention, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        x = self.tokens(ids)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(x.mean(1))


class PlainAttention(nn.Module):
    """Attention from linear layers, as in transformers."""

    def __init__(self, padding=0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=padding)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        x = self.tokens(ids)
        y = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.head(self.norm(x + y).mean(1))


class Tied(nn.Module):
    """A layer that is used twice, and two names for one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Scaled(nn.Module):
    """Logits multiplied by a scalar parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 3), nn.Parameter(torch.tensor(0.7))
        self.none = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x):
        return self.scale * self.linear(x) + self.none.sum()


def twice() -> nn.Module:
    """One layer that is used twice."""
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(6, 3))


class Conv1D(nn.Module):
    """A linear layer whose weights have shape (inputs, outputs), as in GPT-2."""

    def __init__(self, outputs, inputs) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class LlamaRMSNorm(nn.Module):
    """A normalization by the root mean square, as in Llama."""

    def __init__(self, width, start=0.0, eps=1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width) - start)
        self.start, self.variance_epsilon = start, eps

    def forward(self, x):
        length = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.start + self.weight) * (x * length)


def frozen() -> nn.Module:
    """A frozen backbone with one trained bias."""
    module = nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
    )
    module[0].requires_grad_(False)
    module[2].weight.requires_grad_(False)
    return module


def weight_norm() -> nn.Module:
    """Weights as directions and lengths."""
    first = parametrizations.weight_norm(nn.Linear(6, 4))
    return nn.Sequential(first, nn.Tanh(), nn.Linear(4, 3))


def pruned() -> nn.Module:
    """A layer with half of its weights pruned."""
    first = prune.l1_unstructured(nn.Linear(6, 4), "weight", 0.5)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(4, 3))


def make_images(n=5, channels=2, side=9):
    return torch.randn(n, channels, side, side)


def rows(n=5, width=6):
    return torch.randn(n, width)


def ids(n=5, length=7):
    return torch.randint(0, 11, (n, length))


MODULES = {
    "linear": (lambda: nn.Linear(6, 3), rows),
    "one logit": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)), rows),
    "places": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(35, 3)),
        lambda: torch.randn(5, 7, 4),
    ),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(100, 3)
        ),
        make_images,
    ),
    "conv2d, dilated, in groups": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, dilation=2, groups=2, bias=False),
            nn.Flatten(),
            nn.Linear(100, 3),
        ),
        make_images,
    ),
    "few large patches": (
        lambda: nn.Sequential(nn.Conv2d(2, 16, 8), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)),
        make_images,
    ),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(28, 3)
        ),
        lambda: torch.randn(5, 3, 7),
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)),
        lambda: torch.randn(5, 1, 4, 4, 4),
    ),
    "groupnorm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(196, 3)
        ),
        make_images,
    ),
    "groupnorm of rows": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.GroupNorm(1, 4), nn.Tanh(), nn.Linear(4, 3)),
        rows,
    ),
    "instancenorm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.InstanceNorm2d(4, affine=True),
            nn.Flatten(),
            nn.Linear(196, 3),
        ),
        make_images,
    ),
    "layernorm": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3)),
        rows,
    ),
    "rmsnorm": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.RMSNorm(4), nn.Tanh(), nn.Linear(4, 3)),
        rows,
    ),
    "turned linear": (
        lambda: nn.Sequential(Conv1D(5, 4), nn.Tanh(), nn.Flatten(), Conv1D(3, 35)),
        lambda: torch.randn(5, 7, 4),
    ),
    "rmsnorm of another library": (
        lambda: nn.Sequential(nn.Linear(4, 6), LlamaRMSNorm(6), nn.Flatten(), nn.Linear(42, 3)),
        lambda: torch.randn(5, 7, 4),
    ),
    "rmsnorm from zero": (
        lambda: nn.Sequential(nn.Linear(6, 4), LlamaRMSNorm(4, 1.0), nn.Linear(4, 3)),
        rows,
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(11, 4), nn.Tanh(), nn.Flatten(), nn.Linear(28, 3)),
        ids,
    ),
    "attention of linear layers": (PlainAttention, ids),
    "attention without padding": (lambda: PlainAttention(None), ids),
    "attention": (Attention, ids),
    "tied": (Tied, rows),
    "twice": (twice, rows),
    "scaled": (Scaled, rows),
    "frozen": (frozen, rows),
    "weight norm": (weight_norm, rows),
    "pruned": (pruned, rows),
}


def build_network(name, seed=0):
    """A network and a block of examples for it."""
    torch.manual_seed(seed)
    build, inputs = MODULES[name]
    module, x = build(), inputs()
    outputs = module(x).shape[1]
    return module, Block(x, torch.arange(len(x)) % max(2, outputs))


def example_gradients(module, losses, block):
    """Gradients of shape (n, size), each from its own backward pass."""
    trained = [one for one in module.parameters() if one.requires_grad]
    rows = []
    for i in range(len(block)):
        one = block.part(i, i + 1)
        loss = example_losses(one, compute_logits(module, one.inputs), losses).sum()
        gradients = torch.autograd.grad(
            loss, trained, allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([each.double().reshape(-1) for each in gradients]))
    return torch.stack(rows)
