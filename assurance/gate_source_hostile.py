"""A hostile coordinator learns no more than its budget allows, and only from answers.

It repeats queries in other forms, requests sums that it can average or subtract, exceeds its
budget, and uses several threads at once, until the budget is spent. What all answers reveal
about one record is audited on neighbors, in many sessions side by side. Then the same requests
go to sources that differ in an unusual record, with noise from a fixed tape: every reply must
have the same bytes, and every refusal must be the one refusal.
"""

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from assurance import ledgers, sources
from assurance.audits import pure_lower_bound
from assurance.gate_idempotence import FIND
from assurance.gate_race import check_outside
from assurance.sources import EnrolledSource, Patches
from tests.federation.source.enrolled import COORDINATOR, LAPLACE, STRANGER
from veracal.data import Scores
from veracal.federation.protocol.envelopes import ANSWER, seal
from veracal.federation.protocol.messages import Answer, unseal_reply
from veracal.federation.protocol.queries import build_query
from veracal.federation.source import serving
from veracal.federation.source.enrolling import example_arguments
from veracal.federation.source.serving import SourceServer, open_source
from veracal.mechanisms.discrete_noise import add_discrete_laplace, laplace_noise

NAME = "source_hostile"
SECONDS = 20
BUDGET = 1.0
LEAST = 40  # records that are declared, and that there are
COPIES = 5_000  # sessions in one answer
RIGHT = ([9.0, 0.0, 0.0], 0)
ODD = ([1e308, -1e308, 0.0], 2)  # extreme, wrong, and of a class that no other record has


# ---------------------------------------------------------------- mutants


def explain_refusal(self: SourceServer, why: str) -> bytes:
    """Say why."""
    self._enrollment.refusals.add(why)
    body = {"head": None, "refused": True, "request": None, "units": None, "why": why}
    return seal(ANSWER, {**body, "source": self.terms.source}, self._key)


def naming(self: SourceServer, raw: bytes) -> bytes:
    """Say which error it was, with what it says."""
    try:
        return self._answer_request(raw)
    except Exception as error:
        refusal = REFUSE(self, "")
        return refusal if type(error).__module__ != "builtins" else str(error).encode()


def frail(query: Any, records: Scores) -> Any:
    """End in an error where a record is extreme."""
    if len(records) and np.abs(records.values).max() > 1e300:
        raise FloatingPointError(f"overflow in record {np.abs(records.values).argmax() // 3}")
    return EVALUATED(query, records)


def frail_before_the_charge(self: SourceServer, *fields: Any) -> Any:
    """Look whether the records can be used before the ledger is."""
    frail(fields[2], fields[3])
    return CHARGED(self, *fields)


def enough_records(self: SourceServer) -> Scores:
    """Refuse to answer about fewer records than declared."""
    records = LOADED(self)
    if len(records) < self.terms.min_records:
        raise serving.RefusedError("too few records")
    return records


def slowly_outside(path: Any, pending: Any, compute: Any) -> Any:
    """Check in one transaction, compute together with all others, and charge in another."""

    def slow() -> bytes:
        with suppress(threading.BrokenBarrierError):
            BARRIER.wait(PATIENCE)
        return compute()

    return check_outside(path, pending, None if compute is None else slow)


