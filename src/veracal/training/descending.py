"""What classifiers share that are trained by noisy gradient descent."""

from abc import abstractmethod
from dataclasses import replace
from numbers import Real
from typing import Any

from veracal import _checks
from veracal._types import Floats
from veracal.privacy import (
    SGD,
    Clip,
    Descended,
    Descent,
    Event,
    Flat,
    Langevin,
    Schedule,
    Step,
    StepProgress,
    Unit,
    Update,
)
from veracal.privacy.budget import RELATIONS
from veracal.training.ablation import ABLATIONS, Ablation, Unclipped, ablated
from veracal.training.averaging import Average, Averaged, check_average
from veracal.training.descents import Goal
from veracal.training.estimator import PrivateEstimator
from veracal.training.facts import Facts

_MOST_DECAY = 1e6


class DescentClassifier(PrivateEstimator):
    """A private classifier that is trained by a :class:`~veracal.privacy.Descent`.

    A final class stores the settings below among its parameters, under these names.
    """

    epsilon: float | None
    delta: float
    noise_multiplier: float | Schedule | None
    epochs: float | None
    steps: int | None
    sampling_rate: float
    clip: float | Clip
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

    def _goal(self) -> Goal:
        """The settings of the descent."""
        return Goal(
            self.epsilon,
            self.delta,
            self.noise_multiplier,
            self.steps,
            self.epochs,
            self.sampling_rate,
            self.clip if isinstance(self.clip, Clip) else Flat(self.clip),
            self._update(),
            self.weight_decay,
            self.relation,
            Unit() if self.unit is None else self.unit,
        )

    def _descent(self, size: int | None) -> Descent:
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

    def _settled(self, facts: Facts) -> tuple[Descent, tuple[str, ...]]:
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

    def _done(self, descent: Descent, done: Descended) -> tuple[str, ...]:
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
        self._model, self.average = model, Averaged(model.average, steps)
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
    _checks.positive_or("a clip rule, such as Flat(1.0)", Clip, clip=model.clip)
    rules = Update | Schedule | None
    _checks.positive_or("an update rule, such as Adam(0.01)", rules, update=model.update)
    noise = model.noise_multiplier
    _checks.positive_or("a Schedule", Schedule | None, noise_multiplier=noise)
    decay = model.weight_decay
    if not (isinstance(decay, Real) and 0 <= decay <= _MOST_DECAY):
        raise ValueError(f"Expected weight_decay between 0 and {_MOST_DECAY:g}, got {decay!r}.")
