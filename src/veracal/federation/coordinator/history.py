"""The coordinator's history: requests, answers and signed heads in an SQLite file.

Each step is one transaction that is on disk before the next step. After a crash, the history
shows which requests were sent and answered, so that no query is charged twice and rounds are
repeated with the same sources.

:class:`SourceAccount` computes the remaining budget of a source from its terms and the history,
by the same rule as the source's ledger, which is authoritative.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from veracal._types import Frozen
from veracal.accounting import (
    MICRO,
    Event,
    epsilon_for,
    event_from_json,
    event_to_json,
    format_down,
    format_up,
    micro_epsilon,
    pure_epsilon,
)
from veracal.data import translate_os_errors
from veracal.errors import BudgetError, ConflictError, DataError
from veracal.federation.protocol.envelopes import EnvelopeError, PublicKey
from veracal.federation.protocol.messages import Answer, Head, unseal_reply
from veracal.federation.protocol.terms import Terms
from veracal.ledger import Cost, EpsilonSums, Item, Renyi, best_order, canonical

APPLICATION = 0x56435248  # "VCRH", in the header of the file
FORMAT = 1
_LOCK_TIMEOUT = 60.0  # seconds to wait for another command that writes to the same file
_FULL = 2  # of PRAGMA synchronous
_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE sources (
    id TEXT PRIMARY KEY,
    terms TEXT NOT NULL,
    fault TEXT
) STRICT;
CREATE TABLE requests (
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('sent', 'answered', 'refused', 'unusable')),
    purpose TEXT NOT NULL,
    event TEXT NOT NULL,
    raw BLOB NOT NULL,
    reply BLOB,
    PRIMARY KEY (source, id)
) STRICT;
CREATE TABLE heads (
    source TEXT NOT NULL,
    number INTEGER NOT NULL,
    hash TEXT NOT NULL,
    previous TEXT NOT NULL,
    signature TEXT NOT NULL,
    request TEXT NOT NULL,
    PRIMARY KEY (source, number)
) STRICT;
CREATE TABLE runs (
    run TEXT NOT NULL,
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (run, source, id)
) STRICT;
CREATE TABLE rounds (
    run TEXT NOT NULL,
    query TEXT NOT NULL,
    closed TEXT NOT NULL,
    PRIMARY KEY (run, query)
) STRICT;
CREATE TABLE labels (
    run TEXT NOT NULL,
    source TEXT NOT NULL,
    label TEXT NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (run, source, label)
) STRICT;
"""


State = Literal["sent", "answered", "refused", "unusable"]
FORKED = "it signed two contradictory versions of its ledger"


@dataclass(frozen=True)
class SentRequest:
    """A request that was sent."""

    state: State  # no reply yet, an answer, a signed refusal, or an invalid reply
    purpose: str  # name of the query
    event: Event  # what the source charges for an answer
    raw: bytes  # the bytes that were sent; a repeat sends the same bytes


@dataclass(frozen=True)
class ClosedRound:
    """The outcome of a finished round."""

    requested: tuple[str, ...]  # ids of the sources that a request was sent to
    dropouts: Mapping[str, str]  # why sources did not answer, by id


