"""Eight processes that race for one budget are granted exactly what it affords."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from assurance import ledgers
from veracal.errors import BudgetError, VeracalError
from veracal.privacy.budget import Budget
from veracal.privacy.events import Pure
from veracal.privacy.ledger import charge as ledger_charge
from veracal.privacy.ledger import store as ledger_store
from veracal.privacy.ledger import tables as ledger_tables
from veracal.privacy.ledger.book import Ledger, open_ledger
from veracal.privacy.ledger.charge import Asked

NAME = "race"
PROCESSES = 8
ROUNDS = 4  # as one may go by without two processes at the last of the budget at once
COST = Pure(0.003)


def check_outside(path: Path, asked: Asked, compute: Callable[[], bytes] | None) -> object:
    """Check in one transaction, compute, and charge in another."""
    with ledger_store.reading(path) as connection:
        due = ledger_charge.affordable(connection, asked)
    answer = None if compute is None else compute()
    with ledger_store.writing(path) as connection:
        entry = ledger_charge._entry(connection, asked, due, "answered", answer)
        ledger_tables.append(connection, entry, answer)
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
    """Let processes race for half of what they want, or less by a remainder."""
    each = 200 if long else 30
    for _ in range(ROUNDS):
        granted = fair(subject, each)
    return f"{PROCESSES} processes, {PROCESSES * each:,} requests, exactly {granted:,} granted"


def fair(subject: ledgers.Patches, each: int) -> int:
    """Race once; how many requests were granted."""
    affordable = PROCESSES * each // 2
    with ledgers.patched(subject) as folder:
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
    """Ask for one answer after the other."""
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
