r"""Per-example gradients of single layers, without materializing them where that is large.

A layer that multiplies by its weights has, for example i, inputs :math:`a_{it}` and gradients
:math:`g_{it}` of the loss at its outputs, for every position t (a token, a pixel of the
output), and the gradient of its weights is :math:`\sum_t g_{it} a_{it}^\top`. Its squared norm
is

.. math:: \sum_{t,t'} (a_{it} \cdot a_{it'}) (g_{it} \cdot g_{it'})

(Goodfellow 2015, https://arxiv.org/abs/1510.01799, for one position; Li et al. 2022,
https://arxiv.org/abs/2110.05679, for several), and the sum of all gradients, each times a
factor, is one matrix product: no second pass through the network is needed (Bu et al. 2023,
https://arxiv.org/abs/2210.00038). Small gradients are materialized instead.

Layers of other libraries are recognized by what they compute.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from veracal.neural.gradients.convolution import (
    ScratchBuffer,
    convolution_backward,
    extract_patches,
    to_weight_order,
)

# Measured costs of materialized entries, which are written once and read for the norm and the
# sum, relative to products of small matrices. Kernels are few, and their sum takes longer.
_ENTRY_COST, _KERNEL_COST = 50.0, 10.0
_MAX_ENTRIES = 1 << 25  # numbers of gradients that are materialized at a time
_UNIT = 2.0**-24  # unit roundoff of float32
_CHUNK = 64  # squares that are summed in float32
_TINY = 2.0**-126  # part of a product that may underflow in float32


class Gradients(Protocol):
    """Gradients of one parameter, from one of its uses, for n examples."""

    def squared_norms(self) -> Tensor:
        """Squared norms, or slightly larger numbers, of shape (n,); in float64."""

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """Sum of the kept gradients, each times its factor, in the shape of the parameter."""

    def materialize(self) -> Tensor:
        """All gradients, of shape (n, *parameter)."""

    @property
    def positions(self) -> int:
        """Number of terms per example in a weighted sum."""


def flatten_examples(values: Tensor) -> Tensor:
    """Flatten to one row for each example, also for scalar and empty parameters."""
    return values.reshape(len(values), values.shape[1:].numel())


@dataclass(frozen=True, eq=False, repr=False)
class MaterializedGradients:
    """Gradients that are held in memory."""

    values: Tensor
    positions = 1

    def squared_norms(self) -> Tensor:
        """Squared norms."""
        return _squared_row_norms(flatten_examples(self.values))

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The weighted sum."""
        flat = flatten_examples(self.values if kept is None else self.values[kept])
        return (factors.to(flat.dtype) @ flat).view(self.values.shape[1:])

    def materialize(self) -> Tensor:
        """The gradients."""
        return self.values


