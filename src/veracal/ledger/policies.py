r"""How the costs of a ledger add up, in whole numbers, all rounded up.

Which rule is sound depends on who chooses the next cost. If all costs are known before the
first release, they may be composed by privacy-loss distributions, which is tight
(:mod:`veracal.ledger.plan`). If the next cost may depend on earlier answers, the rule
must be a *filter*, sound for costs chosen adaptively: sums of epsilon (:class:`Sums`,
:class:`Pairs`), or of Rényi divergence at one order fixed beforehand (:class:`Renyi`; Feldman
and Zrnic 2021, https://arxiv.org/abs/2008.11193). Composing the privacy-loss distributions of
adaptively chosen events, and stopping at the budget, is no filter: which list gets composed
then depends on the records, and the bound fails (https://arxiv.org/abs/2602.06756,
https://arxiv.org/abs/2602.15815).

A ledger has *accounts*, each with a total that is never exceeded. For a filter an account is
a part of the records; for a plan, or a run (:mod:`veracal.ledger.runs`), it is an item,
counted in uses. Within a run, whose list is fixed before its first release, costs compose as in
a plan; the runs of one ledger compose by its filter.

What is fixed when a ledger is opened: the budget, the rule, the parts.

Caps of a ledger: the filter of its opening, and one more for each extension.

The caps on epsilon and delta are fixed when a ledger is opened. An extension adds a *filter*:
the same rule (for Rényi divergences the same order, which is not chosen again) with caps of its
own. Each charge fits wholly into one filter, the first with room for it, and the totals add.
"""

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from sqlite3 import Connection
from typing import Any, ClassVar, Literal, get_args

from scipy import optimize

from veracal import _checks
from veracal.accounting import (
    MICRO,
    MAX_ORDER,
    Approximate,
    Budget,
    Event,
    Unit,
    epsilon_for,
    event_from_json,
    event_to_json,
    micro_epsilon,
    pure_epsilon,
    rdp_at,
    rounded_up,
)
from veracal.errors import BudgetError, LedgerError
from veracal.ledger import storage as tables
from veracal.ledger.chain import canonical
from veracal.ledger.plan import (
    ATTO,
    NANO,
    SLACK,
    Cost,
    Item,
    Planned,
    as_written,
    decimal,
    free,
    not_free,
    plan,
    storable,
    whole_budget,
    whole_cost,
)


