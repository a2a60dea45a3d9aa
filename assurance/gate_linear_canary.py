"""An attacker who sees every noisy sum of a linear model learns no more than is charged.

The real classifier is fitted with and without a planted record, at a learning rate so low that
its gradient stays the same. The attacker guesses from the sum along that gradient, as in the
gate ``canary``: error rates, bounded at alpha = 1e-6, give a lower bound on mu, the Gaussian
measure of what one step reveals, which must come near the claim and not exceed it. A long row
is planted, then one of zeros, whose gradient is in the intercept alone. Noise must not repeat,
neither here nor with so many weights that it is prefetched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from assurance.gate_canary import ALPHA, lower_bound
from assurance.linear import (
    CLIPPED,
    Patches,
    fitted,
    patched,
    summed_otherwise,
    unclipped,
)
from veracal.accounting import Gaussian, Repeated
from veracal.data import Dataset
from veracal.mechanisms import DPSGD, ClippedSum
from veracal.mechanisms.dp_sgd import PrefetchedNoise

NAME = "linear_canary"
BOUND = 0.3
NEXT = "veracal.mechanisms.dp_sgd.PrefetchedNoise._next"
perturbed, next_drawn = DPSGD._add_noise, PrefetchedNoise._next


@dataclass(frozen=True)
class Plant:
    """A record to look for, among others that cancel out along its gradient."""

    name: str
    classes: int
    width: int
    entry: float  # of the planted row, in its first column


PLANTS = (Plant("long row", 2, 3, 1e6), Plant("row of zeros", 2, 3, 0.0))
MANY = Plant("many weights", 8, 600, 1e6)


# ---------------------------------------------------------------- mutants


def noisy(change: Callable[[DPSGD, Any, float, Any], Any]) -> Callable[[], Patches]:
    """Add the noise in another way."""
    return lambda: {"veracal.mechanisms.dp_sgd.DPSGD._add_noise": change}


def scaled(factor: float) -> Callable[[], Patches]:
    """Noise of another size."""

    def change(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
        return perturbed(descent, total, factor * noise_std, noise)

    return noisy(change)


def reused(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
    """Noise drawn once and added at every step."""
    if "drawn" not in descent.__dict__:
        descent.__dict__["drawn"] = noise.add_to(0 * total, noise_std)
    return total + descent.__dict__["drawn"]


def following(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
    """Noise of the right size that is correlated with the last step's."""
    fresh = noise.add_to(0 * total, noise_std)
    last = descent.__dict__.get("last", fresh)
    descent.__dict__["last"] = 0.6 * last + 0.8 * fresh
    return total + descent.__dict__["last"]


