r"""Costs in whole units, plans, and the rules by which a ledger composes costs.

Costs are rounded up, budgets down. The sound rule depends on how the next cost is chosen. If all
costs are known before the first release, they may be composed by privacy-loss distributions,
which is tight (:class:`Planned`). If the next cost may depend on earlier answers, the rule must
be a *filter*, sound for adaptively chosen costs: sums of epsilon (:class:`EpsilonSums`,
:class:`EpsilonDeltaSums`), or of Rényi divergences at one order fixed beforehand
(:class:`Renyi`; Feldman and Zrnic 2021, https://arxiv.org/abs/2008.11193). Composing the
privacy-loss distributions of adaptively chosen events, and stopping at the budget, is not a
filter: the composed list then depends on the records, and the bound fails
(https://arxiv.org/abs/2602.06756, https://arxiv.org/abs/2602.15815).
"""

import math
import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

from scipy import optimize

from veracal import _checks
from veracal.accounting import (
    MAX_ORDER,
    MICRO,
    Approximate,
    Budget,
    Composed,
    Event,
    Repeated,
    epsilon_for,
    event_from_json,
    event_to_json,
    format_up,
    micro_epsilon,
    pure_epsilon,
    rdp_at,
    to_micro,
)
from veracal.data import open_file, parse_json
from veracal.errors import BudgetError, DataError

NANO, ATTO = 10**9, 10**18
RELATIVE_MARGIN = 1e-12  # exceeds the rounding error of the accountant's floats
_MAX_UNITS = 2**62  # that a ledger can store


# ---------------------------------------------------------------- costs


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


def decimal_fraction(number: float) -> Fraction:
    """The exact value of a number's decimal representation: 0.7 is seven tenths."""
    return Fraction(repr(float(number)))


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


def _check_storable(units: int) -> int:
    """Raise if a total exceeds the range of a ledger's integers."""
    if units > _MAX_UNITS:
        raise ValueError("Expected a budget within the range of a ledger, got a larger one.")
    return units


def _format_units(units: int, scale: int) -> str:
    """Format whole units as an exact decimal number."""
    whole, rest = divmod(units, scale)
    digits = f"{rest:0{len(str(scale)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


