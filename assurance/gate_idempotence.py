"""One request id means one charge and one answer, for any number of uses and processes."""

import os
from collections.abc import Callable
from pathlib import Path

from assurance import ledgers
from veracal.accounting.events import Budget, Pure
from veracal.errors import AnswerError, ConflictError, LedgerError
from veracal.ledger import charging as ledger_charge
from veracal.ledger import storage as ledger_store
from veracal.ledger import storage as ledger_tables
from veracal.ledger.charging import ChargeRequest
from veracal.ledger.ledger import Ledger, open_ledger

NAME = "idempotence"
PROCESSES = 8
COST = Pure(0.001)
FIND = "veracal.ledger.storage.find"


def any_body(connection, asked: ChargeRequest) -> object:
    """Find the earlier entry without comparing the requests."""
    return ledger_tables.find(connection, asked.request or "")


def failure_is_free(
    path: Path, asked: ChargeRequest, compute: Callable[[], bytes] | None
) -> object:
    """Let an error undo the charge."""
    with ledger_store.writing(path) as connection:
        if (kept := ledger_charge._find_previous(connection, asked)) is not None:
            return kept
        due = ledger_charge.debit_for(connection, asked)
        try:
            answer = None if compute is None else compute()
        except ZeroDivisionError as error:
            raise AnswerError("failed") from error
        entry = ledger_charge.append_charge(connection, asked, due, "answered", answer)
    return entry, answer


CORRECT = ledgers.CORRECT
MUTANTS = {
    "M19 retry redraws": ledgers.REDRAWN,
    "retry charges again": {
        FIND: lambda connection, request, scope=0: None,
        ledgers.SCHEMA: ledgers.without(ledgers.ONCE),
    },
    "retry is not recognized, saved by the constraint": {
        FIND: lambda connection, request, scope=0: None
    },
    "body ignored": {ledgers.KEPT: any_body},
    "a failure is free": {ledgers.ENTER: failure_is_free},
}


class Records:
    """Records that count how often they are read."""

    def __init__(self) -> None:
        self.read = 0

    def draw(self) -> bytes:
        """A noisy answer."""
        self.read += 1
        return os.urandom(8)

    def fail(self) -> bytes:
        """An error that may depend on the records."""
        self.read += 1
        raise ZeroDivisionError


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Repeat a request, change it, fail, and request from several processes."""
    times = 10_000 if long else 300
    with ledgers.patched(subject) as folder:
        ledger = open_ledger(folder / "ledger", Budget(10.0))
        try:
            same_request(ledger, times)
            other_body(ledger, times)
            failures(ledger, times // 10)
            processes(ledger, times // 10)
        except LedgerError as error:
            raise AssertionError(str(error)) from error
        entries = ledgers.verified(ledger)
        assert len(entries) == 3 and ledger.spent().epsilon == 3 * COST.epsilon
    return (
        f"{times:,} retries: 1 charge, 1 answer; {times:,} other bodies: all conflicts; "
        f"{PROCESSES} processes with one id: 1 entry"
    )


def ask(ledger: Ledger, compute: Callable[[], bytes], request: str, body: bytes) -> bytes:
    """A request for an answer."""
    return ledger.answer(COST, "gate", compute, request=request, body=body)[1]


def same_request(ledger: Ledger, times: int) -> None:
    """The same request is charged and computed once, with one answer."""
    records = Records()
    answers = {ask(ledger, records.draw, "a", b"?") for _ in range(times)}
    assert len(answers) == 1, f"{len(answers)} different answers to one request"
    assert records.read == 1, f"the records were read {records.read} times for one request"
    assert ledger.spent().epsilon == COST.epsilon, f"{ledger.spent()} for one request"


def other_body(ledger: Ledger, times: int) -> None:
    """Another request under an id that was used is a conflict."""
    records, conflicts = Records(), 0
    for i in range(times):
        try:
            ask(ledger, records.draw, "a", b"?%d" % i)
        except ConflictError:
            conflicts += 1
    assert conflicts == times, f"{conflicts} conflicts in {times} other bodies"
    assert records.read == 0, "the records were read for a conflict"
    for event, purpose in ((Pure(0.002), "gate"), (COST, "another")):
        try:
            ledger.answer(event, purpose, records.draw, request="a", body=b"?")
            raise AssertionError("another cost or purpose is no conflict")
        except ConflictError:
            pass


def failures(ledger: Ledger, times: int) -> None:
    """A request that failed was charged once, and keeps being refused without a look."""
    records = Records()
    refusals = set()
    for _ in range(times):
        try:
            ask(ledger, records.fail, "b", b"?")
        except AnswerError as error:
            refusals.add(str(error))
    assert len(refusals) == 1, f"{len(refusals)} different refusals"
    assert records.read == 1, f"the records were read {records.read} times for one failure"


def processes(ledger: Ledger, times: int) -> None:
    """Several processes that use one id at once get one answer."""

    def work() -> tuple[set[bytes], int]:
        records = Records()
        return {ask(ledger, records.draw, "c", b"?") for _ in range(times)}, records.read

    children = [ledgers.fork(work) for _ in range(PROCESSES)]
    found = [ledgers.result(*child) for child in children]
    assert all(isinstance(told, tuple) for told in found), "a process ended in an error"
    answers = set().union(*(told[0] for told in found))
    assert len(answers) == 1, f"{len(answers)} different answers to one request"
    assert sum(told[1] for told in found) == 1, "the records were read more than once"
