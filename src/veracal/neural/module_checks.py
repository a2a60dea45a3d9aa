"""Checks before training: per-example independence and supported layers of modules.

Each independence check compares the results for some synthetic examples with the results after
one of them, each in turn, is replaced, and the results for a whole block after half of it is
replaced, since some operations mix many examples but not a few. The checks detect mistakes;
they prove nothing.

Modules are rejected if a gradient would not belong to a single example.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from veracal.neural.examples import (
    Block,
    LossFunction,
    Replacement,
    compute_logits,
    count_rows,
    replace_each,
    replace_halves,
)
from veracal.neural.precision import (
    check_products,
    find_reduced_context,
    full_precision,
    refuse_half_precision,
)

_TOLERANCE = 1e-5  # of the largest output, for blocks of the same shape
_LOSS_TOLERANCE = 1e-4  # for a loss of one example, which is rounded differently
_SINGLES = 16  # examples whose losses are computed one at a time
_PASSES = 8  # forward passes in which every parameter should get a gradient
_HOOKS = "autograd_grad_sample_hooks"  # Opacus' hooks, which may outlive the wrapper
# Wrappers of modules by class name (some are slow to import), and how to get the module inside.
_WRAPPERS = {
    "torch.OptimizedModule": ("torch.compile", "{}._orig_mod"),
    "torch.DataParallel": ("nn.DataParallel", "{}.module"),
    "torch.DistributedDataParallel": ("DistributedDataParallel", "{}.module"),
    "torch.ScriptModule": ("torch.jit", "the nn.Module that {} was scripted or traced from"),
    "opacus.AbstractGradSampleModule": ("GradSampleModule", "{}.to_standard_module()"),
}


@contextmanager
def perturbed_initialization(module: nn.Module) -> Iterator[None]:
    """Add noise to constant weights inside the block, and restore them afterwards.

    Behind a zero-initialized head all outputs are the same, whatever came before it; likewise
    behind an adapter whose second half is zero, or a branch that is multiplied by zero. The
    gradients of all preceding layers are zero, too. A check of such a module would find
    independent examples and correct gradients in layers that had no effect. After the first
    step the weights are no longer zero.
    """
    constants = []  # trained parameters that are zero, or matrices of equal numbers
    for one in module.parameters():
        if one.requires_grad and one.numel():
            value = float(one.detach().reshape(-1)[0])
            if (one.ndim > 1 or value == 0.0) and bool((one == value).all()):
                constants.append((one, value))
    rng = torch.Generator().manual_seed(0)  # synthetic, like the examples
    try:
        with torch.no_grad():
            for one, _ in constants:
                width = one[0].numel() if one.ndim > 1 else 1
                one.add_(torch.randn(one.shape, generator=rng), alpha=width**-0.5)
        yield
    finally:
        with torch.no_grad():
            for one, value in constants:
                one.fill_(value)


def check_prepare(blocks: Sequence[Block], replacement: Replacement) -> None:
    """Reject a ``prepare`` that mixes rows, by blocks that it made of replaced examples."""
    inputs = [
        block.inputs if isinstance(block.inputs, Mapping) else {"": block.inputs}
        for block in blocks
    ]
    for name in inputs[0]:
        tensors = [one[name] for one in inputs]
        if not all(isinstance(one, Tensor) for one in tensors):
            raise ValueError(
                "Expected prepare to give a tensor with a row for each row, got "
                f"{type(tensors[0]).__name__}. Return torch.from_numpy(...) of an array."
            )
        if len(tensors[0]) != len(blocks[0]) or _others_changed(tensors, replacement, 0.0):
            raise ValueError(
                "Expected prepare to treat each row independently, got one whose result for a "
                "row changes with the other rows. Scale by public constants instead."
            )


def check_augment(augment: Any, blocks: Sequence[Block], replacement: Replacement) -> None:
    """Reject an augmentation with a wrong number of views, or one that mixes examples.

    All blocks get the same random numbers.
    """
    views = getattr(augment, "views", None)
    if not isinstance(views, int) or views < 1:
        raise ValueError(
            "Expected augment.views to be the number of views, a positive integer, got "
            f"{views!r}."
        )
    results = []
    for block in blocks:
        if not isinstance(block.inputs, Tensor):
            raise ValueError("Expected a single input with augment, got several named inputs.")
        result = augment(block.inputs, np.random.default_rng(0))
        expected = (len(block) * views, *block.inputs.shape[1:])
        if _shape(result) != expected:
            raise ValueError(
                f"Expected {views} views of each of {len(block)} examples, of shape {expected}, "
                f"got {_shape(result)}."
            )
        results.append(result)
    if _others_changed(results, replacement, 0.0, views):
        raise ValueError(
            "Expected augment to make views of each example independently, one example after "
            "the other, got one whose views of an example change with the other examples. Do "
            "not mix examples, and draw the same number of random values for each from the "
            "given generator."
        )


def _check_outputs(trial: nn.Module, blocks: Sequence[Block], replacement: Replacement) -> None:
    """Reject a module in which an output depends on other examples, or on earlier calls."""
    outputs = []
    # The first block again at the end, to detect state that the others left behind.
    for block in (*blocks, blocks[0]):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # the same dropout masks each time
            outputs.append(_trial_outputs(trial, block.inputs).detach().clone())
    if len(outputs[0]) != count_rows(blocks[0].inputs) or _others_changed(
        outputs[:-1], replacement, _TOLERANCE
    ):
        raise ValueError(
            "Expected a module that treats each example independently, got one in which the "
            "output for an example changes with the other examples of its batch. Look for "
            "means, maxima or sorting over the first dimension."
        )
    gap = float((outputs[0] - outputs[-1]).abs().max())
    if not gap <= _TOLERANCE * _largest_magnitude(outputs[0]):
        raise ValueError(
            "Expected a module without state, got one whose outputs for the same examples "
            "change after it was called on others. Remove running means."
        )


def _trial_outputs(module: nn.Module, inputs: Any) -> Any:
    """Outputs for synthetic examples, or a clear error if the module fails for them."""
    try:
        return compute_logits(module, inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            "Expected a module that accepts rows in the format of the records, got one that "
            f"fails for synthetic rows: {str(error).partition(chr(10))[0]} Pass prepare=... to "
            "convert rows to the input of the module."
        ) from error


def check_loss(losses: LossFunction, outputs: Tensor, classes: int, n: int) -> None:
    """Reject a loss that mixes examples, on n synthetic outputs of the shape and type of others.

    Some classes have far more examples than others.
    """
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(0, 3, (n, *outputs.shape[1:]))).to(outputs.dtype)
    targets = torch.from_numpy((classes * rng.random(n) ** 3).astype(np.int64))
    batch_losses = losses(logits, targets)
    if _shape(batch_losses) != (n,):
        raise ValueError(
            f"Expected loss(outputs, targets) to return the loss of each of {n} examples, of "
            f"shape ({n},), got {_shape(batch_losses)}. Use reduction='none'."
        )
    single_losses = torch.stack(
        [losses(logits[i : i + 1], targets[i : i + 1])[0] for i in range(min(n, _SINGLES))]
    )
    gap = (batch_losses[: len(single_losses)] - single_losses).abs().max()
    if not float(gap) <= _LOSS_TOLERANCE * max(1.0, _largest_magnitude(single_losses)):
        raise ValueError(
            "Expected a loss that treats each example independently, got one that changes with "
            "the other examples. Weight classes by public constants, and do not drop examples "
            "by their rank."
        )


def _others_changed(
    results: Sequence[Tensor], replacement: Replacement, tolerance: float, views: int = 1
) -> bool:
    """Return whether any result changed for an example that was not replaced.

    The first tensor holds the results of some examples; the next ones, of the same examples
    with some replaced.
    """
    indices = replacement(len(results[0]) // views)
    first, *others = (torch.nan_to_num(one.to(torch.float64)) for one in results)
    for row, other in zip(indices[1:], others, strict=True):
        if other.shape != first.shape:
            return True
        gap = (first - other).abs().reshape(len(first), -1).amax(1)
        same = torch.tensor(row) == torch.arange(len(row))
        gap = torch.where(same.repeat_interleave(views), gap, 0.0)
        if not float(gap.max()) <= tolerance * _largest_magnitude(first):
            return True
    return False


def _largest_magnitude(values: Tensor) -> float:
    """Largest absolute value, at least 1e-6."""
    return max(float(values.abs().max()), 1e-6)


def _shape(values: Any) -> Any:
    """Shape of a tensor; the name of the type of anything else."""
    return tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__


def check_module(module: nn.Module) -> None:
    """Reject a module by its structure alone.

    Raises
    ------
    ValueError
        For wrapped modules; layers that mix examples or keep running statistics of them;
        parameters without values, not on the CPU or not in float32; modules without trainable
        parameters or that cannot be copied; and calls in a context where torch computes no
        gradients. The message names the layer and a replacement.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"Expected a torch.nn.Module, or a function that returns one, got {module!r}."
        )
    context = find_reduced_context()
    if context is not None:
        raise ValueError(
            f"Expected a call outside of {context}, since gradients are computed in full "
            "float32 from the actual weights, got one inside. Leave that context first."
        )
    check_products()
    for name, layer in module.named_modules():
        _check_layer(name, layer)
    for name, one in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(one):
            raise ValueError(
                f"Expected initialized parameters, got {name!r}, which is lazy. Call the module "
                "once on synthetic rows before training."
            )
        if one.is_meta:
            raise ValueError(
                f"Expected parameters with values, got {name!r} on the device 'meta'. Create "
                "the module on the CPU, or call module.to_empty(device='cpu') and load its "
                "weights."
            )
        if one.device.type != "cpu":
            raise ValueError(
                f"Expected parameters on the CPU, got {name!r} on {one.device}. Use "
                "module.cpu()."
            )
    check_copyable(module)
    trained = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    if not trained:
        raise ValueError(
            "Expected a module with trainable parameters, got one in which all are frozen. "
            "Call requires_grad_(True) on those to be trained."
        )
    for name, one in trained:
        if not bool(one.detach().isfinite().all()):
            raise ValueError(
                f"Expected finite parameters, got {name!r} with NaN or infinity. Start from "
                "other weights."
            )
        if one.dtype != torch.float32:
            raise ValueError(
                f"Expected parameters in float32, got {name!r} in {one.dtype}. Use "
                "module.float()."
            )


