"""A calibrator's book: what it has asked, what was answered, and where ledgers were then.

Every step is one transaction, written before the next is taken. Whoever opens the book after
a crash knows what was sent and what has come back, so that nothing is asked twice at new cost
and the same sources take part as before.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from veracal._types import Frozen
from veracal.errors import ConflictError, DataError
from veracal.federation.calibrator.tables import kept, opened, writing
from veracal.federation.protocol.envelopes import EnvelopeError
from veracal.federation.protocol.heads import Head
from veracal.federation.protocol.keys import PublicKey
from veracal.federation.protocol.replies import Answer, unsealed_reply
from veracal.federation.protocol.terms import Terms
from veracal.privacy.events import Event, from_json, to_json
from veracal.privacy.ledger.chain import canonical

State = Literal["sent", "answered", "refused", "unusable"]
FORKED = "it has signed two ledgers that contradict each other"


@dataclass(frozen=True)
class Sent:
    """A request that went out.

    Attributes
    ----------
    state : {"sent", "answered", "refused", "unusable"}
        What is known of its fate: nothing, an answer, a signed refusal, or a reply that cannot
        be used.
    purpose : str
        What the question is called.
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
class Closed:
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


class Book:
    """A calibrator's book, in a file or in memory.

    Parameters
    ----------
    path : path or None
        None: it is lost with the process, and with it what is known of costs.
    calibrator : PublicKey
        Whose it is: the requests in it are signed by that key.

    Guarantees
    ----------
    What is read from it was signed by a source, and is checked again when it is read. A change
    is on the disk before it counts. It holds nothing that was not sent or received: whoever
    reads it learns what the calibrator knows.
    """

    def __init__(self, path: Path | None, calibrator: PublicKey) -> None:
        self.path = path
        self._connection = opened(path)
        with writing(self._connection, path):
            self._run("INSERT OR IGNORE INTO about VALUES ('calibrator', ?)", calibrator.text)
        ((owner,),) = self._all("SELECT value FROM about WHERE name = 'calibrator'")
        if owner != calibrator.text:
            raise DataError(
                str(path),
                "the book of the calibrator whose key this is",
                f"that of {owner[:12]}…",
                "Name the right key, or a new book.",
            )

    def __repr__(self) -> str:
        return f"Book({str(self.path)!r})"

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
        with writing(self._connection, self.path):
            self._run("INSERT OR IGNORE INTO sources VALUES (?, ?, NULL)", terms.source, told)
        if self._one("SELECT terms FROM sources WHERE id = ?", terms.source) != (told,):
            raise DataError(
                f"terms of {terms.name}",
                "the terms that the book knows",
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

    def sent(self, source: str, request: str) -> Sent | None:
        """A request, if it ever went out."""
        found = self._one(
            "SELECT state, purpose, event, raw FROM requests WHERE source = ? AND id = ?",
            source,
            request,
        )
        if found is None:
            return None
        state, purpose, event, raw = found
        return Sent(state, purpose, from_json(json.loads(event)), raw)

    def send(self, run: str, source: str, request: str, told: Sent) -> None:
        """Take note of a request before it goes out; of one that went out before, once more."""
        event = canonical(to_json(told.event))
        with writing(self._connection, self.path):
            self._run("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", run, source, request)
            self._run(
                "INSERT INTO requests VALUES (?, ?, 'sent', ?, ?, ?, NULL) "
                "ON CONFLICT DO UPDATE SET state = 'sent', raw = excluded.raw "
                "WHERE state IN ('refused', 'unusable')",
                *(source, request, told.purpose, event, told.raw),
            )

    def took_part(self, run: str, source: str, request: str) -> None:
        """Take note that a run makes use of a request that was answered before."""
        with writing(self._connection, self.path):
            self._run("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", run, source, request)

    def label(self, run: str, source: str, label: str, request: str) -> None:
        """Give a request a caller's id; another under the same one is refused."""
        with writing(self._connection, self.path):
            self._run(
                "INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?)", run, source, label, request
            )
        found = self._one(
            "SELECT id FROM labels WHERE run = ? AND source = ? AND label = ?",
            *(run, source, label),
        )
        if found != (request,):
            raise ConflictError(
                f"Request id {label!r} was used before, for another question; nothing was "
                "asked. Use another id."
            )

    def failed(self, source: str, request: str, state: State) -> None:
        """Take note of a refusal, or of a reply that cannot be used."""
        with writing(self._connection, self.path):
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
        with writing(self._connection, self.path):
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
            answer = unsealed_reply(found[0], terms.key)
            if not isinstance(answer, Answer) or answer.request != request:
                raise EnvelopeError("it is to another question")
        except EnvelopeError as cause:
            raise DataError(
                str(self.path),
                f"answers as {terms.name} signed them",
                "one that was changed since",
                "Look for what wrote to the book. In a new book the same questions get the "
                "same answers, at no cost.",
            ) from cause
        return answer

    def charges(self, source: str, run: str | None = None) -> list[Sent]:
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
        return [Sent(s, p, from_json(json.loads(e)), raw) for s, p, e, raw in rows]

    # ------------------------------------------------------------------- rounds

    def closed(self, run: str, question: str) -> Closed | None:
        """A round that is over."""
        found = self._one(
            "SELECT closed FROM rounds WHERE run = ? AND question = ?", run, question
        )
        if found is None:
            return None
        told = json.loads(found[0])
        return Closed(tuple(told["asked"]), Frozen(told["silences"]))

    def close_round(self, run: str, question: str, over: Closed) -> Closed:
        """Take note that a round is over, and who was silent; the first to say so is right.

        Returns
        -------
        Closed
            What the first has said, who may be another process.
        """
        told = canonical({"asked": list(over.asked), "silences": dict(over.silences)})
        with writing(self._connection, self.path):
            self._run("INSERT OR IGNORE INTO rounds VALUES (?, ?, ?)", run, question, told)
        return self.closed(run, question) or over

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
        with kept(self.path):
            return self._connection.execute(statement, values).fetchall()
