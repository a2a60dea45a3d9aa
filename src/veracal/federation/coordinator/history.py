"""The file of a coordinator's history: SQLite, of which every change is on the disk at once.

A coordinator's history: what it has asked, what was answered, and where ledgers were then.

Every step is one transaction, written before the next is taken. Whoever opens the history after
a crash knows what was sent and what has come back, so that nothing is asked twice at new cost
and the same sources take part as before.

What a source can still pay, as far as a coordinator knows: its terms minus what was asked.

A source's own ledger decides. This is kept by the same rule, so that nothing is asked of a
source that could not answer everything.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    micro_epsilon,
    pure_epsilon,
    rounded_down,
    rounded_up,
)
from veracal.data import no_surprises
from veracal.errors import BudgetError, ConflictError, DataError
from veracal.federation.protocol.envelopes import EnvelopeError, PublicKey
from veracal.federation.protocol.messages import Answer, Head, unseal_reply
from veracal.federation.protocol.terms import Terms
from veracal.ledger import Cost, EpsilonSums, Item, Renyi, best_order, canonical

APPLICATION = 0x5643424B  # "VCBK", in the header of the file
FORMAT = 1
_PATIENCE = 60.0  # seconds to wait for another command that writes to the same history
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


def open_database(path: Path | None) -> sqlite3.Connection:
    """Open the file, or make it for its owner's eyes only; None keeps all in memory."""
    if path is None:
        connection = sqlite3.connect(":memory:", isolation_level=None)
    else:
        with no_surprises(path):
            new = not path.exists()
        if new:
            _make(path)
        with explain_database_errors(path):
            connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
    with explain_database_errors(path):
        connection.execute(f"PRAGMA synchronous = {_FULL}")
        _check(connection, path)
    return connection