def check_copyable(module: nn.Module) -> None:
    """Reject a module that holds tensors computed from its parameters.

    torch cannot copy such a module.
    """
    for name, layer in module.named_modules():
        for word, value in {**vars(layer), **layer._buffers}.items():
            if isinstance(value, Tensor) and not value.is_leaf:
                raise ValueError(
                    "Expected a module that can be copied, got one that holds "
                    f"{f'{name}.{word}'.lstrip('.')!r}, computed from its parameters, as left "
                    "by torch.nn.utils.prune and weight_norm. Call the module once in "
                    "torch.no_grad() to train it as it is, or remove the reparametrization "
                    "with prune.remove(layer, name) or remove_weight_norm(layer)."
                )


def _check_layer(name: str, layer: nn.Module) -> None:
    """Reject a wrapper, and a layer that mixes examples or keeps information about them."""
    kind = type(layer).__name__
    path = f"module.get_submodule({name!r})" if name else "module"
    name, is_root = name or kind, not name
    if is_root or any(one.requires_grad for one in layer.parameters()):
        # Wrappers hide trained layers or rename their weights.
        for cls in type(layer).__mro__:
            wrapper = _WRAPPERS.get(f"{cls.__module__.partition('.')[0]}.{cls.__name__}")
            if wrapper is not None:
                raise ValueError(
                    f"Expected an unwrapped module, got {name!r}, wrapped by {wrapper[0]}. "
                    f"Pass the module inside: {wrapper[1].format(path)}."
                )
        if _HOOKS in vars(layer):
            raise ValueError(
                f"Expected an unwrapped module, got {name!r} with hooks of Opacus. Pass "
                "wrapped.to_standard_module() of the GradSampleModule around it."
            )
    if isinstance(layer, _BatchNorm) and not _is_frozen(layer):
        raise ValueError(
            f"Expected layers that treat each example independently, got {name!r}, a "
            f"{kind}, which normalizes over the batch. Use "
            "veracal.neural.replace_batch_norm(module), which replaces it by GroupNorm "
            "(LayerNorm for plain rows), or freeze it."
        )
    if getattr(layer, "track_running_stats", False) and not _is_frozen(layer):
        raise ValueError(
            f"Expected layers that store nothing about the records, got {name!r}, a "
            f"{kind} with running statistics. Use track_running_stats=False."
        )
    if getattr(layer, "max_norm", None) is not None:
        raise ValueError(
            f"Expected layers that store nothing about the records, got {name!r}, a "
            f"{kind} with max_norm: it rescales the rows that were looked up, "
            "without noise. Remove max_norm."
        )
    if getattr(layer, "sparse", False) is True:
        raise ValueError(
            f"Expected layers with dense gradients, got {name!r}, a {kind} "
            "with sparse=True. Remove it: noise is added to all rows anyway."
        )
    if isinstance(layer, _SpectralNorm) or any(
        isinstance(hook, SpectralNorm) for hook in layer._forward_pre_hooks.values()
    ):
        raise ValueError(
            f"Expected layers that a forward pass does not change, got {name!r} with "
            "spectral_norm, which updates buffers in every pass. Remove it with "
            "torch.nn.utils.parametrize.remove_parametrizations(layer, name) or, for hooks, "
            "torch.nn.utils.remove_spectral_norm(layer)."
        )


