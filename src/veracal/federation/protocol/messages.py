"""Messages on the wire: requests, answers, refusals, and signed heads of ledgers.

A request names one of the declared queries, its argument and its cost. A reply is an answer,
or the one refusal, which has the same bytes for every reason. Each answer carries a signed
head: the ledger entry that paid for it. A signed head proves that the ledger once had this
entry. A source whose ledger lacks an entry that it signed was rolled back, for example by a
restored backup.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

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
from veracal.federation.protocol.terms import HASH_DIGITS, ID_DIGITS, MAX_MICRO_EPSILON
from veracal.ledger import canonical, digest

MAX_INDEX = 2**53
MAX_ROUND = 10**6
MAX_ENTRIES = 10_000
_MAX_UNITS = 2**63 - 1


@dataclass(frozen=True)
class Head:
    """Number and hash of a ledger entry, signed by the owner of the ledger.

    Attributes
    ----------
    source : str
        Id of the enrollment that the ledger belongs to.
    index : int
        Number of the entry, from 1.
    hash, previous : str
        Hash of the entry, and of the one before it (or of the opening record).
    """

    source: str
    index: Annotated[int, schema.integer(1, MAX_INDEX)]
    hash: Annotated[str, schema.hexadecimal(HASH_DIGITS)]
    previous: Annotated[str, schema.hexadecimal(HASH_DIGITS)]
    signature: Annotated[str, schema.hexadecimal(SIGNATURE_DIGITS)]

    @classmethod
    def sign(
        cls, source: str, index: int, hash_: str, previous: str, key: PrivateKey
    ) -> "Head":
        """Sign an entry."""
        unsigned = cls(source, index, hash_, previous, "")
        return replace(unsigned, signature=key.sign(unsigned.content))

    @property
    def content(self) -> bytes:
        """Bytes that are signed."""
        body = {name: value for name, value in vars(self).items() if name != "signature"}
        return f"{HEAD}\n{canonical(body)}".encode("ascii")

    def verify(self, key: PublicKey) -> bool:
        """Whether the signature is valid under this key."""
        return key.verify(self.signature, self.content)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON types, without the source, which the enclosing message names."""
        return {name: value for name, value in vars(self).items() if name != "source"}

    @classmethod
    def from_json(cls, body: Any, source: str) -> "Head":
        """Read the output of :meth:`to_json`. The signature is not verified here."""
        return cls(source, **schema.check_fields(body, _HEAD_CHECKS, "the head"))


_HEAD_CHECKS = schema.checks_of(Head)


