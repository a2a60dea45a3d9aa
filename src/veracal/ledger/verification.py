"""Whether a ledger is what it says: every hash, cost and sum, computed again."""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from veracal.accounting import Event, rounded_up
from veracal.errors import BudgetError, LedgerError
from veracal.ledger import storage as tables
from veracal.ledger.chain import Entry, digest
from veracal.ledger.charging import item_account, items_of_run
from veracal.ledger.plan import Cost, Item, Planned, planned_epsilon
from veracal.ledger.policies import Caps, Opening, account_of
from veracal.ledger.runs import composed
from veracal.ledger.storage import reading

_MOST = 20  # problems to name
_WRITTEN = (  # columns that repeat what the record says
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
_COLUMNS = ("id", "record", "hash", *_WRITTEN, "answer")


@dataclass
class _Walk:
    """Where a walk along the chain has got to.

    Attributes
    ----------
    caps : Caps
        As raised by the extensions so far.
    totals, spent : dict from account to Cost
        Every account that there is so far.
    runs : dict from run to its entries
        The entries that began each run.
    filters : dict from account to filter
    open, settled : dict and set of indexes
        Reservations and runs, which may be settled, and those that were.
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
        """Let accounts come into being."""
        for name, total in accounts.items():
            self.totals[name], self.filters[name] = total, filter
            self.spent.setdefault(name, Cost(0))


def check(path: Path, head: str | None = None) -> str:
    """Recompute a ledger and return its head, or raise with all that is wrong."""
    with reading(path) as connection:
        walk = _start(connection)
        problems = [
            *_file_problems(connection),
            *_chain_problems(connection, walk),
            *_sum_problems(connection, walk),
            *_plan_problems(walk.caps.opening),
        ]
        if head is not None and head not in walk.heads:
            problems.append(
                f"The head {head} is not in the chain: an older copy was put back, or the "
                "ledger rewritten."
            )
    if problems:
        more = len(problems) - _MOST
        hidden = (f"There are {more} problems more.",) if more > 0 else ()
        raise LedgerError(f"{path} is damaged.", *problems[:_MOST], *hidden)
    return walk.head


def _start(connection: sqlite3.Connection) -> _Walk:
    """Begin at the opening."""
    record, first = tables.opening(connection)
    opening = Opening.from_text(record)
    walk = _Walk(Caps(opening), first, {first})
    walk.add(opening.accounts(), None if isinstance(opening.rule, Planned) else 1)
    return walk


def _file_problems(connection: sqlite3.Connection) -> Iterator[str]:
    """What SQLite finds wrong with its file."""
    for (found,) in connection.execute("PRAGMA integrity_check"):
        if found != "ok":
            yield f"SQLite says: {found}."
    for found in connection.execute("PRAGMA foreign_key_check"):
        yield f"Row {found[1]} of {found[0]} names an account that there is not."


def _chain_problems(connection: sqlite3.Connection, walk: _Walk) -> Iterator[str]:
    """What is wrong with the entries, one after the other."""
    rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM entries ORDER BY id")  # noqa: S608
    for place, row in enumerate(rows, start=1):
        found = dict(zip(_COLUMNS, row, strict=True))
        try:
            entry = Entry.from_text(str(found["record"]))
        except LedgerError as error:
            yield f"Entry {place}: {error}"
            return  # nothing after it hangs on anything
        yield from (
            f"Entry {place}: {what}" for what in _entry_problems(place, found, entry, walk)
        )
        _step(entry, walk)
    yield from _run_problems(walk)


def _step(entry: Entry, walk: _Walk) -> None:
    """Go on to the next entry."""
    walk.head = entry.hash
    walk.heads.add(walk.head)
    cost = Cost(entry.cost, entry.cost_delta)
    if entry.account is not None:
        debited = [entry.account]
    else:
        parts = walk.caps.opening.parts if entry.filter is not None else ()
        debited = [account_of(part, entry.filter or 0) for part in parts]
    for name in debited:
        walk.spent[name] = walk.spent.get(name, Cost(0)) + cost
    if entry.outcome == "run" and entry.run is not None:
        begun = walk.runs.setdefault(entry.run, [])
        begun.append(entry)
        items = enumerate(items_of_run(begun))
        walk.add({item_account(entry.run, i): Cost(item.times) for i, item in items})
        if len(begun) == 1:
            walk.open[entry.index] = entry
    elif entry.outcome == "reserved":
        walk.open[entry.index] = entry
    if entry.settles is not None:
        walk.settled.add(entry.settles)
    elif entry.outcome not in ("run", "extended"):
        walk.released = True


def _entry_problems(
    place: int, row: Mapping[str, object], entry: Entry, walk: _Walk
) -> Iterator[str]:
    """What is wrong with one entry."""
    if row["id"] != place or entry.index != place:
        yield f"it is numbered {row['id']}, so entries are missing or were put in."
    if row["hash"] != entry.hash:
        yield "its record does not match its hash: it was changed."
    if entry.previous != walk.head:
        yield "it does not follow from the one before: entries were changed or left out."
    if any(row[name] != getattr(entry, name) for name in _WRITTEN):
        yield "its columns do not match its record: it was changed."
    answer = row["answer"]
    if entry.answer != (digest(answer) if isinstance(answer, bytes) else None):
        yield "its answer does not match its hash: it was changed."
    if entry.extension is not None or entry.outcome == "extended":
        yield from _extension_problems(entry, walk)
    elif entry.settles is not None:
        yield from _settlement_problems(entry, walk)
    elif entry.event is None:
        yield "it charges no event."
    else:
        yield from _cost_problems(entry, entry.event, walk)


def _extension_problems(entry: Entry, walk: _Walk) -> Iterator[str]:
    """Whether caps were raised as an extension may; if so, they are from here on."""
    if entry.extension is None or entry.outcome != "extended" or entry.cost or entry.cost_delta:
        yield "it is no extension, and says that it is one."
        return
    try:
        walk.caps = walk.caps.extended(
            *entry.extension, entry.index, after_releases=walk.released
        )
    except (ValueError, TypeError) as error:
        yield f"it should have been refused: {error}"
        return
    number = walk.caps.extensions[-1].filter
    walk.add(walk.caps.accounts(number), number)


def _settlement_problems(entry: Entry, walk: _Walk) -> Iterator[str]:
    """Whether an entry settles a reservation that was open, at no cost and no refund."""
    reservation = walk.open.get(entry.settles or 0)
    if reservation is None or entry.settles in walk.settled:
        yield f"it settles entry {entry.settles}, which is no open reservation."
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


def _cost_problems(entry: Entry, event: Event, walk: _Walk) -> Iterator[str]:
    """Whether an entry was charged what its event costs, to the account that pays for it."""
    caps, opening = walk.caps, walk.caps.opening
    try:
        opening.check(event, entry.part)
        account, cost = _due(entry, event, walk)
    except (ValueError, BudgetError, LedgerError) as error:
        yield f"it should have been refused: {error}"
        return
    if entry.filter is not None and entry.filter not in caps.filters:
        yield f"it debits filter {entry.filter}, which there was not."
    if account != entry.account:
        yield f"it debits {entry.account!r} instead of {account!r}."
    # By one unit another version of the accountant may differ, in the last digits of a float.
    slack = 0 if opening.rule.kind in ("pure", "plan") or entry.filter is None else 1
    if entry.cost < cost.amount - slack or entry.cost_delta < cost.delta - slack:
        yield f"it was charged {entry.cost} and costs {cost.amount}, in the ledger's units."


def _due(entry: Entry, event: Event, walk: _Walk) -> tuple[str | None, Cost]:
    """Account and cost that an entry should have, by what came before it."""
    opening, rule = walk.caps.opening, walk.caps.opening.rule
    if entry.outcome == "run":
        if isinstance(rule, Planned) or entry.part is None or entry.filter is None:
            raise ValueError("it begins a run where there can be none.")
        if composed(entry.items, entry.part) != event:
            raise ValueError("its event is another than that of its items.")
        first = entry.run not in walk.runs
        if (entry.run != len(walk.runs) + first) or (entry.request is not None) != first:
            raise ValueError(f"it begins run {entry.run} out of order.")
        cost = rule.run_cost(event, opening.budget, entry.delta)
        return account_of(entry.part, entry.filter), cost
    if entry.items:
        raise ValueError("it lists items, and begins no run.")
    if entry.run is not None:
        return _item(entry, event, walk), Cost(1)
    if isinstance(rule, Planned):
        opening.cost(event, entry.delta)
        return rule.item(entry.purpose, event, entry.part), Cost(1)
    if entry.filter is None:
        raise ValueError("it debits no filter.")
    key = (event, entry.delta)
    if key not in walk.costs:
        walk.costs[key] = opening.cost(*key)
    account = None if entry.part is None else account_of(entry.part, entry.filter)
    return account, walk.costs[key]


def _item(entry: Entry, event: Event, walk: _Walk) -> str:
    """Account of the item that a charge of a run uses."""
    begun = walk.runs.get(entry.run or 0, [])
    if not begun or begun[0].index in walk.settled:
        raise ValueError(f"run {entry.run} was not begun, or was abandoned.")
    for i, item in enumerate(items_of_run(begun)):
        if (item.purpose, item.event, item.part) == (entry.purpose, event, entry.part):
            return item_account(begun[0].run or 0, i)
    raise ValueError(f"run {entry.run} lists no such item.")


def _run_problems(walk: _Walk) -> Iterator[str]:
    """Whether every item of a run was charged to every part that it reads."""
    parts = walk.caps.opening.parts
    for number, begun in walk.runs.items():
        listed: dict[str, tuple[Item, ...]] = {entry.part or "": entry.items for entry in begun}
        for item in items_of_run(begun):
            for part in parts if item.part is None else (item.part,):
                if item not in listed.get(part, ()):
                    yield f"Run {number} did not charge {item.purpose!r} to part {part!r}."
        if len({entry.filter for entry in begun}) != 1 or len(listed) != len(begun):
            yield f"Run {number} was not charged once to one filter."


def _sum_problems(connection: sqlite3.Connection, walk: _Walk) -> Iterator[str]:
    """Whether every account is there, with its total and the sum of its entries."""
    found = {name: (spent, total) for name, spent, total in tables.balances(connection)}
    totals = walk.totals
    filters = dict(connection.execute("SELECT name, filter FROM accounts"))
    for name in sorted({*found, *totals, *walk.spent}, key=repr):
        if name not in found or name not in totals:
            what = "missing" if name in totals else "not in the opening"
            yield f"Account {name!r} is {what}."
            continue
        spent, total = found[name]
        if total != totals[name]:
            yield f"Account {name!r} has another total than it was opened with."
        if filters[name] != walk.filters[name]:
            yield f"Account {name!r} was put into another filter."
        if spent != walk.spent[name]:
            yield f"Account {name!r} says {spent}; its entries sum to {walk.spent[name]}."
        if not walk.spent[name].within(totals[name]):
            yield f"Account {name!r} was overspent."


def _plan_problems(opening: Opening) -> Iterator[str]:
    """Whether a plan costs what it was said to cost."""
    if not isinstance(opening.rule, Planned):
        return
    for part in opening.parts:
        epsilon = planned_epsilon(opening.rule.items, opening.budget, part)
        stated = opening.rule.epsilons.get(part, 0.0)
        # Again the last digits of a float, of an accountant that works on a grid.
        if epsilon > stated * (1 + 1e-6) or stated > opening.budget.epsilon:
            told = f"{rounded_up(epsilon, 9)}, not {rounded_up(stated, 9)}"
            yield f"The plan for part {part!r} costs epsilon={told}."
