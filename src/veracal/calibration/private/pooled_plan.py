r"""How many rounds a pooled temperature takes, and what to expect, before anybody is asked.

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
from veracal.calibration.planning import confidence_slope
from veracal.calibration.private.asking import price
from veracal.calibration.private.golden_grid import TemperatureGrid
from veracal.calibration.private.pooled import FEW, SHARES
from veracal.calibration.queries import Gap
from veracal.privacy import Relation, Unit
from veracal.privacy.costs.pure import MICRO
from veracal.privacy.costs.statement import rounded_up

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
