r"""Composition rules of a ledger, its opening record and its caps. Costs are rounded up.

*Rules.* The sound rule depends on how the next cost is chosen. If all costs are known before
the first release, they may be composed by privacy-loss distributions, which is tight
(:mod:`veracal.ledger.plan`). If the next cost may depend on earlier answers, the rule must be a
*filter*, sound for adaptively chosen costs: sums of epsilon (:class:`EpsilonSums`,
:class:`EpsilonDeltaSums`), or of Rényi divergences at one order fixed beforehand
(:class:`Renyi`; Feldman and Zrnic 2021, https://arxiv.org/abs/2008.11193). Composing the
privacy-loss distributions of adaptively chosen events, and stopping at the budget, is not a
filter: the composed list then depends on the records, and the bound fails
(https://arxiv.org/abs/2602.06756, https://arxiv.org/abs/2602.15815).

*Accounts.* Each account of a ledger has a total that is never exceeded. For a filter, an
account is a partition of the records; for a plan or a run (:mod:`veracal.ledger.runs`), it is
an item, counted in uses. Costs within a run, whose list is fixed before its first release,
compose as in a plan; the runs of one ledger compose by its filter.

*Caps.* The caps on epsilon and delta are fixed when a ledger is opened. An extension adds a
filter with the same rule (for Rényi divergences also the same order) and caps of its own. Each
charge is debited to a single filter, the first with enough budget, and the totals add.
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
    MAX_ORDER,
    MICRO,
    Approximate,
    Budget,
    Event,
    Unit,
    epsilon_for,
    event_from_json,
    event_to_json,
    format_up,
    micro_epsilon,
    pure_epsilon,
    rdp_at,
)
from veracal.errors import BudgetError, LedgerError
from veracal.ledger import storage
from veracal.ledger.chain import canonical
from veracal.ledger.plan import (
    ATTO,
    NANO,
    RELATIVE_MARGIN,
    Cost,
    Item,
    Planned,
    budget_to_units,
    check_not_free,
    check_storable,
    cost_to_units,
    decimal_fraction,
    format_units,
    free_event_error,
    make_plan,
)


@dataclass(frozen=True)
class EpsilonSums:
    """Addition of pure epsilons, as integers.

    Guarantees
    ----------
    If costs, chosen in any way that may depend on earlier answers, sum to at most the total,
    then all answers together are epsilon-differentially private (Dwork et al. 2006; as a
    filter, Rogers et al. 2016).
    """

    kind: ClassVar[Literal["pure", "open"]] = "pure"
    measure: ClassVar[str] = "epsilon"

    @property
    def description(self) -> str:
        """Description of the composition for statements."""
        return "pure: epsilons are added up in whole millionths, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """Total of one partition: the decimal value of the budget, in micro-epsilon."""
        if not budget.pure:
            raise ValueError(
                f"Expected delta=0 for a pure ledger, got delta={budget.delta!r}. A budget "
                "with delta > 0 needs an open ledger or a plan."
            )
        return Cost(budget_to_units(budget.epsilon, MICRO, "epsilon"))

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of an event for one unit, rounded up."""
        _check_no_delta(delta)
        return check_not_free(Cost(micro_epsilon(event, budget.unit)))

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of the whole list of a run, composed as one event."""
        return self.cost(event, budget, None)

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta of the amount spent."""
        return spent.amount / MICRO, 0.0

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta left to spend."""
        return self.privacy(self.total(budget) - spent, budget)

    def figure(self, cost: Cost) -> str:
        """Format a cost for messages."""
        return format_units(cost.amount, MICRO)

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "pure"}


@dataclass(frozen=True)
class EpsilonDeltaSums:
    """Addition of epsilons and deltas.

    Guarantees
    ----------
    If (epsilon_i, delta_i), chosen in any way, sum to at most (epsilon, delta), then all
    answers together are (epsilon, delta)-differentially private (Rogers et al. 2016).
    """

    kind: ClassVar[Literal["pure", "open"]] = "open"
    measure: ClassVar[str] = "(epsilon, delta)"

    @property
    def description(self) -> str:
        """Description of the composition for statements."""
        return "open: epsilons and deltas are added up, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """Total of one partition: the decimal value of the budget."""
        delta = math.floor(decimal_fraction(budget.delta) * ATTO)
        return Cost(budget_to_units(budget.epsilon, MICRO, "epsilon"), delta)

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of a pure or (epsilon, delta) event, or of any event at a given delta."""
        if (
            isinstance(event, Approximate)
            and budget.unit.max_contributions == 1
            and delta is None
        ):
            # A stated guarantee, such as the whole budget of another ledger.
            amount = math.ceil(decimal_fraction(event.epsilon) * MICRO)
            return check_not_free(Cost(amount, math.ceil(decimal_fraction(event.delta) * ATTO)))
        if delta is None:
            if pure_epsilon(event, budget.unit) is None:
                raise ValueError(
                    "Expected a delta for an event that is not pure, got delta=None. Deltas "
                    "are "
                    "added, too: give a fraction of the ledger's delta."
                )
            return check_not_free(Cost(micro_epsilon(event, budget.unit)))
        _checks.fraction(delta=delta)
        epsilon = epsilon_for(event, float(delta), budget.unit)
        return check_not_free(
            Cost(cost_to_units(epsilon, MICRO), math.ceil(decimal_fraction(delta) * ATTO))
        )

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
                "Deltas "
                "are added over runs: give a fraction of the ledger's delta."
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
        amount = math.ceil(decimal_fraction(epsilon) * MICRO)
        return check_not_free(Cost(amount, units))

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta of the amount spent."""
        return spent.amount / MICRO, spent.delta / ATTO

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta left to spend."""
        return self.privacy(self.total(budget) - spent, budget)

    def figure(self, cost: Cost) -> str:
        """Format a cost for messages."""
        return f"({format_units(cost.amount, MICRO)}, {format_up(cost.delta / ATTO)})"

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "open", "composition": "addition"}


