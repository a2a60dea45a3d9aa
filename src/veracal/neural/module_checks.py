"""Weights for a trial: layers that begin at zero would hide what the others do.

Trials that examples stay apart: what becomes of one must not depend on the others.

Each trial compares what is made of some made-up examples with what is made of them when one of
them, each in turn, is another; and, as some things mix many and leave a few apart, what is made
of a whole block when half of it is another. A trial shows mistakes, and proves nothing.

Refusals before training: networks for which a gradient is not one example's own.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from veracal.neural.gradients.blocks import (
    Block,
    Inputs,
    LossFunction,
    compute_logits,
    count_rows,
)
from veracal.neural.precision import (
    check_products,
    find_reduced_context,
    full_precision,
    refuse_half_precision,
)
from veracal.neural.synthetic_inputs import Replacement, replace_each, replace_halves


@contextmanager
def perturbed_initialization(module: nn.Module) -> Iterator[None]:
    """Random numbers in place of weights that are all the same, while the block lasts.

    Behind a head of zeros all outputs are the same whatever came before it, and so they are
    behind an adapter whose second half is zero, or a branch that is multiplied by zero; the
    gradients of whatever comes before are zero, too. A trial of such a module would find that
    examples stay apart, and gradients that are right, in layers that it never saw. After the
    first step the weights are no longer zero.
    """
    same = [
        (one, float(one.detach().reshape(-1)[0]))
        for one in module.parameters()
        if _is_constant(one)
    ]
    draws = torch.Generator().manual_seed(0)  # made up, like the examples of a trial
    try:
        with torch.no_grad():
            for one, _ in same:
                width = one[0].numel() if one.ndim > 1 else 1
                one.add_(torch.randn(one.shape, generator=draws), alpha=width**-0.5)
        yield
    finally:
        with torch.no_grad():
            for one, value in same:
                one.fill_(value)


def _is_constant(one: Tensor) -> bool:
    """Whether a parameter that is trained is zero, or a matrix whose numbers are all equal."""
    if not one.requires_grad or not one.numel():
        return False
    first = one.detach().reshape(-1)[0]
    return (one.ndim > 1 or float(first) == 0.0) and bool((one == first).all())


_CLOSE = 1e-5  # of the largest output, by which it may move with the same numbers beside it
_LOSSES_CLOSE = 1e-4  # where a loss is taken alone, and roundings are others
_ALONE = 16  # examples whose losses are taken alone


def build_checked_blocks(
    made_up: Callable[[int, Replacement], Sequence[Block]],
    counts: tuple[int, int],
    augment: Any = None,
) -> tuple[Sequence[Block], Sequence[Block]]:
    """Made-up blocks of a few examples and of many, if nothing has mixed their rows.

    Parameters
    ----------
    made_up : callable
        Makes and prepares blocks; see
        :func:`~veracal.neural.synthetic_inputs.synthetic_blocks`.
    counts : pair of int
        Of examples in a block, of which each in turn, or half, is replaced.
    augment : Augment, optional
    """
    made = []
    for n, replacing in zip(counts, (replace_each, replace_halves), strict=True):
        blocks = made_up(n, replacing)
        check_prepare(blocks, replacing)
        if augment is not None:
            check_augment(augment, blocks, replacing)
        made.append(blocks)
    return made[0], made[1]


def check_prepare(blocks: Sequence[Block], replacing: Replacement) -> None:
    """Refuse a preparation that mixes rows.

    Parameters
    ----------
    blocks : sequence of Block
        See :func:`~veracal.neural.synthetic_inputs.synthetic_blocks`.
    replacing : callable
        With which they were made.
    """
    inputs = [_name_inputs(block.inputs) for block in blocks]
    for name in inputs[0]:
        made = [one[name] for one in inputs]
        if not all(isinstance(one, Tensor) for one in made):
            raise ValueError(
                "Expected prepare to give a tensor with a row for each row, got "
                f"{type(made[0]).__name__}. Return torch.from_numpy(...) of an array."
            )
        if len(made[0]) != len(blocks[0]) or _others_changed(made, replacing, 0.0):
            raise ValueError(
                "Expected prepare to turn each row by itself, got one whose result for a row "
                "changes with the others beside it. Scale by public figures instead."
            )


def check_augment(augment: Any, blocks: Sequence[Block], replacing: Replacement) -> None:
    """Refuse an augmentation that gives other numbers of views than it says, or mixes examples.

    All blocks get the same random numbers.
    """
    views = getattr(augment, "views", None)
    if not isinstance(views, int) or views < 1:
        raise ValueError(
            "Expected augment to say how many views it makes, a whole number as augment.views, "
            f"got {views!r}."
        )
    made = [_augment_block(augment, block, views) for block in blocks]
    if _others_changed(made, replacing, 0.0, views):
        raise ValueError(
            "Expected augment to make views of each example by itself, one example after the "
            "other, got one whose views of an example change with the others beside it. Leave "
            "out mixtures, and draw from the generator that is given, as often for each."
        )


def _augment_block(augment: Any, block: Block, views: int) -> Tensor:
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


def check_output_independence(
    trial: nn.Module, blocks: Sequence[Block], replacing: Replacement
) -> None:
    """Refuse a module in which an output depends on other examples, or on earlier ones."""
    # The first one again at the end: what was kept of the others meanwhile would show.
    made = [_seeded_outputs(trial, block.inputs) for block in (*blocks, blocks[0])]
    if len(made[0]) != count_rows(blocks[0].inputs) or _others_changed(
        made[:-1], replacing, _CLOSE
    ):
        raise ValueError(
            "Expected a module that takes each example by itself, got one in which the output "
            "for an example changes with the others beside it. Look for means, maxima or "
            "orders over the first dimension."
        )
    if not float((made[0] - made[-1]).abs().max()) <= _CLOSE * _largest_magnitude(made[0]):
        raise ValueError(
            "Expected a module that keeps nothing of what it has seen, got one whose outputs "
            "for the same examples change once it has seen others. Leave out running means."
        )


def _seeded_outputs(trial: nn.Module, inputs: Inputs) -> Tensor:
    """Outputs with the same random numbers each time, so that dropout is the same."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # the module's function takes longer than a row
        made: Tensor = trial_outputs(trial, inputs)
    return made.detach().clone()


