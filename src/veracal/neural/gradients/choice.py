"""Chooses the fastest gradient engine that is correct for a network."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from veracal import _checks
from veracal._types import Frozen
from veracal.mechanisms import Flat
from veracal.neural.examples import Block, LossFunction, compute_logits, example_losses
from veracal.neural.gradient_sums import GradientEngine, Layout
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
_RECURRENT: dict[type, str] = {  # replacements that torch.func supports
    nn.RNN: f"DPRNN {_SAME}",
    nn.GRU: f"DPGRU {_SAME}",
    nn.LSTM: f"DPLSTM {_SAME}",
    nn.RNNCell: f"dp_rnn.DPRNNCell {_ADDED}",
    nn.GRUCell: f"dp_rnn.DPGRUCell {_ADDED}",
    nn.LSTMCell: f"dp_rnn.DPLSTMCell {_ADDED}",
}
_TOLERANCE = 1e-3  # of the clip bound, for a float32 sum of a few examples


@dataclass(frozen=True)
class EngineTrial:
    """Result of trying all engines on synthetic examples.

    Attributes
    ----------
    chosen : str
    seconds : mapping of str to float
        For one block, of each correct engine; 0 where only one was tried.
    wrong : mapping of str to str
        Why the other engines were rejected.
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
    block_size: int,
    requested: EngineName | None = None,
    among: Sequence[EngineName] = ENGINE_NAMES,
    noise: PreNoise | None = None,
) -> tuple[GradientEngine, EngineTrial]:
    """Return the fastest correct engine, or the requested one if it is correct.

    Parameters
    ----------
    module : torch.nn.Module
        In the mode in which it will be trained.
    losses : callable
    few : Block
        Synthetic examples, on which every engine is compared with gradients computed one
        example at a time.
    many : Block or None
        As many as a block will have, to time the engines; None takes the first correct engine
        and tries no others.
    block_size : int
        Declared number of examples of a block.
    requested : {"ghost", "functional", "hooks"}, optional
    among : sequence of these
        Engines that are tried without a request, in this order.
    noise : PreNoise, optional
        Requires materialized gradients. It takes no part in the comparison.
    """
    if requested is not None:
        _checks.one_of(ENGINE_NAMES, gradients=requested)
    candidates = [one for one in among if noise is None or one in MATERIALIZING_ENGINES]
    tried: Sequence[str] = candidates if requested is None else (requested,)
    engines, wrong = dict[str, GradientEngine](), dict[str, str]()
    for name in tried:
        engine = _ENGINES[name](module, losses, block_size)
        with perturbed_initialization(module):
            fault = _find_fault(engine, module, losses, few, block_size)
        if fault is not None:
            wrong[name] = fault
            continue
        engines[name] = engine
        if many is None:
            break
    seconds = dict[str, float]()
    for name, engine in engines.items():
        try:
            seconds[name] = (
                0.0 if many is None or requested is not None else _time_block(engine, many)
            )
        except Exception as error:  # a full block failed, although a few examples did not
            wrong[name] = _first_line(error)
    if not seconds:
        raise _no_engine_error(module, wrong)
    best = min(seconds, key=lambda name: seconds[name])
    trial = EngineTrial(best, Frozen(seconds), Frozen(wrong))
    if noise is None:
        return engines[best], trial
    return _ENGINES[best](module, losses, block_size, noise), trial


def _no_engine_error(module: nn.Module, wrong: dict[str, str]) -> ValueError:
    """Error when no engine is correct, with advice for recurrent layers."""
    reasons = "; ".join(f"{name}: {fault}" for name, fault in wrong.items())
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        if type(layer) in _RECURRENT and any(one.requires_grad for one in layer.parameters()):
            return ValueError(
                f"Expected layers with per-example gradients, got {name or kind!r}, an "
                f"nn.{kind} ({reasons}). Use opacus.layers.{_RECURRENT[type(layer)]} and "
                "gradients=None."
            )
    return ValueError(
        "Expected a module with per-example gradients, got one for which no gradient engine "
        f"computes them ({reasons})."
    )