@dataclass(frozen=True)
class Renyi:
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
    kind: ClassVar[Literal["pure", "open"]] = "open"

    def __post_init__(self) -> None:
        _checks.positive(order=self.order)
        if not 1 < self.order <= MAX_ORDER:
            raise ValueError(
                f"Expected an order above 1, at most {MAX_ORDER}, got order={self.order!r}."
            )
        object.__setattr__(self, "order", float(self.order))

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
        return Cost(check_storable(units))

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Divergence of an event for one unit, rounded up."""
        _check_no_delta(delta)
        return check_not_free(Cost(cost_to_units(rdp_at(event, self.order, budget.unit), NANO)))

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Divergence of the whole list of a run, composed as one event."""
        return self.cost(event, budget, None)

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta of the amount spent."""
        if spent.amount == 0:
            return 0.0, 0.0
        epsilon = spent.amount / NANO + conversion_cost(self.order, budget.delta)
        return max(epsilon, 0.0), budget.delta

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon left to spend, at the same delta."""
        return max(0.0, budget.epsilon - self.privacy(spent, budget)[0]), budget.delta

    @property
    def measure(self) -> str:
        """The quantity that is added."""
        return f"Rényi divergence of order {self.order:g}"

    def figure(self, cost: Cost) -> str:
        """Format a cost for messages."""
        return format_units(cost.amount, NANO)

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


_MAX_PARTITIONS = 64
_MAX_NAME_LENGTH = 200  # characters of a name
_MAX_SPLIT_LENGTH = 2**16  # characters of the settings of a split
SEPARATOR = "/"  # in names of accounts, so not in names of parts


