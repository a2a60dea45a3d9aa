"""Keyed marks of private files, by which a source sees that one has changed.

A plain hash of a file confirms a guess of its content to whoever reads the hash: a table with
one row more or less, of which everything else is known, is recognized at once. A mark is an
HMAC under a secret key that lies in a file of its own, so that settings, backups of one
enrollment and exports confirm nothing.

The log of what a source refused, in words that its owner alone reads.

Files of signed heads, by which a source sees that an older ledger was put back.

One machine cannot tell that all of its files were set back together. So the heads may be kept
in a second file as well, elsewhere: on another disk, a share, a place that only appends. Files
only grow, by one line for each answer.

The folder of a source: one set of people, one key, one budget over all coordinators.
"""

import datetime
import hashlib
import hmac
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from veracal.accounting import Approximate, Budget, Event, Pure, Unit
from veracal.artifact import read_file, sync_folder
from veracal.data import new_file, no_surprises, placed, readable
from veracal.errors import DataError, LedgerError
from veracal.federation.protocol import envelopes as schema
from veracal.federation.protocol.envelopes import (
    EnvelopeError,
    PrivateKey,
    PublicKey,
    parse_object,
)
from veracal.federation.protocol.messages import HASH_DIGITS, MAX_INDEX, Head
from veracal.federation.protocol.terms import ID_DIGITS
from veracal.ledger import Ledger, canonical, open_ledger

MARK_KEY = "mark.key"  # in the folder of a source, for its owner's eyes only
_BYTES = 32
_BLOCK = 2**20  # bytes that are read at a time


class FileMarkKey:
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
        return "FileMarkKey(...)"

    @classmethod
    def new(cls) -> "FileMarkKey":
        """Draw a key."""
        return cls(secrets.token_bytes(_BYTES))

    @classmethod
    def read(cls, folder: Path) -> "FileMarkKey":
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


MAX_LINES = 1_000
_SPARE = 200  # lines beyond that before the file is cut
_LONGEST = 400  # characters of a reason
_GAP = "  "


@dataclass(frozen=True)
class RefusalLog:
    """A file of at most so many lines, the last ones.

    Guarantees
    ----------
    It grows no further than its bound, whatever is sent. What is written is printable, and
    short, whoever chose the words.
    """

    path: Path

    def add(self, why: str) -> None:
        """Write down a refusal."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        line = f"{now}{_GAP}{_printable(why)}\n".encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
        self._cut()

    def lines(self) -> list[tuple[str, str]]:
        """When (UTC) and why, the oldest first."""
        try:
            text = self.path.read_text("utf-8", "replace")
        except FileNotFoundError:
            return []
        found = (line.partition(_GAP) for line in text.splitlines()[-MAX_LINES:])
        return [(when, why) for when, gap, why in found if gap]

    def _cut(self) -> None:
        """Drop the oldest lines once there are too many."""
        if self.path.stat().st_size < MAX_LINES * 40:
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        if len(lines) > MAX_LINES + _SPARE:
            shorter = self.path.with_name(f".{self.path.name}")
            shorter.write_bytes(b"".join(lines[-MAX_LINES:]))
            shorter.chmod(0o600)
            shorter.replace(self.path)


def _printable(why: str) -> str:
    """Words on one line that no terminal obeys."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(why.split()))
    return shown[:_LONGEST]


_LONGEST_HEAD = 4_096  # bytes of a line
_END = "0" * HASH_DIGITS  # of no entry


class RollbackError(LedgerError):
    """A ledger lacks an entry that its owner has signed."""


class ClosedLedgerError(LedgerError):
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
        self._files = tuple(_AppendOnlyFile(path) for path in paths)
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
            if any(head.index == MAX_INDEX for head in self._missing):
                raise ClosedLedgerError("This enrollment was revoked.")
            raise _rollback_error(ledger, min(head.index for head in self._missing))
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
        self.add(Head.signed(self.source, MAX_INDEX, _END, _END, key))

    def _own(self, lines: Iterable[bytes]) -> list[Head]:
        """The heads of this source among lines of all kinds."""
        told = (_parse_head(line) for line in lines)
        return [head for head in told if head is not None and head.source == self.source]


def create_heads_file(path: Path) -> None:
    """Make a file of heads, for its owner's eyes only; one that is there goes on."""
    with _explain_os_errors(path):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
        try:
            _check_regular(os.fstat(handle))
        finally:
            os.close(handle)