def trial_outputs(module: nn.Module, inputs: Inputs) -> Any:
    """Outputs for made-up examples, or what is wrong with them in a sentence."""
    try:
        return compute_logits(module, inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            "Expected a module that takes rows in the form of the records, got one that fails "
            f"for made-up ones: {str(error).partition(chr(10))[0]} Give prepare=..., which "
            "turns rows into what the module takes."
        ) from error


def check_loss(losses: LossFunction, outputs: Tensor, classes: int, n: int) -> None:
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
    if not float(gap) <= _LOSSES_CLOSE * max(1.0, _largest_magnitude(alone)):
        raise ValueError(
            "Expected a loss that takes each example by itself, got one that changes with the "
            "others beside it. Weigh classes by public figures, and leave none out by its rank."
        )


def _others_changed(
    made: Sequence[Tensor], replacing: Replacement, close: float, views: int = 1
) -> bool:
    """Whether anything moved but what became of examples that are others.

    The first tensor is of some examples; the next ones, of the same with some replaced.
    """
    first, numbers = _comparable(made[0]), replacing(len(made[0]) // views)
    for place, other in zip(numbers[1:], made[1:], strict=True):
        if other.shape != first.shape:
            return True
        gap = (first - _comparable(other)).abs().reshape(len(first), -1).amax(1)
        same = torch.tensor(place) == torch.arange(len(place))
        gap = torch.where(same.repeat_interleave(views), gap, 0.0)
        if not float(gap.max()) <= close * _largest_magnitude(first):
            return True
    return False


def _comparable(values: Tensor) -> Tensor:
    """Numbers that can be compared, in float64."""
    return torch.nan_to_num(values.to(torch.float64))


def _largest_magnitude(values: Tensor) -> float:
    """The largest of some numbers, but not zero."""
    return max(float(values.abs().max()), 1e-6)


def _name_inputs(inputs: Inputs) -> dict[str, Any]:
    """Inputs by their names; a single one has none."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}


# What stands around a module, by its class (some take long to import), and what to give.
_WRAPPERS = {
    "torch.OptimizedModule": ("torch.compile", "{}._orig_mod"),
    "torch.DataParallel": ("nn.DataParallel", "{}.module"),
    "torch.DistributedDataParallel": ("DistributedDataParallel", "{}.module"),
    "torch.ScriptModule": ("torch.jit", "the nn.Module that {} was scripted or traced from"),
    "opacus.AbstractGradSampleModule": ("GradSampleModule", "{}.to_standard_module()"),
}
_HOOKS = "autograd_grad_sample_hooks"  # of Opacus, which stay where only the wrap is gone
_PASSES = 8  # in which every parameter should have had a part


def check_module(module: nn.Module) -> None:
    """Refuse a module by its parts alone.

    Raises
    ------
    ValueError
        For modules that are wrapped, layers that mix examples or keep running statistics of
        them, parameters without values, elsewhere than on the CPU or in another precision than
        float32, nothing to train, what cannot be copied, and a call where torch takes no
        gradients. The message names the layer and what to put in its place.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"Expected a torch.nn.Module, or a function that makes one, got {module!r}."
        )
    _check_context()
    _check_unwrapped(module)
    for name, layer in module.named_modules():
        _check_layer(name or type(module).__name__, layer)
    for name, one in (*module.named_parameters(), *module.named_buffers()):
        _check_values(name, one)
    check_copyable(module)
    trained = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    if not trained:
        raise ValueError(
            "Expected a module with parameters to train, got one in which all are frozen. Set "
            "requires_grad_(True) on those to be trained."
        )
    for name, one in trained:
        if not bool(one.detach().isfinite().all()):
            raise ValueError(
                f"Expected finite parameters, got {name!r} with numbers that are not. Start "
                "from other weights."
            )
        if one.dtype != torch.float32:
            raise ValueError(
                f"Expected parameters in float32, got {name!r} in {one.dtype}. Use "
                "module.float()."
            )


