"""Training with a part of the protection taken out, to see what that part does.

None of this is private, and every model that was trained so says it.

Means of the weights of many steps, which cost nothing: all of them are released.

From a budget to a descent: the noise for an epsilon, or the steps that a budget pays.

What classifiers share that are trained by noisy gradient descent.
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
from veracal.accounting import RELATIONS, Budget, Event, Relation, Unit, epsilon_for, noise_for
from veracal.mechanisms import (
    DPSGD,
    SGD,
    ClipRule,
    Flat,
    FullBatch,
    Langevin,
    Poisson,
    Schedule,
    Step,
    StepProgress,
    TrainingResult,
    Update,
)
from veracal.training.base import PrivateEstimator, TrainingData

Ablation = Literal["clipping only", "noise only", "neither"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)


@dataclass(frozen=True)
class Unclipped:
    """Leave every gradient as it is: *not private*.

    Attributes
    ----------
    bound : float
        What the noise is scaled by, as if gradients had been clipped to it.
    """

    bound: float

    def factors(self, norms: Any) -> Any:
        """One for each example."""
        return array_namespace(norms).ones_like(norms)


class _Noiseless(DPSGD):
    """A descent that adds no noise: *not private*."""

    def _add_noise(self, total: Any, noise_std: float, noise: Any) -> Any:
        return total


def ablated(descent: DPSGD, keep: Ablation) -> DPSGD:
    """The same descent without noise, without clipping, or without either."""
    if keep != "clipping only":
        clip: ClipRule = Unclipped(descent.clip.bound)
        descent = replace(descent, clip=clip)
    if keep != "noise only":
        settings = {field.name: getattr(descent, field.name) for field in fields(descent)}
        descent = _Noiseless(**settings)
    return descent


@dataclass(frozen=True)
class ExponentialAverage:
    r"""A moving average of the weights: :math:`m \leftarrow \beta m + (1 - \beta) w`.

    It is divided by the sum of its factors, :math:`1 - \beta^{t}`, so that early steps of a
    short run do not pull it to zero (De et al. 2022, https://arxiv.org/abs/2204.13650, use such
    averages for DP-SGD).

    Attributes
    ----------
    decay : float in (0, 1)
        The factor :math:`\beta`.
    """

    decay: float = 0.99

    def __post_init__(self) -> None:
        _checks.positive(decay=self.decay)
        if not self.decay < 1:
            raise ValueError(f"Expected decay below 1, got decay={self.decay!r}.")


Average = float | ExponentialAverage


def check_average(average: object) -> None:
    """Refuse what says not how weights are averaged."""
    if not isinstance(average, ExponentialAverage):
        _checks.fraction(average=average)  # type: ignore[arg-type]


class AverageState:
    """The mean so far.

    Parameters
    ----------
    average : float in [0, 1] or Moving
        Share of the last steps that are averaged with equal weight, or a moving average.
    steps : int
        How many there will be.
    """

    def __init__(self, average: Average, steps: int) -> None:
        self._moving = average if isinstance(average, ExponentialAverage) else None
        share = 0.0 if isinstance(average, ExponentialAverage) else float(average)
        self._from = 0 if self._moving else steps - int(np.ceil(share * steps))
        self._sum: Floats | None = None
        self._weight = 0.0

    def add(self, number: int, weights: Floats) -> None:
        """Take in the weights after a step, counted from 0."""
        if number < self._from:
            return
        added: Any = weights.astype(np.float64)
        if self._moving is None:
            self._sum = self._added(added)
            self._weight += 1
            return
        decay = self._moving.decay
        added *= 1 - decay
        if self._sum is not None:
            self._sum *= decay
        self._sum = self._added(added)
        self._weight = decay * self._weight + 1 - decay

    def _added(self, added: Floats) -> Floats:
        """The sum with one more, in the place of one of the two: there may be very many."""
        if self._sum is not None:
            added += self._sum
        return added

    def mean(self, last: Floats) -> Floats:
        """The mean, or the last weights if nothing was averaged."""
        if self._sum is None:
            return last
        mean: Floats = (self._sum / self._weight).astype(last.dtype)
        return mean

    def kept(self) -> dict[str, Array]:
        """What it takes to go on later."""
        if self._sum is None:
            return {}
        return {"sum": self._sum, "weight": np.array([self._weight])}

    def go_on(self, kept: Mapping[str, Array]) -> None:
        """Go on from what was kept."""
        if kept:
            self._sum, self._weight = np.array(kept["sum"]), float(kept["weight"][0])


_MOST_STEPS = 10_000_000
_COARSE = 8.0  # of a grid of losses, beside the one that is charged by
_EPOCHS = 40  # where nothing else is said


@dataclass(frozen=True)
class TrainingSpec:
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
    clip: ClipRule
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

    def descent(self, expected_batch: float) -> DPSGD:
        """The descent that keeps to all this.

        Parameters
        ----------
        expected_batch : float
            The sampling rate times the declared size.
        """
        noise = self.noise_multiplier
        noisy = noise is not None or isinstance(self.update, Langevin)
        if self.epsilon is not None and noisy:
            longest: DPSGD = _cached(_longest, self, expected_batch)
            return longest
        if noise is None and not noisy:
            noise = _remembered_noise(self, self.length())
        return self._with(noise, self.length(), expected_batch)

    def _with(self, noise: float | Schedule | None, steps: int, expected_batch: float) -> DPSGD:
        """A descent of that noise and length."""
        return DPSGD(
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
    noise = 1
    while paid(low + noise):
        low, noise = low + noise, 2 * noise
    low, _ = _bisected(low, low + noise, paid)
    assert low == 1 or paid(low), "a finer grid of losses charges no more"
    return low


def _bisected(low: int, high: int, paid: Callable[[int], bool]) -> tuple[int, int]:
    """The last number that is paid for and the first that is not, between two such."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if paid(middle) else (low, middle)
    return low, high


