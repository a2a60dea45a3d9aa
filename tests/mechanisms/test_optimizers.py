"""Update rules equal their definition, and those of the deep-learning library."""

import math

import numpy as np
import pytest
import torch

from veracal.mechanisms.optimizers import SGD, Adam, Exponential, Langevin, Linear, Momentum

GRADIENTS = np.random.default_rng(0).standard_normal((12, 3))


def descend(optimizer, weights, gradients=GRADIENTS):
    state = optimizer.start(weights)
    for t, gradient in enumerate(gradients):
        if isinstance(weights, torch.Tensor):
            gradient = torch.asarray(gradient, dtype=weights.dtype)
        weights, state = optimizer.step(weights, gradient, state, t)
    return weights


def reference(optimizer, **settings):
    """The same descent by the optimizer of the deep-learning library."""
    weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
    rule = optimizer([weights], **settings)
    for gradient in GRADIENTS:
        weights.grad = torch.asarray(gradient)
        rule.step()
    return weights.detach().numpy()


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (SGD(0.3), lambda: reference(torch.optim.SGD, lr=0.3)),
        (Momentum(0.3), lambda: reference(torch.optim.SGD, lr=0.3, momentum=0.9)),
        (
            Momentum(0.3, momentum=0.7, nesterov=True),
            lambda: reference(torch.optim.SGD, lr=0.3, momentum=0.7, nesterov=True),
        ),
        (Adam(0.1), lambda: reference(torch.optim.Adam, lr=0.1)),
        (
            Adam(0.1, betas=(0.5, 0.9), stability=1e-3, weight_decay=0.2),
            lambda: reference(
                torch.optim.AdamW, lr=0.1, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.2
            ),
        ),
    ],
    ids=lambda part: repr(part) if hasattr(part, "learning_rate") else "library",
)
def test_optimizers_equal_those_of_torch(optimizer, expected) -> None:
    np.testing.assert_allclose(descend(optimizer, np.ones(3)), expected(), rtol=1e-12)
    as_torch = descend(optimizer, torch.ones(3, dtype=torch.float64))
    np.testing.assert_allclose(as_torch.numpy(), expected(), rtol=1e-12)


def test_a_schedule_sets_the_rate_of_each_step() -> None:
    rates = [0.4, 0.3, 0.2, 0.1]
    result = descend(SGD(Linear(0.4, 0.0, steps=4)), np.ones(3), GRADIENTS[:4])
    np.testing.assert_allclose(result, 1 - np.array(rates) @ GRADIENTS[:4], rtol=1e-12)


@pytest.mark.parametrize("mode", ["mean", "sum", "langevin"])
@pytest.mark.parametrize("rate", [0.005, Exponential(0.005, 0.028, every=2)])
def test_langevin_noise_equals_its_definition(mode, rate) -> None:
    optimizer = Langevin(rate, temperature=6.08, mode=mode)
    result = optimizer.noise_multipliers(4, expected_batch=64, bound=0.5)
    for t, multiplier in enumerate(result):
        a = 0.005 if isinstance(rate, float) else 0.005 * math.exp(-0.028 * (t // 2))
        expected = {
            "mean": 64 * math.sqrt(2 * a * 6.08),
            "sum": math.sqrt(2 * a * 6.08),
            "langevin": 64 * math.sqrt(2 * 6.08 / a) / 0.5,
        }[mode]
        assert multiplier == pytest.approx(expected)
    assert len(result) == 4


def test_the_published_setting_has_the_published_multiplier() -> None:
    """0.2466 on the sum, 15.8 with a batch of 64 on the mean."""
    published = {"learning_rate": 0.005, "temperature": 6.08}
    on_sum = Langevin(**published, mode="sum").noise_multipliers(1, 64, 1.0)
    on_mean = Langevin(**published).noise_multipliers(1, 64, 1.0)
    assert on_sum[0] == pytest.approx(0.2466, abs=5e-5)
    assert on_mean[0] == pytest.approx(15.8, abs=0.05)


@pytest.mark.parametrize("records", [None, 5_000])
def test_langevin_mode_samples_with_the_required_diffusion(records) -> None:
    """Noise of std sqrt(2 rate temperature) in the weights, for either energy."""
    optimizer = Langevin(0.01, temperature=0.5, mode="langevin", records=records)
    bound, batch = 0.7, 32
    (multiplier,) = optimizer.noise_multipliers(1, batch, bound)
    noise_on_mean = multiplier * bound / batch
    moved, _ = optimizer.step(np.zeros(1), np.full(1, noise_on_mean), None, 0)
    assert abs(moved[0]) == pytest.approx(math.sqrt(2 * 0.01 * 0.5))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SGD(0.0),
        lambda: SGD("fast"),
        lambda: Momentum(0.1, momentum=1.0),
        lambda: Adam(0.1, betas=(0.9, 1.0)),
        lambda: Adam(0.1, stability=0.0),
        lambda: Adam(0.1, weight_decay=-1.0),
        lambda: Langevin(0.1, 0.0),
        lambda: Langevin(0.1, 1.0, mode="median"),
        lambda: Langevin(0.1, 1.0, pre_noise=-1.0),
        lambda: Langevin(0.1, 1.0, records=10),
    ],
)
def test_optimizers_reject_invalid_settings(wrong) -> None:
    with pytest.raises(ValueError, match="Expected"):
        wrong()
