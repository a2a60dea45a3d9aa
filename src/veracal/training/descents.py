"""From a budget to a descent: the noise for an epsilon, or the steps that a budget pays."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from veracal import _checks
from veracal.privacy import (
    Budget,
    Clip,
    Descent,
    Event,
    FullBatch,
    Langevin,
    Poisson,
    Relation,
    Schedule,
    Unit,
    Update,
    epsilon_for,
    noise_for,
)

_MOST_STEPS = 10_000_000
_COARSE = 8.0  # of a grid of losses, beside the one that is charged by
_EPOCHS = 40  # where nothing else is said


@dataclass(frozen=True)
class Goal:
    """What a descent is to keep to.

    Attributes
    ----------
    epsilon : float or None
    delta : float
    noise_multiplier : float, Schedule or None
    steps, epochs : int, float or None
    rate : float
        Probability that a record is in a batch; 1 takes all.
    clip : Clip
    update : Update
    weight_decay : float
    relation : {"add-remove", "replace-one"}
    unit : Unit
    """

    epsilon: float | None
    delta: float
    noise_multiplier: float | Schedule | None
    steps: int | None
    epochs: float | None
    rate: float
    clip: Clip
    update: Update
    weight_decay: float
    relation: Relation
    unit: Unit

    def __post_init__(self) -> None:
        _checks.positive(sampling_rate=self.rate)
        _checks.fraction(sampling_rate=self.rate)
        if self.epsilon is not None:
            _checks.positive(epsilon=self.epsilon, delta=self.delta)
            Budget(self.epsilon, self.delta, self.relation, self.unit)
        if self.steps is not None:
            _checks.whole(steps=self.steps)
        if self.epochs is not None:
            _checks.positive(epochs=self.epochs)
        self._check_length()

    def _check_length(self) -> None:
        """Refuse settings that leave the cost or the length open, or fix it twice."""
        noisy = self.noise_multiplier is not None or isinstance(self.update, Langevin)
        if self.epsilon is None and not noisy:
            raise ValueError("Expected epsilon, noise_multiplier or both, got neither.")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("Expected steps or epochs, got both. Leave one out.")
        fixed = self.steps is not None or self.epochs is not None
        if self.epsilon is not None and noisy and fixed:
            raise ValueError(
                "Expected no steps and no epochs where both epsilon and the noise are given: "
                "the run ends when the budget is spent. Leave out epsilon to fix the length, "
                "or the noise to have it found."
            )

    @property
    def budget(self) -> Budget:
        """The budget, where there is one."""
        assert self.epsilon is not None
        return Budget(self.epsilon, self.delta, self.relation, self.unit)

    def length(self) -> int:
        """Number of steps, where it does not follow from the budget."""
        epochs = _EPOCHS if self.epochs is None else self.epochs
        steps = self.steps or max(1, math.ceil(epochs / self.rate * (1 - 1e-12)))
        if steps > _MOST_STEPS:
            raise ValueError(
                f"Expected at most {_MOST_STEPS:,} steps, got {int(steps):,}. Take fewer "
                "epochs, or a higher sampling rate."
            )
        return int(steps)

    def descent(self, expected_batch: float) -> Descent:
        """The descent that keeps to all this.

        Parameters
        ----------
        expected_batch : float
            The sampling rate times the declared size.
        """
        noise = self.noise_multiplier
        noisy = noise is not None or isinstance(self.update, Langevin)
        if self.epsilon is not None and noisy:
            longest: Descent = _cached(_longest, self, expected_batch)
            return longest
        if noise is None and not noisy:
            noise = _remembered_noise(self, self.length())
        return self._with(noise, self.length(), expected_batch)

    def _with(
        self, noise: float | Schedule | None, steps: int, expected_batch: float
    ) -> Descent:
        """A descent of that noise and length."""
        return Descent(
            FullBatch() if self.rate == 1 else Poisson(self.rate),
            self.clip,
            self.update,
            noise,
            steps,
            expected_batch,
            self.relation,
            self.weight_decay,
        )


def most_steps(budget: Budget, event: Callable[[int], Event]) -> int:
    """The longest run that a budget pays for; longer never costs less.

    Raises
    ------
    ValueError
        If it does not pay for one step, or pays for more than any run takes.
    """

    def paid(steps: int, coarse: float = 1.0) -> bool:
        """Whether the budget pays; a coarse grid of losses is fast, and charges more."""
        cost = epsilon_for(event(steps), budget.delta, budget.unit, coarse=coarse)
        return cost <= budget.epsilon

    if not paid(1):
        raise ValueError(
            f"Expected a budget that pays for one step, got epsilon={budget.epsilon!r} and "
            f"delta={budget.delta!r}. Allow more, or take more noise or a lower rate."
        )
    low, high = 1, 2
    while paid(high, _COARSE):
        low, high = high, 2 * high
        if high > _MOST_STEPS:
            raise ValueError(
                f"Expected a budget that ends within {_MOST_STEPS:,} steps, got "
                f"epsilon={budget.epsilon!r}. Take less noise, or fix steps and leave out "
                "epsilon."
            )
    low, high = _bisected(low, high, partial(paid, coarse=_COARSE))
    # What the coarse grid pays for, the fine one does; it may pay for a few steps more.
    ahead = 1
    while paid(low + ahead):
        low, ahead = low + ahead, 2 * ahead
    low, _ = _bisected(low, low + ahead, paid)
    assert low == 1 or paid(low), "a finer grid of losses charges no more"
    return low


def _bisected(low: int, high: int, paid: Callable[[int], bool]) -> tuple[int, int]:
    """The last number that is paid for and the first that is not, between two such."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if paid(middle) else (low, middle)
    return low, high


@lru_cache(maxsize=64)
def _longest(goal: Goal, expected_batch: float) -> Descent:
    """The descent that ends when the budget is spent (as Knolle et al. 2021 train)."""
    steps = most_steps(
        goal.budget,
        lambda steps: goal._with(goal.noise_multiplier, steps, expected_batch).event(),
    )
    return goal._with(goal.noise_multiplier, steps, expected_batch)


def _remembered_noise(goal: Goal, steps: int) -> float:
    """The noise for a budget; what does not change it is set aside, to find it again."""
    plain = replace(goal, weight_decay=0.0, steps=steps, epochs=None)
    noise: float = _cached(_found_noise, plain, steps)
    return noise


def _cached(function: Any, *arguments: Any) -> Any:
    """Call a function that remembers, or anew where a rule of one's own has no hash."""
    try:
        hash(arguments)
    except TypeError:
        return function.__wrapped__(*arguments)
    return function(*arguments)


@lru_cache(maxsize=1024)
def _found_noise(goal: Goal, steps: int) -> float:
    """The noise for a budget. The size of a batch does not matter to it."""
    return noise_for(goal.budget, lambda noise: goal._with(noise, steps, 1.0).event())
