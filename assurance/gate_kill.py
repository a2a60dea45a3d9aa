"""A process killed at any line of the ledger loses, doubles and changes no charge.

A child makes one request and stops at every line of the ledger's modules that it comes to, each
time it does. The disk then has the state that a kill there would leave. As it comes to a line
with a new state, and to the last one, another child is killed (SIGKILL); with ``long``, at
every line. Then the ledger is opened again: it must verify, contain the old entries, and at
most the one new entry; and the repeated request must end as if nothing had happened.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from assurance import ledgers, slim
from veracal import ledger
from veracal.accounting.events import Budget, Pure
from veracal.errors import AnswerError, BudgetError, ConflictError, LedgerError
from veracal.ledger.chain import Entry, digest
from veracal.ledger.ledger import Ledger, open_ledger

NAME = "kill"
SECONDS = 5
COST = Pure(0.25)
ROOM = Path(ledger.__file__).parent
WATCHED = {
    str(path)
    for path in (
        *ROOM.glob("*.py"),
        Path(ledgers.__file__),
        Path(__file__),
    )
}
Point = tuple[str, int]
Make = Callable[[Ledger], object]


def draw() -> bytes:
    """An answer that no second draw equals."""
    return os.urandom(16)


def fail() -> bytes:
    """A computation that ends in an error."""
    raise ZeroDivisionError


def answer(
    compute: Callable[[], bytes], request: str, body: bytes
) -> Callable[[Ledger], bytes]:
    """A request for an answer."""
    return lambda ledger: ledger.answer(COST, "gate", compute, request=request, body=body)[1]


@dataclass(frozen=True)
class Request:
    """A kind of request: how to make it, how it ends, and what it adds."""

    make: Make
    refusal: type[Exception] | None = None
    adds: int = 0


REQUESTS = {
    "answer": Request(answer(draw, "new", b"?"), adds=1),
    "retry": Request(answer(draw, "old", b"?")),
    "charge": Request(lambda ledger: ledger.charge(COST, "gate", request="new"), adds=1),
    "charge without id": Request(lambda ledger: ledger.charge(COST, "gate"), adds=1),
    "failure": Request(answer(fail, "new", b"?"), AnswerError, adds=1),
    "retry of a failure": Request(answer(draw, "failed", b"?"), AnswerError),
    "conflict": Request(answer(draw, "old", b"!"), ConflictError),
    "overspend": Request(lambda ledger: ledger.charge(Pure(0.51), "gate"), BudgetError),
}


CORRECT = ledgers.CORRECT
MUTANTS = {
    "M18 charge after answer": ledgers.AFTERWARDS,
    "M19 retry redraws": ledgers.REDRAWN,
    "M17 forget to charge": ledgers.FORGOTTEN,
    "two statements without a transaction": ledgers.APART,
}


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Measure in a process that forks quickly."""
    name = next((name for name, mutant in MUTANTS.items() if mutant is subject), "")
    return slim.measured(NAME, name, long=long)


def measure(subject: ledgers.Patches, *, long: bool) -> str:
    """Kill wherever it matters, in two processes at a time."""
    with ledgers.patched(subject) as folder:
        before = prepared(folder / "ledger")
        content = (folder / "ledger").read_bytes()
        halves = [list(REQUESTS)[0::2], list(REQUESTS)[1::2]]
        children = [
            ledgers.fork(lambda i=i: kinds(halves[i], folder / str(i), content, before, long))
            for i in range(2)
        ]
        found = [ledgers.result(*child) for child in children]
    for told in found:
        assert isinstance(told, tuple), told
    stops, kills = (sum(told[i] for told in found) for i in range(2))
    return f"{stops:,} stops and {kills:,} kills in {len(REQUESTS)} kinds of request: none bad"


def kinds(
    names: list[str], place: Path, content: bytes, before: tuple[Entry, ...], long: bool
) -> tuple[int, int] | str:
    """Kill and judge some kinds of request: stops and kills, or what went wrong."""
    stops = kills = 0
    try:
        for kind in names:
            fresh(place, content)
            walk = list(walked(place, REQUESTS[kind], lambda: state(place)))
            assert len(walk) > 20, f"{kind}: the request reached hardly a line"
            stops += len(walk)
            judged = set()
            every = [number for number, stop in enumerate(walk) if stop.visit == 1]
            for number in reversed(every if long else changes(walk)):  # the last tell most
                fresh(place, content)
                killed(place, REQUESTS[kind], walk[number])
                kills += 1
                if (left := state(place)) not in judged:  # equal files have one future
                    judge(kind, REQUESTS[kind], Ledger(place), before, walk[number].point)
                    judged.add(left)
            fresh(place, content)
    except AssertionError as broken:
        return str(broken)
    return stops, kills


