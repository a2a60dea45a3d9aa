"""The hash chain of ledger entries.

The hash of an entry covers its canonical JSON, which contains the hash of the previous entry;
the first entry contains the hash of the opening record. A party that noted one hash, the
*head*, can later detect whether any entry up to it was changed, removed or inserted. Without a
noted head the chain proves nothing, since the owner could have rewritten the whole ledger.
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
    """Canonical JSON of a record, which is hashed: sorted, without spaces, in ASCII."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: str | bytes) -> str:
    """SHA-256 of text or bytes, in hexadecimal."""
    data = content.encode("ascii") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Entry:
    """An immutable ledger entry: a charge, its settlement, a run or an extension.

    Attributes
    ----------
    index : int
        Starts at 1.
    purpose : str
        Purpose of the charge; for a run, its name.
    event : Event or None
        The event that was charged. None for an extension, or an entry that settles another.
    partition : str or None
        Partition of the records; None for all of them.
    delta : float or None
        Failure probability at which the event was charged, if the caller gave one.
    account : str or None
        The account that was debited: a partition in a filter, an item of a plan or of a run,
        or None for every partition of the filter.
    filter : int or None
        The filter that was debited: 1 is that of the opening, each extension adds one. None if
        the charge uses an item that was paid for before, or costs nothing.
    cost, cost_delta : int
        In the units of the ledger's kind.
    request, body : str or None
        The caller's request id, and the SHA-256 of everything requested under it.
    run : int or None
        Number of the run that the entry begins, or belongs to.
    outcome : str
        "charged": only charged. "answered", "failed": an answer was computed, or failed.
        "reserved": charged; an answer is to be recorded. "abandoned", "superseded": a
        reservation without an answer, because its owner gave it up or another attempt was
        charged. "run": the items of a run were charged. "extended": a cap was raised.
    answer : str or None
        SHA-256 of the answer.
    settles : int or None
        Index of the reservation (or run) that this entry settles.
    items : tuple of Item
        The items that a run may use on this partition.
    extension : tuple of (epsilon, delta), optional
        The increase of the caps.
    previous : str
        Hash of the previous entry, or of the opening.
    """

    index: int
    purpose: str
    event: Event | None
    partition: str | None
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
        """Scope of the request id: the run of the entry, or 0 for the whole ledger."""
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
        """Convert to a JSON object."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["part"] = values.pop("partition")
        return {
            **values,
            "event": None if self.event is None else event_to_json(self.event),
            "items": [item.to_json() for item in self.items],
            "extension": None if self.extension is None else list(self.extension),
        }

    @classmethod
    def from_text(cls, text: str) -> "Entry":
        """Parse an entry; raise unless the text is its canonical form."""
        try:
            values = json.loads(text)
            event, extension = values["event"], values["extension"]
            values["event"] = None if event is None else event_from_json(event)
            values["extension"] = None if extension is None else tuple(extension)
            values["partition"] = values.pop("part")
            values["items"] = tuple(map(Item.from_json, values["items"]))
            entry = cls(**values)
        except (KeyError, TypeError, ValueError) as cause:
            raise LedgerError(f"An entry cannot be read: {text[:80]!r}.") from cause
        if entry.text != text:
            raise LedgerError(f"Entry {entry.index} is not in canonical form.")
        return entry
