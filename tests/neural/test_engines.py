"""Clipped gradient sums of all engines."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.neural.modules import MODULES, build_network, example_gradients
from veracal.mechanisms import Automatic, Flat, GlobalAdapt, GlobalV1, GlobalV2
from veracal.neural.examples import Block, cross_entropy
from veracal.neural.gradient_sums import Layout
from veracal.neural.gradients import layers
from veracal.neural.gradients.choice import ENGINE_NAMES, choose_engine
from veracal.neural.gradients.engines import FunctionalEngine, GhostEngine, OpacusEngine
from veracal.neural.gradients.layers import ScratchBuffer

ENGINES = {"ghost": GhostEngine, "functional": FunctionalEngine, "hooks": OpacusEngine}
CLIPS = [
    Flat(0.5),
    Flat(1e3),
    Automatic(0.5),
    GlobalV1(0.5, 2.0),
    GlobalV2(2.0),
    GlobalAdapt(0.5, 1.0),
]
# torch's own attention has parameters that no layer multiplies by. Opacus 1.6 has an attention
# of its own, and counts padded tokens of an embedding. Weights that are computed of parameters
# are no layer's own.
UNABLE = {
    ("ghost", "attention"),
    ("ghost", "conv3d"),
    ("hooks", "attention"),
    ("hooks", "attention of linear layers"),
    ("ghost", "weight norm"),
    ("hooks", "weight norm"),
    ("ghost", "pruned"),
    ("hooks", "pruned"),
    ("ghost", "scaled"),
}
ABLE = [(way, name) for way in ENGINES for name in MODULES if (way, name) not in UNABLE]


def summed(engine, block, clip):
    """A clipped sum, with its norms and counts."""
    total = torch.zeros(engine.size, dtype=torch.float64)
    result = engine.add(block, clip, total)
    return total.numpy(), result


def expected(module, block, clip):
    """The same, from gradients of single examples."""
    each = example_gradients(module, cross_entropy, block).numpy()
    norms = np.linalg.norm(each, axis=1)
    return clip.factors(norms) @ each, norms


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
@pytest.mark.parametrize(("way", "name"), ABLE)
def test_sums_equal_those_of_single_example_gradients(way, name, clip):
    module, block = build_network(name)
    clip = between_norms(clip, expected(module, block, clip)[1])
    total, result = summed(ENGINES[way](module, cross_entropy, 8), block, clip)
    truth, norms = expected(module, block, clip)
    np.testing.assert_allclose(result.norms, norms, rtol=2e-3)
    scale = clip.factors(norms) @ norms
    assert scale > 0
    np.testing.assert_allclose(total, truth, atol=2e-3 * scale)


def between_norms(clip, norms):
    """A discontinuous rule with its threshold between nearly equal norms."""
    ordered = np.sort(norms)
    widest = int(np.argmax(ordered[1:] / ordered[:-1]))
    threshold = float(np.sqrt(ordered[widest] * ordered[widest + 1]))
    if isinstance(clip, GlobalV1):
        return GlobalV1(threshold / 4, threshold)
    return GlobalV2(threshold) if isinstance(clip, GlobalV2) else clip


@pytest.mark.parametrize(("way", "name"), sorted(UNABLE))
def test_an_unsupported_engine_is_rejected_before_training(way, name):
    module, block = build_network(name)
    with pytest.raises(ValueError, match=way):
        choose_engine(module, cross_entropy, block, block, block_size=8, requested=way)
    engine, trial = choose_engine(module, cross_entropy, block, block, block_size=8)
    assert trial.chosen == engine.name != way
    assert way in trial.wrong


@pytest.mark.parametrize("name", MODULES)
def test_the_fastest_correct_engine_is_used(name):
    module, block = build_network(name)
    engine, trial = choose_engine(module, cross_entropy, block, block, block_size=8)
    assert engine.name == trial.chosen == min(trial.seconds, key=trial.seconds.get)
    assert set(trial.seconds) | set(trial.wrong) == set(ENGINE_NAMES)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("way", ENGINES)
@pytest.mark.parametrize(
    "name", ["linear", "places", "conv2d", "few large patches", "groupnorm"]
)
def test_views_of_an_example_are_averaged_before_the_clip(way, name, views):
    module, block = build_network(name)
    inputs = block.inputs.repeat_interleave(views, 0) * torch.randn(len(block) * views).view(
        -1, *[1] * (block.inputs.ndim - 1)
    )
    several = Block(inputs, block.targets, views)
    total, result = summed(ENGINES[way](module, cross_entropy, 8), several, Flat(0.5))
    truth, norms = expected(module, several, Flat(0.5))
    np.testing.assert_allclose(result.norms, norms, rtol=2e-3)
    np.testing.assert_allclose(total, truth, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("linear", np.nan),
        ("linear", np.inf),
        ("linear", 3e38),
        ("conv2d", np.nan),
        ("conv2d", np.inf),
    ],
)
@pytest.mark.parametrize("way", ENGINES)
def test_a_nonfinite_gradient_adds_nothing(way, name, bad):
    module, block = build_network(name)
    spoiled = block.inputs.clone()
    spoiled[2] = bad
    rest = [0, 1, 3, 4]
    engine = ENGINES[way](module, cross_entropy, 8)
    total, result = summed(engine, Block(spoiled, block.targets), Flat(0.5))
    alone, _ = summed(engine, Block(block.inputs[rest], block.targets[rest]), Flat(0.5))
    np.testing.assert_allclose(total, alone, atol=1e-3)
    assert np.isfinite(total).all()
    assert list(torch.isfinite(result.norms)) == [True, True, False, True, True]


@pytest.mark.parametrize("clip", CLIPS[:1] + CLIPS[2:], ids=repr)
@pytest.mark.parametrize(("way", "name"), ABLE)
def test_no_example_moves_a_sum_beyond_the_bound(way, name, clip):
    module, block = build_network(name)
    engine = ENGINES[way](module, cross_entropy, 8)
    if block.inputs.is_floating_point():
        block.inputs[:2] *= 1e4
    whole, _ = summed(engine, block, clip)
    for i in range(len(block)):
        rest = [j for j in range(len(block)) if j != i]
        part, _ = summed(engine, Block(block.inputs[rest], block.targets[rest]), clip)
        assert np.linalg.norm(whole - part) <= clip.bound


def test_cancelling_terms_do_not_hide_a_gradient_from_the_clip():
    """Products of both signs, a hundred million times as large as their sum."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 400, bias=False), nn.Flatten(), nn.Linear(800, 2))
    with torch.no_grad():
        module[2].weight[:, :400] = 1e4
        module[2].weight[:, 400:] = -1e4
    x = torch.randn(1, 1, 3).expand(4, 2, 3).contiguous() * 1e4  # the same at both places
    x[:, 1] += 1e-3 * torch.randn(4, 3)
    block = Block(x, torch.tensor([0, 1, 0, 1]))
    for way in ("ghost", "functional"):
        total, _ = summed(ENGINES[way](module, cross_entropy, 8), block, Flat(1.0))
        assert np.linalg.norm(total) <= 4.0, way


