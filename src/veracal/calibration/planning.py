r"""Planning from public facts: budget shares, expected errors of temperatures, and noise.

A root search ends where the sum of confidences equals the number of correct predictions, up to
the noise of its last answer: Laplace noise of scale :math:`b = \Delta / (w \varepsilon)`, where
w is that answer's share of the epsilon of the search. Mean confidence and accuracy of n records
then differ by

.. math:: g = \mathrm{E}|L| / n = \frac{\Delta}{w \, \varepsilon \, n}

on average, for any model and number of classes. A temperature changes all confidences in the
same direction, so noise adds at most g to the expected calibration error, except for records
that change their bin. The error of the temperature itself depends on the slope of the mean
confidence, for which a curve is assumed.

Two temperatures correct more miscalibration but need more budget: their last answer has two
noisy numbers and a smaller share. They are better above a number of records times epsilon
(:data:`veracal.calibration.private.temperature.MIN_RECORDS_TIMES_EPSILON`, from trials).

**Pooled temperatures.** Each of m sources adds Laplace noise, so a gap with a share w of
epsilon has a standard deviation of :math:`\sqrt{2m} \, \Delta / (w \varepsilon)`, or for each
of n records

.. math:: \nu(w) = \frac{\sqrt{2m} \, \Delta}{w \, \varepsilon \, n} .

The first of two gaps determines the temperature of the second. If its noise is above about
0.12 per record it is not informative, and one gap with all of the budget is more accurate,
according to trials on settings outside the published tables (``python -m benchmarks.shift
choose``). A range of temperatures as narrow as the prior needs no second gap either.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from veracal import _checks
from veracal.accounting import (
    MICRO,
    Budget,
    Composed,
    Event,
    Relation,
    Unit,
    format_up,
    noise_for,
)
from veracal.calibration.maps.parametric import TwoTemperatures
from veracal.calibration.private.pooled import FEW, SHARES
from veracal.calibration.private.root_posterior import TemperatureGrid
from veracal.calibration.private.session import micro_epsilon_of
from veracal.calibration.private.temperature import (
    MIN_RECORDS_TIMES_EPSILON,
    SEARCH_SHARES,
    TWO_SHARES,
)
from veracal.calibration.queries.scalars import ConfidenceWeightedGaps, Gap
from veracal.queries import Query, RecordsModel

MANY_RECORDS = 20_000  # number of records for which a small share is enough
MAX_SHARE_LARGE, MAX_SHARE = 0.02, 0.1  # shares of the budget
# Smaller shares do not help training, because losses compose nearly as squares.
MIN_SHARE = 0.02
STEEPNESS = 1.3  # of the confidence for Gaussian logits, within a factor of two
# Shares of the last answer.
_LAST = SEARCH_SHARES[-1] / sum(SEARCH_SHARES)
_LAST_OF_TWO = TWO_SHARES[-1] / sum(TWO_SHARES)
_TWO_GAPS = ConfidenceWeightedGaps(TwoTemperatures(1.0, 1.0))
MAX_FIRST_NOISE = 0.12  # noise per record above which the first gap is not informative
NARROW_RANGE = 1.5  # ratio of the ends of a narrow range


@dataclass(frozen=True)
class TemperaturePlan:
    """Advice on private temperatures with their expected errors.

    Attributes
    ----------
    n, classes : int
        As declared.
    budget : Budget
    temperatures : 1 or 2
        One for all predictions, or one each for low and high confidence.
    share : float
        Share of the budget's epsilon for the temperatures.
    epsilon : float
        The same as an epsilon, in whole millionths.
    error : float
        The requested error.
    ece_error : float
        Upper bound on the mean increase of the expected calibration error by noise, which is
        also the mean difference between mean confidence and accuracy. For two temperatures the
        sum over both, within a factor of two of the actual error.
    temperature_error : float or None
        Expected relative error of one temperature under the curve, within a factor of two. None
        for two temperatures, whose single errors can be larger than their effect.
    sampling_error : float
        Mean difference between the accuracy of n records and that of the population, which no
        budget reduces.
    """

    n: int
    classes: int
    budget: Budget
    temperatures: int
    share: float
    epsilon: float
    error: float
    ece_error: float
    temperature_error: float | None
    sampling_error: float

    @property
    def sufficient(self) -> bool:
        """Whether the requested error is met."""
        return self.ece_error <= self.error

    def text(self) -> str:
        """The advice in words."""
        met = "" if self.sufficient else f" This exceeds the requested {self.error:.3g}."
        what = ("one temperature", "two temperatures")[self.temperatures - 1]
        if self.temperature_error is None:
            noise = f"adds about {self.ece_error:.2g} to the calibration error, on average"
        else:
            noise = (
                f"adds {self.ece_error:.2g} at most to the calibration error, on average, and "
                f"changes the temperature by about {100 * self.temperature_error:.2g} %"
            )
        return (
            f"Spend {100 * self.share:.2g} % of epsilon, {format_up(self.epsilon, 3)}, on "
            f"{what}. Noise then {noise}.{met} The sampling error "
            f"of {self.n:,} records is {self.sampling_error:.2g}."
        )


def plan_temperatures(
    n: int,
    classes: int,
    budget: Budget,
    *,
    error: float = 0.005,
    accuracy: float = 0.9,
) -> TemperaturePlan:
    r"""Advise on the share of a budget for private temperatures, and on their number.

    The share is the smallest that keeps the requested error,
    :math:`\Delta / (w \, \varepsilon \, n) \le` ``error``, but at least two percent. For
    fewer than 20,000 records it is at most ten percent, otherwise two. The privacy loss of a
    small epsilon composes with that of training nearly as squares: two percent of an epsilon of
    3 cost 0.1 % more noise in training (800 steps at a sampling rate of 0.05), ten percent
    2.3 % and twenty percent 8.5 %.

    Parameters
    ----------
    n, classes : int
        Declared numbers of records that the temperature is fitted to, and of classes.
    budget : Budget
        Total budget of training and temperatures on the same records.
    error : float
        Allowed increase of the expected calibration error by noise.
    accuracy : float
        Expected accuracy of the classifier, for the error of the temperature.

    Examples
    --------
    >>> plan = plan_temperatures(60_000, 10, Budget(3.0, 1e-5))
    >>> round(plan.share, 4), plan.sufficient
    (0.02, True)
    """
    _checks.whole(n=n)
    _checks.whole(classes=classes, least=2)
    _checks.positive(error=error)
    if not 1 / classes < accuracy < 1:
        raise ValueError(
            f"Expected an accuracy between chance, 1/{classes}, and 1, got {accuracy!r}."
        )
    largest = MAX_SHARE_LARGE if n >= MANY_RECORDS else MAX_SHARE

    def share_for(noise: float) -> float:
        return min(max(noise / (error * budget.epsilon), MIN_SHARE), largest)

    # Expected noise of the last answer per record, at epsilon 1.
    most = budget.unit.max_contributions
    noise = _sensitivity(Gap(classes=classes), budget.relation) * most / _LAST / n
    share = share_for(noise)
    two = supports_two_temperatures(n, share * budget.epsilon, budget.relation, budget.unit)
    if two:
        noise = 2 * _sensitivity(_TWO_GAPS, budget.relation) * most / _LAST_OF_TWO / n
        share = share_for(noise)
    smallest, top = (part * budget.epsilon * MICRO for part in (share, largest))
    micro = max(min(math.ceil(smallest), math.floor(top)), 1)
    ece_error = min(noise * MICRO / micro, 1.0)
    return TemperaturePlan(
        int(n),
        int(classes),
        budget,
        1 + two,
        share,
        micro / MICRO,
        float(error),
        ece_error,
        None if two else ece_error / confidence_slope(accuracy, classes),
        math.sqrt(2 / math.pi * accuracy * (1 - accuracy) / n),
    )


def supports_two_temperatures(n: int, epsilon: float, relation: Relation, unit: Unit) -> bool:
    """Whether two temperatures are expected to be more accurate than one."""
    least = (
        MIN_RECORDS_TIMES_EPSILON * _sensitivity(_TWO_GAPS, relation) * unit.max_contributions
    )
    return n * epsilon >= least


def confidence_slope(accuracy: float, classes: int) -> float:
    r"""Slope of the mean confidence in the log temperature, at the root.

    Between chance 1/k and certainty it is taken for a logistic curve, through the accuracy
    :math:`a = 1/k + (1 - 1/k) a'`: its slope is there :math:`s (1 - 1/k) a' (1 - a')`.
    """
    range_ = 1 - 1 / classes
    height = (accuracy - 1 / classes) / range_
    return STEEPNESS * range_ * height * (1 - height)


def _sensitivity(query: Query, relation: Relation) -> float:
    """Sensitivity in the unit of the query's values."""
    return query.sensitivity(relation) * query.grid.step