THREADS, PATIENCE = 6, 300.0
BARRIER = threading.Barrier(THREADS)  # two rounds exceed the budget
CHARGED, LOADED, REFUSE, EVALUATED = (
    SourceServer._charge_and_answer,
    SourceServer._load_records,
    SourceServer._refuse,
    serving.evaluate_query,
)
SERVER = sources.SOURCE + "serving.SourceServer."
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "check outside the transaction": {
        ledgers.ENTER: slowly_outside,
        ledgers.SCHEMA: ledgers.without(ledgers.NO_MORE),
    },
    "averaging allowed": {
        FIND: lambda connection, request, scope=0: None,
        ledgers.SCHEMA: ledgers.without(ledgers.ONCE, ledgers.DEBIT),
    },
    "noise for half of it": {
        sources.LAPLACE: lambda exact, noise: ADD_NOISE(exact, noise / 2),
    },
    "refusal that tells the reason": {SERVER + "_refuse": explain_refusal},
    "error that names a record": {
        SERVER + "reply": naming,
        sources.CHARGED: frail_before_the_charge,
    },
    "error where a record is odd": {sources.EVALUATED: frail},
    "too few records refused when asked": {SERVER + "_load_records": enough_records},
}
ADD_NOISE = add_discrete_laplace


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Audit, race, and replay on neighbors."""
    batches, requests = (40, 10_000) if long and subject is CORRECT else (2, 120)
    granted = raced(subject)
    answered = replayed(subject, requests)
    lower = audited(subject, batches)
    return (
        f"epsilon {lower:.3f} of {BUDGET:g} in {batches * COPIES:,} sessions; {granted} "
        f"answers in a race for {granted}; {requests:,} adaptive requests, {answered:,} "
        "answered: the same bytes on neighbors"
    )


def records(*more: tuple[list[float], int]) -> Scores:
    """Records, one less than are declared, and some more."""
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 2, (LEAST - 1, 3)), *([row] for row, _ in more)])
    labels = [*rng.integers(0, 2, LEAST - 1), *(label for _, label in more)]
    return Scores.from_logits(values, np.array(labels))


# ---------------------------------------------------------------- what a session tells


@dataclass(frozen=True)
class Copied:
    """A query, answered for many sessions at once: each pair of entries is one session."""

    query: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.query, name)

    @property
    def entries(self) -> int:
        return COPIES * self.query.entries

    def evaluate(self, records: Scores) -> np.ndarray:
        return np.tile(self.query.evaluate(records), COPIES)


def audited(subject: Patches, batches: int) -> float:
    """Epsilon that all answers to one coordinator cost at least, by an attack."""
    neighbors = records(), records(RIGHT)
    counts = [int(one.correct.sum()) for one in neighbors]
    draws = [
        np.concatenate([session(subject, one, counts) for _ in range(batches)])
        for one in neighbors
    ]
    lower = pure_lower_bound(*draws)
    assert lower <= BUDGET, f"epsilon {lower:.3f} was released, and {BUDGET:g} is the budget"
    return lower


def session(subject: Patches, enrolled: Scores, counts: list[int]) -> np.ndarray:
    """How much likelier everything released is under one neighbor than under the other."""
    fields = np.zeros(COPIES)
    copied = mock.patch(
        sources.SOURCE + "serving.build_query", lambda *about: Copied(build_query(*about))
    )
    terms = {"epsilon": BUDGET, "max_per_answer": BUDGET, "records": enrolled}
    with sources.enrolled(subject, heads=False, **terms) as north, copied:
        for micro, right in learnt(north):
            near, far = (np.abs(right - count) for count in counts)
            fields += (near - far) / laplace_noise(1, micro)
        spent = north.ledger.spent().epsilon
        assert spent <= BUDGET, f"{spent} of {BUDGET:g} was charged"
    return fields


def learnt(north: EnrolledSource) -> Iterator[tuple[int, np.ndarray]]:
    """Every different answer that can be had: its price, and how many were right."""
    seen = set()
    for number in range(4):  # the last ones beg for what was answered, and for more
        for micro in (400_000, 300_001, 299_999):
            raw = north.raw(micro_epsilon=micro - (number > 2), round=number)
            reply = north.server.reply(raw)
            if reply not in seen and sources.is_answer(north, reply):
                result = unseal_reply(reply, north.terms.key)
                assert isinstance(result, Answer)
                yield micro, np.array(result.units)[::2]
            seen.add(reply)


# ---------------------------------------------------------------- threads


def raced(subject: Patches) -> int:
    """Concurrent requests get what the budget allows, and no more."""
    each, price, got = 4, 100_000, list[bytes]()
    with sources.enrolled(subject, heads=False, epsilon=BUDGET, max_per_answer=BUDGET) as north:

        def work(name: int) -> None:
            for i in range(each):
                got.append(north.server.reply(north.raw(micro_epsilon=price - each * name - i)))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        granted = sum(sources.is_answer(north, reply) for reply in got)
        spent = north.ledger.spent().epsilon
    assert spent <= BUDGET, f"threads were granted {granted} answers for {spent} of {BUDGET:g}"
    assert granted == 10, f"{granted} answers were granted, and 10 can be afforded"
    return granted


# ---------------------------------------------------------------- the same on neighbors


def replayed(subject: Patches, requests: int) -> int:
    """The same hostile session on neighbors; how many requests were answered."""
    terms = {"epsilon": BUDGET, "max_per_answer": BUDGET / 2, "min_records": LEAST}
    answered, heard = 0, b""
    with sources.enrolled(subject, heads=False, records=records(RIGHT), **terms) as north:
        fewer, odd = (neighbor(north, records(), "fewer"), neighbor(north, records(ODD), "odd"))
        for number in range(requests):
            # The next query depends on earlier answers.
            raw = next_request(north, random.Random(heard + bytes([number % 251])), requests)
            heard = reply(north, raw)
            for other in (fewer, odd):
                assert reply(other, raw) == heard, f"reply {number} differs between neighbors"
            answered += sources.is_answer(north, heard)
    return answered


def reply(north: EnrolledSource, raw: bytes) -> bytes:
    """A reply with uninformative noise."""
    with sources.taped():
        return north.server.reply(raw)


def neighbor(north: EnrolledSource, enrolled: Scores, name: str) -> EnrolledSource:
    """The same source, with other records."""
    path = north.path.with_name(name)
    shutil.copytree(north.path, path)
    other = EnrolledSource(path, north.terms, north.server)
    sources.put_records(other, enrolled)
    return replace(other, server=open_source(path))


def next_request(north: EnrolledSource, pick: random.Random, requests: int) -> bytes:
    """A query, the same again, or something that is none."""
    kind = pick.choice(LAPLACE)
    argument = pick.choice(list(example_arguments(kind, north.terms)))
    if set(argument) == {"inverse"}:
        argument = {"inverse": pick.randrange(11_000, 131_000)}
    micro = pick.randrange(1, 4_000_000 // requests)  # twice the budget in all
    ways: list[Callable[[], bytes]] = [
        lambda: north.raw(kind, argument=argument, micro_epsilon=micro),
        lambda: north.raw(kind, argument=argument, micro_epsilon=micro),
        lambda: north.raw(kind, argument=argument, micro_epsilon=micro),
        lambda: north.raw(round=pick.randrange(9), micro_epsilon=1_000),
        lambda: north.raw(micro_epsilon=500_001),
        lambda: north.raw(kind, STRANGER, argument=argument),
        lambda: north.raw("records"),
        lambda: sources.signed(b"{}", COORDINATOR),
        lambda: pick.randbytes(50),
    ]
    return pick.choice(ways)()
