"""What a ledger states, and whether it holds together.

The privacy statement covers everything that is charged to a ledger. Verification recomputes every
hash, cost and sum.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from veracal.accounting import (
    Approximate,
    Event,
    Parallel,
    Pure,
    Statement,
    format_up,
    statement,
)
from veracal.errors import BudgetError, LedgerError
from veracal.ledger import storage
from veracal.ledger.chain import Caps, Entry, account_name, digest, item_account, run_items
from veracal.ledger.policies import Cost, Planned, compose_items, find_item, planned_epsilon

if TYPE_CHECKING:
    from veracal.ledger.ledger import Ledger

_MAX_PROBLEMS = 20  # listed in an error
_COLUMNS = ("id", "record", "hash", *storage.COPIED_COLUMNS, "answer")


@dataclass
class _ChainState:
    """The state of a ledger after some of its entries.

    Attributes
    ----------
    caps : Caps
        Including the extensions so far.
    totals, spent : dict from account to Cost
        All accounts so far.
    filters : dict from account to filter
    runs : dict from run to its entries
        The entries that began each run.
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

    def add_accounts(self, accounts: Mapping[str, Cost], filter: int | None = None) -> None:
        """Add accounts."""
        for name, total in accounts.items():
            self.totals[name], self.filters[name] = total, filter
            self.spent.setdefault(name, Cost(0))


def verify_ledger(path: Path, head: str | None = None) -> str:
    """Recompute a ledger and return its head; raise with all problems."""
    with storage.reading(path) as connection:
        opening, first = storage.opening_record(connection)
        state = _ChainState(Caps(opening), first, {first})
        planned = isinstance(opening.rule, Planned)
        state.add_accounts(state.caps.accounts(1), None if planned else 1)
        problems = [
            f"SQLite reports: {message}."
            for (message,) in connection.execute("PRAGMA integrity_check")
            if message != "ok"
        ]
        problems += [
            f"Row {row[1]} of {row[0]} refers to a missing account."
            for row in connection.execute("PRAGMA foreign_key_check")
        ]
        problems += _chain_problems(connection, state)
        problems += _account_problems(connection, state)
    if isinstance(opening.rule, Planned):
        for name in opening.partitions:
            epsilon = planned_epsilon(opening.rule.items, opening.budget, name)
            stated = opening.rule.epsilons.get(name, 0.0)
            # The accountant works on a grid, so its results may differ in the last digits.
            if epsilon > stated * (1 + 1e-6) or stated > opening.budget.epsilon:
                problems.append(
                    f"The plan for partition {name!r} costs epsilon={format_up(epsilon, 9)}, "
                    f"not {format_up(stated, 9)}."
                )
    if head is not None and head not in state.heads:
        problems.append(
            f"The head {head} is not in the chain: the file was replaced by an older copy, or "
            "the chain was rewritten."
        )
    if problems:
        more = len(problems) - _MAX_PROBLEMS
        hidden = (f"There are {more} more problems.",) if more > 0 else ()
        raise LedgerError(f"{path} is damaged.", *problems[:_MAX_PROBLEMS], *hidden)
    return state.head


def _chain_problems(connection: sqlite3.Connection, state: _ChainState) -> Iterator[str]:
    """Problems of the entries, in order; each is applied to the state."""
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
    partitions = state.caps.opening.partitions
    for run, entries in state.runs.items():  # every partition pays for the items that read it
        listed = {entry.partition or "": entry.items for entry in entries}
        for item in run_items(entries):
            for name in partitions if item.partition is None else (item.partition,):
                if item not in listed.get(name, ()):
                    yield f"Run {run} did not charge {item.purpose!r} to partition {name!r}."
        if len({entry.filter for entry in entries}) != 1 or len(listed) != len(entries):
            yield f"Run {run} was not charged once to one filter."


