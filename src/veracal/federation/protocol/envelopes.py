r"""Signed bytes: a signature, a line break, and a body that is read only once it holds.

.. code-block:: text

    veracal request 1
    <128 hexadecimal digits>
    {"argument":{},"data":...}

The signature is over the first line and the body, so that what was signed for one purpose is
worth nothing for another.
"""

import json
from typing import Any

from veracal.federation.protocol.keys import SIGNATURE, PrivateKey, PublicKey
from veracal.privacy.ledger.chain import canonical

REQUEST, ANSWER, TERMS, HEAD = (
    "veracal request 1",
    "veracal answer 1",
    "veracal terms 1",
    "veracal head 1",
)
MOST_REQUEST = 4_096  # bytes, of the whole envelope
MOST_ANSWER = 2**20
MOST_TERMS = 2**16
_DEEPEST = 4  # nested objects and lists in a body


class EnvelopeError(ValueError):
    """Bytes that are not what somebody known has signed.

    The message is for the log of whoever received them, never for whoever sent them.
    """


def seal(purpose: str, body: dict[str, Any], key: PrivateKey) -> bytes:
    """Write a body in the one way there is, and sign it."""
    content = canonical(body).encode("ascii")
    return b"\n".join((purpose.encode(), _sign(purpose, content, key), content))


def unseal(purpose: str, raw: bytes, key: PublicKey, *, most: int) -> dict[str, Any]:
    """Check the signature over the raw bytes, and only then read the body.

    Parameters
    ----------
    purpose : str
    raw : bytes
    key : PublicKey
    most : int
        Longest envelope that is looked at.

    Raises
    ------
    EnvelopeError
        For whatever is too long, not signed for this purpose by this key, or not written in
        the one way that :func:`seal` writes.

    Guarantees
    ----------
    Nothing of the body is parsed before its signature holds. What is accepted is one object,
    written canonically, so two different bodies never mean the same: no key twice, no NaN or
    infinity, no blank, no other spelling of a number, nothing nested deep.
    """
    content = _verified(purpose, raw, key, most)
    body = parsed(content)
    try:
        written = canonical(body)
    except ValueError as cause:  # a number beyond all floats
        raise EnvelopeError("its body has a number that is none") from cause
    if written.encode("ascii") != content:
        raise EnvelopeError("its body is not written in canonical form")
    return body


def peek(purpose: str, raw: bytes, *, most: int) -> dict[str, Any]:
    """Read a body that says itself who signed it, such as terms; check it afterwards."""
    return parsed(_parts(purpose, raw, most)[1])


def parsed(content: bytes) -> dict[str, Any]:
    """Read one JSON object, whatever the bytes are; anything else is refused."""
    if _too_deep(content):
        raise EnvelopeError("its body is nested too deep")
    try:
        body = json.loads(content.decode("ascii"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as cause:  # of digits, of characters, of form
        raise EnvelopeError("its body is no JSON object") from cause
    if not isinstance(body, dict):
        raise EnvelopeError("its body is no JSON object")
    return body


def _verified(purpose: str, raw: bytes, key: PublicKey, most: int) -> bytes:
    """The body, once its signature holds."""
    signature, content = _parts(purpose, raw, most)
    if not key.verify(signature, purpose.encode() + b"\n" + content):
        raise EnvelopeError("its signature does not hold for the enrolled key")
    return content


def _parts(purpose: str, raw: bytes, most: int) -> tuple[str, bytes]:
    """Signature and body, by their places; nothing is interpreted."""
    if not isinstance(raw, bytes) or len(raw) > most:
        raise EnvelopeError(f"it is longer than {most} bytes")
    start = purpose.encode() + b"\n"
    end = len(start) + SIGNATURE
    if not raw.startswith(start) or raw[end : end + 1] != b"\n":
        raise EnvelopeError(f"it does not begin as a {purpose!r}")
    return raw[len(start) : end].decode("ascii", "replace"), raw[end + 1 :]


def _sign(purpose: str, content: bytes, key: PrivateKey) -> bytes:
    """Signature over purpose and content."""
    return key.sign(purpose.encode() + b"\n" + content).encode()


def _too_deep(content: bytes) -> bool:
    """Whether brackets are nested deeper than any body of ours, before a parser sees them."""
    depth = 0
    for byte in content:
        if byte in b"[{":
            depth += 1
            if depth > _DEEPEST:
                return True
        elif byte in b"]}":
            depth -= 1
    return False


def _refuse_constant(word: str) -> None:
    """Refuse NaN and infinity by name."""
    raise ValueError(word)
