"""Concurrent processes are granted exactly the remaining budget.

One process is stopped before each SQL statement of its request, in turn, and another makes a
whole request there, where the budget affords one of them: whatever can come between is tried,
and nothing is left to scheduling. Then eight processes race freely; what they are granted must
not depend on who is first.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from assurance import ledgers
from assurance.gate_kill import fresh
from veracal.accounting.events import Budget, Pure
from veracal.errors import BudgetError, VeracalError
from veracal.ledger import charging as ledger_charge
from veracal.ledger import storage as ledger_store
from veracal.ledger.charging import ChargeRequest
from veracal.ledger.ledger import Ledger, open_ledger

NAME = "race"
PROCESSES = 8
WAIT = "veracal.ledger.storage.BUSY_TIMEOUT"
COST = Pure(0.003)


def check_outside(
    path: Path, asked: ChargeRequest, compute: Callable[[], bytes] | None
) -> object:
    """Check in one transaction, compute, and charge in another."""
    with ledger_store.reading(path) as connection:
        due = ledger_charge.debit_for(connection, asked)
    answer = None if compute is None else compute()
    with ledger_store.writing(path) as connection:
        entry = ledger_charge.append_charge(connection, asked, due, "answered", answer)
    return entry, answer


CORRECT = ledgers.CORRECT
MUTANTS = {
    "check outside the transaction": {
        ledgers.ENTER: check_outside,
        ledgers.SCHEMA: ledgers.without(ledgers.NO_MORE),
    },
    "check outside, saved by the constraint": {ledgers.ENTER: check_outside},
    "no lock": {ledgers.WRITING: ledgers.unlocked},
    "M18 charge after answer": ledgers.AFTERWARDS,
    "M17 forget to charge": ledgers.FORGOTTEN,
}


@dataclass(frozen=True)
class Tally:
    """What one process saw."""

    granted: int
    refused: int
    computed: int
    errors: tuple[str, ...]


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Let one process come between, then race for half of what is wanted and a remainder."""
    stops = interrupted(subject)
    each = 200 if long else 30
    granted = fair(subject, each)
    return (
        f"another process before each of {stops} statements: one answer; {PROCESSES} "
        f"processes, {PROCESSES * each:,} requests, exactly {granted:,} granted"
    )


def interrupted(subject: ledgers.Patches) -> int:
    """Let another process make its request before every statement of the first one's."""
    # A request that finds the ledger locked does not wait, because the other one is stopped.
    with ledgers.patched({**subject, WAIT: 0.0}) as folder:
        place = folder / "ledger"
        open_ledger(place, Budget(1.5 * COST.epsilon))
        content = place.read_bytes()
        statements = 0
        while check_one_granted(place, statements):
            statements += 1
            fresh(place, content)
    assert statements > 5, f"a request made only {statements} statements"
    return statements


def check_one_granted(place: Path, number: int) -> bool:
    """Stop a request at a statement, make another one, and let the first continue.

    False if the first has fewer statements.
    """
    (arrived, arrive), (go, let_go) = os.pipe(), os.pipe()
    before = [None] * number  # statements to come before the one

    def visit(statement: str) -> None:
        if before:
            before.pop()
        else:
            os.write(arrive, b"!")
            os.read(go, 1)

    @contextmanager
    def connect(path: Path, *settings: str) -> Iterator[sqlite3.Connection]:
        with CONNECT(path, *settings) as connection:
            connection.set_trace_callback(visit)
            yield connection

    def work() -> Tally:
        os.close(let_go)
        with mock.patch("veracal.ledger.storage.connect", connect):
            return attempt(Ledger(place), 0, 1)

    child, reader = ledgers.fork(work)
    for end in (arrive, go):
        os.close(end)
    stopped = os.read(arrived, 1) == b"!"
    second = attempt(Ledger(place), 1, 1) if stopped else Tally(0, 0, 0, ())
    os.close(let_go)  # from now on it is stopped no more
    os.close(arrived)
    first = ledgers.result(child, reader)
    assert isinstance(first, Tally), "a process ended without a result"
    if not stopped:
        return False
    where = f"stopped at statement {number}"
    if second.errors and "locked" in second.errors[0]:  # then it may ask again
        second = attempt(Ledger(place), 1, 1)
    for tally in (first, second):
        assert not tally.errors, f"{where}: {tally.errors[0]}"
    granted, computed = first.granted + second.granted, first.computed + second.computed
    assert granted == 1, f"{where}: {granted} granted where 1 is affordable"
    assert computed == 1, f"{where}: records read {computed} times for 1 answer"
    ledger = Ledger(place)
    assert len(ledgers.verified(ledger)) == 1, f"{where}: another number of entries"
    assert ledger.spent().epsilon == COST.epsilon, f"{where}: {ledger.spent()} spent"
    return True


CONNECT = ledger_store.connect


def fair(subject: ledgers.Patches, each: int) -> int:
    """Race once; how many requests were granted."""
    affordable = PROCESSES * each // 2
    with ledgers.patched({**subject, WAIT: 600.0}) as folder:
        micro = affordable * 3_000 + 2_999  # the remainder buys nothing
        ledger = open_ledger(folder / "ledger", Budget(micro / 1e6))
        tallies = race(ledger, each)
        errors = [error for tally in tallies for error in tally.errors]
        assert not errors, f"{len(errors)} errors, first {errors[0]}"
        granted = sum(tally.granted for tally in tallies)
        assert granted == affordable, f"{granted} granted where {affordable} are affordable"
        computed = sum(tally.computed for tally in tallies)
        assert computed == granted, f"records read {computed} times for {granted} answers"
        entries = ledgers.verified(ledger)
        assert len(entries) == granted, f"{len(entries)} entries for {granted} answers"
        assert ledger.spent().epsilon == granted * COST.epsilon
        assert sum(tally.refused for tally in tallies) == PROCESSES * each - granted
    return granted


def race(ledger: Ledger, each: int) -> list[Tally]:
    """Start all processes, let them go at once, and collect what they saw."""
    gate, start = os.pipe()

    def compete(name: int) -> Tally:
        os.close(start)
        os.read(gate, 1)  # returns when the parent closes the other end
        return attempt(ledger, name, each)

    children = [ledgers.fork(lambda name=name: compete(name)) for name in range(PROCESSES)]
    os.close(start)
    found = [ledgers.result(*child) for child in children]
    os.close(gate)
    return [tally for tally in found if isinstance(tally, Tally)]


def attempt(ledger: Ledger, name: int, each: int) -> Tally:
    """Request one answer after the other."""
    granted = refused = computed = 0
    errors = []

    def compute() -> bytes:
        nonlocal computed
        computed += 1
        time.sleep(0.001)  # long enough for the others to come between
        return os.urandom(8)

    for i in range(each):
        try:
            ledger.answer(COST, "race", compute, request=f"{name}-{i}", body=b"count")
            granted += 1
        except BudgetError:
            refused += 1
        except (VeracalError, ValueError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    return Tally(granted, refused, computed, tuple(errors))
