"""Runs: lists of events that one ledger pays for one after the other.

A run is a list of items that is fixed and charged as a whole before its first release, so
within it costs compose tightly (:mod:`veracal.ledger.plan` says why). The next run may
be chosen after looking at what this one has released; across runs costs therefore add by the
ledger's filter, and never as one privacy-loss distribution.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection

from veracal import _checks
from veracal.accounting import Composed, Event, Repeated, pure_epsilon
from veracal.errors import AnswerError, BudgetError
from veracal.ledger import storage as tables
from veracal.ledger.chain import Entry, canonical, digest
from veracal.ledger.charging import ANEW, conflict, filter_for, item_account, items_of_run
from veracal.ledger.plan import Cost, Item, Planned, free, merged
from veracal.ledger.policies import (
    Caps,
    EpsilonDeltaSums,
    Opening,
    account_of,
    checked_item,
    name,
)
from veracal.ledger.storage import reading, writing


@dataclass(frozen=True)
class LedgerRun:
    """A run of a ledger.

    Attributes
    ----------
    number : int
        1 for the first.
    name, request : str
    items : tuple of Item
        What it may use.
    epsilons, deltas : mapping from part to float
        What it cost each part that it reads. For a ledger of Rényi divergences, what its
        divergence amounts to by itself, at the ledger's delta.
    filter : int
        The filter that paid.
    index : int
        Of its first entry.
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
    """A run, before it is charged."""

    items: tuple[Item, ...]
    name: str
    request: str
    body: bytes
    delta: float | None

    def __post_init__(self) -> None:
        name(name=self.name, request=self.request)
        if not isinstance(self.body, bytes):
            raise ValueError(f"body must be bytes; got {type(self.body).__name__}.")
        if self.delta is not None:
            _checks.fraction(delta=self.delta)
            object.__setattr__(self, "delta", float(self.delta))
        if not self.items:
            raise ValueError("A run needs one item or more; got none.")
        object.__setattr__(self, "items", merged(map(checked_item, self.items)))

    @property
    def fingerprint(self) -> str:
        """Hash of everything that tells this run from another."""
        asked = {
            "run": self.name,
            "items": sorted(canonical(item.to_json()) for item in self.items),
            "delta": self.delta,
            "body": digest(self.body),
        }
        return digest(canonical(asked))


def begin(path: Path, asked: RunRequest) -> int:
    """Charge a run as a whole, once for its request id; returns its number.

    The costs, which may take a while to compute, are computed before the ledger is locked.
    """
    with reading(path) as connection:
        opening = Opening.from_text(tables.opening(connection)[0])
        known = _known(connection, asked)
    if known is not None:
        return known
    offers = _offers(opening, asked)
    with writing(path) as connection:
        if (known := _known(connection, asked)) is not None:
            return known
        costs, number = _fitting(connection, offers, asked)
        run = 1 + sum(entry.outcome == "run" for entry in tables.adding(connection))
        _append(connection, asked, run, number, costs)
    return run


def require(path: Path, asked: RunRequest) -> None:
    """Raise what :func:`begin` would raise, and write nothing."""
    with reading(path) as connection:
        opening = Opening.from_text(tables.opening(connection)[0])
        known = _known(connection, asked)
    if known is None:
        offers = _offers(opening, asked)
        with reading(path) as connection:
            _fitting(connection, offers, asked)


@dataclass(frozen=True)
class PartCost:
    """What a run costs one part: its items as one event, charged at a delta if not pure."""

    event: Event
    delta: float | None
    cost: Cost


Costs = Mapping[str, PartCost]


def _offers(opening: Opening, asked: RunRequest) -> list[Costs]:
    """Costs of each part of a run, in the ways in which they may be charged.

    First without a delta where a list is pure, then everything at the run's delta, which has a
    smaller epsilon.
    """
    offers: list[Costs] = [part_costs(opening, asked.items, asked.delta, pure=True)]
    if any(one.delta is None for one in offers[0].values()) and asked.delta:
        offers.append(part_costs(opening, asked.items, asked.delta, pure=False))
    return offers


def _fitting(
    connection: Connection, offers: Sequence[Costs], asked: RunRequest
) -> tuple[Costs, int]:
    """The first offer that fits into a filter, and the number of that; or a refusal."""
    caps = Caps.read(connection)
    balances = {one: (spent, total) for one, spent, total in tables.balances(connection)}
    for costs in offers:
        wanted = {part: one.cost for part, one in costs.items()}
        try:
            return costs, filter_for(caps, balances, wanted, f"Run {asked.name!r}", run=True)
        except BudgetError:
            if costs is offers[-1]:
                raise
    raise AssertionError("a run has an offer")


