"""Samplers of batches, and plans of DP-SGD training with them: noise for a budget, or its cost.

A sampler draws the batches and states the event of a noisy sum over one. Both come from one
object, so training cannot sample in one way and be accounted in another.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Ints
from veracal.accounting import (
    RELATIONS,
    Budget,
    Composed,
    Event,
    Gaussian,
    PoissonGaussian,
    Relation,
    Repeated,
    Statement,
    Unit,
    noise_for,
    statement,
)
from veracal.mechanisms.optimizers import Exponential, group_noise_levels

_MAX_STEPS, _MAX_VARYING_STEPS = 10**9, 10**7


@dataclass(frozen=True)
class Poisson:
    """Each record enters a batch with the same probability, independently of all others.

    Parameters
    ----------
    rate : float in (0, 1]
        The probability. Derive it from *declared* sizes (expected batch / declared number of
        records), since the true number of records is private under add/remove.

    Guarantees
    ----------
    The size of a batch is random and may be zero. Batches are independent, and secret if the
    generator is secret; amplification by sampling relies on both.
    """

    rate: float

    def __post_init__(self) -> None:
        _checks.positive(rate=self.rate)
        _checks.fraction(rate=self.rate)
        object.__setattr__(self, "rate", float(self.rate))

    def batch(self, n: int, rng: np.random.Generator) -> Ints:
        """Draw the rows of one batch out of n, in ascending order.

        Distances between successive members are geometric, so time and memory grow with the
        batch and not with n. The first rows do not depend on n.
        """
        _checks.whole(n=n, least=0)
        expected = n * self.rate
        size = int(expected + 4 * expected**0.5) + 8
        blocks: list[Ints] = []
        last = -1
        while last < n:
            # Cap distances at the end of the table, so that their sum cannot overflow.
            gaps = np.minimum(rng.geometric(self.rate, size), n + 1)
            gaps[0] += last
            blocks.append(gaps.cumsum())
            last = int(blocks[-1][-1])
        rows = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return rows[: rows.searchsorted(n)]

    def event(self, noise_std: float, bound: float, relation: Relation) -> PoissonGaussian:
        """Event of a sum over one batch, each row within ``bound``, plus Gaussian noise."""
        return PoissonGaussian(noise_std, bound, relation, rate=self.rate)


@dataclass(frozen=True)
class FullBatch:
    """Use every record in every step."""

    def batch(self, n: int, rng: np.random.Generator) -> Ints:
        """All n rows."""
        _checks.whole(n=n, least=0)
        return np.arange(n)

    def event(self, noise_std: float, bound: float, relation: Relation) -> Gaussian:
        """Event of a sum over all rows, each row within ``bound``, plus Gaussian noise."""
        _checks.one_of(RELATIONS, relation=relation)
        # Replacing a row removes one contribution and adds another.
        sensitivity = 2 * bound if relation == "replace-one" else bound
        return Gaussian(noise_std, sensitivity, relation)


Sampler = Poisson | FullBatch


@dataclass(frozen=True)
class TrainingPlan:
    """A DP-SGD training run and its cost."""

    sampler: Sampler
    expected_batch: float  # declared, the divisor of the gradient
    steps: int
    noise_multiplier: float  # noise on the clipped sum over the clip bound, at the first step
    decay: float  # decrease of the logarithm of the noise per pass
    event: Event  # what the run will charge, with a clip bound of one
    statement: Statement

    @property
    def rate(self) -> float:
        """Probability that a row is in a batch."""
        return self.sampler.rate if isinstance(self.sampler, Poisson) else 1.0

    @property
    def passes(self) -> float:
        """Expected number of times that a row is used."""
        return self.steps * self.rate

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return {
            "rate": self.rate,
            "expected_batch": self.expected_batch,
            "steps": self.steps,
            "passes": self.passes,
            "noise_multiplier": self.noise_multiplier,
            "decay": self.decay,
            "noise_on_mean": self.noise_multiplier / self.expected_batch,
            "epsilon": self.statement.to_json()["epsilon"],
            "delta": self.statement.delta,
            "statement": self.statement.to_json(),
        }


def plan_training(
    *,
    records: int,
    batch: float,
    steps: int,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    decay: float = 0.0,
    relation: Relation = "add-remove",
    unit: Unit | None = None,
) -> TrainingPlan:
    r"""Find the noise for a budget, or the cost of a noise.

    Parameters
    ----------
    records : int
        Declared number of rows, not the true one, which is private under add/remove.
    batch : float
        Expected number of rows in a batch. If it is ``records``, every step uses all rows.
    epsilon, noise_multiplier : float > 0
        Exactly one of the two; the other is computed.
    decay : float
        The noise decreases by the factor :math:`e^{-\text{decay}}` with every pass.

    Examples
    --------
    >>> plan = plan_training(records=60_000, batch=256, steps=3_000, delta=1e-5, epsilon=1)
    >>> round(plan.noise_multiplier, 2), plan.statement.epsilon <= 1
    (1.13, True)
    """
    _checks.whole(records=records, steps=steps)
    _checks.positive(batch=batch, delta=delta)
    if batch > records:
        raise ValueError(f"Expected batch <= records={records}, got batch={batch!r}.")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            "Expected exactly one of epsilon and noise_multiplier, got "
            f"{'neither' if epsilon is None else 'both'}."
        )
    most = _MAX_VARYING_STEPS if decay else _MAX_STEPS
    if steps > most:
        raise ValueError(f"Expected at most {most:,} steps, got steps={steps!r}.")
    unit = unit or Unit()
    sampler: Sampler = FullBatch() if batch == records else Poisson(batch / records)
    every = max(1, round(records / batch))

    def event(noise: float) -> Event:
        if not decay:
            return Repeated(sampler.event(noise, 1.0, relation), steps)
        each = Exponential(noise, decay, every).values(steps)
        parts = tuple(
            Repeated(sampler.event(level, 1.0, relation), times)
            for level, times in group_noise_levels(each)
        )
        return parts[0] if len(parts) == 1 else Composed(parts)

    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = noise_for(Budget(epsilon, delta, relation, unit), event)
    _checks.positive(noise_multiplier=noise_multiplier)
    cost = event(noise_multiplier)
    return TrainingPlan(
        sampler,
        float(batch),
        int(steps),
        float(noise_multiplier),
        decay,
        cost,
        statement(cost, delta, unit, covers=("every step of the training run",)),
    )
