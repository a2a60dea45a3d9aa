"""Gradient engines: clipped sums of per-example gradients of one block.

:class:`GhostEngine` needs one forward and one backward pass, :class:`FunctionalEngine`
vectorizes single examples with ``torch.func``, and :class:`OpacusEngine` uses Opacus' hooks.
All clip and add with :func:`add_clipped`.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from veracal._checks import extra
from veracal.mechanisms import ClipRule, add_gradient_noise, select_and_scale
from veracal.neural.examples import (
    Block,
    Inputs,
    LossFunction,
    compute_logits,
    count_rows,
    example_losses,
)
from veracal.neural.gradient_sums import ClippedBlockSum, Layout, PartialSumError
from veracal.neural.gradients.layers import (
    Gradients,
    MaterializedGradients,
    PatchConvolution,
    ScratchBuffer,
    extract_patches,
    find_rule,
    flatten_examples,
    uses_patch_product,
)
from veracal.neural.precision import check_dtype

_UNIT = 2.0**-24  # unit roundoff of float32
_SMALL = 1_024  # gradients up to this size are concatenated for their norms
_LONGEST = 1e30  # times the bound
_MANY = 4_096  # positions up to which they do not affect the slack
_ENTRIES = 1 << 25  # numbers of gradients that are materialized at a time


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds a generator
class PreNoise:
    """Noise on each example's gradient before the clip; it provides no privacy."""

    std: float  # of every coordinate
    rng: np.random.Generator


def materialize(
    gradients: Mapping[torch.nn.Parameter, Tensor], noise: PreNoise | None
) -> dict[torch.nn.Parameter, Gradients]:
    """Wrap gradients of shape (n, *parameter), with noise before the clip if requested.

    The noisy gradient is clipped by its own norm: whatever the noise is, the example
    contributes no more than the bound. A gradient that is not finite stays so.
    """
    if noise is not None:
        gradients = {
            parameter: add_gradient_noise(values, noise.std, rng=noise.rng)
            for parameter, values in gradients.items()
        }
    return {parameter: MaterializedGradients(values) for parameter, values in gradients.items()}


@dataclass(frozen=True, eq=False, repr=False)
class _ClipFactors:
    """Clip factors of the examples that count; ``kept`` is None if all do."""

    factors: Tensor
    kept: Tensor | None
    exceeding: int


def add_clipped(
    gradients: dict[torch.nn.Parameter, Gradients],
    clip: ClipRule,
    total: Tensor,
    layout: Layout,
    block_size: int,
    real: Tensor | None = None,
) -> ClippedBlockSum:
    """Clip the gradients of a block by their norms over all parameters, and add them.

    Parameters
    ----------
    gradients : dict of parameters to the gradients of n examples
        Emptied on the way, to free memory.
    clip : ClipRule
    total : tensor of float64
        The vector that is added to.
    layout : Layout
    block_size : int
        Declared number of examples of a block. There are at most twice as many.
    real : tensor of bool, of shape (n,), optional
        Marks the examples that count (None: all). The others are padding: they contribute
        nothing and are not counted.

    Guarantees
    ----------
    Every example adds at most ``clip.bound`` to the vector in the L2 norm, including float32
    rounding of typical size; an example whose norm is not finite adds nothing. What an example
    adds, before the sum is rounded, is a function of its own gradient. That its gradient does
    not depend on the other examples is up to the blocks
    (:class:`~veracal.neural.gradient_sums.NetworkSums`).
    """
    small, squares = list[Tensor](), list[Tensor]()
    for one in gradients.values():
        if isinstance(one, MaterializedGradients) and one.values.shape[1:].numel() <= _SMALL:
            small.append(flatten_examples(one.values))
        else:
            squares.append(one.squared_norms())
    if small:
        squares.append(MaterializedGradients(torch.cat(small, 1)).squared_norms())
    norms = torch.stack(squares).sum(0).sqrt()
    # Factors of longer gradients have too few digits in float32; these are left out.
    norms = torch.where(norms <= _LONGEST * clip.bound, norms, math.inf)
    assert len(norms) <= 2 * block_size
    positions = max(one.positions for one in gradients.values())
    slack = rounding_slack(block_size, positions)
    if real is None:
        chosen = _clip_factors(norms, clip, slack)
    else:
        chosen, norms = _padded_factors(norms, real, clip, slack), norms[real]
    if len(chosen.factors):
        try:
            while gradients:
                parameter, one = gradients.popitem()
                part = one.weighted_sum(chosen.factors, chosen.kept)
                total[layout.slice_of(parameter)] += part.detach().reshape(-1)
        except Exception as error:
            raise PartialSumError("Expected a sum of clipped gradients, got none.") from error
    return ClippedBlockSum(norms, chosen.exceeding)