def _iterate_gradients(
    module: nn.Module, losses: LossFunction, block: Block
) -> Iterator[dict[nn.Parameter, Tensor]]:
    """Yield the gradients of one example after another.

    For a large network, several at a time would need more memory than its training.
    """
    trained = [one for one in module.parameters() if one.requires_grad]
    for i in range(len(block)):
        one = block.part(i, i + 1)
        with torch.enable_grad():
            loss = example_losses(one, compute_logits(module, one.inputs), losses).sum()
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        yield {
            parameter: gradient
            for parameter, gradient in zip(trained, gradients, strict=True)
            if gradient is not None
        }


def _find_fault(
    engine: Any, module: nn.Module, losses: LossFunction, few: Block, block_size: int
) -> str | None:
    """Return why an engine is wrong on a few examples; None if it is correct."""
    if isinstance(engine, GhostEngine) and engine.unknown:
        return f"it does not support trained layers ({', '.join(engine.unknown)})"
    modes = [(layer, layer.training) for layer in module.modules()]
    for layer, _ in modes:  # without dropout, so that both can be compared
        # Opacus skips layers in evaluation mode; convolutions have no dropout.
        known = type(layer) in RULES or find_rule(layer) is not None
        if not known and not isinstance(layer, _ConvNd):
            layer.training = False
    try:
        fault = _compare_sums(engine, module, losses, few, block_size)
    finally:
        for layer, training in modes:
            layer.training = training
    return fault or _find_failure(engine, few)


def _find_failure(engine: GradientEngine, few: Block) -> str | None:
    """Return why an engine fails in the mode in which it will be used; None if it works."""
    try:
        engine.add(few, Flat(1.0), torch.zeros(engine.size, dtype=torch.float64))
    except Exception as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _compare_sums(
    engine: Any, module: nn.Module, losses: LossFunction, few: Block, block_size: int
) -> str | None:
    """Compare norms and clipped sums with those of gradients computed one example at a time."""
    squares = []
    try:
        with refuse_half_precision():
            for gradients in _iterate_gradients(module, losses, few):
                lengths = [
                    torch.linalg.vector_norm(one, dtype=torch.float64)
                    for one in gradients.values()
                ]
                squares.append(sum(float(one) ** 2 for one in lengths))
    except Exception as error:  # a module that does not accept a single example
        return _first_line(error)
    norms, layout = torch.tensor(squares, dtype=torch.float64).sqrt(), Layout(module)
    # Gradients of examples that are already fitted well consist of rounding errors.
    clip = Flat(max(float(norms.median()), 1e-3 * float(norms.max())) or 1.0)
    total = torch.zeros(layout.size, dtype=torch.float64)
    try:
        result = engine.add(few, clip, total)
    except Exception as error:  # incompatible layers and hooks raise errors of many types
        return _first_line(error)
    factors = clip.factors(norms.numpy())
    for factor, gradients in zip(factors, _iterate_gradients(module, losses, few), strict=True):
        for parameter, gradient in gradients.items():
            part = total[layout.slice_of(parameter)]
            part.add_(gradient.reshape(-1), alpha=-float(factor))
    gap = float(torch.linalg.vector_norm(total)) / (clip.bound * len(few))
    allowed = _TOLERANCE + rounding_slack(block_size, 1)
    norm_error = float(((result.norms - norms).abs() / norms.clamp(min=clip.bound)).max())
    if not (gap <= allowed and norm_error <= 10 * _TOLERANCE):
        return "its sums differ from those of gradients computed one example at a time"
    return None


def _time_block(engine: GradientEngine, many: Block) -> float:
    """Best of three times for one block, in seconds."""
    clip, best = Flat(1.0), float("inf")
    for _ in range(3):
        total = torch.zeros(engine.size, dtype=torch.float64)
        start = time.perf_counter()
        engine.add(many, clip, total)
        best = min(best, time.perf_counter() - start)
    return best
