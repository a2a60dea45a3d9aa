"""Convolutions by patches equal torch's."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.neural.modules import build_network
from veracal.mechanisms import Flat
from veracal.neural.examples import Block, cross_entropy
from veracal.neural.gradients.engines import GhostEngine
from veracal.neural.gradients.layers import (
    EmbeddingGradients,
    PatchConvolution,
    ProductGradients,
    ScratchBuffer,
    _squared_row_norms,
    extract_patches,
    to_weight_order,
    uses_patch_product,
)

LAYERS = [
    (nn.Conv2d(1, 3, 4, stride=2, padding=1), (2, 1, 9, 7)),
    (nn.Conv2d(4, 6, (3, 2), dilation=(2, 1), padding=(1, 2)), (2, 4, 8, 9)),
    (nn.Conv2d(4, 6, 3, groups=2, stride=(1, 2), bias=False), (3, 4, 8, 8)),
    (nn.Conv2d(2, 5, (3, 2), stride=(3, 1), padding=(1, 0)), (2, 2, 8, 9)),
    (nn.Conv2d(2, 5, 5, stride=2, padding=2), (2, 2, 9, 8)),
    (nn.Conv1d(2, 3, 3, stride=2, padding=2, dilation=2), (2, 2, 11)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_patches_times_weights_are_the_convolution(layer, shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    patches = torch.cat(extract_patches(layer, x, ScratchBuffer()), -1)
    outputs = len(layer.weight)
    flat = (
        layer.weight.detach().movedim(1, -1).reshape(layer.groups, outputs // layer.groups, -1)
    )
    result = torch.einsum("ngld,gpd->ngpl", patches, flat)
    bias = 0.0 if layer.bias is None else layer.bias.detach()[:, None]
    truth = layer(x).detach().flatten(2)
    torch.testing.assert_close(result.reshape(truth.shape) + bias, truth)
    assert torch.equal(to_weight_order(layer, flat.reshape(outputs, -1)), layer.weight.detach())


def test_patches_do_not_depend_on_the_memory_layout_of_the_input():
    layer, x = nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 6, 6)
    last = x.contiguous(memory_format=torch.channels_last)
    for one, other in ((x, last), (x[:, :, ::2], x[:, :, ::2].clone())):
        assert all(
            map(
                torch.equal,
                *(extract_patches(layer, some, ScratchBuffer()) for some in (one, other)),
            )
        )


@pytest.mark.parametrize("bias", [True, False])
def test_input_gradients_pass_through_a_patch_product(bias):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=bias)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    output = PatchConvolution.apply(
        x, layer.weight, layer, *extract_patches(layer, x.detach(), ScratchBuffer())
    )
    torch.testing.assert_close(output, layer(x))
    assert output.is_contiguous(memory_format=torch.channels_last)
    slope = torch.randn_like(output)
    (result,) = torch.autograd.grad(output, x, slope)
    (truth,) = torch.autograd.grad(layer(x), x, slope)
    torch.testing.assert_close(result, truth)


def test_a_first_layer_is_a_product_only_during_the_call():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    block = Block(torch.randn(5, 1, 8, 8), torch.arange(5) % 3)
    sums = []
    for last in (False, True):
        engine = GhostEngine(module, cross_entropy, 8, last)
        total = torch.zeros(engine.size, dtype=torch.float64)
        engine.add(block, Flat(0.5), total)
        sums.append(total)
        assert "forward" not in vars(module[0]) and not module[0]._forward_hooks
    torch.testing.assert_close(*sums)
    assert uses_patch_product(module[0]) and not uses_patch_product(module[3])


class Views(nn.Module):
    """Assumes that channels come first in memory."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3), nn.Linear(144, 3)

    def forward(self, x):
        return self.last(functional.relu(self.first(x)).view(len(x), -1))


@pytest.mark.parametrize(
    ("module", "takes"),
    [
        (Views(), False),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten()), True),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), False),
    ],
)
def test_channels_last_is_used_only_where_the_module_supports_it(module, takes):
    """Decided once, by the first, synthetic block."""
    engine = GhostEngine(module, cross_entropy, 8)
    total = torch.zeros(engine.size, dtype=torch.float64)
    engine.add(Block(torch.randn(4, 1, 8, 8), torch.arange(4) % 3), Flat(1.0), total)
    assert engine.channels_last is takes
    assert total.any()


