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
from veracal.errors import LedgerError
from veracal.privacy import events
from veracal.privacy.events import Event

Outcome = Literal["charged", "answered", "failed"]


def canonical(record: Mapping[str, Any]) -> str:
    """Write a record in the one way that is hashed: sorted, without blanks, in ASCII."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: str | bytes) -> str:
    """SHA-256 of text or bytes, in hexadecimal."""
    data = content.encode("ascii") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Entry:
    """One charge, as it stands in a ledger for good.

    Attributes
    ----------
    index : int
        1 for the first.
    purpose : str
        What the charge was for.
    event : Event
        What was paid for.
    part : str or None
        Part of the records it was about; None for all of them.
    delta : float or None
        Failure probability at which the event was charged, if the caller named one.
    account : str or None
        Account that was debited: a part, a planned item, or None for every part.
    cost, cost_delta : int
        In the units of the ledger's kind.
    request, body : str or None
        The caller's id, and the SHA-256 of everything it asked for under that id.
    outcome : {"charged", "answered", "failed"}
        Whether it was only charged, or an answer was computed too, or that failed.
    answer : str or None
        SHA-256 of the answer.
    previous : str
        Hash of the entry before, or of the opening.
    """

    index: int
    purpose: str
    event: Event
    part: str | None
    delta: float | None
    account: str | None
    cost: int
    cost_delta: int
    request: str | None
    body: str | None
    outcome: Outcome
    answer: str | None
    previous: str

    def __post_init__(self) -> None:
        _checks.one_of(get_args(Outcome), outcome=self.outcome)

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
        return {**written, "event": events.to_json(self.event)}

    @classmethod
    def from_text(cls, text: str) -> "Entry":
        """Read an entry back; whatever is not exactly one is refused."""
        try:
            values = json.loads(text)
            entry = cls(**{**values, "event": events.from_json(values["event"])})
        except (KeyError, TypeError, ValueError) as cause:
            raise LedgerError(f"An entry cannot be read: {text[:80]!r}.") from cause
        if entry.text != text:
            raise LedgerError(f"Entry {entry.index} is not in canonical form.")
        return entry
