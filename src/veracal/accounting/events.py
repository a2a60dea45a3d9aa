"""What is promised to whom: the neighbors, the unit, the budget.

What happens to private records, as small records of our own.

An event names a mechanism, its noise, and how far one *row* moves the noised statistic
(its sensitivity) under a neighboring relation. It says nothing about the data, so it can be
written down, charged and checked before a record is read. What an event costs is computed in
:mod:`veracal.accounting.epsilon`.

Every number is turned into a Python ``float`` or ``int`` on the way in: dp-accounting 0.6.0
counts several events whose multipliers are ints as one.
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
    """Whom a guarantee protects.

    Parameters
    ----------
    name : str
        What the unit is called in a statement: "record", "patient".
    at_most : int
        Most rows one unit contributes. With more than one, every event is charged for
        that many rows at once.

    Examples
    --------
    >>> print(Unit("patient", at_most=3))
    one patient (at most 3 rows)
    """

    name: str = "record"
    at_most: int = 1

    def __post_init__(self) -> None:
        _checks.whole(at_most=self.at_most)
        if not (isinstance(self.name, str) and self.name.strip()):
            raise ValueError(f"Expected a name for the unit, got name={self.name!r}.")
        object.__setattr__(self, "at_most", int(self.at_most))

    def __str__(self) -> str:
        rows = "" if self.at_most == 1 else f" (at most {self.at_most} rows)"
        return f"one {self.name}{rows}"


@dataclass(frozen=True)
class Budget:
    r"""The most that all releases together may cost.

    A randomized release M keeps the budget if for all neighbors D, D' and every event S

    .. math:: P[M(D) \in S] \le e^\varepsilon P[M(D') \in S] + \delta

    (Dwork et al. 2006). Neighbors differ in one unit: its rows are present or absent
    (``"add-remove"``), or are exchanged for others (``"replace-one"``).

    Parameters
    ----------
    epsilon : float > 0
    delta : float in [0, 1)
        Zero asks for pure differential privacy.
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
        _checks.fraction(delta=self.delta)
        if self.delta >= 1:
            raise ValueError(f"Expected delta below 1, got delta={self.delta!r}.")
        _checks.one_of(RELATIONS, relation=self.relation)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    @property
    def pure(self) -> bool:
        """Whether the budget allows no failure probability."""
        return math.isclose(self.delta, 0.0, abs_tol=0.0)


Law = Literal["poisson", "geometric", "logarithmic"]
LAWS: tuple[Law, ...] = get_args(Law)
_LEAST, _MOST = 1e-100, 1e100  # so that ratios and their squares are floats


@dataclass(frozen=True)
class _Noise:
    """Noise added to a statistic of bounded sensitivity."""

    noise: float
    sensitivity: float = 1.0
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        _nonnegative(noise=self.noise, sensitivity=self.sensitivity)
        _checks.one_of(RELATIONS, relation=self.relation)
        whole = isinstance(self.sensitivity, int)  # beyond 2^53 a float would round it
        sensitivity = self.sensitivity if whole else float(self.sensitivity)
        _store(self, noise=float(self.noise), sensitivity=sensitivity)


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
        _store(self, sensitivity=_integer(sensitivity=self.sensitivity))


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
        _store(self, entries=int(self.entries))
        if self.entries == 1:
            _store(self, sensitivity=_integer(sensitivity=self.sensitivity))


@dataclass(frozen=True)
class PoissonGaussian(_Noise):
    """Gaussian noise on a sum over a Poisson batch.

    Each row enters the batch independently with probability ``rate``, and the batch stays
    secret; the row then moves the sum by at most ``reach`` in the L2 norm. Under
    replace-one both the old and the new row reach that far.

    Attributes
    ----------
    noise : float
        Standard deviation of the noise on the sum.
    sensitivity : float
        How far one row reaches: the clip bound, under either relation.
    rate : float in [0, 1]
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.fraction(rate=self.rate)
        _store(self, rate=float(self.rate))


@dataclass(frozen=True)
class Pure:
    """Any mechanism proved to be epsilon-differentially private for one row."""

    epsilon: float
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        _nonnegative(epsilon=self.epsilon)
        _checks.one_of(RELATIONS, relation=self.relation)
        _store(self, epsilon=float(self.epsilon))


@dataclass(frozen=True)
class Approximate:
    """Any mechanism proved to be (epsilon, delta)-differentially private for one row."""

    epsilon: float
    delta: float
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        _nonnegative(epsilon=self.epsilon)
        _checks.fraction(delta=self.delta)
        _checks.one_of(RELATIONS, relation=self.relation)
        _store(self, epsilon=float(self.epsilon), delta=float(self.delta))


@dataclass(frozen=True)
class Repeated:
    """One event, several times over, on the same records."""

    event: "Event"
    times: int

    def __post_init__(self) -> None:
        _is_event(self.event)
        _checks.whole(times=self.times, least=0)
        _store(self, times=int(self.times))

    @property
    def relation(self) -> Relation:
        """The relation of the repeated event."""
        return self.event.relation


@dataclass(frozen=True)
class Composed:
    """Several events on the same records, their list fixed beforehand."""

    events: "tuple[Event, ...]"

    def __post_init__(self) -> None:
        _store(self, events=_events(self.events))

    @property
    def relation(self) -> Relation:
        """The relation that all of them share."""
        return self.events[0].relation


@dataclass(frozen=True)
class Parallel:
    r"""Events on disjoint parts of the records, one event for each part.

    Attributes
    ----------
    events : tuple of events
        One for each part.
    weights : tuple of float, optional
        Only where every unit's part was drawn by one coin that stays *secret*: the
        probabilities of the parts. One unit's loss is then the mixture
        :math:`\delta(\varepsilon) = \sum_i w_i \delta_i(\varepsilon)` (joint convexity);
        without them it is the worst part's.

    Notes
    -----
    All rows of a unit are in one part, which must depend on that unit alone, as
    :func:`veracal.data.split` sees to. Under replace-one the replacement stays in the part of
    what it replaces (coins by place). Otherwise two parts change at once, and costs add.
    """

    events: "tuple[Event, ...]"
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _store(self, events=_events(self.events))
        if self.weights is None:
            return
        weights = tuple(float(weight) for weight in self.weights)
        if len(weights) != len(self.events):
            raise ValueError(
                f"Expected one weight for each of {len(self.events)} parts, got {len(weights)}."
            )
        _checks.fraction(**{f"weights_{i}": weight for i, weight in enumerate(weights)})
        if not math.isclose(sum(weights), 1, rel_tol=0, abs_tol=1e-9):
            raise ValueError(f"Expected weights that sum to 1, got weights={weights!r}.")
        _store(self, weights=weights)

    @property
    def relation(self) -> Relation:
        """The relation that all parts share."""
        return self.events[0].relation


@dataclass(frozen=True)
class Search:
    """A search over settings whose winner alone is released.

    The base event is run a random number of times, each time with a setting drawn afresh
    from a public list; the run with the best *noisy* score leaves, and neither the number
    of runs nor any other run is ever shown (Papernot and Steinke 2022).

    Attributes
    ----------
    event : Event
        One run: training *and* its noisy score, for the most expensive setting.
    mean : float >= 1
        Expected number of runs.
    law : {"poisson", "geometric", "logarithmic"}
        Law of the number of runs.
    """

    event: "Event"
    mean: float
    law: Law = "logarithmic"

    def __post_init__(self) -> None:
        _is_event(self.event)
        _checks.positive(mean=self.mean)
        _checks.one_of(LAWS, law=self.law)
        if self.mean < 1:
            raise ValueError(f"Expected a mean of 1 or more, got mean={self.mean!r}.")
        if self.law != "poisson" and self.mean <= 1:
            raise ValueError(
                f"Expected a mean above 1 for the {self.law} law, got mean={self.mean!r}."
            )
        _store(self, mean=float(self.mean))

    @property
    def relation(self) -> Relation:
        """The relation of one run."""
        return self.event.relation


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
        _is_event(self.event)
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
    """Write an event as what JSON can hold.

    Examples
    --------
    >>> event_to_json(Pure(0.5))
    {'kind': 'Pure', 'epsilon': 0.5, 'relation': 'add-remove'}
    """
    written: dict[str, Any] = {"kind": type(event).__name__}
    for each in fields(event):
        value = getattr(event, each.name)
        if isinstance(value, tuple):
            value = [event_to_json(v) if type(v).__name__ in KINDS else v for v in value]
        elif type(value).__name__ in KINDS:
            value = event_to_json(value)
        written[each.name] = value
    return written


def event_from_json(written: Mapping[str, Any]) -> Event:
    """Read an event back; whatever is not exactly one is refused."""
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


def _events(events: object) -> "tuple[Event, ...]":
    """Check a composition: not empty, all events, one relation."""
    if not isinstance(events, tuple | list) or not events:
        raise ValueError(f"Expected one event or more, got {events!r}.")
    for event in events:
        _is_event(event)
    relations = {event.relation for event in events}
    if len(relations) > 1:
        raise ValueError(
            "Expected events of one neighboring relation, got "
            f"{' and '.join(sorted(relations))}. Costs of different relations do not add: "
            "state every event under one, or convert an add-remove event with AsReplaceOne "
            "(which at least doubles its epsilon)."
        )
    return tuple(events)


def _is_event(event: object) -> None:
    """Refuse what is no event of ours."""
    if type(event).__name__ not in KINDS or type(event) is not KINDS[type(event).__name__]:
        raise ValueError(f"Expected an event of veracal.accounting, got {event!r}.")


def _nonnegative(**values: float) -> None:
    """Raise unless every value is a finite number that is not negative."""
    for name, value in values.items():
        if value != 0 or isinstance(value, bool):
            _checks.positive(**{name: value})
            if not _LEAST <= (value if isinstance(value, int) else float(value)) <= _MOST:
                raise ValueError(
                    f"Expected {name} between {_LEAST:g} and {_MOST:g}, got {name}={value!r}."
                )


def _integer(**values: float) -> int:
    """Raise unless the value is whole, and return it."""
    ((name, value),) = values.items()
    _checks.whole(least=0, **{name: value})  # type: ignore[arg-type]
    return int(value)


def _store(event: object, **values: object) -> None:
    """Set fields of a record that is frozen afterwards."""
    for name, value in values.items():
        object.__setattr__(event, name, value)
