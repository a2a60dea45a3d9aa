"""Costs and budgets in whole units, and plans.

Costs are rounded up, budgets down. A plan is a list of events that is fixed and charged as a
whole before the first release; it can be read from a TOML or JSON file.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

from veracal import _checks
from veracal.accounting import (
    MICRO,
    Budget,
    Composed,
    Event,
    Repeated,
    epsilon_for,
    event_from_json,
    event_to_json,
    format_up,
    pure_epsilon,
)
from veracal.data import open_file, parse_json
from veracal.errors import BudgetError, DataError

NANO, ATTO = 10**9, 10**18
RELATIVE_MARGIN = 1e-12  # exceeds the rounding error of the accountant's floats
_MAX_UNITS = 2**62  # that a ledger can store


@dataclass(frozen=True)
class Cost:
    """The cost of a charge, or the total of an account, in whole units.

    Attributes
    ----------
    amount : int
        Micro-epsilon, nano-units of Rényi divergence, or uses, depending on the rule.
    delta : int
        Failure probability in units of 1e-18; 0 if the rule has none.
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
        """Whether neither component exceeds that of another cost."""
        return self.amount <= other.amount and self.delta <= other.delta


def divide_micro_epsilon(total: int, queries: int) -> int:
    """Micro-epsilon per query if several queries share a total equally, rounded down.

    Choose the cost first and derive the noise from it. If the cost is derived from the noise it
    is rounded up, and the last query exceeds the budget. ``Pure(micro / 1e6)`` costs exactly
    this amount.

    Examples
    --------
    >>> divide_micro_epsilon(1_000_000, 6)
    166666
    """
    _checks.whole(total=total, queries=queries)
    return int(total) // int(queries)


def decimal_fraction(number: float) -> Fraction:
    """The exact value of a number's decimal representation: 0.7 is seven tenths."""
    return Fraction(repr(float(number)))


def budget_to_units(number: float, scale: int, name: str) -> int:
    """Convert a budget to whole units, rounded down."""
    units = math.floor(decimal_fraction(number) * scale)
    if units < 1:
        raise ValueError(f"Expected {name} of at least {1 / scale:g}, got {name}={number!r}.")
    return check_storable(units)


def cost_to_units(value: float, scale: int) -> int:
    """Convert a cost to whole units, rounded up."""
    if math.isnan(value) or value < 0:
        raise ValueError(f"Expected a cost of at least 0, got {value!r}.")
    if math.isinf(value):
        raise BudgetError(
            "The event has no finite cost; nothing was charged and no record was read. Add "
            "noise, or allow a larger delta."
        )
    return math.ceil(Fraction(value) * Fraction(1 + RELATIVE_MARGIN) * scale)


def check_not_free(cost: Cost) -> Cost:
    """Raise if a cost is zero, since an event that reads records has a cost."""
    if cost.amount < 1 and cost.delta < 1:
        raise free_event_error()
    return cost


def free_event_error() -> ValueError:
    """Error for an event that costs nothing."""
    return ValueError(
        "Expected an event with a cost above zero. A computation that reads no record needs no "
        "charge; one that reads records is not free."
    )


def check_storable(units: int) -> int:
    """Raise if a total exceeds the range of a ledger."""
    if units > _MAX_UNITS:
        raise ValueError("Expected a budget within the range of a ledger, got a larger one.")
    return units


def format_units(units: int, scale: int) -> str:
    """Format whole units as an exact decimal number."""
    whole, rest = divmod(units, scale)
    digits = f"{rest:0{len(str(scale)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