def _check_unwrapped(module: nn.Module) -> None:
    """Refuse what hides layers that are trained, or gives their weights other names."""
    for name, layer in module.named_modules():
        if name and not any(one.requires_grad for one in layer.parameters()):
            continue
        at, called = "module", type(layer).__name__
        if name:
            at, called = f"module.get_submodule({name!r})", name
        for one in type(layer).__mro__:
            found = _WRAPPERS.get(f"{one.__module__.partition('.')[0]}.{one.__name__}")
            if found is not None:
                raise ValueError(
                    f"Expected a module as it was written, got {called!r}, wrapped by "
                    f"{found[0]}. Give what is inside: {found[1].format(at)}."
                )
        if _HOOKS in vars(layer):
            raise ValueError(
                f"Expected a module as it was written, got {called!r} with hooks of Opacus. "
                "Give wrapped.to_standard_module(), of the GradSampleModule around it."
            )


def _check_context() -> None:
    """Refuse a call where precision is reduced, or gradients cannot be taken."""
    found = find_reduced_context()
    if found is not None:
        raise ValueError(
            f"Expected a call outside of {found}, since gradients are taken in full float32 "
            "and of weights as they are, got one inside. Leave its block."
        )
    check_products()


def _check_values(name: str, one: Tensor) -> None:
    """Refuse a parameter or a buffer that has no values, or has them elsewhere."""
    if is_lazy(one):
        raise ValueError(
            f"Expected parameters with values, got {name!r}, which has none yet. Call the "
            "module once on made-up rows before it is trained."
        )
    if one.is_meta:
        raise ValueError(
            f"Expected parameters with values, got {name!r} on the device 'meta', where there "
            "are none. Make the module on the CPU, or use module.to_empty(device='cpu') and "
            "load its weights."
        )
    if one.device.type != "cpu":
        raise ValueError(
            f"Expected parameters on the CPU, got {name!r} on {one.device}. Use module.cpu()."
        )


