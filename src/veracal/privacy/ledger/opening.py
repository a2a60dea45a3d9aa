"""What is fixed when a ledger is opened: the budget, the rule, the parts."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from veracal import _checks
from veracal.errors import LedgerError
from veracal.privacy import events
from veracal.privacy.budget import Budget, Unit
from veracal.privacy.costs.pure import pure_epsilon
from veracal.privacy.events import Event
from veracal.privacy.ledger.chain import canonical
from veracal.privacy.ledger.kinds import Pairs, Renyi, Rule, Sums, best_order
from veracal.privacy.ledger.plan import Item, Planned, plan
from veracal.privacy.ledger.units import Cost, free

_MOST_PARTS = 64
_LONGEST = 200  # characters of a name
_LARGEST_SPLIT = 2**16  # characters of the settings of a split
SEPARATOR = "/"  # in names of accounts, so not in names of parts


@dataclass(frozen=True)
class Opening:
    """The first record of a ledger; every later one is chained to it.

    Attributes
    ----------
    budget : Budget
    rule : Sums, Pairs, Renyi or Planned
        How costs add up.
    parts : tuple of str
        Disjoint parts of the records. Each may spend the whole budget: a unit is in one of
        them only, so what the ledger promises everybody is the most that any part spends.
    nonce : str
        Random; tells this ledger from every other.
    data : str or None
        Public name of the data set whose ledger it is.
    split : mapping or None
        Public settings of how records are assigned to the parts, as what JSON can hold.
    """

    budget: Budget
    rule: Rule
    parts: tuple[str, ...]
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    data: str | None = None
    split: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for part in self.parts:
            name(part=part)
            if SEPARATOR in part:
                raise ValueError(f"part must not contain {SEPARATOR!r}; got part={part!r}.")
        if self.data is not None:
            name(data=self.data)
        if self.split is not None:
            object.__setattr__(self, "split", _public_settings(self.split))
        if not 1 <= len(set(self.parts)) == len(self.parts) <= _MOST_PARTS:
            raise ValueError(
                f"Expected 1 to {_MOST_PARTS} different parts, got parts={self.parts!r}."
            )

    @property
    def text(self) -> str:
        """The canonical record."""
        return canonical(self.to_json())

    def accounts(self) -> dict[str, Cost]:
        """Every account and its total."""
        if isinstance(self.rule, Planned):
            return {str(i): Cost(item.times) for i, item in enumerate(self.rule.items)}
        return dict.fromkeys(self.parts, self.rule.total(self.budget))

    def account(self, event: Event, purpose: str, part: str | None) -> str | None:
        """Account that a charge debits; None for every one of them."""
        if isinstance(self.rule, Planned):
            return self.rule.item(purpose, event, part)
        return part

    def cost(self, event: Event, delta: float | None) -> Cost:
        """What an event takes from its account."""
        if pure_epsilon(event, self.budget.unit) == 0:
            raise free()
        if isinstance(self.rule, Planned):
            return Cost(1)
        return self.rule.cost(event, self.budget, delta)

    def figure(self, cost: Cost) -> str:
        """A cost, for people."""
        if isinstance(self.rule, Planned):
            return "planned"
        return self.rule.figure(cost)

    def check(self, event: Event, part: str | None) -> None:
        """Refuse an event under another relation, and a part that there is not."""
        if event.relation != self.budget.relation:
            raise ValueError(
                f"Expected an event under {self.budget.relation}, got one under "
                f"{event.relation}. Costs under different relations do not add: state the "
                "event under the ledger's, or convert it with AsReplaceOne."
            )
        self.check_part(part)

    def check_part(self, part: str | None) -> None:
        """Refuse a part that there is not."""
        if part is not None and part not in self.parts:
            raise ValueError(
                f"Expected part to be None or one of {self.parts!r}, got part={part!r}."
            )

    def to_json(self) -> dict[str, Any]:
        """Write the record as what JSON can hold."""
        budget = self.budget
        return {
            "budget": {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "relation": budget.relation,
                "unit": {"name": budget.unit.name, "at_most": budget.unit.at_most},
            },
            "rule": self.rule.to_json(),
            "parts": list(self.parts),
            "nonce": self.nonce,
            "data": self.data,
            "split": None if self.split is None else dict(self.split),
        }

    @classmethod
    def from_text(cls, text: str) -> "Opening":
        """Read the record back; whatever is not exactly one is refused."""
        try:
            values = json.loads(text)
            budget = values["budget"]
            opening = cls(
                budget=Budget(**{**budget, "unit": Unit(**budget["unit"])}),
                rule=_rule_from_json(values["rule"]),
                parts=tuple(values["parts"]),
                nonce=values["nonce"],
                data=values["data"],
                split=values["split"],
            )
        except (KeyError, TypeError, ValueError) as cause:
            raise LedgerError(f"The opening record cannot be read: {text[:80]!r}.") from cause
        if opening.text != text:
            raise LedgerError("The opening record is not in canonical form.")
        return opening


def rule_for(
    budget: Budget,
    *,
    kind: str,
    composition: str | None,
    order: float | None,
    items: Sequence[Item] | None,
    parts: Sequence[str],
) -> Rule:
    """Rule of a new ledger, or an error if its settings do not go together."""
    _checks.one_of(("pure", "open", "plan"), kind=kind)
    for setting, belongs in (
        ("composition", kind == "open"),
        ("order", kind == "open" and composition != "addition"),
        ("plan", kind == "plan"),
    ):
        value = {"composition": composition, "order": order, "plan": items}[setting]
        if value is not None and not belongs:
            raise ValueError(
                f"Expected no {setting} for this kind of ledger, got kind={kind!r}."
            )
    if kind == "pure":
        return Sums()
    if kind == "plan":
        return plan(items or (), budget, parts)
    _checks.one_of(("rdp", "addition"), composition=composition or "rdp")
    if composition == "addition":
        return Pairs()
    return Renyi(best_order(budget) if order is None else order)


def readable(event: Event) -> None:
    """Raise unless an event can be written down and read back as it is."""
    if type(event) not in events.KINDS.values():
        raise ValueError(f"Expected an event of veracal.privacy, got {event!r}.")
    if events.from_json(json.loads(canonical(events.to_json(event)))) != event:
        raise ValueError(f"Expected an event that can be written down, got {event!r}.")


def checked_item(item: object) -> Item:
    """Refuse what is no item of a plan or of a run."""
    if not isinstance(item, Item):
        raise ValueError(f"Expected a plan of Item, got {item!r}.")
    readable(item.event)
    name(purpose=item.purpose)
    return item


def name(**values: str) -> None:
    """Raise unless every value is a short line of text."""
    for what, value in values.items():
        good = isinstance(value, str) and value.strip() and value.isprintable()
        if not good or len(value) > _LONGEST:
            raise ValueError(
                f"Expected {what} to be 1 to {_LONGEST} printable characters, "
                f"got {what}={value!r}."
            )


def _public_settings(settings: object) -> dict[str, Any]:
    """Settings as they are read back: a JSON object of moderate size."""
    if not isinstance(settings, Mapping):
        raise ValueError(f"split must be a mapping or None; got {settings!r}.")
    try:
        text = canonical(settings)
    except (TypeError, ValueError) as cause:
        raise ValueError(f"split must be what JSON can hold; got {settings!r}.") from cause
    if len(text) > _LARGEST_SPLIT:
        raise ValueError(f"split must take at most {_LARGEST_SPLIT:,} characters as JSON.")
    return dict(json.loads(text))


def _rule_from_json(written: Mapping[str, Any]) -> Rule:
    """Read a rule back."""
    match dict(written):
        case {"kind": "pure"}:
            return Sums()
        case {"kind": "open", "composition": "addition"}:
            return Pairs()
        case {"kind": "open", "composition": "rdp", "order": order}:
            return Renyi(order)
        case {"kind": "plan", "items": items, "epsilons": epsilons}:
            return Planned(tuple(map(Item.from_json, items)), epsilons)
    raise ValueError(f"Expected the rule of a ledger, got {written!r}.")