@dataclass(frozen=True)
class EpsilonSums:
    """Pure epsilons, added up as integers.

    Guarantees
    ----------
    If costs chosen in any way, earlier answers included, sum to at most the total, then all
    answers together are epsilon-differentially private (Dwork et al. 2006; a filter by Rogers
    et al. 2016).
    """

    kind: ClassVar[Literal["pure", "open"]] = "pure"
    measure: ClassVar[str] = "epsilon"

    @property
    def words(self) -> str:
        """How costs add up, for people."""
        return "pure: epsilons are added up in whole millionths, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """What one part may spend: the budget as it is written, in micro-epsilon."""
        if not budget.pure:
            raise ValueError(
                f"Expected delta=0 for a pure ledger, got delta={budget.delta!r}. A budget "
                "with a delta needs an open ledger or a plan."
            )
        return Cost(whole_budget(budget.epsilon, MICRO, "epsilon"))

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of an event for one unit, rounded up."""
        _no_delta(delta)
        return not_free(Cost(micro_epsilon(event, budget.unit)))

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of the whole list of a run, composed as one event."""
        return self.cost(event, budget, None)

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that what was spent amounts to."""
        return spent.amount / MICRO, 0.0

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that may still be spent."""
        return self.privacy(self.total(budget) - spent, budget)

    def figure(self, cost: Cost) -> str:
        """A cost, for people."""
        return decimal(cost.amount, MICRO)

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "pure"}


@dataclass(frozen=True)
class EpsilonDeltaSums:
    """Epsilons and deltas, each added up.

    Guarantees
    ----------
    If (epsilon_i, delta_i) chosen in any way sum to at most (epsilon, delta), then all answers
    together are (epsilon, delta)-differentially private (Rogers et al. 2016).
    """

    kind: ClassVar[Literal["pure", "open"]] = "open"
    measure: ClassVar[str] = "(epsilon, delta)"

    @property
    def words(self) -> str:
        """How costs add up, for people."""
        return "open: epsilons and deltas are added up, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """What one part may spend: the budget as it is written."""
        delta = math.floor(as_written(budget.delta) * ATTO)
        return Cost(whole_budget(budget.epsilon, MICRO, "epsilon"), delta)

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of a pure or promised event, or of any at the delta that the caller names."""
        if isinstance(event, Approximate) and budget.unit.at_most == 1 and delta is None:
            # A promise as somebody wrote it, such as another ledger's whole budget.
            amount = math.ceil(as_written(event.epsilon) * MICRO)
            return not_free(Cost(amount, math.ceil(as_written(event.delta) * ATTO)))
        if delta is None:
            if pure_epsilon(event, budget.unit) is None:
                raise ValueError(
                    "Expected the delta at which to charge an event that is not pure, got "
                    "delta=None. Deltas add up too: name a part of the ledger's."
                )
            return not_free(Cost(micro_epsilon(event, budget.unit)))
        _checks.fraction(delta=delta)
        epsilon = epsilon_for(event, float(delta), budget.unit)
        return not_free(Cost(whole_cost(epsilon, MICRO), math.ceil(as_written(delta) * ATTO)))

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of the whole list of a run, composed as one event.

        Without a delta a pure list costs its exact epsilon. At a delta any list costs its
        epsilon there by PLD, as the accountant states it, so that a list whose noise was made
        for epsilon at that delta costs no more than epsilon as it is written.
        """
        exact = pure_epsilon(event, budget.unit)
        if delta is None and exact is not None:
            return not_free(Cost(math.ceil(exact * MICRO)))
        if delta is None or delta <= 0:
            raise ValueError(
                "A run whose list is not pure needs the delta at which it is charged; got "
                f"delta={delta!r}. Deltas add up over runs: name a part of the ledger's."
            )
        # In whole units, rounded down, so that a run at the ledger's own delta fits into it.
        units = math.floor(as_written(delta) * ATTO)
        charged = units / ATTO
        if Fraction(charged) > Fraction(units, ATTO):
            charged = math.nextafter(charged, 0.0)
        epsilon = epsilon_for(event, charged, budget.unit)
        if not math.isfinite(epsilon):
            raise BudgetError(
                "The run has no finite cost at its delta; nothing was charged and no record "
                "was read. Add noise, or name a larger delta."
            )
        amount = math.ceil(as_written(epsilon) * MICRO)
        return not_free(Cost(amount, units))

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that what was spent amounts to."""
        return spent.amount / MICRO, spent.delta / ATTO

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that may still be spent."""
        return self.privacy(self.total(budget) - spent, budget)

    def figure(self, cost: Cost) -> str:
        """A cost, for people."""
        return f"({decimal(cost.amount, MICRO)}, {rounded_up(cost.delta / ATTO)})"

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "open", "composition": "addition"}


@dataclass(frozen=True)
class Renyi:
    r"""Rényi divergences at one order, added up.

    A total R of divergence at order a gives, for every delta,

    .. math:: \varepsilon = R + \log\frac{a - 1}{a} - \frac{\log\delta + \log a}{a - 1}

    (Canonne, Kamath and Steinke 2020, Proposition 12), so the total is what the budget leaves
    for R.

    Guarantees
    ----------
    The order is fixed before the first charge, and the divergences, chosen in any way, sum to
    at most R; all answers together then keep the budget (Feldman and Zrnic 2021).
    """

    order: float
    kind: ClassVar[Literal["pure", "open"]] = "open"

    def __post_init__(self) -> None:
        _checks.positive(order=self.order)
        if not 1 < self.order <= MAX_ORDER:
            raise ValueError(
                f"Expected an order above 1, at most {MAX_ORDER}, got order={self.order!r}."
            )
        object.__setattr__(self, "order", float(self.order))

    @property
    def words(self) -> str:
        """How costs add up, for people."""
        return f"open: Rényi divergences of order {self.order:g} are added up, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """What one part may spend, in nano-units of divergence."""
        left = budget.epsilon - conversion(self.order, budget.delta)
        units = math.floor(Fraction(left * (1 - SLACK)) * NANO) if left > 0 else 0
        if units < 1:
            raise ValueError(
                f"Expected a budget that Rényi divergence of order {self.order:g} can serve, "
                f"got epsilon={budget.epsilon!r} with delta={budget.delta!r}. Allow a larger "
                'delta, or add up by composition="addition".'
            )
        return Cost(storable(units))

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Divergence of an event for one unit, rounded up."""
        _no_delta(delta)
        return not_free(Cost(whole_cost(rdp_at(event, self.order, budget.unit), NANO)))

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Divergence of the whole list of a run, composed as one event."""
        return self.cost(event, budget, None)

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that what was spent amounts to."""
        if spent.amount == 0:
            return 0.0, 0.0
        epsilon = spent.amount / NANO + conversion(self.order, budget.delta)
        return max(epsilon, 0.0), budget.delta

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon that may still be spent, at the same delta."""
        return max(0.0, budget.epsilon - self.privacy(spent, budget)[0]), budget.delta

    @property
    def measure(self) -> str:
        """What is added up."""
        return f"Rényi divergence of order {self.order:g}"

    def figure(self, cost: Cost) -> str:
        """A cost, for people."""
        return decimal(cost.amount, NANO)

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "open", "composition": "rdp", "order": self.order}


Rule = EpsilonSums | EpsilonDeltaSums | Renyi | Planned


def conversion(order: float, delta: float) -> float:
    """What turning Rényi divergence into epsilon adds, at one order."""
    if delta <= 0:
        return math.inf
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def best_order(budget: Budget) -> float:
    r"""Order at which a budget affords the most Gaussian noise events.

    The divergence of a Gaussian event grows in proportion to the order, so this maximizes
    :math:`(\varepsilon - \mathrm{conversion}(a, \delta)) / a`.

    Examples
    --------
    >>> best_order(Budget(1.0, 1e-5))
    17.81
    """
    if budget.pure:
        raise ValueError(
            "Expected a budget with a delta for a ledger of Rényi divergences, got delta=0."
        )

    def waste(log: float) -> float:
        order = 1 + math.exp(log)
        return (conversion(order, budget.delta) - budget.epsilon) / order

    found = optimize.minimize_scalar(
        waste, bounds=(-7, math.log(MAX_ORDER - 2)), method="bounded"
    )
    return max(1.001, float(f"{1 + math.exp(found.x):.4g}"))


def _no_delta(delta: float | None) -> None:
    """Refuse a delta where costs have none."""
    if delta is not None:
        raise ValueError(
            f"Expected no delta, got delta={delta!r}: only an open ledger that adds up pairs "
            "charges an event at a delta."
        )


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
        return EpsilonSums()
    if kind == "plan":
        return plan(items or (), budget, parts)
    _checks.one_of(("rdp", "addition"), composition=composition or "rdp")
    if composition == "addition":
        return EpsilonDeltaSums()
    return Renyi(best_order(budget) if order is None else order)


def readable(event: Event) -> None:
    """Raise unless an event can be written down and read back as it is."""
    if type(event) not in get_args(Event):
        raise ValueError(f"Expected an event of veracal.accounting, got {event!r}.")
    if event_from_json(json.loads(canonical(event_to_json(event)))) != event:
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
            return EpsilonSums()
        case {"kind": "open", "composition": "addition"}:
            return EpsilonDeltaSums()
        case {"kind": "open", "composition": "rdp", "order": order}:
            return Renyi(order)
        case {"kind": "plan", "items": items, "epsilons": epsilons}:
            return Planned(tuple(map(Item.from_json, items)), epsilons)
    raise ValueError(f"Expected the rule of a ledger, got {written!r}.")


RAISED_AFTER_RELEASES = "cap raised after releases"
RAISED_BEFORE_RELEASES = "cap raised before any release"


@dataclass(frozen=True)
class Extension:
    """A raise of the caps.

    Attributes
    ----------
    filter : int
        Number of the filter that it added; the opening's is 1.
    epsilon, delta : float
        By how much the caps were raised.
    index : int
        Of its entry.
    after_releases : bool
        Whether anything may have been released before: then the raise may depend on it, and
        the sum of the caps is no promise that was made beforehand.
    """

    filter: int
    epsilon: float
    delta: float
    index: int
    after_releases: bool


@dataclass(frozen=True)
class Caps:
    """What a ledger may spend, by the filters that it has.

    Guarantees
    ----------
    The totals of all filters sum to at most what the rule grants for the sum of the caps. For
    pairs and pure epsilons these are the sums themselves. Rényi divergences at one order add,
    so filter k gets what the order leaves for the caps up to k, less what it left for those
    up to k - 1: all charges together keep the sum of the epsilons at the sum of the deltas.
    """

    opening: Opening
    extensions: tuple[Extension, ...] = ()

    @classmethod
    def read(cls, connection: Connection) -> "Caps":
        """Read the caps of a ledger as they are now."""
        caps = cls(Opening.from_text(tables.opening(connection)[0]))
        for entry in tables.adding(connection):
            if entry.extension is not None:
                released = tables.released_before(connection, entry.index)
                caps = caps.extended(*entry.extension, entry.index, after_releases=released)
        return caps

    def extended(
        self, epsilon: float, delta: float, index: int, *, after_releases: bool
    ) -> "Caps":
        """The caps with one filter more, if the rule can serve it."""
        if isinstance(self.opening.rule, Planned):
            raise ValueError(
                "A ledger of kind 'plan' cannot be extended: its list is fixed and was charged "
                "as a whole. Open a ledger of kind 'pure' or 'open'."
            )
        _checks.positive(epsilon=epsilon)
        _checks.fraction(delta=delta)
        number = len(self.extensions) + 2
        new = Extension(number, float(epsilon), float(delta), index, after_releases)
        caps = Caps(self.opening, (*self.extensions, new))
        if caps.total(number).amount < 1:
            raise ValueError(f"epsilon is too small for a filter; got epsilon={epsilon!r}.")
        return caps

    @property
    def filters(self) -> range:
        """Numbers of the filters; none for a plan, which was spent when it was opened."""
        last = 0 if isinstance(self.opening.rule, Planned) else len(self.extensions) + 1
        return range(1, last + 1)

    @property
    def budget(self) -> Budget:
        """The sum of all caps."""
        return self._up_to(len(self.extensions) + 1)

    def _up_to(self, number: int) -> Budget:
        """The sum of the caps of the first filters."""
        first, more = self.opening.budget, self.extensions[: number - 1]
        if not more:
            return first
        epsilon = sum((as_written(one.epsilon) for one in more), as_written(first.epsilon))
        delta = sum((as_written(one.delta) for one in more), as_written(first.delta))
        return Budget(float(epsilon), float(delta), first.relation, first.unit)

    def total(self, number: int) -> Cost:
        """What each part may spend from a filter."""
        rule = self.opening.rule
        assert not isinstance(rule, Planned)
        whole = rule.total(self._up_to(number))
        return whole if number == 1 else whole - rule.total(self._up_to(number - 1))

    def accounts(self, number: int) -> dict[str, Cost]:
        """Accounts of a filter, one for each part, and their totals."""
        total = self.total(number)
        return {account_of(part, number): total for part in self.opening.parts}

    @property
    def note(self) -> str | None:
        """What every statement about an extended ledger has to say; None for others."""
        if not self.extensions:
            return None
        after = any(one.after_releases for one in self.extensions)
        return RAISED_AFTER_RELEASES if after else RAISED_BEFORE_RELEASES


def account_of(part: str, number: int) -> str:
    """Name of the account that a part has in a filter."""
    return part if number == 1 else f"{number}{SEPARATOR}{part}"
