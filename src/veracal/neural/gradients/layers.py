r"""What a layer knows of each example's gradient, without writing all of it down.

A layer that multiplies by its weights has, for example i, inputs :math:`a_{it}` and gradients
:math:`g_{it}` of the loss at its outputs, for every place t (a token, a pixel of the output),
and the gradient of its weights is :math:`\sum_t g_{it} a_{it}^\top`. Its squared norm is

.. math:: \sum_{t,t'} (a_{it} \cdot a_{it'}) (g_{it} \cdot g_{it'})

(Goodfellow 2015, https://arxiv.org/abs/1510.01799, for one place; Li et al. 2022,
https://arxiv.org/abs/2110.05679, for several), and the sum of all gradients, each times a
factor, is one product of matrices: no second pass through the network is needed (Bu et al.
2023, https://arxiv.org/abs/2210.00038). Where the gradients themselves are small, they are
written down instead.

Layers of other libraries, known by what they compute.
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

# By measurement: entries that are written down, read for the norm and read for the sum, against
# products of small matrices. Kernels are few, and the sum of a convolution takes longer.
_AN_ENTRY, _A_KERNEL = 50.0, 10.0
_MOST_ENTRIES = 1 << 25  # of gradients that are written down at a time
_UNIT = 2.0**-24  # of rounding in float32
_TOGETHER = 64  # squares that are added up in float32
_LEAST = 2.0**-126  # what of a product may vanish in float32


class Gradients(Protocol):
    """The gradients of one parameter, by one use of it, of n examples."""

    def squares(self) -> Tensor:
        """Squared norms, or a little more, of shape (n,); in float64."""

    def weighted(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """Sum of the kept gradients, each times its factor, in the shape of the parameter."""

    def each(self) -> Tensor:
        """All of them, of shape (n, *parameter)."""

    @property
    def places(self) -> int:
        """How many terms of an example are added up for a weighted sum."""


def flatten_examples(values: Tensor) -> Tensor:
    """One row for each example, also where a parameter is a single number, or none."""
    return values.reshape(len(values), values.shape[1:].numel())


@dataclass(frozen=True, eq=False, repr=False)
class MaterializedGradients:
    """Gradients that are written down."""

    values: Tensor
    places = 1

    def squares(self) -> Tensor:
        """Squared norms."""
        return _squared_row_norms(flatten_examples(self.values))

    def weighted(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The weighted sum."""
        flat = flatten_examples(self.values if kept is None else self.values[kept])
        return (factors.to(flat.dtype) @ flat).view(self.values.shape[1:])

    def each(self) -> Tensor:
        """The gradients."""
        return self.values


