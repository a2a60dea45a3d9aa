"""DP-SGD classifiers: from settings to a run, weight averages, hooks and ablations.

:class:`TrainingSpec` turns a budget into a run of :class:`~veracal.mechanisms.DPSGD`: it finds
the noise for an epsilon, or the number of steps that a budget pays for. Averages of the weights
of many steps cost nothing, since all of those weights are released. Ablations remove a part of
the protection to show its effect; a model trained that way is not private, and says so.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
from array_api_compat import array_namespace

from veracal import _checks
from veracal._types import Array, Floats
from veracal.accounting import Budget, Event, Relation, Unit, epsilon_for, noise_for
from veracal.mechanisms import (
    DPSGD,
    SGD,
    ClipRule,
    Flat,
    FullBatch,
    Langevin,
    Optimizer,
    Poisson,
    Schedule,
    Step,
    StepProgress,
    TrainingResult,
)
from veracal.training.base import PrivateEstimator, TrainingData

Ablation = Literal["clipping only", "noise only", "neither"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)


@dataclass(frozen=True)
class Unclipped:
    """Leave every gradient unclipped, with noise as if clipped to a bound: *not private*."""

    bound: float

    def factors(self, norms: Any) -> Any:
        """A factor of 1 for each example."""
        return array_namespace(norms).ones_like(norms)


class _Noiseless(DPSGD):
    """DP-SGD without noise: *not private*."""

    def _add_noise(self, total: Any, noise_std: float, noise: Any) -> Any:
        return total


@dataclass(frozen=True)
class ExponentialAverage:
    r"""Exponential moving average of the weights: :math:`m \leftarrow \beta m + (1 - \beta) w`.

    It is divided by the sum of its factors, :math:`1 - \beta^{t}`, so that the average of a
    short run is not biased to zero (De et al. 2022, https://arxiv.org/abs/2204.13650, use such
    averages for DP-SGD).
    """

    decay: float = 0.99  # the factor beta, in (0, 1)

    def __post_init__(self) -> None:
        _checks.positive(decay=self.decay)
        if not self.decay < 1:
            raise ValueError(f"Expected decay below 1, got decay={self.decay!r}.")


Average = float | ExponentialAverage


class WeightAverager:
    """Average of the weights of a share of the last steps of a run, or a moving average."""

    def __init__(self, average: Average, steps: int) -> None:
        self._moving = average if isinstance(average, ExponentialAverage) else None
        share = 0.0 if isinstance(average, ExponentialAverage) else float(average)
        self._first = 0 if self._moving else steps - int(np.ceil(share * steps))
        self._sum: Floats | None = None
        self._weight = 0.0

    def add(self, number: int, weights: Floats) -> None:
        """Add the weights after a step, counted from 0."""
        if number < self._first:
            return
        total: Any = weights.astype(np.float64)
        if self._moving is None:
            self._weight += 1
        else:
            decay = self._moving.decay
            total *= 1 - decay
            if self._sum is not None:
                self._sum *= decay
            self._weight = decay * self._weight + 1 - decay
        if self._sum is not None:
            total += self._sum  # in place: there may be very many weights
        self._sum = total

    def mean(self, last: Floats) -> Floats:
        """The average, or the last weights if nothing was averaged."""
        if self._sum is None:
            return last
        mean: Floats = (self._sum / self._weight).astype(last.dtype)
        return mean

    def state_dict(self) -> dict[str, Array]:
        """State from which the average can be continued."""
        if self._sum is None:
            return {}
        return {"sum": self._sum, "weight": np.array([self._weight])}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Continue from a saved state."""
        if state:
            self._sum, self._weight = np.array(state["sum"]), float(state["weight"][0])


_MAX_STEPS = 10_000_000
_COARSE_GRID = 8.0  # step of a coarse grid of losses, relative to the grid used for charging
_DEFAULT_EPOCHS = 40


