r"""Keys that sign: one for each source, one for each coordinator.

Ed25519 (RFC 8032) by the ``cryptography`` library. Signatures are deterministic, so the same
answer is the same bytes each time it is sent.

Signed bytes: a signature, a line break, and a body that is read only once it holds.

.. code-block:: text

    veracal request 1
    <128 hexadecimal digits>
    {"argument":{},"data":...}

The signature is over the first line and the body, so that what was signed for one purpose is
worth nothing for another.

Closed schemas: what a body may say, field by field, and nothing else.

Checks are of exact types: a truth value is no number, a float no integer. What is wrong is
told to whoever received the body; the words name fields and never values of records.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal._checks import extra
from veracal.data import new_file, placed
from veracal.errors import DataError
from veracal.ledger import canonical

SIGNATURE_DIGITS = 128  # hexadecimal digits
_PUBLIC = 64
_MOST = 4_096  # bytes of a key file
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class PublicKey:
    """Whose signatures are believed.

    Parameters
    ----------
    text : str
        64 hexadecimal digits.
    """

    text: str

    def __post_init__(self) -> None:
        if not is_hexadecimal(self.text, _PUBLIC):
            raise ValueError(
                f"Expected a public key of {_PUBLIC} hexadecimal digits, got "
                f"{str(self.text)[:80]!r}. Ask for the line that `init` printed."
            )

    @property
    def fingerprint(self) -> str:
        """What two people compare by telephone: eight groups of four digits.

        Examples
        --------
        >>> PublicKey("00" * 32).fingerprint
        '6668 7aad f862 bd77 6c8f c18b 8e9f 8e20'
        """
        digits = hashlib.sha256(bytes.fromhex(self.text)).hexdigest()[:32]
        return " ".join(digits[i : i + 4] for i in range(0, 32, 4))

    def verify(self, signature: str, content: bytes) -> bool:
        """Whether the owner of the key signed these bytes."""
        if not is_hexadecimal(signature, SIGNATURE_DIGITS):
            return False
        library = _library()
        key = library.Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.text))
        try:
            key.verify(bytes.fromhex(signature), content)
        except extra("cryptography.exceptions", "federation").InvalidSignature:
            return False
        return True


class PrivateKey:
    """What signs. It is never printed, and leaves only into a file for its owner's eyes.

    Parameters
    ----------
    key : Ed25519PrivateKey
        Of the ``cryptography`` library.
    """

    __slots__ = ("_key",)

    def __init__(self, key: Any) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"PrivateKey(of {self.public.text[:12]}…)"

    def __reduce__(self) -> Any:
        raise TypeError("Expected nobody to copy a private key. Read it from its file.")

    @classmethod
    def new(cls) -> "PrivateKey":
        """A fresh key, from the randomness of the operating system."""
        return cls(_library().Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> "PrivateKey":
        """Read a key file, if nobody else can.

        Raises
        ------
        DataError
            If it is not there, is no key, or is open to others.
        """
        content = _read_secret(path)
        serialization = _serialization()
        try:
            key = serialization.load_pem_private_key(content, password=None)
        except (ValueError, TypeError) as cause:
            raise _no_key(path, "something else") from cause
        if not isinstance(key, _library().Ed25519PrivateKey):
            raise _no_key(path, "a key of another kind")
        return cls(key)

    def save(self, path: Path) -> None:
        """Write a new file, which its owner alone can read."""
        serialization = _serialization()
        content = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        new_file(path, "key")
        with placed(path) as file:
            file.write(content)

    @property
    def public(self) -> PublicKey:
        """What others check signatures by."""
        return PublicKey(self._key.public_key().public_bytes_raw().hex())

    def sign(self, content: bytes) -> str:
        """Sign bytes; the same bytes get the same signature."""
        signature: bytes = self._key.sign(content)
        return signature.hex()


def is_hexadecimal(text: object, digits: int) -> bool:
    """Whether a text is so many hexadecimal digits, in the one way we write them."""
    return isinstance(text, str) and len(text) == digits and _DIGITS.issuperset(text)


def _read_secret(path: Path) -> bytes:
    """Read a small file that belongs to one reader."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MOST + 1)
    except OSError as cause:
        raise _no_key(path, cause.strerror or "nothing") from cause
    if mode & 0o077:
        raise DataError(
            str(path),
            "a key that its owner alone can read",
            f"a file that others can read or write (mode {mode & 0o777:o})",
            "Change its mode to 600; if others may have read it, make a new key and enroll "
            "again.",
        )
    return content