@dataclass(frozen=True)
class PooledPlan:
    """Advice on a pooled temperature.

    Attributes
    ----------
    sources, records, epsilon
        As declared.
    shares : tuple of int
        Shares of epsilon for the counts and each gap.
    gap_error : float or None
        Mean difference between mean confidence and accuracy due to noise, an upper bound on the
        increase of the calibration error. None without a declared number of records.
    temperature_error : float or None
        Expected relative error of the temperature, within a factor of two.
    sampling_error : float or None
        The same due to sampling, which no budget reduces.
    """

    sources: int
    records: int | None
    epsilon: float
    shares: tuple[int, ...]
    gap_error: float | None
    temperature_error: float | None
    sampling_error: float | None

    @property
    def rounds(self) -> int:
        """Number of rounds of queries."""
        return len(self.shares)

    def text(self) -> str:
        """The advice in words."""
        split = " : ".join(map(str, self.shares))
        advice = (
            f"Query {self.sources} sources {self.rounds} times, and divide epsilon "
            f"{format_up(self.epsilon, 6)} by {split}: for counts, then for gaps."
        )
        if self.gap_error is None or self.temperature_error is None:
            return f"{advice} Declare the number of records for expected errors."
        return (
            f"{advice} Noise then changes mean confidence minus accuracy by "
            f"{self.gap_error:.2g} on average, and the temperature by about "
            f"{100 * self.temperature_error:.2g} %; the sampling error of {self.records:,} "
            f"records is {self.sampling_error:.2g}."
        )


