"""Privacy events, the budget, the unit of protection and the neighboring relation.

An event describes a mechanism: its noise, and the most that one *row* changes the statistic
before noise is added (the sensitivity) under a neighboring relation. An event depends on no
record, so it can be stored, charged and checked before the data is read. The cost of an event
is computed in :mod:`veracal.accounting.epsilon`.

Constructors convert every number to a Python ``float`` or ``int``, because dp-accounting 0.6.0
counts several events with integer multipliers as one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

from veracal import _checks
from veracal.errors import DataError

Relation = Literal["add-remove", "replace-one"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)


@dataclass(frozen=True)
class Unit:
    """The unit of privacy: what a guarantee protects as a whole.

    Parameters
    ----------
    name : str
        Name of the unit in a statement, such as "record" or "patient".
    max_contributions : int
        Maximum number of rows that one unit contributes. If it exceeds one, every event is
        charged for that many rows at once.

    Examples
    --------
    >>> print(Unit("patient", max_contributions=3))
    one patient (at most 3 rows)
    """

    name: str = "record"
    max_contributions: int = 1

    def __post_init__(self) -> None:
        _checks.whole(max_contributions=self.max_contributions)
        if not (isinstance(self.name, str) and self.name.strip()):
            raise ValueError(f"Expected a name for the unit, got name={self.name!r}.")
        object.__setattr__(self, "max_contributions", int(self.max_contributions))

    def __str__(self) -> str:
        rows = self.max_contributions
        return f"one {self.name}" + ("" if rows == 1 else f" (at most {rows} rows)")


@dataclass(frozen=True)
class Budget:
    r"""Upper bound on the privacy cost of all releases together.

    A randomized release M is within the budget if for all neighbors D, D' and every event S

    .. math:: P[M(D) \in S] \le e^\varepsilon P[M(D') \in S] + \delta

    (Dwork et al. 2006). Neighbors differ in one unit: its rows are present or absent
    (``"add-remove"``), or are exchanged for others (``"replace-one"``).

    Parameters
    ----------
    epsilon : float > 0
    delta : float in [0, 1)
        Zero means pure differential privacy.
    relation : {"add-remove", "replace-one"}
    unit : Unit

    Examples
    --------
    >>> Budget(1.0, 1e-5).relation
    'add-remove'
    """

    epsilon: float
    delta: float = 0.0
    relation: Relation = "add-remove"
    unit: Unit = field(default_factory=Unit)

    def __post_init__(self) -> None:
        _checks.positive(epsilon=self.epsilon)
        _checks.below_one(delta=self.delta)
        _checks.one_of(RELATIONS, relation=self.relation)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    @property
    def pure(self) -> bool:
        """Whether delta is zero."""
        return self.delta == 0


RunDistribution = Literal["poisson", "geometric", "logarithmic"]
RUN_DISTRIBUTIONS: tuple[RunDistribution, ...] = get_args(RunDistribution)
_MIN, _MAX = 1e-100, 1e100  # so that ratios and their squares are floats


@dataclass(frozen=True)
class _Noise:
    """Noise added to a statistic of bounded sensitivity."""

    noise: float
    sensitivity: float = 1.0
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        _check_nonnegative(noise=self.noise, sensitivity=self.sensitivity)
        _checks.one_of(RELATIONS, relation=self.relation)
        whole = isinstance(self.sensitivity, int)  # beyond 2^53 a float would round it
        sensitivity = self.sensitivity if whole else float(self.sensitivity)
        _set_fields(self, noise=float(self.noise), sensitivity=sensitivity)


@dataclass(frozen=True)
class Gaussian(_Noise):
    """Gaussian noise of standard deviation ``noise`` on a statistic of L2 ``sensitivity``."""


@dataclass(frozen=True)
class Laplace(_Noise):
    """Laplace noise of scale ``noise`` on each entry of a statistic of L1 ``sensitivity``."""


@dataclass(frozen=True)
class DiscreteLaplace(_Noise):
    r"""Integer noise, :math:`P(k) \propto e^{-|k| / s}`, on each entry of integers.

    Attributes
    ----------
    noise : float
        The scale s, in units of the grid. Taken as the exact rational it stores.
    sensitivity : int
        In the L1 norm, in units of the grid.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _set_fields(self, sensitivity=_check_integer(sensitivity=self.sensitivity))


@dataclass(frozen=True)
class DiscreteGaussian(_Noise):
    r"""Integer noise, :math:`P(k) \propto e^{-k^2 / 2 s^2}`, on each entry of integers.

    Attributes
    ----------
    noise : float
        The parameter s, in units of the grid; the standard deviation is a little less.
    sensitivity : float
        In the L2 norm, in units of the grid.
    entries : int
        Number of entries of the statistic. One entry has an exact privacy-loss
        distribution; several are known by their concentrated bound only (Canonne,
        Kamath and Steinke 2020, Theorem 14).
    """

    entries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole(entries=self.entries)
        _set_fields(self, entries=int(self.entries))
        if self.entries == 1:
            _set_fields(self, sensitivity=_check_integer(sensitivity=self.sensitivity))


@dataclass(frozen=True)
class PoissonGaussian(_Noise):
    """Gaussian noise on a sum over a Poisson batch.

    Each row enters the batch independently with probability ``rate``, and the batch stays
    secret. A row in the batch changes the sum by at most ``sensitivity`` in the L2 norm. Under
    replace-one this bound holds for the old and for the new row.

    Attributes
    ----------
    noise : float
        Standard deviation of the noise on the sum.
    sensitivity : float
        Norm bound of one row (the clip bound), under either relation.
    rate : float in [0, 1]
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.fraction(rate=self.rate)
        _set_fields(self, rate=float(self.rate))


@dataclass(frozen=True)
class Pure:
    """A mechanism that is proved to be epsilon-differentially private for one row."""

    epsilon: float
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        _check_nonnegative(epsilon=self.epsilon)
        _checks.one_of(RELATIONS, relation=self.relation)
        _set_fields(self, epsilon=float(self.epsilon))


@dataclass(frozen=True)
class Approximate:
    """A mechanism that is proved to be (epsilon, delta)-differentially private for one row."""

    epsilon: float
    delta: float
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        _check_nonnegative(epsilon=self.epsilon)
        _checks.fraction(delta=self.delta)
        _checks.one_of(RELATIONS, relation=self.relation)
        _set_fields(self, epsilon=float(self.epsilon), delta=float(self.delta))


class _OfOne:
    """The relation of an event that contains another."""

    event: "Event"

    @property
    def relation(self) -> Relation:
        """The relation of the event inside."""
        return self.event.relation


class _OfSeveral:
    """The relation of an event that contains several, all under one relation."""

    events: "tuple[Event, ...]"

    @property
    def relation(self) -> Relation:
        """The relation of all events inside."""
        return self.events[0].relation


@dataclass(frozen=True)
class Repeated(_OfOne):
    """One event, repeated on the same records."""

    event: "Event"
    times: int

    def __post_init__(self) -> None:
        _check_event(self.event)
        _checks.whole(times=self.times, least=0)
        _set_fields(self, times=int(self.times))


@dataclass(frozen=True)
class Composed(_OfSeveral):
    """Several events on the same records, in a list fixed beforehand."""

    events: "tuple[Event, ...]"

    def __post_init__(self) -> None:
        _set_fields(self, events=_check_events(self.events))


@dataclass(frozen=True)
class Parallel(_OfSeveral):
    r"""Events on disjoint partitions of the records, one event for each partition.

    Attributes
    ----------
    events : tuple of events
        One for each partition.
    weights : tuple of float, optional
        Probabilities of the partitions. Allowed only if the partition of every unit was drawn
        independently and stays *secret*. The loss of one unit is then the mixture
        :math:`\delta(\varepsilon) = \sum_i w_i \delta_i(\varepsilon)` (joint convexity).
        Without weights it is the loss of the worst partition.

    Notes
    -----
    All rows of a unit are in one partition, which must depend on that unit alone;
    :func:`veracal.data.split` ensures this. Under replace-one the new record stays in the
    partition of the record that it replaces (draws by position). Otherwise two partitions
    change at once, and their costs add.
    """

    events: "tuple[Event, ...]"
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _set_fields(self, events=_check_events(self.events))
        if self.weights is None:
            return
        weights = tuple(float(weight) for weight in self.weights)
        if len(weights) != len(self.events):
            raise ValueError(
                f"Expected one weight for each of {len(self.events)} partitions, "
                f"got {len(weights)}."
            )
        _checks.fraction(**{f"weights_{i}": weight for i, weight in enumerate(weights)})
        if not math.isclose(sum(weights), 1, rel_tol=0, abs_tol=1e-9):
            raise ValueError(f"Expected weights that sum to 1, got weights={weights!r}.")
        _set_fields(self, weights=weights)


@dataclass(frozen=True)
class Search(_OfOne):
    """Private selection: a hyperparameter search that releases only its best run.

    The base event is run a random number of times, each time with settings drawn
    independently from a public list. The run with the best *noisy* score is released; the
    number of runs and all other runs stay secret (Papernot and Steinke 2022).

    Attributes
    ----------
    event : Event
        One run: training *and* its noisy score, for the most expensive settings.
    mean : float >= 1
        Expected number of runs.
    distribution : {"poisson", "geometric", "logarithmic"}
        Distribution of the number of runs.
    """

    event: "Event"
    mean: float
    distribution: RunDistribution = "logarithmic"

    def __post_init__(self) -> None:
        _check_event(self.event)
        _checks.positive(mean=self.mean)
        _checks.one_of(RUN_DISTRIBUTIONS, distribution=self.distribution)
        if self.mean < 1:
            raise ValueError(f"Expected a mean of 1 or more, got mean={self.mean!r}.")
        if self.distribution != "poisson" and self.mean <= 1:
            raise ValueError(
                f"Expected a mean above 1 for the {self.distribution} distribution, "
                f"got mean={self.mean!r}."
            )
        _set_fields(self, mean=float(self.mean))


@dataclass(frozen=True)
class AsReplaceOne:
    """An add-remove event, charged under replace-one by the lossy conversion.

    Replacing a row removes one and adds another: epsilon-DP becomes 2 epsilon, and
    (epsilon, delta) becomes (2 epsilon, (1 + e^epsilon) delta). There is no conversion
    the other way.
    """

    event: "Event"
    relation: ClassVar[Relation] = "replace-one"

    def __post_init__(self) -> None:
        _check_event(self.event)
        if self.event.relation != "add-remove":
            raise ValueError("Expected an add-remove event, got one under replace-one.")


Event = (
    Gaussian
    | Laplace
    | DiscreteLaplace
    | DiscreteGaussian
    | PoissonGaussian
    | Pure
    | Approximate
    | Repeated
    | Composed
    | Parallel
    | Search
    | AsReplaceOne
)
KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def event_to_json(event: Event) -> dict[str, Any]:
    """Convert an event to a JSON object.

    Examples
    --------
    >>> event_to_json(Pure(0.5))
    {'kind': 'Pure', 'epsilon': 0.5, 'relation': 'add-remove'}
    """
    result: dict[str, Any] = {"kind": type(event).__name__}
    for each in fields(event):
        value = getattr(event, each.name)
        if isinstance(value, tuple):
            value = [event_to_json(v) if type(v).__name__ in KINDS else v for v in value]
        elif type(value).__name__ in KINDS:
            value = event_to_json(value)
        result[each.name] = value
    return result


def event_from_json(written: Mapping[str, Any]) -> Event:
    """Parse an event; raise :class:`DataError` unless it has exactly the expected fields."""
    try:
        values = dict(written)
        kind = KINDS[values.pop("kind")]
        for name, value in values.items():
            if isinstance(value, Mapping):
                values[name] = event_from_json(value)
            elif isinstance(value, list):
                values[name] = tuple(
                    event_from_json(v) if isinstance(v, Mapping) else v for v in value
                )
        event: Event = kind(**values)
    except (KeyError, TypeError, ValueError) as cause:
        raise DataError(
            "event",
            f"one of {', '.join(KINDS)} with its fields",
            repr(written)[:200],
            "Write it with event_to_json.",
        ) from cause
    return event


def _check_events(events: object) -> "tuple[Event, ...]":
    """Check a composition: not empty, all events, one relation."""
    if not isinstance(events, tuple | list) or not events:
        raise ValueError(f"Expected one event or more, got {events!r}.")
    for event in events:
        _check_event(event)
    relations = {event.relation for event in events}
    if len(relations) > 1:
        raise ValueError(
            "Expected events of one neighboring relation, got "
            f"{' and '.join(sorted(relations))}. Costs of different relations do not add: "
            "state every event under one, or convert an add-remove event with AsReplaceOne "
            "(which at least doubles its epsilon)."
        )
    return tuple(events)


def _check_event(event: object) -> None:
    """Raise unless the object is one of the event types above."""
    if type(event).__name__ not in KINDS or type(event) is not KINDS[type(event).__name__]:
        raise ValueError(f"Expected an event of veracal.accounting, got {event!r}.")


def _check_nonnegative(**values: float) -> None:
    """Raise unless every value is zero, or a positive number of ordinary size."""
    _checks.nonnegative(**values)
    for name, value in values.items():
        size = value if isinstance(value, int) else float(value)
        if size != 0 and not _MIN <= size <= _MAX:
            raise ValueError(
                f"Expected {name} between {_MIN:g} and {_MAX:g}, got {name}={value!r}."
            )


def _check_integer(**values: float) -> int:
    """Raise unless the value is a nonnegative integer, and return it."""
    ((name, value),) = values.items()
    _checks.whole(least=0, **{name: value})  # type: ignore[arg-type]
    return int(value)


def _set_fields(event: object, **values: object) -> None:
    """Set fields of a frozen dataclass during its initialization."""
    for name, value in values.items():
        object.__setattr__(event, name, value)