@dataclass(frozen=True)
class Opening:
    """The opening record of a ledger, to which all entries are chained.

    Attributes
    ----------
    budget : Budget
    rule : EpsilonSums, EpsilonDeltaSums, Renyi or Planned
        The composition rule.
    partitions : tuple of str
        Disjoint partitions of the records. Each may spend the whole budget: a unit is in only
        one of them, so the ledger's total is the maximum over partitions.
    nonce : str
        Random; distinguishes this ledger from all others.
    data : str or None
        Public name of the data set.
    split : mapping or None
        Public settings of the assignment of records to partitions, as a JSON object.
    """

    budget: Budget
    rule: Rule
    partitions: tuple[str, ...]
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    data: str | None = None
    split: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for partition in self.partitions:
            check_name(partition=partition)
            if SEPARATOR in partition:
                raise ValueError(
                    f"Expected no {SEPARATOR!r} in partition, got partition={partition!r}."
                )
        if self.data is not None:
            check_name(data=self.data)
        if self.split is not None:
            object.__setattr__(self, "split", _check_split_settings(self.split))
        if not 1 <= len(set(self.partitions)) == len(self.partitions) <= _MAX_PARTITIONS:
            raise ValueError(
                f"Expected 1 to {_MAX_PARTITIONS} different partitions, got "
                f"partitions={self.partitions!r}."
            )

    @property
    def text(self) -> str:
        """The canonical record."""
        return canonical(self.to_json())

    def accounts(self) -> dict[str, Cost]:
        """All accounts and their totals."""
        if isinstance(self.rule, Planned):
            return {str(i): Cost(item.times) for i, item in enumerate(self.rule.items)}
        return dict.fromkeys(self.partitions, self.rule.total(self.budget))

    def account(self, event: Event, purpose: str, partition: str | None) -> str | None:
        """The account that a charge debits; None for all of them."""
        if isinstance(self.rule, Planned):
            return self.rule.item(purpose, event, partition)
        return partition

    def cost(self, event: Event, delta: float | None) -> Cost:
        """Cost of an event to its account."""
        if pure_epsilon(event, self.budget.unit) == 0:
            raise free_event_error()
        if isinstance(self.rule, Planned):
            return Cost(1)
        return self.rule.cost(event, self.budget, delta)

    def figure(self, cost: Cost) -> str:
        """Format a cost for messages."""
        if isinstance(self.rule, Planned):
            return "planned"
        return self.rule.figure(cost)

    def check(self, event: Event, partition: str | None) -> None:
        """Raise if the event has another relation than the budget, or the partition is unknown."""
        if event.relation != self.budget.relation:
            raise ValueError(
                f"Expected an event under {self.budget.relation}, got one under "
                f"{event.relation}. Costs under different relations do not add: state the "
                "event under the ledger's relation, or convert it with AsReplaceOne."
            )
        self.check_partition(partition)

    def check_partition(self, partition: str | None) -> None:
        """Raise if the partition is unknown."""
        if partition is not None and partition not in self.partitions:
            raise ValueError(
                f"Expected partition to be None or one of {self.partitions!r}, got "
                f"partition={partition!r}."
            )

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        budget = self.budget
        return {
            "budget": {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "relation": budget.relation,
                "unit": {"name": budget.unit.name, "at_most": budget.unit.max_contributions},
            },
            "rule": self.rule.to_json(),
            "parts": list(self.partitions),
            "nonce": self.nonce,
            "data": self.data,
            "split": None if self.split is None else dict(self.split),
        }

    @classmethod
    def from_text(cls, text: str) -> "Opening":
        """Parse the record; raise unless the text is its canonical form."""
        try:
            values = json.loads(text)
            budget, unit = values["budget"], values["budget"]["unit"]
            opening = cls(
                budget=Budget(**{**budget, "unit": Unit(unit["name"], unit["at_most"])}),
                rule=_rule_from_json(values["rule"]),
                partitions=tuple(values["parts"]),
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
    partitions: Sequence[str],
) -> Rule:
    """The rule of a new ledger; raise if its settings are inconsistent."""
    _checks.one_of(("pure", "open", "plan"), kind=kind)
    for setting, allowed in (
        ("composition", kind == "open"),
        ("order", kind == "open" and composition != "addition"),
        ("plan", kind == "plan"),
    ):
        value = {"composition": composition, "order": order, "plan": items}[setting]
        if value is not None and not allowed:
            raise ValueError(
                f"Expected no {setting} for this kind of ledger, got kind={kind!r}."
            )
    if kind == "pure":
        return EpsilonSums()
    if kind == "plan":
        return make_plan(items or (), budget, partitions)
    _checks.one_of(("rdp", "addition"), composition=composition or "rdp")
    if composition == "addition":
        return EpsilonDeltaSums()
    return Renyi(best_order(budget) if order is None else order)


def check_serializable(event: Event) -> None:
    """Raise unless an event can be converted to JSON and back without change."""
    if type(event) not in get_args(Event):
        raise ValueError(f"Expected an event of veracal.accounting, got {event!r}.")
    if event_from_json(json.loads(canonical(event_to_json(event)))) != event:
        raise ValueError(f"Expected an event that can be stored as JSON, got {event!r}.")


def check_item(item: object) -> Item:
    """Raise unless an object is a valid item of a plan or a run."""
    if not isinstance(item, Item):
        raise ValueError(f"Expected a plan of Item, got {item!r}.")
    check_serializable(item.event)
    check_name(purpose=item.purpose)
    return item


def check_name(**values: str) -> None:
    """Raise unless every value is a short line of text."""
    for what, value in values.items():
        valid = isinstance(value, str) and value.strip() and value.isprintable()
        if not valid or len(value) > _MAX_NAME_LENGTH:
            raise ValueError(
                f"Expected {what} to be 1 to {_MAX_NAME_LENGTH} printable characters, "
                f"got {what}={value!r}."
            )