@lru_cache(maxsize=64)
def _longest(goal: TrainingSpec, expected_batch: float) -> DPSGD:
    """The descent that ends when the budget is spent (as Knolle et al. 2021 train)."""
    steps = most_steps(
        goal.budget,
        lambda steps: goal._with(goal.noise_multiplier, steps, expected_batch).event(),
    )
    return goal._with(goal.noise_multiplier, steps, expected_batch)


def _remembered_noise(goal: TrainingSpec, steps: int) -> float:
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
def _found_noise(goal: TrainingSpec, steps: int) -> float:
    """The noise for a budget. The size of a batch does not matter to it."""
    return noise_for(goal.budget, lambda noise: goal._with(noise, steps, 1.0).event())


_MOST_DECAY = 1e6


class DescentClassifier(PrivateEstimator):
    """A private classifier that is trained by a :class:`~veracal.mechanisms.DPSGD`.

    A final class stores the settings below among its parameters, under these names.
    """

    epsilon: float | None
    delta: float
    noise_multiplier: float | Schedule | None
    epochs: float | None
    steps: int | None
    sampling_rate: float
    clip: float | ClipRule
    update: float | Update | None
    weight_decay: float
    average: Average
    not_private: Ablation | None
    on_step: Any
    _rate: float = 1.0  # of the update rule, where none is given

    def _check_settings(self) -> None:
        _checks.one_of(RELATIONS, relation=self.relation)
        _check_kinds(self)
        check_average(self.average)
        _checks.fraction(delta=self.delta)
        _checks.positive(delta=self.delta)
        if self.not_private is not None:
            _checks.one_of(ABLATIONS, not_private=self.not_private)
        if self.size is not None:
            _checks.whole(size=self.size)
            self._check_delta(self.size)
        # Everything else is checked by the records it becomes, in which nothing is computed.
        noise = self._silent() if self.noise_multiplier is None else self.noise_multiplier
        self._goal()._with(noise, 1, 1.0)

    def _check_delta(self, size: int) -> None:
        """Refuse a delta that would allow publishing some record whole."""
        if self.delta * size >= 1:
            raise ValueError(
                f"Expected delta below 1 / size, got delta={self.delta!r} with size={size}: "
                "it would allow publishing some record whole. Choose a smaller delta."
            )

    def length(self) -> int:
        """Steps of a fit, where settings fix them and not the budget."""
        return self._goal().length()

    def _silent(self) -> float | None:
        """A noise that stands for the one to be found."""
        return None if isinstance(self._update(), Langevin) else 1.0

    def _update(self) -> Update:
        """The update rule."""
        if self.update is None:
            return SGD(self._rate)
        return self.update if isinstance(self.update, Update) else SGD(self.update)

    def _goal(self) -> TrainingSpec:
        """The settings of the descent."""
        return TrainingSpec(
            self.epsilon,
            self.delta,
            self.noise_multiplier,
            self.steps,
            self.epochs,
            self.sampling_rate,
            self.clip if isinstance(self.clip, ClipRule) else Flat(self.clip),
            self._update(),
            self.weight_decay,
            self.relation,
            Unit() if self.unit is None else self.unit,
        )

    def _descent(self, size: int | None) -> DPSGD:
        """The descent, which needs the size where the noise follows from the batch."""
        if size is None:
            if isinstance(self._update(), Langevin):
                raise ValueError(
                    "Expected a declared size, since under Langevin the noise follows from "
                    "the expected batch, got size=None. Give size=..., the public number of "
                    "records."
                )
            size = 1
        return self._goal().descent(self.sampling_rate * size)

    def _cost(self, size: int | None) -> Event | None:
        return None if self.not_private is not None else self._descent(size).event()

    def _delta(self) -> float:
        return self.delta

    def _settled(self, facts: TrainingData) -> tuple[DPSGD, tuple[str, ...]]:
        """The descent of a fit, and why it is not private, if it is not."""
        descent = self._descent(facts.size)
        if self.not_private is not None:
            why = f"it was trained with {self.not_private}, for an ablation"
            return ablated(descent, self.not_private), (why,)
        if descent.event() != self._cost(facts.size):
            raise ValueError(
                "Expected a schedule or a rule that is the same whenever it is asked, got one "
                "whose noise changed since it was announced. Nothing was fitted."
            )
        return descent, ()

    @abstractmethod
    def _show(self, weights: Floats) -> None:
        """Set what predictions are made from."""

    def _done(self, descent: DPSGD, done: TrainingResult) -> tuple[str, ...]:
        """Write down how long it took; why the result is not private, if it is not."""
        self.n_iter_ = done.steps
        self.noise_multipliers_ = descent.noise_multipliers()
        if done.steps < descent.steps:
            return ("its run was ended by a hook, which may have looked at records",)
        return ()


