"""Layers of other libraries are recognized by their computation, not only by name."""

import pytest
import torch
from torch import nn

from tests.neural.modules import Conv1D, LlamaRMSNorm
from veracal.neural.gradients.layers import (
    find_rule,
    linear_gradients,
    rms_norm_gradients,
    transposed_linear_gradients,
)


@pytest.mark.parametrize(
    ("layer", "rule"),
    [
        (nn.Linear(3, 4), linear_gradients),
        (Conv1D(4, 3), transposed_linear_gradients),
        (LlamaRMSNorm(5), rms_norm_gradients),
        (LlamaRMSNorm(5, start=1.0), rms_norm_gradients),
        (LlamaRMSNorm(5).to(torch.bfloat16), rms_norm_gradients),
        (nn.Bilinear(2, 2, 2), None),
    ],
    ids=["linear", "turned", "scaled", "from zero", "few digits", "unknown"],
)
def test_a_layer_is_recognized_by_its_computation(layer, rule):
    was = {name: one.clone() for name, one in layer.state_dict().items()}
    assert find_rule(layer) is rule
    assert all(torch.equal(one, was[name]) for name, one in layer.state_dict().items())


def test_layers_of_transformers_are_supported():
    pytest.importorskip("transformers")
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.mistral.modeling_mistral import MistralRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
    from transformers.pytorch_utils import Conv1D

    assert (
        find_rule(Conv1D(6, 4)) is transposed_linear_gradients
        and find_rule(Conv1D(4, 1024)) is transposed_linear_gradients
    )
    for norm in (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, GemmaRMSNorm):
        assert (
            find_rule(norm(32)) is rms_norm_gradients
            and find_rule(norm(2048, eps=1e-5)) is rms_norm_gradients
        )


def called(name, base, forward):
    """Another layer under a known name."""
    return type(name, (base,), {"forward": forward})


def plain(self, x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


IMPOSTORS = {
    "another slope": called(
        "SquareRMSNorm", LlamaRMSNorm, lambda self, x: self.weight**2 * plain(self, x)
    ),
    "another sign": called(
        "PositiveRMSNorm", LlamaRMSNorm, lambda self, x: self.weight.abs() * plain(self, x)
    ),
    "another stability": called(
        "LooseRMSNorm",
        LlamaRMSNorm,
        lambda self, x: self.weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt(),
    ),
    "over the batch": called(
        "BatchRMSNorm",
        LlamaRMSNorm,
        lambda self, x: self.weight * x * torch.rsqrt(x.pow(2).mean((0, 1, 2)) + 1e-6),
    ),
    "of two": called(
        "GatedRMSNorm", LlamaRMSNorm, lambda self, x, gate: self.weight * plain(self, x) * gate
    ),
}


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_a_layer_with_a_known_name_that_computes_something_else_is_not_supported(kind):
    assert find_rule(IMPOSTORS[kind](6)) is None


def test_transposed_weights_with_another_computation_are_not_supported():
    other = called("Conv1D", Conv1D, lambda self, x: x @ self.weight.mT + self.bias)
    assert find_rule(other(4, 4)) is None
    kept = LlamaRMSNorm(4)
    kept.register_buffer("seen", torch.zeros(4))  # it may remember what it saw
    assert find_rule(kept) is None
