"""Plans: lists of events that are fixed, and charged as a whole, before the first release."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from veracal import _checks
from veracal.errors import BudgetError
from veracal.privacy import events
from veracal.privacy.budget import Budget
from veracal.privacy.costs.accounting import epsilon_for
from veracal.privacy.costs.pure import MICRO, pure_epsilon
from veracal.privacy.costs.statement import rounded_up
from veracal.privacy.events import Composed, Event, Repeated
from veracal.privacy.ledger.units import as_written, free


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
        return {**written, "event": events.to_json(self.event)}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> "Item":
        """Read an item back."""
        return cls(**{**written, "event": events.from_json(written["event"])})


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
