"""What a source sends back: an answer, or the one refusal there is."""

from dataclasses import dataclass

from veracal.federation.protocol import fields as schema
from veracal.federation.protocol.envelopes import ANSWER, MOST_ANSWER, seal, unseal
from veracal.federation.protocol.heads import Head
from veracal.federation.protocol.keys import PrivateKey, PublicKey
from veracal.federation.protocol.terms import MARK

MOST_ENTRIES = 10_000
_MOST_UNITS = 2**63 - 1


@dataclass(frozen=True)
class Answer:
    """An answer, as it leaves a source.

    It is made of what the ledger keeps of it, and of nothing else: sent again, it is the same
    bytes.

    Attributes
    ----------
    request : str
        Id of the question.
    units : tuple of int
        The noisy answer, in units of the question's grid.
    head : Head
        Of the very entry that paid for it.
    """

    request: str
    units: tuple[int, ...]
    head: Head

    def sealed(self, key: PrivateKey) -> bytes:
        """Signed by the source, as it is sent."""
        body = {
            "head": self.head.to_json(),
            "refused": False,
            "request": self.request,
            "source": self.head.source,
            "units": list(self.units),
        }
        return seal(ANSWER, body, key)


@dataclass(frozen=True)
class Refusal:
    """A refusal: the same bytes for every reason, which the source's owner alone can read."""

    source: str

    def sealed(self, key: PrivateKey) -> bytes:
        """Signed by the source, as it is sent."""
        body = {
            "head": None,
            "refused": True,
            "request": None,
            "source": self.source,
            "units": None,
        }
        return seal(ANSWER, body, key)


def unsealed_reply(raw: bytes, key: PublicKey) -> Answer | Refusal:
    """Read what a source has signed.

    Raises
    ------
    EnvelopeError
        For anything else.
    """
    body = unseal(ANSWER, raw, key, most=MOST_ANSWER)
    told = schema.closed(body, _REFUSAL if body.get("refused") is True else _ANSWER, "reply")
    if told["refused"]:
        return Refusal(told["source"])
    head = Head.from_json(told["head"], told["source"])
    return Answer(told["request"], tuple(told["units"]), head)


_ANSWER: dict[str, schema.Check] = {
    "head": schema.is_object,
    "refused": lambda value: value is False,
    "request": schema.hexadecimal(64),
    "source": schema.hexadecimal(MARK),
    "units": schema.listed(schema.integer(-_MOST_UNITS, _MOST_UNITS), 1, MOST_ENTRIES),
}
_REFUSAL: dict[str, schema.Check] = {
    "head": lambda value: value is None,
    "refused": lambda value: value is True,
    "request": lambda value: value is None,
    "source": schema.hexadecimal(MARK),
    "units": lambda value: value is None,
}