@dataclass(frozen=True)
class TrainingSpec:
    """Settings of a DP-SGD run, from which its noise and its length follow.

    ``epsilon`` or the noise may be None, and the length: it then follows from the others. At a
    sampling ``rate`` of 1 every batch has all records.
    """

    epsilon: float | None
    delta: float
    noise_multiplier: float | Schedule | None
    steps: int | None
    epochs: float | None
    rate: float
    clip: ClipRule
    optimizer: Optimizer
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
        noisy = self._has_noise()
        if self.epsilon is None and not noisy:
            raise ValueError("Expected epsilon, noise_multiplier or both, got neither.")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("Expected steps or epochs, got both. Leave one out.")
        fixed = self.steps is not None or self.epochs is not None
        if self.epsilon is not None and noisy and fixed:
            raise ValueError(
                "Expected no steps and no epochs if both epsilon and the noise are given: "
                "the run ends when the budget is spent. Leave out epsilon to fix the length, "
                "or the noise multiplier to have it computed."
            )

    def _has_noise(self) -> bool:
        """Whether the noise is given, or set by the optimizer."""
        return self.noise_multiplier is not None or isinstance(self.optimizer, Langevin)

    @property
    def budget(self) -> Budget:
        """The budget, if epsilon is given."""
        assert self.epsilon is not None
        return Budget(self.epsilon, self.delta, self.relation, self.unit)

    def length(self) -> int:
        """Number of steps, if it does not follow from the budget."""
        epochs = _DEFAULT_EPOCHS if self.epochs is None else self.epochs
        steps = self.steps or max(1, math.ceil(epochs / self.rate * (1 - 1e-12)))
        if steps > _MAX_STEPS:
            raise ValueError(
                f"Expected at most {_MAX_STEPS:,} steps, got {int(steps):,}. Take fewer "
                "epochs, or a higher sampling rate."
            )
        return int(steps)

    def dp_sgd(self, expected_batch: float) -> DPSGD:
        """The run that these settings describe, for the sampling rate times a declared size."""
        noise = self.noise_multiplier
        if self.epsilon is not None and self._has_noise():
            steps: int = _cached(_affordable_steps, self, expected_batch)
            return self._build(noise, steps, expected_batch)
        if not self._has_noise():
            # Cached under those settings alone that it depends on.
            relevant = replace(self, weight_decay=0.0, steps=self.length(), epochs=None)
            noise = _cached(_affordable_noise, relevant)
        return self._build(noise, self.length(), expected_batch)

    def _build(
        self, noise: float | Schedule | None, steps: int, expected_batch: float
    ) -> DPSGD:
        sampler = FullBatch() if self.rate == 1 else Poisson(self.rate)
        rest = steps, expected_batch, self.relation, self.weight_decay
        return DPSGD(sampler, self.clip, self.optimizer, noise, *rest)


def max_steps(budget: Budget, event: Callable[[int], Event]) -> int:
    """Largest number of steps that a budget pays for; a longer run never costs less.

    Raises
    ------
    ValueError
        If the budget does not pay for one step, or pays for more than the maximum.
    """

    def affordable(steps: int, coarse: float = 1.0) -> bool:
        """Whether the budget pays; a coarse grid of losses is fast, and charges more."""
        cost = epsilon_for(event(steps), budget.delta, budget.unit, coarse=coarse)
        return cost <= budget.epsilon

    if not affordable(1):
        raise ValueError(
            f"Expected a budget that pays for one step, got epsilon={budget.epsilon!r} and "
            f"delta={budget.delta!r}. Allow more, or take more noise or a lower rate."
        )
    low, high = 1, 2
    while affordable(high, _COARSE_GRID):
        low, high = high, 2 * high
        if high > _MAX_STEPS:
            raise ValueError(
                f"Expected a budget that ends within {_MAX_STEPS:,} steps, got "
                f"epsilon={budget.epsilon!r}. Take less noise, or fix steps and leave out "
                "epsilon."
            )
    low, high = _bisect(low, high, partial(affordable, coarse=_COARSE_GRID))
    # The fine grid pays for whatever the coarse grid pays for, and perhaps a few steps more.
    increment = 1
    while affordable(low + increment):
        low, increment = low + increment, 2 * increment
    low, _ = _bisect(low, low + increment, affordable)
    assert low == 1 or affordable(low), "a finer grid of losses charges no more"
    return low


