"""Verification of a ledger: every hash, cost and sum is recomputed."""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from veracal.accounting import Event, format_up
from veracal.errors import BudgetError, LedgerError
from veracal.ledger import storage
from veracal.ledger.chain import Entry, digest
from veracal.ledger.charging import item_account, run_items
from veracal.ledger.plan import Cost, Item, Planned, compose_items, planned_epsilon
from veracal.ledger.policies import Caps, Opening, account_name
from veracal.ledger.storage import reading

_MAX_PROBLEMS = 20  # listed in an error
_REPEATED_COLUMNS = (  # columns that repeat fields of the record
    "scope",
    "request",
    "run",
    "account",
    "filter",
    "cost",
    "cost_delta",
    "outcome",
    "settles",
)
_COLUMNS = ("id", "record", "hash", *_REPEATED_COLUMNS, "answer")


@dataclass
class _ChainState:
    """The state of a ledger after some of its entries.

    Attributes
    ----------
    caps : Caps
        Including the extensions so far.
    totals, spent : dict from account to Cost
        All accounts so far.
    runs : dict from run to its entries
        The entries that began each run.
    filters : dict from account to filter
    open, settled : dict and set of indexes
        Reservations and runs that may be settled, and those that were.
    released : bool
        Whether anything may have been released so far.
    """

    caps: Caps
    head: str
    heads: set[str] = field(default_factory=set)
    totals: dict[str, Cost] = field(default_factory=dict)
    spent: dict[str, Cost] = field(default_factory=dict)
    costs: dict[tuple[Event, float | None], Cost] = field(default_factory=dict)
    runs: dict[int, list[Entry]] = field(default_factory=dict)
    filters: dict[str, int | None] = field(default_factory=dict)
    open: dict[int, Entry] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    released: bool = False

    def add(self, accounts: Mapping[str, Cost], filter: int | None = None) -> None:
        """Add accounts."""
        for name, total in accounts.items():
            self.totals[name], self.filters[name] = total, filter
            self.spent.setdefault(name, Cost(0))


def verify_ledger(path: Path, head: str | None = None) -> str:
    """Recompute a ledger and return its head; raise with all problems."""
    with reading(path) as connection:
        state = _initial_state(connection)
        problems = [
            *_file_problems(connection),
            *_chain_problems(connection, state),
            *_sum_problems(connection, state),
            *_plan_problems(state.caps.opening),
        ]
        if head is not None and head not in state.heads:
            problems.append(
                f"The head {head} is not in the chain: the file was replaced by an older copy, "
                "or the chain was rewritten."
            )
    if problems:
        more = len(problems) - _MAX_PROBLEMS
        hidden = (f"There are {more} more problems.",) if more > 0 else ()
        raise LedgerError(f"{path} is damaged.", *problems[:_MAX_PROBLEMS], *hidden)
    return state.head


def _initial_state(connection: sqlite3.Connection) -> _ChainState:
    """The state after the opening."""
    record, first = storage.opening(connection)
    opening = Opening.from_text(record)
    state = _ChainState(Caps(opening), first, {first})
    state.add(opening.accounts(), None if isinstance(opening.rule, Planned) else 1)
    return state


def _file_problems(connection: sqlite3.Connection) -> Iterator[str]:
    """Problems that SQLite finds in the file."""
    for (message,) in connection.execute("PRAGMA integrity_check"):
        if message != "ok":
            yield f"SQLite reports: {message}."
    for row in connection.execute("PRAGMA foreign_key_check"):
        yield f"Row {row[1]} of {row[0]} refers to a missing account."


def _chain_problems(connection: sqlite3.Connection, state: _ChainState) -> Iterator[str]:
    """Problems of the entries, in order."""
    rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM entries ORDER BY id")  # noqa: S608
    for number, values in enumerate(rows, start=1):
        row = dict(zip(_COLUMNS, values, strict=True))
        try:
            entry = Entry.from_text(str(row["record"]))
        except LedgerError as error:
            yield f"Entry {number}: {error}"
            return  # later entries cannot be checked
        for problem in _entry_problems(number, row, entry, state):
            yield f"Entry {number}: {problem}"
        _advance(entry, state)
    yield from _run_problems(state)