def check_copyable(module: nn.Module) -> None:
    """Refuse a module that holds what was computed of its parameters: torch cannot copy it."""
    for name, layer in module.named_modules():
        for word, value in {**vars(layer), **layer._buffers}.items():
            if isinstance(value, Tensor) and not value.is_leaf:
                raise ValueError(
                    "Expected a module that can be copied, got one that holds "
                    f"{f'{name}.{word}'.lstrip('.')!r}, computed of its parameters, as "
                    "torch.nn.utils.prune and weight_norm leave it. Call the module once in "
                    "torch.no_grad(), and it is trained as it is; or make it plain, by "
                    "prune.remove(layer, name) or remove_weight_norm(layer)."
                )


def _check_layer(name: str, layer: nn.Module) -> None:
    """Refuse a layer that looks at more than one example."""
    if isinstance(layer, _BatchNorm) and not _is_frozen(layer):
        raise ValueError(
            f"Expected layers that take each example by itself, got {name!r}, a "
            f"{type(layer).__name__}: it scales every example by all others. Use "
            "veracal.neural.replace_batch_norm(module), which puts GroupNorm in its "
            "place (for plain rows LayerNorm), or freeze it."
        )
    if getattr(layer, "track_running_stats", False) and not _is_frozen(layer):
        raise ValueError(
            f"Expected layers that keep nothing of the records, got {name!r}, a "
            f"{type(layer).__name__} with running statistics. Use track_running_stats=False."
        )
    if getattr(layer, "max_norm", None) is not None:
        raise ValueError(
            f"Expected layers that keep nothing of the records, got {name!r}, a "
            f"{type(layer).__name__} with max_norm: it shortens the rows that were looked up, "
            "without noise. Leave max_norm out."
        )
    if getattr(layer, "sparse", False) is True:
        raise ValueError(
            f"Expected layers with plain gradients, got {name!r}, a {type(layer).__name__} "
            "with sparse=True. Leave it out: noise falls on all rows anyway."
        )
    if isinstance(layer, _SpectralNorm) or any(
        isinstance(hook, SpectralNorm) for hook in layer._forward_pre_hooks.values()
    ):
        raise ValueError(
            f"Expected layers that a forward pass does not change, got {name!r} with "
            "spectral_norm, which turns vectors of its own in every pass. Make it plain, by "
            "torch.nn.utils.parametrize.remove_parametrizations(layer, name) or, for hooks, "
            "torch.nn.utils.remove_spectral_norm(layer)."
        )


def _is_frozen(layer: nn.Module) -> bool:
    """Whether a layer has statistics of its own and nothing in it is trained.

    One without parameters says so by having seen a batch, or by not being in training.
    """
    if getattr(layer, "running_mean", None) is None:
        return False
    parameters = list(layer.parameters())
    if not parameters and layer.training:
        return int(getattr(layer, "num_batches_tracked", None) or 0) > 0
    return not any(one.requires_grad for one in parameters)


@full_precision()
def check_behavior(
    module: nn.Module, blocks: Sequence[Block], outputs: int, usual: Sequence[Block] = ()
) -> Tensor:
    """Refuse a module by what it does with made-up examples.

    Parameters
    ----------
    module : torch.nn.Module
    blocks : sequence of Block
        Of made-up examples in the form of the records; all but the first have one example
        replaced, each another one.
    outputs : int
        How many classes there are.
    usual : sequence of Block
        With as many examples as a block has in training, half of them replaced in the second,
        the other half in the third: see
        :func:`~veracal.neural.synthetic_inputs.replace_halves`.

    Returns
    -------
    tensor
        Outputs for the first block.

    Raises
    ------
    ValueError
        If outputs have another shape than the classes ask for, an example's output depends on
        the others, in training or later, a forward pass changes a parameter or a buffer, or a
        parameter gets no gradient.
    """
    for name, one in module.named_parameters():
        if one.requires_grad and one.is_inference():
            raise ValueError(
                f"Expected parameters that can be trained, got {name!r}, which was made in "
                "torch.inference_mode(). Give copy.deepcopy(module), made outside of it."
            )
    trial = copy_module(module)
    with perturbed_initialization(trial):
        return _trial_run(trial, blocks, outputs, usual)


