"""Who pays what: training, the map and the guard of a calibrated classifier."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from veracal import _checks
from veracal.accounting import Budget, Composed, Event, Parallel, Relation, Unit, noise_for
from veracal.calibration.maps.base import Identity
from veracal.calibration.planning import fitter_for
from veracal.calibration.private.guard import guard_event
from veracal.calibration.private.session import PrivateFitter
from veracal.queries import RecordsModel

Recalibrate = Literal["reuse", "split"]
RECALIBRATE: tuple[Recalibrate, ...] = ("reuse", "split")
EPSILON = 0.1  # of a map or a guard of which nothing else is said
LEVELS = ("noise_multiplier", "epsilon")


@dataclass(frozen=True)
class Guard:
    """Settings of the guard that keeps a map only if it seems to help.

    Attributes
    ----------
    epsilon : float, optional
        What its question costs. None: half of the share of the map's where there is a total,
        or else 0.1; on records of its own, the whole total.
    beta : float in (0, 0.5)
        Probability, at most, that a map that is no better on the records asked is kept.
    """

    epsilon: float | None = None
    beta: float = 0.05

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            _checks.positive(epsilon=self.epsilon)
        if not 0 < self.beta < 0.5:
            raise ValueError(f"Expected beta between 0 and 0.5, got beta={self.beta!r}.")


@dataclass(frozen=True, eq=False)
class BudgetPlan:
    """Parts of a calibrated classifier with the settings that they are fitted with.

    Attributes
    ----------
    estimator : classifier
    method : PrivateFitter
    guard : Guard or None
    recalibrate : {"reuse", "split"}
    training, mapping : Event
        What each of the two costs.
    guarding : Event or None
    """

    estimator: Any
    method: Any
    guard: Guard | None
    recalibrate: Recalibrate
    training: Event
    mapping: Event
    guarding: Event | None

    @property
    def event(self) -> Event:
        """What they cost together: on the same records, or on three parts of them."""
        found = (self.training, self.mapping, self.guarding)
        events = tuple(event for event in found if event is not None)
        return Composed(events) if self.recalibrate == "reuse" else Parallel(events)


@dataclass(frozen=True, eq=False)
class BudgetSettings:
    """What a calibrated classifier was told.

    Attributes
    ----------
    estimator : classifier
    method : PrivateFitter or None
    guard : Guard or None
    recalibrate : {"reuse", "split"}
    epsilon : float or None
        The total, if there is one.
    delta : float
    share : float
        Of the total, for the map and its guard where they use the same records as training.
    level : str or None
        Parameter of the estimator that is set to meet the total.
    classes : int or None
        Declared number of classes.
    size : int or None
        Declared number of records that the map is fitted to.
    planned : int or None
        The same, as far as the settings tell it. The choice of the map rests on this alone:
        its cost is told before a data set is named.
    relation : {"add-remove", "replace-one"}
    unit : Unit or None
    """

    estimator: Any
    method: PrivateFitter | None
    guard: Guard | None
    recalibrate: Recalibrate
    epsilon: float | None
    delta: float
    share: float
    level: str | None
    classes: int | None
    size: int | None
    planned: int | None
    relation: Relation
    unit: Unit | None


def arranged(wishes: BudgetSettings) -> BudgetPlan:
    """Divide a total, or take the parts at their own settings.

    With a total and one set of records, the map and the guard cost what they are given, and
    the noise of training is the least with which the composition keeps the total. On disjoint
    parts each may cost the whole total.

    Raises
    ------
    ValueError
        If the settings make no sense, or protect somebody else than the classifier says.
    """
    method, guard = _method(wishes), _guard(wishes)
    mapping = method.event(wishes.relation, wishes.unit)
    guarding = None
    if guard is not None:
        guarding = guard_event(
            Identity(), epsilon=guard.epsilon, relation=wishes.relation, unit=wishes.unit
        )
    beside = (mapping, *([] if guarding is None else [guarding]))
    estimator = _estimator(wishes, beside if wishes.recalibrate == "reuse" else ())
    training = training_event(estimator, wishes.relation, wishes.unit)
    return BudgetPlan(estimator, method, guard, wishes.recalibrate, training, mapping, guarding)


def training_event(estimator: Any, relation: Relation, unit: Unit | None) -> Event:
    """What training costs, if it protects whom the whole is said to protect."""
    if not is_private(estimator):
        raise ValueError(
            f"Expected a private classifier, got {estimator!r}, which does not say what it "
            "costs. For one that is not private use CalibratedClassifier."
        )
    protects = estimator.get_params(deep=False).get("unit", unit) or Unit()
    if protects != (unit or Unit()):
        raise ValueError(
            f"Expected the estimator to protect {unit or Unit()}, as the whole does, got "
            f"{protects}. Give both the same unit=..."
        )
    cost: Event | None = estimator.event()
    if cost is None or cost.relation != relation:
        raise ValueError(
            f"Expected training to be charged under {relation}, as the map is, got "
            f"{'nothing' if cost is None else cost.relation}. Give both the same relation=..."
        )
    return cost


def is_private(estimator: Any) -> bool:
    """Whether an estimator states its cost and takes data sets; a frozen one does neither."""
    return isinstance(estimator, RecordsModel) and not isinstance(estimator, FrozenEstimator)


def _method(wishes: BudgetSettings) -> Any:
    """A fresh fitter, with what it was not told filled in from what is public."""
    if wishes.method is not None and not isinstance(wishes.method, PrivateFitter):
        raise ValueError(
            f"Expected a private fitter such as PrivateTemperature, got {wishes.method!r}."
        )
    method = _best(wishes) if wishes.method is None else clone(wishes.method)
    known = method.get_params(deep=False)
    if known.get("reads") == "probabilities":
        raise ValueError(
            f"Expected a fitter that reads logits, which the map is fitted to, got {method!r}. "
            "Leave reads out."
        )
    if known.get("epsilon") is None and known.get("micro_epsilon") is None:
        method.set_params(epsilon=_beside(wishes))
    # The number of records is a divisor where it is one at all: it is in no event.
    told = {"classes": wishes.classes, "size": wishes.size or 1, "delta": wishes.delta}
    missing = {name: value for name, value in told.items() if known.get(name, 0) is None}
    return method.set_params(**missing)


def _best(wishes: BudgetSettings) -> PrivateFitter:
    """What does best for the declared number of records, or one temperature without one."""
    unit, n = wishes.unit or Unit(), wishes.planned or 0
    return fitter_for(n, _beside(wishes), wishes.relation, unit)


def _guard(wishes: BudgetSettings) -> Guard | None:
    """The guard with what it costs."""
    if wishes.guard is None or wishes.guard.epsilon is not None:
        return wishes.guard
    return replace(wishes.guard, epsilon=_beside(wishes))


def _beside(wishes: BudgetSettings) -> float:
    """What the map, or the guard, costs if nothing else is said."""
    if wishes.epsilon is None:
        return EPSILON
    if wishes.recalibrate == "split":
        return wishes.epsilon
    return wishes.share * wishes.epsilon / (1 if wishes.guard is None else 2)


def _estimator(wishes: BudgetSettings, beside: tuple[Event, ...]) -> Any:
    """A fresh estimator, with the noise that meets the total beside other events."""
    model = clone(wishes.estimator)
    if wishes.epsilon is None:
        return model
    budget = Budget(wishes.epsilon, wishes.delta, wishes.relation, wishes.unit or Unit())
    name = wishes.level or _level(model)

    def event(noise: float) -> Event:
        cost = training_event(_at(model, name, noise), wishes.relation, wishes.unit)
        return Composed((cost, *beside))

    return _at(model, name, _least(budget, _Family(event, event(1.0), event(2.0))))


@dataclass(frozen=True)
class _Family:
    """Events by their noise, told from others by two of them."""

    event: Callable[[float], Event] = field(compare=False)
    one: Event
    two: Event


@lru_cache(maxsize=64)  # an estimator is asked for its cost several times in a fit
def _least(budget: Budget, family: _Family) -> float:
    """The least noise that keeps a budget."""
    return noise_for(budget, family.event)


def _level(model: Any) -> str:
    """Name of the parameter that sets the noise of a model."""
    known = model.get_params(deep=False)
    for name in LEVELS:
        if name in known:
            return name
    raise ValueError(
        f"Expected level=..., the name of the parameter that sets the noise of {model!r}: a "
        "noise multiplier or an epsilon, such as 'privatelogisticregression__epsilon'."
    )


def _at(model: Any, name: str, noise: float) -> Any:
    """A model with a level of noise, given as it takes it."""
    inside, _, last = name.rpartition("__")
    known, prefix = model.get_params(), f"{inside}__" if inside else ""
    if name not in known:
        raise ValueError(f"Expected level to be a parameter of {model!r}, got {name!r}.")
    if last == "epsilon":
        return clone(model).set_params(**{name: 1 / noise})
    free = {f"{prefix}epsilon": None} if f"{prefix}epsilon" in known else {}
    return clone(model).set_params(**{name: noise, **free})