def _is_frozen(layer: nn.Module) -> bool:
    """Return whether a layer has statistics of its own and no trained parameter.

    A layer without parameters counts as frozen if it has seen a batch or is not in training
    mode.
    """
    if getattr(layer, "running_mean", None) is None:
        return False
    parameters = list(layer.parameters())
    if not parameters and layer.training:
        return int(getattr(layer, "num_batches_tracked", None) or 0) > 0
    return not any(one.requires_grad for one in parameters)


@full_precision()
def check_behavior(
    module: nn.Module, blocks: Sequence[Block], outputs: int, full_blocks: Sequence[Block] = ()
) -> Tensor:
    """Reject a module by its outputs and gradients for synthetic examples.

    Parameters
    ----------
    module : torch.nn.Module
    blocks : sequence of Block
        Synthetic examples in the format of the records; each block but the first has another
        example replaced.
    outputs : int
        Number of classes.
    full_blocks : sequence of Block
        With as many examples as a block has in training, one half replaced in the second, the
        other half in the third: see :func:`~veracal.neural.examples.replace_halves`.

    Returns
    -------
    tensor
        Outputs for the first block.

    Raises
    ------
    ValueError
        If the shape of the outputs does not match the classes, an example's output depends on
        the others (in training or evaluation mode), a forward pass changes a parameter or
        buffer, or a parameter gets no gradient.
    """
    for name, one in module.named_parameters():
        if one.requires_grad and one.is_inference():
            raise ValueError(
                f"Expected parameters that can be trained, got {name!r}, which was created in "
                "torch.inference_mode(). Pass copy.deepcopy(module), made outside of it."
            )
    trial, rows = copy_module(module), count_rows(blocks[0].inputs)
    allowed = [(rows, outputs)] + ([(rows, 1), (rows,)] if outputs == 2 else [])
    replacements = [(blocks, replace_each), (full_blocks, replace_halves)]
    with perturbed_initialization(trial):
        logits = torch.empty(0)
        set_train_mode(trial)
        before = _tensor_digests(trial)
        for _ in range(_PASSES):  # a layer may be skipped at random
            with torch.enable_grad(), refuse_half_precision():
                logits = _trial_outputs(trial, blocks[0].inputs)
                if _shape(logits) not in allowed:
                    raise ValueError(
                        f"Expected a module that returns {outputs} logits for each of {rows} "
                        f"examples, got {_shape(logits)}."
                    )
                torch.autograd.backward(logits.double().square().sum())
            unused = [
                name
                for name, one in trial.named_parameters()
                if one.requires_grad and one.grad is None
            ]
            if not unused:
                break
        if unused:
            raise ValueError(
                "Expected a gradient for every trained parameter, got none for "
                f"{', '.join(map(repr, unused[:5]))}. Freeze unused parameters with "
                "requires_grad_(False)."
            )
        for some, replacement in replacements:
            if some:
                _check_outputs(trial, some, replacement)
        after = _tensor_digests(trial)
        for name in before:
            if before[name] != after[name]:
                raise ValueError(
                    "Expected a forward pass without side effects, got one that changes "
                    f"{name!r}: it would store information about the records, without noise. "
                    "Remove it."
                )
        trial.eval()
        for some, replacement in replacements:
            if some:
                _check_outputs(trial, some, replacement)
        return logits.detach()


