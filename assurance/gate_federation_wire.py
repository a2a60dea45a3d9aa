"""Remote dropouts and lying sources leave a finite map or a refusal, and no trace.

Real servers get signed requests through a transport that repeats messages and delivers them in
any order. Every set of dropouts is tried, from the start or after one or two answers. Then one
source lies, in every way to write a reply: huge numbers and more records than it claimed,
invalid values, the signature of another party, replies of another source or to another query,
two ledgers. It must count as a dropout, with a reason, and the map must be that of the others.

No trace is claimed only for sources that drop out before their second valid answer: two answers
take part in the choice of the third query.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from assurance import ledgers
from assurance.calibrations import small_blocks
from assurance.federations import shifted
from assurance.sources import EnrolledSource, Patches, make_source, unchecked
from tests.federation.source.enrolled import COORDINATOR, STRANGER
from veracal.accounting import Budget
from veracal.calibration import Recalibration, recalibrate
from veracal.calibration.maps.base import digest
from veracal.errors import DropoutError
from veracal.federation.coordinator.pool import RemotePool
from veracal.federation.coordinator.remote import Remote
from veracal.federation.protocol.envelopes import (
    ANSWER,
    REQUEST,
    EnvelopeError,
    PrivateKey,
    read_unverified,
)
from veracal.federation.protocol.messages import Answer, Head, Refusal, unseal_reply
from veracal.federation.source.folder import read_source
from veracal.queries import QueryRequest

NAME = "federation_wire"
SECONDS = 30
LEAST, MAX_RECORDS = 2, 1_000_000
NEW = shifted(20, np.random.default_rng(9))
Change = Callable[[Answer, "Party"], bytes]


# ---------------------------------------------------------------- who lies, and how


@dataclass
class Party:
    """A source, and the changes to its replies."""

    source: EnrolledSource
    key: PrivateKey
    lie: Change | None = None
    answers: float = math.inf  # before it drops out
    said: list[bytes] = field(default_factory=list)
    other: "Party | None" = None  # whose replies it repeats

    def reply(self, raw: bytes) -> bytes | None:
        """What leaves it; None for silence."""
        # A liar's own server must not see the heads that it has forged.
        honest = self.source.server.reply(raw if self.lie is None else raw_for(self, raw))
        self.said.append(honest)
        if len(self.said) > self.answers:
            return None
        if self.lie is None:
            return honest
        if self.other is not None:
            self.other.said.append(self.other.source.server.reply(raw_for(self.other, raw)))
        answer = unseal_reply(honest, self.source.terms.key)
        assert isinstance(answer, Answer), self.source.why
        return self.lie(answer, self)


def raw_for(party: Party, raw: bytes) -> bytes:
    """The same query, to another source."""
    fields = read_unverified(REQUEST, raw, max_bytes=4_096)
    return party.source.raw(
        fields["kind"], argument=fields["argument"], micro_epsilon=fields["micro_epsilon"]
    )


def numbers(change: Callable[[tuple[int, ...]], tuple[Any, ...]]) -> Change:
    """Other numbers, signed by the source."""
    return lambda answer, party: replace(answer, units=change(answer.units)).seal(party.key)


def after_counts(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Change:
    """The truth about how many records there are, and other numbers then."""

    def lie(answer: Answer, party: Party) -> bytes:
        first = len(party.said) == 1
        return numbers(tuple if first else change)(answer, party)

    return lie


def forked(answer: Answer, party: Party) -> bytes:
    """Heads of a ledger that restarts with every answer."""
    hash_ = f"{len(party.said):064x}"
    head = Head.sign(answer.head.source, 1, hash_, "0" * 64, party.key)
    return replace(answer, head=head).seal(party.key)


def unsigned_head(answer: Answer, party: Party) -> bytes:
    """A head signed by another party."""
    fields = answer.head.source, answer.head.index, answer.head.hash, answer.head.previous
    return replace(answer, head=Head.sign(*fields, STRANGER)).seal(party.key)


def of_another(answer: Answer, party: Party) -> bytes:
    """What another source says to the same query."""
    assert party.other is not None
    return party.other.said[-1]


def to_another(answer: Answer, party: Party) -> bytes:
    """Its own answer to another query."""
    return replace(answer, request="0" * 64).seal(party.key)


LIES: dict[str, Change] = {
    "2^62": numbers(lambda units: (2**62,) * len(units)),
    "-2^62": numbers(lambda units: (-(2**62),) * len(units)),
    "more than 64 bits": numbers(lambda units: (10**30,) * len(units)),
    "one entry more": numbers(lambda units: (*units, 0)),
    "no entries": numbers(lambda units: ()),
    "halves": numbers(lambda units: tuple(unit + 0.5 for unit in units)),
    "truth values": numbers(lambda units: (True,) * len(units)),
    "more records than it claimed": after_counts(lambda u: (2**16 * 100_000,) * len(u)),
    "fewer than none": after_counts(lambda u: (-(2**16) * 100_000,) * len(u)),
    "nothing": lambda answer, party: b"",
    "random bytes": lambda answer, party: random.Random(0).randbytes(300),
    "two megabytes": lambda answer, party: b"x" * 2**21,
    "a bit flipped": lambda answer, party: answer.seal(party.key)[:-5] + b"0]}",
    "signed by a stranger": lambda answer, party: answer.seal(STRANGER),
    "the answer of another source": of_another,
    "the answer to another query": to_another,
    "an unsigned head": unsigned_head,
    "two ledgers": forked,
    "a refusal": lambda answer, party: Refusal(answer.head.source).seal(party.key),
    "a refusal by a stranger": lambda answer, party: Refusal("0" * 32).seal(STRANGER),
}


# ---------------------------------------------------------------- mutants


def unverified(raw: bytes, key: Any) -> Answer | Refusal:
    """Read a reply without verifying its signature."""
    fields = read_unverified(ANSWER, raw, max_bytes=2**20)
    if fields["refused"]:
        return Refusal(fields["source"])
    return Answer(
        fields["request"],
        tuple(fields["units"]),
        Head.from_json(fields["head"], fields["source"]),
    )


def accept_any_source(self: Remote, wanted: QueryRequest, raw: bytes) -> Any:
    """Believe whatever one of the sources has signed."""
    for party in PARTIES:
        try:
            reply = unseal_reply(raw, party.source.terms.key)
        except EnvelopeError:
            continue
        if isinstance(reply, Answer) and len(reply.units) == wanted.query.entries:
            return self._validate(wanted, reply)
    return HEARD(self, wanted, raw)


HEARD = Remote.receive
PARTIES: list[Party] = []
COORDINATORS = "veracal.federation.coordinator."
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "replies not verified": {"veracal.federation.coordinator.remote.unseal_reply": unverified},
    "the answer of another source accepted": {
        "veracal.federation.coordinator.remote.Remote.receive": accept_any_source
    },
    "the answer to another query accepted": {
        "veracal.federation.coordinator.remote.Remote._check": unchecked
    },
    "two ledgers accepted": {
        "veracal.federation.coordinator.history.RequestHistory._contradicts": lambda *_: False
    },
    "what was claimed does not bound": {
        "veracal.federation.coordinator.remote.too_large": lambda *_: False,
    },
    "numbers of any size believed": {
        "veracal.federation.coordinator.remote.too_large": lambda *_: False,
        "veracal.federation.coordinator.remote.find_invalid_responses": lambda *_: {},
    },
    "too few go on": {
        "veracal.federation.coordinator.pool.RemotePool._check_enough": unchecked,
        "veracal.queries.pools.check_quorum": unchecked,
    },
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Lies, then silence."""
    m = 3 if subject is not CORRECT else 8 if long else 5
    with ledgers.patched(subject) as folder, small_blocks():
        PARTIES[:] = [party(folder, number) for number in range(m)]
        check_dropouts(PARTIES[:2], every=1)
        for number, (name, lie) in enumerate(LIES.items()):
            result = check_lie(name, lie, PARTIES[:3])
            if long or number % 3 == 1:
                without_a_trace(f"with {name}", result, PARTIES[1:3])
        check_dropouts(PARTIES, every=1 if long else 8)
    return (
        f"{len(LIES)} lies and {2**m} silent sets of {m} sources: finite or refused, and no "
        "trace of dropouts"
    )


