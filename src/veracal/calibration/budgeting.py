"""Division of a privacy budget over training, calibration map and guard of a classifier."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from veracal import _checks
from veracal.accounting import Budget, Composed, Event, Parallel, Relation, Unit, noise_for
from veracal.calibration.maps.base import Identity
from veracal.calibration.planning import default_fitter
from veracal.calibration.private.guard import guard_event
from veracal.calibration.private.session import PrivateFitter
from veracal.queries import RecordsModel

Recalibrate = Literal["reuse", "split"]
RECALIBRATE: tuple[Recalibrate, ...] = ("reuse", "split")
EPSILON = 0.1  # default cost of a map or a guard without a total
NOISE_PARAMETERS = ("noise_multiplier", "epsilon")


@dataclass(frozen=True)
class Guard:
    """Settings of the guard, which keeps a map only if it improves the Brier score.

    Attributes
    ----------
    epsilon : float, optional
        Cost of its query. None: half of the map's share of a total, or 0.1 without a total; on
        separate records, the whole total.
    beta : float in (0, 0.5)
        Upper bound on the probability of keeping a map that is no better on these records.
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
    """The parts of a calibrated classifier with their final settings and costs.

    Attributes
    ----------
    estimator : classifier
    method : PrivateFitter
    guard : Guard or None
    recalibrate : {"reuse", "split"}
    training, mapping : Event
        Cost of each of the two.
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
        """Cost of all parts: composed on the same records, or in parallel on disjoint ones."""
        parts = (self.training, self.mapping, self.guarding)
        events = tuple(event for event in parts if event is not None)
        return Composed(events) if self.recalibrate == "reuse" else Parallel(events)


@dataclass(frozen=True, eq=False)
class BudgetSettings:
    """Settings of a calibrated classifier from which a budget is planned.

    Attributes
    ----------
    estimator : classifier
    method : PrivateFitter or None
    guard : Guard or None
    recalibrate : {"reuse", "split"}
    epsilon : float or None
        The total, if one is given.
    delta : float
    share : float
        Share of the total for the map and its guard if they use the training records.
    noise_parameter : str or None
        Parameter of the estimator that is set to meet the total.
    classes : int or None
        Declared number of classes.
    size : int or None
        Declared number of records that the map is fitted to.
    planned_size : int or None
        The same, from the settings alone. The choice of the map depends only on this, because
        its cost is announced before a data set is given.
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
    noise_parameter: str | None
    classes: int | None
    size: int | None
    planned_size: int | None
    relation: Relation
    unit: Unit | None


def plan_budget(settings: BudgetSettings) -> BudgetPlan:
    """Divide a total over the parts, or use the parts' own settings.

    With a total and the same records, the map and the guard get their shares, and training gets
    the smallest noise for which the composition stays within the total. On disjoint records
    each part may cost the whole total.

    Raises
    ------
    ValueError
        If the settings are invalid, or protect another unit than the classifier.
    """
    method, guard = _method(settings), _guard(settings)
    mapping = method.event(settings.relation, settings.unit)
    guarding = None
    if guard is not None:
        guarding = guard_event(
            Identity(), epsilon=guard.epsilon, relation=settings.relation, unit=settings.unit
        )
    other = (mapping, *([] if guarding is None else [guarding]))
    estimator = _estimator(settings, other if settings.recalibrate == "reuse" else ())
    training = training_event(estimator, settings.relation, settings.unit)
    return BudgetPlan(
        estimator, method, guard, settings.recalibrate, training, mapping, guarding
    )


def training_event(estimator: Any, relation: Relation, unit: Unit | None) -> Event:
    """Cost of training, after checking that unit and relation match those of the whole."""
    if not is_private(estimator):
        raise ValueError(
            f"Expected a private classifier with an event() method, got {estimator!r}. Use "
            "CalibratedClassifier for a classifier that is not private."
        )
    protects = estimator.get_params(deep=False).get("unit", unit) or Unit()
    if protects != (unit or Unit()):
        raise ValueError(
            f"Expected the estimator to protect {unit or Unit()}, like the whole, got "
            f"{protects}. Pass the same unit=... to both."
        )
    cost: Event | None = estimator.event()
    if cost is None or cost.relation != relation:
        raise ValueError(
            f"Expected training to be charged under {relation}, like the map, got "
            f"{'nothing' if cost is None else cost.relation}. Pass both the same relation=..."
        )
    return cost


