"""Killed at any line of reserve, compute and record, a request is charged and answered once.

A child asks for an answer that is reserved first, begins a run, or raises the caps, and is
killed (SIGKILL) as it reaches a line, the first time and the last. Then the ledger must verify;
if records were read, the reservation must be there, and paid; and the request, made again, must
end as if nothing had happened: one charge (one for each attempt where a hook may have seen
weights), one answer, and a failure is an answer. For a plain fit that is every line of the
ledger's modules; for the other kinds every line of those modules that do something else for
them.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from assurance import gate_kill, ledgers, slim
from assurance.gate_kill import COST, Point, Request, fresh, state, traced
from veracal.errors import AnswerError, LedgerError
from veracal.privacy.budget import Budget
from veracal.privacy.events import Pure
from veracal.privacy.ledger import reservations as ledger_reservations
from veracal.privacy.ledger import runs as ledger_runs
from veracal.privacy.ledger import store as ledger_store
from veracal.privacy.ledger import tables as ledger_tables
from veracal.privacy.ledger.book import Ledger, open_ledger
from veracal.privacy.ledger.chain import Entry
from veracal.privacy.ledger.charge import Asked, enter
from veracal.privacy.ledger.plan import Item

NAME = "reservation_kill"
SECONDS = 30
COMPUTE = "veracal.privacy.ledger.reservations.compute_once"
RESERVE = "veracal.privacy.ledger.reservations.reserve"
SETTLE = "veracal.privacy.ledger.reservations.settle"
READ = ".read"  # ending of a file that says that records were read
ITEMS = [Item("x", Pure(0.1), 2, "train"), Item("y", Pure(0.2), 1, "test")]
Compute = Callable[[], bytes]


def draw(ledger: Ledger) -> bytes:
    """An answer that no second draw equals."""
    Path(f"{ledger.path}{READ}").touch()
    return os.urandom(16)


def fail(ledger: Ledger) -> bytes:
    """A computation that ends in an error."""
    Path(f"{ledger.path}{READ}").touch()
    raise ZeroDivisionError


def fit(
    compute: Callable[[Ledger], bytes], *, every_attempt: bool = False
) -> Callable[[Ledger], bytes]:
    """A request for an answer that is reserved."""
    return lambda ledger: ledger.compute_once(
        COST,
        "gate",
        lambda: compute(ledger),
        request="new",
        body=b"?",
        part="train",
        every_attempt=every_attempt,
    )


def begin(ledger: Ledger) -> bytes:
    """A run; its number as bytes."""
    return b"%d" % ledger.begin_run(ITEMS, name="run", request="new", body=b"?").run


def extend(ledger: Ledger) -> Entry:
    """An extension."""
    return ledger.extend(epsilon=0.5)


REQUESTS = {
    "fit": Request(fit(draw)),
    "failing fit": Request(fit(fail), AnswerError),
    "run": Request(begin),
    "fit with a hook": Request(fit(draw, every_attempt=True)),
    "extension": Request(extend),
}
KILLED_IN = {  # where lines are reached for the kinds but the first, which is killed everywhere
    "failing fit": {"reservations.py", "gate_reservation_kill.py"},
    "run": {"runs.py", "tables.py"},
    "fit with a hook": {"reservations.py", "gate_reservation_kill.py"},
    "extension": {"book.py", "tables.py"},
}


# ---------------------------------------------------------------- mutants

RESERVED, SETTLED, APPENDED = (  # before any patch
    ledger_reservations.reserve,
    ledger_reservations.settle,
    ledger_runs._append,
)


def compute_inside(path: Path, asked: Asked, compute: Compute) -> object:
    """Compute inside the transaction that charges, as fits were kept before."""
    return enter(path, asked, compute)


def compute_first(path: Path, asked: Asked, compute: Compute) -> object:
    """Compute, and reserve afterwards."""
    try:
        answer: bytes | None = compute()
    except ZeroDivisionError:
        answer = None
    entry, settled = RESERVED(path, asked)
    settled = settled or SETTLED(path, entry.index, answer)
    return settled[0], ledger_reservations.answer_of(settled, asked.request)


def refund_failures(path: Path, index: int, answer: bytes | None) -> object:
    """Give back what was reserved for something that failed."""
    if answer is not None:
        return SETTLED(path, index, answer)
    with ledger_store.writing(path) as connection:
        entry = ledger_tables.entry(connection, index)
        connection.execute(
            "UPDATE accounts SET spent = spent - ? WHERE name = ?", (entry.cost, entry.account)
        )
        connection.execute("DELETE FROM entries WHERE id = ?", (index,))
    raise AnswerError("failed")


def attempts_for_nothing(path: Path, asked: Asked) -> object:
    """Repeat under the same reservation, whatever has been seen of it."""
    return RESERVED(path, replace(asked, reservation="once"))


def always_charged(path: Path, asked: Asked) -> object:
    """Charge every attempt."""
    return RESERVED(path, replace(asked, reservation="every attempt"))


def append_one_by_one(connection, asked, run, number, costs) -> None:
    """Commit each part of a run by itself."""
    appended = ledger_tables.append

    def append(connection, entry, answer, adds=0) -> None:
        if not adds:
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
        appended(connection, entry, answer, adds)

    ledger_tables.append = append
    try:
        APPENDED(connection, asked, run, number, costs)
    finally:
        ledger_tables.append = appended


CORRECT = ledgers.CORRECT
MUTANTS = {
    "fit inside the write transaction, as before": {COMPUTE: compute_inside},
    "reservation not durable before compute": {COMPUTE: compute_first},
    "refund on failure": {
        SETTLE: refund_failures,
        ledgers.SCHEMA: ledgers.without(
            r"CREATE TRIGGER entries_last[^;]*;[^;]*;",
            r"CREATE TRIGGER accounts_stay[^;]*;[^;]*;",
        ).replace("END;\n END;", "END;"),
    },
    "attempts with a hook for nothing": {RESERVE: attempts_for_nothing},
    "every attempt charged": {RESERVE: always_charged},
    "parts of a run in transactions of their own": {
        "veracal.privacy.ledger.runs._append": append_one_by_one
    },
}


# ---------------------------------------------------------------- measurement


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Measure in a process that forks quickly."""
    name = next((name for name, mutant in MUTANTS.items() if mutant is subject), "")
    return slim.measured(NAME, name, long=long)


