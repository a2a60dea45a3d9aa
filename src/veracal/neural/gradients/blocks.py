"""What every way of summing gradients takes and gives: one block of examples at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from veracal.mechanisms import ClipRule

Inputs = Tensor | Mapping[str, Tensor]
LossFunction = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Block:
    """Some examples, in the order in which they are given to the network.

    Attributes
    ----------
    inputs : tensor, or mapping of names to tensors
        With one row for each view of each example, the views of one after the other.
    targets : tensor of shape (n,)
    views : int
        How many augmented views of each example there are; their gradients are averaged
        before the clip.
    real : tensor of bool, of shape (n,), optional
        Which of them are examples: the others fill the block up and must add nothing. None if
        all are.
    """

    inputs: Inputs
    targets: Tensor
    views: int = 1
    real: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def part(self, start: int, end: int) -> "Block":
        """Some of the examples."""
        cut = slice(start * self.views, end * self.views)
        if isinstance(self.inputs, Mapping):
            some: Inputs = {name: one[cut] for name, one in self.inputs.items()}
        else:
            some = self.inputs[cut]
        real = None if self.real is None else self.real[start:end]
        return Block(some, self.targets[start:end], self.views, real)


@dataclass(frozen=True, eq=False, repr=False)
class ClippedBlockSum:
    """The clipped sum over a block, not yet noisy.

    Attributes
    ----------
    norms : tensor, in float64
        Norms of the gradients of all real examples before the clip; not finite for those that
        were left out.
    exceeding : int
        See :class:`veracal.mechanisms.Selection`.
    """

    norms: Tensor
    exceeding: int


class PartialSumError(RuntimeError):
    """Something failed while a block was being added; nobody knows what of it is in the sum."""


class GradientEngine(Protocol):
    """A way to sum clipped gradients.

    Guarantees
    ----------
    Those of :func:`veracal.neural.gradients.engines.add_clipped`.
    """

    name: str
    size: int  # of the vector of all weights
    at_once: bool  # whether a block is added whole, or fails before anything of it is

    def add(self, block: Block, clip: ClipRule, total: Tensor) -> ClippedBlockSum:
        """Add the clipped sum over a block to a vector of float64."""


def compute_logits(module: nn.Module, inputs: Inputs) -> Any:
    """What a module makes of its inputs: the logits, whatever they are wrapped in."""
    made = module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
    return getattr(made, "logits", made)


def count_rows(inputs: Inputs) -> int:
    """How many rows there are."""
    one = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(one)


def example_losses(block: Block, outputs: Any, losses: LossFunction) -> Tensor:
    """Losses of shape (n,): the mean over the views of each example."""
    if block.views == 1:
        return losses(outputs, block.targets)
    targets = block.targets.repeat_interleave(block.views)
    return losses(outputs, targets).view(len(block), block.views).mean(1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Losses of logits; one logit is that of the second of two classes."""
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(
            outputs.reshape(len(targets)), targets.to(outputs.dtype), reduction="none"
        )
    return nn.functional.cross_entropy(outputs, targets, reduction="none")
