"""A source that is killed at any line of its code loses, doubles and changes no answer.

A child replies to one request and stops at every line that it reaches, in the source's modules
and in the ledger's. The files at this moment are what a kill would leave. From each such state
the source is opened again: ledger and signed heads must agree, every sent answer must be
recorded, and the same request must end as without the kill. Where files changed between two
lines, the child is also killed with SIGKILL; with ``long``, at every line.
"""

import os
import pickle
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from assurance import ledgers, sources
from assurance.sources import EnrolledSource, Patches
from tests.federation.source.enrolled import STRANGER
from veracal import ledger as ledger_room
from veracal.calibration import Gap, LossAt
from veracal.errors import LedgerError
from veracal.federation import source as source_room
from veracal.federation.protocol.messages import Answer, Head, unseal_reply
from veracal.federation.source import serving
from veracal.federation.source.folder import SignedHeads
from veracal.federation.source.serving import SourceServer
from veracal.ledger import storage as ledger_tables
from veracal.ledger.chain import Entry, canonical

NAME = "source_kill"
COST = 200_000  # of every answer, in millionths
TIMES = 3  # that a request is stopped at one line
ROOMS = (source_room, ledger_room)
WATCHED = {
    *(
        str(p)
        for room in (source_room, ledger_room)
        for p in Path(room.__file__).parent.glob("*.py")
    ),
    ledgers.__file__,
    __file__,
}
Point = tuple[str, int]
evaluated = serving.evaluate_query  # before any patch


def at_1(north: EnrolledSource, kind: str) -> bytes:
    """A query at a temperature of 1."""
    return north.raw(kind, argument={"inverse": 1 << 16}, micro_epsilon=COST)


@dataclass(frozen=True)
class Kind:
    """A kind of request: its bytes, whether it is answered, and how many entries it adds."""

    raw: Callable[[EnrolledSource], bytes]
    answered: bool
    adds: int = 0


KINDS = {
    "new": Kind(lambda north: north.raw("bins", micro_epsilon=COST), True, 1),
    "repeat": Kind(lambda north: north.raw(micro_epsilon=COST), True),
    "exhausted": Kind(lambda north: north.raw("bins", micro_epsilon=4 * COST), False),
    "out of terms": Kind(lambda north: north.raw("gap", argument={"inverse": 1}), False),
    "not signed": Kind(lambda north: north.raw("bins", STRANGER), False),
    "failing": Kind(lambda north: at_1(north, "gap"), False, 1),
    "repeat of a failure": Kind(lambda north: at_1(north, "loss"), False),
}


# ---------------------------------------------------------------- mutants


def write_head_later(self: SignedHeads, head: Head) -> None:
    """Write the head of the last answer when the next one is computed."""
    LATER.append(head)
    if len(LATER) > 1:
        sources.KEPT_HEAD(self, LATER[-2])


def write_new_head_only(self: SignedHeads, head: Head) -> None:
    """Write the head of an answer that was just computed, and of no repeat."""
    if COMPUTED:
        COMPUTED.clear()
        sources.KEPT_HEAD(self, head)


def computed(*fields: Any) -> bytes:
    """Compute, and remember that this was no repeat."""
    COMPUTED.append(True)
    return COMPUTE(*fields)


def head_first(connection: Any, entry: Entry, kept: bytes | None, adds: int = 0) -> None:
    """Write the head before the entry is committed."""
    INSERT(connection, entry, kept, adds)
    for server in SERVERS[-1:]:
        fields = server.terms.source, entry.index, entry.hash, entry.previous
        server._heads.add(Head.sign(*fields, server._key))


def rewrite_heads(self: SignedHeads, head: Head) -> None:
    """Write files of heads from the beginning."""
    line = canonical({**head.to_json(), "source": head.source}).encode() + b"\n"
    for path in self.paths:
        before = path.read_bytes()
        with path.open("wb") as file:
            file.write(before)
            file.write(line)


LATER: list[Head] = []
COMPUTED: list[bool] = []
SERVERS: list[SourceServer] = []
COMPUTE, INSERT = serving.compute_answer, ledger_tables.append
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M18 charge after answer": ledgers.AFTERWARDS,
    "M19 retry redraws": sources.REDRAWN,
    "M17 forget to charge": ledgers.FORGOTTEN,
    "head kept after the answer has left": {sources.KEEP: write_head_later},
    "head of a repeat not kept": {
        sources.KEEP: write_new_head_only,
        sources.SOURCE + "serving.compute_answer": computed,
    },
    "head signed before the commit": {"veracal.ledger.storage.append": head_first},
    "heads rewritten": {sources.SOURCE + "folder.SignedHeads.add": rewrite_heads},
}