def test_squared_norms_are_computed_in_float64():
    torch.manual_seed(0)
    for width in (1, 63, 64, 65, 5_000):
        rows = torch.randn(4, width) * torch.logspace(-10, 10, 4)[:, None]
        torch.testing.assert_close(
            _squared_row_norms(rows), rows.double().square().sum(1), rtol=1e-6, atol=0.0
        )


@pytest.mark.parametrize("scale", [1e-4, 1e-3])
def test_float32_underflow_is_included_in_a_norm(scale):
    """A huge record behind a normalization: its gradient is a huge times a tiny number."""
    torch.manual_seed(0)
    head = nn.Linear(256, 3).requires_grad_(False)
    with torch.no_grad():
        head.weight.mul_(scale)
    module = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), head)
    huge = 2e18 * (2.0 * (torch.rand(1, 256) < 0.5) - 1.0)
    engine = GhostEngine(module, cross_entropy, 8)
    total = torch.zeros(engine.size, dtype=torch.float64)
    engine.add(Block(huge, torch.zeros(1, dtype=torch.int64)), Flat(scale), total)
    assert float(total.norm()) <= scale


@pytest.mark.parametrize("places", [1, 9])
def test_product_norms_are_never_underestimated(places):
    torch.manual_seed(0)
    a, g = 1e18 * torch.randn(4, places, 20), 1e-23 * torch.randn(4, places, 30)
    truth = (g.double().mT @ a.double()).square().sum((1, 2))
    assert (ProductGradients(a, g).squared_norms() >= truth * (1 - 1e-5)).all()
    rows = torch.zeros(4, places, dtype=torch.int64)
    looked = EmbeddingGradients(rows, g, 5)
    truth = g.double().sum(1).square().sum(1)
    assert (looked.squared_norms() >= truth * (1 - 1e-5)).all()


def test_the_scratch_buffer_is_reused_and_never_shared():
    buffer = ScratchBuffer()
    first = buffer.empty(3, 5, dtype=torch.float32)
    buffer.clear()
    one, other = (buffer.empty(3, 5, dtype=torch.float32).fill_(k) for k in (1.0, 2.0))
    assert (one == 1.0).all() and (other == 2.0).all()  # the second did not fit
    buffer.clear()
    one, other = (buffer.empty(3, 5, dtype=torch.float64).fill_(k) for k in (1.0, 2.0))
    assert (one == 1.0).all() and (other == 2.0).all()
    assert first.untyped_storage().data_ptr() != one.untyped_storage().data_ptr()
    buffer.clear()
    again = buffer.empty(2, 2, dtype=torch.float32)
    kept = again.data_ptr()
    buffer.clear()
    assert buffer.empty(2, 2, dtype=torch.float32).data_ptr() == kept


@pytest.mark.parametrize("name", ["conv2d", "few large patches", "pictures"])
def test_leftovers_of_earlier_blocks_are_never_read(name, monkeypatch):
    """Reused memory is full of NaN here, as it may be after any record."""
    if name == "pictures":  # whose first layer is a product
        module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        block = Block(torch.randn(5, 1, 8, 8), torch.arange(5) % 3)
    else:
        module, block = build_network(name)
    empty = torch.empty

    def spoiled(*shape, **how):
        result = empty(*shape, **how)
        return result.fill_(255) if result.dtype == torch.uint8 else result.fill_(torch.nan)

    sums = []
    for fresh in (empty, spoiled):
        monkeypatch.setattr(torch, "empty", fresh)
        engine = GhostEngine(module, cross_entropy, 8, channels_last=name == "pictures")
        total = torch.zeros(engine.size, dtype=torch.float64)
        for _ in range(3):  # the first determines the required amount
            engine._buffer._bytes.fill_(255)
            engine.add(block, Flat(0.5), total)
        sums.append(total)
    assert sums[0].isfinite().all() and sums[0].any()
    assert torch.equal(*sums)