def _trial_run(
    trial: nn.Module, blocks: Sequence[Block], outputs: int, usual: Sequence[Block]
) -> Tensor:
    """Outputs of a module for the first block; see :func:`check_trial`."""
    made = torch.empty(0)
    set_train_mode(trial)
    before = _tensor_digests(trial)
    for _ in range(_PASSES):  # a layer may be left out by chance
        with torch.enable_grad(), refuse_half_precision():
            made = trial_outputs(trial, blocks[0].inputs)
            _check_shape(made, count_rows(blocks[0].inputs), outputs)
            torch.autograd.backward(made.double().square().sum())
        unused = [
            name
            for name, one in trial.named_parameters()
            if one.requires_grad and one.grad is None
        ]
        if not unused:
            break
    if unused:
        raise ValueError(
            "Expected a gradient for every parameter that is trained, got none for "
            f"{', '.join(map(repr, unused[:5]))}. Freeze what is not used, by "
            "requires_grad_(False)."
        )
    _check_independence(trial, blocks, usual)
    after = _tensor_digests(trial)
    for name in before:
        if before[name] != after[name]:
            raise ValueError(
                f"Expected a forward pass that changes nothing, got one that changes {name!r}: "
                "it would keep something of the records, without noise. Leave it out."
            )
    _check_independence(trial.eval(), blocks, usual)
    return made.detach()


def _check_independence(
    trial: nn.Module, blocks: Sequence[Block], usual: Sequence[Block]
) -> None:
    """Refuse a module in which examples meet, a few of them or many."""
    check_output_independence(trial, blocks, replace_each)
    if usual:
        check_output_independence(trial, usual, replace_halves)


def _tensor_digests(module: nn.Module) -> dict[str, bytes]:
    """A digest of each parameter, frozen ones too, and of each buffer."""
    return {
        name: hashlib.blake2b(one.detach().reshape(-1).view(torch.uint8).numpy().data).digest()
        for name, one in (*module.named_parameters(), *module.named_buffers())
    }


def copy_module(module: nn.Module, *, shares: bool = True) -> Any:
    """A copy to try things on, which shares what is frozen: that may be most of a network."""
    frozen: dict[int, Any] = {
        id(one): one for one in module.parameters() if shares and not one.requires_grad
    }
    try:
        return copy.deepcopy(module, frozen)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            "Expected a module that can be copied, got one for which copy.deepcopy fails: "
            f"{str(error).partition(chr(10))[0]}. Keep what has no copy (a lock, an open file) "
            "out of it."
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


def set_train_mode(module: nn.Module) -> None:
    """Set a module to training, but for normalizations whose public statistics are frozen."""
    module.train()
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and _is_frozen(layer):
            layer.eval()


def replace_batch_norm(module: nn.Module, *, groups: int = 32) -> nn.Module:
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
    for parent, name, layer in list(_named_children(changed)):
        if isinstance(layer, _BatchNorm):
            setattr(parent, name, _replacement_norm(layer, before[layer], groups))
    return (
        _replacement_norm(changed, None, groups) if isinstance(changed, _BatchNorm) else changed
    )


def _named_children(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Every layer with its parent and its name there."""
    for parent in module.modules():
        for name, layer in parent.named_children():
            yield parent, name, layer


def _replacement_norm(layer: _BatchNorm, before: nn.Module | None, groups: int) -> nn.Module:
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
