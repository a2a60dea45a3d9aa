"""Plans of DP-SGD training: the noise for a budget, or the cost of given noise."""

from dataclasses import dataclass
from typing import Any

from veracal import _checks
from veracal.accounting import (
    Budget,
    Composed,
    Event,
    Relation,
    Repeated,
    Statement,
    Unit,
    noise_for,
    statement,
)
from veracal.mechanisms.optimizers import Exponential, group_noise_levels
from veracal.mechanisms.sampling import FullBatch, Poisson, Sampler

_MAX_STEPS, _MAX_VARYING_STEPS = 10**9, 10**7


@dataclass(frozen=True)
class TrainingPlan:
    """A DP-SGD training run and its cost.

    Attributes
    ----------
    sampler : Poisson or FullBatch
    expected_batch : float
        Declared size of a batch, the divisor of the gradient.
    steps : int
    noise_multiplier : float
        Noise on the clipped sum, divided by the clip bound, at the first step.
    decay : float
        Decrease of the logarithm of the noise per pass.
    event : Event
        The event that the run will charge, with a clip bound of one.
    statement : Statement
    """

    sampler: Sampler
    expected_batch: float
    steps: int
    noise_multiplier: float
    decay: float
    event: Event
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
    steps : int
    delta : float in (0, 1)
    epsilon, noise_multiplier : float > 0
        Exactly one of the two; the other is computed.
    decay : float
        The noise decreases by the factor :math:`e^{-\text{decay}}` with every pass.
    relation : {"add-remove", "replace-one"}
    unit : Unit, optional

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
    return TrainingPlan(
        sampler=sampler,
        expected_batch=float(batch),
        steps=int(steps),
        noise_multiplier=float(noise_multiplier),
        decay=decay,
        event=event(noise_multiplier),
        statement=statement(
            event(noise_multiplier), delta, unit, covers=("every step of the training run",)
        ),
    )
