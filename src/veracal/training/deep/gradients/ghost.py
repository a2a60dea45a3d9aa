"""Clipped sums from what each layer has seen, in one forward and one backward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from veracal._precision import check_dtype
from veracal.privacy import Clip
from veracal.training.deep.gradients.adding import add_clipped
from veracal.training.deep.gradients.blocks import (
    Block,
    Inputs,
    Losses,
    Summed,
    called,
    losses_by_example,
    rows_of,
)
from veracal.training.deep.gradients.layers import Each, Gradients
from veracal.training.deep.gradients.others import rule_of
from veracal.training.deep.gradients.patches import convolved, patches_of, takes_products
from veracal.training.deep.gradients.room import Room
from veracal.training.deep.layout import Layout


class _Seen(NamedTuple):
    """One call of a layer."""

    layer: nn.Module
    inputs: Tensor
    outputs: GradientEdge  # not the tensor, which would stay in memory
    patches: tuple[Tensor, ...] | None  # of a convolution, where they are known


class Ghost:
    """Sums clipped gradients without writing those of large layers down.

    Parameters
    ----------
    module : torch.nn.Module
        Of layers that :func:`~veracal.training.deep.gradients.others.rule_of` knows, whose
        first dimension counts the examples.
    losses : callable
        ``losses(outputs, targets)`` of shape (n,).
    usual : int
        Examples of a block, as declared; there may be twice as many.
    last : bool, optional
        Whether pictures have their channels last in memory, in which convolutions and pooling
        are faster. By default they have wherever the module takes them so, which is tried
        with the first block: it must be made up.

    Notes
    -----
    The backward pass goes through the outputs of the layers alone: autograd leaves out
    whatever leads only to weights, and those gradients are computed once, already clipped.
    """

    name = "ghost"
    at_once = True

    def __init__(
        self, module: nn.Module, losses: Losses, usual: int, last: bool | None = None
    ) -> None:
        self._module, self._losses = module, losses
        convolved = any(isinstance(one, nn.Conv2d) for one in module.modules())
        self.last = last if convolved else False
        self._layout = Layout(module)
        self.size, self._usual = self._layout.size, usual
        self._room = Room()
        self._layers = [
            layer
            for layer in module.modules()
            if any(one.requires_grad for one in layer.parameters(recurse=False))
        ]
        self._rules = {layer: rule_of(layer) for layer in self._layers}

    @property
    def unknown(self) -> tuple[str, ...]:
        """Kinds of layers with parameters to train that are not known."""
        kinds = [type(layer).__name__ for layer, rule in self._rules.items() if rule is None]
        return tuple(dict.fromkeys(kinds))

    def add(self, block: Block, clip: Clip, total: Tensor) -> Summed:
        """Add the clipped sum over a block to a vector."""
        return add_clipped(
            self._found(block), clip, total, self._layout, self._usual, block.real
        )

    def _found(self, block: Block) -> dict[nn.Parameter, Gradients]:
        """The gradients of each parameter, over all its uses."""
        if self.last is None:
            self.last = self._takes_last(block)
        with self._watching() as seen, torch.enable_grad():
            outputs = called(self._module, _channels_last(block.inputs, self.last))
            total = losses_by_example(block, outputs, self._losses).sum()
        slopes = torch.autograd.grad(total, [one.outputs for one in seen], allow_unused=True)
        found: dict[nn.Parameter, Gradients] = {}
        rows = rows_of(block.inputs)
        for one, slope in zip(seen, slopes, strict=True):
            if slope is None:
                continue
            if len(slope) != rows or len(one.inputs) != rows:
                raise ValueError(_other_order(one.layer))
            rule = self._rules[one.layer]
            assert rule is not None
            more = {} if one.patches is None else {"patches": one.patches}
            for name, gradients in rule(
                one.layer,
                _full(one.inputs, one.layer),
                _full(slope, one.layer),
                len(block),
                self._usual,
                self._room,
                **more,
            ).items():
                _also(found, getattr(one.layer, name), gradients)
        return found

    @contextmanager
    def _watching(self) -> Iterator[list[_Seen]]:
        """Take note of what every layer gets and gives."""
        seen: list[_Seen] = []
        self._room.clear()
        patched: dict[nn.Module, tuple[Tensor, ...]] = {}

        def note(layer: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> None:
            edge, patches = get_gradient_edge(outputs), patched.pop(layer, None)
            seen.append(_Seen(layer, inputs[0].detach(), edge, patches))

        def product(layer: nn.Conv2d, x: Tensor) -> Tensor:
            patched[layer] = patches_of(layer, x.detach(), self._room)
            return convolved(layer, x, patched[layer])

        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        faster: list[Any] = [one for one in self._layers if self.last and takes_products(one)]
        try:
            for layer in faster:
                layer.forward = partial(product, layer)
            yield seen
        finally:
            for layer in faster:
                del layer.forward
            for hook in hooks:
                hook.remove()

    def _takes_last(self, block: Block) -> bool:
        """Whether the module makes the same of pictures whose channels are last in memory."""
        if not isinstance(block.inputs, Tensor) or block.inputs.ndim != 4:
            return False
        usual, other = (self._tried(block, last) for last in (False, True))
        if usual is None or other is None:
            return False
        return torch.allclose(usual, other, rtol=1e-3, atol=1e-4)

    def _tried(self, block: Block, last: bool) -> Tensor | None:
        """Outputs for a block, if it goes through, there and back."""
        self.last = last
        try:
            with torch.random.fork_rng(devices=[]), self._watching() as seen:
                torch.manual_seed(0)
                with torch.enable_grad():
                    made = called(self._module, _channels_last(block.inputs, last))
                    total = losses_by_example(block, made, self._losses).sum()
                torch.autograd.grad(total, [one.outputs for one in seen], allow_unused=True)
        except Exception:  # a view of what is not in its usual order, say
            return None
        outputs: Tensor = made.detach()
        return outputs


def _channels_last(inputs: Inputs, last: bool) -> Inputs:
    """Inputs with their channels last in memory, if they are to be."""
    if not last or not isinstance(inputs, Tensor) or inputs.ndim != 4:
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last)


def _full(values: Tensor, layer: nn.Module) -> Tensor:
    """What a layer has seen, unless in half precision: the slack is for float32."""
    check_dtype(values, type(layer).__name__)
    return values


def _also(
    found: dict[nn.Parameter, Gradients], parameter: nn.Parameter, gradients: Gradients
) -> None:
    """Add the gradients of one more use of a parameter: only written down do they add up."""
    if parameter in found:
        gradients = Each(found[parameter].each() + gradients.each())
    found[parameter] = gradients


def _other_order(layer: nn.Module) -> str:
    """What is wrong with a layer whose first dimension is not that of the examples."""
    return (
        f"Expected every layer to have one row for each example, got others in {layer}. Give "
        "it whatever is the same for all examples (positions, say) once for each, put the "
        'examples first (batch_first=True), or take gradients="functional".'
    )
