"""From the gradients of single examples to their clipped sum.

Clipped sums of gradients that are computed one by one, side by side (``torch.func``).

Clipped sums of gradients that Opacus' hooks write down.

Clipped sums from what each layer has seen, in one forward and one backward pass.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from veracal._checks import extra
from veracal.mechanisms import ClipRule, pre_noised, selection
from veracal.neural.gradient_sums import Layout
from veracal.neural.gradients.blocks import (
    Block,
    ClippedBlockSum,
    Inputs,
    LossFunction,
    PartialSumError,
    compute_logits,
    count_rows,
    example_losses,
)
from veracal.neural.gradients.convolution import (
    ScratchBuffer,
    convolve_patches,
    extract_patches,
    uses_patch_product,
)
from veracal.neural.gradients.layers import (
    Gradients,
    MaterializedGradients,
    find_rule,
    flatten_examples,
)
from veracal.neural.precision import check_dtype

_UNIT = 2.0**-24  # of rounding in float32
_SMALL = 1_024  # numbers of a gradient that are copied sooner than looked at by themselves
_LONGEST = 1e30  # times the bound
_MANY = 4_096  # places up to which they make no difference


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds a generator
class PreNoise:
    """Noise on each example's gradient before it is clipped, which earns no privacy.

    Attributes
    ----------
    std : float
        Standard deviation, of every coordinate.
    rng : Generator
    """

    std: float
    rng: np.random.Generator


def materialize(
    found: Mapping[torch.nn.Parameter, Tensor], noise: PreNoise | None
) -> dict[torch.nn.Parameter, Gradients]:
    """Gradients of shape (n, *parameter), with their noise if there is to be any.

    What is clipped is the noisy gradient, by its own norm: whatever the noise was, the example
    adds no more than the bound. One that was not finite stays so.
    """
    if noise is None:
        return {parameter: MaterializedGradients(values) for parameter, values in found.items()}
    return {
        parameter: MaterializedGradients(pre_noised(values, noise.std, rng=noise.rng))
        for parameter, values in found.items()
    }


@dataclass(frozen=True, eq=False, repr=False)
class _ClipFactors:
    """Which examples count (None: all), and by how much."""

    factors: Tensor
    kept: Tensor | None
    exceeding: int


def add_clipped(
    found: dict[torch.nn.Parameter, Gradients],
    clip: ClipRule,
    total: Tensor,
    layout: Layout,
    usual: int,
    real: Tensor | None = None,
) -> ClippedBlockSum:
    """Clip the gradients of a block by their norms over all parameters, and add them.

    Parameters
    ----------
    found : dict of parameters to the gradients of n examples
        Emptied on the way, as each takes room.
    clip : Clip
    total : tensor of float64
        The vector that is added to.
    layout : Layout
    usual : int
        Examples of a block, as declared. There are at most twice as many.
    real : tensor of bool, of shape (n,), optional
        Which examples count (None: all). The others, which give blocks their shape, add
        nothing and are not counted.

    Guarantees
    ----------
    Every example adds at most ``clip.bound`` to the vector, in the L2 norm, roundings in
    float32 included as far as they are of a typical size; one whose norm is not finite adds
    nothing. What an example adds, before roundings of the sum, follows from its own gradient;
    that its gradient does not depend on the others is up to the blocks
    (:class:`~veracal.neural.gradient_sums.NetworkSums`).
    """
    norms = torch.stack(_squared_norms(found)).sum(0).sqrt()
    # Factors of what is longer have too few digits in float32; it is left out.
    norms = torch.where(norms <= _LONGEST * clip.bound, norms, math.inf)
    assert len(norms) <= 2 * usual
    places = max(gradients.places for gradients in found.values())
    slack = rounding_slack(usual, places)
    if real is None:
        some = _clip_factors(norms, clip, slack)
    else:
        some, norms = _padded_factors(norms, real, clip, slack), norms[real]
    if len(some.factors):
        try:
            _add_gradients(found, some, total, layout)
        except Exception as error:
            raise PartialSumError("Expected a sum of clipped gradients, got none.") from error
    return ClippedBlockSum(norms, some.exceeding)


def _squared_norms(found: dict[torch.nn.Parameter, Gradients]) -> list[Tensor]:
    """Squared norms of the gradients of all parameters, of small ones together."""
    small, squares = list[Tensor](), list[Tensor]()
    for one in found.values():
        if isinstance(one, MaterializedGradients) and one.values.shape[1:].numel() <= _SMALL:
            small.append(flatten_examples(one.values))
        else:
            squares.append(one.squares())
    if small:
        squares.append(MaterializedGradients(torch.cat(small, 1)).squares())
    return squares


def _add_gradients(
    found: dict[torch.nn.Parameter, Gradients],
    some: _ClipFactors,
    total: Tensor,
    layout: Layout,
) -> None:
    """Add the clipped gradients of all parameters."""
    while found:
        parameter, gradients = found.popitem()
        place = layout.place(parameter)
        part = gradients.weighted(some.factors, some.kept)
        total[place.start : place.end] += part.detach().reshape(-1)


def rounding_slack(usual: int, places: int) -> float:
    r"""Share of the bound that is left to the rounding of a sum over a block.

    The sum is taken in float32. Roundings of n terms, none longer than the bound, move it by
    some :math:`n^{3/2} u` of the bound, u being 2^-24, for n up to twice the usual number, and
    by more where every term is itself a sum over very many places. All of these are public:
    what is left to rounding must not change with the records.
    """
    most = 2.0 * max(32, usual)
    return 2 * _UNIT * most * math.sqrt(most) * max(1.0, math.sqrt(places / _MANY))


def _clip_factors(norms: Tensor, clip: ClipRule, slack: float) -> _ClipFactors:
    """Factors of examples with these norms, each taken for longer by the slack."""
    found = selection(norms * (1 + slack), clip)
    whole = bool(found.kept.all())
    return _ClipFactors(found.factors, None if whole else found.kept, found.exceeding)


def _padded_factors(norms: Tensor, real: Tensor, clip: ClipRule, slack: float) -> _ClipFactors:
    """Factors of a block that is partly padding, which gets the factor zero.

    Padding that is not finite is left out instead, as zero times infinity is NaN.
    """
    found, places = _clip_factors(norms[real], clip, slack), real.nonzero()[:, 0]
    if found.kept is not None:
        places = places[found.kept]
    factors, kept = torch.zeros(len(norms), dtype=torch.float64), norms.isfinite() & ~real
    factors[places], kept[places] = found.factors, True
    if bool(kept.all()):
        return _ClipFactors(factors, None, found.exceeding)
    return _ClipFactors(factors[kept], kept, found.exceeding)


_ENTRIES = 1 << 25  # of gradients that are written down at a time


class FunctionalEngine:
    """Writes every example's gradient down, some examples at a time.

    It takes any module that ``torch.func.vmap`` can, whatever its layers are.

    Parameters
    ----------
    module : torch.nn.Module
    losses : callable
        ``losses(outputs, targets)`` of shape (n,).
    usual : int
        Examples of a block, as declared; there may be twice as many.
    noise : PreNoise, optional
    """

    name = "functional"
    at_once = False

    def __init__(
        self, module: nn.Module, losses: LossFunction, usual: int, noise: PreNoise | None = None
    ) -> None:
        self._module, self._losses, self._layout = module, losses, Layout(module)
        self._noise = noise
        self.size, self._usual = self._layout.size, usual
        self._names = [place.name for place in self._layout.places]
        self._everywhere = _parameter_names(module)
        self._each = vmap(grad(self._loss), in_dims=(None, 0, 0), randomness="different")

    def _loss(self, weights: dict[str, Tensor], inputs: Inputs, target: Tensor) -> Tensor:
        """The loss of one example: the mean over its views."""
        put = {f"module.{name}": weights[first] for name, first in self._everywhere.items()}
        # Not tied by torch: it puts weights of a layer that is used twice there twice, and
        # leaves something else than a parameter behind.
        made = functional_call(_LogitsModule(self._module), put, (inputs,), tie_weights=False)
        check_dtype(made, "the logits")
        views = len(made)
        return self._losses(made, target.expand(views)).mean()

    def gradients(self, block: Block) -> dict[str, Tensor]:
        """The gradient of each example, of shape (n, *parameter), by the parameters' names."""
        weights = {name: self._module.get_parameter(name).detach() for name in self._names}
        inputs = _group_views(block)
        with sdpa_kernel(SDPBackend.MATH):  # the others are not side by side, but in turn
            found: dict[str, Tensor] = self._each(weights, inputs, block.targets)
        return found

    def add(self, block: Block, clip: ClipRule, total: Tensor) -> ClippedBlockSum:
        """Add the clipped sum over a block to a vector."""
        together = max(1, _ENTRIES // max(1, self._layout.size))
        norms, exceeding = [], 0
        for start in range(0, len(block), together):
            part = block.part(start, start + together)
            if part.real is not None and not part.real.any():
                continue
            each = {
                self._module.get_parameter(name): values
                for name, values in self.gradients(part).items()
            }
            found = materialize(each, self._noise)
            some = add_clipped(found, clip, total, self._layout, self._usual, part.real)
            norms.append(some.norms)
            exceeding += some.exceeding
        return ClippedBlockSum(torch.cat(norms), exceeding)


class _LogitsModule(nn.Module):
    """A module by what it makes of its inputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Inputs) -> Any:
        return compute_logits(self.module, inputs)


def _parameter_names(module: nn.Module) -> dict[str, str]:
    """Every place of a parameter that is trained, one for each layer, and its first name."""
    first = {one: name for name, one in module.named_parameters() if one.requires_grad}
    return {
        f"{layer}.{word}".lstrip("."): first[one]
        for layer, owner in module.named_modules()  # each layer once, however often it is used
        for word, one in owner.named_parameters(recurse=False, remove_duplicate=False)
        if one in first
    }


def _group_views(block: Block) -> Inputs:
    """Inputs of shape (n, views, ...)."""
    n, views = len(block), block.views

    def split(tensor: Tensor) -> Tensor:
        return tensor.reshape(n, views, *tensor.shape[1:])

    if isinstance(block.inputs, Mapping):
        return {name: split(one) for name, one in block.inputs.items()}
    return split(block.inputs)


class OpacusEngine:
    """Per-example gradients by Opacus (Yousefpour et al. 2021), and our own clip and sum.

    Parameters
    ----------
    module : torch.nn.Module
    losses : callable
        ``losses(outputs, targets)`` of shape (n,).
    usual : int
        Examples of a block, as declared; there may be twice as many.
    noise : PreNoise, optional
    """

    name = "hooks"
    at_once = True

    def __init__(
        self, module: nn.Module, losses: LossFunction, usual: int, noise: PreNoise | None = None
    ) -> None:
        self._opacus = extra("opacus.grad_sample", "torch")
        self._module, self._losses, self._layout = module, losses, Layout(module)
        self.size, self._usual, self._noise = self._layout.size, usual, noise
        self._trained = [one for one in module.parameters() if one.requires_grad]

    def add(self, block: Block, clip: ClipRule, total: Tensor) -> ClippedBlockSum:
        """Add the clipped sum over a block to a vector."""
        with self._wrapped() as wrapped:
            with torch.enable_grad():
                outputs = compute_logits(wrapped, block.inputs)
                check_dtype(outputs, "the logits")
                torch.autograd.backward(example_losses(block, outputs, self._losses).sum())
            each = {one: self._sample(one, block) for one in self._trained}
        found = materialize(each, self._noise)
        return add_clipped(found, clip, total, self._layout, self._usual, block.real)

    def _sample(self, parameter: Any, block: Block) -> Tensor:
        """Gradients of one parameter, of shape (n, *parameter), and forget them."""
        sample = parameter.grad_sample
        each: Tensor = torch.stack(sample).sum(0) if isinstance(sample, list) else sample
        parameter.grad_sample = parameter.grad = None
        check_dtype(each, "a per-example gradient")
        each = each.to(torch.float32)
        if block.views == 1:
            return each
        return each.view(len(block), block.views, *each.shape[1:]).sum(1)

    @contextmanager
    def _wrapped(self) -> Iterator[Any]:
        """The module with Opacus' hooks, which are gone afterwards."""
        wrapped = self._opacus.GradSampleModule(
            self._module, loss_reduction="sum", strict=False
        )
        try:
            with warnings.catch_warnings():
                # Inputs are records: nobody wants their gradients.
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                yield wrapped
        finally:
            wrapped.remove_hooks()
            self._forget()

    def _forget(self) -> None:
        """Leave nothing of Opacus' on the module.

        Where a forward pass fails, it would keep the inputs, and count the pass as one whose
        gradients are still to come: no later example would have any.
        """
        for layer in self._module.modules():
            layer.__dict__.pop("activations", None)
        for one in self._module.parameters():
            one.grad = None
            for name in ("_forward_counter", "_current_grad_sample", "grad_sample"):
                one.__dict__.pop(name, None)


class _LayerCall(NamedTuple):
    """One call of a layer."""

    layer: nn.Module
    inputs: Tensor
    outputs: GradientEdge  # not the tensor, which would stay in memory
    patches: tuple[Tensor, ...] | None  # of a convolution, where they are known


class GhostEngine:
    """Sums clipped gradients without writing those of large layers down.

    Parameters
    ----------
    module : torch.nn.Module
        Of layers that :func:`~veracal.neural.gradients.layers.find_rule` knows, whose
        first dimension counts the examples.
    losses : callable
        ``losses(outputs, targets)`` of shape (n,).
    usual : int
        Examples of a block, as declared; there may be twice as many.
    last : bool, optional
        Whether pictures have their channels last in memory, in which convolutions and pooling
        are faster. By default they have wherever the module takes them so, which is tried
        with the first block: it must be made up.

    Notes
    -----
    The backward pass goes through the outputs of the layers alone: autograd leaves out
    whatever leads only to weights, and those gradients are computed once, already clipped.
    """

    name = "ghost"
    at_once = True

    def __init__(
        self, module: nn.Module, losses: LossFunction, usual: int, last: bool | None = None
    ) -> None:
        self._module, self._losses = module, losses
        convolved = any(isinstance(one, nn.Conv2d) for one in module.modules())
        self.last = last if convolved else False
        self._layout = Layout(module)
        self.size, self._usual = self._layout.size, usual
        self._room = ScratchBuffer()
        self._layers = [
            layer
            for layer in module.modules()
            if any(one.requires_grad for one in layer.parameters(recurse=False))
        ]
        self._rules = {layer: find_rule(layer) for layer in self._layers}

    @property
    def unknown(self) -> tuple[str, ...]:
        """Kinds of layers with parameters to train that are not known."""
        kinds = [type(layer).__name__ for layer, rule in self._rules.items() if rule is None]
        return tuple(dict.fromkeys(kinds))

    def add(self, block: Block, clip: ClipRule, total: Tensor) -> ClippedBlockSum:
        """Add the clipped sum over a block to a vector."""
        return add_clipped(
            self._found(block), clip, total, self._layout, self._usual, block.real
        )

    def _found(self, block: Block) -> dict[nn.Parameter, Gradients]:
        """The gradients of each parameter, over all its uses."""
        if self.last is None:
            self.last = self._takes_last(block)
        with self._watching() as seen, torch.enable_grad():
            outputs = compute_logits(self._module, _channels_last(block.inputs, self.last))
            total = example_losses(block, outputs, self._losses).sum()
        slopes = torch.autograd.grad(total, [one.outputs for one in seen], allow_unused=True)
        found: dict[nn.Parameter, Gradients] = {}
        rows = count_rows(block.inputs)
        for one, slope in zip(seen, slopes, strict=True):
            if slope is None:
                continue
            if len(slope) != rows or len(one.inputs) != rows:
                raise ValueError(_row_count_error(one.layer))
            rule = self._rules[one.layer]
            assert rule is not None
            more = {} if one.patches is None else {"patches": one.patches}
            for name, gradients in rule(
                one.layer,
                _check_layer_dtype(one.inputs, one.layer),
                _check_layer_dtype(slope, one.layer),
                len(block),
                self._usual,
                self._room,
                **more,
            ).items():
                _accumulate(found, getattr(one.layer, name), gradients)
        return found

    @contextmanager
    def _watching(self) -> Iterator[list[_LayerCall]]:
        """Take note of what every layer gets and gives."""
        seen: list[_LayerCall] = []
        self._room.clear()
        patched: dict[nn.Module, tuple[Tensor, ...]] = {}

        def note(layer: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> None:
            edge, patches = get_gradient_edge(outputs), patched.pop(layer, None)
            seen.append(_LayerCall(layer, inputs[0].detach(), edge, patches))

        def product(layer: nn.Conv2d, x: Tensor) -> Tensor:
            patched[layer] = extract_patches(layer, x.detach(), self._room)
            return convolve_patches(layer, x, patched[layer])

        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        faster: list[Any] = [
            one for one in self._layers if self.last and uses_patch_product(one)
        ]
        try:
            for layer in faster:
                layer.forward = partial(product, layer)
            yield seen
        finally:
            for layer in faster:
                del layer.forward
            for hook in hooks:
                hook.remove()

    def _takes_last(self, block: Block) -> bool:
        """Whether the module makes the same of pictures whose channels are last in memory."""
        if not isinstance(block.inputs, Tensor) or block.inputs.ndim != 4:
            return False
        usual, other = (self._tried(block, last) for last in (False, True))
        if usual is None or other is None:
            return False
        return torch.allclose(usual, other, rtol=1e-3, atol=1e-4)

    def _tried(self, block: Block, last: bool) -> Tensor | None:
        """Outputs for a block, if it goes through, there and back."""
        self.last = last
        try:
            with torch.random.fork_rng(devices=[]), self._watching() as seen:
                torch.manual_seed(0)
                with torch.enable_grad():
                    made = compute_logits(self._module, _channels_last(block.inputs, last))
                    total = example_losses(block, made, self._losses).sum()
                torch.autograd.grad(total, [one.outputs for one in seen], allow_unused=True)
        except Exception:  # a view of what is not in its usual order, say
            return None
        outputs: Tensor = made.detach()
        return outputs


def _channels_last(inputs: Inputs, last: bool) -> Inputs:
    """Inputs with their channels last in memory, if they are to be."""
    if not last or not isinstance(inputs, Tensor) or inputs.ndim != 4:
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last)


def _check_layer_dtype(values: Tensor, layer: nn.Module) -> Tensor:
    """What a layer has seen, unless in half precision: the slack is for float32."""
    check_dtype(values, type(layer).__name__)
    return values


def _accumulate(
    found: dict[nn.Parameter, Gradients], parameter: nn.Parameter, gradients: Gradients
) -> None:
    """Add the gradients of one more use of a parameter: only written down do they add up."""
    if parameter in found:
        gradients = MaterializedGradients(found[parameter].each() + gradients.each())
    found[parameter] = gradients


def _row_count_error(layer: nn.Module) -> str:
    """What is wrong with a layer whose first dimension is not that of the examples."""
    return (
        f"Expected every layer to have one row for each example, got others in {layer}. Give "
        "it whatever is the same for all examples (positions, say) once for each, put the "
        'examples first (batch_first=True), or take gradients="functional".'
    )
