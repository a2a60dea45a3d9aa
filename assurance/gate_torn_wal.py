"""A torn or corrupted log contains a prefix of the committed entries, and nothing else.

Answers are committed to a ledger whose log is kept. Then the log is cut at a random byte, or
its tail is overwritten, as when the machine stops while it writes; and a byte is flipped, as
when a disk rots. Every commit that lies whole before the damage must be there, everything that
is there must verify, and the ledger must continue from it.

A disk that keeps its word (fsync) tears only what was never acknowledged. One that does not can
lose acknowledged charges, which no program on the same machine can detect: hence ``Ledger.head``.
"""

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

from assurance import ledgers
from veracal.accounting.events import Budget, Pure
from veracal.errors import VeracalError
from veracal.ledger.chain import digest
from veracal.ledger.ledger import Ledger, open_ledger

NAME = "torn_wal"
LONG = True
COST = Pure(0.001)
ANSWERS = 30

CORRECT = ledgers.CORRECT
MUTANTS = {
    "M18 charge after answer": ledgers.AFTERWARDS,
    "two statements without a transaction": ledgers.APART,
}


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Tear the log in three ways."""
    trials = 1_000 if long else 100
    pick = random.Random(0)
    with ledgers.patched(subject) as folder:
        content, log, ends, answers = committed(folder / "ledger")
        for trial in range(trials):
            damage = pick.randrange(len(log) + 1)
            torn = (cut, overwritten, flipped)[trial % 3](log, damage, pick)
            place = folder / "torn"
            place.write_bytes(content)
            Path(f"{place}-wal").write_bytes(torn)
            whole = sum(end <= damage for end in ends)
            judge(Ledger(place), answers[:whole])
            for ending in ("", "-wal", "-shm"):
                Path(f"{place}{ending}").unlink(missing_ok=True)
    return f"{trials:,} torn logs: each a prefix of {ANSWERS} commits, no answer changed"


def committed(path: Path) -> tuple[bytes, bytes, list[int], list[bytes]]:
    """A ledger file, its log, where each commit ends in it, and the answers."""
    ledger = open_ledger(path, Budget(1.0))
    log = Path(f"{path}-wal")
    ends, answers = [], []
    with closing(sqlite3.connect(path)) as other:  # as long as it is open, the log stays
        other.execute("SELECT * FROM opening").fetchall()
        for i in range(ANSWERS):
            answers.append(ask(ledger, i))
            ends.append(log.stat().st_size)
        return path.read_bytes(), log.read_bytes(), ends, answers


def ask(ledger: Ledger, number: int) -> bytes:
    """One request; its answer is new each time it is drawn."""
    return ledger.answer(COST, "gate", lambda: os.urandom(64), request=f"{number}", body=b"")[1]


def cut(log: bytes, at: int, pick: random.Random) -> bytes:
    """The log up to a byte."""
    return log[:at]


def overwritten(log: bytes, at: int, pick: random.Random) -> bytes:
    """The log with another end, zeros or noise, as long as it was."""
    rest = len(log) - at
    return log[:at] + (bytes(rest) if pick.random() < 0.5 else pick.randbytes(rest))


def flipped(log: bytes, at: int, pick: random.Random) -> bytes:
    """The log with one bit changed."""
    at = min(at, len(log) - 1)
    return log[:at] + bytes([log[at] ^ (1 << pick.randrange(8))]) + log[at + 1 :]


def judge(ledger: Ledger, answers: list[bytes]) -> None:
    """Exactly the complete commits are there, unchanged, and the ledger continues from them."""
    found = ledgers.verified(ledger)
    kept = [entry.answer for entry in found]
    assert kept == [digest(answer) for answer in answers], (
        f"{len(kept)} entries where {len(answers)} commits are whole"
    )
    assert ledger.spent().epsilon == len(found) / 1_000, "not all answers are paid"
    try:
        for i, answer in enumerate(answers[-1:], start=len(answers) - 1):
            assert ask(ledger, i) == answer, "an answer has changed"
        ledger.charge(COST, "afterwards")
    except VeracalError as error:
        raise AssertionError(str(error)) from error
    assert len(ledgers.verified(ledger)) == len(found) + 1
