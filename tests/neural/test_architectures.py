"""Networks of the papers, and their documented properties."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tests.neural.modules import example_gradients
from veracal.mechanisms import Flat
from veracal.neural import PrivateNetwork
from veracal.neural.architectures import (
    cifar_cnn,
    dense_head,
    five_layer_cnn,
    mlp,
    mnist_cnn,
    scatter_cnn,
)
from veracal.neural.examples import Block, cross_entropy, replace_each, replace_halves
from veracal.neural.gradients.choice import ENGINE_NAMES, choose_engine
from veracal.neural.module_checks import check_behavior, check_module

# What makes it, the shape of an example, its classes and its number of parameters.
MODELS = {
    "mnist_cnn": (mnist_cnn, (1, 28, 28), 10, 26_010),
    "mnist_cnn, tanh": (partial(mnist_cnn, tanh=True), (1, 28, 28), 10, 26_010),
    "mnist_cnn, from zero": (
        partial(mnist_cnn, tanh=True, hidden=(), from_zero=True),
        (1, 28, 28),
        10,
        14_394,
    ),
    "five_layer_cnn": (five_layer_cnn, (1, 28, 28), 10, 23_626),
    "five_layer_cnn, colors": (partial(five_layer_cnn, 3, 3, 20), (3, 20, 20), 3, 18_563),
    "cifar_cnn": (cifar_cnn, (3, 32, 32), 10, 550_570),
    "scatter_cnn": (scatter_cnn, (243, 8, 8), 10, 187_210),
    "scatter_cnn, digits": (
        partial(scatter_cnn, channels=81, side=7, filters=16),
        (81, 7, 7),
        10,
        15_450,
    ),
    "mlp": (partial(mlp, 20, 3), (20,), 3, 64 * 20 + 65 * 3 + 4_224),
    "mlp, linear": (partial(mlp, 20, 3, hidden=()), (20,), 3, 63),
    "dense_head": (partial(dense_head, 1280, 3), (1280,), 3, 1281 * 64 + 65 * 3),
    "dense_head, normalized": (
        partial(dense_head, 1280, 3, normalized=True),
        (1280,),
        3,
        1281 * 64 + 65 * 3,
    ),
}


def build_network(name, n=3):
    """A network, and examples for it."""
    build, shape, classes, _ = MODELS[name]
    torch.manual_seed(0)
    return build(), Block(torch.randn(n, *shape), torch.arange(n) % classes)


@pytest.mark.parametrize("name", MODELS)
def test_the_number_of_parameters_is_as_documented(name):
    build, _, _, parameters = MODELS[name]
    assert sum(one.numel() for one in build().parameters()) == parameters


def test_the_docstrings_state_the_numbers():
    for build in (mnist_cnn, five_layer_cnn, cifar_cnn, scatter_cnn):
        number = sum(one.numel() for one in build().parameters())
        assert f"{number:,} parameters" in build.__doc__


@pytest.mark.parametrize("name", MODELS)
def test_it_can_be_trained_privately(name):
    module, block = build_network(name, 2 * 24)
    check_module(module)
    few, many = (
        [Block(block.inputs[one], block.targets[one]) for one in replaced]
        for replaced in (replace_each(2), replace_halves(24))
    )
    check_behavior(module, few, MODELS[name][2], many)


@pytest.mark.parametrize("way", ENGINE_NAMES)
@pytest.mark.parametrize("name", MODELS)
def test_every_engine_gives_the_gradients_of_single_examples(name, way):
    module, block = build_network(name)
    engine, trial = choose_engine(
        module, cross_entropy, block, block, block_size=8, requested=way
    )
    assert trial.chosen == way and not trial.wrong
    each = example_gradients(module, cross_entropy, block).numpy()
    norms = np.linalg.norm(each, axis=1)
    clip = Flat(float(np.median(norms)))
    total = torch.zeros(engine.size, dtype=torch.float64)
    result = engine.add(block, clip, total)
    np.testing.assert_allclose(result.norms, norms, rtol=1e-3)
    np.testing.assert_allclose(total, clip.factors(norms) @ each, atol=1e-3 * clip.bound)


def test_activations_are_as_requested():
    kinds = {type(layer) for layer in mnist_cnn(tanh=True)}
    assert nn.Tanh in kinds and nn.ReLU not in kinds
    assert nn.ReLU in {type(layer) for layer in mnist_cnn()}
    assert nn.SELU in {type(layer) for layer in mlp(4, 2, activation=nn.SELU)}


def test_fresh_weights_follow_torchs_generator():
    first, same, other = (mlp_of(seed) for seed in (0, 0, 1))
    assert torch.equal(first, same) and not torch.equal(first, other)


def mlp_of(seed):
    """The weights of a first layer."""
    torch.manual_seed(seed)
    return mlp(5, 2)[0].weight


@pytest.mark.parametrize(
    "build",
    [
        lambda: mnist_cnn(1),
        lambda: mnist_cnn(hidden=(0,)),
        lambda: five_layer_cnn(10, 0),
        lambda: five_layer_cnn(10, 1, 7),
        lambda: cifar_cnn(2.5),
        lambda: scatter_cnn(10, channels=-1),
        lambda: scatter_cnn(10, side=1),
        lambda: scatter_cnn(10, filters=0),
        lambda: mlp(0, 2),
        lambda: mlp(3, 2, hidden=(4, 0)),
        lambda: dense_head(3, 2, hidden=0),
    ],
)
def test_invalid_settings_are_rejected(build):
    with pytest.raises(ValueError, match=r"Expected an integer \w+ >= \d, got"):
        build()


def test_a_classifier_accepts_a_network_function(rng):
    X = rng.standard_normal((60, 6)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    model = PrivateNetwork(
        partial(mlp, 6, 2, hidden=(8,)), noise_multiplier=1.0, steps=3, sampling_rate=0.5,
        epsilon=None, classes=[0, 1], size=60,
    )  # fmt: skip
    assert model.fit(X, y).private_