# ---------------------------------------------------------------- items and plans


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
        return {
            "purpose": self.purpose,
            "times": self.times,
            "partition": self.partition,
            "event": event_to_json(self.event),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Item":
        """Parse a JSON object."""
        event, times = event_from_json(values["event"]), values.get("times", 1)
        return cls(values["purpose"], event, times, values.get("partition"))


def merge_items(items: Iterable[Item]) -> tuple[Item, ...]:
    """Merge equal items by adding their times, in the order of first occurrence."""
    times: dict[tuple[str, Event, str | None], int] = {}
    for item in items:
        key = (item.purpose, item.event, item.partition)
        times[key] = times.get(key, 0) + item.times
    return tuple(Item(p, e, count, partition) for (p, e, partition), count in times.items())


def unpaid_items(items: Iterable[Item], paid: Iterable[tuple[str, Event]]) -> list[Item]:
    """The items, or remaining repetitions of items, that are not among the charges ``paid``."""
    counts, left = Counter(paid), list[Item]()
    for item in items:
        before = min(counts[item.purpose, item.event], item.times)
        counts[item.purpose, item.event] -= before
        if item.times > before:
            left.append(replace(item, times=item.times - before))
    return left


def find_item(
    items: Iterable[Item], purpose: str, event: Event, partition: str | None
) -> int | None:
    """Position of an item."""
    for position, item in enumerate(items):
        if (item.purpose, item.event, item.partition) == (purpose, event, partition):
            return position
    return None


def compose_items(items: Iterable[Item], partition: str) -> Event | None:
    """The composition of the items of one partition; None if there are none."""
    chosen = [item for item in items if item.partition in (partition, None)]
    return Composed(tuple(Repeated(i.event, i.times) for i in chosen)) if chosen else None


def planned_epsilon(items: Sequence[Item], budget: Budget, partition: str) -> float:
    """Epsilon of a plan for one partition, at the budget's delta."""
    event = compose_items(items, partition)
    if event is None:
        return 0.0
    exact = pure_epsilon(event, budget.unit)
    if exact is not None:
        micro = math.ceil(exact * MICRO)
        if micro <= decimal_fraction(budget.epsilon) * MICRO:
            return micro / MICRO
    return epsilon_for(event, budget.delta, budget.unit)


@dataclass(frozen=True)
class Planned:
    """A list of events that is fixed and charged as a whole before the first release.

    Attributes
    ----------
    items : tuple of Item
    epsilons : mapping from partition to float
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
    description: ClassVar[str] = (
        "plan: every cost was fixed, and all were charged by PLD, before the first release"
    )

    def item(self, purpose: str, event: Event, partition: str | None) -> str:
        """Account of the planned item that a charge uses."""
        position = find_item(self.items, purpose, event, partition)
        if position is not None:
            return str(position)
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


_MAX_PLAN_BYTES = 2**20


def read_plan(path: Path) -> tuple[Item, ...]:
    """Read a plan file: a list ``items``, each with a purpose, an event and a number of times.

    An item in TOML, where ``times`` and ``partition`` are optional::

        [[items]]
        purpose = "count"
        event = {kind = "Gaussian", noise = 20.0}
        times = 10

    Raises
    ------
    DataError
        If the file is not such a list.
    """

    def not_a_plan(problem: str) -> DataError:
        return DataError(
            str(path),
            "a plan in TOML or JSON: a list of items",
            problem,
            "Give each item a purpose, an event and a number of times.",
        )

    with open_file(path) as file:
        content = file.read(_MAX_PLAN_BYTES + 1)
    if len(content) > _MAX_PLAN_BYTES:
        raise not_a_plan(f"more than {_MAX_PLAN_BYTES:,} bytes")
    try:
        text = content.decode()
        is_json = path.suffix == ".json"
        plan: Any = parse_json(text, str(path)) if is_json else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise not_a_plan(str(cause)) from cause
    listed = plan.get("items") if isinstance(plan, Mapping) else None
    if not isinstance(listed, list) or not listed or set(plan) != {"items"}:
        raise not_a_plan("another structure")
    items = []
    for number, values in enumerate(listed, start=1):
        where = f"{path}, item {number}"
        keys = {"purpose", "event", "times", "partition"}
        if not isinstance(values, dict) or not {"purpose", "event"} <= set(values) <= keys:
            raise DataError(
                where,
                "purpose and event, times and partition",
                repr(values)[:80],
                "Correct it.",
            )
        try:
            items.append(Item.from_json(values))
        except DataError as cause:
            raise DataError(
                f"{where}, event", cause.expected, cause.found, "Correct the event."
            ) from cause
        except (TypeError, ValueError) as cause:
            raise DataError(
                where, "an item of a plan", str(cause), "Correct the item."
            ) from cause
    return tuple(items)


# ---------------------------------------------------------------- filters


class _Filter(ABC):
    """Base class of rules for costs that may depend on earlier answers; by default sums."""

    kind: ClassVar[Literal["pure", "open"]] = "open"

    @abstractmethod
    def total(self, budget: Budget) -> Cost:
        """Total of one partition for a budget, rounded down."""

    @abstractmethod
    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of an event for one unit, rounded up."""

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of the whole list of a run, composed as one event."""
        return self.cost(event, budget, None)

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta of the amount spent."""
        return spent.amount / MICRO, spent.delta / ATTO

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta left to spend."""
        return self.privacy(self.total(budget) - spent, budget)


@dataclass(frozen=True)
class EpsilonSums(_Filter):
    """Addition of pure epsilons, as integers.

    Guarantees
    ----------
    If costs, chosen in any way that may depend on earlier answers, sum to at most the total,
    then all answers together are epsilon-differentially private (Dwork et al. 2006; as a
    filter, Rogers et al. 2016).
    """

    kind = "pure"
    measure: ClassVar[str] = "epsilon"
    description: ClassVar[str] = (
        "pure: epsilons are added up in whole millionths, each rounded up"
    )

    def total(self, budget: Budget) -> Cost:
        """Total of one partition: the decimal value of the budget, in micro-epsilon."""
        if not budget.pure:
            raise ValueError(
                f"Expected delta=0 for a pure ledger, got delta={budget.delta!r}. A budget "
                "with delta > 0 needs an open ledger or a plan."
            )
        return Cost(_check_storable(to_micro(budget.epsilon)))

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of an event for one unit, rounded up."""
        _check_no_delta(delta)
        return check_not_free(Cost(micro_epsilon(event, budget.unit)))

    def figure(self, cost: Cost) -> str:
        """Format a cost for messages."""
        return _format_units(cost.amount, MICRO)

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "pure"}


