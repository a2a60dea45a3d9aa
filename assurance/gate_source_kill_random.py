"""A thousand kills of a serving source: no sent reply is lost, doubled or changed.

A child opens the server of a source and replies to requests. It is killed with SIGKILL at a
random moment, often while SQLite or a file of heads is written. The source is opened again and
compared with the replies that were sent. Files are on a disk here; power failures are tested by
another gate.
"""

import os
import random
import signal
import time

from assurance import ledgers, sources
from assurance.gate_source_kill import LATER, SERVERS, head_first, write_head_later
from assurance.sources import EnrolledSource, Patches, make_source
from veracal.accounting import Budget
from veracal.errors import VeracalError
from veracal.federation.protocol.messages import Answer, unseal_reply

NAME = "source_kill_random"
LONG = True
COST = 10  # of the first answer, in millionths
AT_ONCE = 40  # kills of one source, whose ledger is read whole after each

CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M18 charge after answer": ledgers.AFTERWARDS,
    "M19 retry redraws": sources.REDRAWN,
    "head kept after the answer has left": {sources.KEEP: write_head_later},
    "head signed before the commit": {"veracal.ledger.storage.append": head_first},
}


def run(subject: Patches, *, long: bool) -> str:
    """Kill, open again, compare, and repeat the query."""
    kills = 1_000 if long else 100
    pick = random.Random(0)
    left = 0
    SERVERS.clear()
    with ledgers.patched(subject, disk=True) as folder:
        for kill in range(kills):
            if kill % AT_ONCE == 0:
                SERVERS.clear()
                place = folder / f"{kill}"
                place.mkdir()
                north = make_source(
                    place / "north",
                    heads=place / "elsewhere",
                    epsilon=100.0,
                    budget=Budget(100.0),
                )
                known: list[bytes] = []
            replies = killed(north, len(known), pick.uniform(0.0, 0.08))
            left += len(replies)
            known += replies
            known.append(judge(north, known))
    return f"{kills:,} kills among {left:,} replies that left: none lost, doubled or changed"


def query(north: EnrolledSource, number: int) -> bytes:
    """The request of a number."""
    return north.raw(micro_epsilon=COST + number)


def killed(north: EnrolledSource, start: int, delay: float) -> list[bytes]:
    """Replies that left a child before it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            LATER.clear()
            server = north.reopened().server
            SERVERS[:] = [server]
            os.write(writer, b"\n")  # it is open, and at full speed from now on
            for number in range(start, start + 10_000):
                os.write(writer, server.reply(query(north, number)) + b"\0\n")
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"\n", "the server cannot be opened"
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        return file.read().split(b"\0\n")[:-1]


def judge(north: EnrolledSource, known: list[bytes]) -> bytes:
    """Compare with what left, and make the request that was in flight again."""
    try:
        result = sources.verified(north)
        assert len(known) <= len(result) <= len(known) + 1, (
            f"{len(result)} entries for {len(known)} replies"
        )
        heads = set.union(*(sources.heads_in(p, north) for p in sources.heads_files(north)))
        hashes = {entry.index: entry.hash for entry in result}
        assert all(hashes.get(head.index) == head.hash for head in heads), "an odd head"
        for number, reply in enumerate(known[-3:], start=max(0, len(known) - 3)):
            answer = unseal_reply(reply, north.terms.key)
            assert isinstance(answer, Answer), "a proper request was refused"
            assert answer.head in heads, f"the head of answer {number} is not kept"
        LATER.clear()
        again = north.reopened()
        SERVERS[:] = [again.server]
        if known:
            same = again.server.reply(query(north, len(known) - 1))
            assert same == known[-1], "a reply has changed"
        last = again.server.reply(query(north, len(known)))
        assert sources.is_answer(north, last), f"refused after a kill: {again.why}"
        after = sources.verified(north)
    except VeracalError as error:
        raise AssertionError(str(error)) from error
    assert len(after) == len(known) + 1, f"{len(after)} entries after the retry"
    return last