def rounding_slack(block_size: int, positions: int) -> float:
    """Share of the bound that is reserved for the rounding of a sum over a block.

    The sum is computed in float32. Rounding n terms, none longer than the bound, moves it by
    about :math:`n^{3/2} u` of the bound, with u = 2^-24 and n up to twice the declared block
    size, and by more if every term is itself a sum over many positions. All of these are
    public: the slack must not change with the records.
    """
    most = 2.0 * max(32, block_size)
    return 2 * _UNIT * most * math.sqrt(most) * max(1.0, math.sqrt(positions / _MANY))


def _clip_factors(norms: Tensor, clip: ClipRule, slack: float) -> _ClipFactors:
    """Clip factors for these norms, each enlarged by the slack."""
    selected = select_and_scale(norms * (1 + slack), clip)
    all_kept = bool(selected.kept.all())
    return _ClipFactors(
        selected.factors, None if all_kept else selected.kept, selected.exceeding
    )


def _padded_factors(norms: Tensor, real: Tensor, clip: ClipRule, slack: float) -> _ClipFactors:
    """Clip factors of a block with padding, which gets the factor zero.

    Padding that is not finite is left out instead, since zero times infinity is NaN.
    """
    chosen, indices = _clip_factors(norms[real], clip, slack), real.nonzero()[:, 0]
    if chosen.kept is not None:
        indices = indices[chosen.kept]
    factors, kept = torch.zeros(len(norms), dtype=torch.float64), norms.isfinite() & ~real
    factors[indices], kept[indices] = chosen.factors, True
    if bool(kept.all()):
        return _ClipFactors(factors, None, chosen.exceeding)
    return _ClipFactors(factors[kept], kept, chosen.exceeding)


class _Engine:
    """Module, loss and layout of an engine, and the noise before its clip.

    ``losses(outputs, targets)`` has shape (n,). The declared number of examples of a block is
    ``block_size``; there may be twice as many.
    """

    def __init__(
        self,
        module: nn.Module,
        losses: LossFunction,
        block_size: int,
        noise: PreNoise | None = None,
    ) -> None:
        self.module, self._losses, self._layout = module, losses, Layout(module)
        self.size, self._block_size, self._noise = self._layout.size, block_size, noise


