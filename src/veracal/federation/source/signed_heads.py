"""Files of signed heads, by which a source sees that an older ledger was put back.

One machine cannot tell that all of its files were set back together. So the heads may be kept
in a second file as well, elsewhere: on another disk, a share, a place that only appends. Files
only grow, by one line for each answer.
"""

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from veracal.errors import LedgerError
from veracal.federation.protocol.envelopes import EnvelopeError
from veracal.federation.protocol.heads import HASH, MOST_INDEX, Head
from veracal.federation.protocol.keys import PrivateKey, PublicKey
from veracal.privacy.ledger.book import Ledger
from veracal.privacy.ledger.chain import canonical

_LONGEST = 4_096  # bytes of a line
_END = "0" * HASH  # of no entry


class SetBackError(LedgerError):
    """A ledger lacks an entry that its owner has signed."""


class EndedError(LedgerError):
    """A ledger was closed by its owner."""


class SignedHeads:
    """The signed heads of one ledger, in every file that keeps them.

    Parameters
    ----------
    source : str
        Id that the heads are signed for.
    key : PublicKey
        Whose signatures count.
    paths : sequence of path
        Files that exist. One of them may hold the heads of others, too.

    Guarantees
    ----------
    :meth:`check` passes only if the ledger contains every genuine head of this source in any
    of the files, every one that was kept by this object, and the one that is quoted. What it
    finds missing is written into the files, so that the next process finds it missing, too.
    Lines that are torn, foreign or not signed are passed over: whoever can write such lines
    could also remove ours.
    """

    def __init__(self, source: str, key: PublicKey, paths: Sequence[Path]) -> None:
        self.source, self.key, self.paths = source, key, tuple(paths)
        self._files = tuple(_Growing(path) for path in paths)
        self._last: Head | None = None  # the furthest that the ledger is known to have been
        self._missing: frozenset[Head] = frozenset()

    def check(self, ledger: Ledger, quoted: Head | None = None) -> None:
        """Refuse a ledger that was set back.

        Parameters
        ----------
        ledger : Ledger
        quoted : Head, optional
            A genuine head that somebody else has kept.

        Raises
        ------
        SetBackError
            If an entry that was signed is missing or another.
        EndedError
            If its owner has ended it.
        LedgerError
            If the ledger or one of the files cannot be read.
        """
        fresh = [head for file in self._files for head in self._own(file.news())]
        replaced = any(file.is_another for file in self._files)
        written = {*fresh, *(() if replaced else self._missing)}
        remembered = {head for head in (self._last, quoted) if head is not None}
        doubtful = written | remembered | self._missing
        hashes = ledger.hashes(head.index for head in doubtful)
        there = {head for head in doubtful if hashes.get(head.index) == head.hash}
        known = self._missing  # to be genuine: no need to look twice
        self._missing = frozenset(
            head for head in doubtful - there if head in known or head.holds(self.key)
        )
        if self._missing:
            for head in self._missing - written:  # or the next process would not know of it
                self.add(head)
            if any(head.index == MOST_INDEX for head in self._missing):
                raise EndedError("This enrolment was revoked.")
            raise _set_back(ledger, min(head.index for head in self._missing))
        ordered = sorted(there, key=lambda head: head.index, reverse=True)
        self._last = next((head for head in ordered if head.holds(self.key)), self._last)

    def keep(self, head: Head) -> None:
        """Add the head of an entry that the ledger has, unless one as far was found."""
        if self._last is None or self._last.index < head.index:
            self.add(head)
            self._last = head

    def add(self, head: Head) -> None:
        """Write a head into every file, so that it is on the disk when this returns."""
        line = canonical({**head.to_json(), "source": head.source}).encode() + b"\n"
        for file in reversed(self._files):  # the one elsewhere first: it must not fall behind
            file.append(line)

    def end(self, key: PrivateKey) -> None:
        """Sign a head that no ledger will ever contain: whoever meets it answers no more.

        A mark in the folder would be forgotten with a restored backup; this is not, where heads
        are kept elsewhere as well.
        """
        self.add(Head.signed(self.source, MOST_INDEX, _END, _END, key))

    def _own(self, lines: Iterable[bytes]) -> list[Head]:
        """The heads of this source among lines of all kinds."""
        told = (_head(line) for line in lines)
        return [head for head in told if head is not None and head.source == self.source]


def start_file(path: Path) -> None:
    """Make a file of heads, for its owner's eyes only; one that is there goes on."""
    with _clear(path):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
        try:
            _check_regular(os.fstat(handle))
        finally:
            os.close(handle)


class _Growing:
    """A file of lines that others append to as well, read from where it was left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._read = 0, 0
        self.is_another = True  # than the one that was read the time before

    def news(self) -> list[bytes]:
        """Whole lines since the last time; all of them if the file is another one."""
        with _clear(self.path), self.path.open("rb") as file:
            found = _check_regular(os.fstat(file.fileno()))
            self.is_another = found.st_ino != self._inode or found.st_size < self._read
            if self.is_another:
                self._inode, self._read = found.st_ino, 0
            file.seek(self._read)
            lines = list(self._whole(file))
        return lines

    def append(self, line: bytes) -> None:
        """Add a line; one that was torn before it stays by itself."""
        with _clear(self.path), self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) and not _ends_line(file):
                line = b"\n" + line
        with _clear(self.path):
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                written = os.write(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)
            if written != len(line):
                raise OSError(None, "no room for a whole line")

    def _whole(self, file: BinaryIO) -> Iterable[bytes]:
        """Lines that end; what does not may still be written."""
        while line := file.readline(_LONGEST):
            if not line.endswith(b"\n") and len(line) < _LONGEST:
                return
            self._read += len(line)
            yield line


def _check_regular(found: os.stat_result) -> os.stat_result:
    """Refuse a device or a pipe, which have no end and keep nothing."""
    if not stat.S_ISREG(found.st_mode):
        raise OSError(None, "it is no regular file")
    return found


def _ends_line(file: BinaryIO) -> bool:
    """Whether the last byte ends a line."""
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _head(line: bytes) -> Head | None:
    """The head on a line, if there is one."""
    try:
        told = json.loads(line)
        return Head.from_json({k: told[k] for k in told if k != "source"}, told["source"])
    except (EnvelopeError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _set_back(ledger: Ledger, index: int) -> SetBackError:
    """Error for a ledger that forgot."""
    return SetBackError(
        f"An older copy of {ledger.path.name} was put back: it lacks entry {index} as it was "
        "signed. Nothing is answered until the right one is restored; if it is lost, revoke "
        "this enrolment and enroll again."
    )


@contextmanager
def _clear(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a file of heads into a clear error."""
    try:
        yield
    except OSError as cause:
        raise LedgerError(
            f"{path}: the file of signed heads cannot be used ({cause.strerror or cause}). "
            "Mount or restore it, or make room."
        ) from cause