def party(folder: Path, number: int) -> Party:
    """A source with a budget for all of this."""
    records = shifted(20 + 7 * number, np.random.default_rng(number))
    more = {"epsilon": 900.0, "max_per_answer": 10.0, "budget": Budget(900.0)}
    more |= {"max_records": MAX_RECORDS, "name": f"hospital {number}"}
    source = make_source(folder / f"{number}", records, **more)
    return Party(source, read_source(source.path).key)


class Carrier:
    """Carries in any order, everything twice, and unrequested replies."""

    by_hand = False

    def __init__(self, parties: list[Party]) -> None:
        self.parties = {party.source.terms.source: party for party in parties}

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Yield replies, of those who reply."""
        yield "f" * 32, b"unasked"
        for name in sorted(requests, reverse=True):
            reply = self.parties[name].reply(requests[name])
            if reply is not None:
                yield name, reply
                yield name, reply


def run_recalibration(parties: list[Party], *, method: str = "pooled") -> Recalibration | None:
    """Recalibrate; None if it was refused, as it may be."""
    for one in parties:
        one.said.clear()
    federated = RemotePool(
        [one.source.terms for one in parties], COORDINATOR, Carrier(parties), min_sources=LEAST
    )
    try:
        result = recalibrate(federated, method, epsilon=4.0, guard=None, measure=None)
    except DropoutError:
        return None
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    assert np.isfinite(result.map.transform(NEW).confidence).all(), f"the map is {result.map}"
    if (t := result.temperature) is not None:
        assert 0 < t.low <= t.value <= t.high < math.inf, f"the interval is {t}"
    return result


def check_lie(name: str, lie: Change, parties: list[Party]) -> Recalibration:
    """A lying source drops out with a reason, and the others continue."""
    liar, *honest = parties
    liar.lie, liar.other = lie, honest[0]
    try:
        result = run_recalibration(parties)
    except AssertionError as error:
        raise AssertionError(f"with {name}: {error}") from error
    finally:
        liar.lie = liar.other = None
    assert result is not None, f"refused because one source said {name}"
    assert result.dropouts[0] and not any(result.dropouts[1:]), f"{name} was accepted"
    return result


def check_dropouts(parties: list[Party], *, every: int) -> None:
    """Check every set of dropouts, from the start or after their first answers."""
    for number, silent in enumerate(product((False, True), repeat=len(parties))):
        for one, is_silent in zip(parties, silent, strict=True):
            one.answers = number % 3 if is_silent else math.inf
        method = "pooled" if number % every == 0 else "binning"
        result = run_recalibration(parties, method=method)
        left = [one for one in parties if len(one.said) <= one.answers]
        for one in parties:
            one.answers = math.inf
        where = f"{method}, {sum(silent)} of {len(parties)} silent"
        if len(left) < LEAST:
            assert result is None, f"{where}: {len(left)} sources were enough"
            continue
        assert result is not None, f"{where}: refused, though {len(left)} sources answered"
        gone = [why is not None for why in result.dropouts]
        assert gone == [one not in left for one in parties], f"{where}: others are named"
        # The third query depends on all answers to the second.
        if number % 3 < 2 and number % 4 == 0:
            without_a_trace(where, result, left, method=method)


def without_a_trace(
    where: str, found: Recalibration, left: list[Party], *, method: str = "pooled"
) -> None:
    """The map is that of the remaining sources, which repeat their answers."""
    alone = run_recalibration(left, method=method)
    assert alone is not None, f"{where}: refused when those who are left are asked again"
    assert not any(alone.dropouts), f"{where}: asked again, silent: {alone.dropouts}"
    assert digest(alone.map) == digest(found.map), (
        f"{where}: who is gone still has a part in the map"
    )