def _bisect(low: int, high: int, affordable: Callable[[int], bool]) -> tuple[int, int]:
    """The last affordable number and the first that is not, given one of each."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low, high


def _cached(function: Any, *arguments: Any) -> Any:
    """Call a cached function, bypassing the cache if a user-defined rule is not hashable."""
    try:
        hash(arguments)
    except TypeError:
        return function.__wrapped__(*arguments)
    return function(*arguments)


@lru_cache(maxsize=64)
def _affordable_steps(spec: TrainingSpec, expected_batch: float) -> int:
    """The steps after which the budget is spent (as Knolle et al. 2021 train)."""
    noise = spec.noise_multiplier
    return max_steps(
        spec.budget, lambda steps: spec._build(noise, steps, expected_batch).event()
    )


@lru_cache(maxsize=1024)
def _affordable_noise(spec: TrainingSpec) -> float:
    """The noise for a budget and a number of steps, which no batch size affects."""
    steps = spec.length()
    return noise_for(spec.budget, lambda noise: spec._build(noise, steps, 1.0).event())


_MAX_DECAY = 1e6


class DPSGDClassifier(PrivateEstimator):
    """A private classifier that is trained by :class:`~veracal.mechanisms.DPSGD`.

    A final class stores the settings below among its parameters, under these names.
    """

    epsilon: float | None
    delta: float
    noise_multiplier: float | Schedule | None
    epochs: float | None
    steps: int | None
    sampling_rate: float
    clip: float | ClipRule
    optimizer: float | Optimizer | None
    weight_decay: float
    average: Average
    not_private: Ablation | None
    on_step: Any
    _learning_rate: float = 1.0  # learning rate of SGD if no optimizer is given

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.on_step is not None and not callable(self.on_step):
            raise ValueError(f"Expected on_step to be callable, got {self.on_step!r}.")
        if isinstance(self.optimizer, type):
            raise ValueError(f"Expected an optimizer, got the class {self.optimizer.__name__}.")
        if isinstance(self.clip, Unclipped):
            raise ValueError(
                "Expected a clip rule, got Unclipped. Use not_private='noise only'."
            )
        _checks.positive_or("a clip rule, such as Flat(1.0)", ClipRule, clip=self.clip)
        rules = Optimizer | Schedule | None
        _checks.positive_or("an optimizer, such as Adam(0.01)", rules, optimizer=self.optimizer)
        _checks.positive_or(
            "a Schedule", Schedule | None, noise_multiplier=self.noise_multiplier
        )
        decay = self.weight_decay
        if not (isinstance(decay, Real) and 0 <= decay <= _MAX_DECAY):
            raise ValueError(
                f"Expected weight_decay between 0 and {_MAX_DECAY:g}, got {decay!r}."
            )
        if not isinstance(self.average, ExponentialAverage):
            _checks.fraction(average=self.average)
        _checks.fraction(delta=self.delta)
        _checks.positive(delta=self.delta)
        if self.not_private is not None:
            _checks.one_of(ABLATIONS, not_private=self.not_private)
        if self.size is not None:
            self._check_delta(self.size)
        # The spec and the run check all other settings when they are built.
        noise = self.noise_multiplier
        if noise is None and not isinstance(self._optimizer(), Langevin):
            noise = 1.0  # a placeholder for the noise that is computed later
        self._spec()._build(noise, 1, 1.0)

    def _check_delta(self, size: int) -> None:
        """Reject a delta that would allow publishing a complete record."""
        if self.delta * size >= 1:
            raise ValueError(
                f"Expected delta below 1 / size, got delta={self.delta!r} with size={size}: "
                "it would allow publishing a complete record. Choose a smaller delta."
            )

    def length(self) -> int:
        """Number of steps of a fit, if the settings fix it and not the budget."""
        return self._spec().length()

    def _optimizer(self) -> Optimizer:
        """The optimizer; a number is a learning rate."""
        chosen = self._learning_rate if self.optimizer is None else self.optimizer
        return chosen if isinstance(chosen, Optimizer) else SGD(chosen)

    def _spec(self) -> TrainingSpec:
        """The settings of the run."""
        return TrainingSpec(
            self.epsilon,
            self.delta,
            self.noise_multiplier,
            self.steps,
            self.epochs,
            self.sampling_rate,
            self.clip if isinstance(self.clip, ClipRule) else Flat(self.clip),
            self._optimizer(),
            self.weight_decay,
            self.relation,
            Unit() if self.unit is None else self.unit,
        )

    def _dp_sgd(self, size: int | None) -> DPSGD:
        """The run, which needs the size if the noise follows from the batch."""
        if size is None:
            if isinstance(self._optimizer(), Langevin):
                raise ValueError(
                    "Expected a declared size, since under Langevin the noise follows from "
                    "the expected batch, got size=None. Give size=..., the public number of "
                    "records."
                )
            size = 1
        return self._spec().dp_sgd(self.sampling_rate * size)

    def _cost(self, size: int | None) -> Event | None:
        return None if self.not_private is not None else self._dp_sgd(size).event()

    def _resolve_run(self, data: TrainingData) -> tuple[DPSGD, tuple[str, ...]]:
        """The run of a fit, and the reasons why it is not private."""
        run, keep = self._dp_sgd(data.size), self.not_private
        if keep is not None:
            if keep != "clipping only":
                run = replace(run, clip=Unclipped(run.clip.bound))
            if keep != "noise only":
                settings = {each.name: getattr(run, each.name) for each in fields(run)}
                run = _Noiseless(**settings)
            return run, (f"it was trained with {keep}, for an ablation",)
        if run.event() != self._cost(data.size):
            raise ValueError(
                "Expected a schedule or a rule that always returns the same noise, got one "
                "whose noise changed since its cost was stated. Nothing was fitted."
            )
        return run, ()

    @abstractmethod
    def _set_weights(self, weights: Floats) -> None:
        """Set the attributes that predictions use."""

    def _record_run(self, run: DPSGD, result: TrainingResult) -> tuple[str, ...]:
        """Record the length of the run; return the reasons why it is not private."""
        self.n_iter_ = result.steps
        self.noise_multipliers_ = run.noise_multipliers()
        if result.steps < run.steps:
            return ("its run was ended by a hook, which may have looked at records",)
        return ()


class StepCallback:
    """Step callback of a run: averages the weights and calls the hook ``on_step``."""

    def __init__(self, model: DPSGDClassifier, steps: int) -> None:
        self._model, self.average = model, WeightAverager(model.average, steps)
        self._steps = steps

    def __call__(self, step: Step) -> bool | None:
        """Process a step; True ends the run."""
        self.average.add(step.number, step.weights)
        hook = self._model.on_step
        if hook is None:
            return None
        if type(hook) is StepProgress:
            hook.report(step.number + 1, self._steps)
            return None
        self._model._set_weights(self.average.mean(step.weights))
        # The hook gets copies, so that it cannot change a later step.
        copied = replace(
            step, weights=step.weights.copy(), noisy_sum=step.noisy_sum.copy(), state=None
        )
        stop: bool | None = hook(self._model, copied)
        return stop