def measure(subject: ledgers.Patches, *, long: bool) -> str:
    """Kill at every line, in two processes at a time; ``long`` changes nothing."""
    gate_kill.WATCHED.add(str(Path(__file__)))
    with ledgers.patched(subject) as folder:
        open_ledger(folder / "ledger", Budget(1.0), parts=("train", "test"))
        content = (folder / "ledger").read_bytes()
        halves = [list(REQUESTS)[:1], list(REQUESTS)[1:]]
        children = [
            ledgers.fork(lambda i=i: kinds(halves[i], folder / str(i), content))
            for i in range(2)
        ]
        found = [ledgers.result(*child) for child in children]
    for told in found:
        assert isinstance(told, int), told
    return f"{sum(found):,} kills at the lines of {len(REQUESTS)} kinds of request: none bad"


def kinds(names: list[str], place: Path, content: bytes) -> int | str:
    """Kill and judge some kinds of request; the number of kills, or what went wrong."""
    kills, read = 0, Path(f"{place}{READ}")
    failed = place.with_name(
        "failed"
    )  # the other process has found something, and that is enough
    try:
        for kind in names:
            place.write_bytes(content)
            judged = set()
            for point, visit in points(place, kind):
                if failed.exists():
                    return kills
                read.unlink(missing_ok=True)
                fresh(place, content)
                kill(place, REQUESTS[kind], point, visit)
                kills += 1
                if (left := (state(place), read.exists())) not in judged:
                    where = f"{kind}, killed at {Path(point[0]).name}:{point[1]}"
                    judge(kind, REQUESTS[kind], Ledger(place), read.exists(), where)
                    judged.add(left)
            fresh(place, content)
    except (AssertionError, LedgerError) as broken:
        failed.touch()
        return str(broken)
    return kills


def points(path: Path, kind: str) -> list[tuple[Point, int]]:
    """Lines that a request reaches, each with its first and its last visit; last ones first."""
    visits: Counter[Point] = Counter()
    child, reader = ledgers.fork(
        lambda: traced(path, REQUESTS[kind], lambda point: visits.update([point])) or visits
    )
    found = ledgers.result(child, reader)
    assert isinstance(found, Counter) and len(found) > 20, "the request reached hardly a line"
    within = KILLED_IN.get(kind)
    return [
        (point, visit)
        for point, last in reversed(found.items())
        if within is None or Path(point[0]).name in within
        for visit in sorted({1, last})
    ]


def kill(path: Path, request: Request, point: Point, visit: int) -> None:
    """Make a request in a child that is killed as it reaches a line for the n-th time."""
    left = visit

    def reach(reached: Point) -> None:
        nonlocal left
        left -= reached == point
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    child, reader = ledgers.fork(lambda: traced(path, request, reach))
    os.close(reader)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the child reached its end before {point}"


def judge(kind: str, request: Request, ledger: Ledger, read: bool, where: str) -> None:
    """Open the ledger after the kill, make the request again, and compare."""
    found = ledgers.verified(ledger)
    if kind == "run":
        assert len(found) in (0, 2), f"{where}: {len(found)} of 2 parts charged"
        results = {begin(ledger), begin(ledger)}
        assert results == {b"1"} and len(ledgers.verified(ledger)) == 2, f"{where}: not once"
        assert [ledger.spent(part).epsilon for part in ("train", "test")] == [0.2, 0.2]
        Ledger(ledger.path, run=1).charge(Pure(0.2), "y", part="test")
        return
    if kind == "extension":
        assert ledger.budget.epsilon == 1 + 0.5 * len(found), f"{where}: caps do not match"
        ledger.charge(Pure(0.5 + 0.5 * len(found)), "x")
        return
    reserved = [entry for entry in found if entry.outcome == "reserved"]
    assert bool(reserved) >= read, f"{where}: records were read, and nothing was reserved"
    check_paid(ledger, reserved, where)
    pending = len(ledger.pending())
    results = [outcome(request, ledger, where) for _ in range(2)]
    assert results[0] == results[1], f"{where}: two answers to one request"
    after = [entry for entry in ledgers.verified(ledger) if entry.outcome == "reserved"]
    charged_anew = kind == "fit with a hook" and pending
    due = max(1, len(reserved)) + bool(charged_anew)
    assert len(after) == due, f"{where}: {len(after)} charges where {due} are due"
    check_paid(ledger, after, where)
    assert ledger.pending() == (), f"{where}: a reservation is left"


def check_paid(ledger: Ledger, reserved: list[Entry], where: str) -> None:
    """Every reservation was paid for, and nothing else."""
    spent = ledger.spent("train").epsilon
    assert spent == COST.epsilon * len(reserved), f"{where}: {spent} for {len(reserved)}"


def outcome(request: Request, ledger: Ledger, where: str) -> object:
    """How a request ends, which must be as its kind does: an answer, or a failure."""
    try:
        found: object = request.make(ledger)
    except AnswerError:
        found = AnswerError
    expected = request.refusal or bytes
    assert found is expected or isinstance(found, expected), f"{where}: ended in {found!r}"
    return found