def state(place: Path) -> tuple[bytes, bytes]:
    """The file and its log after a kill. The third file is rebuilt from these."""
    log = Path(f"{place}-wal")
    return place.read_bytes(), log.read_bytes() if log.exists() else b""


def fresh(place: Path, content: bytes) -> None:
    """Put the prepared ledger in place of whatever is there."""
    for ending in ("", "-wal", "-shm"):
        Path(f"{place}{ending}").unlink(missing_ok=True)
    place.write_bytes(content)


def prepared(path: Path) -> tuple[Entry, ...]:
    """A ledger with an answer and a failure in it, and half of its budget left."""
    ledger = open_ledger(path, Budget(1.0))
    answer(draw, "old", b"?")(ledger)
    with suppress(AnswerError):
        answer(fail, "failed", b"?")(ledger)
    return ledger.entries()


@dataclass(frozen=True)
class Stop:
    """A line that a request comes to, for the n-th time, and what lies on the disk then."""

    point: Point
    visit: int
    left: object


def walked(path: Path, request: Request, look: Callable[[], object]) -> Iterator[Stop]:
    """Every line that a request comes to, each time it does."""
    # The parent looks: a process that closes a file loses the locks that SQLite has on it.
    told, go = os.pipe(), os.pipe()

    def visit(point: Point) -> None:
        os.write(told[1], f"{point[1]} {point[0]}\n".encode())
        os.read(go[0], 1)

    child, reader = ledgers.fork(lambda: traced(path, request, visit))
    os.close(told[1])
    visits: Counter[Point] = Counter()
    with os.fdopen(told[0], "rb") as messages, os.fdopen(go[1], "wb", buffering=0) as on:
        for message in messages:
            line, _, file = message.decode().rstrip("\n").partition(" ")
            point = file, int(line)
            visits[point] += 1
            yield Stop(point, visits[point], look())
            on.write(b".")
    os.close(go[0])
    ledgers.result(child, reader)


def changes(walk: list[Stop]) -> list[int]:
    """Stops at which something new lies on the disk, and the last."""
    after = [i for i in range(len(walk)) if i == 0 or walk[i].left != walk[i - 1].left]
    return sorted({*after, len(walk) - 1})


def killed(path: Path, request: Request, stop: Stop) -> None:
    """Make a request in a child that is killed as it comes to a stop."""
    left = stop.visit

    def visit(reached: Point) -> None:
        nonlocal left
        left -= reached == stop.point
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    child, reader = ledgers.fork(lambda: traced(path, request, visit))
    os.close(reader)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the child reached its end before {stop.point}"


def traced(path: Path, request: Request, visit: Callable[[Point], object]) -> None:
    """Make a request, telling of each line it reaches."""
    ledger = Ledger(path)

    def each_line(frame: FrameType, event: str, _: object) -> object:
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            visit((frame.f_code.co_filename, frame.f_lineno))
        return each_line

    sys.settrace(each_line)
    try:
        with suppress(AnswerError, BudgetError, ConflictError):
            request.make(ledger)
    finally:
        sys.settrace(None)


def judge(
    kind: str, request: Request, ledger: Ledger, before: tuple[Entry, ...], point: Point
) -> None:
    """Open the ledger after the kill, make the request again, and compare."""
    where = f"{kind}, killed at {Path(point[0]).name}:{point[1]}"
    found = ledgers.verified(ledger)
    assert found[: len(before)] == before, f"{where}: what was there has changed"
    new = found[len(before) :]
    assert len(new) <= request.adds, f"{where}: {len(new)} new entries"
    spent = COST.epsilon * len(found)
    assert ledger.spent().epsilon == spent, f"{where}: {len(found)} entries, not all paid"
    if kind == "charge without id" and new:
        return  # paid, and nothing was released; made again it is another charge
    result = repeat_request(request, ledger, where)
    after = ledgers.verified(ledger)
    assert len(after) == len(before) + request.adds, f"{where}: charged twice, or not at all"
    assert after[: len(found)] == found, f"{where}: what was there has changed"
    assert ledger.spent().epsilon == COST.epsilon * len(after), f"{where}: not all paid"
    if isinstance(result, bytes):
        (entry,) = [entry for entry in after if entry.answer == digest(result)] or [None]
        assert entry, f"{where}: the answer is not the one that was kept"


def repeat_request(request: Request, ledger: Ledger, where: str) -> object:
    """The result of a request, which must end as its kind does."""
    try:
        result = request.make(ledger)
    except LedgerError as error:
        raise AssertionError(f"{where}: {error}") from error
    except (AnswerError, BudgetError, ConflictError) as refusal:
        result = refusal
    expected = request.refusal or (bytes, Entry)
    assert isinstance(result, expected), f"{where}: ended in {result!r}"
    return result
