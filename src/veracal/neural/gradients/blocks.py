"""Input and output of gradient engines: one block of examples at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from veracal.mechanisms import ClipRule

Inputs = Tensor | Mapping[str, Tensor]
LossFunction = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Block:
    """Examples, in the order in which the network receives them.

    Attributes
    ----------
    inputs : tensor, or mapping of names to tensors
        One row for each view of each example; all views of an example are adjacent.
    targets : tensor of shape (n,)
    views : int
        Number of augmented views per example; their gradients are averaged before the clip.
    real : tensor of bool, of shape (n,), optional
        Marks the examples; the others are padding and must contribute nothing. None: all are
        examples.
    """

    inputs: Inputs
    targets: Tensor
    views: int = 1
    real: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def part(self, start: int, end: int) -> "Block":
        """Return examples ``start`` to ``end`` as a block."""
        cut = slice(start * self.views, end * self.views)
        if isinstance(self.inputs, Mapping):
            some: Inputs = {name: one[cut] for name, one in self.inputs.items()}
        else:
            some = self.inputs[cut]
        real = None if self.real is None else self.real[start:end]
        return Block(some, self.targets[start:end], self.views, real)


@dataclass(frozen=True, eq=False, repr=False)
class ClippedBlockSum:
    """Norms and counts of a block whose clipped sum was added, without noise.

    Attributes
    ----------
    norms : tensor, in float64
        Gradient norms of all real examples before the clip; not finite for those left out.
    exceeding : int
        See :class:`veracal.mechanisms.ClipSelection`.
    """

    norms: Tensor
    exceeding: int


class PartialSumError(RuntimeError):
    """A block failed while it was being added; the sum may hold a part of it."""


class GradientEngine(Protocol):
    """A method to sum clipped per-example gradients.

    Guarantees
    ----------
    Those of :func:`veracal.neural.gradients.engines.add_clipped`.
    """

    name: str
    size: int  # of the vector of all weights
    atomic: bool  # whether a block is added completely or, if it fails, not at all

    def add(self, block: Block, clip: ClipRule, total: Tensor) -> ClippedBlockSum:
        """Add the clipped sum over a block to a vector of float64."""


def compute_logits(module: nn.Module, inputs: Inputs) -> Any:
    """Call a module and return its logits, also from a Hugging Face output."""
    outputs = module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
    return getattr(outputs, "logits", outputs)


def count_rows(inputs: Inputs) -> int:
    """Return the number of rows of the inputs."""
    one = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(one)


def example_losses(block: Block, outputs: Any, losses: LossFunction) -> Tensor:
    """Return losses of shape (n,): the mean over the views of each example."""
    if block.views == 1:
        return losses(outputs, block.targets)
    targets = block.targets.repeat_interleave(block.views)
    return losses(outputs, targets).view(len(block), block.views).mean(1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each example.

    A single logit belongs to the second of two classes.
    """
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(
            outputs.reshape(len(targets)), targets.to(outputs.dtype), reduction="none"
        )
    return nn.functional.cross_entropy(outputs, targets, reduction="none")
