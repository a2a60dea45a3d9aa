"""A query to a source is charged once and gets one reply, byte for byte, on every repeat.

The hash of a query is its id: repeated in another round, with another head, after a restart, or
by several processes at once, it is the same query. A request with the id of another query is
refused.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from assurance import ledgers, sources
from assurance.gate_idempotence import FIND
from assurance.sources import EnrolledSource, Patches
from tests.federation.source.enrolled import COORDINATOR
from veracal.federation.protocol import messages as requests
from veracal.federation.protocol.envelopes import MAX_REQUEST_BYTES, REQUEST, seal
from veracal.federation.protocol.messages import Answer, Head, Request, unseal_reply
from veracal.federation.source.serving import SourceServer

NAME = "source_idempotence"
PROCESSES = 4
COST = 1_000  # of every answer, in millionths
PROTOCOL = "veracal.federation.protocol.messages.Request."


# ---------------------------------------------------------------- mutants


def any_id(raw: bytes, key: Any) -> Request:
    """Read a request without comparing its id with its content."""
    reply = requests.unseal(REQUEST, raw, key, max_bytes=MAX_REQUEST_BYTES)
    head = None if reply["head"] is None else Head.from_json(reply["head"], reply["source"])
    return Request(**{**{k: reply[k] for k in reply if k != "id"}, "head": head})


def id_of_all(self: Request) -> str:
    """An id of all that is sent, the round included."""
    return requests.digest(requests.canonical({**self.query, "round": self.round}))


def with_current_head(self: SourceServer, raw: bytes) -> bytes:
    """Sign where the ledger is now, whenever the answer was given."""
    reply = unseal_reply(ANSWERED(self, raw), self.terms.key)
    assert isinstance(reply, Answer)
    last = self._enrollment.ledger.entries()[-1]
    where = self.terms.source, last.index, last.hash, last.previous
    return replace(reply, head=Head.sign(*where, self._key)).seal(self._key)


ANSWERED = SourceServer._answer_request
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M19 retry redraws": sources.REDRAWN,
    "retry charges again": {
        FIND: lambda connection, request, scope=0: None,
        ledgers.SCHEMA: ledgers.without(ledgers.ONCE),
    },
    "retry is not recognized, saved by the constraint": {
        FIND: lambda connection, request, scope=0: None
    },
    "another round is another query": {
        "veracal.federation.protocol.messages.Request.id": property(id_of_all)
    },
    "id not compared with the query": {
        "veracal.federation.protocol.messages.Request.unseal": any_id
    },
    "the head of now in an old answer": {
        sources.SOURCE + "serving.SourceServer._answer_request": with_current_head
    },
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Repeat a query, send another under the same id, and query from several processes."""
    times = 100 if subject is not CORRECT else 10_000 if long else 300
    with sources.enrolled(subject, epsilon=1.0) as north:
        others = repeat_query(north, times)
        another_body(north, times)
        together(north, times // 20)
        entries = sources.verified(north)
        assert len(entries) == 2 + others, f"{len(entries)} entries for {2 + others} queries"
        for path in sources.heads_files(north):
            assert len(sources.heads_in(path, north)) == len(entries), "a head is missing"
    return (
        f"{times:,} retries: 1 charge, 1 reply; {times:,} other queries under its id: all "
        f"refused; {PROCESSES} processes with one query: 1 charge, 1 reply"
    )


def repeat_query(north: EnrolledSource, times: int) -> int:
    """The same query in other words, between others; how many others there were."""
    first = north.server.reply(north.raw(micro_epsilon=COST))
    assert sources.is_answer(north, first), "a proper request was refused"
    others = 0
    for number, raw in enumerate(vary_query(north, times)):
        if number % (times // 5) == 1:  # the ledger continues meanwhile
            north.ask("bins", micro_epsilon=COST + others)
            others += 1
        if number % (times // 5) == 2:
            north = north.reopened()
        assert north.server.reply(raw) == first, f"another reply to retry {number + 1}"
    charged = len(north.ledger.entries())
    assert charged == 1 + others, f"{charged - others} charges for one query"
    return others


def vary_query(north: EnrolledSource, times: int) -> Iterator[bytes]:
    """One query, sent in different rounds and with different heads."""
    head = next(iter(sources.heads_in(north.folder / "heads", north)))
    for number in range(times):
        quoted = head if number % 2 else None
        yield north.raw(micro_epsilon=COST, round=number % 7, head=quoted)


def another_body(north: EnrolledSource, times: int) -> None:
    """Other queries under the id of one that was answered, and under ids of nothing."""
    before = north.ledger.entries()
    requested = north.request(micro_epsilon=COST)
    for number in range(times):
        other = north.request("bins-paper", micro_epsilon=COST + number)
        fields = {**other.query, "head": None, "round": 0}
        fields["id"] = requested.id if number % 2 else f"{number:064x}"
        reply = north.server.reply(seal(REQUEST, json.loads(json.dumps(fields)), COORDINATOR))
        assert reply == north.server.refusal, "answered under the id of another query"
    assert north.ledger.entries() == before, "charged under the id of another query"


def together(north: EnrolledSource, times: int) -> None:
    """Several processes, each with its own server, send one query at once."""
    before = len(north.ledger.entries())

    def work() -> set[bytes]:
        server = north.reopened().server
        return {server.reply(north.raw("bins-paper", micro_epsilon=COST)) for _ in range(times)}

    children = [ledgers.fork(work) for _ in range(PROCESSES)]
    values = [ledgers.result(*child) for child in children]
    assert all(isinstance(fields, set) for fields in values), "a process ended in an error"
    replies = set[bytes]().union(*values)  # type: ignore[arg-type]
    assert len(replies) == 1, f"{len(replies)} different replies to one query"
    assert sources.is_answer(north, replies.pop()), "a proper request was refused"
    charged = len(north.ledger.entries()) - before
    assert charged == 1, f"{charged} charges for one query"
