"""Keyed marks of private files, by which a source sees that one has changed.

A plain hash of a file confirms a guess of its content to whoever reads the hash: a table with
one row more or less, of which everything else is known, is recognized at once. A mark is an
HMAC under a secret key that lies in a file of its own, so that settings, backups of one
enrolment and exports confirm nothing.
"""

import hashlib
import hmac
import secrets
from pathlib import Path

from veracal.artifact.folder import read_file
from veracal.data.files import placed
from veracal.data.limits import no_surprises, readable
from veracal.errors import DataError

MARK_KEY = "mark.key"  # in the folder of a source, for its owner's eyes only
_BYTES = 32
_BLOCK = 2**20  # bytes that are read at a time


class MarkKey:
    """The secret key of a source's marks.

    Guarantees
    ----------
    Without the key a mark tells nothing about the file but whether another mark under the same
    key is the same. The key is in no ledger, terms, reply, head, status or log.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "MarkKey(...)"

    @classmethod
    def new(cls) -> "MarkKey":
        """Draw a key."""
        return cls(secrets.token_bytes(_BYTES))

    @classmethod
    def read(cls, folder: Path) -> "MarkKey":
        """Read the key of a source.

        Raises
        ------
        DataError
            If it is not there, or is none.
        """
        content = read_file(folder, MARK_KEY, _BYTES)
        if len(content) != _BYTES:
            raise DataError(
                str(folder / MARK_KEY),
                f"{_BYTES} bytes, as `veracal source init` wrote them",
                f"{len(content)}",
                "Restore the file: without it nobody can tell whether records have changed.",
            )
        return cls(content)

    def save(self, folder: Path) -> None:
        """Write the key of a new source, for its owner's eyes only."""
        with placed(folder / MARK_KEY) as file:
            file.write(self._key)

    def of_file(self, path: Path) -> str:
        """Mark of a file's bytes, 64 hexadecimal digits."""
        found = hmac.new(self._key, b"content\0", hashlib.sha256)
        with no_surprises(path), readable(path).open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
        return found.hexdigest()

    def of_text(self, text: str) -> str:
        """Mark of a short text, such as the size and the time of a file."""
        return hmac.new(self._key, b"text\0" + text.encode(), hashlib.sha256).hexdigest()
