"""Observing every noisy sum of a network reveals no more about a record than charged.

The real classifier is fitted with and without a planted record, at a learning rate so low that
its gradient stays the same. The attacker guesses from the sum along that gradient, as in the
gate ``canary``: error rates, bounded at alpha = 1e-6, give a lower bound on mu, the Gaussian
measure of what one step reveals, which must come near the claim and not exceed it. (All records
are in every batch, and one step is tested.) Earlier noise must not be repeated, and torch's own
generator, set to the same state before each fit, must have no effect.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from assurance import gate_linear_canary as linear
from assurance.gate_canary import lower_bound
from assurance.networks import ADDING, Patches, fitted, patched, summed_otherwise
from veracal.accounting import Gaussian, Repeated
from veracal.mechanisms import DPSGD, ClippedSum
from veracal.neural.gradient_sums import NetworkSums
from veracal.neural.gradients import engines as adding

NAME = "network_canary"
SECONDS = 15
BOUND = 0.3
choose = adding._clip_factors


def unclipped(norms: Any, clip: Any, slack: float) -> Any:
    """Do not clip gradients."""
    selected = choose(norms, clip, slack)
    return type(selected)(torch.ones_like(selected.factors), selected.kept, selected.exceeding)


def torch_noise(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
    """Noise from torch's generator, which a caller may have seeded."""
    return total + noise_std * torch.randn(total.shape, dtype=torch.float64).numpy()


def biases_bare(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
    """No noise on the last parameters, the biases."""
    noisy = linear.perturbed(descent, total.copy(), noise_std, noise)
    noisy[-2:] = total[-2:]
    return noisy


CORRECT: Callable[[], Patches] = dict
MUTANTS: dict[str, Callable[[], Patches]] = {
    "M1 no noise": linear.scaled(1e-9),
    "M2 half the noise": linear.scaled(0.5),
    "M5 no clip": lambda: {ADDING + "_clip_factors": unclipped},
    "every record counted twice": lambda: summed_otherwise(
        lambda clipped, rows, clip: ClippedSum(2 * clipped.total)
    ),
    "M15 noise from torch's generator": lambda: {
        "veracal.mechanisms.dp_sgd.DPSGD._add_noise": torch_noise
    },
    "M16 noise reused at every step": linear.noisy(linear.reused),
    "M16 noise that follows the last": linear.noisy(linear.following),
    "no noise on the biases": lambda: {
        "veracal.mechanisms.dp_sgd.DPSGD._add_noise": biases_bare
    },
}


def run(subject: Callable[[], Patches], *, long: bool) -> str:
    """Attack the planted record."""
    steps = 15_000 if long else 2_500
    with patched(subject()):
        check_secret()
        for many in (steps // 5, steps):  # most mutants go no further than the few
            absent, event = sums_of(False, many)
            for name, at in (("a weight", 1), ("a bias", -1)):
                linear.check_fresh(_PLANT, np.stack([absent @ along(), absent[:, at]], 1))
                assert absent[:, at].std() > 0.5 * event.noise, f"{name} has no noise"
            present, _ = sums_of(True, many)
            claimed = event.sensitivity / event.noise
            sides = (sums @ along() - BOUND / 2 for sums in (present, absent))
            lower = lower_bound(*sides)
            assert lower <= claimed, (
                f"an attack proves mu >= {lower:.2f}, and {claimed:.2f} is claimed"
            )
    assert lower >= 0.6 * claimed, f"the attack is too weak to tell: {lower:.2f}"
    return f"mu >= {lower:.2f} proved of {claimed:.2f} claimed"


_PLANT = linear.Plant("long row", 2, 3, 1e6)


def sums_of(planted: bool, steps: int) -> tuple[Any, Gaussian]:
    """Noisy sums of a network of zeros, and the event of a step."""
    X = np.zeros((3, 3))
    X[0, 0], X[1:, -1] = 1e6, 0.5
    y = np.array([0, 0, 1])
    seen: list[Any] = []
    model, _ = fitted(
        zeros(),
        X[0 if planted else 1 :],
        y[0 if planted else 1 :],
        clip=BOUND,
        optimizer=1e-12,
        noise_multiplier=1.0,
        sampling_rate=1.0,
        steps=steps,
        size=3,
        # The power of the attack is random: a seed keeps it where it is from run to run.
        random_state=int(planted),
        on_step=lambda model, step: seen.append(step.noisy_sum),
    )
    event = model.event_
    assert isinstance(event, Repeated) and isinstance(event.event, Gaussian)
    return np.array(seen), event.event


def check_secret() -> None:
    """Fits with fresh entropy have different noise, and do not advance torch's generator."""
    assert not np.isclose(first_sum(), first_sum()).any(), "two fits have the same noise"


def first_sum() -> Any:
    """A noisy sum; between the sum and the noisy sum, torch's generator must not advance."""
    seen: list[Any] = []
    original = NetworkSums.__call__

    def call(sums: NetworkSums, weights: Any, rows: Any, clip: Any) -> Any:
        clipped = original(sums, weights, rows, clip)
        seen.append(torch.get_rng_state())
        return clipped

    torch.manual_seed(0)
    with mock.patch.object(NetworkSums, "__call__", call):
        fitted(
            zeros(),
            np.zeros((3, 3)),
            np.array([0, 1, 0]),
            noise_multiplier=1.0,
            sampling_rate=1.0,
            steps=1,
            size=3,
            on_step=lambda model, step: seen.extend((torch.get_rng_state(), step.noisy_sum)),
        )
    before, after, noisy = seen
    assert torch.equal(before, after), "noise is drawn from torch's generator"
    return noisy


def zeros() -> nn.Module:
    """A linear network at weights of zero: all logits are equal."""
    module = nn.Linear(3, 2)
    for one in module.parameters():
        nn.init.zeros_(one)
    return module


def along() -> Any:
    """The planted gradient, divided by its norm: weights by rows, then biases."""
    gradient = np.zeros(8)
    gradient[0], gradient[3] = -0.5e6, 0.5e6
    gradient[6], gradient[7] = -0.5, 0.5
    return gradient / np.linalg.norm(gradient)
