"""Entries of a ledger, each bound to all before it by a hash.

The hash of an entry covers its canonical JSON, which names the hash of the entry before; the
first names the hash of the opening record. Whoever wrote down one hash, the *head*, can tell
later whether anything up to it was changed, left out or put in between. A chain proves
nothing to somebody who wrote down no head: its owner could have rewritten it whole.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from veracal import _checks
from veracal.accounting import Event, event_from_json, event_to_json
from veracal.errors import LedgerError
from veracal.ledger.plan import Item

Outcome = Literal[
    "charged", "answered", "failed", "reserved", "abandoned", "superseded", "run", "extended"
]


def canonical(record: Mapping[str, Any]) -> str:
    """Write a record in the one way that is hashed: sorted, without blanks, in ASCII."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: str | bytes) -> str:
    """SHA-256 of text or bytes, in hexadecimal."""
    data = content.encode("ascii") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Entry:
    """One charge, or what became of one, as it stands in a ledger for good.

    Attributes
    ----------
    index : int
        1 for the first.
    purpose : str
        What the charge was for; of a run, its name.
    event : Event or None
        What was paid for. None where nothing was paid: an extension, or an entry that settles
        another.
    part : str or None
        Part of the records it was about; None for all of them.
    delta : float or None
        Failure probability at which the event was charged, if the caller named one.
    account : str or None
        Account that was debited: a part of a filter, an item of a plan or of a run, or None
        for every part of the filter.
    filter : int or None
        Filter that was debited: 1 is the one of the opening, each extension adds one. None if
        the charge uses an item that was paid for before, or costs nothing.
    cost, cost_delta : int
        In the units of the ledger's kind.
    request, body : str or None
        The caller's id, and the SHA-256 of everything it asked for under that id.
    run : int or None
        Number of the run that the entry begins, or belongs to.
    outcome : str
        "charged": only charged. "answered", "failed": an answer was computed too, or that
        failed. "reserved": charged, and an answer is to be recorded. "abandoned",
        "superseded": a reservation that will have no answer, since its owner gave it up or a
        further attempt was charged. "run": the list of a run was charged. "extended": a cap
        was raised.
    answer : str or None
        SHA-256 of the answer.
    settles : int or None
        Index of the reservation (or of the run) that this entry settles.
    items : tuple of Item
        What a run may use of this part.
    extension : tuple of (epsilon, delta), optional
        By how much the caps were raised.
    previous : str
        Hash of the entry before, or of the opening.
    """

    index: int
    purpose: str
    event: Event | None
    part: str | None
    delta: float | None
    account: str | None
    filter: int | None
    cost: int
    cost_delta: int
    request: str | None
    body: str | None
    run: int | None
    outcome: Outcome
    answer: str | None
    previous: str
    settles: int | None = None
    items: tuple[Item, ...] = ()
    extension: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _checks.one_of(get_args(Outcome), outcome=self.outcome)

    @property
    def scope(self) -> int:
        """Where its request id is unique: the run it belongs to, or 0 for the whole ledger."""
        return 0 if self.run is None or self.outcome == "run" else self.run

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical record."""
        return digest(self.text)

    @property
    def text(self) -> str:
        """The canonical record."""
        return canonical(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Write the entry as what JSON can hold."""
        written = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **written,
            "event": None if self.event is None else event_to_json(self.event),
            "items": [item.to_json() for item in self.items],
            "extension": None if self.extension is None else list(self.extension),
        }

    @classmethod
    def from_text(cls, text: str) -> "Entry":
        """Read an entry back; whatever is not exactly one is refused."""
        try:
            values = json.loads(text)
            event, extension = values["event"], values["extension"]
            values["event"] = None if event is None else event_from_json(event)
            values["extension"] = None if extension is None else tuple(extension)
            values["items"] = tuple(map(Item.from_json, values["items"]))
            entry = cls(**values)
        except (KeyError, TypeError, ValueError) as cause:
            raise LedgerError(f"An entry cannot be read: {text[:80]!r}.") from cause
        if entry.text != text:
            raise LedgerError(f"Entry {entry.index} is not in canonical form.")
        return entry