class Watch:
    """Averages weights over steps, and calls the hook.

    Parameters
    ----------
    model : DescentClassifier
    steps : int
        How many there will be.
    """

    def __init__(self, model: DescentClassifier, steps: int) -> None:
        self._model, self.average = model, AverageState(model.average, steps)
        self._steps = steps

    def __call__(self, step: Step) -> bool | None:
        """Take note of a step."""
        self.average.add(step.number, step.weights)
        hook = self._model.on_step
        if type(hook) is StepProgress:
            hook.report(step.number + 1, self._steps)
        if hook is None or type(hook) is StepProgress:
            return None
        self._model._show(self.average.mean(step.weights))
        # Copies: what a hook writes on them changes no later step.
        shown = replace(
            step, weights=step.weights.copy(), noisy_sum=step.noisy_sum.copy(), state=None
        )
        answer: bool | None = hook(self._model, shown)
        return answer


def _check_kinds(model: DescentClassifier) -> None:
    """Refuse settings of another kind than declared, of which nothing else would tell."""
    if not isinstance(model.unit, Unit | None):
        raise ValueError(f"Expected unit to be a Unit or None, got {model.unit!r}.")
    if model.on_step is not None and not callable(model.on_step):
        raise ValueError(f"Expected on_step to be callable, got {model.on_step!r}.")
    if isinstance(model.update, type):
        raise ValueError(f"Expected an update rule, got the class {model.update.__name__}.")
    if isinstance(model.clip, Unclipped):
        raise ValueError("Expected a clip rule, got Unclipped. Use not_private='noise only'.")
    _checks.positive_or("a clip rule, such as Flat(1.0)", ClipRule, clip=model.clip)
    rules = Update | Schedule | None
    _checks.positive_or("an update rule, such as Adam(0.01)", rules, update=model.update)
    noise = model.noise_multiplier
    _checks.positive_or("a Schedule", Schedule | None, noise_multiplier=noise)
    decay = model.weight_decay
    if not (isinstance(decay, Real) and 0 <= decay <= _MOST_DECAY):
        raise ValueError(f"Expected weight_decay between 0 and {_MOST_DECAY:g}, got {decay!r}.")