def is_private(estimator: Any) -> bool:
    """Whether an estimator states its cost and fits data sets; a frozen estimator does not."""
    return isinstance(estimator, RecordsModel) and not isinstance(estimator, FrozenEstimator)


def _method(settings: BudgetSettings) -> Any:
    """A copy of the fitter, with missing settings filled in from public facts."""
    if settings.method is not None and not isinstance(settings.method, PrivateFitter):
        raise ValueError(
            f"Expected a private fitter such as PrivateTemperature, got {settings.method!r}."
        )
    method = _default_fitter(settings) if settings.method is None else clone(settings.method)
    known = method.get_params(deep=False)
    if known.get("reads") == "probabilities":
        raise ValueError(f"Expected a fitter that reads logits, got {method!r}. Omit reads.")
    if known.get("epsilon") is None and known.get("micro_epsilon") is None:
        method.set_params(epsilon=_default_epsilon(settings))
    # The number of records is only a divisor; no event depends on it.
    defaults = {
        "classes": settings.classes,
        "size": settings.size or 1,
        "delta": settings.delta,
    }
    missing = {name: value for name, value in defaults.items() if known.get(name, 0) is None}
    return method.set_params(**missing)


def _default_fitter(settings: BudgetSettings) -> PrivateFitter:
    """Default fitter for the declared number of records; one temperature without a size."""
    unit, n = settings.unit or Unit(), settings.planned_size or 0
    return default_fitter(n, _default_epsilon(settings), settings.relation, unit)


def _guard(settings: BudgetSettings) -> Guard | None:
    """The guard with its cost."""
    if settings.guard is None or settings.guard.epsilon is not None:
        return settings.guard
    return replace(settings.guard, epsilon=_default_epsilon(settings))


def _default_epsilon(settings: BudgetSettings) -> float:
    """Default cost of the map or the guard."""
    if settings.epsilon is None:
        return EPSILON
    if settings.recalibrate == "split":
        return settings.epsilon
    return settings.share * settings.epsilon / (1 if settings.guard is None else 2)


def _estimator(settings: BudgetSettings, other: tuple[Event, ...]) -> Any:
    """A copy of the estimator with the noise that meets the total, given other events."""
    model = clone(settings.estimator)
    if settings.epsilon is None:
        return model
    budget = Budget(
        settings.epsilon, settings.delta, settings.relation, settings.unit or Unit()
    )
    name = settings.noise_parameter or _noise_parameter(model)

    def event(noise: float) -> Event:
        cost = training_event(_with_noise(model, name, noise), settings.relation, settings.unit)
        return Composed((cost, *other))

    return _with_noise(
        model, name, _smallest_noise(budget, _EventFamily(event, event(1.0), event(2.0)))
    )


@dataclass(frozen=True)
class _EventFamily:
    """Events as a function of the noise, identified by two of their values for caching."""

    event: Callable[[float], Event] = field(compare=False)
    one: Event
    two: Event


@lru_cache(maxsize=64)  # event() is called several times in a fit
def _smallest_noise(budget: Budget, family: _EventFamily) -> float:
    """The smallest noise that keeps a budget."""
    return noise_for(budget, family.event)


def _noise_parameter(model: Any) -> str:
    """Name of the parameter that sets the noise of a model."""
    known = model.get_params(deep=False)
    for name in NOISE_PARAMETERS:
        if name in known:
            return name
    raise ValueError(
        f"Expected noise_parameter=..., the name of the noise parameter of {model!r}: a noise "
        "multiplier or an epsilon, such as 'privatelogisticregression__epsilon'."
    )


def _with_noise(model: Any, name: str, noise: float) -> Any:
    """A copy of a model with a noise level in the given parameter."""
    prefix_path, _, last = name.rpartition("__")
    known, prefix = model.get_params(), f"{prefix_path}__" if prefix_path else ""
    if name not in known:
        raise ValueError(
            f"Expected noise_parameter to be a parameter of {model!r}, got {name!r}."
        )
    if last == "epsilon":
        return clone(model).set_params(**{name: 1 / noise})
    unset = {f"{prefix}epsilon": None} if f"{prefix}epsilon" in known else {}
    return clone(model).set_params(**{name: noise, **unset})
