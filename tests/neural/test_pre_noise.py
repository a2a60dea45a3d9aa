"""Noise on each example's gradient before the clip."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from tests.neural.fits import RecordedSteps, X, Y, model, network
from tests.neural.modules import build_network, example_gradients
from veracal.mechanisms import (
    Automatic,
    Flat,
    GlobalAdapt,
    Langevin,
    add_gradient_noise,
    clipped_sum,
)
from veracal.neural.examples import Block, cross_entropy
from veracal.neural.gradients.choice import MATERIALIZING_ENGINES
from veracal.neural.gradients.engines import PreNoise

LANGEVIN = Langevin(0.1, 1.0, pre_noise=0.3)
SETTINGS = {"noise_multiplier": None, "optimizer": LANGEVIN, "sampling_rate": 1.0}


def summed(way, module, block, clip, std, seed=0):
    noise = PreNoise(std, np.random.default_rng(seed)) if std else None
    engine = MATERIALIZING_ENGINES[way](module, cross_entropy, 64, noise)
    total = torch.zeros(engine.size, dtype=torch.float64)
    result = engine.add(block, clip, total)
    return total.numpy(), result


@pytest.mark.parametrize("name", ["conv2d", "tied", "layernorm"])
@pytest.mark.parametrize("way", MATERIALIZING_ENGINES)
def test_every_coordinate_of_every_gradient_has_independent_noise(way, name):
    """Unclipped sums of n gradients are off by normal draws of n times the variance.

    The seed is fixed; of another one in a million would fail. Noise on the sum alone, or
    a fifth more of it, is found out.
    """
    module, block = build_network(name)
    exact, _ = summed(way, module, block, Flat(1e9), 0.0)
    off = [summed(way, module, block, Flat(1e9), 0.3, seed)[0] - exact for seed in range(100)]
    off = np.concatenate(off)
    std = 0.3 * np.sqrt(len(block))
    assert stats.kstest(off, stats.norm(scale=std).cdf).pvalue > 1e-6
    assert stats.kstest(off, stats.norm(scale=1.2 * std).cdf).pvalue < 1e-6
    assert stats.kstest(off, stats.norm(scale=0.3).cdf).pvalue < 1e-6


@pytest.mark.parametrize("clip", [Flat(0.5), Automatic(0.5), GlobalAdapt(0.5, 1.0)], ids=repr)
@pytest.mark.parametrize("std", [1e-3, 0.3, 50.0, 1e30])
@pytest.mark.parametrize("way", MATERIALIZING_ENGINES)
def test_no_noisy_example_adds_more_than_the_bound(way, std, clip):
    module, block = build_network("conv2d")
    block.inputs[0] *= 1e4
    for i in range(len(block)):
        total, result = summed(way, module, block.part(i, i + 1), clip, std, seed=i)
        assert np.linalg.norm(total) <= 0.5
        assert len(result.norms) == 1
    if std == 50.0 and clip == Flat(0.5):  # the norm is that of the noisy gradient
        assert float(result.norms) == pytest.approx(50 * np.sqrt(len(total)), rel=0.2)


@pytest.mark.parametrize("way", MATERIALIZING_ENGINES)
def test_a_nonfinite_gradient_adds_nothing_with_noise(way):
    module, block = build_network("linear")
    spoiled = block.inputs.clone()
    spoiled[:] = np.nan
    total, result = summed(way, module, Block(spoiled, block.targets), Flat(0.5), 0.3)
    assert not total.any() and not torch.isfinite(result.norms).any()


@pytest.mark.parametrize("way", MATERIALIZING_ENGINES)
def test_means_equal_those_of_the_linear_model(way):
    """Clipped after the noise: noise as long as the bound turns and shortens what is clipped.

    Means over 400 draws, within six standard errors; the seed is fixed.
    """
    module = nn.Linear(4, 2)
    block = Block(torch.tensor(X[:20]), torch.tensor(Y[:20]))
    each = example_gradients(module, cross_entropy, block).numpy()
    rng = np.random.default_rng(1)
    slow = np.array(
        [
            clipped_sum(add_gradient_noise(each, 0.3, rng=rng), Flat(0.5)).total
            for _ in range(400)
        ]
    )
    fast = np.array([summed(way, module, block, Flat(0.5), 0.3, i)[0] for i in range(400)])
    error = np.sqrt((slow.var(0) + fast.var(0)) / 400)
    assert (np.abs(slow.mean(0) - fast.mean(0)) < 6 * error).all()
    plain, _ = summed(way, module, block, Flat(0.5), 0.0)
    assert (np.abs(slow.mean(0) - plain) > 6 * error).any()


@pytest.mark.parametrize("gradients", ["functional", "hooks", None])
def test_noise_before_the_clip_does_not_change_the_cost(gradients):
    settings = {**SETTINGS, "gradients": gradients, "steps": 2}
    runs = [RecordedSteps(), RecordedSteps(), RecordedSteps()]
    fitted = [model(on_step=one, **settings).fit(X, Y) for one in runs[:2]]
    plain = model(on_step=runs[2], **{**settings, "optimizer": Langevin(0.1, 1.0)}).fit(X, Y)
    assert fitted[0].event_ == plain.event_
    assert (
        fitted[0].trial_.chosen in MATERIALIZING_ENGINES
        and "ghost" not in fitted[0].trial_.seconds
    )
    first, again, without = ([step.noisy_sum for step in one.steps] for one in runs)
    if gradients is not None:  # else the fastest is taken, which may be another
        assert np.array_equal(first, again)
    # Of one seed the noise on the sum is the same; that on sixty gradients is not in it.
    assert np.linalg.norm(first[0] - without[0]) > 0.3


def test_noise_before_the_clip_does_not_come_from_torch():
    sums = []
    for _ in range(2):
        seen = RecordedSteps()
        torch.manual_seed(3)
        settings = {
            **SETTINGS,
            "steps": 1,
            "gradients": "functional",
            "not_private": "clipping only",
        }
        model(network(), on_step=seen, random_state=None, **settings).fit(X, Y)
        sums.append(seen.steps[0].noisy_sum)
    assert not np.isclose(*sums).any()


def test_noise_before_the_clip_requires_materialized_gradients():
    with pytest.raises(ValueError, match=r"pre_noise=0.3.*'functional' or 'hooks'"):
        model(**SETTINGS, gradients="ghost").event()
