"""Whether a ledger is what it says: every hash, cost and sum, computed again."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from veracal.errors import BudgetError, LedgerError
from veracal.privacy.costs.statement import rounded_up
from veracal.privacy.events import Event
from veracal.privacy.ledger import tables
from veracal.privacy.ledger.chain import Entry, digest
from veracal.privacy.ledger.opening import Opening
from veracal.privacy.ledger.plan import Planned, planned_epsilon
from veracal.privacy.ledger.store import reading
from veracal.privacy.ledger.units import Cost

_MOST = 20  # problems to name


@dataclass
class _Walk:
    """Where a walk along the chain has got to."""

    opening: Opening
    head: str
    heads: set[str] = field(default_factory=set)
    spent: dict[str, Cost] = field(default_factory=dict)
    costs: dict[tuple[Event, float | None], Cost] = field(default_factory=dict)


def check(path: Path, head: str | None = None) -> str:
    """Recompute a ledger and return its head, or raise with all that is wrong."""
    with reading(path) as connection:
        walk = _start(connection)
        problems = [
            *_file_problems(connection),
            *_chain_problems(connection, walk),
            *_sum_problems(connection, walk),
            *_plan_problems(walk.opening),
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
    spent = dict.fromkeys(opening.accounts(), Cost(0))
    return _Walk(opening, first, {first}, spent)


def _file_problems(connection: sqlite3.Connection) -> Iterator[str]:
    """What SQLite finds wrong with its file."""
    for (found,) in connection.execute("PRAGMA integrity_check"):
        if found != "ok":
            yield f"SQLite says: {found}."
    for found in connection.execute("PRAGMA foreign_key_check"):
        yield f"Row {found[1]} of {found[0]} names an account that there is not."


def _chain_problems(connection: sqlite3.Connection, walk: _Walk) -> Iterator[str]:
    """What is wrong with the entries, one after the other."""
    columns = "id, record, hash, request, account, cost, cost_delta, answer"
    rows = connection.execute(f"SELECT {columns} FROM entries ORDER BY id")  # noqa: S608
    for place, row in enumerate(rows, start=1):
        try:
            entry = Entry.from_text(str(row[1]))
        except LedgerError as error:
            yield f"Entry {place}: {error}"
            return  # nothing after it hangs on anything
        yield from (
            f"Entry {place}: {what}" for what in _entry_problems(place, row, entry, walk)
        )
        walk.head = entry.hash
        walk.heads.add(walk.head)
        cost = Cost(entry.cost, entry.cost_delta)
        for name in walk.spent if entry.account is None else (entry.account,):
            walk.spent[name] = walk.spent.get(name, Cost(0)) + cost


def _entry_problems(
    place: int, row: tuple[object, ...], entry: Entry, walk: _Walk
) -> Iterator[str]:
    """What is wrong with one entry."""
    index, _, stated, request, account, cost, cost_delta, answer = row
    if index != place or entry.index != place:
        yield f"it is numbered {index}, so entries are missing or were put in."
    if stated != entry.hash:
        yield "its record does not match its hash: it was changed."
    if entry.previous != walk.head:
        yield "it does not follow from the one before: entries were changed or left out."
    written = (entry.request, entry.account, entry.cost, entry.cost_delta)
    if (request, account, cost, cost_delta) != written:
        yield "its columns do not match its record: it was changed."
    if entry.answer != (digest(answer) if isinstance(answer, bytes) else None):
        yield "its answer does not match its hash: it was changed."
    yield from _cost_problems(entry, walk)


def _cost_problems(entry: Entry, walk: _Walk) -> Iterator[str]:
    """Whether an entry was charged what its event costs."""
    try:
        walk.opening.check(entry.event, entry.part)
        account = walk.opening.account(entry.event, entry.purpose, entry.part)
        key = (entry.event, entry.delta)
        if key not in walk.costs:
            walk.costs[key] = walk.opening.cost(*key)
    except (ValueError, BudgetError) as error:
        yield f"it should have been refused: {error}"
        return
    cost = walk.costs[key]
    if account != entry.account:
        yield f"it debits {entry.account!r} instead of {account!r}."
    # By one unit another version of the accountant may differ, in the last digits of a float.
    slack = 0 if walk.opening.rule.kind == "pure" else 1
    if entry.cost < cost.amount - slack or entry.cost_delta < cost.delta - slack:
        yield f"it was charged {entry.cost} and costs {cost.amount}, in the ledger's units."


def _sum_problems(connection: sqlite3.Connection, walk: _Walk) -> Iterator[str]:
    """Whether every account is there, with its total and the sum of its entries."""
    found = {name: (spent, total) for name, spent, total in tables.balances(connection)}
    totals = walk.opening.accounts()
    for name in sorted({*found, *totals, *walk.spent}, key=repr):
        if name not in found or name not in totals:
            what = "missing" if name in totals else "not in the opening"
            yield f"Account {name!r} is {what}."
            continue
        spent, total = found[name]
        if total != totals[name]:
            yield f"Account {name!r} has another total than it was opened with."
        if spent != walk.spent[name]:
            yield f"Account {name!r} says {spent}; its entries sum to {walk.spent[name]}."


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
