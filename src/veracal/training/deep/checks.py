"""Refusals before training: networks for which a gradient is not one example's own."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

from veracal.training.deep.gradients.blocks import Block, Inputs, called, rows_of

_CLOSE = 1e-3  # of the spread of outputs, by which rounding may move a row beside others


def check_parts(module: nn.Module) -> None:
    """Refuse a module by its parts alone.

    Raises
    ------
    ValueError
        For layers that mix examples or keep running statistics of them, parameters without
        values, in another precision than float32, or nothing to train. The message names the
        layer and what to put in its place.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"Expected a torch.nn.Module, or a function that makes one, got {module!r}."
        )
    for name, layer in module.named_modules():
        _check_layer(name or type(module).__name__, layer)
    trained = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    if not trained:
        raise ValueError(
            "Expected a module with parameters to train, got one in which all are frozen. Set "
            "requires_grad_(True) on those to be trained."
        )
    for name, one in trained:
        if isinstance(one, UninitializedParameter):
            raise ValueError(
                f"Expected parameters with values, got {name!r}, which has none yet. Call the "
                "module once on made-up rows before it is trained."
            )
        if one.dtype != torch.float32:
            raise ValueError(
                f"Expected parameters in float32, got {name!r} in {one.dtype}. Use "
                "module.float()."
            )


def _check_layer(name: str, layer: nn.Module) -> None:
    """Refuse a layer that looks at more than one example."""
    if isinstance(layer, _BatchNorm) and not _frozen(layer):
        raise ValueError(
            f"Expected layers that take each example by itself, got {name!r}, a "
            f"{type(layer).__name__}: it scales every example by all others. Use "
            "veracal.training.deep.without_batch_norm(module), which puts GroupNorm in its "
            "place (for plain rows LayerNorm), or freeze it."
        )
    if getattr(layer, "track_running_stats", False) and not _frozen(layer):
        raise ValueError(
            f"Expected layers that keep nothing of the records, got {name!r}, a "
            f"{type(layer).__name__} with running statistics. Use track_running_stats=False."
        )


def _frozen(layer: nn.Module) -> bool:
    """Whether a layer has statistics of its own and nothing in it is trained."""
    settled = getattr(layer, "running_mean", None) is not None
    return settled and not any(one.requires_grad for one in layer.parameters())


def check_trial(module: nn.Module, block: Block, others: Block, outputs: int) -> None:
    """Refuse a module by what it does with made-up examples.

    Parameters
    ----------
    module : torch.nn.Module
    block : Block
        Of three made-up examples or more, in the form of the records.
    others : Block
        The same first and last example, with others between them.
    outputs : int
        How many classes there are.

    Raises
    ------
    ValueError
        If outputs have another shape than the classes ask for, an example's output depends on
        the others, in training or later, a forward pass changes a buffer, or a parameter gets
        no gradient.
    """
    trial = copied(module)
    train_mode(trial)
    before = {name: one.clone() for name, one in trial.named_buffers()}
    with torch.enable_grad():
        made = _called(trial, block.inputs)
        _check_shape(made, rows_of(block.inputs), outputs)
        torch.autograd.backward(made.double().square().sum())
    for name, one in trial.named_buffers():
        if not torch.equal(torch.nan_to_num(one), torch.nan_to_num(before[name])):
            raise ValueError(
                f"Expected a forward pass that changes nothing, got one that changes the "
                f"buffer {name!r}: it would keep something of the records. Leave it out."
            )
    unused = [
        name for name, one in trial.named_parameters() if one.requires_grad and one.grad is None
    ]
    if unused:
        raise ValueError(
            "Expected a gradient for every parameter that is trained, got none for "
            f"{', '.join(map(repr, unused[:5]))}. Freeze what is not used, by "
            "requires_grad_(False)."
        )
    _check_apart(trial, block, others)
    _check_apart(trial.eval(), block, others)


def copied(module: nn.Module) -> Any:
    """A copy to try things on, which shares what is frozen: that may be most of a network."""
    frozen: dict[int, Any] = {
        id(one): one for one in module.parameters() if not one.requires_grad
    }
    return copy.deepcopy(module, frozen)


def _called(module: nn.Module, inputs: Inputs) -> Any:
    """Outputs for made-up examples, or what is wrong with them in a sentence."""
    try:
        return called(module, inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            "Expected a module that takes rows in the form of the records, got one that fails "
            f"for made-up ones: {str(error).partition(chr(10))[0]} Give prepare=..., which "
            "turns rows into what the module takes."
        ) from error


