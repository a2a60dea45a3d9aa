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

Layers of other libraries are recognized by what they compute. Convolutions are matrix products
with patches, which gradients of single examples need anyway; for images of few channels that is
also the faster forward pass, and its outputs are channels-last in memory, which makes pooling
ten times faster.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

# Measured costs of materialized entries, which are written once and read for the norm and the
# sum, relative to products of small matrices. Kernels are few, and their sum takes longer.
_ENTRY_COST, _KERNEL_COST = 50.0, 10.0
_MAX_ENTRIES = 1 << 25  # numbers of gradients that are materialized at a time
_MAX_CHANNELS = 4  # up to which a product with patches is faster than torch's convolution
_ALIGNED = 64  # bytes of a cache line; no number crosses one
_SPARE = 1.1  # reserve of a scratch buffer, since blocks vary in size
_ROWS = 3  # synthetic rows on which a layer is tested
_UNIT = 2.0**-24  # unit roundoff of float32
_CHUNK = 64  # squares that are summed in float32
_TINY = 2.0**-126  # part of a product that may underflow in float32


class ScratchBuffer:
    """Allocates tensors that live for one block from memory that is reused for the next.

    The system zeroes the pages of a tensor of some megabytes on first touch, which takes longer
    than writing the contents. Requests that do not fit are allocated by the system, and the
    buffer grows for the next block.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def clear(self) -> None:
        """Release all tensors; none that was allocated before may be used again."""
        if self._used > len(self._bytes):
            self._bytes = torch.empty(0, dtype=torch.uint8)  # frees the old buffer first
            self._bytes = torch.empty(int(_SPARE * self._used), dtype=torch.uint8)
        self._used = 0

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate an uninitialized tensor."""
        size = math.prod(shape) * dtype.itemsize
        start = self._used
        self._used += -(-size // _ALIGNED) * _ALIGNED
        if self._used > len(self._bytes):
            return torch.empty(shape, dtype=dtype)
        return self._bytes[start : start + size].view(dtype).view(shape)


def extract_patches(
    module: nn.Conv1d | nn.Conv2d, x: Tensor, buffer: ScratchBuffer
) -> tuple[Tensor, ...]:
    """Return the input patch of each output position, in several parts.

    Each part has shape (n, groups, positions, d_k). Concatenated, the parts are whole patches,
    with numbers ordered by row, column and channel of the kernel; see :func:`to_weight_order`.
    Vertically adjacent patches share rows of the image: each part is a view of one tensor in
    which such rows are written once, so that a kernel of k rows needs about 1/k of the memory.
    ``torch.nn.functional.unfold`` copies single numbers instead, which takes longer.
    """
    size, stride, padding, dilation = (
        tuple(getattr(module, name))
        for name in ("kernel_size", "stride", "padding", "dilation")
    )
    if x.ndim == 3:  # treat one dimension as two, the first of length 1
        x = x[:, :, None]
        size, stride, dilation = (1, *size), (1, *stride), (1, *dilation)
        padding = (0, *padding)
    down, across = padding
    rows = x.permute(0, 2, 3, 1)
    if down or across:
        rows = functional.pad(rows, (0, 0, across, across, down, down))
    rows = rows.contiguous()
    sides = zip(rows.shape[1:3], size, stride, dilation, strict=True)
    out_height, out_width = (
        (side - dilation_ * (kernel - 1) - 1) // stride_ + 1
        for side, kernel, stride_, dilation_ in sides
    )
    # A part holds as many kernel rows as the vertical stride. With groups, or with rows that
    # are not adjacent, there is a single part.
    shared = module.groups == 1 and dilation[0] == 1 and size[0] % stride[0] == 0
    parts, kernel_rows = (size[0] // stride[0], stride[0]) if shared else (1, size[0])
    (n, height, width, channels), groups = rows.shape, module.groups
    row_size, group_channels = width * channels, channels // groups
    input_rows = out_height + parts - 1
    shape = (n, groups, input_rows, out_width, kernel_rows, size[1], group_channels)
    outer_strides = (
        group_channels,
        row_size * stride[0],
        channels * stride[1],
        row_size * dilation[0],
    )
    strides = (height * row_size, *outer_strides, channels * dilation[1], 1)
    buffered = buffer.empty(*shape, dtype=x.dtype).copy_(rows.as_strided(shape, strides))
    buffered = buffered.view(n, groups, input_rows * out_width, -1)
    return tuple(
        buffered[:, :, k * out_width : (k + out_height) * out_width] for k in range(parts)
    )


def to_weight_order(module: nn.Conv1d | nn.Conv2d, weights: Tensor) -> Tensor:
    """Reorder numbers of shape (..., outputs, d) by row, column and channel as the weights."""
    outputs, channels, *size = module.weight.shape
    shaped = weights.reshape(*weights.shape[:-2], outputs, *size, channels)
    return shaped.movedim(-1, -1 - len(size))


def uses_patch_product(module: nn.Module) -> bool:
    """Return whether a product with patches is the faster forward pass of a layer."""
    return (
        isinstance(module, nn.Conv2d)
        and module.in_channels <= _MAX_CHANNELS
        and module.groups == 1
        and "forward" not in vars(module)
    )


class PatchConvolution(torch.autograd.Function):
    """A convolution by its patches; gradients flow to the inputs only.

    The weights are an argument so that the output belongs to a graph even if the inputs do not.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, module: nn.Conv2d, *patches: Tensor
    ) -> Tensor:
        """Return outputs of shape (n, outputs, height, width), channels-last in memory."""
        ctx.save_for_backward(x)
        ctx.module = module
        n, _, positions, d = patches[0].shape
        height = (
            x.shape[2]
            + 2 * int(module.padding[0])
            - module.dilation[0] * (module.kernel_size[0] - 1)
            - 1
        ) // module.stride[0] + 1
        shape = n, module.out_channels, height, positions // height
        outputs = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        # Written in place, not a view of another tensor: later layers may overwrite it.
        rows = outputs.permute(0, 2, 3, 1).view(n, positions, -1)
        flat = module.weight.detach().permute(0, 2, 3, 1).flatten(1)  # in the patches' order
        for k, (part, some) in enumerate(zip(patches, torch.split(flat.mT, d), strict=True)):
            rows.baddbmm_(part[:, 0], some.expand(n, -1, -1), beta=float(k > 0))
        if module.bias is not None:
            rows += module.bias.detach()
        return outputs

    @staticmethod
    def backward(ctx: Any, *output_grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients at the inputs, computed by torch."""
        (x,), module = ctx.saved_tensors, ctx.module
        no_grads = (None,) * (len(ctx.needs_input_grad) - 1)
        if not ctx.needs_input_grad[0]:
            return None, *no_grads
        return convolution_backward(module, output_grad[0], x, inputs=True), *no_grads


def convolution_backward(
    module: Any, output_grad: Tensor, x: Tensor, *, inputs: bool
) -> Tensor:
    """Return torch's gradients of a convolution at its inputs or at its weights."""
    grads: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        output_grad,
        x,
        module.weight.detach(),
        None,
        module.stride,
        module.padding,
        module.dilation,
        False,
        [0] * (x.ndim - 2),
        module.groups,
        [inputs, not inputs, False],
    )
    return grads[0 if inputs else 1]


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


LayerGradients = dict[str, Gradients]  # by the name of the parameter
Rule = Callable[..., LayerGradients]


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
    """Gradients of a weight matrix, as inputs and output gradients."""

    inputs: Tensor  # of shape (n, t, d)
    outputs: Tensor  # gradients of the loss at the outputs, of shape (n, t, p)

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
class EmbeddingGradients(ProductGradients):
    """Gradients of an embedding table of some height; the inputs are rows, of shape (n, t)."""

    height: int

    def squared_norms(self) -> Tensor:
        """Squared norms: positions that look up the same row add to the same gradient."""
        g = self.outputs
        same = self.inputs[:, :, None] == self.inputs[:, None, :]
        pairs = (g @ g.mT).mul_(same).sum((1, 2), dtype=torch.float64)
        _, positions, d = g.shape
        return _upper_squared_norms(
            pairs + _TINY * d * positions**2, _position_norms(g).sum(1), positions, d
        )

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The weighted sum."""
        rows, g = _select_kept((self.inputs, self.outputs), kept)
        g = g * factors.to(g.dtype)[:, None, None]
        total = g.new_zeros(self.height, g.shape[2])
        return total.index_add_(0, rows.reshape(-1), g.reshape(-1, g.shape[2]))

    def materialize(self) -> Tensor:
        """The gradients, materialized; this needs much memory."""
        n, t, d = self.outputs.shape
        total = self.outputs.new_zeros(n * self.height, d)
        shifted = self.inputs + self.height * torch.arange(n)[:, None]
        total.index_add_(0, shifted.reshape(-1), self.outputs.reshape(n * t, d))
        return total.view(n, self.height, d)


@dataclass(frozen=True, eq=False, repr=False)
class _PatchGradients:
    """Materialized gradients of weights of shape (p, parts * d), as (parts, n, p, d)."""

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
class _ConvolutionGradients:
    """Gradients of convolution weights.

    ``whole`` holds the inputs and the gradients at the outputs if the backward pass of the layer
    is to compute the weighted sum.
    """

    module: nn.Conv1d | nn.Conv2d
    by_patch: _PatchGradients | ProductGradients
    whole: tuple[Tensor, Tensor] | None = None

    @property
    def positions(self) -> int:
        return self.by_patch.positions

    def squared_norms(self) -> Tensor:
        return self.by_patch.squared_norms()

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        if self.whole is None:
            return to_weight_order(self.module, self.by_patch.weighted_sum(factors, kept))
        x, g = _select_kept(self.whole, kept)
        scaled = g * factors.to(g.dtype).view(-1, *[1] * (g.ndim - 1))
        return convolution_backward(self.module, scaled, x, inputs=False)

    def materialize(self) -> Tensor:
        return to_weight_order(self.module, self.by_patch.materialize())


def linear_gradients(
    module: Any,
    a: Tensor,
    g: Tensor,
    n: int,
    block_size: int,
    buffer: ScratchBuffer,
    transposed: bool = False,
) -> LayerGradients:
    """Gradients of a linear layer, whose weights may have shape (inputs, outputs).

    They are materialized where that is cheaper. The norms of the two forms differ slightly, so
    only public numbers decide: the declared block size, and not the actual number of examples.
    """
    gradients: LayerGradients = {}
    a, g = a.reshape(n, -1, a.shape[-1]), g.reshape(n, -1, g.shape[-1])
    if module.weight.requires_grad:
        products = ProductGradients(g, a) if transposed else ProductGradients(a, g)
        (_, positions, d), p = a.shape, g.shape[2]
        small = positions > 1 and block_size * p * d <= _MAX_ENTRIES
        cheap = positions * positions * (p + d) > _ENTRY_COST * p * d
        gradients["weight"] = (
            MaterializedGradients(products.materialize()) if small and cheap else products
        )
    if module.bias is not None and module.bias.requires_grad:
        gradients["bias"] = MaterializedGradients(g.sum(1))
    return gradients


transposed_linear_gradients = partial(linear_gradients, transposed=True)  # as in GPT-2


def convolution_gradients(
    module: nn.Conv1d | nn.Conv2d,
    a: Tensor,
    g: Tensor,
    n: int,
    block_size: int,
    buffer: ScratchBuffer,
    patches: tuple[Tensor, ...] | None = None,
) -> LayerGradients:
    """Gradients of a convolution; ``patches`` are its patches if they are known already."""
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
    if not (groups > 1 or (small and cheap)):
        products = ProductGradients(
            torch.cat(patches, -1)[:, 0].reshape(n, views * positions, d),
            output_grads[:, :, 0].reshape(n, views * positions, p),
        )
        whole = (a, g) if views == 1 else None
        gradients["weight"] = _ConvolutionGradients(module, products, whole)
        return gradients
    if groups == 1:
        columns = output_grads[:, :, 0].mT
        values = buffer.empty(len(patches), len(g), p, patches[0].shape[3], dtype=g.dtype)
        for part, part_values in zip(patches, values, strict=True):
            torch.bmm(columns, part[:, 0], out=part_values)
    else:
        (patch,) = patches
        values = torch.einsum("nlgp,ngld->ngpd", output_grads, patch).flatten(1, 2)[None]
    if views > 1:
        values = values.view(len(values), n, -1, *values.shape[2:]).sum(2)
    gradients["weight"] = _ConvolutionGradients(module, _PatchGradients(values))
    return gradients


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
    module: Any, x: Tensor, g: Tensor, n: int, block_size: int, buffer: ScratchBuffer
) -> LayerGradients:
    """Gradients of the scales and shifts of a normalization within each example."""
    channels_second = not isinstance(module, nn.LayerNorm | nn.RMSNorm)
    if isinstance(module, nn.LayerNorm):
        standardized = functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    elif isinstance(module, nn.RMSNorm):
        standardized = functional.rms_norm(x, list(module.normalized_shape), eps=module.eps)
    elif isinstance(module, nn.GroupNorm):
        standardized = functional.group_norm(x, module.num_groups, eps=module.eps)
    else:
        assert isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d)
        standardized = functional.instance_norm(x, eps=module.eps)

    def summed(values: Tensor) -> Tensor:
        """Sum over all positions of an example that share a parameter."""
        if channels_second:
            return values.reshape(n, len(values) // n, values.shape[1], -1).sum((1, 3))
        return values.reshape(n, -1, *module.normalized_shape).sum(1)

    gradients: LayerGradients = {}
    if module.weight is not None and module.weight.requires_grad:
        gradients["weight"] = MaterializedGradients(summed(g * standardized))
    bias = getattr(module, "bias", None)  # RMSNorm has none
    if bias is not None and bias.requires_grad:
        gradients["bias"] = MaterializedGradients(summed(g))
    return gradients


RULES: dict[type[nn.Module], Rule] = {
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


def find_rule(layer: nn.Module) -> Rule | None:
    """Return the gradient rule of a layer with parameters, or None if there is none.

    Layers of transformers, one class for each family of models, are recognized by name and then
    tested on synthetic rows with synthetic weights: a layer with a known name that computes
    something else is not supported. Hence nothing here needs that library.
    """
    if rule := RULES.get(type(layer)):
        if isinstance(layer, nn.Conv1d | nn.Conv2d):
            plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
            return rule if plain else None
        return None if getattr(layer, "track_running_stats", False) else rule
    if next(layer.children(), None) is not None or next(layer.buffers(), None) is not None:
        return None
    name = type(layer).__name__
    shapes = {key: one.shape for key, one in layer.named_parameters()}
    if name == "Conv1D" and shapes.keys() == {"weight", "bias"}:
        linear = _matches(layer, lambda x, weight, bias: x @ weight + bias)
        return transposed_linear_gradients if linear else None
    if name.endswith("RMSNorm") and shapes.keys() == {"weight"} and len(shapes["weight"]) == 1:
        # Some parametrize the scale as 1 + weight, which has the same gradient.
        def norm(x: Tensor, weight: Tensor, offset: int) -> Tensor:
            return (offset + weight) * _rms(x, _rms_epsilon(layer))

        known = any(_matches(layer, partial(norm, offset=offset)) for offset in (0, 1))
        return rms_norm_gradients if known else None
    return None


def rms_norm_gradients(
    module: Any, x: Tensor, g: Tensor, n: int, block_size: int, buffer: ScratchBuffer
) -> LayerGradients:
    """Gradients of the scales of a normalization by the root mean square."""
    scaled = g * _rms(x, _rms_epsilon(module))
    summed = scaled.reshape(n, -1, scaled.shape[-1]).sum(1)
    return {"weight": MaterializedGradients(summed)}


def _rms(x: Tensor, stability: float) -> Tensor:
    """Divide rows by their root mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + stability)