def _tensor_digests(module: nn.Module) -> dict[str, bytes]:
    """Digest of each parameter, including frozen ones, and of each buffer."""
    return {
        name: hashlib.blake2b(one.detach().reshape(-1).view(torch.uint8).numpy().data).digest()
        for name, one in (*module.named_parameters(), *module.named_buffers())
    }


def copy_module(module: nn.Module, *, shares: bool = True) -> Any:
    """Copy a module; frozen parameters, often most of a network, may be shared."""
    frozen: dict[int, Any] = {
        id(one): one for one in module.parameters() if shares and not one.requires_grad
    }
    try:
        return copy.deepcopy(module, frozen)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            "Expected a module that can be copied, got one for which copy.deepcopy fails: "
            f"{str(error).partition(chr(10))[0]}. Remove objects that cannot be copied (locks, "
            "open files)."
        ) from error


def set_train_mode(module: nn.Module) -> None:
    """Set training mode, except for batch normalizations with frozen public statistics."""
    module.train()
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and _is_frozen(layer):
            layer.eval()


def replace_batch_norm(module: nn.Module, *, groups: int = 32) -> nn.Module:
    """Return a copy with a per-example normalization in place of every BatchNorm.

    Images get a GroupNorm. A BatchNorm1d accepts plain rows (n, c) and series (n, c, l): after
    a Linear of c outputs it becomes a LayerNorm, after a convolution a GroupNorm, and otherwise
    a GroupNorm of one group, which is the LayerNorm of a plain row and also accepts series.
    Groups of one channel would turn a plain row into zeros.

    Parameters
    ----------
    module : torch.nn.Module
    groups : int
        Maximum number of groups; the largest divisor of the channels with two or more in each
        group is used.

    Examples
    --------
    >>> replace_batch_norm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))[1]
    GroupNorm(4, 8, ...)
    """
    copied = copy.deepcopy(module)
    preceding, last = dict[nn.Module, nn.Module | None](), None
    for layer in copied.modules():
        if isinstance(layer, _BatchNorm):
            preceding[layer] = last
        elif isinstance(layer, nn.Linear | nn.Conv1d):
            last = layer
    for parent in list(copied.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _BatchNorm):
                setattr(parent, name, _replacement_norm(layer, preceding[layer], groups))
    return _replacement_norm(copied, None, groups) if isinstance(copied, _BatchNorm) else copied


def _replacement_norm(layer: _BatchNorm, preceding: nn.Module | None, groups: int) -> nn.Module:
    """Return the replacement of a BatchNorm, given the preceding layer with weights."""
    width = layer.num_features
    if isinstance(layer, nn.BatchNorm1d):
        if isinstance(preceding, nn.Linear) and preceding.out_features == width:
            return nn.LayerNorm(width, eps=layer.eps, elementwise_affine=layer.affine)
        if not (isinstance(preceding, nn.Conv1d) and preceding.out_channels == width):
            groups = 1  # the input may be rows or series
    divisor = max(
        (g for g in range(1, groups + 1) if width % g == 0 and width // g >= 2), default=1
    )
    return nn.GroupNorm(divisor, width, eps=layer.eps, affine=layer.affine)