def _check_split_settings(settings: object) -> dict[str, Any]:
    """Normalize split settings to a JSON object of limited size."""
    if not isinstance(settings, Mapping):
        raise ValueError(f"Expected split to be a mapping or None, got {settings!r}.")
    try:
        text = canonical(settings)
    except (TypeError, ValueError) as cause:
        raise ValueError(f"Expected split to be a JSON object, got {settings!r}.") from cause
    if len(text) > _MAX_SPLIT_LENGTH:
        raise ValueError(f"Expected split of at most {_MAX_SPLIT_LENGTH:,} JSON characters.")
    return dict(json.loads(text))


def _rule_from_json(settings: Mapping[str, Any]) -> Rule:
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


RAISED_AFTER_RELEASES = "cap raised after releases"
RAISED_BEFORE_RELEASES = "cap raised before any release"


@dataclass(frozen=True)
class Extension:
    """An extension: a raise of the caps.

    Attributes
    ----------
    filter : int
        Number of the filter that it added; the opening's is 1.
    epsilon, delta : float
        The increase of the caps.
    index : int
        Index of its entry.
    after_releases : bool
        Whether anything may have been released before. Then the increase may depend on it, and
        the sum of the caps is not a guarantee that was fixed beforehand.
    """

    filter: int
    epsilon: float
    delta: float
    index: int
    after_releases: bool


@dataclass(frozen=True)
class Caps:
    """The filters of a ledger and their totals.

    Guarantees
    ----------
    The totals of all filters sum to at most the rule's total for the sum of the caps. For
    additive rules the totals add. Rényi divergences at one order add, so filter k gets the
    total for the caps up to k minus the total for the caps up to k - 1. Therefore all charges
    together cost at most the sum of the epsilons at the sum of the deltas.
    """

    opening: Opening
    extensions: tuple[Extension, ...] = ()

    @classmethod
    def read(cls, connection: Connection) -> "Caps":
        """Read the current caps of a ledger."""
        caps = cls(Opening.from_text(storage.opening(connection)[0]))
        for entry in storage.account_entries(connection):
            if entry.extension is not None:
                released = storage.released_before(connection, entry.index)
                caps = caps.extended(*entry.extension, entry.index, after_releases=released)
        return caps

    def extended(
        self, epsilon: float, delta: float, index: int, *, after_releases: bool
    ) -> "Caps":
        """The caps with an additional filter; raise if its total would be zero."""
        if isinstance(self.opening.rule, Planned):
            raise ValueError(
                "A ledger of kind 'plan' cannot be extended: its items are fixed and were "
                "charged as a whole. Open a ledger of kind 'pure' or 'open'."
            )
        _checks.positive(epsilon=epsilon)
        _checks.fraction(delta=delta)
        number = len(self.extensions) + 2
        new = Extension(number, float(epsilon), float(delta), index, after_releases)
        caps = Caps(self.opening, (*self.extensions, new))
        if caps.total(number).amount < 1:
            raise ValueError(
                f"Expected a larger epsilon for a filter, got epsilon={epsilon!r}."
            )
        return caps

    @property
    def filters(self) -> range:
        """Numbers of the filters; none for a plan, which is spent when it is opened."""
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
        epsilon = sum(
            (decimal_fraction(one.epsilon) for one in more), decimal_fraction(first.epsilon)
        )
        delta = sum(
            (decimal_fraction(one.delta) for one in more), decimal_fraction(first.delta)
        )
        return Budget(float(epsilon), float(delta), first.relation, first.unit)

    def total(self, number: int) -> Cost:
        """Total of each partition in a filter."""
        rule = self.opening.rule
        assert not isinstance(rule, Planned)
        whole = rule.total(self._up_to(number))
        return whole if number == 1 else whole - rule.total(self._up_to(number - 1))

    def accounts(self, number: int) -> dict[str, Cost]:
        """Accounts of a filter, one per partition, and their totals."""
        total = self.total(number)
        return {account_name(partition, number): total for partition in self.opening.partitions}

    @property
    def note(self) -> str | None:
        """Note for every statement of an extended ledger; None for other ledgers."""
        if not self.extensions:
            return None
        after = any(one.after_releases for one in self.extensions)
        return RAISED_AFTER_RELEASES if after else RAISED_BEFORE_RELEASES


def account_name(partition: str, number: int) -> str:
    """Name of the account of a partition in a filter."""
    return partition if number == 1 else f"{number}{SEPARATOR}{partition}"