def _no_key(path: Path, found: str) -> DataError:
    """Error for a file that is no key of ours."""
    return DataError(str(path), "a private key as `init` makes it", found, "Name its file.")


def _library() -> Any:
    """Ed25519, if it is installed."""
    return extra("cryptography.hazmat.primitives.asymmetric.ed25519", "federation")


def _serialization() -> Any:
    """How keys are written."""
    return extra("cryptography.hazmat.primitives.serialization", "federation")


REQUEST, ANSWER, TERMS, HEAD = (
    "veracal request 1",
    "veracal answer 1",
    "veracal terms 1",
    "veracal head 1",
)
MAX_REQUEST_BYTES = 4_096  # bytes, of the whole envelope
MAX_REPLY_BYTES = 2**20
MAX_TERMS_BYTES = 2**16
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
    body = parse_object(content)
    try:
        written = canonical(body)
    except ValueError as cause:  # a number beyond all floats
        raise EnvelopeError("its body has a number that is none") from cause
    if written.encode("ascii") != content:
        raise EnvelopeError("its body is not written in canonical form")
    return body


def read_unverified(purpose: str, raw: bytes, *, most: int) -> dict[str, Any]:
    """Read a body that says itself who signed it, such as terms; check it afterwards."""
    return parse_object(_parts(purpose, raw, most)[1])


def parse_object(content: bytes) -> dict[str, Any]:
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
    end = len(start) + SIGNATURE_DIGITS
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


Check = Callable[[object], bool]


def check_fields(body: object, checks: Mapping[str, Check], what: str) -> dict[str, Any]:
    """A body with exactly these fields, each of which passes its check."""
    if not isinstance(body, dict):
        raise EnvelopeError(f"{what} is no object")
    if body.keys() != checks.keys():
        odd = sorted(str(name)[:40] for name in body.keys() ^ checks.keys())
        raise EnvelopeError(f"{what} has other fields than it should: {', '.join(odd[:5])}")
    for name, check in checks.items():
        if not check(body[name]):
            raise EnvelopeError(f"{name!r} of {what} is not what it may be")
    return body


def integer(low: int, high: int) -> Check:
    """An integer within bounds, both included."""
    return lambda value: type(value) is int and low <= value <= high


def number(low: float, high: float) -> Check:
    """A finite float within bounds, both included."""
    return lambda value: type(value) is float and math.isfinite(value) and low <= value <= high


def hexadecimal(digits: int) -> Check:
    """So many hexadecimal digits."""
    return lambda value: is_hexadecimal(value, digits)


def text(most: int, *, least: int = 1) -> Check:
    """Printable text of bounded length, without line breaks."""
    return lambda value: (
        isinstance(value, str) and least <= len(value) <= most and value.isprintable()
    )


def one_of(words: Iterable[str]) -> Check:
    """One of some words."""
    known = frozenset(words)
    return lambda value: isinstance(value, str) and value in known


def list_of(check: Check, low: int, high: int) -> Check:
    """A list of bounded length, every item of which passes a check."""
    return lambda value: (
        isinstance(value, list) and low <= len(value) <= high and all(map(check, value))
    )


def optional(check: Check) -> Check:
    """Null, or what passes a check."""
    return lambda value: value is None or check(value)


def is_object(value: object) -> bool:
    """An object, whose fields are checked by whoever knows them."""
    return isinstance(value, dict)