@dataclass(frozen=True)
class EpsilonDeltaSums(_Filter):
    """Addition of epsilons and deltas.

    Guarantees
    ----------
    If (epsilon_i, delta_i), chosen in any way, sum to at most (epsilon, delta), then all
    answers together are (epsilon, delta)-differentially private (Rogers et al. 2016).
    """

    measure: ClassVar[str] = "(epsilon, delta)"
    description: ClassVar[str] = "open: epsilons and deltas are added up, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """Total of one partition: the decimal value of the budget."""
        delta = math.floor(decimal_fraction(budget.delta) * ATTO)
        return Cost(_check_storable(to_micro(budget.epsilon)), delta)

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of a pure or (epsilon, delta) event, or of any event at a given delta."""
        if delta is not None:
            _checks.fraction(delta=delta)
            epsilon = epsilon_for(event, float(delta), budget.unit)
            amount, failure = cost_to_units(epsilon, MICRO), decimal_fraction(delta)
        elif isinstance(event, Approximate) and budget.unit.max_contributions == 1:
            # A stated guarantee, such as the whole budget of another ledger.
            amount = math.ceil(decimal_fraction(event.epsilon) * MICRO)
            failure = decimal_fraction(event.delta)
        elif pure_epsilon(event, budget.unit) is not None:
            amount, failure = micro_epsilon(event, budget.unit), Fraction(0)
        else:
            raise ValueError(
                "Expected a delta for an event that is not pure, got delta=None. Deltas are "
                "added, too: give a fraction of the ledger's delta."
            )
        return check_not_free(Cost(amount, math.ceil(failure * ATTO)))

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of the whole list of a run, composed as one event.

        Without a delta a pure list costs its exact epsilon. With a delta any list costs the
        accountant's epsilon at that delta, so a list whose noise was computed for an epsilon
        and that delta costs at most the decimal value of that epsilon.
        """
        exact = pure_epsilon(event, budget.unit)
        if delta is None and exact is not None:
            return check_not_free(Cost(math.ceil(exact * MICRO)))
        if delta is None or delta <= 0:
            raise ValueError(
                f"Expected a delta for a run whose list is not pure, got delta={delta!r}. "
                "Deltas are added over runs: give a fraction of the ledger's delta."
            )
        # In whole units, rounded down, so that a run at the ledger's full delta fits.
        units = math.floor(decimal_fraction(delta) * ATTO)
        charged = units / ATTO
        if Fraction(charged) > Fraction(units, ATTO):
            charged = math.nextafter(charged, 0.0)
        epsilon = epsilon_for(event, charged, budget.unit)
        if not math.isfinite(epsilon):
            raise BudgetError(
                "The run has no finite cost at its delta; nothing was charged and no record "
                "was read. Add noise, or allow a larger delta."
            )
        return check_not_free(Cost(math.ceil(decimal_fraction(epsilon) * MICRO), units))

    def figure(self, cost: Cost) -> str:
        """Format a cost for messages."""
        return f"({_format_units(cost.amount, MICRO)}, {format_up(cost.delta / ATTO)})"

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "open", "composition": "addition"}


@dataclass(frozen=True)
class Renyi(_Filter):
    r"""Addition of Rényi divergences at one order.

    A total divergence R at order a gives, for every delta,

    .. math:: \varepsilon = R + \log\frac{a - 1}{a} - \frac{\log\delta + \log a}{a - 1}

    (Canonne, Kamath and Steinke 2020, Proposition 12). The total of an account is the R for
    which epsilon and delta are those of the budget.

    Guarantees
    ----------
    The order is fixed before the first charge, and the divergences, chosen in any way, sum to
    at most R. Then all answers together are within the budget (Feldman and Zrnic 2021).
    """

    order: float

    def __post_init__(self) -> None:
        _checks.positive(order=self.order)
        if not 1 < self.order <= MAX_ORDER:
            raise ValueError(
                f"Expected an order above 1, at most {MAX_ORDER}, got order={self.order!r}."
            )
        object.__setattr__(self, "order", float(self.order))

    @property
    def measure(self) -> str:
        """The quantity that is added."""
        return f"Rényi divergence of order {self.order:g}"

    @property
    def description(self) -> str:
        """Description of the composition for statements."""
        return f"open: Rényi divergences of order {self.order:g} are added up, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """Total of one partition, in nano-units of divergence."""
        left = budget.epsilon - conversion_cost(self.order, budget.delta)
        units = math.floor(Fraction(left * (1 - RELATIVE_MARGIN)) * NANO) if left > 0 else 0
        if units < 1:
            raise ValueError(
                "Expected a budget large enough for Rényi divergences of order "
                f"{self.order:g}, got epsilon={budget.epsilon!r} with delta={budget.delta!r}. "
                'Allow a larger delta, or use composition="addition".'
            )
        return Cost(_check_storable(units))

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Divergence of an event for one unit, rounded up."""
        _check_no_delta(delta)
        return check_not_free(Cost(cost_to_units(rdp_at(event, self.order, budget.unit), NANO)))

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta of the amount spent."""
        if spent.amount == 0:
            return 0.0, 0.0
        epsilon = spent.amount / NANO + conversion_cost(self.order, budget.delta)
        return max(epsilon, 0.0), budget.delta

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon left to spend, at the same delta."""
        return max(0.0, budget.epsilon - self.privacy(spent, budget)[0]), budget.delta

    def figure(self, cost: Cost) -> str:
        """Format a cost for messages."""
        return _format_units(cost.amount, NANO)

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "open", "composition": "rdp", "order": self.order}