class FunctionalEngine(_Engine):
    """Materializes the gradients of a few examples at a time with ``torch.func``.

    It supports every module that ``torch.func.vmap`` supports, whatever its layers.
    """

    name = "functional"
    atomic = False

    @cached_property
    def _trained(self) -> dict[str, nn.Parameter]:
        """Trained parameters by their first names."""
        return {name: one for name, one in self.module.named_parameters() if one.requires_grad}

    @cached_property
    def _vmapped_gradient(self) -> Any:
        """Gradients of each example, of weights by name."""
        first = {one: name for name, one in self._trained.items()}
        # Each name of a trained parameter, one per owning layer, and its first name.
        names = {
            f"module.{layer}.{word}".replace("..", "."): first[one]
            for layer, owner in self.module.named_modules()  # each layer once, even if reused
            for word, one in owner.named_parameters(recurse=False, remove_duplicate=False)
            if one in first
        }
        wrapped = _LogitsModule(self.module)

        def loss(weights: dict[str, Tensor], inputs: Inputs, target: Tensor) -> Tensor:
            """Loss of one example: the mean over its views."""
            parameters = {name: weights[first_name] for name, first_name in names.items()}
            # torch's tie_weights would set the weights of a reused layer twice and replace its
            # parameter by a tensor.
            outputs = functional_call(wrapped, parameters, (inputs,), tie_weights=False)
            check_dtype(outputs, "the logits")
            return self._losses(outputs, target.expand(len(outputs))).mean()

        return vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def add(self, block: Block, clip: ClipRule, total: Tensor) -> ClippedBlockSum:
        """Add the clipped sum over a block to a vector."""
        batch_size = max(1, _ENTRIES // max(1, self.size))
        norms, exceeding = [], 0
        for start in range(0, len(block), batch_size):
            part = block.part(start, start + batch_size)
            if part.real is not None and not part.real.any():
                continue
            shape = len(part), part.views
            if isinstance(part.inputs, Mapping):
                inputs: Inputs = {
                    name: one.reshape(*shape, *one.shape[1:])
                    for name, one in part.inputs.items()
                }
            else:
                inputs = part.inputs.reshape(*shape, *part.inputs.shape[1:])
            weights = {name: one.detach() for name, one in self._trained.items()}
            with sdpa_kernel(SDPBackend.MATH):  # the only one that vmap vectorizes
                values = self._vmapped_gradient(weights, inputs, part.targets)
            gradients = materialize(
                {self._trained[name]: one for name, one in values.items()}, self._noise
            )
            partial_sum = add_clipped(
                gradients, clip, total, self._layout, self._block_size, part.real
            )
            norms.append(partial_sum.norms)
            exceeding += partial_sum.exceeding
        return ClippedBlockSum(torch.cat(norms), exceeding)


class _LogitsModule(nn.Module):
    """Wraps a module so that it returns the logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Inputs) -> Any:
        return compute_logits(self.module, inputs)


class OpacusEngine(_Engine):
    """Per-example gradients by Opacus (Yousefpour et al. 2021), with Veracal's clip and sum."""

    name = "hooks"
    atomic = True

    def add(self, block: Block, clip: ClipRule, total: Tensor) -> ClippedBlockSum:
        """Add the clipped sum over a block to a vector."""
        by_parameter: dict[nn.Parameter, Tensor] = {}
        opacus = extra("opacus.grad_sample", "torch")
        wrapped = opacus.GradSampleModule(self.module, loss_reduction="sum", strict=False)
        try:
            with torch.enable_grad(), warnings.catch_warnings():
                # Inputs are records, whose gradients are not needed.
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                outputs = compute_logits(wrapped, block.inputs)
                check_dtype(outputs, "the logits")
                torch.autograd.backward(example_losses(block, outputs, self._losses).sum())
            parameter: Any
            for parameter in self.module.parameters():
                if not parameter.requires_grad:
                    continue
                values = parameter.grad_sample
                if isinstance(values, list):  # one for each use
                    values = torch.stack(values).sum(0)
                parameter.grad_sample = parameter.grad = None
                check_dtype(values, "a per-example gradient")
                values = values.to(torch.float32)
                if block.views > 1:
                    values = values.unflatten(0, (len(block), block.views)).sum(1)
                by_parameter[parameter] = values
        finally:
            # Opacus would keep the inputs of a failed forward pass, and count the pass as one
            # whose gradients are still pending, so that no later example would have any.
            wrapped.remove_hooks()
            for layer in self.module.modules():
                layer.__dict__.pop("activations", None)
            for one in self.module.parameters():
                one.grad = None
                for name in ("_forward_counter", "_current_grad_sample", "grad_sample"):
                    one.__dict__.pop(name, None)
        gradients = materialize(by_parameter, self._noise)
        return add_clipped(gradients, clip, total, self._layout, self._block_size, block.real)


class _LayerCall(NamedTuple):
    """One call of a layer."""

    layer: nn.Module
    inputs: Tensor
    outputs: GradientEdge  # instead of the tensor, which would stay in memory
    patches: dict[str, tuple[Tensor, ...]]  # of a convolution, if already extracted


class GhostEngine(_Engine):
    """Sums clipped gradients without materializing those of large layers (ghost clipping).

    Parameters
    ----------
    module : torch.nn.Module
        With layers that :func:`~veracal.neural.gradients.layers.find_rule` supports, whose
        first dimension counts the examples.
    losses, block_size
        As of the other engines.
    channels_last : bool, optional
        Whether images are channels-last in memory, which makes convolutions and pooling faster.
        By default this is tried with the first block, which must be synthetic.

    Notes
    -----
    The backward pass stops at the outputs of the layers: autograd skips the gradients of
    weights, which are computed once, already clipped.
    """

    name = "ghost"
    atomic = True

    def __init__(
        self,
        module: nn.Module,
        losses: LossFunction,
        block_size: int,
        channels_last: bool | None = None,
    ) -> None:
        super().__init__(module, losses, block_size)
        has_convolutions = any(isinstance(one, nn.Conv2d) for one in module.modules())
        self.channels_last = channels_last if has_convolutions else False
        self._buffer = ScratchBuffer()
        self._rules = {
            layer: find_rule(layer)
            for layer in module.modules()
            if any(one.requires_grad for one in layer.parameters(recurse=False))
        }
        kinds = [type(layer).__name__ for layer, rule in self._rules.items() if rule is None]
        self.unknown = tuple(dict.fromkeys(kinds))  # types of layers that are not supported

    def add(self, block: Block, clip: ClipRule, total: Tensor) -> ClippedBlockSum:
        """Add the clipped sum over a block to a vector."""
        gradients = self._layer_gradients(block)
        return add_clipped(gradients, clip, total, self._layout, self._block_size, block.real)

    def _layer_gradients(self, block: Block) -> dict[nn.Parameter, Gradients]:
        """Gradients of each parameter, over all its uses."""
        if self.channels_last is None:
            self.channels_last = self._supports_channels_last(block)
        _, calls, output_grads = self._run_passes(block)
        by_parameter: dict[nn.Parameter, Gradients] = {}
        rows = count_rows(block.inputs)
        for call, output_grad in zip(calls, output_grads, strict=True):
            if output_grad is None:
                continue
            if len(output_grad) != rows or len(call.inputs) != rows:
                raise ValueError(
                    "Expected every layer to have one row for each example, got other shapes "
                    f"in {call.layer}. Repeat inputs that all examples share (e.g. positions) "
                    "for each example, put the examples first (batch_first=True), or use "
                    'gradients="functional".'
                )
            rule = self._rules[call.layer]
            assert rule is not None
            for name, gradients in rule(
                call.layer,
                _check_layer_dtype(call.inputs, call.layer),
                _check_layer_dtype(output_grad, call.layer),
                len(block),
                self._block_size,
                self._buffer,
                **call.patches,
            ).items():
                _accumulate(by_parameter, getattr(call.layer, name), gradients)
        return by_parameter

    def _run_passes(
        self, block: Block
    ) -> tuple[Tensor, list[_LayerCall], tuple[Tensor | None, ...]]:
        """Logits, the calls of all layers, and the gradients of the loss at their outputs."""
        calls: list[_LayerCall] = []
        self._buffer.clear()
        pending: dict[nn.Module, dict[str, tuple[Tensor, ...]]] = {}

        def record_call(layer: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> None:
            edge, patches = get_gradient_edge(outputs), pending.pop(layer, {})
            calls.append(_LayerCall(layer, inputs[0].detach(), edge, patches))

        def multiply_patches(layer: nn.Conv2d, x: Tensor) -> Any:
            patches = extract_patches(layer, x.detach(), self._buffer)
            pending[layer] = {"patches": patches}
            return PatchConvolution.apply(  # type: ignore[no-untyped-call]
                x, layer.weight, layer, *patches
            )

        inputs = block.inputs
        if self.channels_last and isinstance(inputs, Tensor) and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        hooks = [layer.register_forward_hook(record_call) for layer in self._rules]
        replaced: list[Any] = [
            one for one in self._rules if self.channels_last and uses_patch_product(one)
        ]
        try:
            for layer in replaced:
                layer.forward = partial(multiply_patches, layer)
            with torch.enable_grad():
                outputs = compute_logits(self.module, inputs)
                loss = example_losses(block, outputs, self._losses).sum()
        finally:
            for layer in replaced:
                del layer.forward
            for hook in hooks:
                hook.remove()
        edges = [call.outputs for call in calls]
        return outputs, calls, torch.autograd.grad(loss, edges, allow_unused=True)

    def _supports_channels_last(self, block: Block) -> bool:
        """Return whether the module computes the same for channels-last images."""
        if not isinstance(block.inputs, Tensor) or block.inputs.ndim != 4:
            return False
        outputs = list[Tensor]()
        try:
            for channels_last in (False, True):
                self.channels_last = channels_last
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    outputs.append(self._run_passes(block)[0].detach())
        except Exception:  # e.g. a view of a tensor that is not contiguous
            return False
        contiguous, converted = outputs
        return torch.allclose(contiguous, converted, rtol=1e-3, atol=1e-4)


def _check_layer_dtype(values: Tensor, layer: nn.Module) -> Tensor:
    """Return the values of a layer; reject half precision, since the slack is for float32."""
    check_dtype(values, type(layer).__name__)
    return values


def _accumulate(
    by_parameter: dict[nn.Parameter, Gradients], parameter: nn.Parameter, gradients: Gradients
) -> None:
    """Add the gradients of another use of a parameter; they are materialized to be added."""
    if parameter in by_parameter:
        gradients = MaterializedGradients(
            by_parameter[parameter].materialize() + gradients.materialize()
        )
    by_parameter[parameter] = gradients
