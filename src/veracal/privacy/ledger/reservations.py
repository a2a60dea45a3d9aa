"""Reservations: charge, compute outside of any transaction, record.

An answer that takes long to compute must not hold the ledger's write lock meanwhile. Its charge
is *reserved* first, which is durable; then it is computed, while others may charge; then it is
*recorded* by an entry that costs nothing and settles the reservation, once.

Guarantees
----------
A reservation is never refunded. The first entry to settle it stands (a unique column of the
database), so that of several processes with one request all return the answer of one. What
fails is recorded as failed. A process that is killed leaves the reservation pending: the same
request computes anew under it, at no further cost, since nothing of the earlier attempt has
left the process. Where something may have left (a hook has seen weights), every attempt is
reserved and charged by itself, and supersedes the one before.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection
from typing import Literal

from veracal.errors import AnswerError, LedgerError
from veracal.privacy.ledger import tables
from veracal.privacy.ledger.chain import Entry, Outcome, digest
from veracal.privacy.ledger.charge import (
    ANEW,
    Asked,
    _entry,
    affordable,
    as_answer,
    conflict,
    failed,
)
from veracal.privacy.ledger.store import reading, writing

Reservation = Literal["once", "every attempt"]
Settled = tuple[Entry, bytes | None]


def compute_once(path: Path, asked: Asked, compute: Callable[[], bytes]) -> tuple[Entry, bytes]:
    """Reserve, compute and record; or return what was recorded before.

    Returns
    -------
    tuple of (Entry, bytes)
        The entry that settles the reservation, and the answer.
    """
    reservation, settled = reserve(path, asked)
    if settled is None:
        answer = None
        try:
            answer = as_answer(compute())
        except KeyboardInterrupt:  # from outside: the reservation stands, nothing is released
            raise
        except BaseException:  # whatever it says may tell of records: nothing of it is kept
            answer = None
        settled = settle(path, reservation.index, answer)
    return settled[0], answer_of(settled, asked.request)


def reserve(path: Path, asked: Asked) -> tuple[Entry, Settled | None]:
    """Charge a reservation, or find the one that was charged before.

    A pending reservation is used again only if neither it nor this attempt charges every
    attempt. Otherwise it is superseded, and a further attempt is charged under an id that
    names its number.

    Returns
    -------
    tuple of (Entry, settled)
        The reservation, and what settles it, if anything does.
    """
    with writing(path) as connection:
        attempt, given_up, tried = asked, None, 1
        while (found := _reserved(connection, attempt)) is not None:
            settled = tables.settlement(connection, found.index)
            if settled is not None and settled[0].outcome != "superseded":
                return found, settled
            if settled is None:
                if found.body == attempt.fingerprint and attempt.reservation == "once":
                    return found, None
                given_up = found
            tried += 1
            attempt = replace(asked, request=f"{asked.request} [attempt {tried}]")
        debit = affordable(connection, attempt)
        if given_up is not None:
            _append_settlement(connection, given_up, "superseded", None)
        entry = _entry(connection, attempt, debit, "reserved", None)
        tables.append(connection, entry, None)
    return entry, None


def _reserved(connection: Connection, asked: Asked) -> Entry | None:
    """A reservation under this id, or a refusal of anything else under it."""
    assert asked.request is not None
    found = tables.find(connection, asked.request, asked.run or 0)
    if found is None:
        return None
    kinds: tuple[Reservation, ...] = ("once", "every attempt")
    if found[0].body not in {replace(asked, reservation=kind).fingerprint for kind in kinds}:
        raise conflict(asked.request)
    return found[0]


def settle(path: Path, index: int, answer: bytes | None) -> Settled:
    """Record an answer, or a failure, unless the reservation was settled before."""
    with writing(path) as connection:
        reservation = tables.entry(connection, index)
        settled = tables.settlement(connection, index)
        if settled is None:
            outcome: Outcome = "failed" if answer is None else "answered"
            settled = (
                _append_settlement(connection, reservation, outcome, answer),
                answer,
            )
    return settled


def record(
    path: Path, run: int | None, request: str, body: bytes, answer: bytes | None
) -> Settled:
    """Settle the reservation of a request, if it was made for this body."""
    kept = None if answer is None else as_answer(answer)
    with reading(path) as connection:
        found = tables.find(connection, request, run or 0)
    if found is None or found[0].event is None:
        raise LedgerError(f"Nothing is reserved under request {request!r}: reserve first.")
    entry = found[0]
    kinds: tuple[Reservation, ...] = ("once", "every attempt")
    assert entry.event is not None
    asked = Asked(entry.event, entry.purpose, entry.part, entry.delta, request, body)
    if entry.body not in {replace(asked, reservation=kind).fingerprint for kind in kinds}:
        raise conflict(request)
    return settle(path, entry.index, kept)


def abandon(path: Path, run: int | None, request: str) -> Entry:
    """Settle a pending reservation without an answer."""
    with writing(path) as connection:
        found = tables.find(connection, request, run or 0)
        if found is None or found[0].outcome != "reserved":
            raise LedgerError(
                f"Nothing is reserved under request {request!r}. `veracal ledger show` lists "
                "what is pending."
            )
        settled = tables.settlement(connection, found[0].index)
        if settled is not None:
            raise LedgerError(
                f"The reservation of request {request!r} is not pending: it was "
                f"{settled[0].outcome} before, by entry {settled[0].index}."
            )
        return _append_settlement(connection, found[0], "abandoned", None)


def abandon_run(path: Path, run: int) -> Entry:
    """Settle a run: its pending reservations, and then itself."""
    with writing(path) as connection:
        begun = tables.begun(connection, run)
        if not begun:
            raise LedgerError(
                f"The ledger has no run {run}. `veracal ledger show` lists its runs."
            )
        if tables.settlement(connection, begun[0].index) is not None:
            raise LedgerError(f"Run {run} was abandoned before.")
        for entry in tables.pending(connection):
            if entry.run == run:
                _append_settlement(connection, entry, "abandoned", None)
        return _append_settlement(connection, begun[0], "abandoned", None)


def answer_of(settled: Settled, request: str | None) -> bytes:
    """The answer of a settled reservation, or the one way in which it is refused."""
    entry, answer = settled
    if answer is not None:
        return answer
    if entry.outcome == "failed":
        raise failed(request)
    why = {
        "abandoned": "was abandoned",
        "superseded": "was superseded by a further attempt, which alone has an answer",
    }[entry.outcome]
    raise AnswerError(
        f"{entry.purpose!r} was charged, and its reservation {why} (entry {entry.index} of the "
        f"ledger). The charge stands, and nothing is released for it. {ANEW}"
    )


def _append_settlement(
    connection: Connection, reservation: Entry, outcome: Outcome, answer: bytes | None
) -> Entry:
    """Add the entry that settles a reservation, or a run."""
    index, previous = tables.head(connection)
    entry = Entry(
        index=index + 1,
        purpose=reservation.purpose,
        event=None,
        part=reservation.part,
        delta=None,
        account=None,
        filter=None,
        cost=0,
        cost_delta=0,
        request=None,
        body=None,
        run=reservation.run,
        outcome=outcome,
        answer=None if answer is None else digest(answer),
        previous=previous,
        settles=reservation.index,
    )
    tables.append(connection, entry, answer)
    return entry