def part_costs(
    opening: Opening, items: Sequence[Item], delta: float | None, *, pure: bool
) -> dict[str, PartCost]:
    """Composition and cost of the items of each part that has some, in the parts' order."""
    rule, budget = opening.rule, opening.budget
    if isinstance(rule, Planned):
        raise ValueError(
            "A ledger of kind 'plan' holds one fixed list and no further runs. Open one of "
            "kind 'pure' or 'open'."
        )
    for item in items:
        opening.check(item.event, item.part)
        if pure_epsilon(item.event, budget.unit) == 0:
            raise free()
    found: dict[str, PartCost] = {}
    for part in opening.parts:
        event = composed(items, part)
        if event is not None:
            exact = pure and pure_epsilon(event, budget.unit) is not None
            at = delta if isinstance(rule, EpsilonDeltaSums) and not exact else None
            found[part] = PartCost(event, at, rule.run_cost(event, budget, at))
    return found


def composed(items: Iterable[Item], part: str) -> Event | None:
    """Everything that a list holds for one part, as one event; None if that is nothing."""
    used = [Repeated(item.event, item.times) for item in items if item.part in (part, None)]
    return Composed(tuple(used)) if used else None


def read_runs(connection: Connection) -> tuple[LedgerRun, ...]:
    """Every run of a ledger."""
    caps = Caps.read(connection)
    first = [entry for entry in tables.adding(connection) if entry.outcome == "run"]
    return tuple(_run(connection, caps, entry) for entry in first)


def read_run(connection: Connection, number: int) -> LedgerRun | None:
    """One run of a ledger, by its number."""
    begun = tables.begun(connection, number)
    return _run(connection, Caps.read(connection), begun[0]) if begun else None


def number_of(connection: Connection, request: str) -> int | None:
    """Number of the run that was begun under a request id."""
    found = tables.find(connection, request)
    return found[0].run if found is not None and found[0].outcome == "run" else None


def _run(connection: Connection, caps: Caps, first: Entry) -> LedgerRun:
    """A run, from its first entry."""
    assert first.run is not None
    assert first.filter is not None
    begun = tables.begun(connection, first.run)
    rule = caps.opening.rule
    assert not isinstance(rule, Planned)
    amounts = {
        entry.part or "": rule.privacy(Cost(entry.cost, entry.cost_delta), caps.budget)
        for entry in begun
    }
    return LedgerRun(
        first.run,
        first.purpose,
        first.request or "",
        items_of_run(begun),
        {part: epsilon for part, (epsilon, _) in amounts.items()},
        {part: delta for part, (_, delta) in amounts.items()},
        first.filter,
        first.index,
        tables.settlement(connection, first.index) is not None,
    )


def _known(connection: Connection, asked: RunRequest) -> int | None:
    """Number of the run that was begun under this request, if it is the same."""
    found = tables.find(connection, asked.request)
    if found is None:
        return None
    entry = found[0]
    if entry.outcome != "run" or entry.body != asked.fingerprint:
        raise conflict(asked.request)
    if tables.settlement(connection, entry.index) is not None:
        raise AnswerError(
            f"Run {entry.run} ({entry.purpose!r}) was charged and abandoned. What it paid is "
            f"not refunded, and it is not begun again. {ANEW}"
        )
    return entry.run


def _append(
    connection: Connection,
    asked: RunRequest,
    run: int,
    number: int,
    costs: Costs,
) -> None:
    """Add the entries of a run, one for each part, and the accounts of its items."""
    entries: list[Entry] = []
    index, previous = tables.head(connection)
    for part, one in costs.items():
        entry = Entry(
            index=index + 1,
            purpose=asked.name,
            event=one.event,
            part=part,
            delta=one.delta,
            account=account_of(part, number),
            filter=number,
            cost=one.cost.amount,
            cost_delta=one.cost.delta,
            request=None if entries else asked.request,
            body=None if entries else asked.fingerprint,
            run=run,
            outcome="run",
            answer=None,
            previous=previous,
            items=tuple(item for item in asked.items if item.part in (part, None)),
        )
        entries.append(entry)
        index, previous = entry.index, entry.hash
    items = items_of_run(entries)
    for entry in entries:
        first = entry is entries[0]
        tables.append(connection, entry, None, adds=len(items) if first else 0)
        if first:
            accounts = {item_account(run, i): Cost(item.times) for i, item in enumerate(items)}
            tables.add_accounts(connection, accounts, filter=None, entry=entry.index)
