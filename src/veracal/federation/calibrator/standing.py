"""Who takes part in a federation, and what each has spent as far as the calibrator knows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal.federation.calibrator.accounts import Account
from veracal.federation.calibrator.book import Book
from veracal.federation.calibrator.founding import KEY, book_of, members
from veracal.federation.protocol.heads import Head
from veracal.federation.protocol.keys import PrivateKey
from veracal.federation.protocol.terms import Terms


@dataclass(frozen=True)
class Standing:
    """A source, as its calibrator's book knows it.

    Attributes
    ----------
    terms : Terms
    answered, unknown : int
        Answers that have come, and requests whose fate is not known: they count as charged.
    spent, left : tuple of (epsilon, delta)
        Of what was answered, or may have been. The source's own ledger decides: one that
        refused has as a rule charged nothing, but its answer may have come too late.
    head : Head or None
        The last that it has signed.
    fault : str or None
        Why it is not believed any more.
    """

    terms: Terms
    answered: int
    unknown: int
    spent: tuple[float, float]
    left: tuple[float, float]
    head: Head | None
    fault: str | None

    @property
    def missing(self) -> int:
        """Entries that the source's ledger has, and that this book knows nothing of."""
        return 0 if self.head is None else max(0, self.head.index - self.answered)

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {
            "name": self.terms.name,
            "source": self.terms.source,
            "fingerprint": self.terms.key.fingerprint,
            "answered": self.answered,
            "unknown": self.unknown,
            "missing": self.missing,
            "spent": dict(zip(("epsilon", "delta"), self.spent, strict=True)),
            "left": dict(zip(("epsilon", "delta"), self.left, strict=True)),
            "head": None if self.head is None else self.head.to_json(),
            "fault": self.fault,
            "expires": self.terms.expires,
        }


def standings(folder: Path) -> list[Standing]:
    """Everybody who takes part."""
    sources, place = members(folder), book_of(folder)
    if not place.exists():  # looking makes no book
        return [_standing(terms, None) for terms in sources]
    with Book(place, PrivateKey.read(folder / KEY).public) as book:
        return [_standing(terms, book) for terms in sources]


def _standing(terms: Terms, book: Book | None) -> Standing:
    """One source."""
    account = Account(terms)
    charges = [] if book is None else book.charges(terms.source)
    events = [sent.event for sent in charges]
    answered = sum(sent.state == "answered" for sent in charges)
    return Standing(
        terms,
        answered,
        len(charges) - answered,
        account.privacy(events),
        account.left(events),
        None if book is None else book.head(terms.source),
        None if book is None else book.fault(terms.source),
    )