@dataclass(frozen=True, eq=False, repr=False)
class ProductGradients:
    """Gradients of a weight matrix, as inputs and output gradients.

    Attributes
    ----------
    inputs : tensor of shape (n, t, d)
    outputs : tensor of shape (n, t, p)
        Gradients of the loss at the outputs.
    """

    inputs: Tensor
    outputs: Tensor

    @property
    def positions(self) -> int:
        """Number of positions of an example."""
        return self.inputs.shape[1]

    def squared_norms(self) -> Tensor:
        """Squared norms, enlarged by what rounding and underflow may hide."""
        a, g = self.inputs, self.outputs
        if a.shape[1] == 1:
            return _squared_row_norms(a[:, 0]) * _squared_row_norms(g[:, 0])
        pairs = (a @ a.mT).mul_(g @ g.mT).sum((1, 2), dtype=torch.float64)
        positions, d, p = a.shape[1], a.shape[2], g.shape[2]
        input_norms, output_norms = _position_norms(a), _position_norms(g)
        underflow = (
            d * output_norms.sum(1).square() + p * input_norms.sum(1).square() + positions**2
        )
        norm_sum = (input_norms * output_norms).sum(1)
        return _upper_squared_norms(pairs + _TINY * underflow, norm_sum, positions, d)

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The weighted sum, one matrix product."""
        a, g = _select_kept((self.inputs, self.outputs), kept)
        g = g * factors.to(g.dtype)[:, None, None]
        return g.reshape(-1, g.shape[2]).mT @ a.reshape(-1, a.shape[2])

    def materialize(self) -> Tensor:
        """The gradients, materialized."""
        return self.outputs.mT @ self.inputs


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingGradients:
    """Gradients of an embedding table.

    Attributes
    ----------
    rows : tensor of ints, of shape (n, t)
    outputs : tensor of shape (n, t, d)
    height : int
        Number of rows of the table.
    """

    rows: Tensor
    outputs: Tensor
    height: int

    @property
    def positions(self) -> int:
        """Number of rows that an example looks up."""
        return self.rows.shape[1]

    def squared_norms(self) -> Tensor:
        """Squared norms: positions that look up the same row add to the same gradient."""
        g = self.outputs
        same = self.rows[:, :, None] == self.rows[:, None, :]
        pairs = (g @ g.mT).mul_(same).sum((1, 2), dtype=torch.float64)
        _, positions, d = g.shape
        return _upper_squared_norms(
            pairs + _TINY * d * positions**2, _position_norms(g).sum(1), positions, d
        )

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The weighted sum."""
        rows, g = _select_kept((self.rows, self.outputs), kept)
        g = g * factors.to(g.dtype)[:, None, None]
        total = g.new_zeros(self.height, g.shape[2])
        return total.index_add_(0, rows.reshape(-1), g.reshape(-1, g.shape[2]))

    def materialize(self) -> Tensor:
        """The gradients, materialized; this needs much memory."""
        n, t, d = self.outputs.shape
        total = self.outputs.new_zeros(n * self.height, d)
        shifted = self.rows + self.height * torch.arange(n)[:, None]
        total.index_add_(0, shifted.reshape(-1), self.outputs.reshape(n * t, d))
        return total.view(n, self.height, d)


