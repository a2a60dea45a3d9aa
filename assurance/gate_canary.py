"""An attacker who sees every noisy sum learns no more about a planted record than charged.

The canary has a gradient of norm a million, always in one direction; it is present in some
steps and absent in others. The attacker guesses from the sum along that direction. Error rates,
bounded by Clopper and Pearson at alpha = 1e-6, give a lower bound on mu, the Gaussian measure
of what one step reveals (Nasr et al. 2023, https://arxiv.org/abs/2302.07956). It must not
exceed the claim, and comes within a factor of it. Full batches, one step at a time: subsampling
and composition are tested elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from veracal.accounting.events import Gaussian, Repeated
from veracal.mechanisms.clipping import ClippedSum, ClipRule, Flat, clipped_sum
from veracal.mechanisms.dp_sgd import DPSGD, Step
from veracal.mechanisms.optimizers import SGD
from veracal.mechanisms.sampling import FullBatch

NAME = "canary"
ALPHA = 1e-6
ENTRIES, RECORDS, BOUND = 8, 5, 0.7


@dataclass(frozen=True)
class Subject:
    """A DP-SGD run and its gradient sum."""

    descent: type[DPSGD] = DPSGD
    clipped_sum: Callable[[Any, ClipRule], ClippedSum] = clipped_sum


def scaled(factor: float) -> Subject:
    """Noise of another size."""

    class Scaled(DPSGD):
        def _add_noise(self, total: Any, noise_std: float, rng: Any) -> Any:
            return super()._add_noise(total, factor * noise_std, rng)

    return Subject(Scaled)


class Reused(DPSGD):
    """Noise drawn once and added at every step."""

    def _add_noise(self, total: Any, noise_std: float, rng: Any) -> Any:
        if "drawn" not in self.__dict__:
            self.__dict__["drawn"] = rng.add_to(0 * total, noise_std)
        return total + self.__dict__["drawn"]


def unclipped(gradients: np.ndarray, clip: ClipRule) -> ClippedSum:
    """Sum gradients without clipping."""
    return ClippedSum(gradients.sum(axis=0))


def counted_twice(gradients: np.ndarray, clip: ClipRule) -> ClippedSum:
    """Sum every record twice, as two workers on one partition would."""
    return clipped_sum(np.repeat(gradients, 2, axis=0), clip)


CORRECT = Subject()
MUTANTS = {
    "M1 no noise": scaled(1e-9),
    "M2 half the noise": scaled(0.5),
    "a tenth of the noise": scaled(0.1),
    "M5 no clip": Subject(clipped_sum=unclipped),
    "every record counted twice": Subject(clipped_sum=counted_twice),
    "M16 noise reused at every step": Subject(Reused),
}


def run(subject: Subject, *, long: bool) -> str:
    """Attack the sums, and the differences of sums."""
    # The power of the attack is random; a fixed seed makes it reproducible.
    rng = None if long else np.random.default_rng(0)
    sums, claimed = attacked(subject, 80_000 if long else 6_000, rng)
    sums = sums.reshape(-1, 4)  # in every four steps the canary is in the second only
    result = lower_bound(sums[:, 1] - BOUND / 2, sums[:, [0, 2, 3]].ravel() - BOUND / 2)
    assert result <= claimed, (
        f"an attack proves mu >= {result:.2f}, and {claimed:.2f} is claimed"
    )
    steps = np.diff(sums)
    paired = lower_bound(steps[:, 0] - BOUND / 2, steps[:, 2] - BOUND / 2)
    assert paired <= claimed, (
        f"two steps in a row prove mu >= {paired:.2f}, and {claimed:.2f} is claimed"
    )
    assert result >= 0.6 * claimed, f"the attack is too weak to tell: {result:.2f}"
    return f"mu >= {result:.2f} proved of {claimed:.2f} claimed, in {sums.size:,} guesses"


def attacked(
    subject: Subject, steps: int, rng: np.random.Generator | None
) -> tuple[np.ndarray, float]:
    """Noisy sums along the canary, and the mu that a step claims."""
    descent = subject.descent(
        FullBatch(), Flat(BOUND), SGD(0.1), 1.0, steps=steps, expected_batch=RECORDS
    )
    seen: list[float] = []

    def clipped_sum_of(weights: Any, rows: np.ndarray, clip: ClipRule) -> ClippedSum:
        gradients = np.zeros((len(rows), ENTRIES))
        gradients[1:, 1:] = 0.1  # the others have another direction
        gradients[0, 0] = 1e6 if len(seen) % 4 == 1 else 0.0
        return subject.clipped_sum(gradients, clip)

    def watch(step: Step) -> None:
        seen.append(float(step.noisy_sum[0]))

    descent.run(np.zeros(ENTRIES), clipped_sum_of, RECORDS, rng=rng, on_step=watch)
    event = descent.event()
    assert isinstance(event, Repeated) and isinstance(event.event, Gaussian)
    return np.array(seen), event.event.sensitivity / event.event.noise


def lower_bound(present: np.ndarray, absent: np.ndarray) -> float:
    """Largest mu that both error rates of guessing by the sign refute, at level alpha."""
    missed, false = int((present <= 0).sum()), int((absent > 0).sum())
    return -quantile(missed, len(present)) - quantile(false, len(absent))


def quantile(errors: int, guesses: int) -> float:
    """Normal quantile of the upper confidence bound of an error rate."""
    bound = stats.beta(errors + 1, max(guesses - errors, 1e-9)).ppf(1 - ALPHA / 2)
    return float(stats.norm.ppf(bound))