@dataclass(frozen=True)
class Request:
    """A query on its way to one source, with its cost and its id.

    The id is the hash of :attr:`query`. The same query sent again, by mistake, after a crash
    or with intent, has the same id and gets the same answer. The round and the head are not
    part of the query.

    Attributes
    ----------
    source, data, model : str
        Enrollment, version of the records and model, as in :class:`Terms`.
    kind : str
        Name of the kind of query.
    argument : dict
        Argument of the query: integers on public grids.
    micro_epsilon : int or None
        Cost of an answer with Laplace noise, in millionths of epsilon.
    noise_multiplier : float or None
        Noise multiplier of an answer with Gaussian noise; exactly one of the two is None.
    round : int
        Number of the coordinator's round, for readers of the log.
    head : Head or None
        The last head that this source signed; None before its first answer.
    """

    source: Annotated[str, schema.hexadecimal(ID_DIGITS)]
    data: Annotated[str, schema.hexadecimal(ID_DIGITS)]
    model: Annotated[str, schema.hexadecimal(HASH_DIGITS)]
    kind: Annotated[str, schema.text(40)]
    argument: Annotated[dict[str, Any], schema.instance(dict)]
    micro_epsilon: Annotated[
        int | None, schema.optional(schema.integer(1, MAX_MICRO_EPSILON))
    ] = None
    noise_multiplier: Annotated[float | None, schema.optional(schema.number(1e-3, 1e9))] = None
    round: Annotated[int, schema.integer(0, MAX_ROUND)] = 0
    head: Annotated[Head | None, schema.optional(schema.instance(dict))] = None

    @property
    def query(self) -> dict[str, Any]:
        """The fields that identify the query."""
        return {
            name: value for name, value in vars(self).items() if name not in ("head", "round")
        }

    @property
    def id(self) -> str:
        """SHA-256 of the query as canonical JSON."""
        return digest(canonical(self.query))

    def seal(self, key: PrivateKey) -> bytes:
        """Sign the request with the coordinator's key; refuse one that is too long to send."""
        head = None if self.head is None else self.head.to_json()
        body = {**self.query, "head": head, "id": self.id, "round": self.round}
        raw = seal(REQUEST, body, key)
        if len(raw) > MAX_REQUEST_BYTES:
            raise ValueError(
                f"Expected a request of at most {MAX_REQUEST_BYTES} bytes, got {len(raw)}. Use "
                "a map with fewer parameters, or leave out the guard and the measurement."
            )
        return raw

    @classmethod
    def unseal(cls, raw: bytes, key: PublicKey) -> "Request":
        """Verify and read a request.

        Raises
        ------
        EnvelopeError
            If the envelope is invalid (:func:`unseal`), a field is missing, unknown, of the
            wrong type or out of bounds, or the id is not the hash of the query.
        """
        body = unseal(REQUEST, raw, key, max_bytes=MAX_REQUEST_BYTES)
        fields = {**schema.check_fields(body, _REQUEST_CHECKS, "the request")}
        id_, head = fields.pop("id"), fields.pop("head")
        request = cls(
            **fields, head=None if head is None else Head.from_json(head, fields["source"])
        )
        if (request.micro_epsilon is None) == (request.noise_multiplier is None):
            raise EnvelopeError("the request must name exactly one kind of noise")
        if id_ != request.id:
            raise EnvelopeError("the id of the request is not the hash of its query")
        return request


_REQUEST_CHECKS = {**schema.checks_of(Request), "id": schema.hexadecimal(64)}


@dataclass(frozen=True)
class Answer:
    """The noisy answer to a query.

    It is built only from what the ledger stored, so a repeated answer has the same bytes.

    Attributes
    ----------
    request : str
        Id of the request.
    units : tuple of int
        Noisy answer in units of the query's grid.
    head : Head
        Signed head of the ledger entry that paid for the answer.
    """

    request: str
    units: tuple[int, ...]
    head: Head

    def seal(self, key: PrivateKey) -> bytes:
        """Sign the reply with the source's key."""
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
    """The refusal of a source, the same bytes for every reason."""

    source: str

    def seal(self, key: PrivateKey) -> bytes:
        """Sign the reply with the source's key."""
        body = {
            "head": None,
            "refused": True,
            "request": None,
            "source": self.source,
            "units": None,
        }
        return seal(ANSWER, body, key)


def unseal_reply(raw: bytes, key: PublicKey) -> Answer | Refusal:
    """Verify and read a reply that a source signed with this key."""
    body = unseal(ANSWER, raw, key, max_bytes=MAX_REPLY_BYTES)
    checks = _REFUSAL_CHECKS if body.get("refused") is True else _ANSWER_CHECKS
    fields = schema.check_fields(body, checks, "the reply")
    if fields["refused"]:
        return Refusal(fields["source"])
    head = Head.from_json(fields["head"], fields["source"])
    return Answer(fields["request"], tuple(fields["units"]), head)


_ANSWER_CHECKS: dict[str, schema.Check] = {
    "head": schema.instance(dict),
    "refused": lambda value: value is False,
    "request": schema.hexadecimal(64),
    "source": schema.hexadecimal(ID_DIGITS),
    "units": schema.list_of(schema.integer(-_MAX_UNITS, _MAX_UNITS), 1, MAX_ENTRIES),
}
_REFUSAL_CHECKS: dict[str, schema.Check] = {
    "head": lambda value: value is None,
    "refused": lambda value: value is True,
    "request": lambda value: value is None,
    "source": schema.hexadecimal(ID_DIGITS),
    "units": lambda value: value is None,
}