@dataclass(frozen=True, eq=False, repr=False)
class ConvolutionGradients:
    """Gradients of convolution weights that are too large to materialize.

    Attributes
    ----------
    module : Conv1d or Conv2d
    inputs : tensor of shape (n, channels, ...)
    outputs : tensor of shape (n, p, ...)
    patches : Gradients
        The same gradients as a product over positions.
    """

    module: Any
    inputs: Tensor
    outputs: Tensor
    patches: Gradients

    @property
    def positions(self) -> int:
        """Number of positions of an example."""
        return self.patches.positions

    def squared_norms(self) -> Tensor:
        """Squared norms."""
        return self.patches.squared_norms()

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The weighted sum, by the backward pass of the layer."""
        x, g = _select_kept((self.inputs, self.outputs), kept)
        scale = factors.to(g.dtype)
        scaled = g * scale.view(-1, *[1] * (g.ndim - 1))
        return convolution_backward(self.module, scaled, x, inputs=False)

    def materialize(self) -> Tensor:
        """The gradients, materialized."""
        return self.patches.materialize()


LayerGradients = dict[str, Gradients]


def linear_gradients(
    module: nn.Linear, a: Tensor, g: Tensor, n: int, block_size: int, buffer: ScratchBuffer
) -> LayerGradients:
    """Gradients of a linear layer."""
    gradients: LayerGradients = {}
    g = g.reshape(n, -1, g.shape[-1])
    if module.weight.requires_grad:
        gradients["weight"] = matmul_gradients(a.reshape(n, -1, a.shape[-1]), g, block_size)
    if module.bias is not None and module.bias.requires_grad:
        gradients["bias"] = MaterializedGradients(g.sum(1))
    return gradients


def convolution_gradients(
    module: nn.Conv1d | nn.Conv2d,
    a: Tensor,
    g: Tensor,
    n: int,
    block_size: int,
    buffer: ScratchBuffer,
    patches: tuple[Tensor, ...] | None = None,
) -> LayerGradients:
    """Gradients of a convolution in one or two dimensions.

    ``patches`` are those of :func:`~.convolution.extract_patches`, if they are known already.
    """
    gradients: LayerGradients = {}
    if module.bias is not None and module.bias.requires_grad:
        summed = g.sum(tuple(range(2, g.ndim)))
        gradients["bias"] = MaterializedGradients(summed.view(n, -1, g.shape[1]).sum(1))
    if not module.weight.requires_grad:
        return gradients
    if patches is None:
        patches = extract_patches(module, a, buffer)
    (_, groups, positions, _), d = patches[0].shape, sum(one.shape[3] for one in patches)
    output_grads = g.movedim(1, -1).reshape(len(g), positions, groups, -1)
    views, p = len(a) // n, output_grads.shape[3]
    small = block_size * groups * p * d * views <= _MAX_ENTRIES
    cheap = views * positions * positions * (p + d) > _KERNEL_COST * p * d
    if groups > 1 or (small and cheap):
        gradients["weight"] = _KernelGradients(
            _patch_gradients(output_grads, patches, n, buffer), module
        )
        return gradients
    products = ProductGradients(
        torch.cat(patches, -1)[:, 0].reshape(n, views * positions, d),
        output_grads[:, :, 0].reshape(n, views * positions, p),
    )
    kernels = _KernelGradients(products, module)
    gradients["weight"] = ConvolutionGradients(module, a, g, kernels) if views == 1 else kernels
    return gradients


def _patch_gradients(
    output_grads: Tensor, patches: tuple[Tensor, ...], n: int, buffer: ScratchBuffer
) -> "_PatchGradients":
    """Gradients of n examples by each part of their patches, summed over their views."""
    rows, _, groups, p = output_grads.shape
    if groups == 1:
        g, d = output_grads[:, :, 0].mT, patches[0].shape[3]
        gradients = buffer.empty(len(patches), rows, p, d, dtype=g.dtype)
        for part, part_gradients in zip(patches, gradients, strict=True):
            torch.bmm(g, part[:, 0], out=part_gradients)
    else:
        (whole,) = patches
        gradients = torch.einsum("nlgp,ngld->ngpd", output_grads, whole).flatten(1, 2)[None]
    return _PatchGradients(
        gradients
        if rows == n
        else gradients.view(len(gradients), n, -1, *gradients.shape[2:]).sum(2)
    )


@dataclass(frozen=True, eq=False, repr=False)
class _PatchGradients:
    """Materialized gradients in column blocks.

    Attributes
    ----------
    values : tensor of shape (parts, n, p, d)
        Gradients of weights of shape (p, parts * d).
    """

    values: Tensor
    positions = 1

    def squared_norms(self) -> Tensor:
        parts, n, p, d = self.values.shape
        return _squared_row_norms(self.values.view(parts * n, p * d)).view(parts, n).sum(0)

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        values = self.values if kept is None else self.values[:, kept]
        summed: Tensor = factors.to(values.dtype) @ values.flatten(2)
        return summed.view(len(summed), *values.shape[2:]).movedim(0, 1).flatten(1)

    def materialize(self) -> Tensor:
        return self.values.permute(1, 2, 0, 3).flatten(2)


@dataclass(frozen=True, eq=False, repr=False)
class _KernelGradients:
    """Gradients by output, row, column and channel, converted to the order of the weights."""

    flat: _PatchGradients | ProductGradients
    module: nn.Conv1d | nn.Conv2d

    @property
    def positions(self) -> int:
        return self.flat.positions

    def squared_norms(self) -> Tensor:
        return self.flat.squared_norms()

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        return to_weight_order(self.module, self.flat.weighted_sum(factors, kept))

    def materialize(self) -> Tensor:
        return to_weight_order(self.module, self.flat.materialize())


def embedding_gradients(
    module: nn.Embedding,
    rows: Tensor,
    g: Tensor,
    n: int,
    block_size: int,
    buffer: ScratchBuffer,
) -> LayerGradients:
    """Gradients of an embedding table."""
    if module.max_norm is not None or module.scale_grad_by_freq:
        return {}  # both look at the whole batch
    rows, g = rows.reshape(n, -1), g.reshape(n, -1, g.shape[-1])
    if module.padding_idx is not None:
        g = g.masked_fill((rows == module.padding_idx)[:, :, None], 0.0)
    return {"weight": EmbeddingGradients(rows, g, module.num_embeddings)}


def normalization_gradients(
    module: nn.Module, x: Tensor, g: Tensor, n: int, block_size: int, buffer: ScratchBuffer
) -> LayerGradients:
    """Gradients of the scales and shifts of a normalization within each example."""
    if isinstance(module, nn.LayerNorm):
        standardized = functional.layer_norm(x, module.normalized_shape, eps=module.eps)
        tail = len(module.normalized_shape)
    elif isinstance(module, nn.RMSNorm):
        standardized = functional.rms_norm(x, list(module.normalized_shape), eps=module.eps)
        tail = len(module.normalized_shape)
    elif isinstance(module, nn.GroupNorm):
        standardized, tail = functional.group_norm(x, module.num_groups, eps=module.eps), -1
    else:
        assert isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d)
        standardized, tail = functional.instance_norm(x, eps=module.eps), -1

    def summed(values: Tensor) -> Tensor:
        """Sum over all positions of an example that share a parameter."""
        if tail < 0:  # channels come second
            return values.reshape(n, len(values) // n, values.shape[1], -1).sum((1, 3))
        shape = values.shape[values.ndim - tail :]
        return values.reshape(n, -1, *shape).sum(1)

    gradients: LayerGradients = {}
    if module.weight is not None and module.weight.requires_grad:
        gradients["weight"] = MaterializedGradients(summed(g * standardized))
    bias = getattr(module, "bias", None)
    if bias is not None and bias.requires_grad:
        gradients["bias"] = MaterializedGradients(summed(g))
    return gradients


RULES: dict[type[nn.Module], Any] = {
    nn.Linear: linear_gradients,
    nn.Conv1d: convolution_gradients,
    nn.Conv2d: convolution_gradients,
    nn.Embedding: embedding_gradients,
    nn.LayerNorm: normalization_gradients,
    nn.RMSNorm: normalization_gradients,
    nn.GroupNorm: normalization_gradients,
    nn.InstanceNorm1d: normalization_gradients,
    nn.InstanceNorm2d: normalization_gradients,
}


def is_supported(module: nn.Module) -> bool:
    """Return whether a layer with parameters of its own is one of those above."""
    if type(module) not in RULES:
        return False
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return not getattr(module, "track_running_stats", False)


def matmul_gradients(a: Tensor, g: Tensor, block_size: int) -> Gradients:
    """Choose between a product and materialized gradients, whichever is cheaper.

    The norms of the two differ slightly, so only public numbers may decide: the declared block
    size, and not the actual number of examples.
    """
    _, positions, d = a.shape
    p = g.shape[2]
    if positions == 1 or block_size * p * d > _MAX_ENTRIES:
        return ProductGradients(a, g)
    if positions * positions * (p + d) > _ENTRY_COST * p * d:
        return MaterializedGradients(g.mT @ a)
    return ProductGradients(a, g)


def _squared_row_norms(rows: Tensor) -> Tensor:
    """Squared norms of rows, in float64."""
    # In float32 a sum of many squares comes out too small by more than the slack; a sum of
    # few does not, and needs no copy in float64.
    chunked = rows.shape[1] // _CHUNK * _CHUNK
    if not chunked:
        return rows.double().square().sum(1)
    chunks = rows[:, :chunked].reshape(len(rows), -1, _CHUNK)
    norms: Tensor = torch.linalg.vector_norm(chunks, dim=2).double()
    # Squares of very small numbers underflow; the most that may be missing is added.
    squares = norms.square_().sum(1).add_(chunked * _TINY)
    if chunked < rows.shape[1]:
        squares += rows[:, chunked:].double().square().sum(1)
    return squares


def _position_norms(rows: Tensor) -> Tensor:
    """Norms at all positions, of shape (n, t), in float64, including possible underflow.

    They determine the allowance for rounding, so that a few digits are enough.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=2).double()
    return (norms.square() + rows.shape[2] * _TINY).sqrt()