# ---------------------------------------------------------------- the gate


@dataclass(frozen=True)
class State:
    """What lies on the disk as a line is reached, and the reply if it has left."""

    where: str
    files: dict[Path, bytes]
    left: bytes | None


@dataclass(frozen=True)
class Before:
    """The source before the request."""

    files: dict[Path, bytes]
    entries: tuple[Entry, ...]
    reply: bytes  # to the request that is repeated
    heads: dict[Path, set[Head]]


def run(subject: Patches, *, long: bool) -> str:
    """Stop at every line, and kill where that matters."""
    patches = {**subject, sources.EVALUATED: failing}
    SERVERS.clear()
    stops = kills = states = 0
    with sources.enrolled(patches, epsilon=1.0, max_per_answer=1.0) as north:
        before = prepared(north)
        for name, kind in KINDS.items():
            seen: set[Any] = set()
            walk = list(walked(north, kind.raw(north)))
            for state in reversed(walk):  # the last ones tell most
                judge(name, kind, north, before, state, seen)
            for place in range(len(walk)) if long else changes(walk):
                judge(name, kind, north, before, killed(north, kind.raw(north), place), seen)
                kills += 1
            stops, states = stops + len(walk), states + len(seen)
    return (
        f"{stops:,} stops and {kills:,} kills in {len(KINDS)} kinds of request, {states:,} "
        "states: none bad"
    )


def failing(query: Any, records: Any) -> Any:
    """Evaluate, but for two queries that end in an error."""
    if isinstance(query, Gap | LossAt):
        raise ZeroDivisionError
    return evaluated(query, records)


def prepared(north: EnrolledSource) -> Before:
    """A source with an answer and a failure behind it, and the budget of three answers left."""
    LATER.clear()
    reply = north.server.reply(KINDS["repeat"].raw(north))
    assert sources.is_answer(north, reply), "the first request was refused"
    failure = north.server.reply(KINDS["repeat of a failure"].raw(north))
    assert not sources.is_answer(north, failure), "a failure was answered"
    files = sources.contents(paths(north))
    heads = {path: sources.heads_in(path, north) for path in sources.heads_files(north)}
    return Before(files, ledgers.verified(north.ledger), reply, heads)


def paths(north: EnrolledSource) -> list[Path]:
    """Files that a request may change."""
    return [*sources.ledger_files(north), *sources.heads_files(north)]


def changes(walk: list[State]) -> list[int]:
    """Places just after each change on the disk, and the last."""
    after = [i for i in range(1, len(walk)) if walk[i].files != walk[i - 1].files]
    return sorted({*after, len(walk) - 1})


# ---------------------------------------------------------------- children


def walked(north: EnrolledSource, raw: bytes) -> Iterator[State]:
    """What lies on the disk at every line that a request comes to."""
    fields, go = os.pipe(), os.pipe()

    def visit(number: int, where: str) -> None:
        os.write(fields[1], pickle.dumps(where).ljust(400, b"\0"))
        os.read(go[0], 1)

    def leave(reply: bytes) -> None:
        os.write(fields[1], b"R" + len(reply).to_bytes(8) + reply)

    child, reader = ledgers.fork(lambda: traced(north, raw, visit, leave))
    os.close(fields[1])
    left = None
    with os.fdopen(fields[0], "rb") as messages, os.fdopen(go[1], "wb", buffering=0) as on:
        while first := messages.read(1):
            if first == b"R":
                left = messages.read(int.from_bytes(messages.read(8)))
                continue
            where = pickle.loads(first + messages.read(399))
            yield State(where, sources.contents(paths(north)), left)
            on.write(b".")
    os.close(go[0])
    ledgers.result(child, reader)


