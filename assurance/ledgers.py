"""Shared by the gates of the ledger: working folders, forked children, common mutants.

A subject is a set of patches: names in the library and what to put there instead. The correct
subject patches nothing.
"""

import gc
import os
import pickle
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from veracal.errors import LedgerError
from veracal.ledger import charging as ledger_charge
from veracal.ledger import storage as ledger_store
from veracal.ledger import storage as ledger_tables
from veracal.ledger.chain import Entry
from veracal.ledger.charging import ChargeRequest
from veracal.ledger.ledger import Ledger

Patches = Mapping[str, object]
CORRECT: Patches = {}
ENTER = "veracal.ledger.ledger.charge_and_answer"
SCHEMA = "veracal.ledger.storage.SCHEMA"
WRITING = "veracal.ledger.charging.writing"
KEPT = "veracal.ledger.charging._find_previous"


@contextmanager
def patched(patches: Patches, *, disk: bool = False) -> Iterator[Path]:
    """Put the patches in place, and give a folder to work in.

    In memory if possible, unless a disk is required: a kill between
    two lines does not depend on it.
    """
    memory, durable = Path("/dev/shm"), Path("/var/tmp")
    with ExitStack() as stack:
        for name, instead in patches.items():
            stack.enter_context(mock.patch(name, instead))
        place = durable if disk else memory
        where = place if os.access(place, os.W_OK) else None
        yield Path(stack.enter_context(tempfile.TemporaryDirectory(dir=where)))


def fork(work: Callable[[], object]) -> tuple[int, int]:
    """Start a child that does the work; returns its id and where its result can be read."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        gc.disable()  # a collection would touch, and so copy, every page
        try:
            os.close(reader)
            os.write(writer, pickle.dumps(work()))
        finally:
            os._exit(0)
    os.close(writer)
    return child, reader


def result(child: int, reader: int) -> object:
    """What a child returned, or None if it was killed first."""
    with os.fdopen(reader, "rb") as file:
        sent = file.read()
    os.waitpid(child, 0)
    return pickle.loads(sent) if sent else None


def verified(ledger: Ledger) -> tuple[Entry, ...]:
    """The entries of a ledger that holds together."""
    try:
        ledger.verify()
    except LedgerError as error:
        raise AssertionError(str(error)) from error
    return ledger.entries()


# ---------------------------------------------------------------- mutants


def without(*defenses: str) -> str:
    """The tables of a ledger, without some of their triggers and constraints."""
    script = ledger_tables.SCHEMA
    for defense in defenses:
        script, found = re.subn(defense, "", script)
        assert found, f"{defense} is no longer part of the tables"
    return script


DEBIT = r"CREATE TRIGGER entries_debit[^;]*;[^;]*END;"
NO_MORE = r" AND spent <= total(?=\))"
ONCE = r"    UNIQUE \(scope, request\),\n"
SETTLED_ONCE = r"(?<=settles INTEGER) UNIQUE"


def enter_in_two(
    path: Path, asked: ChargeRequest, compute: Callable[[], bytes] | None
) -> object:
    """Keep the answer first, and debit the account in a second transaction."""
    with ledger_store.writing(path) as connection:
        if (kept := ledger_charge._find_previous(connection, asked)) is not None:
            return kept
        due = ledger_charge.debit_for(connection, asked)
        outcome, answer = "charged", None
        if compute is not None:
            try:
                outcome, answer = "answered", compute()
            except Exception:
                outcome = "failed"
        entry = ledger_charge.append_charge(connection, asked, due, outcome, answer)
    with ledger_store.writing(path) as connection:
        debit(connection, entry)
    return entry, answer


def debit(connection, entry: Entry) -> None:
    """What the trigger does."""
    connection.execute(
        "UPDATE accounts SET spent = spent + ? WHERE name = ? OR (? IS NULL AND filter = ?)",
        (entry.cost, entry.account, entry.account, entry.filter),
    )


def append_in_two(connection, entry: Entry, kept: bytes | None, adds: int = 0) -> None:
    """Insert, then debit, each on its own."""
    _insert(connection, entry, kept, adds)
    debit(connection, entry)


@contextmanager
def unlocked(path: Path) -> Iterator[object]:
    """No transaction: every statement separately."""
    with (
        ledger_store.translate_errors(path),
        ledger_store.connect(path, *ledger_store.SETTINGS) as connection,
    ):
        yield connection


def answer_again_with_new_noise(connection, asked: ChargeRequest) -> object:
    """Find the earlier entry, and answer with something new."""
    found = ledger_tables.find(connection, asked.request or "", asked.run or 0)
    if found is None or found[1] is None:
        return found
    return found[0], os.urandom(len(found[1]))


_insert = ledger_tables.append  # before any patch
FORGOTTEN: Patches = {SCHEMA: without(DEBIT)}
AFTERWARDS: Patches = {SCHEMA: without(DEBIT), ENTER: enter_in_two}
REDRAWN: Patches = {KEPT: answer_again_with_new_noise}
APART: Patches = {
    SCHEMA: without(DEBIT),
    WRITING: unlocked,
    "veracal.ledger.storage.append": append_in_two,
}