def coefficients_only(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
    """No noise on the intercept."""
    noisy_total = perturbed(descent, total.copy(), noise_std, noise)
    noisy_total[:, -1] = total[:, -1]
    return noisy_total


def one_for_all(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
    """The noise of one weight for all weights."""
    return total + noise.add_to(0 * total, noise_std)[0, 0]


def handed_out_twice() -> Patches:
    """Use every chunk of noise twice."""
    kept: list[Any] = []

    def again(ahead: PrefetchedNoise) -> Any:
        if kept:
            return kept.pop()
        drawn = next_drawn(ahead)
        kept.append(drawn.copy())
        return drawn

    return {NEXT: again}


CORRECT: Callable[[], Patches] = dict
MUTANTS: dict[str, Callable[[], Patches]] = {
    "M1 no noise": scaled(1e-9),
    "M2 half the noise": scaled(0.5),
    "a tenth of the noise": scaled(0.1),
    "M5 no clip": lambda: {CLIPPED: unclipped},
    "every record counted twice": lambda: summed_otherwise(
        lambda clipped, rows, clip: ClippedSum(2 * clipped.total)
    ),
    "M16 noise reused at every step": noisy(reused),
    "M16 noise that follows the last": noisy(following),
    "M16 a chunk of noise handed out twice": handed_out_twice,
    "no noise on the intercept": noisy(coefficients_only),
    "one number for all weights": noisy(one_for_all),
}


def run(subject: Callable[[], Patches], *, long: bool) -> str:
    """Look for each of the records."""
    with patched(subject()):
        check_fresh(MANY, projections(MANY, False, 4_000 if long else 400)[0])
        figures = [attacked(plant, 15_000 if long else 1_500) for plant in PLANTS]
    result, claimed = min(result for result, _ in figures), figures[0][1]
    return f"mu >= {result:.2f} proved of {claimed:.2f} claimed, for {len(PLANTS)} records"


def attacked(plant: Plant, steps: int) -> tuple[float, float]:
    """The mu that the attack proves, and the mu that a step claims."""
    present, event = projections(plant, True, steps)
    absent, _ = projections(plant, False, steps)
    check_fresh(plant, absent)
    claimed = event.sensitivity / event.noise
    result = lower_bound(present[:, 0] - BOUND / 2, absent[:, 0] - BOUND / 2)
    assert result <= claimed, (
        f"{plant.name}: an attack proves mu >= {result:.2f}, and {claimed:.2f} is claimed"
    )
    assert result >= 0.6 * claimed, f"the attack is too weak to tell: {result:.2f}"
    return result, claimed


def projections(plant: Plant, planted: bool, steps: int) -> tuple[Any, Gaussian]:
    """Noisy sums along the planted gradient and orthogonal to it, and the event of a step."""
    X, y = records(plant)
    dataset = Dataset(X if planted else X[1:], y if planted else y[1:], range(plant.classes))
    along = direction(plant)
    beside = np.zeros_like(along)
    beside[0, 1] = 1.0
    seen: list[tuple[float, float]] = []

    def watch(model: Any, step: Any) -> None:
        seen.append((float((along * step.noisy_sum).sum()), float(step.noisy_sum[0, 1])))

    model, _ = fitted(
        dataset,
        clip=BOUND,
        optimizer=1e-12,
        noise_multiplier=1.0,
        sampling_rate=1.0,
        steps=steps,
        size=len(X),
        # The power of the attack is random; a fixed seed makes it reproducible.
        random_state=int(planted),
        on_step=watch,
    )
    event = model.event_
    assert isinstance(event, Repeated) and isinstance(event.event, Gaussian)
    return np.array(seen), event.event


def records(plant: Plant) -> tuple[Any, Any]:
    """The planted record first, and one of each class, all with the same other columns."""
    X = np.zeros((1 + plant.classes, plant.width))
    X[0, 0], X[1:, -1] = plant.entry, 0.5
    return X, np.array([0, *range(plant.classes)])


def direction(plant: Plant) -> Any:
    """The planted gradient at weights of zero, divided by its norm."""
    k = plant.classes
    residual = np.array([-0.5 + 1.0]) if k == 2 else np.full(k, 1 / k) - np.eye(k)[0]
    row = np.zeros(plant.width + 1)
    row[0], row[-1] = plant.entry, 1.0
    gradient = np.outer(residual, row)
    return gradient / np.linalg.norm(gradient)


def check_fresh(plant: Plant, sums: Any) -> None:
    """Only the noise differs between these: it must be new every time."""
    steps = len(sums)
    for name, series in (("along", sums[:, 0]), ("beside", sums[:, 1])):
        again = steps - len(np.unique(series))
        assert again == 0, f"{plant.name}: the noise of {again} of {steps} steps came before"
        pvalue = stats.pearsonr(series[:-1], series[1:]).pvalue
        assert pvalue > ALPHA, f"{plant.name}, {name}: noise follows noise, p = {pvalue:.1e}"
    pvalue = stats.pearsonr(sums[:, 0], sums[:, 1]).pvalue
    assert pvalue > ALPHA, f"{plant.name}: weights share their noise, p = {pvalue:.1e}"