def _rms_epsilon(layer: nn.Module) -> float:
    """Constant that a normalization adds to the mean square, by either of its names."""
    for name in ("variance_epsilon", "eps"):
        epsilon = getattr(layer, name, None)
        if isinstance(epsilon, float):
            return epsilon
    return math.nan  # equal to no number


def _matches(layer: nn.Module, reference: Callable[..., Tensor]) -> bool:
    """Return whether a layer computes ``reference(x, **weights)`` for synthetic numbers."""
    rng = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(one.shape, generator=rng).to(one.dtype)
        for name, one in layer.named_parameters()
    }
    weight = weights["weight"]
    x = torch.randn(_ROWS, 2, len(weight), generator=rng).to(weight.dtype)
    x[0] *= 1e-3  # small rows reveal the constant that is added to the mean square
    try:
        with torch.no_grad():
            outputs = functional_call(layer, weights, (x,))
            expected = reference(x.float(), **{k: one.float() for k, one in weights.items()})
    except Exception:  # a different layer may raise errors of any type
        return False
    if not isinstance(outputs, Tensor) or outputs.shape != expected.shape:
        return False
    tolerance = 8 * torch.finfo(weight.dtype).eps * max(1.0, float(expected.abs().max()))
    return float((outputs.float() - expected).abs().max()) <= tolerance