@dataclass(frozen=True, eq=False, repr=False)
class ProductGradients:
    """Gradients of weights that inputs are multiplied by.

    Attributes
    ----------
    inputs : tensor of shape (n, t, d)
    outputs : tensor of shape (n, t, p)
        Gradients of the loss at the outputs.
    """

    inputs: Tensor
    outputs: Tensor

    @property
    def places(self) -> int:
        """How many places an example has."""
        return self.inputs.shape[1]

    def squares(self) -> Tensor:
        """Squared norms, and what rounding and vanishing products may hide of them."""
        a, g = self.inputs, self.outputs
        if a.shape[1] == 1:
            return _squared_row_norms(a[:, 0]) * _squared_row_norms(g[:, 0])
        pairs = (a @ a.mT).mul_(g @ g.mT).sum((1, 2), dtype=torch.float64)
        places, d, p = a.shape[1], a.shape[2], g.shape[2]
        long, steep = _position_norms(a), _position_norms(g)
        hidden = d * steep.sum(1).square() + p * long.sum(1).square() + places**2
        lengths = (long * steep).sum(1)
        return _upper_squared_norms(pairs + _LEAST * hidden, lengths, places, d)

    def weighted(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The weighted sum, one product of matrices."""
        a, g = _select_kept((self.inputs, self.outputs), kept)
        g = g * factors.to(g.dtype)[:, None, None]
        return g.reshape(-1, g.shape[2]).mT @ a.reshape(-1, a.shape[2])

    def each(self) -> Tensor:
        """The gradients, written down."""
        return self.outputs.mT @ self.inputs


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingGradients:
    """Gradients of a table in which rows are looked up.

    Attributes
    ----------
    rows : tensor of ints, of shape (n, t)
    outputs : tensor of shape (n, t, d)
    height : int
        Rows of the table.
    """

    rows: Tensor
    outputs: Tensor
    height: int

    @property
    def places(self) -> int:
        """How many rows an example looks up."""
        return self.rows.shape[1]

    def squares(self) -> Tensor:
        """Squared norms: places that look up the same row add to the same gradient."""
        g = self.outputs
        same = self.rows[:, :, None] == self.rows[:, None, :]
        pairs = (g @ g.mT).mul_(same).sum((1, 2), dtype=torch.float64)
        _, places, d = g.shape
        return _upper_squared_norms(
            pairs + _LEAST * d * places**2, _position_norms(g).sum(1), places, d
        )

    def weighted(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The weighted sum."""
        rows, g = _select_kept((self.rows, self.outputs), kept)
        g = g * factors.to(g.dtype)[:, None, None]
        total = g.new_zeros(self.height, g.shape[2])
        return total.index_add_(0, rows.reshape(-1), g.reshape(-1, g.shape[2]))

    def each(self) -> Tensor:
        """The gradients, written down, which takes much room."""
        n, t, d = self.outputs.shape
        total = self.outputs.new_zeros(n * self.height, d)
        shifted = self.rows + self.height * torch.arange(n)[:, None]
        total.index_add_(0, shifted.reshape(-1), self.outputs.reshape(n * t, d))
        return total.view(n, self.height, d)


@dataclass(frozen=True, eq=False, repr=False)
class ConvolutionGradients:
    """Gradients of the weights of a convolution, too many to write down.

    Attributes
    ----------
    module : Conv1d or Conv2d
    inputs : tensor of shape (n, channels, ...)
    outputs : tensor of shape (n, p, ...)
    patches : Gradients
        The same as a product, by places.
    """

    module: Any
    inputs: Tensor
    outputs: Tensor
    patches: Gradients

    @property
    def places(self) -> int:
        """How many places an example has."""
        return self.patches.places

    def squares(self) -> Tensor:
        """Squared norms."""
        return self.patches.squares()

    def weighted(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The weighted sum, as the layer itself would take it."""
        x, g = _select_kept((self.inputs, self.outputs), kept)
        scale = factors.to(g.dtype)
        scaled = g * scale.view(-1, *[1] * (g.ndim - 1))
        return convolution_backward(self.module, scaled, x, inputs=False)

    def each(self) -> Tensor:
        """The gradients, written down."""
        return self.patches.each()


LayerGradients = dict[str, Gradients]


def linear_gradients(
    module: nn.Linear, a: Tensor, g: Tensor, n: int, usual: int, room: ScratchBuffer
) -> LayerGradients:
    """Gradients of a linear layer."""
    found: LayerGradients = {}
    g = g.reshape(n, -1, g.shape[-1])
    if module.weight.requires_grad:
        found["weight"] = matmul_gradients(a.reshape(n, -1, a.shape[-1]), g, usual)
    if module.bias is not None and module.bias.requires_grad:
        found["bias"] = MaterializedGradients(g.sum(1))
    return found


def convolution_gradients(
    module: nn.Conv1d | nn.Conv2d,
    a: Tensor,
    g: Tensor,
    n: int,
    usual: int,
    room: ScratchBuffer,
    patches: tuple[Tensor, ...] | None = None,
) -> LayerGradients:
    """Gradients of a convolution in one or two dimensions.

    ``patches`` are those of :func:`~.patches.patches_of`, if somebody has them already.
    """
    found: LayerGradients = {}
    if module.bias is not None and module.bias.requires_grad:
        summed = g.sum(tuple(range(2, g.ndim)))
        found["bias"] = MaterializedGradients(summed.view(n, -1, g.shape[1]).sum(1))
    if not module.weight.requires_grad:
        return found
    if patches is None:
        patches = extract_patches(module, a, room)
    (_, groups, places, _), d = patches[0].shape, sum(one.shape[3] for one in patches)
    slopes = g.movedim(1, -1).reshape(len(g), places, groups, -1)
    views, p = len(a) // n, slopes.shape[3]
    small = usual * groups * p * d * views <= _MOST_ENTRIES
    cheap = views * places * places * (p + d) > _A_KERNEL * p * d
    if groups > 1 or (small and cheap):
        found["weight"] = _KernelGradients(_patch_gradients(slopes, patches, n, room), module)
        return found
    product = ProductGradients(
        torch.cat(patches, -1)[:, 0].reshape(n, views * places, d),
        slopes[:, :, 0].reshape(n, views * places, p),
    )
    kernels = _KernelGradients(product, module)
    found["weight"] = ConvolutionGradients(module, a, g, kernels) if views == 1 else kernels
    return found


def _patch_gradients(
    slopes: Tensor, patches: tuple[Tensor, ...], n: int, room: ScratchBuffer
) -> "_InParts":
    """Gradients of n examples by each part of their patches, summed over their views."""
    rows, _, groups, p = slopes.shape
    if groups == 1:
        g, d = slopes[:, :, 0].mT, patches[0].shape[3]
        each = room.empty(len(patches), rows, p, d, dtype=g.dtype)
        for part, made in zip(patches, each, strict=True):
            torch.bmm(g, part[:, 0], out=made)
    else:
        (whole,) = patches
        each = torch.einsum("nlgp,ngld->ngpd", slopes, whole).flatten(1, 2)[None]
    return _PatchGradients(
        each if rows == n else each.view(len(each), n, -1, *each.shape[2:]).sum(2)
    )


@dataclass(frozen=True, eq=False, repr=False)
class _PatchGradients:
    """Gradients that are written down, some columns after the other.

    Attributes
    ----------
    values : tensor of shape (parts, n, p, d)
        Of weights of shape (p, parts * d).
    """

    values: Tensor
    places = 1

    def squares(self) -> Tensor:
        parts, n, p, d = self.values.shape
        return _squared_row_norms(self.values.view(parts * n, p * d)).view(parts, n).sum(0)

    def weighted(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        values = self.values if kept is None else self.values[:, kept]
        found: Tensor = factors.to(values.dtype) @ values.flatten(2)
        return found.view(len(found), *values.shape[2:]).movedim(0, 1).flatten(1)

    def each(self) -> Tensor:
        return self.values.permute(1, 2, 0, 3).flatten(2)


@dataclass(frozen=True, eq=False, repr=False)
class _KernelGradients:
    """Gradients of kernels by output, row, column and channel, in the order of the weights."""

    flat: _PatchGradients | ProductGradients
    module: nn.Conv1d | nn.Conv2d

    @property
    def places(self) -> int:
        return self.flat.places

    def squares(self) -> Tensor:
        return self.flat.squares()

    def weighted(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        return to_weight_order(self.module, self.flat.weighted(factors, kept))

    def each(self) -> Tensor:
        return to_weight_order(self.module, self.flat.each())


def embedding_gradients(
    module: nn.Embedding, rows: Tensor, g: Tensor, n: int, usual: int, room: ScratchBuffer
) -> LayerGradients:
    """Gradients of a table of embeddings."""
    if module.max_norm is not None or module.scale_grad_by_freq:
        return {}  # both look at the whole batch
    rows, g = rows.reshape(n, -1), g.reshape(n, -1, g.shape[-1])
    if module.padding_idx is not None:
        g = g.masked_fill((rows == module.padding_idx)[:, :, None], 0.0)
    return {"weight": EmbeddingGradients(rows, g, module.num_embeddings)}


def normalization_gradients(
    module: nn.Module, x: Tensor, g: Tensor, n: int, usual: int, room: ScratchBuffer
) -> LayerGradients:
    """Gradients of the scales and shifts of a normalization within each example."""
    if isinstance(module, nn.LayerNorm):
        plain = functional.layer_norm(x, module.normalized_shape, eps=module.eps)
        tail = len(module.normalized_shape)
    elif isinstance(module, nn.RMSNorm):
        plain = functional.rms_norm(x, list(module.normalized_shape), eps=module.eps)
        tail = len(module.normalized_shape)
    elif isinstance(module, nn.GroupNorm):
        plain, tail = functional.group_norm(x, module.num_groups, eps=module.eps), -1
    else:
        assert isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d)
        plain, tail = functional.instance_norm(x, eps=module.eps), -1

    def summed(values: Tensor) -> Tensor:
        """Over all places of an example but those that have parameters of their own."""
        if tail < 0:  # channels come second
            return values.reshape(n, len(values) // n, values.shape[1], -1).sum((1, 3))
        shape = values.shape[values.ndim - tail :]
        return values.reshape(n, -1, *shape).sum(1)

    found: LayerGradients = {}
    if module.weight is not None and module.weight.requires_grad:
        found["weight"] = MaterializedGradients(summed(g * plain))
    bias = getattr(module, "bias", None)
    if bias is not None and bias.requires_grad:
        found["bias"] = MaterializedGradients(summed(g))
    return found


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
    """Whether a layer with parameters of its own is one of those above."""
    if type(module) not in RULES:
        return False
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return not getattr(module, "track_running_stats", False)


def matmul_gradients(a: Tensor, g: Tensor, usual: int) -> Gradients:
    """As a product, or written down, whichever takes less.

    The norms of the two differ a little, so nothing but public figures may decide: how many
    examples there usually are, and not how many there are.
    """
    _, places, d = a.shape
    p = g.shape[2]
    if places == 1 or usual * p * d > _MOST_ENTRIES:
        return ProductGradients(a, g)
    if places * places * (p + d) > _AN_ENTRY * p * d:
        return MaterializedGradients(g.mT @ a)
    return ProductGradients(a, g)


def _squared_row_norms(rows: Tensor) -> Tensor:
    """Squared norms of rows, in float64."""
    # In float32 a sum of many squares comes out too small by more than the slack; one of a
    # few does not, and is taken without a copy in float64.
    whole = rows.shape[1] // _TOGETHER * _TOGETHER
    if not whole:
        return rows.double().square().sum(1)
    short = rows[:, :whole].reshape(len(rows), -1, _TOGETHER)
    lengths: Tensor = torch.linalg.vector_norm(short, dim=2).double()
    # Squares of very small numbers vanish there; as much as may have is added.
    squares = lengths.square_().sum(1).add_(whole * _LEAST)
    if whole < rows.shape[1]:
        squares += rows[:, whole:].double().square().sum(1)
    return squares


def _position_norms(rows: Tensor) -> Tensor:
    """Norms at all places, of shape (n, t), in float64, and what may have vanished of them.

    They decide how much is left to rounding, so that a few digits are enough.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=2).double()
    return (norms.square() + rows.shape[2] * _LEAST).sqrt()


def _upper_squared_norms(squares: Tensor, lengths: Tensor, places: int, width: int) -> Tensor:
    """Squared norms that are not too small, where terms of both signs have cancelled.

    ``lengths`` is the sum of the norms of all terms, so rounding moves a square by a share of
    its square, and a sum of the terms by a share of it. The share is the typical one, of
    roundings that do not all point the same way.
    """
    share = 4 * _UNIT * math.sqrt(places + width)
    upper = (squares.clamp(min=0.0) + share * lengths.square()).sqrt() + share * lengths
    return upper.square()


def _select_kept(parts: tuple[Tensor, Tensor], kept: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows that count: zero times NaN would be NaN."""
    if kept is None:
        return parts
    return parts[0][kept], parts[1][kept]


Rule = Callable[..., LayerGradients]
_ROWS = 3  # made up, on which a layer is tried


def find_rule(layer: nn.Module) -> Rule | None:
    """How gradients of a layer with parameters of its own are taken; None if nobody knows.

    Layers of transformers, one class for each family of models, are asked for by their name
    and tried on made-up rows with made-up weights: what is called so and computes something
    else is not known. So nothing here needs that library.
    """
    if type(layer) in RULES:
        found: Rule | None = RULES[type(layer)] if is_supported(layer) else None
        return found
    name, shapes = type(layer).__name__, _parameter_shapes(layer)
    if name == "Conv1D" and shapes.keys() == {"weight", "bias"}:
        return (
            transposed_linear_gradients
            if _matches_reference(layer, _transposed_linear)
            else None
        )
    if name.endswith("RMSNorm") and shapes.keys() == {"weight"} and len(shapes["weight"]) == 1:
        # Some count the scale from zero, which has the same slope.
        known = any(_matches_reference(layer, one) for one in (_rms_norm, _rms_norm_offset))
        return rms_norm_gradients if known else None
    return None


def transposed_linear_gradients(
    module: Any, a: Tensor, g: Tensor, n: int, usual: int, room: ScratchBuffer
) -> LayerGradients:
    """Gradients of a linear layer whose weights have shape (inputs, outputs), as in GPT-2."""
    found: LayerGradients = {}
    a, g = a.reshape(n, -1, a.shape[-1]), g.reshape(n, -1, g.shape[-1])
    if module.weight.requires_grad:
        found["weight"] = matmul_gradients(g, a, usual)  # the other way round
    if module.bias.requires_grad:
        found["bias"] = MaterializedGradients(g.sum(1))
    return found


def rms_norm_gradients(
    module: Any, x: Tensor, g: Tensor, n: int, usual: int, room: ScratchBuffer
) -> LayerGradients:
    """Gradients of the scales of a normalization by the root of the mean square."""
    each = g * _divide_by_rms(x, _rms_epsilon(module))
    return {"weight": MaterializedGradients(each.reshape(n, -1, each.shape[-1]).sum(1))}


def _parameter_shapes(layer: nn.Module) -> dict[str, torch.Size]:
    """Shapes of all that a layer remembers, if it has no layers inside."""
    if next(layer.children(), None) is not None or next(layer.buffers(), None) is not None:
        return {}
    return {name: one.shape for name, one in layer.named_parameters()}


def _transposed_linear(x: Tensor, weights: dict[str, Tensor], layer: nn.Module) -> Tensor:
    return x @ weights["weight"] + weights["bias"]


def _rms_norm(x: Tensor, weights: dict[str, Tensor], layer: nn.Module) -> Tensor:
    return weights["weight"] * _divide_by_rms(x, _rms_epsilon(layer))


def _rms_norm_offset(x: Tensor, weights: dict[str, Tensor], layer: nn.Module) -> Tensor:
    return (1 + weights["weight"]) * _divide_by_rms(x, _rms_epsilon(layer))


def _divide_by_rms(x: Tensor, stability: float) -> Tensor:
    """Rows divided by the root of their mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + stability)


def _rms_epsilon(layer: nn.Module) -> float:
    """What a normalization adds to the mean square, by whichever name it has."""
    for name in ("variance_epsilon", "eps"):
        found = getattr(layer, name, None)
        if isinstance(found, float):
            return found
    return math.nan  # equals nothing


def _matches_reference(layer: nn.Module, truth: Callable[..., Tensor]) -> bool:
    """Whether a layer computes what it is taken for, with weights and rows that are made up."""
    rng = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(one.shape, generator=rng).to(one.dtype)
        for name, one in layer.named_parameters()
    }
    first = weights["weight"]
    x = torch.randn(_ROWS, 2, len(first), generator=rng).to(first.dtype)
    # Small rows too, where what is added to the mean square shows.
    x[0] *= 1e-3
    try:
        with torch.no_grad():
            made = functional_call(layer, weights, (x,))
            expected = truth(x.float(), {k: one.float() for k, one in weights.items()}, layer)
    except Exception:  # whatever a layer that is something else may raise
        return False
    close = 8 * torch.finfo(first.dtype).eps
    if not isinstance(made, Tensor) or made.shape != expected.shape:
        return False
    gap = float((made.float() - expected).abs().max())
    return gap <= close * max(1.0, float(expected.abs().max()))
