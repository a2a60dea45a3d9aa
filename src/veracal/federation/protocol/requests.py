"""A request: which of the declared questions, where, and for how much."""

from dataclasses import dataclass
from typing import Any

from veracal.federation.protocol import fields as schema
from veracal.federation.protocol.envelopes import (
    MOST_REQUEST,
    REQUEST,
    EnvelopeError,
    seal,
    unseal,
)
from veracal.federation.protocol.heads import Head
from veracal.federation.protocol.keys import PrivateKey, PublicKey
from veracal.federation.protocol.terms import MARK, MODEL, MOST_MICRO
from veracal.privacy.ledger.chain import canonical, digest

MOST_ROUND = 10**6


@dataclass(frozen=True)
class Request:
    """One question to one source.

    What is asked (:attr:`question`) has one id, its hash: asked again, by mistake, after a
    crash or out of malice, it is the same question and gets the same answer. The round and the
    head say when it was asked, and are not part of it.

    Attributes
    ----------
    source, data, model : str
        Which enrolment, version of the records and model it is about, as of :class:`Terms`.
    kind : str
        Name of a question.
    argument : dict
        Where it is asked: whole numbers on public grids.
    micro_epsilon : int or None
        What the answer costs, with Laplace noise.
    noise_multiplier : float or None
        The noise of a Gaussian answer, in place of that.
    round : int
        Which of the calibrator's questions it is, for people who read logs.
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
    def question(self) -> dict[str, Any]:
        """All that tells this question from another."""
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
        """Hash of the question."""
        return digest(canonical(self.question))

    def sealed(self, key: PrivateKey) -> bytes:
        """Signed by the calibrator, as it is sent.

        Raises
        ------
        ValueError
            If it is longer than a source reads.
        """
        head = None if self.head is None else self.head.to_json()
        body = {**self.question, "head": head, "id": self.id, "round": self.round}
        raw = seal(REQUEST, body, key)
        if len(raw) > MOST_REQUEST:
            raise ValueError(
                f"Expected a request of at most {MOST_REQUEST} bytes, got {len(raw)}. Ask "
                "about a map with fewer parameters, or leave out the guard and the figures."
            )
        return raw

    @classmethod
    def unsealed(cls, raw: bytes, key: PublicKey) -> "Request":
        """Read a request that a calibrator has signed.

        Raises
        ------
        EnvelopeError
            For anything else: see :func:`unseal`; for a field that is missing, unknown, of
            another type or out of bounds; and for an id that is not this question's.
        """
        told = schema.closed(
            unseal(REQUEST, raw, key, most=MOST_REQUEST), _CHECKS, "the request"
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
            raise EnvelopeError("the id of the request is that of another question")
        return made


_CHECKS: dict[str, schema.Check] = {
    "argument": schema.is_object,
    "data": schema.hexadecimal(MARK),
    "head": schema.optional(schema.is_object),
    "id": schema.hexadecimal(64),
    "kind": schema.text(40),
    "micro_epsilon": schema.optional(schema.integer(1, MOST_MICRO)),
    "model": schema.hexadecimal(MODEL),
    "noise_multiplier": schema.optional(schema.number(1e-3, 1e9)),
    "round": schema.integer(0, MOST_ROUND),
    "source": schema.hexadecimal(MARK),
}