def plan_pooled(
    sources: int,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    temperatures: tuple[float, float] = (0.5, 6.0),
    classes: int | None = None,
    records: int | None = None,
    accuracy: float = 0.7,
    relation: Relation = "add-remove",
    unit: Unit | None = None,
) -> PooledPlan:
    """Choose the queries of a pooled temperature from public facts, with expected errors.

    Parameters
    ----------
    sources : int
    epsilon, micro_epsilon : float or int
        Cost of the map for each privacy unit; one of the two.
    temperatures : pair of float
        Public range.
    classes, records : int, optional
        Declared numbers of classes and of records in total. The actual number of records is
        private and is not used.
    accuracy : float
        Expected accuracy of the classifier, for the errors.
    relation, unit
        Neighboring relation and privacy unit of the sources.

    Examples
    --------
    >>> plan_pooled(50, epsilon=1.0, records=1_500).shares
    (10, 30, 60)
    >>> plan_pooled(50, epsilon=0.1, records=1_000).shares
    (10, 90)
    """
    _checks.whole(sources=sources)
    grid = TemperatureGrid.between(temperatures)
    total = micro_epsilon_of(epsilon, micro_epsilon) / MICRO
    if records is not None:
        _checks.whole(records=records)
    sensitivity = (
        _sensitivity(Gap(classes=classes), relation) * (unit or Unit()).max_contributions
    )
    full_noise = math.sqrt(2 * sources) * sensitivity / total  # of a gap with all of epsilon
    first_noise = None if records is None else full_noise / (SHARES[1] / sum(SHARES)) / records
    uninformative = first_noise is not None and first_noise > MAX_FIRST_NOISE
    shares = FEW if uninformative or grid.high / grid.low <= NARROW_RANGE else SHARES
    if records is None:
        return PooledPlan(sources, None, total, shares, None, None, None)
    std = full_noise / (shares[-1] / sum(shares)) / records
    error = min(std * math.sqrt(2 / math.pi), 1.0)  # a sum of noises is nearly normal
    return PooledPlan(
        sources,
        int(records),
        total,
        shares,
        error,
        error / confidence_slope(accuracy, classes or 10),
        math.sqrt(2 / math.pi * accuracy * (1 - accuracy) / records),
    )


def training_event(estimator: Any, relation: Relation, unit: Unit) -> Event:
    """Cost of training, after checking that unit and relation match those of the whole."""
    # A frozen estimator states a cost, but does not fit data sets.
    fits = isinstance(estimator, RecordsModel) and not isinstance(estimator, FrozenEstimator)
    if not fits:
        raise ValueError(
            f"Expected a private classifier with an event() method, got {estimator!r}. Use "
            "CalibratedClassifier for a classifier that is not private."
        )
    protects = estimator.get_params(deep=False).get("unit", unit) or Unit()
    if protects != unit:
        raise ValueError(
            f"Expected the estimator to protect {unit}, like the whole, got "
            f"{protects}. Pass the same unit=... to both."
        )
    cost: Event | None = estimator.event()
    if cost is None or cost.relation != relation:
        raise ValueError(
            f"Expected training to be charged under {relation}, like the map, got "
            f"{'nothing' if cost is None else cost.relation}. Pass both the same relation=..."
        )
    return cost


def keep_budget(
    model: Any, budget: Budget, other: tuple[Event, ...], noise_parameter: str | None
) -> Any:
    """A copy of a model with the least noise that keeps a budget, given other events."""
    known = model.get_params()
    name = noise_parameter or next(
        (name for name in ("noise_multiplier", "epsilon") if name in known), None
    )
    if name is None:
        raise ValueError(
            f"Expected noise_parameter=..., the name of the noise parameter of {model!r}: a "
            "noise multiplier or an epsilon, such as 'privatelogisticregression__epsilon'."
        )
    if name not in known:
        raise ValueError(
            f"Expected noise_parameter to be a parameter of {model!r}, got {name!r}."
        )
    path, separator, last = name.rpartition("__")
    rival = f"{path}{separator}epsilon"
    unset = {rival: None} if last != "epsilon" and rival in known else {}

    def with_noise(noise: float) -> Any:
        setting = {name: 1 / noise if last == "epsilon" else noise}
        return clone(model).set_params(**setting, **unset)

    def event(noise: float) -> Event:
        cost = training_event(with_noise(noise), budget.relation, budget.unit)
        return Composed((cost, *other))

    family = _EventFamily(event, event(1.0), event(2.0))
    return with_noise(_smallest_noise(budget, family))


@dataclass(frozen=True)
class _EventFamily:
    """Events as a function of the noise, identified by two of their values for caching."""

    event: Callable[[float], Event] = field(compare=False)
    one: Event
    two: Event


@lru_cache(maxsize=64)  # event() is called several times in a fit
def _smallest_noise(budget: Budget, family: _EventFamily) -> float:
    return noise_for(budget, family.event)