def _upper_squared_norms(
    squares: Tensor, lengths: Tensor, positions: int, width: int
) -> Tensor:
    """Enlarge squared norms by the rounding error of terms that have cancelled.

    ``lengths`` is the sum of the norms of all terms. Rounding moves a squared norm by a
    fraction of its square, and a sum of the terms by a fraction of it. The fraction is the
    typical one, for rounding errors that do not all have the same sign.
    """
    share = 4 * _UNIT * math.sqrt(positions + width)
    upper = (squares.clamp(min=0.0) + share * lengths.square()).sqrt() + share * lengths
    return upper.square()


def _select_kept(parts: tuple[Tensor, Tensor], kept: Tensor | None) -> tuple[Tensor, Tensor]:
    """Select the rows that count: zero times NaN would be NaN."""
    if kept is None:
        return parts
    return parts[0][kept], parts[1][kept]


Rule = Callable[..., LayerGradients]
_ROWS = 3  # synthetic rows on which a layer is tested


def find_rule(layer: nn.Module) -> Rule | None:
    """Return the gradient rule of a layer with parameters, or None if there is none.

    Layers of transformers, one class for each family of models, are recognized by name and then
    tested on synthetic rows with synthetic weights: a layer with a known name that computes
    something else is not supported. Hence nothing here needs that library.
    """
    if type(layer) in RULES:
        rule: Rule | None = RULES[type(layer)] if is_supported(layer) else None
        return rule
    if next(layer.children(), None) is not None or next(layer.buffers(), None) is not None:
        return None
    name = type(layer).__name__
    shapes = {key: one.shape for key, one in layer.named_parameters()}
    if name == "Conv1D" and shapes.keys() == {"weight", "bias"}:
        return (
            transposed_linear_gradients
            if _matches_reference(layer, _transposed_linear)
            else None
        )
    if name.endswith("RMSNorm") and shapes.keys() == {"weight"} and len(shapes["weight"]) == 1:
        # Some parametrize the scale as 1 + weight, which has the same gradient.
        known = any(_matches_reference(layer, one) for one in (_rms_norm, _rms_norm_offset))
        return rms_norm_gradients if known else None
    return None


