"""Costs and budgets in whole numbers: costs rounded up, budgets rounded down."""

import math
from dataclasses import dataclass
from fractions import Fraction

from veracal import _checks
from veracal.errors import BudgetError

NANO, ATTO = 10**9, 10**18
SLACK = 1e-12  # relative; more than the last digits of a float in an accountant
_LARGEST = 2**62  # of what a ledger can store


@dataclass(frozen=True)
class Cost:
    """What a charge takes from an account, or what an account holds.

    Attributes
    ----------
    amount : int
        Micro-epsilon, nano-units of Rényi divergence, or uses, as the rule has it.
    delta : int
        Failure probability in units of 1e-18; 0 where the rule has none.
    """

    amount: int
    delta: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.amount + other.amount, self.delta + other.delta)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.amount - other.amount, self.delta - other.delta)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.amount * times, self.delta * times)

    def within(self, other: "Cost") -> bool:
        """Whether this fits into another."""
        return self.amount <= other.amount and self.delta <= other.delta


def share(total: int, queries: int) -> int:
    """Micro-epsilon that each of several equal queries may cost, rounded down.

    Choose the cost first and derive the noise from it. Derived the other way round the cost
    is rounded up, and the last query that the budget affords is refused. ``Pure(micro / 1e6)``
    costs exactly so many.

    Examples
    --------
    >>> share(1_000_000, 6)
    166666
    """
    _checks.whole(total=total, queries=queries)
    return int(total) // int(queries)


def as_written(number: float) -> Fraction:
    """A budget as its owner writes it: 0.7 means seven tenths, not the nearest binary."""
    return Fraction(repr(float(number)))


def whole_budget(number: float, scale: int, name: str) -> int:
    """A budget in whole units."""
    units = math.floor(as_written(number) * scale)
    if units < 1:
        raise ValueError(f"Expected {name} of at least {1 / scale:g}, got {name}={number!r}.")
    return storable(units)


def whole_cost(value: float, scale: int) -> int:
    """A cost in whole units, rounded up."""
    if math.isnan(value) or value < 0:
        raise ValueError(f"Expected a cost of 0 or more, got {value!r}.")
    if math.isinf(value):
        raise BudgetError(
            "The event has no finite cost; nothing was charged and no record was read. Add "
            "noise, or name a larger delta."
        )
    return math.ceil(Fraction(value) * Fraction(1 + SLACK) * scale)


def not_free(cost: Cost) -> Cost:
    """Refuse what costs nothing: an event that reads records costs something."""
    if cost.amount < 1 and cost.delta < 1:
        raise free()
    return cost


def free() -> ValueError:
    """Error for an event that costs nothing."""
    return ValueError(
        "Expected an event that costs something, got one that costs nothing. What reads no "
        "record needs no charge; what reads one is not free."
    )


def storable(units: int) -> int:
    """Refuse a total that no ledger can hold."""
    if units > _LARGEST:
        raise ValueError("Expected a budget that fits a ledger, got one beyond its range.")
    return units


def decimal(units: int, scale: int) -> str:
    """Write whole units as a number, exactly."""
    whole, rest = divmod(units, scale)
    digits = f"{rest:0{len(str(scale)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
