r"""Planning of private temperatures from public facts: budget shares and expected errors.

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
(:data:`veracal.calibration.private.two_temperatures.MIN_RECORDS_TIMES_EPSILON`, from trials).

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
from dataclasses import asdict, dataclass
from typing import Any

from veracal import _checks
from veracal.accounting import MICRO, Budget, Relation, Unit, format_up
from veracal.calibration.maps.parametric import TwoTemperatures
from veracal.calibration.private import temperature, two_temperatures
from veracal.calibration.private.pooled import FEW, SHARES
from veracal.calibration.private.root_posterior import TemperatureGrid
from veracal.calibration.private.session import PrivateFitter, micro_epsilon_of
from veracal.calibration.private.temperature import PrivateTemperature
from veracal.calibration.private.two_temperatures import (
    MIN_RECORDS_TIMES_EPSILON,
    PrivateTwoTemperatures,
)
from veracal.calibration.queries.scalars import ConfidenceWeightedGaps, Gap

MANY_RECORDS = 20_000  # number of records for which a small share is enough
MAX_SHARE_LARGE, MAX_SHARE = 0.02, 0.1  # shares of the budget
MIN_SHARE = (
    0.02  # smaller shares do not help training, because losses compose nearly as squares
)
STEEPNESS = 1.3  # of the confidence for Gaussian logits, within a factor of two
_SHARES = temperature.SHARES, two_temperatures.SHARES
_LAST, _LAST_OF_TWO = (
    shares[-1] / sum(shares) for shares in _SHARES
)  # shares of the last answer


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

    def to_json(self) -> dict[str, Any]:
        """All attributes as JSON values."""
        return {**asdict(self), "sufficient": self.sufficient}

    def text(self) -> str:
        """The advice in words."""
        met = "" if self.sufficient else f" This exceeds the requested {self.error:.3g}."
        what = ("one temperature", "two temperatures")[self.temperatures - 1]
        noise = f"adds {self.ece_error:.2g} at most to the calibration error, on average"
        if self.temperature_error is None:
            noise = f"adds about {self.ece_error:.2g} to the calibration error, on average"
        else:
            noise += (
                f", and changes the temperature by about {100 * self.temperature_error:.2g} %"
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
    most: float | None = None,
) -> TemperaturePlan:
    r"""Advise on the share of a budget for private temperatures, and on their number.

    The share is the smallest that keeps the requested error,
    :math:`\Delta / (w \, \varepsilon \, n) \le` ``error``, but at least two percent. The
    privacy loss of a small epsilon composes with that of training nearly as squares: two
    percent of an epsilon of 3 cost 0.1 % more noise in training (800 steps at a sampling rate
    of 0.05), ten percent 2.3 % and twenty percent 8.5 %.

    Parameters
    ----------
    n : int
        Declared number of records that the temperature is fitted to.
    classes : int
    budget : Budget
        Total budget of training and temperatures on the same records.
    error : float
        Allowed increase of the expected calibration error by noise.
    accuracy : float
        Expected accuracy of the classifier, for the error of the temperature.
    most : float, optional
        Largest share. By default 0.02 for 20,000 records or more, and 0.1 for fewer.

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
    largest = (MAX_SHARE_LARGE if n >= MANY_RECORDS else MAX_SHARE) if most is None else most
    if not 0 < largest <= 1:
        raise ValueError(f"Expected most between 0 and 1, got most={most!r}.")
    noise = _search_noise(classes, budget) / n
    share = min(max(noise / (error * budget.epsilon), MIN_SHARE), largest)
    two = supports_two_temperatures(n, share * budget.epsilon, budget.relation, budget.unit)
    if two:
        noise = _two_temperature_noise(budget) / n
        share = min(max(noise / (error * budget.epsilon), MIN_SHARE), largest)
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
    return (
        n * epsilon >= MIN_RECORDS_TIMES_EPSILON * _two_gap_sensitivity(relation) * unit.at_most
    )


def default_fitter(n: int, epsilon: float, relation: Relation, unit: Unit) -> PrivateFitter:
    """The default fitter for public facts."""
    two = supports_two_temperatures(n, epsilon, relation, unit)
    return PrivateTwoTemperatures() if two else PrivateTemperature()


def confidence_slope(accuracy: float, classes: int) -> float:
    r"""Slope of the mean confidence in the log temperature, at the root.

    Between chance 1/k and certainty it is taken for a logistic curve, through the accuracy
    :math:`a = 1/k + (1 - 1/k) a'`: its slope is there :math:`s (1 - 1/k) a' (1 - a')`.
    """
    range_ = 1 - 1 / classes
    height = (accuracy - 1 / classes) / range_
    return STEEPNESS * range_ * height * (1 - height)


def _search_noise(classes: int, budget: Budget) -> float:
    """Expected noise of the last answer, in records, at epsilon 1."""
    return _gap_sensitivity(classes, budget.relation) * budget.unit.at_most / _LAST


def _two_temperature_noise(budget: Budget) -> float:
    """Expected noise of the last answer of two temperatures, in records, at epsilon 1."""
    return 2 * _two_gap_sensitivity(budget.relation) * budget.unit.at_most / _LAST_OF_TWO


def _two_gap_sensitivity(relation: Relation) -> float:
    """Sensitivity of both gaps together."""
    gaps = ConfidenceWeightedGaps(TwoTemperatures(1.0, 1.0))
    return gaps.sensitivity(relation) * gaps.grid.step


def _gap_sensitivity(classes: int, relation: Relation) -> float:
    """Sensitivity of a gap."""
    gap = Gap(classes=classes)
    return gap.sensitivity(relation) * gap.grid.step


MAX_FIRST_NOISE = 0.12  # noise per record above which the first gap is not informative
NARROW_RANGE = 1.5  # ratio of the ends of a narrow range


@dataclass(frozen=True)
class PooledPlan:
    """Advice on a pooled temperature.

    Attributes
    ----------
    sources : int
    records : int or None
        Declared total number of records.
    epsilon : float
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

    def to_json(self) -> dict[str, Any]:
        """All attributes as JSON values."""
        return {**asdict(self), "shares": list(self.shares), "rounds": self.rounds}

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
    grid, total = (
        TemperatureGrid.between(temperatures),
        micro_epsilon_of(epsilon, micro_epsilon) / MICRO,
    )
    if records is not None:
        _checks.whole(records=records)
    gap = Gap(classes=classes)
    sensitivity = gap.sensitivity(relation) * gap.grid.step * (unit or Unit()).at_most
    full_noise = (
        math.sqrt(2 * sources) * sensitivity / total
    )  # noise of a gap with all of epsilon
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
