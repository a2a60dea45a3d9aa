"""Layers of other libraries are known by what they compute, and not by their names alone."""

import pytest
import torch
from torch import nn

from tests.training.deep.modules import Conv1D, LlamaRMSNorm
from veracal.neural.gradients.layers import linear, rule_of, scaled, turned


@pytest.mark.parametrize(
    ("layer", "rule"),
    [
        (nn.Linear(3, 4), linear),
        (Conv1D(4, 3), turned),
        (LlamaRMSNorm(5), scaled),
        (LlamaRMSNorm(5, start=1.0), scaled),
        (LlamaRMSNorm(5).to(torch.bfloat16), scaled),
        (nn.Bilinear(2, 2, 2), None),
    ],
    ids=["linear", "turned", "scaled", "from zero", "few digits", "unknown"],
)
def test_a_layer_is_known_by_what_it_computes(layer, rule):
    was = {name: one.clone() for name, one in layer.state_dict().items()}
    assert rule_of(layer) is rule
    assert all(torch.equal(one, was[name]) for name, one in layer.state_dict().items())


def test_layers_of_transformers_are_known():
    pytest.importorskip("transformers")
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.mistral.modeling_mistral import MistralRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
    from transformers.pytorch_utils import Conv1D

    assert rule_of(Conv1D(6, 4)) is turned and rule_of(Conv1D(4, 1024)) is turned
    for norm in (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, GemmaRMSNorm):
        assert rule_of(norm(32)) is scaled and rule_of(norm(2048, eps=1e-5)) is scaled


def called(name, base, forward):
    """A layer of another kind, under a name that is known."""
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
def test_a_name_is_not_enough(kind):
    assert rule_of(IMPOSTORS[kind](6)) is None


def test_neither_is_one_for_weights_the_other_way_round():
    other = called("Conv1D", Conv1D, lambda self, x: x @ self.weight.mT + self.bias)
    assert rule_of(other(4, 4)) is None
    kept = LlamaRMSNorm(4)
    kept.register_buffer("seen", torch.zeros(4))  # it may remember what it saw
    assert rule_of(kept) is None