def killed(north: EnrolledSource, raw: bytes, place: int) -> State:
    """What is left by a child that is killed as it comes to its line of that number."""
    reader, writer = os.pipe()

    def visit(number: int, where: str) -> None:
        if number == place:
            os.kill(os.getpid(), signal.SIGKILL)

    child, other = ledgers.fork(
        lambda: traced(north, raw, visit, lambda reply: os.write(writer, reply))
    )
    os.close(writer)
    os.close(other)
    with os.fdopen(reader, "rb") as file:
        left = file.read() or None
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the child ended before its line {place}"
    return State(f"killed at its line {place}", sources.contents(paths(north)), left)


def traced(
    north: EnrolledSource,
    raw: bytes,
    visit: Callable[[int, str], None],
    leave: Callable[[bytes], object],
) -> None:
    """Open the server and reply, telling of each line."""
    number, reached = -1, Counter[Point]()

    def each_line(frame: FrameType, event: str, _: object) -> object:
        nonlocal number
        if frame.f_code.co_filename not in WATCHED:
            return None
        point = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and frame.f_code not in OWN and reached[point] < TIMES:
            reached[point] += 1
            number += 1
            visit(number, f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return each_line

    SERVERS[:] = [north.reopened().server]
    sys.settrace(each_line)
    try:
        reply_and_leave(SERVERS[-1], raw, leave)
    finally:
        sys.settrace(None)


def reply_and_leave(server: SourceServer, raw: bytes, leave: Callable[[bytes], object]) -> None:
    """What a process that serves does, each step on a line."""
    reply = server.reply(raw)
    leave(reply)
    del reply


OWN = {failing.__code__, traced.__code__}


# ---------------------------------------------------------------- judging


def judge(
    name: str, kind: Kind, north: EnrolledSource, before: Before, state: State, seen: set[Any]
) -> None:
    """Open the source in a state it was left in, make the request again, and compare."""
    key = (tuple(state.files.items()), state.left)
    if key not in seen:  # equal files have one future
        seen.add(key)
        where = f"{name}, {state.where}"
        sources.put_back(state.files, paths(north))
        LATER.clear()
        try:
            judge_files(where, kind, north, before, state.left)
            judge_repeat(where, kind, north, before, state.left)
        except LedgerError as error:
            raise AssertionError(f"{where}: {error}") from error
    sources.put_back(before.files, paths(north))


def judge_files(
    where: str, kind: Kind, north: EnrolledSource, before: Before, left: bytes | None
) -> None:
    """Whatever was there is there, at most the one entry more, and heads of entries alone."""
    result = ledgers.verified(north.ledger)
    assert result[: len(before.entries)] == before.entries, f"{where}: what was there changed"
    assert len(result) - len(before.entries) <= kind.adds, f"{where}: too many entries"
    spent = COST * len(result) / 10**6
    assert north.ledger.spent().epsilon == spent, f"{where}: not all answers are paid"
    hashes = {entry.index: entry.hash for entry in result}
    signed: set[Head] = set()
    for path, heads in before.heads.items():
        there = sources.heads_in(path, north)
        assert there >= heads, f"{where}: a signed head is lost"
        signed |= there
    odd = [head.index for head in signed if hashes.get(head.index) != head.hash]
    assert not odd, f"{where}: a head is signed for entry {odd[0]}, which is not there"
    if left is not None and left != north.server.refusal:
        reply = unseal_reply(left, north.terms.key)
        assert isinstance(reply, Answer) and reply.head in signed, (
            f"{where}: an answer has left, and its head is not kept"
        )


def judge_repeat(
    where: str, kind: Kind, north: EnrolledSource, before: Before, left: bytes | None
) -> None:
    """The request ends as expected, twice equally, and old answers are unchanged."""
    again = north.reopened()
    SERVERS[:] = [again.server]
    result = ledgers.verified(north.ledger)
    reply = again.server.reply(kind.raw(north))
    assert sources.is_answer(north, reply) == kind.answered, f"{where}: ended otherwise"
    assert left in (None, reply), f"{where}: another reply than the one that has left"
    assert again.server.reply(kind.raw(north)) == reply, f"{where}: two replies to one request"
    assert again.server.reply(KINDS["repeat"].raw(north)) == before.reply, f"{where}: changed"
    after = ledgers.verified(north.ledger)
    assert len(after) == len(before.entries) + kind.adds, f"{where}: charged twice, or never"
    assert after[: len(result)] == result, f"{where}: what was there changed"
    judge_files(f"{where}, asked again", kind, again, before, reply)
