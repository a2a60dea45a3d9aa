"""Layers of other libraries, known by what they compute."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from veracal.training.deep.gradients.layers import RULES, Each, Found, knows, product
from veracal.training.deep.gradients.room import Room

Rule = Callable[..., Found]
_ROWS = 3  # made up, on which a layer is tried


def rule_of(layer: nn.Module) -> Rule | None:
    """How gradients of a layer with parameters of its own are taken; None if nobody knows.

    Layers of transformers, one class for each family of models, are asked for by their name
    and tried on made-up rows with made-up weights: what is called so and computes something
    else is not known. So nothing here needs that library.
    """
    if type(layer) in RULES:
        found: Rule | None = RULES[type(layer)] if knows(layer) else None
        return found
    name, shapes = type(layer).__name__, _shapes(layer)
    if name == "Conv1D" and shapes.keys() == {"weight", "bias"}:
        return turned if _computes(layer, _by_columns) else None
    if name.endswith("RMSNorm") and shapes.keys() == {"weight"} and len(shapes["weight"]) == 1:
        # Some count the scale from zero, which has the same slope.
        known = any(_computes(layer, one) for one in (_scaled, _scaled_from_zero))
        return scaled if known else None
    return None


def turned(module: Any, a: Tensor, g: Tensor, n: int, usual: int, room: Room) -> Found:
    """Gradients of a linear layer whose weights have shape (inputs, outputs), as in GPT-2."""
    found: Found = {}
    a, g = a.reshape(n, -1, a.shape[-1]), g.reshape(n, -1, g.shape[-1])
    if module.weight.requires_grad:
        found["weight"] = product(g, a, usual)  # the other way round
    if module.bias.requires_grad:
        found["bias"] = Each(g.sum(1))
    return found


def scaled(module: Any, x: Tensor, g: Tensor, n: int, usual: int, room: Room) -> Found:
    """Gradients of the scales of a normalization by the root of the mean square."""
    each = g * _normalized(x, _stability(module))
    return {"weight": Each(each.reshape(n, -1, each.shape[-1]).sum(1))}


def _shapes(layer: nn.Module) -> dict[str, torch.Size]:
    """Shapes of all that a layer remembers, if it has no layers inside."""
    if next(layer.children(), None) is not None or next(layer.buffers(), None) is not None:
        return {}
    return {name: one.shape for name, one in layer.named_parameters()}


def _by_columns(x: Tensor, weights: dict[str, Tensor], layer: nn.Module) -> Tensor:
    return x @ weights["weight"] + weights["bias"]


def _scaled(x: Tensor, weights: dict[str, Tensor], layer: nn.Module) -> Tensor:
    return weights["weight"] * _normalized(x, _stability(layer))


def _scaled_from_zero(x: Tensor, weights: dict[str, Tensor], layer: nn.Module) -> Tensor:
    return (1 + weights["weight"]) * _normalized(x, _stability(layer))


def _normalized(x: Tensor, stability: float) -> Tensor:
    """Rows divided by the root of their mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + stability)


def _stability(layer: nn.Module) -> float:
    """What a normalization adds to the mean square, by whichever name it has."""
    for name in ("variance_epsilon", "eps"):
        found = getattr(layer, name, None)
        if isinstance(found, float):
            return found
    return math.nan  # equals nothing


def _computes(layer: nn.Module, truth: Callable[..., Tensor]) -> bool:
    """Whether a layer computes what it is taken for, with weights and rows that are made up."""
    rng = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(one.shape, generator=rng).to(one.dtype)
        for name, one in layer.named_parameters()
    }
    first = weights["weight"]
    x = torch.randn(_ROWS, 2, len(first), generator=rng).to(first.dtype)
    # Small rows too, where what is added to the mean square shows.
    x[0] *= 1e-3
    try:
        with torch.no_grad():
            made = functional_call(layer, weights, (x,))
            expected = truth(x.float(), {k: one.float() for k, one in weights.items()}, layer)
    except Exception:  # whatever a layer that is something else may raise
        return False
    close = 8 * torch.finfo(first.dtype).eps
    if not isinstance(made, Tensor) or made.shape != expected.shape:
        return False
    gap = float((made.float() - expected).abs().max())
    return gap <= close * max(1.0, float(expected.abs().max()))