class RequestHistory:
    """The coordinator's requests and answers, in a file or in memory.

    Parameters
    ----------
    path : path or None
        None keeps the history in memory. It is lost with the process, and with it the record
        of costs.
    coordinator : PublicKey
        Key that signs the requests.

    Guarantees
    ----------
    An answer that is read was signed by a source, and its signature is verified again. A change
    is on disk before it takes effect. The file contains only messages that were sent or
    received.
    """

    def __init__(self, path: Path | None, coordinator: PublicKey) -> None:
        self.path = path
        if path is not None:
            with translate_os_errors(path):
                exists = path.exists()
            if not exists:
                try:  # readable only by its owner from the start
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                    os.close(os.open(path, flags, 0o600))
                except OSError as cause:
                    raise DataError(
                        str(path),
                        "a path where a history can be created",
                        cause.strerror or "none",
                        "Choose another path.",
                    ) from cause
        with self._explain_errors():
            self._connection = sqlite3.connect(
                path or ":memory:", timeout=_LOCK_TIMEOUT, isolation_level=None
            )
            self._connection.execute(f"PRAGMA synchronous = {_FULL}")
        with self._transaction() as execute:
            (application,) = execute("PRAGMA application_id").fetchone()
            (version,) = execute("PRAGMA user_version").fetchone()
            (tables,) = execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if (application, version, tables) == (0, 0, 0):
                for statement in _TABLES.split(";")[:-1]:
                    execute(statement)
                execute(f"PRAGMA application_id = {APPLICATION}")
                execute(f"PRAGMA user_version = {FORMAT}")
            elif (application, version) != (APPLICATION, FORMAT):
                raise DataError(
                    str(path),
                    f"a coordinator's history of format {FORMAT}",
                    "another file" if application != APPLICATION else f"format {version}",
                    "Choose the right file, or a new one.",
                )
            execute(
                "INSERT OR IGNORE INTO about VALUES ('coordinator', ?)", (coordinator.text,)
            )
        ((owner,),) = self._fetch("SELECT value FROM about WHERE name = 'coordinator'")
        if owner != coordinator.text:
            raise DataError(
                str(path),
                "the history of the coordinator with this key",
                f"the history of {owner[:12]}…",
                "Use the right key, or a new history.",
            )

    def __repr__(self) -> str:
        return f"RequestHistory({str(self.path)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # ------------------------------------------------------------------ sources

    def add_source(self, terms: Terms) -> None:
        """Store the terms of a source; refuse other terms with a known id."""
        text = canonical(terms.to_json())
        self._write("INSERT OR IGNORE INTO sources VALUES (?, ?, NULL)", terms.source, text)
        if self._fetch("SELECT terms FROM sources WHERE id = ?", terms.source) != [(text,)]:
            raise DataError(
                f"terms of {terms.name}",
                "the terms in the history",
                "other terms with the same id",
                "Terms never change: ask the source which are right, and enroll again if "
                "necessary.",
            )

    def fault(self, source: str) -> str | None:
        """Why a source is no longer trusted; None if it is trusted."""
        rows = self._fetch("SELECT fault FROM sources WHERE id = ?", source)
        return rows[0][0] if rows else None

    def head(self, source: str) -> Head | None:
        """The last head that a source signed."""
        rows = self._fetch(
            "SELECT number, hash, previous, signature FROM heads WHERE source = ? "
            "ORDER BY number DESC LIMIT 1",
            source,
        )
        return Head(source, *rows[0]) if rows else None

    # ----------------------------------------------------------------- requests

    def find_request(self, source: str, request: str) -> SentRequest | None:
        """A request that was sent; None if it was not."""
        rows = self._fetch(
            "SELECT state, purpose, event, raw FROM requests WHERE source = ? AND id = ?",
            *(source, request),
        )
        return _sent_request(*rows[0]) if rows else None

    def record_request(
        self, run: str, source: str, request_id: str, request: SentRequest
    ) -> None:
        """Store a request before it is sent or repeated."""
        event = canonical(event_to_json(request.event))
        with self._transaction() as execute:
            execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", (run, source, request_id))
            execute(
                "INSERT INTO requests VALUES (?, ?, 'sent', ?, ?, ?, NULL) "
                "ON CONFLICT DO UPDATE SET state = 'sent', raw = excluded.raw "
                "WHERE state IN ('refused', 'unusable')",
                (source, request_id, request.purpose, event, request.raw),
            )

    def label(self, run: str, source: str, label: str, request: str) -> None:
        """Assign the caller's id to a request; refuse an id of another request."""
        self._write(
            "INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?)", run, source, label, request
        )
        rows = self._fetch(
            "SELECT id FROM labels WHERE run = ? AND source = ? AND label = ?",
            *(run, source, label),
        )
        if rows != [(request,)]:
            raise ConflictError(
                f"Request id {label!r} was already used for another query. Nothing was sent. "
                "Use another id."
            )

    def record_failure(self, source: str, request: str, state: State) -> None:
        """Record a refusal or an invalid reply."""
        self._write(
            "UPDATE requests SET state = ? WHERE source = ? AND id = ? AND state = 'sent'",
            *(state, source, request),
        )

    def record_answer(self, request: str, answer: Answer, reply: bytes) -> str | None:
        """Store an answer, unless its head contradicts an earlier head of the source.

        Then return why it is rejected. The source is no longer trusted.
        """
        head = answer.head
        with self._transaction() as execute:
            if self._contradicts(head, request):
                execute("UPDATE sources SET fault = ? WHERE id = ?", (FORKED, head.source))
                return FORKED
            execute(
                "INSERT OR IGNORE INTO heads VALUES (?, ?, ?, ?, ?, ?)",
                (head.source, head.index, head.hash, head.previous, head.signature, request),
            )
            execute(
                "UPDATE requests SET state = 'answered', reply = ? "
                "WHERE source = ? AND id = ? AND state <> 'answered'",
                (reply, head.source, request),
            )
        return None

    def read_answer(self, run: str, terms: Terms, request: str) -> Answer | None:
        """Read and verify a stored answer, which a run uses; None if there is none."""
        rows = self._fetch(
            "SELECT reply FROM requests WHERE source = ? AND id = ? AND state = 'answered'",
            *(terms.source, request),
        )
        if not rows:
            return None
        try:
            answer = unseal_reply(rows[0][0], terms.key)
            if not isinstance(answer, Answer) or answer.request != request:
                raise EnvelopeError("it answers another query")
        except EnvelopeError as cause:
            raise DataError(
                str(self.path),
                f"answers that {terms.name} signed",
                "an answer that was changed since",
                "Find out what wrote to the history. With a new history the same queries get "
                "the same answers at no cost.",
            ) from cause
        self._write("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", run, terms.source, request)
        return answer

    def charges(self, source: str, run: str | None = None) -> list[SentRequest]:
        """Requests, of a run or all, that a source may have charged.

        They are answered, or their outcome is not known.
        """
        rows = self._fetch(
            "SELECT state, purpose, event, raw FROM requests WHERE source = ? "
            "AND state <> 'refused' AND (? IS NULL OR EXISTS (SELECT 1 FROM runs "
            "WHERE runs.source = requests.source AND runs.id = requests.id AND run = ?)) "
            "ORDER BY id",
            *(source, run, run),
        )
        return [_sent_request(*row) for row in rows]

    # ------------------------------------------------------------------- rounds

    def find_round(self, run: str, query: str) -> ClosedRound | None:
        """A finished round; None if it is not finished."""
        rows = self._fetch("SELECT closed FROM rounds WHERE run = ? AND query = ?", run, query)
        if not rows:
            return None
        body = json.loads(rows[0][0])
        return ClosedRound(tuple(body["requested"]), Frozen(body["dropouts"]))

    def close_round(self, run: str, query: str, outcome: ClosedRound) -> ClosedRound:
        """Store the outcome of a round, unless another process stored one; return the stored."""
        text = canonical(
            {"dropouts": dict(outcome.dropouts), "requested": list(outcome.requested)}
        )
        self._write("INSERT OR IGNORE INTO rounds VALUES (?, ?, ?)", run, query, text)
        return self.find_round(run, query) or outcome

    def _contradicts(self, head: Head, request: str) -> bool:
        """Whether a head is inconsistent with the known links of the source's hash chain."""
        rows = self._fetch(
            "SELECT number, hash, previous, request FROM heads "
            "WHERE source = ? AND number BETWEEN ? AND ?",
            *(head.source, head.index - 1, head.index + 1),
        )
        known = {number: rest for number, *rest in rows}
        here, before, after = (known.get(head.index + step) for step in (0, -1, 1))
        return (
            (here is not None and here != [head.hash, head.previous, request])
            or (before is not None and before[0] != head.previous)
            or (after is not None and after[1] != head.hash)
        )

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Convert database errors to messages for the owner."""
        try:
            yield
        except sqlite3.Error as cause:
            raise DataError(
                str(self.path),
                "a coordinator's history that can be read and written",
                str(cause),
                "Free disk space, or choose the right file. Answers are not lost: sources "
                "repeat them at no cost.",
            ) from cause

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """An atomic change; the value executes a statement of it."""
        with self._explain_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _write(self, statement: str, *values: Any) -> None:
        """Execute one statement in a transaction."""
        with self._transaction() as execute:
            execute(statement, values)

    def _fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows."""
        with self._explain_errors():
            return self._connection.execute(statement, values).fetchall()


