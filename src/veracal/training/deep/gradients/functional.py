"""Clipped sums of gradients that are computed one by one, side by side (``torch.func``)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from veracal._precision import check_dtype
from veracal.privacy import Clip
from veracal.training.deep.gradients.adding import PreNoise, add_clipped, written_down
from veracal.training.deep.gradients.blocks import (
    Block,
    Inputs,
    Losses,
    Summed,
    called,
)
from veracal.training.deep.layout import Layout

_ENTRIES = 1 << 25  # of gradients that are written down at a time


class Functional:
    """Writes every example's gradient down, some examples at a time.

    It takes any module that ``torch.func.vmap`` can, whatever its layers are.

    Parameters
    ----------
    module : torch.nn.Module
    losses : callable
        ``losses(outputs, targets)`` of shape (n,).
    usual : int
        Examples of a block, as declared; there may be twice as many.
    noise : PreNoise, optional
    """

    name = "functional"
    at_once = False

    def __init__(
        self, module: nn.Module, losses: Losses, usual: int, noise: PreNoise | None = None
    ) -> None:
        self._module, self._losses, self._layout = module, losses, Layout(module)
        self._noise = noise
        self.size, self._usual = self._layout.size, usual
        self._names = [place.name for place in self._layout.places]
        self._everywhere = _everywhere(module)
        self._each = vmap(grad(self._loss), in_dims=(None, 0, 0), randomness="different")

    def _loss(self, weights: dict[str, Tensor], inputs: Inputs, target: Tensor) -> Tensor:
        """The loss of one example: the mean over its views."""
        put = {f"module.{name}": weights[first] for name, first in self._everywhere.items()}
        # Not tied by torch: it puts weights of a layer that is used twice there twice, and
        # leaves something else than a parameter behind.
        made = functional_call(_Called(self._module), put, (inputs,), tie_weights=False)
        check_dtype(made, "the logits")
        views = len(made)
        return self._losses(made, target.expand(views)).mean()

    def gradients(self, block: Block) -> dict[str, Tensor]:
        """The gradient of each example, of shape (n, *parameter), by the parameters' names."""
        weights = {name: self._module.get_parameter(name).detach() for name in self._names}
        inputs = _by_example(block)
        with sdpa_kernel(SDPBackend.MATH):  # the others are not side by side, but in turn
            found: dict[str, Tensor] = self._each(weights, inputs, block.targets)
        return found

    def add(self, block: Block, clip: Clip, total: Tensor) -> Summed:
        """Add the clipped sum over a block to a vector."""
        together = max(1, _ENTRIES // max(1, self._layout.size))
        norms, exceeding = [], 0
        for start in range(0, len(block), together):
            part = block.part(start, start + together)
            if part.real is not None and not part.real.any():
                continue
            each = {
                self._module.get_parameter(name): values
                for name, values in self.gradients(part).items()
            }
            found = written_down(each, self._noise)
            some = add_clipped(found, clip, total, self._layout, self._usual, part.real)
            norms.append(some.norms)
            exceeding += some.exceeding
        return Summed(torch.cat(norms), exceeding)


class _Called(nn.Module):
    """A module by what it makes of its inputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Inputs) -> Any:
        return called(self.module, inputs)


def _everywhere(module: nn.Module) -> dict[str, str]:
    """Every place of a parameter that is trained, one for each layer, and its first name."""
    first = {one: name for name, one in module.named_parameters() if one.requires_grad}
    return {
        f"{layer}.{word}".lstrip("."): first[one]
        for layer, owner in module.named_modules()  # each layer once, however often it is used
        for word, one in owner.named_parameters(recurse=False, remove_duplicate=False)
        if one in first
    }


def _by_example(block: Block) -> Inputs:
    """Inputs of shape (n, views, ...)."""
    n, views = len(block), block.views

    def split(tensor: Tensor) -> Tensor:
        return tensor.reshape(n, views, *tensor.shape[1:])

    if isinstance(block.inputs, Mapping):
        return {name: split(one) for name, one in block.inputs.items()}
    return split(block.inputs)
