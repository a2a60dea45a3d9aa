"""The records of a ledger: its opening, its entries, and the caps that follow from them.

The hash of an entry covers its canonical JSON, which contains the hash of the previous entry;
the first entry contains the hash of the opening record. A party that noted one hash, the
*head*, can later detect whether any entry up to it was changed, removed or inserted. Without a
noted head the chain proves nothing, since the owner could have rewritten the whole ledger.

*Accounts.* Each account of a ledger has a total that is never exceeded. For a filter, an
account is a partition of the records; for a plan or a run (:mod:`veracal.ledger.charging`), it
is an item, counted in uses. Costs within a run, whose list is fixed before its first release,
compose as in a plan; the runs of one ledger compose by its filter.

*Caps.* The caps on epsilon and delta are fixed when a ledger is opened. An extension adds a
filter with the same rule (for Rényi divergences also the same order) and caps of its own. Each
charge is debited to a single filter, the first with enough budget, and the totals add.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from veracal import _checks
from veracal.accounting import (
    Budget,
    Event,
    Unit,
    event_from_json,
    event_to_json,
    pure_epsilon,
)
from veracal.errors import LedgerError
from veracal.ledger.policies import (
    Cost,
    Item,
    Planned,
    Rule,
    decimal_fraction,
    free_event_error,
    rule_from_json,
)

Outcome = Literal[
    "charged", "answered", "failed", "reserved", "abandoned", "superseded", "run", "extended"
]
RAISED_AFTER_RELEASES = "cap raised after releases"
RAISED_BEFORE_RELEASES = "cap raised before any release"
_SEPARATOR = "/"  # in names of accounts, so not in names of partitions
_MAX_PARTITIONS = 64
_MAX_NAME_LENGTH = 200  # characters of a name
_MAX_SPLIT_LENGTH = 2**16  # characters of the settings of a split


def canonical(record: Mapping[str, Any]) -> str:
    """Canonical JSON of a record, which is hashed: sorted, without spaces, in ASCII."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: str | bytes) -> str:
    """SHA-256 of text or bytes, in hexadecimal."""
    data = content.encode("ascii") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


def account_name(partition: str, number: int) -> str:
    """Name of the account of a partition in a filter."""
    return partition if number == 1 else f"{number}{_SEPARATOR}{partition}"


def item_account(run: int, position: int) -> str:
    """Name of the account of an item of a run."""
    return f"run {run}{_SEPARATOR}{position}"


def check_name(**values: str) -> None:
    """Raise unless every value is a short line of text."""
    for what, value in values.items():
        valid = isinstance(value, str) and value.strip() and value.isprintable()
        if not valid or len(value) > _MAX_NAME_LENGTH:
            raise ValueError(
                f"Expected {what} to be 1 to {_MAX_NAME_LENGTH} printable characters, "
                f"got {what}={value!r}."
            )


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