class _AppendOnlyFile:
    """A file of lines that others append to as well, read from where it was left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._read = 0, 0
        self.is_another = True  # than the one that was read the time before

    def news(self) -> list[bytes]:
        """Whole lines since the last time; all of them if the file is another one."""
        with _explain_os_errors(self.path), self.path.open("rb") as file:
            found = _check_regular(os.fstat(file.fileno()))
            self.is_another = found.st_ino != self._inode or found.st_size < self._read
            if self.is_another:
                self._inode, self._read = found.st_ino, 0
            file.seek(self._read)
            lines = list(self._whole(file))
        return lines

    def append(self, line: bytes) -> None:
        """Add a line; one that was torn before it stays by itself."""
        with _explain_os_errors(self.path), self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) and not _ends_line(file):
                line = b"\n" + line
        with _explain_os_errors(self.path):
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
        while line := file.readline(_LONGEST_HEAD):
            if not line.endswith(b"\n") and len(line) < _LONGEST_HEAD:
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


def _parse_head(line: bytes) -> Head | None:
    """The head on a line, if there is one."""
    try:
        told = json.loads(line)
        return Head.from_json({k: told[k] for k in told if k != "source"}, told["source"])
    except (EnvelopeError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _rollback_error(ledger: Ledger, index: int) -> RollbackError:
    """Error for a ledger that forgot."""
    return RollbackError(
        f"An older copy of {ledger.path.name} was put back: it lacks entry {index} as it was "
        "signed. Nothing is answered until the right one is restored; if it is lost, revoke "
        "this enrollment and enroll again."
    )


@contextmanager
def _explain_os_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a file of heads into a clear error."""
    try:
        yield
    except OSError as cause:
        raise LedgerError(
            f"{path}: the file of signed heads cannot be used ({cause.strerror or cause}). "
            "Mount or restore it, or make room."
        ) from cause


FORMAT = "veracal source 1"
DESCRIPTION, KEY, SHARES, HEADS, ENROLLED = (
    "source.json",
    "key.pem",
    "shares.ledger",
    "heads",
    "enrolled",
)
TEMPORARY_PREFIX = ".new."  # how the folder of an enrollment begins that is not finished
_MOST = 2**16  # bytes of a description
_MOST_ENROLLED = 10_000


@dataclass(frozen=True)
class SourceFolder:
    """A source as it lies on the disk.

    Attributes
    ----------
    path : path
    id : str
        32 random hexadecimal digits, which the heads of its own ledger are signed for.
    name : str
        What the institution is called in public.
    public : PublicKey
    unit : Unit
        Whom the source protects, with all of their rows.
    created : str
        Day on which it was made.
    heads : path or None
        Second file that signed heads are kept in, elsewhere.
    """

    path: Path
    id: str
    name: str
    public: PublicKey
    unit: Unit
    created: str
    heads: Path | None

    @property
    def key(self) -> PrivateKey:
        """What signs; read from its file each time."""
        found = PrivateKey.read(self.path / KEY)
        if found.public != self.public:
            raise DataError(
                str(self.path / KEY),
                "the key that this source was made with",
                "another one",
                "Restore the right one, or make a new source.",
            )
        return found

    @property
    def marks(self) -> FileMarkKey:
        """What private files are marked with; read from its file each time."""
        return FileMarkKey.read(self.path)

    @property
    def shares(self) -> Ledger:
        """The budget of the institution, from which each enrollment takes its share."""
        return Ledger(self.path / SHARES)

    @property
    def budget(self) -> Budget:
        """All that coordinators together may ever spend."""
        total = self.shares.budget
        return Budget(total.epsilon, total.delta, total.relation, self.unit)

    def signed_heads(self, source: str, folder: Path) -> SignedHeads:
        """The heads of a ledger of this source, in its folder and elsewhere."""
        also = [] if self.heads is None else [self.heads]
        return SignedHeads(source, self.public, [folder / HEADS, *also])

    def enrolled(self) -> tuple[str, ...]:
        """Ids of all enrollments, in the order in which they took their shares."""
        place = self.path / ENROLLED
        with no_surprises(place):
            there = {each.name for each in place.iterdir() if is_enrollment_id(each.name)}
        order = [entry.request for entry in self.shares.entries() if entry.request in there]
        late = sorted(there - set(order))  # the ledger was set back: show them too
        return tuple(map(str, (*order, *late)))[:_MOST_ENROLLED]


