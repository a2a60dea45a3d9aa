"""Trials of modules with zero-initialized layers."""

from unittest import mock

import pytest
import torch
from torch import nn

from veracal.data import load
from veracal.neural import PrivateNetwork
from veracal.neural.architectures import mnist_cnn
from veracal.neural.examples import Block, cross_entropy
from veracal.neural.gradients import layers
from veracal.neural.gradients.choice import choose_engine
from veracal.neural.module_checks import perturbed_initialization


class Centered(nn.Linear):
    """A layer that mixes examples."""

    def forward(self, x):
        """Subtract the mean over examples."""
        x = super().forward(x)
        return x - x.mean(0)


class Scaled(nn.Module):
    """A branch that is initially multiplied by zero."""

    def __init__(self, branch):
        super().__init__()
        self.branch, self.scale = branch, nn.Parameter(torch.zeros(()))

    def forward(self, x):
        """Add the branch."""
        return x + self.scale * self.branch(x)


def zero(layer):
    """A layer of zeros."""
    for one in layer.parameters():
        nn.init.zeros_(one)
    return layer


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(Centered(64, 8), zero(nn.Linear(8, 10))),
        nn.Sequential(zero(Centered(64, 8)), zero(nn.Linear(8, 10))),
        nn.Sequential(Scaled(Centered(64, 64)), nn.Linear(64, 10)),
    ],
    ids=["head", "two layers", "branch"],
)
def test_zero_weights_hide_no_layer_that_mixes_examples(module):
    network = PrivateNetwork(module, epsilon=2.0, steps=3)
    with pytest.raises(ValueError, match="treats each example independently"):
        network.fit_records(load("digits"))


def test_a_zero_head_hides_no_wrong_gradients():
    def doubled(layer, inputs, slope, *more):
        slope = slope if layer.out_features == 3 else 2 * slope  # before the head alone
        return right(layer, inputs, slope, *more)

    right = layers.RULES[nn.Linear]
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), zero(nn.Linear(5, 3)))
    few = Block(torch.randn(4, 4), torch.arange(4) % 3)
    with mock.patch.dict(layers.RULES, {nn.Linear: doubled}):
        _, trial = choose_engine(module, cross_entropy, few, None, block_size=4)
    assert "ghost" in trial.wrong and trial.chosen != "ghost"
    _, trial = choose_engine(module, cross_entropy, few, None, block_size=4)
    assert trial.chosen == "ghost" and not trial.wrong


def test_weights_are_restored_after_the_perturbation():
    module = nn.Sequential(
        zero(nn.Linear(3, 4)), nn.LayerNorm(4), Scaled(nn.Linear(4, 4, bias=False))
    )
    nn.init.constant_(module[2].branch.weight, 0.5)
    module[0].bias.requires_grad_(False)
    before = {name: one.clone() for name, one in module.state_dict().items()}

    def fails():
        with perturbed_initialization(module):
            outputs = module.state_dict().items()
            moved = {name for name, one in outputs if (one != before[name]).any()}
            assert moved == {"0.weight", "1.bias", "2.scale", "2.branch.weight"}
            assert len(module[0].weight.unique()) == 12
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    for name, one in module.state_dict().items():
        assert torch.equal(one, before[name])


def test_the_perturbation_draws_from_no_other_generator():
    module = zero(nn.Linear(3, 3))
    torch.manual_seed(0)
    first = torch.randn(3)
    torch.manual_seed(0)
    with perturbed_initialization(module):
        assert torch.equal(torch.randn(3), first)


def test_a_zero_initialized_network_is_trained():
    network = mnist_cnn(tanh=True, hidden=(), from_zero=True)
    assert not network[-1].weight.any() and not network[-1].bias.any()
    few = Block(torch.randn(4, 1, 28, 28), torch.arange(4))
    _, trial = choose_engine(network, cross_entropy, few, None, block_size=4)
    assert trial.chosen == "ghost" and not trial.wrong
