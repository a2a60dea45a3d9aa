"""Signed heads: where a source's ledger was when it answered.

Whoever holds a signed head can show later that the ledger once was that far. A source that is
shown one that its ledger does not contain has been set back, by a restored backup or by
somebody who wanted it to forget what it has spent.
"""

from dataclasses import dataclass
from typing import Any

from veracal.federation.protocol import fields as schema
from veracal.federation.protocol.envelopes import HEAD
from veracal.federation.protocol.keys import SIGNATURE, PrivateKey, PublicKey
from veracal.privacy.ledger.chain import canonical

HASH = 64
MOST_INDEX = 2**53


@dataclass(frozen=True)
class Head:
    """An entry of a ledger, by number and hash, signed by the ledger's owner.

    Attributes
    ----------
    source : str
        Id of the enrolment whose ledger it is.
    index : int
        Number of the entry, from 1.
    hash, previous : str
        Of the entry, and of the one before it (or of the opening).
    signature : str
    """

    source: str
    index: int
    hash: str
    previous: str
    signature: str

    @classmethod
    def signed(
        cls, source: str, index: int, hash_: str, previous: str, key: PrivateKey
    ) -> "Head":
        """Sign an entry."""
        unsigned = cls(source, index, hash_, previous, "")
        return cls(source, index, hash_, previous, key.sign(unsigned.content))

    @property
    def content(self) -> bytes:
        """What is signed."""
        told = {
            "hash": self.hash,
            "index": self.index,
            "previous": self.previous,
            "source": self.source,
        }
        return f"{HEAD}\n{canonical(told)}".encode("ascii")

    def holds(self, key: PublicKey) -> bool:
        """Whether the owner of the key signed it."""
        return key.verify(self.signature, self.content)

    def to_json(self) -> dict[str, Any]:
        """Everything but the source, which stands beside it."""
        return {
            "hash": self.hash,
            "index": self.index,
            "previous": self.previous,
            "signature": self.signature,
        }

    @classmethod
    def from_json(cls, body: Any, source: str) -> "Head":
        """Read what :meth:`to_json` wrote; its signature is still to be checked."""
        told = schema.closed(body, _CHECKS, "the head")
        return cls(source, told["index"], told["hash"], told["previous"], told["signature"])


_CHECKS: dict[str, schema.Check] = {
    "hash": schema.hexadecimal(HASH),
    "index": schema.integer(1, MOST_INDEX),
    "previous": schema.hexadecimal(HASH),
    "signature": schema.hexadecimal(SIGNATURE),
}
