"""Keys that sign: one for each source, one for each calibrator.

Ed25519 (RFC 8032) by the ``cryptography`` library. Signatures are deterministic, so the same
answer is the same bytes each time it is sent.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal._checks import extra
from veracal.data.files import new_file, placed
from veracal.errors import DataError

SIGNATURE = 128  # hexadecimal digits
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
        if not is_hexadecimal(signature, SIGNATURE):
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
