"""Signed heads: where a source's ledger was when it answered.

Whoever holds a signed head can show later that the ledger once was that far. A source that is
shown one that its ledger does not contain has been set back, by a restored backup or by
somebody who wanted it to forget what it has spent.

A request: which of the declared queries, where, and for how much.

What a source sends back: an answer, or the one refusal there is.
"""

from dataclasses import dataclass
from typing import Any

from veracal.federation.protocol import envelopes as schema
from veracal.federation.protocol.envelopes import (
    ANSWER,
    HEAD,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    REQUEST,
    SIGNATURE_DIGITS,
    EnvelopeError,
    PrivateKey,
    PublicKey,
    seal,
    unseal,
)
from veracal.federation.protocol.terms import ID_DIGITS, HASH_DIGITS, MAX_MICRO_EPSILON
from veracal.ledger import canonical, digest

MAX_INDEX = 2**53


@dataclass(frozen=True)
class Head:
    """An entry of a ledger, by number and hash, signed by the ledger's owner.

    Attributes
    ----------
    source : str
        Id of the enrollment whose ledger it is.
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
        told = schema.check_fields(body, _CHECKS, "the head")
        return cls(source, told["index"], told["hash"], told["previous"], told["signature"])


_CHECKS: dict[str, schema.Check] = {
    "hash": schema.hexadecimal(HASH_DIGITS),
    "index": schema.integer(1, MAX_INDEX),
    "previous": schema.hexadecimal(HASH_DIGITS),
    "signature": schema.hexadecimal(SIGNATURE_DIGITS),
}


MAX_ROUND = 10**6


@dataclass(frozen=True)
class Request:
    """One query to one source.

    What is asked (:attr:`query`) has one id, its hash: asked again, by mistake, after a
    crash or out of malice, it is the same query and gets the same answer. The round and the
    head say when it was asked, and are not part of it.

    Attributes
    ----------
    source, data, model : str
        Which enrollment, version of the records and model it is about, as of :class:`Terms`.
    kind : str
        Name of a query.
    argument : dict
        Where it is asked: whole numbers on public grids.
    micro_epsilon : int or None
        What the answer costs, with Laplace noise.
    noise_multiplier : float or None
        The noise of a Gaussian answer, in place of that.
    round : int
        Which of the coordinator's queries it is, for people who read logs.
    head : Head or None
        The last that this source has signed; None before its first answer.
    """

    source: str
    data: str
    model: str
    kind: str
    argument: dict[str, Any]
    micro_epsilon: int | None = None
    noise_multiplier: float | None = None
    round: int = 0
    head: Head | None = None

    @property
    def query(self) -> dict[str, Any]:
        """All that tells this query from another."""
        return {
            "argument": self.argument,
            "data": self.data,
            "kind": self.kind,
            "micro_epsilon": self.micro_epsilon,
            "model": self.model,
            "noise_multiplier": self.noise_multiplier,
            "source": self.source,
        }

    @property
    def id(self) -> str:
        """Hash of the query."""
        return digest(canonical(self.query))

    def seal(self, key: PrivateKey) -> bytes:
        """Signed by the coordinator, as it is sent.

        Raises
        ------
        ValueError
            If it is longer than a source reads.
        """
        head = None if self.head is None else self.head.to_json()
        body = {**self.query, "head": head, "id": self.id, "round": self.round}
        raw = seal(REQUEST, body, key)
        if len(raw) > MAX_REQUEST_BYTES:
            raise ValueError(
                f"Expected a request of at most {MAX_REQUEST_BYTES} bytes, got {len(raw)}. Ask "
                "about a map with fewer parameters, or leave out the guard and the figures."
            )
        return raw

    @classmethod
    def unseal(cls, raw: bytes, key: PublicKey) -> "Request":
        """Read a request that a coordinator has signed.

        Raises
        ------
        EnvelopeError
            For anything else: see :func:`unseal`; for a field that is missing, unknown, of
            another type or out of bounds; and for an id that is not this query's.
        """
        told = schema.check_fields(
            unseal(REQUEST, raw, key, most=MAX_REQUEST_BYTES), _REQUEST_CHECKS, "the request"
        )
        head = told["head"]
        made = cls(
            told["source"],
            told["data"],
            told["model"],
            told["kind"],
            told["argument"],
            told["micro_epsilon"],
            told["noise_multiplier"],
            told["round"],
            None if head is None else Head.from_json(head, told["source"]),
        )
        if (made.micro_epsilon is None) == (made.noise_multiplier is None):
            raise EnvelopeError("the request names no noise, or two")
        if told["id"] != made.id:
            raise EnvelopeError("the id of the request is that of another query")
        return made


_REQUEST_CHECKS: dict[str, schema.Check] = {
    "argument": schema.is_object,
    "data": schema.hexadecimal(ID_DIGITS),
    "head": schema.optional(schema.is_object),
    "id": schema.hexadecimal(64),
    "kind": schema.text(40),
    "micro_epsilon": schema.optional(schema.integer(1, MAX_MICRO_EPSILON)),
    "model": schema.hexadecimal(HASH_DIGITS),
    "noise_multiplier": schema.optional(schema.number(1e-3, 1e9)),
    "round": schema.integer(0, MAX_ROUND),
    "source": schema.hexadecimal(ID_DIGITS),
}


MAX_ENTRIES = 10_000
_MOST_UNITS = 2**63 - 1


@dataclass(frozen=True)
class Answer:
    """An answer, as it leaves a source.

    It is made of what the ledger keeps of it, and of nothing else: sent again, it is the same
    bytes.

    Attributes
    ----------
    request : str
        Id of the query.
    units : tuple of int
        The noisy answer, in units of the query's grid.
    head : Head
        Of the very entry that paid for it.
    """

    request: str
    units: tuple[int, ...]
    head: Head

    def seal(self, key: PrivateKey) -> bytes:
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

    def seal(self, key: PrivateKey) -> bytes:
        """Signed by the source, as it is sent."""
        body = {
            "head": None,
            "refused": True,
            "request": None,
            "source": self.source,
            "units": None,
        }
        return seal(ANSWER, body, key)


def unseal_reply(raw: bytes, key: PublicKey) -> Answer | Refusal:
    """Read what a source has signed.

    Raises
    ------
    EnvelopeError
        For anything else.
    """
    body = unseal(ANSWER, raw, key, most=MAX_REPLY_BYTES)
    told = schema.check_fields(
        body, _REFUSAL if body.get("refused") is True else _ANSWER, "reply"
    )
    if told["refused"]:
        return Refusal(told["source"])
    head = Head.from_json(told["head"], told["source"])
    return Answer(told["request"], tuple(told["units"]), head)


_ANSWER: dict[str, schema.Check] = {
    "head": schema.is_object,
    "refused": lambda value: value is False,
    "request": schema.hexadecimal(64),
    "source": schema.hexadecimal(ID_DIGITS),
    "units": schema.list_of(schema.integer(-_MOST_UNITS, _MOST_UNITS), 1, MAX_ENTRIES),
}
_REFUSAL: dict[str, schema.Check] = {
    "head": lambda value: value is None,
    "refused": lambda value: value is True,
    "request": lambda value: value is None,
    "source": schema.hexadecimal(ID_DIGITS),
    "units": lambda value: value is None,
}