def _advance(entry: Entry, state: _ChainState) -> None:
    """Apply an entry to the state."""
    state.head = entry.hash
    state.heads.add(state.head)
    cost = Cost(entry.cost, entry.cost_delta)
    if entry.account is not None:
        debited = [entry.account]
    else:
        partitions = state.caps.opening.partitions if entry.filter is not None else ()
        debited = [account_name(partition, entry.filter or 0) for partition in partitions]
    for name in debited:
        state.spent[name] = state.spent.get(name, Cost(0)) + cost
    if entry.outcome == "run" and entry.run is not None:
        entries = state.runs.setdefault(entry.run, [])
        entries.append(entry)
        items = enumerate(run_items(entries))
        state.add({item_account(entry.run, i): Cost(item.times) for i, item in items})
        if len(entries) == 1:
            state.open[entry.index] = entry
    elif entry.outcome == "reserved":
        state.open[entry.index] = entry
    if entry.settles is not None:
        state.settled.add(entry.settles)
    elif entry.outcome not in ("run", "extended"):
        state.released = True


def _entry_problems(
    number: int, row: Mapping[str, object], entry: Entry, state: _ChainState
) -> Iterator[str]:
    """Problems of one entry."""
    if row["id"] != number or entry.index != number:
        yield f"its number is {row['id']}, so entries are missing or were inserted."
    if row["hash"] != entry.hash:
        yield "its record does not match its hash: it was changed."
    if entry.previous != state.head:
        yield "it does not follow from the previous one: entries were changed or removed."
    if any(row[name] != getattr(entry, name) for name in _REPEATED_COLUMNS):
        yield "its columns do not match its record: it was changed."
    answer = row["answer"]
    if entry.answer != (digest(answer) if isinstance(answer, bytes) else None):
        yield "its answer does not match its hash: it was changed."
    if entry.extension is not None or entry.outcome == "extended":
        yield from _extension_problems(entry, state)
    elif entry.settles is not None:
        yield from _settlement_problems(entry, state)
    elif entry.event is None:
        yield "it charges no event."
    else:
        yield from _cost_problems(entry, entry.event, state)


def _extension_problems(entry: Entry, state: _ChainState) -> Iterator[str]:
    """Problems of an extension; a valid one is applied to the state."""
    if entry.extension is None or entry.outcome != "extended" or entry.cost or entry.cost_delta:
        yield "it is marked as an extension, but is not one."
        return
    try:
        state.caps = state.caps.extended(
            *entry.extension, entry.index, after_releases=state.released
        )
    except (ValueError, TypeError) as error:
        yield f"it should have been refused: {error}"
        return
    number = state.caps.extensions[-1].filter
    state.add(state.caps.accounts(number), number)


def _settlement_problems(entry: Entry, state: _ChainState) -> Iterator[str]:
    """Problems of a settlement: it must settle an open reservation, without cost or refund."""
    reservation = state.open.get(entry.settles or 0)
    if reservation is None or entry.settles in state.settled:
        yield f"it settles entry {entry.settles}, which is not an open reservation."
        return
    if reservation.outcome == "run":
        allowed = {"abandoned"}
    else:
        allowed = {"abandoned", "superseded", "failed"}
    if entry.outcome not in (allowed if entry.answer is None else {"answered"}) or (
        entry.answer is not None and reservation.outcome == "run"
    ):
        yield f"it settles entry {entry.settles} as {entry.outcome}."
    if entry.cost or entry.cost_delta or entry.run != reservation.run:
        yield f"it settles entry {entry.settles} of another run, or at a cost."


def _cost_problems(entry: Entry, event: Event, state: _ChainState) -> Iterator[str]:
    """Problems of a charge: it must debit the cost of its event to the right account."""
    caps, opening = state.caps, state.caps.opening
    try:
        opening.check(event, entry.partition)
        account, cost = _expected_debit(entry, event, state)
    except (ValueError, BudgetError, LedgerError) as error:
        yield f"it should have been refused: {error}"
        return
    if entry.filter is not None and entry.filter not in caps.filters:
        yield f"it debits filter {entry.filter}, which did not exist."
    if account != entry.account:
        yield f"it debits {entry.account!r} instead of {account!r}."
    # Another version of the accountant may differ by one unit, in the last digits of a float.
    slack = 0 if opening.rule.kind in ("pure", "plan") or entry.filter is None else 1
    if entry.cost < cost.amount - slack or entry.cost_delta < cost.delta - slack:
        yield f"it was charged {entry.cost} and costs {cost.amount}, in the ledger's units."


