r"""Signed envelopes: keys, signatures, and the field-by-field validation of message bodies.

Sources and coordinators sign with Ed25519 (RFC 8032, from the ``cryptography`` library).
Signatures are deterministic, so a repeated answer has the same bytes.

An envelope is its purpose, a signature and a body. The body is parsed only after its signature
was verified.

.. code-block:: text

    veracal request 1
    <128 hexadecimal digits>
    {"argument":{},"data":...}

The signature covers the first line and the body, so a signature for one purpose is invalid
for another.

Schemas are closed: a body has exactly the declared fields. Types are exact: a bool is not a
number and a float is not an integer. Errors name fields, never values, and go to the log of
the receiver.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

from veracal._checks import extra
from veracal.data import atomic_file, new_file
from veracal.errors import DataError
from veracal.ledger import canonical

SIGNATURE_DIGITS = 128  # hexadecimal digits
_PUBLIC = 64
_MAX_KEY_BYTES = 16_384
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class PublicKey:
    """An Ed25519 public key of 64 hexadecimal digits, which verifies signatures."""

    text: str

    def __post_init__(self) -> None:
        if not is_hexadecimal(self.text, _PUBLIC):
            raise ValueError(
                f"Expected a public key of {_PUBLIC} hexadecimal digits, got "
                f"{str(self.text)[:80]!r}. Ask for the line that `init` printed."
            )

    @property
    def fingerprint(self) -> str:
        """Short digest that two people compare by telephone: eight groups of four digits.

        Examples
        --------
        >>> PublicKey("00" * 32).fingerprint
        '6668 7aad f862 bd77 6c8f c18b 8e9f 8e20'
        """
        digits = hashlib.sha256(bytes.fromhex(self.text)).hexdigest()[:32]
        return " ".join(digits[i : i + 4] for i in range(0, 32, 4))

    def verify(self, signature: str, content: bytes) -> bool:
        """Whether the signature of these bytes is valid under this key."""
        if not is_hexadecimal(signature, SIGNATURE_DIGITS):
            return False
        key = _primitives("asymmetric.ed25519").Ed25519PublicKey.from_public_bytes(
            bytes.fromhex(self.text)
        )
        try:
            key.verify(bytes.fromhex(signature), content)
        except extra("cryptography.exceptions", "federation").InvalidSignature:
            return False
        return True


class PrivateKey:
    """An Ed25519 private key. It is never printed, and is saved only with mode 600."""

    __slots__ = ("_key",)

    def __init__(self, key: Any) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"PrivateKey(of {self.public.text[:12]}…)"

    def __reduce__(self) -> Any:
        raise TypeError("A private key cannot be copied or pickled. Read it from its file.")

    @classmethod
    def new(cls) -> "PrivateKey":
        """Generate a key from the operating system's entropy."""
        return cls(_primitives("asymmetric.ed25519").Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> "PrivateKey":
        """Read a key file that only its owner can access."""
        expected, remedy = "a private key that `init` wrote", "Give the path of that file."
        content = read_secret(path, expected, remedy)
        load = _primitives("serialization").load_pem_private_key
        try:
            key = load(content, password=None)
        except (ValueError, TypeError) as cause:
            raise DataError(str(path), expected, "something else", remedy) from cause
        if not isinstance(key, _primitives("asymmetric.ed25519").Ed25519PrivateKey):
            raise DataError(str(path), expected, "another type of key", remedy)
        return cls(key)

    def save(self, path: Path) -> None:
        """Write a new file that only its owner can read."""
        serialization = _primitives("serialization")
        content = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        new_file(path, "key")
        with atomic_file(path) as file:
            file.write(content)

    @property
    def public(self) -> PublicKey:
        """The public key."""
        return PublicKey(self._key.public_key().public_bytes_raw().hex())

    def sign(self, content: bytes) -> str:
        """Sign bytes. The signature is deterministic."""
        signature: bytes = self._key.sign(content)
        return signature.hex()


def is_hexadecimal(text: object, digits: int) -> bool:
    """Whether a value is a string of exactly this many lowercase hexadecimal digits."""
    return isinstance(text, str) and len(text) == digits and _DIGITS.issuperset(text)


def read_secret(path: Path, expected: str, remedy: str) -> bytes:
    """Read the file of a private key; refuse it if other users can access it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_KEY_BYTES + 1)
    except OSError as cause:
        raise DataError(str(path), expected, cause.strerror or "nothing", remedy) from cause
    if mode & 0o077:
        raise DataError(
            str(path),
            "a key that only its owner can read",
            f"a file that other users can read or write (mode {mode & 0o777:o})",
            "Change its mode to 600. If others may have read it, create a new key and enroll "
            "or register it again.",
        )
    return content


def _primitives(name: str) -> Any:
    """A module of the ``cryptography`` library, if it is installed."""
    return extra(f"cryptography.hazmat.primitives.{name}", "federation")


REQUEST, ANSWER, TERMS, HEAD = (
    "veracal request 1",
    "veracal answer 1",
    "veracal terms 1",
    "veracal head 1",
)
MAX_REQUEST_BYTES = 4_096  # of the whole envelope
MAX_REPLY_BYTES = 2**20
MAX_TERMS_BYTES = 2**16
_MAX_DEPTH = 4  # nested objects and lists in a body


class EnvelopeError(ValueError):
    """Bytes that are not a valid, signed envelope.

    The message is for the log of the receiver and is never sent back.
    """


def seal(purpose: str, body: dict[str, Any], key: PrivateKey) -> bytes:
    """Write a body as canonical JSON and sign it."""
    content = canonical(body).encode("ascii")
    signature = key.sign(purpose.encode() + b"\n" + content).encode()
    return b"\n".join((purpose.encode(), signature, content))


def unseal(purpose: str, raw: bytes, key: PublicKey, *, max_bytes: int) -> dict[str, Any]:
    """Verify the signature over the raw bytes, then parse the body.

    Raises
    ------
    EnvelopeError
        If the envelope is longer than ``max_bytes``, was not signed for this purpose by this
        key, or its body is not canonical JSON.

    Guarantees
    ----------
    No part of the body is parsed before the signature is verified. An accepted body is one
    object in canonical form, so two different bodies never mean the same: no duplicate keys,
    no NaN or infinity, no whitespace, one spelling of each number, bounded nesting.
    """
    signature, content = _split(purpose, raw, max_bytes)
    if not key.verify(signature, purpose.encode() + b"\n" + content):
        raise EnvelopeError("its signature is not valid for the enrolled key")
    body = parse_object(content)
    try:
        rewritten = canonical(body)
    except ValueError as cause:  # a number outside the range of floats
        raise EnvelopeError("its body has a number that is not finite") from cause
    if rewritten.encode("ascii") != content:
        raise EnvelopeError("its body is not in canonical form")
    return body


def read_unverified(purpose: str, raw: bytes, *, max_bytes: int) -> dict[str, Any]:
    """Parse a body without verifying its signature, to find the key that it names."""
    return parse_object(_split(purpose, raw, max_bytes)[1])


def parse_object(content: bytes) -> dict[str, Any]:
    """Parse untrusted bytes as one JSON object; refuse anything else."""
    depth = 0
    for byte in content:  # before a recursive parser sees them
        depth += (byte in b"[{") - (byte in b"]}")
        if depth > _MAX_DEPTH:
            raise EnvelopeError("its body is nested too deep")

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        body = json.loads(content.decode("ascii"), parse_constant=refuse)  # NaN, infinity
    except (ValueError, RecursionError) as cause:
        raise EnvelopeError("its body is not a JSON object") from cause
    if not isinstance(body, dict):
        raise EnvelopeError("its body is not a JSON object")
    return body


def _split(purpose: str, raw: bytes, max_bytes: int) -> tuple[str, bytes]:
    """Signature and body by their positions, without interpreting them."""
    if not isinstance(raw, bytes) or len(raw) > max_bytes:
        raise EnvelopeError(f"it is longer than {max_bytes} bytes")
    start = purpose.encode() + b"\n"
    end = len(start) + SIGNATURE_DIGITS
    if not raw.startswith(start) or raw[end : end + 1] != b"\n":
        raise EnvelopeError(f"it does not begin with {purpose!r}")
    return raw[len(start) : end].decode("ascii", "replace"), raw[end + 1 :]


Check = Callable[[object], bool]


def check_fields(body: object, checks: Mapping[str, Check], what: str) -> dict[str, Any]:
    """Return the body if it has exactly these fields and each passes its check."""
    if not isinstance(body, dict):
        raise EnvelopeError(f"{what} is not an object")
    if body.keys() != checks.keys():
        odd = sorted(str(name)[:40] for name in body.keys() ^ checks.keys())
        raise EnvelopeError(f"{what} has missing or unknown fields: {', '.join(odd[:5])}")
    for name, check in checks.items():
        if not check(body[name]):
            raise EnvelopeError(f"{name!r} of {what} has an invalid value")
    return body


def checks_of(record: type) -> dict[str, Check]:
    """The checks that the fields of a record are annotated with, for their JSON values."""
    hints = get_type_hints(record, include_extras=True)
    annotated = {name: hint for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: hint.__metadata__[0] for name, hint in annotated.items()}


def integer(low: int, high: int) -> Check:
    """Check for an integer in [low, high]."""
    return lambda value: type(value) is int and low <= value <= high


def number(low: float, high: float) -> Check:
    """Check for a finite float in [low, high]."""
    return lambda value: type(value) is float and math.isfinite(value) and low <= value <= high


def hexadecimal(digits: int) -> Check:
    """Check for exactly this many hexadecimal digits."""
    return lambda value: is_hexadecimal(value, digits)


def text(max_length: int, *, min_length: int = 1) -> Check:
    """Check for printable text of bounded length, without line breaks."""
    return lambda value: (
        isinstance(value, str)
        and min_length <= len(value) <= max_length
        and value.isprintable()
    )


def one_of(values: Iterable[str]) -> Check:
    """Check for one of some strings."""
    known = frozenset(values)
    return lambda value: isinstance(value, str) and value in known


def list_of(check: Check, low: int, high: int) -> Check:
    """Check for a list of bounded length whose items all pass a check."""
    return lambda value: (
        isinstance(value, list) and low <= len(value) <= high and all(map(check, value))
    )


def optional(check: Check) -> Check:
    """Check for null or a value that passes a check."""
    return lambda value: value is None or check(value)


def instance(kind: type) -> Check:
    """Check for a value of a type, such as an object, whose fields are checked later."""
    return lambda value: isinstance(value, kind)
