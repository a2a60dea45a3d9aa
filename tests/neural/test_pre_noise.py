"""Noise on each example's gradient before it is clipped."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from tests.neural.fits import Seen, X, Y, model, network
from tests.neural.modules import made
from veracal.mechanisms import Automatic, Flat, GlobalAdapt, Langevin, clipped_sum, pre_noised
from veracal.neural.gradients.blocks import Block, cross_entropy
from veracal.neural.gradients.choice import MATERIALIZING_ENGINES, example_gradients
from veracal.neural.gradients.engines import PreNoise

LANGEVIN = Langevin(0.1, 1.0, pre_noise=0.3)
TOLD = {"noise_multiplier": None, "update": LANGEVIN, "sampling_rate": 1.0}


def summed(way, module, block, clip, std, seed=0):
    noise = PreNoise(std, np.random.default_rng(seed)) if std else None
    engine = MATERIALIZING_ENGINES[way](module, cross_entropy, 64, noise)
    total = torch.zeros(engine.size, dtype=torch.float64)
    found = engine.add(block, clip, total)
    return total.numpy(), found


@pytest.mark.parametrize("name", ["conv2d", "tied", "layernorm"])
@pytest.mark.parametrize("way", MATERIALIZING_ENGINES)
def test_every_coordinate_of_every_gradient_has_noise_of_its_own(way, name):
    """Unclipped sums of n gradients are off by normal draws of n times the variance.

    The seed is fixed; of another one in a million would fail. Noise on the sum alone, or
    a fifth more of it, is found out.
    """
    module, block = made(name)
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
def test_no_example_adds_more_than_the_bound_whatever_its_noise(way, std, clip):
    module, block = made("conv2d")
    block.inputs[0] *= 1e4
    for i in range(len(block)):
        total, found = summed(way, module, block.part(i, i + 1), clip, std, seed=i)
        assert np.linalg.norm(total) <= 0.5
        assert len(found.norms) == 1
    if std == 50.0 and clip == Flat(0.5):  # the norm is that of the noisy gradient
        assert float(found.norms) == pytest.approx(50 * np.sqrt(len(total)), rel=0.2)


@pytest.mark.parametrize("way", MATERIALIZING_ENGINES)
def test_a_gradient_that_is_not_finite_adds_nothing_with_noise_either(way):
    module, block = made("linear")
    spoiled = block.inputs.clone()
    spoiled[:] = np.nan
    total, found = summed(way, module, Block(spoiled, block.targets), Flat(0.5), 0.3)
    assert not total.any() and not torch.isfinite(found.norms).any()


@pytest.mark.parametrize("way", MATERIALIZING_ENGINES)
def test_means_are_those_of_the_definition_that_the_linear_room_has(way):
    """Clipped after the noise: noise as long as the bound turns and shortens what is clipped.

    Means over 400 draws, within six standard errors; the seed is fixed.
    """
    module = nn.Linear(4, 2)
    block = Block(torch.tensor(X[:20]), torch.tensor(Y[:20]))
    each = example_gradients(module, cross_entropy, block).numpy()
    rng = np.random.default_rng(1)
    slow = np.array(
        [clipped_sum(pre_noised(each, 0.3, rng=rng), Flat(0.5)).total for _ in range(400)]
    )
    fast = np.array([summed(way, module, block, Flat(0.5), 0.3, i)[0] for i in range(400)])
    error = np.sqrt((slow.var(0) + fast.var(0)) / 400)
    assert (np.abs(slow.mean(0) - fast.mean(0)) < 6 * error).all()
    plain, _ = summed(way, module, block, Flat(0.5), 0.0)
    assert (np.abs(slow.mean(0) - plain) > 6 * error).any()


@pytest.mark.parametrize("gradients", ["functional", "hooks", None])
def test_a_fit_with_it_costs_what_one_without_costs(gradients):
    told = {**TOLD, "gradients": gradients, "steps": 2}
    runs = [Seen(), Seen(), Seen()]
    fitted = [model(on_step=one, **told).fit(X, Y) for one in runs[:2]]
    plain = model(on_step=runs[2], **{**told, "update": Langevin(0.1, 1.0)}).fit(X, Y)
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


def test_it_is_not_drawn_from_the_generator_of_torch():
    sums = []
    for _ in range(2):
        seen = Seen()
        torch.manual_seed(3)
        told = {**TOLD, "steps": 1, "gradients": "functional", "not_private": "clipping only"}
        model(network(), on_step=seen, random_state=None, **told).fit(X, Y)
        sums.append(seen.steps[0].noisy_sum)
    assert not np.isclose(*sums).any()


def test_beside_gradients_that_are_not_written_down_it_is_refused():
    with pytest.raises(ValueError, match=r"pre_noise=0.3.*'functional' or 'hooks'"):
        model(**TOLD, gradients="ghost").event()