def create_source(
    path: str | Path, name: str, budget: Budget, *, heads: str | Path | None = None
) -> SourceFolder:
    """Make the folder of a new source.

    Parameters
    ----------
    path : path
        A new folder, on a local disk; it appears whole or not at all.
    name : str
        What the institution is called in public.
    budget : Budget
        All that coordinators together may ever spend, and whom it protects. It never changes.
    heads : path, optional
        File to keep signed heads in as well: outside of the folder, best on another disk.

    Raises
    ------
    DataError, LedgerError
        If it cannot be made there.
    """
    place = Path(path).absolute()
    if not schema.text(100)(name):
        raise ValueError(f"Expected a name of 1 to 100 printable characters, got {name!r}.")
    new_file(place, "folder")
    also = None if heads is None else _check_heads_path(Path(heads).absolute(), place)
    key = PrivateKey.new()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    made = SourceFolder(
        place, secrets.token_hex(ID_DIGITS // 2), name, key.public, budget.unit, today, also
    )
    with no_surprises(place):
        building = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
        try:
            _write_source(building, made, key, budget)
            building.rename(place)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return made


def read_source(path: str | Path) -> SourceFolder:
    """Read the folder of a source.

    Raises
    ------
    DataError
        If it is none.
    """
    place = Path(path).absolute()
    if not place.is_dir():
        raise _no_source_error(place, "no folder")
    try:
        body = parse_object(read_file(place, DESCRIPTION, _MOST))
        told = schema.check_fields(body, _CHECKS, "the description")
        unit = schema.check_fields(told["unit"], _UNIT, "the unit")
    except EnvelopeError as cause:
        raise _no_source_error(place, f"another description: {cause}") from cause
    return SourceFolder(
        place,
        told["id"],
        told["name"],
        PublicKey(told["key"]),
        Unit(unit["name"], unit["at_most"]),
        told["created"],
        None if told["heads"] is None else Path(told["heads"]),
    )


def share_event(budget: Budget) -> Event:
    """What an enrollment takes from the institution's budget: its whole budget, for good.

    The promise is to a unit with all of its rows, so the ledger counts units of one row.
    """
    if budget.pure:
        return Pure(budget.epsilon, budget.relation)
    return Approximate(budget.epsilon, budget.delta, budget.relation)


def is_enrollment_id(name: str) -> bool:
    """Whether a name is the id of an enrollment."""
    return schema.hexadecimal(ID_DIGITS)(name)


def _write_source(folder: Path, made: SourceFolder, key: PrivateKey, budget: Budget) -> None:
    """Write everything a new source has."""
    key.save(folder / KEY)
    FileMarkKey.new().save(folder)
    (folder / ENROLLED).mkdir(mode=0o700)
    counted = Budget(budget.epsilon, budget.delta, budget.relation, Unit(budget.unit.name))
    kind: dict[str, str] = {} if budget.pure else {"kind": "open", "composition": "addition"}
    open_ledger(folder / SHARES, counted, **kind)  # type: ignore[arg-type]
    create_heads_file(folder / HEADS)
    if made.heads is not None:
        create_heads_file(made.heads)
    body = {
        "created": made.created,
        "format": FORMAT,
        "heads": None if made.heads is None else str(made.heads),
        "id": made.id,
        "key": made.public.text,
        "name": made.name,
        "unit": {"at_most": made.unit.at_most, "name": made.unit.name},
    }
    with placed(folder / DESCRIPTION) as file:
        file.write(canonical(body).encode() + b"\n")
    sync_folder(folder)


def _check_heads_path(heads: Path, folder: Path) -> Path:
    """A second file of heads is worth something elsewhere only."""
    if heads.is_relative_to(folder):
        raise DataError(
            str(heads),
            "a file outside of the source's folder",
            "one inside",
            "Name one on another disk: whoever restores the folder restores all that is in it.",
        )
    if not heads.exists():
        new_file(heads)
    return heads


def _no_source_error(place: Path, found: str) -> DataError:
    """Error for a folder that is none of a source."""
    return DataError(
        str(place),
        "the folder of a source, as `veracal source init` makes it",
        found[:200],
        "Check the spelling, or make one.",
    )


_UNIT: dict[str, schema.Check] = {
    "at_most": schema.integer(1, 10**6),
    "name": schema.text(100),
}
_CHECKS: dict[str, schema.Check] = {
    "created": schema.text(10),
    "format": schema.one_of((FORMAT,)),
    "heads": schema.optional(schema.text(4_096)),
    "id": schema.hexadecimal(ID_DIGITS),
    "key": schema.hexadecimal(64),
    "name": schema.text(100),
    "unit": schema.is_object,
}