def test_writing_a_layout_restores_what_was_read():
    module, _ = build_network("frozen")
    layout = Layout(module)
    weights = layout.read(module)
    assert layout.size == len(weights) == 4 + 4 * 3 + 3
    before = {name: one.clone() for name, one in module.named_parameters()}
    layout.share(weights + 1, module)
    for name, one in module.named_parameters():
        assert torch.equal(one, before[name] + 1 if one.requires_grad else before[name])
    layout.share(weights, module)
    assert np.array_equal(layout.read(module), weights)
    with pytest.raises(ValueError, match="19 weights"):
        layout.share(weights[1:], module)


def test_the_number_of_examples_does_not_affect_the_others(monkeypatch):
    """Neither the norm's algorithm nor the slack depends on it: both are public."""
    monkeypatch.setattr(layers, "_MAX_ENTRIES", 8 * 4 * 5)
    module, block = build_network("places")
    few = [engine_norms(module, block.part(0, n)) for n in (1, 2, 4, 5)]
    for norms in few:
        np.testing.assert_allclose(norms[0], few[0][0], rtol=1e-6)
    kinds = set()
    for n in (1, 2, 4, 5):
        slopes = torch.randn(n, 7, 5)
        result = layers.linear_gradients(
            module[0], block.inputs[:n], slopes, n, 8, ScratchBuffer()
        )
        kinds.add(type(result["weight"]))
    assert len(kinds) == 1


def engine_norms(module, block):
    return summed(GhostEngine(module, cross_entropy, 8), block, Flat(1.0))[1].norms.numpy()


def test_one_example_among_many_stays_within_the_bound():
    module = nn.Linear(4, 2)
    x = torch.randn(1, 4).expand(201, 4) * 1e3
    targets = torch.zeros(201, dtype=torch.long)
    targets[-1] = 1
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    for way, make in ENGINES.items():
        engine = make(module, cross_entropy, 128)
        whole, _ = summed(engine, Block(x, targets), Flat(1.0))
        rest, _ = summed(engine, Block(x[:-1], targets[:-1]), Flat(1.0))
        assert np.linalg.norm(whole - rest) <= 1.0, way


@pytest.mark.parametrize("width", [1024, 2048])
def test_norms_of_many_equal_entries_are_not_too_small(width):
    module = nn.Linear(width, width, bias=False)
    nn.init.zeros_(module.weight)

    def alike(outputs, targets):
        return outputs.sum(1)

    engine = FunctionalEngine(module, alike, 8)
    total, _ = summed(engine, Block(torch.ones(1, width), torch.zeros(1)), Flat(1.0))
    assert np.linalg.norm(total) <= 1.0
