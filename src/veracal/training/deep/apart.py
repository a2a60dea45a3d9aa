"""Trials that examples stay apart: what becomes of one must not depend on the others.

Each trial compares what is made of some made-up examples with what is made of them when one of
them, each in turn, is another; and, as some things mix many and leave a few apart, what is made
of a whole block when half of it is another. A trial shows mistakes, and proves nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veracal.training.deep.gradients.blocks import Block, Inputs, Losses, called, rows_of
from veracal.training.deep.made_up import Replacing, half_replaced, one_replaced

_CLOSE = 1e-5  # of the largest output, by which it may move with the same numbers beside it
_LOSSES_CLOSE = 1e-4  # where a loss is taken alone, and roundings are others
_ALONE = 16  # examples whose losses are taken alone


def check_rows(
    made_up: Callable[[int, Replacing], Sequence[Block]],
    counts: tuple[int, int],
    augment: Any = None,
) -> tuple[Sequence[Block], Sequence[Block]]:
    """Made-up blocks of a few examples and of many, if nothing has mixed their rows.

    Parameters
    ----------
    made_up : callable
        Makes and prepares blocks; see
        :func:`~veracal.training.deep.made_up.made_up_blocks`.
    counts : pair of int
        Of examples in a block, of which each in turn, or half, is replaced.
    augment : Augment, optional
    """
    made = []
    for n, replacing in zip(counts, (one_replaced, half_replaced), strict=True):
        blocks = made_up(n, replacing)
        check_prepared(blocks, replacing)
        if augment is not None:
            check_views(augment, blocks, replacing)
        made.append(blocks)
    return made[0], made[1]


def check_prepared(blocks: Sequence[Block], replacing: Replacing) -> None:
    """Refuse a preparation that mixes rows.

    Parameters
    ----------
    blocks : sequence of Block
        See :func:`~veracal.training.deep.made_up.made_up_blocks`.
    replacing : callable
        With which they were made.
    """
    inputs = [_named(block.inputs) for block in blocks]
    for name in inputs[0]:
        made = [one[name] for one in inputs]
        if not all(isinstance(one, Tensor) for one in made):
            raise ValueError(
                "Expected prepare to give a tensor with a row for each row, got "
                f"{type(made[0]).__name__}. Return torch.from_numpy(...) of an array."
            )
        if len(made[0]) != len(blocks[0]) or _moved(made, replacing, 0.0):
            raise ValueError(
                "Expected prepare to turn each row by itself, got one whose result for a row "
                "changes with the others beside it. Scale by public figures instead."
            )


def check_views(augment: Any, blocks: Sequence[Block], replacing: Replacing) -> None:
    """Refuse an augmentation that gives other numbers of views than it says, or mixes examples.

    All blocks get the same random numbers.
    """
    views = getattr(augment, "views", None)
    if not isinstance(views, int) or views < 1:
        raise ValueError(
            "Expected augment to say how many views it makes, a whole number as augment.views, "
            f"got {views!r}."
        )
    made = [_viewed(augment, block, views) for block in blocks]
    if _moved(made, replacing, 0.0, views):
        raise ValueError(
            "Expected augment to make views of each example by itself, one example after the "
            "other, got one whose views of an example change with the others beside it. Leave "
            "out mixtures, and draw from the generator that is given, as often for each."
        )


def _viewed(augment: Any, block: Block, views: int) -> Tensor:
    """The views of a block, of which there are as many as there should be."""
    inputs = block.inputs
    if not isinstance(inputs, Tensor):
        raise ValueError("Expected a single input beside augment, got several by name.")
    made = augment(inputs, np.random.default_rng(0))
    expected = (len(block) * views, *inputs.shape[1:])
    if not isinstance(made, Tensor) or made.shape != expected:
        found = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(
            f"Expected {views} views of each of {len(block)} examples, of shape {expected}, "
            f"got {found}."
        )
    return made


def check_outputs(trial: nn.Module, blocks: Sequence[Block], replacing: Replacing) -> None:
    """Refuse a module in which an output depends on other examples, or on earlier ones."""
    # The first one again at the end: what was kept of the others meanwhile would show.
    made = [_seeded(trial, block.inputs) for block in (*blocks, blocks[0])]
    if len(made[0]) != rows_of(blocks[0].inputs) or _moved(made[:-1], replacing, _CLOSE):
        raise ValueError(
            "Expected a module that takes each example by itself, got one in which the output "
            "for an example changes with the others beside it. Look for means, maxima or "
            "orders over the first dimension."
        )
    if not float((made[0] - made[-1]).abs().max()) <= _CLOSE * _largest(made[0]):
        raise ValueError(
            "Expected a module that keeps nothing of what it has seen, got one whose outputs "
            "for the same examples change once it has seen others. Leave out running means."
        )


def _seeded(trial: nn.Module, inputs: Inputs) -> Tensor:
    """Outputs with the same random numbers each time, so that dropout is the same."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # the module's function takes longer than a row
        made: Tensor = outputs_of(trial, inputs)
    return made.detach().clone()