def _advance(entry: Entry, state: _ChainState) -> None:
    """Apply an entry to the state."""
    state.head = entry.hash
    state.heads.add(state.head)
    cost = Cost(entry.cost, entry.cost_delta)
    if entry.account is not None:
        debited = [entry.account]
    else:
        partitions = state.caps.opening.partitions if entry.filter is not None else ()
        debited = [account_name(name, entry.filter or 0) for name in partitions]
    for name in debited:
        state.spent[name] = state.spent.get(name, Cost(0)) + cost
    if entry.outcome == "run" and entry.run is not None:
        entries = state.runs.setdefault(entry.run, [])
        entries.append(entry)
        items = enumerate(run_items(entries))
        state.add_accounts({item_account(entry.run, i): Cost(item.times) for i, item in items})
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
    """Problems of one entry; a valid extension is applied to the state."""
    if row["id"] != number or entry.index != number:
        yield f"its number is {row['id']}, so entries are missing or were inserted."
    if row["hash"] != entry.hash:
        yield "its record does not match its hash: it was changed."
    if entry.previous != state.head:
        yield "it does not follow from the previous one: entries were changed or removed."
    if any(row[name] != getattr(entry, name) for name in storage.COPIED_COLUMNS):
        yield "its columns do not match its record: it was changed."
    answer = row["answer"]
    if entry.answer != (digest(answer) if isinstance(answer, bytes) else None):
        yield "its answer does not match its hash: it was changed."
    if entry.extension is not None or entry.outcome == "extended":
        is_free = not entry.cost and not entry.cost_delta
        if entry.extension is None or entry.outcome != "extended" or not is_free:
            yield "it is marked as an extension, but is not one."
            return
        try:
            state.caps = state.caps.extended(
                *entry.extension, entry.index, after_releases=state.released
            )
        except (ValueError, TypeError) as error:
            yield f"it should have been refused: {error}"
            return
        new = state.caps.extensions[-1].filter
        state.add_accounts(state.caps.accounts(new), new)
    elif entry.settles is not None:
        yield from _settlement_problems(entry, state)
    elif entry.event is None:
        yield "it charges no event."
    else:
        yield from _cost_problems(entry, entry.event, state)


def _settlement_problems(entry: Entry, state: _ChainState) -> Iterator[str]:
    """Problems of a settlement: it must settle an open reservation, without cost or refund."""
    reservation = state.open.get(entry.settles or 0)
    if reservation is None or entry.settles in state.settled:
        yield f"it settles entry {entry.settles}, which is not an open reservation."
        return
    if reservation.outcome == "run":
        allowed = {"abandoned"} if entry.answer is None else set()
    elif entry.answer is None:
        allowed = {"abandoned", "superseded", "failed"}
    else:
        allowed = {"answered"}
    if entry.outcome not in allowed:
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
        entries = state.runs.get(entry.run, [])
        if not entries or entries[0].index in state.settled:
            raise ValueError(f"run {entry.run} was not begun, or was abandoned.")
        position = find_item(run_items(entries), entry.purpose, event, entry.partition)
        if position is None:
            raise ValueError(f"run {entry.run} lists no such item.")
        return item_account(entry.run, position), Cost(1)
    if isinstance(rule, Planned):
        opening.cost(event, entry.delta)
        return rule.item(entry.purpose, event, entry.partition), Cost(1)
    if entry.filter is None:
        raise ValueError("it debits no filter.")
    key = (event, entry.delta)
    if key not in state.costs:
        state.costs[key] = opening.cost(*key)
    name = entry.partition
    return None if name is None else account_name(name, entry.filter), state.costs[key]