def transposed_linear_gradients(
    module: Any, a: Tensor, g: Tensor, n: int, block_size: int, buffer: ScratchBuffer
) -> LayerGradients:
    """Gradients of a linear layer whose weights have shape (inputs, outputs), as in GPT-2."""
    gradients: LayerGradients = {}
    a, g = a.reshape(n, -1, a.shape[-1]), g.reshape(n, -1, g.shape[-1])
    if module.weight.requires_grad:
        gradients["weight"] = matmul_gradients(g, a, block_size)  # transposed
    if module.bias.requires_grad:
        gradients["bias"] = MaterializedGradients(g.sum(1))
    return gradients


def rms_norm_gradients(
    module: Any, x: Tensor, g: Tensor, n: int, block_size: int, buffer: ScratchBuffer
) -> LayerGradients:
    """Gradients of the scales of a normalization by the root mean square."""
    per_position = g * _divide_by_rms(x, _rms_epsilon(module))
    return {
        "weight": MaterializedGradients(
            per_position.reshape(n, -1, per_position.shape[-1]).sum(1)
        )
    }


def _transposed_linear(x: Tensor, weights: dict[str, Tensor], layer: nn.Module) -> Tensor:
    return x @ weights["weight"] + weights["bias"]


def _rms_norm(x: Tensor, weights: dict[str, Tensor], layer: nn.Module) -> Tensor:
    return weights["weight"] * _divide_by_rms(x, _rms_epsilon(layer))


def _rms_norm_offset(x: Tensor, weights: dict[str, Tensor], layer: nn.Module) -> Tensor:
    return (1 + weights["weight"]) * _divide_by_rms(x, _rms_epsilon(layer))


def _divide_by_rms(x: Tensor, stability: float) -> Tensor:
    """Divide rows by their root mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + stability)


def _rms_epsilon(layer: nn.Module) -> float:
    """Constant that a normalization adds to the mean square, by either of its names."""
    for name in ("variance_epsilon", "eps"):
        epsilon = getattr(layer, name, None)
        if isinstance(epsilon, float):
            return epsilon
    return math.nan  # equal to no number


def _matches_reference(layer: nn.Module, reference: Callable[..., Tensor]) -> bool:
    """Return whether a layer computes the reference function on synthetic rows and weights."""
    rng = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(one.shape, generator=rng).to(one.dtype)
        for name, one in layer.named_parameters()
    }
    weight = weights["weight"]
    x = torch.randn(_ROWS, 2, len(weight), generator=rng).to(weight.dtype)
    # Small rows reveal the constant that is added to the mean square.
    x[0] *= 1e-3
    try:
        with torch.no_grad():
            outputs = functional_call(layer, weights, (x,))
            expected = reference(
                x.float(), {k: one.float() for k, one in weights.items()}, layer
            )
    except Exception:  # a different layer may raise errors of any type
        return False
    tolerance = 8 * torch.finfo(weight.dtype).eps
    if not isinstance(outputs, Tensor) or outputs.shape != expected.shape:
        return False
    gap = float((outputs.float() - expected).abs().max())
    return gap <= tolerance * max(1.0, float(expected.abs().max()))