@contextmanager
def explain_database_errors(path: Path | None) -> Iterator[None]:
    """Tell what the disk or the file does not allow, in a line for the owner."""
    try:
        yield
    except sqlite3.Error as cause:
        raise DataError(
            str(path),
            "a history of a coordinator that can be read and written",
            str(cause),
            "Make room on the disk, or name the right file. What was answered is not lost: "
            "sources repeat their answers at no cost.",
        ) from cause


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path | None) -> Iterator[None]:
    """One change, whole or not at all."""
    with explain_database_errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _make(path: Path) -> None:
    """An empty file, before anything secret could be in it."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as cause:
        raise DataError(
            str(path), "a place for a history", cause.strerror or "none", "Name another place."
        ) from cause


def _check(connection: sqlite3.Connection, path: Path | None) -> None:
    """Fill a new file; refuse one that is something else, or of a later version."""
    with transaction(connection, path):
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if (application, version, tables) == (0, 0, 0):
            for statement in _TABLES.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        elif (application, version) != (APPLICATION, FORMAT):
            raise DataError(
                str(path),
                f"a history of a coordinator, of format {FORMAT}",
                "another file" if application != APPLICATION else f"format {version}",
                "Name the right file, or a new one.",
            )


State = Literal["sent", "answered", "refused", "unusable"]
FORKED = "it has signed two ledgers that contradict each other"


@dataclass(frozen=True)
class SentRequest:
    """A request that went out.

    Attributes
    ----------
    state : {"sent", "answered", "refused", "unusable"}
        What is known of its fate: nothing, an answer, a signed refusal, or a reply that cannot
        be used.
    purpose : str
        What the query is called.
    event : Event
        What the source charges for an answer.
    raw : bytes
        As it was sent: sent again it is the same bytes.
    """

    state: State
    purpose: str
    event: Event
    raw: bytes


@dataclass(frozen=True)
class ClosedRound:
    """A round that is over.

    Attributes
    ----------
    asked : tuple of str
        Ids of the sources that a request was sent to.
    silences : mapping of str to str
        Why sources were silent, by their ids.
    """

    asked: tuple[str, ...]
    silences: Mapping[str, str]


class RequestHistory:
    """A coordinator's history, in a file or in memory.

    Parameters
    ----------
    path : path or None
        None: it is lost with the process, and with it what is known of costs.
    coordinator : PublicKey
        Whose it is: the requests in it are signed by that key.

    Guarantees
    ----------
    What is read from it was signed by a source, and is checked again when it is read. A change
    is on the disk before it counts. It holds nothing that was not sent or received: whoever
    reads it learns what the coordinator knows.
    """

    def __init__(self, path: Path | None, coordinator: PublicKey) -> None:
        self.path = path
        self._connection = open_database(path)
        with transaction(self._connection, path):
            self._run("INSERT OR IGNORE INTO about VALUES ('coordinator', ?)", coordinator.text)
        ((owner,),) = self._all("SELECT value FROM about WHERE name = 'coordinator'")
        if owner != coordinator.text:
            raise DataError(
                str(path),
                "the history of the coordinator whose key this is",
                f"that of {owner[:12]}…",
                "Name the right key, or a new history.",
            )

    def __repr__(self) -> str:
        return f"RequestHistory({str(self.path)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    # ------------------------------------------------------------------ sources

    def meet(self, terms: Terms) -> None:
        """Take note of a source, and refuse other terms under an id that is known."""
        told = canonical(terms.to_json())
        with transaction(self._connection, self.path):
            self._run("INSERT OR IGNORE INTO sources VALUES (?, ?, NULL)", terms.source, told)
        if self._one("SELECT terms FROM sources WHERE id = ?", terms.source) != (told,):
            raise DataError(
                f"terms of {terms.name}",
                "the terms that the history knows",
                "others under the same id",
                "Terms never change: ask the source which are right, and enroll again if need "
                "be.",
            )

    def fault(self, source: str) -> str | None:
        """Why a source is not believed any more; None if it is."""
        found = self._one("SELECT fault FROM sources WHERE id = ?", source)
        return None if found is None else found[0]

    def head(self, source: str) -> Head | None:
        """The last that a source has signed."""
        found = self._one(
            "SELECT number, hash, previous, signature FROM heads WHERE source = ? "
            "ORDER BY number DESC LIMIT 1",
            source,
        )
        return None if found is None else Head(source, *found)

    # ----------------------------------------------------------------- requests

    def sent(self, source: str, request: str) -> SentRequest | None:
        """A request, if it ever went out."""
        found = self._one(
            "SELECT state, purpose, event, raw FROM requests WHERE source = ? AND id = ?",
            source,
            request,
        )
        if found is None:
            return None
        state, purpose, event, raw = found
        return SentRequest(state, purpose, event_from_json(json.loads(event)), raw)

    def send(self, run: str, source: str, request: str, told: SentRequest) -> None:
        """Take note of a request before it goes out; of one that went out before, once more."""
        event = canonical(event_to_json(told.event))
        with transaction(self._connection, self.path):
            self._run("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", run, source, request)
            self._run(
                "INSERT INTO requests VALUES (?, ?, 'sent', ?, ?, ?, NULL) "
                "ON CONFLICT DO UPDATE SET state = 'sent', raw = excluded.raw "
                "WHERE state IN ('refused', 'unusable')",
                *(source, request, told.purpose, event, told.raw),
            )

    def took_part(self, run: str, source: str, request: str) -> None:
        """Take note that a run makes use of a request that was answered before."""
        with transaction(self._connection, self.path):
            self._run("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", run, source, request)

    def label(self, run: str, source: str, label: str, request: str) -> None:
        """Give a request a caller's id; another under the same one is refused."""
        with transaction(self._connection, self.path):
            self._run(
                "INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?)", run, source, label, request
            )
        found = self._one(
            "SELECT id FROM labels WHERE run = ? AND source = ? AND label = ?",
            *(run, source, label),
        )
        if found != (request,):
            raise ConflictError(
                f"Request id {label!r} was used before, for another query; nothing was "
                "asked. Use another id."
            )

    def failed(self, source: str, request: str, state: State) -> None:
        """Take note of a refusal, or of a reply that cannot be used."""
        with transaction(self._connection, self.path):
            self._run(
                "UPDATE requests SET state = ? WHERE source = ? AND id = ? AND state = 'sent'",
                *(state, source, request),
            )

    def answered(self, request: str, answer: Answer, reply: bytes) -> str | None:
        """Keep an answer, unless its head contradicts what the source has signed before.

        Returns
        -------
        str or None
            Why it is not believed; the source is not asked any more.
        """
        head = answer.head
        with transaction(self._connection, self.path):
            if self._contradicts(head, request):
                self._run("UPDATE sources SET fault = ? WHERE id = ?", FORKED, head.source)
                return FORKED
            self._run(
                "INSERT OR IGNORE INTO heads VALUES (?, ?, ?, ?, ?, ?)",
                *(head.source, head.index, head.hash, head.previous, head.signature, request),
            )
            self._run(
                "UPDATE requests SET state = 'answered', reply = ? "
                "WHERE source = ? AND id = ? AND state <> 'answered'",
                *(reply, head.source, request),
            )
        return None

    def answer(self, terms: Terms, request: str) -> Answer | None:
        """An answer that was kept."""
        found = self._one(
            "SELECT reply FROM requests WHERE source = ? AND id = ? AND state = 'answered'",
            *(terms.source, request),
        )
        if found is None:
            return None
        try:
            answer = unseal_reply(found[0], terms.key)
            if not isinstance(answer, Answer) or answer.request != request:
                raise EnvelopeError("it is to another query")
        except EnvelopeError as cause:
            raise DataError(
                str(self.path),
                f"answers as {terms.name} signed them",
                "one that was changed since",
                "Look for what wrote to the history. In a new history the same queries get the "
                "same answers, at no cost.",
            ) from cause
        return answer

    def charges(self, source: str, run: str | None = None) -> list[SentRequest]:
        """Everything that a source may have charged: answered, or of unknown fate.

        Parameters
        ----------
        source : str
        run : str, optional
            Only what this run has asked.
        """
        chosen = "" if run is None else "JOIN runs USING (source, id)"
        where = "" if run is None else "AND run = ?"
        rows = self._all(
            f"SELECT state, purpose, event, raw FROM requests {chosen} "  # noqa: S608 - our words
            f"WHERE source = ? AND state <> 'refused' {where} ORDER BY id",
            *(source, *(() if run is None else (run,))),
        )
        return [SentRequest(s, p, event_from_json(json.loads(e)), raw) for s, p, e, raw in rows]

    # ------------------------------------------------------------------- rounds

    def closed(self, run: str, query: str) -> ClosedRound | None:
        """A round that is over."""
        found = self._one("SELECT closed FROM rounds WHERE run = ? AND query = ?", run, query)
        if found is None:
            return None
        told = json.loads(found[0])
        return ClosedRound(tuple(told["asked"]), Frozen(told["silences"]))

    def close_round(self, run: str, query: str, over: ClosedRound) -> ClosedRound:
        """Take note that a round is over, and who was silent; the first to say so is right.

        Returns
        -------
        Closed
            What the first has said, who may be another process.
        """
        told = canonical({"asked": list(over.asked), "silences": dict(over.silences)})
        with transaction(self._connection, self.path):
            self._run("INSERT OR IGNORE INTO rounds VALUES (?, ?, ?)", run, query, told)
        return self.closed(run, query) or over

    def _contradicts(self, head: Head, request: str) -> bool:
        """Whether a head cannot belong to the chain that is known, link by link."""
        rows = self._all(
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

    def _run(self, statement: str, *values: Any) -> None:
        """Change something, inside a transaction."""
        self._connection.execute(statement, values)

    def _one(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        """The one row there is, or None."""
        found = self._all(statement, *values)
        return found[0] if found else None

    def _all(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows."""
        with explain_database_errors(self.path):
            return self._connection.execute(statement, values).fetchall()


_MOST_ITEMS = 10**6


class SourceAccount:
    """A source's budget for this coordinator, by the rule that its ledger goes by.

    Parameters
    ----------
    terms : Terms
    """

    def __init__(self, terms: Terms) -> None:
        self.terms, self.budget = terms, terms.budget
        self._most_each = terms.max_per_answer

    @cached_property
    def rule(self) -> EpsilonSums | Renyi:
        """How costs add up."""
        return EpsilonSums() if self.budget.pure else Renyi(best_order(self.budget))

    def spent(self, events: Iterable[Event]) -> Cost:
        """What events cost together."""
        found = Cost(0)
        for event in events:
            found = found + self.rule.cost(event, self.budget, None)
        return found

    def privacy(self, events: Iterable[Event]) -> tuple[float, float]:
        """Epsilon and delta that events amount to."""
        return self.rule.privacy(self.spent(events), self.budget)

    def left(self, events: Iterable[Event]) -> tuple[float, float]:
        """Epsilon and delta that are left after events."""
        return self.rule.left(self.spent(events), self.budget)

    def require(self, items: Sequence[Item], before: Sequence[Event]) -> None:
        """Refuse items that do not fit into what is left.

        Parameters
        ----------
        items : sequence of Item
        before : sequence of Event
            What was charged already, or may have been.

        Raises
        ------
        BudgetError
            Nothing was asked.
        """
        for item in items:
            self._check_each(item)
        events = [item.event for item in items for _ in range(min(item.times, _MOST_ITEMS))]
        if (self.spent(before) + self.spent(events)).within(self.rule.total(self.budget)):
            return
        asked, left = self.privacy(events)[0], self.left(before)[0]
        raise BudgetError(
            f"{self.terms.name} is asked for epsilon={rounded_up(asked, 6)}, but "
            f"{rounded_down(left, 6)} of {self.budget.epsilon:g} is left, as far as the history "
            "knows; it was not asked. Ask for less, or ask its owner to enroll again with a "
            "larger budget."
        )

    def _check_each(self, item: Item) -> None:
        """Refuse an answer that costs more than the source allows for one."""
        cost = pure_epsilon(item.event, self.budget.unit)
        if cost is None and self.budget.pure:
            raise BudgetError(
                f"{self.terms.name} answers with Laplace noise alone (delta = 0), but "
                f"{item.purpose!r} needs Gaussian noise; it was not asked. Use a method "
                "without a delta, or ask its owner to enroll again with one."
            )
        each = self._each(item.event)
        if each > self._most_each:
            raise BudgetError(
                f"{self.terms.name} allows epsilon={self._most_each / MICRO:g} for one answer, "
                f"but {item.purpose!r} costs {rounded_up(each / MICRO, 6)}; it was not asked. "
                "Ask for less, or ask its owner to enroll again with a larger --max-per-answer."
            )

    def _each(self, event: Event) -> float:
        """What one answer costs by itself, in millionths of epsilon."""
        if pure_epsilon(event, self.budget.unit) is not None:
            return micro_epsilon(event, self.budget.unit)
        return epsilon_for(event, self.budget.delta, self.budget.unit) * MICRO