def _check_shape(made: Any, rows: int, outputs: int) -> None:
    """Refuse outputs that are not one logit for each class."""
    allowed = [(rows, outputs)] + ([(rows, 1), (rows,)] if outputs == 2 else [])
    if not isinstance(made, Tensor) or tuple(made.shape) not in allowed:
        found = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(
            f"Expected a module that gives {outputs} logits for each of {rows} examples, got "
            f"{found}."
        )


def _check_apart(trial: nn.Module, block: Block, others: Block) -> None:
    """Refuse a module in which one example's output depends on another's input."""
    found = []
    for one in (block, others):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # so that dropout is the same
            found.append(called(trial, one.inputs))
    spread = max(float(found[0].abs().max()), 1e-6)
    for place in (0, -1):
        if not float((found[0][place] - found[1][place]).abs().max()) <= _CLOSE * spread:
            raise ValueError(
                "Expected a module that takes each example by itself, got one in which the "
                "output for an example changes with the others beside it. Look for means or "
                "maxima over the first dimension."
            )


def check_prepared(block: Block, others: Block) -> None:
    """Refuse a preparation that mixes rows: the first and the last are the same in both."""
    for name, one in _named(block.inputs).items():
        other = _named(others.inputs)[name]
        if len(one) != len(other) or not all(torch.equal(one[i], other[i]) for i in (0, -1)):
            raise ValueError(
                "Expected prepare to turn each row by itself, got one whose result for a row "
                "changes with the others beside it. Scale by public figures instead."
            )


def check_views(augment: Any, block: Block) -> None:
    """Refuse an augmentation that does not give every example so many views as it says."""
    inputs = block.inputs
    if not isinstance(inputs, Tensor):
        raise ValueError("Expected a single input beside augment, got several by name.")
    made = augment(inputs, np.random.default_rng(0))
    expected = len(block) * int(augment.views)
    if (
        not isinstance(made, Tensor)
        or len(made) != expected
        or made.shape[1:] != inputs.shape[1:]
    ):
        found = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(
            f"Expected {augment.views} views of each of {len(block)} examples, of shape "
            f"{(expected, *inputs.shape[1:])}, got {found}."
        )


def _named(inputs: Inputs) -> Mapping[str, Tensor]:
    """Inputs by their names; a single one has none."""
    return inputs if isinstance(inputs, Mapping) else {"": inputs}


def train_mode(module: nn.Module) -> None:
    """Set a module to training, but for normalizations whose public statistics are frozen."""
    module.train()
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and _frozen(layer):
            layer.eval()


def without_batch_norm(module: nn.Module, *, groups: int = 32) -> nn.Module:
    """A copy with a normalization of each example in place of every BatchNorm.

    Pictures get a GroupNorm. A BatchNorm1d takes plain rows (n, c) and series (n, c, l): after
    a Linear of c outputs it becomes a LayerNorm, after a convolution a GroupNorm, and after
    anything else a GroupNorm of one group, which is the LayerNorm of a plain row and takes
    series too. Groups of one channel would turn a plain row into zeros.

    Parameters
    ----------
    module : torch.nn.Module
    groups : int
        At most; as many as divide the channels and leave two or more in each.

    Examples
    --------
    >>> without_batch_norm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))[1]
    GroupNorm(4, 8, ...)
    """
    changed = copy.deepcopy(module)
    before, last = dict[nn.Module, nn.Module | None](), None
    for layer in changed.modules():
        if isinstance(layer, _BatchNorm):
            before[layer] = last
        elif isinstance(layer, nn.Linear | nn.Conv1d):
            last = layer
    for parent, name, layer in list(_children(changed)):
        if isinstance(layer, _BatchNorm):
            setattr(parent, name, _instead(layer, before[layer], groups))
    return _instead(changed, None, groups) if isinstance(changed, _BatchNorm) else changed


def _children(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Every layer with its parent and its name there."""
    for parent in module.modules():
        for name, layer in parent.named_children():
            yield parent, name, layer


def _instead(layer: _BatchNorm, before: nn.Module | None, groups: int) -> nn.Module:
    """What stands in for a BatchNorm, by the layer with weights before it."""
    width = layer.num_features
    if isinstance(layer, nn.BatchNorm1d):
        if isinstance(before, nn.Linear) and before.out_features == width:
            return nn.LayerNorm(width, eps=layer.eps, elementwise_affine=layer.affine)
        if not (isinstance(before, nn.Conv1d) and before.out_channels == width):
            groups = 1  # who knows what it takes
    most = max(
        (g for g in range(1, groups + 1) if width % g == 0 and width // g >= 2), default=1
    )
    return nn.GroupNorm(most, width, eps=layer.eps, affine=layer.affine)
