"""Runs: successive lists of events that are charged to one ledger.

A run is a list of items that is fixed and charged as a whole before its first release, so costs
within it compose tightly (see :mod:`veracal.ledger.plan`). The next run may be chosen after
seeing the releases of this one. Therefore costs across runs compose by the ledger's filter, and
never as one privacy-loss distribution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection

from veracal import _checks
from veracal.accounting import Event, pure_epsilon
from veracal.errors import AnswerError, BudgetError
from veracal.ledger import storage
from veracal.ledger.chain import Entry, canonical, digest
from veracal.ledger.charging import (
    RETRY_HINT,
    conflict_error,
    find_filter,
    item_account,
    run_items,
)
from veracal.ledger.plan import (
    Cost,
    Item,
    Planned,
    compose_items,
    free_event_error,
    merge_items,
)
from veracal.ledger.policies import (
    Caps,
    EpsilonDeltaSums,
    Opening,
    account_name,
    check_item,
    check_name,
)
from veracal.ledger.storage import reading, writing


@dataclass(frozen=True)
class LedgerRun:
    """A run of a ledger.

    Attributes
    ----------
    number : int
        Starts at 1.
    name, request : str
    items : tuple of Item
        The items that it may use.
    epsilons, deltas : mapping from part to float
        Cost for each partition that it reads. For a ledger of Rényi divergences, epsilon of its
        divergence alone, at the ledger's delta.
    filter : int
        The filter that was debited.
    index : int
        Index of its first entry.
    abandoned : bool
    """

    number: int
    name: str
    request: str
    items: tuple[Item, ...]
    epsilons: Mapping[str, float]
    deltas: Mapping[str, float]
    filter: int
    index: int
    abandoned: bool


@dataclass(frozen=True)
class RunRequest:
    """A requested run."""

    items: tuple[Item, ...]
    name: str
    request: str
    body: bytes
    delta: float | None

    def __post_init__(self) -> None:
        check_name(name=self.name, request=self.request)
        if not isinstance(self.body, bytes):
            raise ValueError(f"Expected body to be bytes, got {type(self.body).__name__}.")
        if self.delta is not None:
            _checks.fraction(delta=self.delta)
            object.__setattr__(self, "delta", float(self.delta))
        if not self.items:
            raise ValueError("Expected at least one item for a run, got none.")
        object.__setattr__(self, "items", merge_items(map(check_item, self.items)))

    @property
    def fingerprint(self) -> str:
        """Hash of everything that distinguishes this run from another."""
        content = {
            "run": self.name,
            "items": sorted(canonical(item.to_json()) for item in self.items),
            "delta": self.delta,
            "body": digest(self.body),
        }
        return digest(canonical(content))


def begin_run(path: Path, request: RunRequest) -> int:
    """Charge a run as a whole, once per request id, and return its number.

    Computing the costs may take a while, so it is done before the ledger is locked.
    """
    with reading(path) as connection:
        opening = Opening.from_text(storage.opening(connection)[0])
        existing = _find_existing(connection, request)
    if existing is not None:
        return existing
    options = _cost_options(opening, request)
    with writing(path) as connection:
        if (existing := _find_existing(connection, request)) is not None:
            return existing
        costs, number = _choose_option(connection, options, request)
        run = 1 + sum(entry.outcome == "run" for entry in storage.account_entries(connection))
        _append_run(connection, request, run, number, costs)
    return run


def require_run(path: Path, request: RunRequest) -> None:
    """Raise what :func:`begin_run` would raise, and write nothing."""
    with reading(path) as connection:
        opening = Opening.from_text(storage.opening(connection)[0])
        existing = _find_existing(connection, request)
    if existing is None:
        options = _cost_options(opening, request)
        with reading(path) as connection:
            _choose_option(connection, options, request)


@dataclass(frozen=True)
class PartCost:
    """Cost of a run for one partition: its items as one event, at a delta if not pure."""

    event: Event
    delta: float | None
    cost: Cost


Costs = Mapping[str, PartCost]


def _cost_options(opening: Opening, request: RunRequest) -> list[Costs]:
    """The alternative costs of a run, by partition.

    First without a delta if a list is pure, then with all lists at the run's delta, which gives
    a smaller epsilon.
    """
    options: list[Costs] = [part_costs(opening, request.items, request.delta, pure=True)]
    if any(one.delta is None for one in options[0].values()) and request.delta:
        options.append(part_costs(opening, request.items, request.delta, pure=False))
    return options


def _choose_option(
    connection: Connection, options: Sequence[Costs], request: RunRequest
) -> tuple[Costs, int]:
    """The first alternative that fits into a filter, and that filter, or an error."""
    caps = Caps.read(connection)
    balances = {one: (spent, total) for one, spent, total in storage.balances(connection)}
    for costs in options:
        by_part = {partition: one.cost for partition, one in costs.items()}
        try:
            return costs, find_filter(
                caps, balances, by_part, f"Run {request.name!r}", run=True
            )
        except BudgetError:
            if costs is options[-1]:
                raise
    raise AssertionError("there is at least one alternative")


def part_costs(
    opening: Opening, items: Sequence[Item], delta: float | None, *, pure: bool
) -> dict[str, PartCost]:
    """Composition and cost of the items of each partition that has items, in their order."""
    rule, budget = opening.rule, opening.budget
    if isinstance(rule, Planned):
        raise ValueError(
            "A ledger of kind 'plan' has one fixed list and no runs. Open a ledger of kind "
            "'pure' or 'open'."
        )
    for item in items:
        opening.check(item.event, item.partition)
        if pure_epsilon(item.event, budget.unit) == 0:
            raise free_event_error()
    costs: dict[str, PartCost] = {}
    for partition in opening.partitions:
        event = compose_items(items, partition)
        if event is not None:
            exact = pure and pure_epsilon(event, budget.unit) is not None
            at = delta if isinstance(rule, EpsilonDeltaSums) and not exact else None
            costs[partition] = PartCost(event, at, rule.run_cost(event, budget, at))
    return costs


def read_runs(connection: Connection) -> tuple[LedgerRun, ...]:
    """All runs of a ledger."""
    caps = Caps.read(connection)
    first = [entry for entry in storage.account_entries(connection) if entry.outcome == "run"]
    return tuple(_to_run(connection, caps, entry) for entry in first)


def read_run(connection: Connection, number: int) -> LedgerRun | None:
    """A run of a ledger, by its number."""
    entries = storage.run_entries(connection, number)
    return _to_run(connection, Caps.read(connection), entries[0]) if entries else None


def find_run_number(connection: Connection, request: str) -> int | None:
    """Number of the run that was begun under a request id."""
    match = storage.find(connection, request)
    return match[0].run if match is not None and match[0].outcome == "run" else None


def _to_run(connection: Connection, caps: Caps, first: Entry) -> LedgerRun:
    """A run, from its first entry."""
    assert first.run is not None
    assert first.filter is not None
    entries = storage.run_entries(connection, first.run)
    rule = caps.opening.rule
    assert not isinstance(rule, Planned)
    amounts = {
        entry.partition or "": rule.privacy(Cost(entry.cost, entry.cost_delta), caps.budget)
        for entry in entries
    }
    return LedgerRun(
        first.run,
        first.purpose,
        first.request or "",
        run_items(entries),
        {partition: epsilon for partition, (epsilon, _) in amounts.items()},
        {partition: delta for partition, (_, delta) in amounts.items()},
        first.filter,
        first.index,
        storage.settlement(connection, first.index) is not None,
    )


def _find_existing(connection: Connection, request: RunRequest) -> int | None:
    """Number of the run that was begun under this request; raise if it was another run."""
    match = storage.find(connection, request.request)
    if match is None:
        return None
    entry = match[0]
    if entry.outcome != "run" or entry.body != request.fingerprint:
        raise conflict_error(request.request)
    if storage.settlement(connection, entry.index) is not None:
        raise AnswerError(
            f"Run {entry.run} ({entry.purpose!r}) was charged and abandoned. Its cost is not "
            f"refunded, and it cannot be begun again. {RETRY_HINT}"
        )
    return entry.run


def _append_run(
    connection: Connection,
    request: RunRequest,
    run: int,
    number: int,
    costs: Costs,
) -> None:
    """Append the entries of a run, one per partition, and the accounts of its items."""
    entries: list[Entry] = []
    index, previous = storage.head(connection)
    for partition, one in costs.items():
        entry = Entry(
            index=index + 1,
            purpose=request.name,
            event=one.event,
            partition=partition,
            delta=one.delta,
            account=account_name(partition, number),
            filter=number,
            cost=one.cost.amount,
            cost_delta=one.cost.delta,
            request=None if entries else request.request,
            body=None if entries else request.fingerprint,
            run=run,
            outcome="run",
            answer=None,
            previous=previous,
            items=tuple(item for item in request.items if item.partition in (partition, None)),
        )
        entries.append(entry)
        index, previous = entry.index, entry.hash
    items = run_items(entries)
    for entry in entries:
        first = entry is entries[0]
        storage.append(connection, entry, None, adds=len(items) if first else 0)
        if first:
            accounts = {item_account(run, i): Cost(item.times) for i, item in enumerate(items)}
            storage.add_accounts(connection, accounts, filter=None, entry=entry.index)