def _account_problems(connection: sqlite3.Connection, state: _ChainState) -> Iterator[str]:
    """Problems of accounts: each must exist, with its total and the sum of its entries."""
    balances = storage.balances(connection)
    filters = dict(connection.execute("SELECT name, filter FROM accounts"))
    for name in sorted({*balances, *state.totals, *state.spent}, key=repr):
        if name not in balances or name not in state.totals:
            problem = "missing" if name in state.totals else "not in the opening"
            yield f"Account {name!r} is {problem}."
            continue
        spent, total = balances[name]
        if total != state.totals[name]:
            yield f"Account {name!r} does not have the total that it was opened with."
        if filters[name] != state.filters[name]:
            yield f"Account {name!r} was moved to another filter."
        if spent != state.spent[name]:
            yield f"Account {name!r} says {spent}; its entries sum to {state.spent[name]}."
        if not state.spent[name].within(state.totals[name]):
            yield f"Account {name!r} was overspent."


def ledger_statement(ledger: "Ledger") -> Statement:
    """The privacy statement for everything charged to a ledger, now and later.

    The statement of a plan follows from its fixed list. Any other ledger is a *filter*: costs
    may depend on earlier answers, so the amount spent so far depends on the records, and only
    the whole budget is a guarantee. The statement therefore contains the sum of the caps, and
    says if a cap was raised after releases.

    Parameters
    ----------
    ledger : Ledger

    Examples
    --------
    >>> from veracal.accounting import Budget
    >>> from veracal.ledger import open_ledger
    >>> ledger = open_ledger(getfixture("tmp_path") / "study.ledger", Budget(1.0))
    >>> ledger_statement(ledger).epsilon
    1.0
    """
    budget, rule, partitions = ledger.budget, ledger.opening.rule, ledger.opening.partitions
    entries = [entry for entry in ledger.entries() if entry.event is not None]
    purposes = {item.purpose for entry in entries for item in entry.items}
    purposes |= {entry.purpose for entry in entries if entry.outcome != "run"}
    covers = tuple(sorted(purposes)) or ("nothing yet",)
    if isinstance(rule, Planned):
        nothing = Pure(0.0, budget.relation)
        event: Event = Parallel(
            tuple(compose_items(rule.items, partition) or nothing for partition in partitions)
        )
        planned = tuple(sorted({item.purpose for item in rule.items}))
        return statement(
            event, budget.delta, budget.unit, covers=planned, composition=rule.description
        )
    whole = (
        Pure(budget.epsilon, budget.relation)
        if budget.delta == 0
        else Approximate(budget.epsilon, budget.delta, budget.relation)
    )
    # The budget holds for the unit with all its rows: state it for one row, then set the unit.
    note = ledger.caps.note
    composition = rule.description if note is None else f"{rule.description}; {note}"
    return replace(
        statement(whole, budget.delta, covers=covers, composition=composition),
        epsilon=budget.epsilon,
        unit=budget.unit.name,
        max_contributions=budget.unit.max_contributions,
        accountant="the ledger's filter, which never grants more than the budget",
        sampler="as stated by the entries of the ledger",
        numerics="as stated by the entries of the ledger",
        renyi_epsilon=None,
    )


def ledger_total(ledger: "Ledger") -> str:
    """A sentence about the total cost of everything charged to a ledger.

    It accompanies the statement of a single release, since all releases concern the same
    individuals. It uses the current caps. A plan was charged as a whole and cannot grow.

    Parameters
    ----------
    ledger : Ledger

    Examples
    --------
    >>> from veracal.accounting import Budget
    >>> from veracal.ledger import open_ledger
    >>> ledger = open_ledger(getfixture("tmp_path") / "study.ledger", Budget(1.0))
    >>> ledger_total(ledger)
    'Everything charged to the ledger of these records, including this release, costs at most
    epsilon = 1.'
    """
    caps = ledger.caps
    note, budget = caps.note, caps.budget
    delta = "" if budget.delta == 0 else f", delta = {format_up(budget.delta, 3)}"
    raised = "" if note is None else f" ({note})"
    cost = f"at most epsilon = {format_up(budget.epsilon, 6)}{delta}{raised}"
    planned = isinstance(caps.opening.rule, Planned)
    subject = "The whole plan of" if planned else "Everything charged to"
    return f"{subject} the ledger of these records, including this release, costs {cost}."
