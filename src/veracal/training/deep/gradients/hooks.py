"""Clipped sums of gradients that Opacus' hooks write down."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from veracal._checks import extra
from veracal._precision import check_dtype
from veracal.privacy import Clip
from veracal.training.deep.gradients.adding import PreNoise, add_clipped, written_down
from veracal.training.deep.gradients.blocks import (
    Block,
    Losses,
    Summed,
    called,
    losses_by_example,
)
from veracal.training.deep.layout import Layout


class Hooks:
    """Per-example gradients by Opacus (Yousefpour et al. 2021), and our own clip and sum.

    Parameters
    ----------
    module : torch.nn.Module
    losses : callable
        ``losses(outputs, targets)`` of shape (n,).
    usual : int
        Examples of a block, as declared; there may be twice as many.
    noise : PreNoise, optional
    """

    name = "hooks"
    at_once = True

    def __init__(
        self, module: nn.Module, losses: Losses, usual: int, noise: PreNoise | None = None
    ) -> None:
        self._opacus = extra("opacus.grad_sample", "torch")
        self._module, self._losses, self._layout = module, losses, Layout(module)
        self.size, self._usual, self._noise = self._layout.size, usual, noise
        self._trained = [one for one in module.parameters() if one.requires_grad]

    def add(self, block: Block, clip: Clip, total: Tensor) -> Summed:
        """Add the clipped sum over a block to a vector."""
        with self._wrapped() as wrapped:
            with torch.enable_grad():
                outputs = called(wrapped, block.inputs)
                check_dtype(outputs, "the logits")
                torch.autograd.backward(losses_by_example(block, outputs, self._losses).sum())
            each = {one: self._sample(one, block) for one in self._trained}
        found = written_down(each, self._noise)
        return add_clipped(found, clip, total, self._layout, self._usual, block.real)

    def _sample(self, parameter: Any, block: Block) -> Tensor:
        """Gradients of one parameter, of shape (n, *parameter), and forget them."""
        sample = parameter.grad_sample
        each: Tensor = torch.stack(sample).sum(0) if isinstance(sample, list) else sample
        parameter.grad_sample = parameter.grad = None
        check_dtype(each, "a per-example gradient")
        each = each.to(torch.float32)
        if block.views == 1:
            return each
        return each.view(len(block), block.views, *each.shape[1:]).sum(1)

    @contextmanager
    def _wrapped(self) -> Iterator[Any]:
        """The module with Opacus' hooks, which are gone afterwards."""
        wrapped = self._opacus.GradSampleModule(
            self._module, loss_reduction="sum", strict=False
        )
        try:
            with warnings.catch_warnings():
                # Inputs are records: nobody wants their gradients.
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                yield wrapped
        finally:
            wrapped.remove_hooks()
            self._forget()

    def _forget(self) -> None:
        """Leave nothing of Opacus' on the module.

        Where a forward pass fails, it would keep the inputs, and count the pass as one whose
        gradients are still to come: no later example would have any.
        """
        for layer in self._module.modules():
            layer.__dict__.pop("activations", None)
        for one in self._module.parameters():
            one.grad = None
            for name in ("_forward_counter", "_current_grad_sample", "grad_sample"):
                one.__dict__.pop(name, None)
