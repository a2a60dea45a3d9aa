r"""What share of a budget private temperatures need, before a record is read.

A search for the temperature ends where the sum of confidences equals the number of right
predictions, up to the noise of its last answer, Laplace noise of scale
:math:`b = \Delta / (w \varepsilon)`, where w is that answer's share of the search's epsilon.
Mean confidence and accuracy of n records are then apart by

.. math:: g = \mathrm{E}|L| / n = \frac{\Delta}{w \, \varepsilon \, n}

on average, whatever the model and the number of classes. A temperature moves all confidences to
the same side, so it moves no bin's by more than all together: noise adds at most g to the
expected calibration error, but for records that change their bin. How far the temperature
itself is off depends on how fast confidence follows it, for which a curve is assumed.

Two temperatures repair more and ask for more: their last answer has two numbers, each with
noise, and a smaller share. They are worth it from some number of records times epsilon on
(:data:`veracal.calibration.private.two_temperatures.ENOUGH`, found in trials).

How many rounds a pooled temperature takes, and what to expect, before anybody is asked.

Of m sources each adds Laplace noise, so a gap that gets a share w of epsilon is off by a
standard deviation of :math:`\sqrt{2m} \, \Delta / (w \varepsilon)`, or for each of n records

.. math:: \nu(w) = \frac{\sqrt{2m} \, \Delta}{w \, \varepsilon \, n} .

The first of two gaps says where to ask the second. If its noise is above about 0.12 a record,
it says too little, and one gap with all of the budget does better: so it was in trials on
corruptions, or severities of them, and random orders that are in no table (``python -m
benchmarks.shift choose``; pictures and network are in one). A range of temperatures so narrow
that the prior spans it needs no second gap either.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from veracal import _checks
from veracal.accounting import MICRO, Budget, Relation, Unit, rounded_up
from veracal.calibration.maps.parametric import TwoTemperatures
from veracal.calibration.private import temperature, two_temperatures
from veracal.calibration.private.pooled import FEW, SHARES
from veracal.calibration.private.session import PrivateFitter, price
from veracal.calibration.private.temperature import PrivateTemperature
from veracal.calibration.private.temperature_grid import TemperatureGrid
from veracal.calibration.private.two_temperatures import ENOUGH, PrivateTwoTemperatures
from veracal.calibration.queries.scalars import ConfidenceWeightedGaps, Gap

LARGE = 20_000  # records from which on a sliver of the budget is enough
MOST_LARGE, MOST = 0.02, 0.1  # shares of the budget
LEAST = 0.02  # training does not feel less: losses add up nearly as squares
STEEPNESS = 1.3  # of the confidence of logits with Gaussian entries, within a factor of two
_SHARES = temperature.SHARES, two_temperatures.SHARES
_LAST, _LAST_OF_TWO = (shares[-1] / sum(shares) for shares in _SHARES)  # for the last answer


@dataclass(frozen=True)
class RecalibrationPlan:
    """Advice on private temperatures, and what to expect of them.

    Attributes
    ----------
    n, classes : int
        As declared.
    budget : Budget
    temperatures : 1 or 2
        One for all predictions, or one for the unsure and one for the sure.
    share : float
        Of the budget's epsilon, for them.
    epsilon : float
        The same as an epsilon, in whole millionths.
    error : float
        The error that was asked for.
    ece_error : float
        Most that noise adds to the expected calibration error, on average over the noise. It
        is also how far it puts mean confidence and accuracy apart. For two temperatures it is
        that of the unsure and of the sure together, which the real error is near, within a
        factor of two.
    temperature_error : float or None
        Expected relative error of one temperature, by the curve: within a factor of two. None
        for two, of which each may be further off than their effect shows.
    sampling_error : float
        How far the accuracy of n records is from that of the population, on average: no
        budget makes up for it.
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
    def enough(self) -> bool:
        """Whether the error that was asked for is met."""
        return self.ece_error <= self.error

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {**asdict(self), "enough": self.enough}

    def text(self) -> str:
        """The advice as a paragraph."""
        met = "" if self.enough else f" That is more than the {self.error:.3g} asked for."
        what = ("one temperature", "two temperatures")[self.temperatures - 1]
        noise = f"adds {self.ece_error:.2g} at most to the calibration error, on average"
        if self.temperature_error is None:
            noise = f"adds about {self.ece_error:.2g} to the calibration error, on average"
        else:
            noise += f", and puts it off by about {100 * self.temperature_error:.2g} %"
        return (
            f"Spend {100 * self.share:.2g} % of epsilon, {rounded_up(self.epsilon, 3)}, on "
            f"{what}. Noise then {noise}.{met} Which {self.n:,} records there are makes "
            f"{self.sampling_error:.2g} by itself."
        )