def _sent_request(state: State, purpose: str, event: str, raw: bytes) -> SentRequest:
    """A row of the requests."""
    return SentRequest(state, purpose, event_from_json(json.loads(event)), raw)


_MAX_ITEMS = 10**6


class SourceAccount:
    """A source's budget for this coordinator, by the rule of its ledger."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.budget = terms, terms.budget

    @cached_property
    def rule(self) -> EpsilonSums | Renyi:
        """Composition rule of costs."""
        return EpsilonSums() if self.budget.pure else Renyi(best_order(self.budget))

    def spent(self, events: Iterable[Event]) -> Cost:
        """Total cost of events."""
        return sum((self.rule.cost(event, self.budget, None) for event in events), Cost(0))

    def privacy(self, events: Iterable[Event]) -> tuple[float, float]:
        """Epsilon and delta of events."""
        return self.rule.privacy(self.spent(events), self.budget)

    def left(self, events: Iterable[Event]) -> tuple[float, float]:
        """Remaining epsilon and delta after events."""
        return self.rule.left(self.spent(events), self.budget)

    def require(self, items: Sequence[Item], before: Sequence[Event]) -> None:
        """Refuse items that exceed the budget that is left after earlier events.

        Raises
        ------
        BudgetError
            Nothing was sent.
        """
        for item in items:
            is_pure = pure_epsilon(item.event, self.budget.unit) is not None
            if not is_pure and self.budget.pure:
                raise BudgetError(
                    f"{self.terms.name} answers with Laplace noise only (delta = 0), but "
                    f"{item.purpose!r} needs Gaussian noise. Nothing was sent. Use a method "
                    "without a delta, or ask the owner to enroll again with a delta."
                )
            if is_pure:
                cost: float = micro_epsilon(item.event, self.budget.unit)
            else:
                cost = epsilon_for(item.event, self.budget.delta, self.budget.unit) * MICRO
            if cost > self.terms.max_per_answer:
                raise BudgetError(
                    f"{self.terms.name} allows epsilon={self.terms.max_per_answer / MICRO:g} "
                    f"for one answer, but {item.purpose!r} costs {format_up(cost / MICRO, 6)}. "
                    "Nothing was sent. Reduce epsilon, or ask the owner to enroll again with a "
                    "larger --max-per-answer."
                )
        events = [item.event for item in items for _ in range(min(item.times, _MAX_ITEMS))]
        if (self.spent(before) + self.spent(events)).within(self.rule.total(self.budget)):
            return
        requested, left = self.privacy(events)[0], self.left(before)[0]
        raise BudgetError(
            f"{self.terms.name}: the queries cost epsilon={format_up(requested, 6)}, but "
            f"{format_down(left, 6)} of {self.budget.epsilon:g} is left according to the "
            "history. Nothing was sent. Reduce epsilon, or ask the owner to enroll again with "
            "a larger budget."
        )
