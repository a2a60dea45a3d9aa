"""Which way of summing gradients is right for a network, and which of those is fastest."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from veracal import _checks
from veracal._types import Frozen
from veracal.errors import MissingExtraError
from veracal.mechanisms import Flat
from veracal.neural.gradient_sums import Layout
from veracal.neural.gradients.blocks import (
    Block,
    GradientEngine,
    LossFunction,
    compute_logits,
    example_losses,
)
from veracal.neural.gradients.engines import (
    FunctionalEngine,
    GhostEngine,
    OpacusEngine,
    PreNoise,
    rounding_slack,
)
from veracal.neural.gradients.layers import RULES, find_rule
from veracal.neural.module_checks import perturbed_initialization
from veracal.neural.precision import full_precision, refuse_half_precision

EngineName = Literal["ghost", "functional", "hooks"]
ENGINE_NAMES: tuple[EngineName, ...] = get_args(EngineName)
MATERIALIZING_ENGINES: dict[str, Any] = {
    "functional": FunctionalEngine,
    "hooks": OpacusEngine,
}  # gradients down
_ENGINES: dict[str, Any] = {"ghost": GhostEngine, **MATERIALIZING_ENGINES}
_SAME = "with the same arguments, which loads the same weights,"
_ADDED = "with the same arguments and bias=True or False"
_RECURRENT: dict[type, str] = {  # what torch.func takes in their place
    nn.RNN: f"DPRNN {_SAME}",
    nn.GRU: f"DPGRU {_SAME}",
    nn.LSTM: f"DPLSTM {_SAME}",
    nn.RNNCell: f"dp_rnn.DPRNNCell {_ADDED}",
    nn.GRUCell: f"dp_rnn.DPGRUCell {_ADDED}",
    nn.LSTMCell: f"dp_rnn.DPLSTMCell {_ADDED}",
}
_TOLERANCE = 1e-3  # of the clip bound, for a sum of a few examples in float32


@dataclass(frozen=True)
class EngineTrial:
    """What came of trying all ways on made-up examples.

    Attributes
    ----------
    chosen : str
    seconds : mapping of str to float
        For one block, of each way that was right; 0 where there was nothing to choose.
    wrong : mapping of str to str
        Why the others were not.
    """

    chosen: str
    seconds: Frozen[str, float]
    wrong: Frozen[str, str]


@full_precision()
def choose_engine(
    module: nn.Module,
    losses: LossFunction,
    few: Block,
    many: Block | None,
    *,
    usual: int,
    way: EngineName | None = None,
    among: Sequence[EngineName] = ENGINE_NAMES,
    noise: PreNoise | None = None,
) -> tuple[GradientEngine, EngineTrial]:
    """The fastest way that is right, or the one that is asked for if it is right.

    Parameters
    ----------
    module : torch.nn.Module
        In the mode in which it will be trained.
    losses : callable
    few : Block
        A few made-up examples, on which every way is compared with gradients that are taken
        one by one.
    many : Block or None
        As many as a block will have, on which ways are timed; None takes the first that is
        right, and tries no others.
    usual : int
        Examples of a block, as declared.
    way : {"ghost", "functional", "hooks"}, optional
        The one to take; by default the fastest.
    among : sequence of these
        Ways that are tried where none is asked for, in this order.
    noise : PreNoise, optional
        For which gradients must be written down. It has no part in the comparison.

    Raises
    ------
    ValueError
        If none is right, or the one asked for is not.
    """
    if way is not None:
        _checks.one_of(ENGINE_NAMES, gradients=way)
    able = [one for one in among if noise is None or one in MATERIALIZING_ENGINES]
    tried: Sequence[str] = able if way is None else (way,)
    engines, wrong = dict[str, GradientEngine](), dict[str, str]()
    for name in tried:
        try:
            engine = _ENGINES[name](module, losses, usual)
            with perturbed_initialization(module):
                why = _find_fault(engine, module, losses, few, usual)
        except MissingExtraError as error:
            why = str(error)
        if why is not None:
            wrong[name] = why
            continue
        engines[name] = engine
        if many is None:
            break
    seconds = dict[str, float]()
    for name, engine in engines.items():
        try:
            seconds[name] = (
                0.0 if many is None or way is not None else _time_block(engine, many)
            )
        except Exception as error:  # in a block, though not with a few examples
            wrong[name] = _first_line(error)
    if not seconds:
        raise _no_engine_error(module, wrong)
    best = min(seconds, key=lambda name: seconds[name])
    trial = EngineTrial(best, Frozen(seconds), Frozen(wrong))
    if noise is None:
        return engines[best], trial
    return _ENGINES[best](module, losses, usual, noise), trial


def _no_engine_error(module: nn.Module, wrong: dict[str, str]) -> ValueError:
    """What to say where no way is right, and what to do about layers that many have."""
    told = "; ".join(f"{name}: {why}" for name, why in wrong.items())
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        if type(layer) in _RECURRENT and any(one.requires_grad for one in layer.parameters()):
            return ValueError(
                f"Expected layers whose gradients can be taken apart, got {name or kind!r}, an "
                f"nn.{kind} ({told}). Use opacus.layers.{_RECURRENT[type(layer)]} and "
                "gradients=None."
            )
    return ValueError(
        "Expected a module with gradients of single examples, got one for which no way "
        f"gives them ({told})."
    )


def example_gradients(module: nn.Module, losses: LossFunction, block: Block) -> Tensor:
    """The gradient of each example, of shape (n, size), each by a backward pass of its own."""
    layout = Layout(module)
    rows = torch.zeros(len(block), layout.size, dtype=torch.float64)
    for row, found in zip(rows, _iterate_gradients(module, losses, block), strict=True):
        for parameter, gradient in found.items():
            place = layout.place(parameter)
            row[place.start : place.end] = gradient.reshape(-1)
    return rows


def _iterate_gradients(
    module: nn.Module, losses: LossFunction, block: Block
) -> Iterator[dict[nn.Parameter, Tensor]]:
    """The gradient of one example after the other.

    Of a large network, several at a time would take more room than its
    training.
    """
    trained = [one for one in module.parameters() if one.requires_grad]
    for i in range(len(block)):
        one = block.part(i, i + 1)
        with torch.enable_grad():
            loss = example_losses(one, compute_logits(module, one.inputs), losses).sum()
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        yield {
            parameter: gradient
            for parameter, gradient in zip(trained, found, strict=True)
            if gradient is not None
        }


def _find_fault(
    engine: Any, module: nn.Module, losses: LossFunction, few: Block, usual: int
) -> str | None:
    """What is wrong with a way, on a few examples; None if nothing is."""
    unknown = engine.unknown if isinstance(engine, GhostEngine) else ()
    if unknown:
        return f"it does not know layers that are trained ({', '.join(unknown)})"
    was = [(layer, layer.training) for layer in module.modules()]
    for layer, _ in was:  # without dropout, so that the two can be compared
        # Opacus looks away from layers that are not trained; convolutions have no dropout.
        known = type(layer) in RULES or find_rule(layer) is not None
        if not known and not isinstance(layer, _ConvNd):
            layer.training = False
    try:
        found = _compare_sums(engine, module, losses, few, usual)
    finally:
        for layer, training in was:
            layer.training = training
    return found or _find_failure(engine, few)


def _find_failure(engine: GradientEngine, few: Block) -> str | None:
    """Why a way fails in the mode in which it will be used; None if it does not."""
    try:
        engine.add(few, Flat(1.0), torch.zeros(engine.size, dtype=torch.float64))
    except Exception as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    """What an error says first."""
    return str(error).partition("\n")[0] or type(error).__name__


def _compare_sums(
    engine: Any, module: nn.Module, losses: LossFunction, few: Block, usual: int
) -> str | None:
    """Compare norms and clipped sums with those of gradients taken one by one."""
    try:
        with refuse_half_precision():
            lengths = [_gradient_norm(one) for one in _iterate_gradients(module, losses, few)]
    except Exception as error:  # a module that cannot take one example by itself
        return _first_line(error)
    norms, layout = torch.tensor(lengths, dtype=torch.float64), Layout(module)
    # Where most examples are told apart already, what is left of their gradients is rounding.
    clip = Flat(max(float(norms.median()), 1e-3 * float(norms.max())) or 1.0)
    total = torch.zeros(layout.size, dtype=torch.float64)
    try:
        found = engine.add(few, clip, total)
    except Exception as error:  # whatever layers and hooks may raise that do not fit together
        return _first_line(error)
    factors = clip.factors(norms.numpy())
    for factor, one in zip(factors, _iterate_gradients(module, losses, few), strict=True):
        for parameter, gradient in one.items():
            place = layout.place(parameter)
            total[place.start : place.end].add_(gradient.reshape(-1), alpha=-float(factor))
    off = float(torch.linalg.vector_norm(total)) / (clip.bound * len(few))
    allowed = _TOLERANCE + rounding_slack(usual, 1)
    longer = float(((found.norms - norms).abs() / norms.clamp(min=clip.bound)).max())
    if not (off <= allowed and longer <= 10 * _TOLERANCE):
        return "its sums are not those of gradients that are taken one by one"
    return None


def _gradient_norm(gradients: dict[nn.Parameter, Tensor]) -> float:
    """The norm of one example's gradient, over all parameters."""
    squares = [
        float(torch.linalg.vector_norm(one, dtype=torch.float64)) ** 2
        for one in gradients.values()
    ]
    return math.sqrt(sum(squares))


def _time_block(engine: GradientEngine, many: Block) -> float:
    """Seconds for one block, once everything is in place."""
    clip, best = Flat(1.0), float("inf")
    for _ in range(3):
        total = torch.zeros(engine.size, dtype=torch.float64)
        start = time.perf_counter()
        engine.add(many, clip, total)
        best = min(best, time.perf_counter() - start)
    return best