def plan_recalibration(
    n: int,
    classes: int,
    budget: Budget,
    *,
    error: float = 0.005,
    accuracy: float = 0.9,
    most: float | None = None,
) -> RecalibrationPlan:
    r"""Say what share of a budget to spend on how many temperatures, and what to expect.

    The share is the least that keeps the error asked for,
    :math:`\Delta / (w \, \varepsilon \, n) \le` ``error``, but two percent at least. Losses
    of a small epsilon beside those of training add up nearly as squares: two percent of an
    epsilon of 3 take 0.1 % more noise in training (800 steps at a rate of 0.05), ten percent
    2.3 % and twenty percent 8.5 %.

    Parameters
    ----------
    n : int
        Declared number of records that the temperature is fitted to.
    classes : int
    budget : Budget
        Total of training and temperature on the same records.
    error : float
        What noise may add to the expected calibration error.
    accuracy : float
        What the classifier may be expected to reach, for the error of the temperature.
    most : float, optional
        Largest share. By default 0.02 for 20,000 records or more, and 0.1 for fewer.

    Examples
    --------
    >>> plan = plan_recalibration(60_000, 10, Budget(3.0, 1e-5))
    >>> round(plan.share, 4), plan.enough
    (0.02, True)
    """
    _checks.whole(n=n)
    _checks.whole(classes=classes, least=2)
    _checks.positive(error=error)
    if not 1 / classes < accuracy < 1:
        raise ValueError(
            f"Expected an accuracy between chance, 1/{classes}, and 1, got {accuracy!r}."
        )
    largest = (MOST_LARGE if n >= LARGE else MOST) if most is None else most
    if not 0 < largest <= 1:
        raise ValueError(f"Expected most between 0 and 1, got most={most!r}.")
    reach = _reach(classes, budget) / n
    share = min(max(reach / (error * budget.epsilon), LEAST), largest)
    two = is_enough_for_two(n, share * budget.epsilon, budget.relation, budget.unit)
    if two:
        reach = _reach_of_two(budget) / n
        share = min(max(reach / (error * budget.epsilon), LEAST), largest)
    least, top = (part * budget.epsilon * MICRO for part in (share, largest))
    micro = max(min(math.ceil(least), math.floor(top)), 1)
    ece_error = min(reach * MICRO / micro, 1.0)
    return RecalibrationPlan(
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


def is_enough_for_two(n: int, epsilon: float, relation: Relation, unit: Unit) -> bool:
    """Whether two temperatures can be expected to do better than one."""
    return n * epsilon >= ENOUGH * _both(relation) * unit.at_most


def fitter_for(n: int, epsilon: float, relation: Relation, unit: Unit) -> PrivateFitter:
    """The fitter that does best, by what is declared."""
    two = is_enough_for_two(n, epsilon, relation, unit)
    return PrivateTwoTemperatures() if two else PrivateTemperature()


def confidence_slope(accuracy: float, classes: int) -> float:
    r"""How fast mean confidence follows the logarithm of the temperature, where it is right.

    Between chance 1/k and certainty it is taken for a logistic curve, through the accuracy
    :math:`a = 1/k + (1 - 1/k) a'`: its slope is there :math:`s (1 - 1/k) a' (1 - a')`.
    """
    room = 1 - 1 / classes
    height = (accuracy - 1 / classes) / room
    return STEEPNESS * room * height * (1 - height)


def _reach(classes: int, budget: Budget) -> float:
    """Expected noise of the last answer, in records, for an epsilon of one."""
    return _row(classes, budget.relation) * budget.unit.at_most / _LAST


def _reach_of_two(budget: Budget) -> float:
    """The same for two temperatures, whose last answer has two numbers."""
    return 2 * _both(budget.relation) * budget.unit.at_most / _LAST_OF_TWO


def _both(relation: Relation) -> float:
    """Most that one record moves both gaps together."""
    gaps = ConfidenceWeightedGaps(TwoTemperatures(1.0, 1.0))
    return gaps.sensitivity(relation) * gaps.grid.step


def _row(classes: int, relation: Relation) -> float:
    """Most that one record moves a gap."""
    gap = Gap(classes=classes)
    return gap.sensitivity(relation) * gap.grid.step


BLIND = 0.12  # noise of the first gap for each record, above which it says too little
NARROW = 1.5  # a range whose ends are no further apart than this factor


@dataclass(frozen=True)
class PooledPlan:
    """Advice on a pooled temperature.

    Attributes
    ----------
    sources : int
    records : int or None
        Declared number of records at all sources together.
    epsilon : float
    shares : tuple of int
        Of epsilon for the counts and each gap.
    gap_error : float or None
        How far noise puts mean confidence and accuracy apart, on average; it adds at most that
        to the calibration error. None where no number of records is declared.
    temperature_error : float or None
        Expected relative error of the temperature, within a factor of two.
    sampling_error : float or None
        The same as ``gap_error`` by which records there are: no budget makes up for it.
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
        """How often the sources are asked."""
        return len(self.shares)

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {**asdict(self), "shares": list(self.shares), "rounds": self.rounds}

    def text(self) -> str:
        """The advice as a paragraph."""
        split = " : ".join(map(str, self.shares))
        asked = (
            f"Ask {self.sources} sources {self.rounds} times, and split epsilon "
            f"{rounded_up(self.epsilon, 6)} by {split}: for counts, then for gaps."
        )
        if self.gap_error is None or self.temperature_error is None:
            return f"{asked} Declare how many records there are to learn what to expect."
        return (
            f"{asked} Noise then puts confidence and accuracy {self.gap_error:.2g} apart, on "
            f"average, and the temperature off by about {100 * self.temperature_error:.2g} %; "
            f"which {self.records:,} records there are makes {self.sampling_error:.2g}."
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
    """Choose the shape of a pooled temperature by what is public, and say what to expect.

    Parameters
    ----------
    sources : int
    epsilon, micro_epsilon : float or int
        What one unit pays for the map; one of the two.
    temperatures : pair of float
        Public range.
    classes, records : int, optional
        Declared numbers of classes, and of records at all sources together. The true number of
        records is private and plays no part.
    accuracy : float
        What the classifier may be expected to reach, for the errors.
    relation, unit
        Whom the sources protect.

    Examples
    --------
    >>> plan_pooled(50, epsilon=1.0, records=1_500).shares
    (10, 30, 60)
    >>> plan_pooled(50, epsilon=0.1, records=1_000).shares
    (10, 90)
    """
    _checks.whole(sources=sources)
    grid, total = TemperatureGrid.between(temperatures), price(epsilon, micro_epsilon) / MICRO
    if records is not None:
        _checks.whole(records=records)
    gap = Gap(classes=classes)
    row = gap.sensitivity(relation) * gap.grid.step * (unit or Unit()).at_most
    whole = math.sqrt(2 * sources) * row / total  # noise of a gap that gets all of epsilon
    first = None if records is None else whole / (SHARES[1] / sum(SHARES)) / records
    blind = first is not None and first > BLIND
    shares = FEW if blind or grid.high / grid.low <= NARROW else SHARES
    if records is None:
        return PooledPlan(sources, None, total, shares, None, None, None)
    std = whole / (shares[-1] / sum(shares)) / records
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