Rule = EpsilonSums | EpsilonDeltaSums | Renyi | Planned


def conversion_cost(order: float, delta: float) -> float:
    """Epsilon minus Rényi divergence in the conversion at one order."""
    if delta <= 0:
        return math.inf
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def best_order(budget: Budget) -> float:
    r"""Order at which a budget admits the most Gaussian events.

    The divergence of a Gaussian event is proportional to the order, so this maximizes
    :math:`(\varepsilon - \mathrm{conversion}(a, \delta)) / a`.

    Examples
    --------
    >>> best_order(Budget(1.0, 1e-5))
    17.81
    """
    if budget.pure:
        raise ValueError(
            "Expected a budget with delta > 0 for a ledger of Rényi divergences, got delta=0."
        )

    def loss(log: float) -> float:
        order = 1 + math.exp(log)
        return (conversion_cost(order, budget.delta) - budget.epsilon) / order

    minimum = optimize.minimize_scalar(
        loss, bounds=(-7, math.log(MAX_ORDER - 2)), method="bounded"
    )
    return max(1.001, float(f"{1 + math.exp(minimum.x):.4g}"))


def _check_no_delta(delta: float | None) -> None:
    """Raise if a delta is given to a rule whose costs have none."""
    if delta is not None:
        raise ValueError(
            f"Expected no delta, got delta={delta!r}: only an open ledger with "
            'composition="addition" charges events at a delta.'
        )


def rule_for(
    budget: Budget,
    *,
    kind: str,
    composition: str | None,
    order: float | None,
    items: Sequence[Item] | None,
    partitions: Sequence[str],
) -> Rule:
    """The rule of a new ledger; raise if its settings are inconsistent, or a plan too costly."""
    _checks.one_of(("pure", "open", "plan"), kind=kind)
    for setting, value, allowed in (
        ("composition", composition, kind == "open"),
        ("order", order, kind == "open" and composition != "addition"),
        ("plan", items, kind == "plan"),
    ):
        if value is not None and not allowed:
            raise ValueError(
                f"Expected no {setting} for this kind of ledger, got kind={kind!r}."
            )
    if kind == "pure":
        return EpsilonSums()
    if kind == "open":
        _checks.one_of(("rdp", "addition"), composition=composition or "rdp")
        if composition == "addition":
            return EpsilonDeltaSums()
        return Renyi(best_order(budget) if order is None else order)
    if not items:
        raise ValueError("Expected a plan with at least one item, got none.")
    if any(pure_epsilon(item.event, budget.unit) == 0 for item in items):
        raise free_event_error()
    items = merge_items(items)
    epsilons = {name: planned_epsilon(items, budget, name) for name in partitions}
    for name, epsilon in epsilons.items():
        if not epsilon <= budget.epsilon:
            raise BudgetError(
                f"The plan costs epsilon={format_up(epsilon, 6)} for partition {name!r} at "
                f"delta={format_up(budget.delta, 9)}, more than the budget's "
                f"{format_up(budget.epsilon, 9)}; nothing was opened. Plan fewer items, or "
                "more noise."
            )
    return Planned(items, epsilons)


def rule_from_json(settings: Mapping[str, Any]) -> Rule:
    """Parse a rule."""
    match dict(settings):
        case {"kind": "pure"}:
            return EpsilonSums()
        case {"kind": "open", "composition": "addition"}:
            return EpsilonDeltaSums()
        case {"kind": "open", "composition": "rdp", "order": order}:
            return Renyi(order)
        case {"kind": "plan", "items": items, "epsilons": epsilons}:
            return Planned(tuple(map(Item.from_json, items)), epsilons)
    raise ValueError(f"Expected the rule of a ledger, got {settings!r}.")