@dataclass(frozen=True)
class Entry:
    """An immutable ledger entry: a charge, its settlement, a run or an extension.

    Attributes
    ----------
    index : int
        Starts at 1.
    purpose : str
        Purpose of the charge; for a run, its name.
    event : Event or None
        The event that was charged. None for an extension, or an entry that settles another.
    partition : str or None
        Partition of the records; None for all of them.
    delta : float or None
        Failure probability at which the event was charged, if the caller gave one.
    account : str or None
        The account that was debited: a partition in a filter, an item of a plan or of a run,
        or None for every partition of the filter.
    filter : int or None
        The filter that was debited: 1 is that of the opening, each extension adds one. None if
        the charge uses an item that was paid for before, or costs nothing.
    cost, cost_delta : int
        In the units of the ledger's kind.
    request, body : str or None
        The caller's request id, and the SHA-256 of everything requested under it.
    run : int or None
        Number of the run that the entry begins, or belongs to.
    outcome : str
        "charged": only charged. "answered", "failed": an answer was computed, or failed.
        "reserved": charged; an answer is to be recorded. "abandoned", "superseded": a
        reservation without an answer, because its owner gave it up or another attempt was
        charged. "run": the items of a run were charged. "extended": a cap was raised.
    answer : str or None
        SHA-256 of the answer.
    settles : int or None
        Index of the reservation (or run) that this entry settles.
    items : tuple of Item
        The items that a run may use on this partition.
    extension : tuple of (epsilon, delta), optional
        The increase of the caps.
    previous : str
        Hash of the previous entry, or of the opening.
    """

    index: int
    purpose: str
    outcome: Outcome
    previous: str
    event: Event | None = None
    partition: str | None = None
    delta: float | None = None
    account: str | None = None
    filter: int | None = None
    cost: int = 0
    cost_delta: int = 0
    request: str | None = None
    body: str | None = None
    run: int | None = None
    answer: str | None = None
    settles: int | None = None
    items: tuple[Item, ...] = ()
    extension: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _checks.one_of(get_args(Outcome), outcome=self.outcome)

    @property
    def scope(self) -> int:
        """Scope of the request id: the run of the entry, or 0 for the whole ledger."""
        return 0 if self.run is None or self.outcome == "run" else self.run

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical record."""
        return digest(self.text)

    @property
    def text(self) -> str:
        """The canonical record."""
        return canonical(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["event"] = None if self.event is None else event_to_json(self.event)
        values["items"] = [item.to_json() for item in self.items]
        values["extension"] = None if self.extension is None else list(self.extension)
        return values

    @classmethod
    def from_text(cls, text: str) -> "Entry":
        """Parse an entry; raise unless the text is its canonical form."""
        try:
            values = json.loads(text)
            event, extension = values["event"], values["extension"]
            values["event"] = None if event is None else event_from_json(event)
            values["extension"] = None if extension is None else tuple(extension)
            values["items"] = tuple(map(Item.from_json, values["items"]))
            entry = cls(**values)
        except (KeyError, TypeError, ValueError) as cause:
            raise LedgerError(f"An entry cannot be read: {text[:80]!r}.") from cause
        if entry.text != text:
            raise LedgerError(f"Entry {entry.index} is not in canonical form.")
        return entry


def run_items(entries: Iterable[Entry]) -> tuple[Item, ...]:
    """The items of a run, in the order of its accounts, from the entries that began it."""
    items = [item for entry in entries if entry.outcome == "run" for item in entry.items]
    return tuple(dict.fromkeys(items))  # an item without a partition is listed for each


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
        for name in self.partitions:
            check_name(partition=name)
            if _SEPARATOR in name:
                raise ValueError(
                    f"Expected no {_SEPARATOR!r} in partition, got partition={name!r}."
                )
        if not 1 <= len(set(self.partitions)) == len(self.partitions) <= _MAX_PARTITIONS:
            raise ValueError(
                f"Expected 1 to {_MAX_PARTITIONS} different partitions, got "
                f"partitions={self.partitions!r}."
            )
        if self.data is not None:
            check_name(data=self.data)
        if self.split is None:
            return
        if not isinstance(self.split, Mapping):
            raise ValueError(f"Expected split to be a mapping or None, got {self.split!r}.")
        try:
            text = canonical(self.split)
        except (TypeError, ValueError) as cause:
            raise ValueError(
                f"Expected split to be a JSON object, got {self.split!r}."
            ) from cause
        if len(text) > _MAX_SPLIT_LENGTH:
            raise ValueError(
                f"Expected split of at most {_MAX_SPLIT_LENGTH:,} JSON characters."
            )
        object.__setattr__(self, "split", dict(json.loads(text)))

    @property
    def text(self) -> str:
        """The canonical record."""
        return canonical(self.to_json())

    def cost(self, event: Event, delta: float | None) -> Cost:
        """Cost of an event to its account."""
        if pure_epsilon(event, self.budget.unit) == 0:
            raise free_event_error()
        if isinstance(self.rule, Planned):
            return Cost(1)
        return self.rule.cost(event, self.budget, delta)

    def figure(self, cost: Cost) -> str:
        """Format a cost for messages."""
        return "planned" if isinstance(self.rule, Planned) else self.rule.figure(cost)

    def check(self, event: Event, partition: str | None) -> None:
        """Raise if the event's relation is not the budget's, or the partition is unknown."""
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
                f"Expected no partition or one of {', '.join(map(repr, self.partitions))}, got "
                f"partition={partition!r}."
            )

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return {
            "budget": asdict(self.budget),
            "rule": self.rule.to_json(),
            "partitions": list(self.partitions),
            "nonce": self.nonce,
            "data": self.data,
            "split": None if self.split is None else dict(self.split),
        }

    @classmethod
    def from_text(cls, text: str) -> "Opening":
        """Parse the record; raise unless the text is its canonical form."""
        try:
            values = json.loads(text)
            budget = values["budget"]
            opening = cls(
                budget=Budget(**{**budget, "unit": Unit(**budget["unit"])}),
                rule=rule_from_json(values["rule"]),
                partitions=tuple(values["partitions"]),
                nonce=values["nonce"],
                data=values["data"],
                split=values["split"],
            )
        except (KeyError, TypeError, ValueError) as cause:
            raise LedgerError(f"The opening record cannot be read: {text[:80]!r}.") from cause
        if opening.text != text:
            raise LedgerError("The opening record is not in canonical form.")
        return opening


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
        """The sum of the caps of the first filters, added as decimal numbers."""
        first, more = self.opening.budget, self.extensions[: number - 1]
        if not more:
            return first
        epsilon, delta = decimal_fraction(first.epsilon), decimal_fraction(first.delta)
        for extension in more:
            epsilon += decimal_fraction(extension.epsilon)
            delta += decimal_fraction(extension.delta)
        return Budget(float(epsilon), float(delta), first.relation, first.unit)

    def total(self, number: int) -> Cost:
        """Total of each partition in a filter."""
        rule = self.opening.rule
        assert not isinstance(rule, Planned)
        whole = rule.total(self._up_to(number))
        return whole if number == 1 else whole - rule.total(self._up_to(number - 1))

    def accounts(self, number: int) -> dict[str, Cost]:
        """Accounts of a filter, one per partition, or of a plan, one per item; their totals."""
        rule = self.opening.rule
        if isinstance(rule, Planned):
            return {str(i): Cost(item.times) for i, item in enumerate(rule.items)}
        total = self.total(number)
        return {account_name(name, number): total for name in self.opening.partitions}

    @property
    def note(self) -> str | None:
        """Note for every statement of an extended ledger; None for other ledgers."""
        if not self.extensions:
            return None
        after = any(one.after_releases for one in self.extensions)
        return RAISED_AFTER_RELEASES if after else RAISED_BEFORE_RELEASES


@dataclass(frozen=True)
class EpsilonDelta:
    """An amount of privacy budget, spent or remaining."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class PartitionBalance:
    """The amounts that one partition of the records has spent and has left."""

    name: str
    spent: EpsilonDelta
    left: EpsilonDelta
