"""A thousand kills at random moments: no acknowledged answer is lost, doubled or changed.

A child answers request after request, and acknowledges each answer. It is killed
(SIGKILL) at a random moment, in the middle of SQLite's work as often as not. The ledger is on
a disk here; what a power failure does to a disk is not tested.
"""

import os
import random
import signal
import time

from assurance import ledgers, slim
from veracal.accounting.events import Budget, Pure
from veracal.errors import VeracalError
from veracal.ledger.chain import digest
from veracal.ledger.ledger import Ledger, open_ledger

NAME = "kill_random"
LONG = True
COST = Pure(0.000_001)
WIDTH = 16  # bytes of an answer
AT_ONCE = 40  # kills of one ledger, which is read whole after each

CORRECT = ledgers.CORRECT
MUTANTS = {
    "M18 charge after answer": ledgers.AFTERWARDS,
    "M19 retry redraws": ledgers.REDRAWN,
    "two statements without a transaction": ledgers.APART,
}


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Measure in a process that forks quickly."""
    name = next((name for name, mutant in MUTANTS.items() if mutant is subject), "")
    return slim.measured(NAME, name, long=long)


def measure(subject: ledgers.Patches, *, long: bool) -> str:
    """Kill, open again, compare, retry."""
    kills = 1_000 if long else 100
    pick = random.Random(0)
    told = 0
    with ledgers.patched(subject, disk=True) as folder:
        for kill in range(kills):
            if kill % AT_ONCE == 0:
                ledger = open_ledger(folder / f"{kill}", Budget(1.0))
                known: list[bytes] = []
            answers = killed(ledger, len(known), pick.uniform(0.0, 0.02))
            told += len(answers)
            known += answers
            known.append(judge(ledger, known))
    return f"{kills:,} kills among {told:,} acknowledged answers: none lost, doubled or changed"


def killed(ledger: Ledger, start: int, delay: float) -> list[bytes]:
    """Answers that a child acknowledged before it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for number in range(start, start + 10_000):
                os.write(writer, ask(ledger, number))
        finally:
            os._exit(1)
    os.close(writer)
    first = os.read(reader, WIDTH)  # then it is at full speed
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        sent = first + file.read()
    return [sent[i : i + WIDTH] for i in range(0, len(sent), WIDTH)]


def ask(ledger: Ledger, number: int) -> bytes:
    """One request; its answer is new each time it is drawn."""
    return ledger.answer(
        COST, "gate", lambda: os.urandom(WIDTH), request=f"{number}", body=b""
    )[1]


def judge(ledger: Ledger, known: list[bytes]) -> bytes:
    """Compare with the acknowledged answers, and repeat the request that was in flight."""
    found = ledgers.verified(ledger)
    assert len(known) <= len(found) <= len(known) + 1, (
        f"{len(found)} entries for {len(known)} answers"
    )
    for entry, answer in zip(found, known, strict=False):
        assert entry.answer == digest(answer), f"entry {entry.index} has another answer"
    try:
        if known:
            assert ask(ledger, len(known) - 1) == known[-1], "a retry changed an answer"
        last = ask(ledger, len(known))
    except VeracalError as error:
        raise AssertionError(str(error)) from error
    after = ledgers.verified(ledger)
    assert len(after) == len(known) + 1, f"{len(after)} entries after the retry"
    assert after[-1].answer == digest(last), "the answer is not the one that was kept"
    assert ledger.spent().epsilon == len(after) / 10**6, "not all answers are paid"
    return last