def outputs_of(module: nn.Module, inputs: Inputs) -> Any:
    """Outputs for made-up examples, or what is wrong with them in a sentence."""
    try:
        return called(module, inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            "Expected a module that takes rows in the form of the records, got one that fails "
            f"for made-up ones: {str(error).partition(chr(10))[0]} Give prepare=..., which "
            "turns rows into what the module takes."
        ) from error


def check_losses(losses: Losses, outputs: Tensor, classes: int, n: int) -> None:
    """Refuse a loss that is not each example's own.

    Parameters
    ----------
    losses : callable
    outputs : tensor
        Of a few made-up examples, whose form is taken.
    classes : int
    n : int
        Examples that are tried together, of which some classes have far more than others.
    """
    rng = np.random.default_rng(0)
    made = torch.from_numpy(rng.normal(0, 3, (n, *outputs.shape[1:]))).to(outputs.dtype)
    targets = torch.from_numpy((classes * rng.random(n) ** 3).astype(np.int64))
    together = losses(made, targets)
    if not isinstance(together, Tensor) or tuple(together.shape) != (n,):
        found = tuple(together.shape) if isinstance(together, Tensor) else type(together)
        raise ValueError(
            f"Expected loss(outputs, targets) to give the loss of each of {n} examples, of "
            f"shape ({n},), got {found}. Say reduction='none'."
        )
    some = range(min(n, _ALONE))
    alone = torch.stack([losses(made[i : i + 1], targets[i : i + 1])[0] for i in some])
    gap = (together[: len(alone)] - alone).abs().max()
    if not float(gap) <= _LOSSES_CLOSE * max(1.0, _largest(alone)):
        raise ValueError(
            "Expected a loss that takes each example by itself, got one that changes with the "
            "others beside it. Weigh classes by public figures, and leave none out by its rank."
        )


def _moved(made: Sequence[Tensor], replacing: Replacing, close: float, views: int = 1) -> bool:
    """Whether anything moved but what became of examples that are others.

    The first tensor is of some examples; the next ones, of the same with some replaced.
    """
    first, numbers = _doubled(made[0]), replacing(len(made[0]) // views)
    for place, other in zip(numbers[1:], made[1:], strict=True):
        if other.shape != first.shape:
            return True
        gap = (first - _doubled(other)).abs().reshape(len(first), -1).amax(1)
        same = torch.tensor(place) == torch.arange(len(place))
        gap = torch.where(same.repeat_interleave(views), gap, 0.0)
        if not float(gap.max()) <= close * _largest(first):
            return True
    return False


def _doubled(values: Tensor) -> Tensor:
    """Numbers that can be compared, in float64."""
    return torch.nan_to_num(values.to(torch.float64))


def _largest(values: Tensor) -> float:
    """The largest of some numbers, but not zero."""
    return max(float(values.abs().max()), 1e-6)


def _named(inputs: Inputs) -> dict[str, Any]:
    """Inputs by their names; a single one has none."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}
