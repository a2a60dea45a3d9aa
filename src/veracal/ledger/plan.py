"""Costs and budgets in whole numbers: costs rounded up, budgets rounded down.

Plans: lists of events that are fixed, and charged as a whole, before the first release.

Plans in files, as TOML or JSON.
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
    pure_epsilon,
    rounded_up,
)
from veracal.data import opened, parse_json
from veracal.errors import BudgetError, DataError

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


@dataclass(frozen=True)
class Item:
    """One line of a plan: an event for a purpose, so many times.

    Attributes
    ----------
    purpose : str
    event : Event
    times : int
    part : str or None
        None if it reads all parts.
    """

    purpose: str
    event: Event
    times: int = 1
    part: str | None = None

    def __post_init__(self) -> None:
        _checks.whole(times=self.times)
        object.__setattr__(self, "times", int(self.times))

    def to_json(self) -> dict[str, Any]:
        """Write the item as what JSON can hold."""
        written = {"purpose": self.purpose, "times": self.times, "part": self.part}
        return {**written, "event": event_to_json(self.event)}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> "Item":
        """Read an item back."""
        return cls(**{**written, "event": event_from_json(written["event"])})


def unpaid_of(items: Iterable[Item], paid: Iterable[tuple[str, Event]]) -> list[Item]:
    """What is left of items, of which some were charged before.

    Parameters
    ----------
    items : iterable of Item
    paid : iterable of (purpose, Event)
        Every charge.
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
    """A list of events that is fixed, and charged as a whole, before the first release.

    Attributes
    ----------
    items : tuple of Item
    epsilons : mapping from part to float
        What the plan costs for each part at the budget's delta, unused items included.

    Guarantees
    ----------
    Every later charge is one of the list, so the list's composition bounds the cost, whatever
    the questions are and in whatever order they come. For each event there is a pair of laws
    that dominates it, so its answer is a function of a draw from that pair (Blackwell 1953).
    All draws could have been made beforehand, independently; what the caller sees, order and
    early end included, is then a function of them, and costs no more than they do. Questions
    may adapt to earlier answers; costs may not.
    """

    items: tuple[Item, ...]
    epsilons: Mapping[str, float]
    kind: ClassVar[Literal["plan"]] = "plan"

    @property
    def words(self) -> str:
        """How costs add up, for people."""
        return (
            "plan: every cost was fixed, and all were charged by PLD, before the first release"
        )

    def item(self, purpose: str, event: Event, part: str | None) -> str:
        """Account of the planned item that a charge uses."""
        for index, item in enumerate(self.items):
            if (item.purpose, item.event, item.part) == (purpose, event, part):
                return str(index)
        where = "" if part is None else f" on part {part!r}"
        raise BudgetError(
            f"{purpose!r}{where} is not planned with this event; no record was read. A plan "
            "fixes every cost beforehand: ask for what it lists, exactly as it lists it, or "
            "open another ledger on other records."
        )

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        items = [item.to_json() for item in self.items]
        return {"kind": "plan", "items": items, "epsilons": dict(self.epsilons)}


def plan(items: Sequence[Item], budget: Budget, parts: Sequence[str]) -> Planned:
    """Charge a whole plan, or refuse it.

    Raises
    ------
    BudgetError
        If the plan costs more than the budget for some part.
    """
    if not items:
        raise ValueError("Expected a plan of one item or more, got none.")
    if any(pure_epsilon(item.event, budget.unit) == 0 for item in items):
        raise free()
    listed = merged(items)
    epsilons = {part: planned_epsilon(listed, budget, part) for part in parts}
    for part, epsilon in epsilons.items():
        if not epsilon <= budget.epsilon:
            raise BudgetError(
                f"The plan costs epsilon={rounded_up(epsilon, 6)} for part {part!r} at "
                f"delta={rounded_up(budget.delta, 9)}, more than the budget's "
                f"{rounded_up(budget.epsilon, 9)}; nothing was opened. Plan less, or with more "
                "noise."
            )
    return Planned(listed, epsilons)


def merged(items: Iterable[Item]) -> tuple[Item, ...]:
    """Equal items as one, with the sum of their times, in the order of their first."""
    times: dict[tuple[str, Event, str | None], int] = {}
    for item in items:
        key = (item.purpose, item.event, item.part)
        times[key] = times.get(key, 0) + item.times
    return tuple(Item(p, e, count, part) for (p, e, part), count in times.items())


def planned_epsilon(items: Sequence[Item], budget: Budget, part: str) -> float:
    """Epsilon that a plan costs for one part, at the budget's delta."""
    used = [Repeated(item.event, item.times) for item in items if item.part in (part, None)]
    if not used:
        return 0.0
    event = Composed(tuple(used))
    exact = pure_epsilon(event, budget.unit)
    if exact is not None and math.ceil(exact * MICRO) <= as_written(budget.epsilon) * MICRO:
        return math.ceil(exact * MICRO) / MICRO
    return epsilon_for(event, budget.delta, budget.unit)


_KEYS = {"purpose", "event", "times", "part"}
_MOST_BYTES = 2**20


def read_plan(path: Path) -> tuple[Item, ...]:
    """Read a plan: a list ``items``, each with a purpose, an event and how many times.

    In TOML an item looks like this, with ``times`` and ``part`` optional::

        [[items]]
        purpose = "count"
        event = {kind = "Gaussian", noise = 20.0}
        times = 10

    Raises
    ------
    DataError
        If the file is not such a list.
    """
    with opened(path) as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise _wrong(path, f"more than {_MOST_BYTES:,} bytes")
    written = _parsed(path, text)
    items = written.get("items") if isinstance(written, Mapping) else None
    if not isinstance(items, list) or not items or set(written) != {"items"}:
        raise _wrong(path, "another structure")
    return tuple(_item(path, number, item) for number, item in enumerate(items, start=1))


def _parsed(path: Path, content: bytes) -> Any:
    """Parse by the suffix."""
    try:
        text = content.decode()
        return parse_json(text, str(path)) if path.suffix == ".json" else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise _wrong(path, str(cause)) from cause


def _item(path: Path, number: int, written: object) -> Item:
    """Read one item."""
    where = f"{path}, item {number}"
    if not isinstance(written, dict) or not {"purpose", "event"} <= set(written) <= _KEYS:
        raise DataError(
            where, "purpose and event, times and part", repr(written)[:80], "Correct it."
        )
    try:
        return Item.from_json(written)
    except DataError as cause:
        raise DataError(
            f"{where}, event", cause.expected, cause.found, "Correct the event."
        ) from cause
    except (TypeError, ValueError) as cause:
        raise DataError(where, "an item of a plan", str(cause), "Correct the item.") from cause


def _wrong(path: Path, found: str) -> DataError:
    """Error for a file that is no plan."""
    return DataError(
        str(path),
        "a plan in TOML or JSON: a list of items",
        found,
        "Give each item a purpose, an event and how many times.",
    )