def _expected_debit(entry: Entry, event: Event, state: _ChainState) -> tuple[str | None, Cost]:
    """The account and cost that an entry should have, given the entries before it."""
    opening, rule = state.caps.opening, state.caps.opening.rule
    if entry.outcome == "run":
        if isinstance(rule, Planned) or entry.partition is None or entry.filter is None:
            raise ValueError("it begins a run, which this ledger cannot have.")
        if compose_items(entry.items, entry.partition) != event:
            raise ValueError("its event is not the composition of its items.")
        first = entry.run not in state.runs
        if (entry.run != len(state.runs) + first) or (entry.request is not None) != first:
            raise ValueError(f"it begins run {entry.run} out of order.")
        cost = rule.run_cost(event, opening.budget, entry.delta)
        return account_name(entry.partition, entry.filter), cost
    if entry.items:
        raise ValueError("it lists items, but begins no run.")
    if entry.run is not None:
        return _find_item(entry, event, state), Cost(1)
    if isinstance(rule, Planned):
        opening.cost(event, entry.delta)
        return rule.item(entry.purpose, event, entry.partition), Cost(1)
    if entry.filter is None:
        raise ValueError("it debits no filter.")
    key = (event, entry.delta)
    if key not in state.costs:
        state.costs[key] = opening.cost(*key)
    account = None if entry.partition is None else account_name(entry.partition, entry.filter)
    return account, state.costs[key]


def _find_item(entry: Entry, event: Event, state: _ChainState) -> str:
    """The account of the item that a charge of a run uses."""
    entries = state.runs.get(entry.run or 0, [])
    if not entries or entries[0].index in state.settled:
        raise ValueError(f"run {entry.run} was not begun, or was abandoned.")
    for i, item in enumerate(run_items(entries)):
        if (item.purpose, item.event, item.partition) == (
            entry.purpose,
            event,
            entry.partition,
        ):
            return item_account(entries[0].run or 0, i)
    raise ValueError(f"run {entry.run} lists no such item.")


def _run_problems(state: _ChainState) -> Iterator[str]:
    """Problems of runs: every item must be charged to every partition that it reads."""
    partitions = state.caps.opening.partitions
    for number, entries in state.runs.items():
        listed: dict[str, tuple[Item, ...]] = {
            entry.partition or "": entry.items for entry in entries
        }
        for item in run_items(entries):
            for partition in partitions if item.partition is None else (item.partition,):
                if item not in listed.get(partition, ()):
                    yield f"Run {number} did not charge {item.purpose!r} to part {partition!r}."
        if len({entry.filter for entry in entries}) != 1 or len(listed) != len(entries):
            yield f"Run {number} was not charged once to one filter."


def _sum_problems(connection: sqlite3.Connection, state: _ChainState) -> Iterator[str]:
    """Problems of accounts: each must exist, with its total and the sum of its entries."""
    balances = {name: (spent, total) for name, spent, total in storage.balances(connection)}
    totals = state.totals
    filters = dict(connection.execute("SELECT name, filter FROM accounts"))
    for name in sorted({*balances, *totals, *state.spent}, key=repr):
        if name not in balances or name not in totals:
            problem = "missing" if name in totals else "not in the opening"
            yield f"Account {name!r} is {problem}."
            continue
        spent, total = balances[name]
        if total != totals[name]:
            yield f"Account {name!r} does not have the total that it was opened with."
        if filters[name] != state.filters[name]:
            yield f"Account {name!r} was moved to another filter."
        if spent != state.spent[name]:
            yield f"Account {name!r} says {spent}; its entries sum to {state.spent[name]}."
        if not state.spent[name].within(totals[name]):
            yield f"Account {name!r} was overspent."


def _plan_problems(opening: Opening) -> Iterator[str]:
    """Problems of a plan: it must cost at most its stated epsilon."""
    if not isinstance(opening.rule, Planned):
        return
    for partition in opening.partitions:
        epsilon = planned_epsilon(opening.rule.items, opening.budget, partition)
        stated = opening.rule.epsilons.get(partition, 0.0)
        # The accountant works on a grid, so its results may differ in the last digits.
        if epsilon > stated * (1 + 1e-6) or stated > opening.budget.epsilon:
            yield (
                f"The plan for partition {partition!r} costs epsilon={format_up(epsilon, 9)}, not "
                f"{format_up(stated, 9)}."
            )