@dataclass(frozen=True)
class Item:
    """An item of a plan: an event for a purpose, and how many times it may be charged.

    Attributes
    ----------
    purpose : str
    event : Event
    times : int
    partition : str or None
        Partition of the records; None if it reads all of them.
    """

    purpose: str
    event: Event
    times: int = 1
    partition: str | None = None

    def __post_init__(self) -> None:
        _checks.whole(times=self.times)
        object.__setattr__(self, "times", int(self.times))

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        event = event_to_json(self.event)
        return {
            "purpose": self.purpose,
            "times": self.times,
            "part": self.partition,
            "event": event,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Item":
        """Parse a JSON object."""
        event, times = event_from_json(values["event"]), values.get("times", 1)
        return cls(values["purpose"], event, times, values.get("part"))


def unpaid_items(items: Iterable[Item], paid: Iterable[tuple[str, Event]]) -> list[Item]:
    """The items, or remaining repetitions of items, that were not charged yet.

    Parameters
    ----------
    items : iterable of Item
    paid : iterable of (purpose, Event)
        All charges.
    """
    counts, left = Counter(paid), list[Item]()
    for item in items:
        before = min(counts[item.purpose, item.event], item.times)
        counts[item.purpose, item.event] -= before
        if item.times > before:
            left.append(replace(item, times=item.times - before))
    return left


@dataclass(frozen=True)
class Planned:
    """A list of events that is fixed and charged as a whole before the first release.

    Attributes
    ----------
    items : tuple of Item
    epsilons : mapping from part to float
        Cost of the plan for each partition at the budget's delta, including unused items.

    Guarantees
    ----------
    Every later charge is an item of the list, so the composition of the list bounds the cost,
    for all queries in any order. Each event has a dominating pair of distributions, so its
    answer is a function of a draw from that pair (Blackwell 1953). All draws could have been
    made beforehand, independently. Everything that the caller sees, including the order and an
    early stop, is a function of these draws, and costs no more than they do. Queries may adapt
    to earlier answers; costs may not.
    """

    items: tuple[Item, ...]
    epsilons: Mapping[str, float]
    kind: ClassVar[Literal["plan"]] = "plan"

    @property
    def description(self) -> str:
        """Description of the composition for statements."""
        return (
            "plan: every cost was fixed, and all were charged by PLD, before the first release"
        )

    def item(self, purpose: str, event: Event, partition: str | None) -> str:
        """Account of the planned item that a charge uses."""
        for index, item in enumerate(self.items):
            if (item.purpose, item.event, item.partition) == (purpose, event, partition):
                return str(index)
        where = "" if partition is None else f" on partition {partition!r}"
        raise BudgetError(
            f"{purpose!r}{where} is not planned with this event; no record was read. A plan "
            "fixes every cost beforehand: request one of its items exactly as listed, or open "
            "another ledger on other records."
        )

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        items = [item.to_json() for item in self.items]
        return {"kind": "plan", "items": items, "epsilons": dict(self.epsilons)}


def make_plan(items: Sequence[Item], budget: Budget, partitions: Sequence[str]) -> Planned:
    """Compute the costs of a plan, and raise if it exceeds the budget.

    Raises
    ------
    BudgetError
        If the plan costs more than the budget for some partition.
    """
    if not items:
        raise ValueError("Expected a plan with at least one item, got none.")
    if any(pure_epsilon(item.event, budget.unit) == 0 for item in items):
        raise free_event_error()
    items = merge_items(items)
    epsilons = {
        partition: planned_epsilon(items, budget, partition) for partition in partitions
    }
    for partition, epsilon in epsilons.items():
        if not epsilon <= budget.epsilon:
            raise BudgetError(
                f"The plan costs epsilon={format_up(epsilon, 6)} for partition {partition!r} at "
                f"delta={format_up(budget.delta, 9)}, more than the budget's "
                f"{format_up(budget.epsilon, 9)}; nothing was opened. Plan fewer items, or "
                "more noise."
            )
    return Planned(tuple(items), epsilons)


def merge_items(items: Iterable[Item]) -> tuple[Item, ...]:
    """Merge equal items by adding their times, in the order of first occurrence."""
    times: dict[tuple[str, Event, str | None], int] = {}
    for item in items:
        key = (item.purpose, item.event, item.partition)
        times[key] = times.get(key, 0) + item.times
    return tuple(Item(p, e, count, partition) for (p, e, partition), count in times.items())


def compose_items(items: Iterable[Item], partition: str) -> Event | None:
    """The composition of the items of one partition; None if there are none."""
    events = [
        Repeated(item.event, item.times)
        for item in items
        if item.partition in (partition, None)
    ]
    return Composed(tuple(events)) if events else None


def planned_epsilon(items: Sequence[Item], budget: Budget, partition: str) -> float:
    """Epsilon of a plan for one partition, at the budget's delta."""
    event = compose_items(items, partition)
    if event is None:
        return 0.0
    exact = pure_epsilon(event, budget.unit)
    if (
        exact is not None
        and math.ceil(exact * MICRO) <= decimal_fraction(budget.epsilon) * MICRO
    ):
        return math.ceil(exact * MICRO) / MICRO
    return epsilon_for(event, budget.delta, budget.unit)


_KEYS = {"purpose", "event", "times", "part"}
_MAX_BYTES = 2**20


def read_plan(path: Path) -> tuple[Item, ...]:
    """Read a plan file: a list ``items``, each with a purpose, an event and a number of times.

    An item in TOML, where ``times`` and ``part`` are optional::

        [[items]]
        purpose = "count"
        event = {kind = "Gaussian", noise = 20.0}
        times = 10

    Raises
    ------
    DataError
        If the file is not such a list.
    """
    with open_file(path) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise _plan_file_error(path, f"more than {_MAX_BYTES:,} bytes")
    plan = _parse(path, content)
    items = plan.get("items") if isinstance(plan, Mapping) else None
    if not isinstance(items, list) or not items or set(plan) != {"items"}:
        raise _plan_file_error(path, "another structure")
    return tuple(_read_item(path, number, item) for number, item in enumerate(items, start=1))


def _parse(path: Path, content: bytes) -> Any:
    """Parse JSON or TOML, depending on the suffix."""
    try:
        text = content.decode()
        return parse_json(text, str(path)) if path.suffix == ".json" else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise _plan_file_error(path, str(cause)) from cause


def _read_item(path: Path, number: int, values: object) -> Item:
    """Read one item."""
    where = f"{path}, item {number}"
    if not isinstance(values, dict) or not {"purpose", "event"} <= set(values) <= _KEYS:
        raise DataError(
            where, "purpose and event, times and part", repr(values)[:80], "Correct it."
        )
    try:
        return Item.from_json(values)
    except DataError as cause:
        raise DataError(
            f"{where}, event", cause.expected, cause.found, "Correct the event."
        ) from cause
    except (TypeError, ValueError) as cause:
        raise DataError(where, "an item of a plan", str(cause), "Correct the item.") from cause


def _plan_file_error(path: Path, problem: str) -> DataError:
    """Error for a file that is not a plan."""
    return DataError(
        str(path),
        "a plan in TOML or JSON: a list of items",
        problem,
        "Give each item a purpose, an event and a number of times.",
    )
