"""A request killed at any line of its reservation or fit is charged and answered once.

A child asks for an answer that is reserved first, begins a run, or raises the caps, and stops
at every line of the ledger's modules that it comes to. Where something new lies on the disk
then, and at the last line, another child is killed (SIGKILL); with ``long``, at every line, the
first time it is reached and the last. Then the ledger must verify; if records were read, the
reservation must be there, and paid; and the request, made again, must end as if nothing had
happened: one charge (one for each attempt where a hook may have seen weights), one answer, and
a failure is an answer.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from assurance import gate_kill, ledgers, slim
from assurance.gate_kill import (
    COST,
    Request,
    Stop,
    changes,
    fresh,
    killed,
    state,
    walked,
)
from veracal.accounting.events import Budget, Pure
from veracal.errors import AnswerError, LedgerError
from veracal.ledger import charging as ledger_reservations
from veracal.ledger import charging as ledger_runs
from veracal.ledger import storage as ledger_store
from veracal.ledger import storage as ledger_tables
from veracal.ledger.chain import Entry
from veracal.ledger.charging import ChargeRequest, charge_and_answer
from veracal.ledger.ledger import Ledger, open_ledger
from veracal.ledger.policies import Item

NAME = "reservation_kill"
SECONDS = 8
COMPUTE = "veracal.ledger.charging.compute_once"
RESERVE = "veracal.ledger.charging.reserve"
SETTLE = "veracal.ledger.charging.settle"
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
        partition="train",
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


# ---------------------------------------------------------------- mutants

RESERVED, SETTLED, APPENDED = (  # before any patch
    ledger_reservations.reserve,
    ledger_reservations.settle,
    ledger_runs.append_run,
)


def compute_inside(path: Path, asked: ChargeRequest, compute: Compute) -> object:
    """Compute inside the transaction that charges, as fits were kept before."""
    return charge_and_answer(path, asked, compute)


def compute_first(path: Path, asked: ChargeRequest, compute: Compute) -> object:
    """Compute, and reserve afterwards."""
    try:
        answer: bytes | None = compute()
    except ZeroDivisionError:
        answer = None
    entry, settled = RESERVED(path, asked)
    settled = settled or SETTLED(path, entry.index, answer)
    return settled[0], ledger_reservations.get_answer(settled, asked.request)


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


def attempts_for_nothing(path: Path, asked: ChargeRequest) -> object:
    """Repeat under the same reservation, whatever has been seen of it."""
    return RESERVED(path, replace(asked, reservation="once"))


def always_charged(path: Path, asked: ChargeRequest) -> object:
    """Charge every attempt."""
    return RESERVED(path, replace(asked, reservation="every attempt"))


def append_one_by_one(connection, asked, run, number, costs) -> None:
    """Commit each partition of a run separately."""
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
        "veracal.ledger.charging.append_run": append_one_by_one
    },
}


# ---------------------------------------------------------------- measurement


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Measure in a process that forks quickly."""
    name = next((name for name, mutant in MUTANTS.items() if mutant is subject), "")
    return slim.measured(NAME, name, long=long)


def measure(subject: ledgers.Patches, *, long: bool) -> str:
    """Kill wherever it matters, in two processes at a time."""
    gate_kill.WATCHED.add(str(Path(__file__)))
    with ledgers.patched(subject) as folder:
        open_ledger(folder / "ledger", Budget(1.0), partitions=("train", "test"))
        content = (folder / "ledger").read_bytes()
        halves = [list(REQUESTS)[0::2], list(REQUESTS)[1::2]]
        children = [
            ledgers.fork(lambda i=i: kinds(halves[i], folder / str(i), content, long))
            for i in range(2)
        ]
        found = [ledgers.result(*child) for child in children]
    for told in found:
        assert isinstance(told, tuple), told
    stops, kills = (sum(told[i] for told in found) for i in range(2))
    return f"{stops:,} stops and {kills:,} kills in {len(REQUESTS)} kinds of request: none bad"


def kinds(names: list[str], place: Path, content: bytes, long: bool) -> tuple[int, int] | str:
    """Kill and judge some kinds of request: stops and kills, or what went wrong."""
    stops, kills, read = 0, 0, Path(f"{place}{READ}")

    def left() -> object:
        return state(place), read.exists()

    def begin_anew() -> None:
        read.unlink(missing_ok=True)
        fresh(place, content)

    try:
        for kind in names:
            begin_anew()
            walk = list(walked(place, REQUESTS[kind], left))
            assert len(walk) > 20, f"{kind}: the request reached hardly a line"
            stops += len(walk)
            judged = set()
            for number in reversed(first_and_last(walk) if long else changes(walk)):
                begin_anew()
                killed(place, REQUESTS[kind], walk[number])
                kills += 1
                if (found := left()) not in judged:
                    file, line = walk[number].point
                    where = f"{kind}, killed at {Path(file).name}:{line}"
                    judge(kind, REQUESTS[kind], Ledger(place), read.exists(), where)
                    judged.add(found)
            begin_anew()
    except (AssertionError, LedgerError) as broken:
        return str(broken)
    return stops, kills


def first_and_last(walk: list[Stop]) -> list[int]:
    """Stops at which a line is reached for the first time, or the last."""
    first = [number for number, stop in enumerate(walk) if stop.visit == 1]
    last = {stop.point: number for number, stop in enumerate(walk)}
    return sorted({*first, *last.values()})


def judge(kind: str, request: Request, ledger: Ledger, read: bool, where: str) -> None:
    """Open the ledger after the kill, make the request again, and compare."""
    found = ledgers.verified(ledger)
    if kind == "run":
        assert len(found) in (0, 2), f"{where}: {len(found)} of 2 parts charged"
        results = {begin(ledger), begin(ledger)}
        assert results == {b"1"} and len(ledgers.verified(ledger)) == 2, f"{where}: not once"
        assert [ledger.spent(part).epsilon for part in ("train", "test")] == [0.2, 0.2]
        Ledger(ledger.path, run=1).charge(Pure(0.2), "y", partition="test")
        return
    if kind == "extension":
        assert ledger.budget.epsilon == 1 + 0.5 * len(found), f"{where}: caps do not match"
        ledger.charge(Pure(0.5 + 0.5 * len(found)), "x")
        return
    reserved = [entry for entry in found if entry.outcome == "reserved"]
    assert bool(reserved) >= read, f"{where}: records were read, and nothing was reserved"
    check_charges(ledger, reserved, where)
    pending = len(ledger.pending())
    results = [outcome(request, ledger, where) for _ in range(2)]
    assert results[0] == results[1], f"{where}: two answers to one request"
    after = [entry for entry in ledgers.verified(ledger) if entry.outcome == "reserved"]
    charged_anew = kind == "fit with a hook" and pending
    due = max(1, len(reserved)) + bool(charged_anew)
    assert len(after) == due, f"{where}: {len(after)} charges where {due} are due"
    check_charges(ledger, after, where)
    assert ledger.pending() == (), f"{where}: a reservation is left"


def check_charges(ledger: Ledger, reserved: list[Entry], where: str) -> None:
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
