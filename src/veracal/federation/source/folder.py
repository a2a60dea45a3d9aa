"""The folder of a source: its key, its budget, file digests, refusals and signed heads.

A source protects one set of individuals with one key and one budget for all coordinators.

File digests detect changes of private files. A plain hash would confirm a guess of the content,
for example of a table in which all rows but one are known. The digests are HMACs under a secret
key in a separate file, so settings, backups of one enrollment and exports confirm nothing.

Signed heads detect rollbacks of a ledger. One machine cannot detect that all of its files were
rolled back together, so the heads can also be written to a second file on another disk, a
share or append-only storage. Each answer appends one line.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from veracal.accounting import Approximate, Budget, Event, Pure, Unit
from veracal.artifact import read_file, sync_folder
from veracal.data import atomic_file, check_readable, new_file, translate_os_errors
from veracal.errors import DataError, LedgerError
from veracal.federation.protocol.envelopes import (
    PrivateKey,
    PublicKey,
    is_hexadecimal,
)
from veracal.federation.protocol.messages import MAX_INDEX, Head
from veracal.federation.protocol.terms import (
    HASH_DIGITS,
    ID_DIGITS,
    check_name,
    parse_unit,
    today,
)
from veracal.ledger import Ledger, canonical, open_ledger

DIGEST_KEY = "digest.key"  # only the owner of the source can read this file
_KEY_BYTES = 32


class DigestKey:
    """The secret HMAC key of a source's file digests.

    Guarantees
    ----------
    Without the key, digests reveal only whether two digests under the same key are equal. The
    key is not part of any ledger, terms, reply, head, status or log.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "DigestKey(...)"

    @classmethod
    def create(cls, folder: Path) -> None:
        """Write the key of a new source to a file that only its owner can read."""
        with atomic_file(folder / DIGEST_KEY) as file:
            file.write(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def read(cls, folder: Path) -> "DigestKey":
        """Read the key of a source."""
        content = read_file(folder, DIGEST_KEY, _KEY_BYTES)
        if len(content) != _KEY_BYTES:
            raise DataError(
                str(folder / DIGEST_KEY),
                f"{_KEY_BYTES} bytes, as `veracal source init` wrote them",
                f"{len(content)}",
                "Restore the file. Without it, changes of the records cannot be detected.",
            )
        return cls(content)

    def of_file(self, path: Path) -> str:
        """Keyed digest of a file's bytes, 64 hexadecimal digits."""
        keyed = hmac.new(self._key, b"content\0", hashlib.sha256)
        with translate_os_errors(path), check_readable(path).open("rb") as file:
            while block := file.read(2**20):
                keyed.update(block)
        return keyed.hexdigest()

    def of_state(self, path: Path) -> str:
        """Keyed digest of the size and the modification time of a file."""
        status = path.stat()
        text = f"text\0{status.st_size} {status.st_mtime_ns}"
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


MAX_LINES = 1_000
_SLACK = 200  # extra lines before the file is truncated
_MAX_REASON = 400  # characters
_GAP = "  "


@dataclass(frozen=True)
class RefusalLog:
    """The log of refused requests, with the latest :data:`MAX_LINES` lines.

    Guarantees
    ----------
    The size of the file is bounded, whatever requests arrive. Each line is printable and short,
    even if it quotes a request.
    """

    path: Path

    def add(self, reason: str) -> None:
        """Append a refusal."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        plain = "".join(c if c.isprintable() else "?" for c in " ".join(reason.split()))
        line = f"{now}{_GAP}{plain[:_MAX_REASON]}\n".encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
        self._truncate()

    def lines(self) -> list[tuple[str, str]]:
        """Time (UTC) and reason of each refusal, oldest first."""
        try:
            text = self.path.read_text("utf-8", "replace")
        except FileNotFoundError:
            return []
        parts = (line.partition(_GAP) for line in text.splitlines()[-MAX_LINES:])
        return [(when, reason) for when, gap, reason in parts if gap]

    def _truncate(self) -> None:
        """Remove the oldest lines if there are too many."""
        if self.path.stat().st_size < MAX_LINES * 40:
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        if len(lines) > MAX_LINES + _SLACK:
            shorter = self.path.with_name(f".{self.path.name}")
            shorter.write_bytes(b"".join(lines[-MAX_LINES:]))
            shorter.chmod(0o600)
            shorter.replace(self.path)


_MAX_HEAD_BYTES = 4_096  # of a line
_CLOSING_HASH = "0" * HASH_DIGITS  # the hash of no entry


class RollbackError(LedgerError):
    """A ledger lacks an entry that its owner signed."""


class ClosedLedgerError(LedgerError):
    """The owner closed a ledger."""


class SignedHeads:
    """The signed heads of one ledger, in every file that stores them.

    They are signed for the id ``source`` and verified with ``key``. The files exist, and may
    also contain heads of other ledgers.

    Guarantees
    ----------
    :meth:`check` passes only if the ledger contains every valid head of this source in any of
    the files, every head that this object added, and the quoted head. A missing head is written
    to the files, so that later processes detect the rollback too. Lines that are incomplete,
    of another source or not validly signed are ignored: a party that can write such lines
    could also remove valid ones.
    """

    def __init__(self, source: str, key: PublicKey, paths: Sequence[Path]) -> None:
        self.source, self.key, self.paths = source, key, tuple(paths)
        self._files = tuple(_HeadsFile(path) for path in paths)
        self._last: Head | None = None  # the latest head that the ledger is known to contain
        self._missing: frozenset[Head] = frozenset()

    def check(self, ledger: Ledger, quoted: Head | None = None) -> None:
        """Raise if a ledger was rolled back or closed. A quoted head must be valid.

        Raises
        ------
        RollbackError
            If a signed entry is missing or differs.
        ClosedLedgerError
            If the owner closed the ledger.
        LedgerError
            If the ledger or one of the files cannot be read.
        """
        heads = (head for file in self._files for head in file.read_new())
        new = {head for head in heads if head.source == self.source}
        replaced = any(file.was_replaced for file in self._files)
        written = new if replaced else new | self._missing
        remembered = {head for head in (self._last, quoted) if head is not None}
        candidates = new | remembered | self._missing
        hashes = ledger.hashes(head.index for head in candidates)
        present = {head for head in candidates if hashes.get(head.index) == head.hash}
        verified = self._missing  # no need to verify these signatures again
        self._missing = frozenset(
            head for head in candidates - present if head in verified or head.verify(self.key)
        )
        if self._missing:
            for head in self._missing - written:  # so that later processes detect it too
                self.add(head)
            if any(head.index == MAX_INDEX for head in self._missing):
                raise ClosedLedgerError("This enrollment was revoked.")
            index = min(head.index for head in self._missing)
            raise RollbackError(
                f"An older copy of {ledger.path.name} was restored: it lacks entry {index} as "
                "it was signed. All requests are refused until the right copy is restored. If "
                "it is lost, revoke this enrollment and enroll again."
            )
        ordered = sorted(present, key=lambda head: head.index, reverse=True)
        self._last = next((head for head in ordered if head.verify(self.key)), self._last)

    def keep(self, head: Head) -> None:
        """Add the head of an entry of the ledger, unless a later one is stored."""
        if self._last is None or self._last.index < head.index:
            self.add(head)
            self._last = head

    def add(self, head: Head) -> None:
        """Append a head to every file. It is on disk when this returns."""
        line = canonical({**head.to_json(), "source": head.source}).encode() + b"\n"
        for file in reversed(self._files):  # the external file first: it must not lag behind
            file.append(line)

    def close(self, key: PrivateKey) -> None:
        """Add a head that no ledger can contain, so that :meth:`check` always raises.

        A restored backup would remove a mark in the folder. It does not remove this head if
        heads are also stored in an external file.
        """
        self.add(Head.sign(self.source, MAX_INDEX, _CLOSING_HASH, _CLOSING_HASH, key))


def create_heads_file(path: Path) -> None:
    """Create a file of heads that only its owner can read, unless it exists."""
    with _explain_os_errors(path):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
        try:
            _check_regular(os.fstat(handle))
        finally:
            os.close(handle)


class _HeadsFile:
    """A file of heads, one a line, that other processes append to as well."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._read_bytes = 0, 0
        self.was_replaced = True  # since the previous read

    def read_new(self) -> list[Head]:
        """Heads since the last read; all heads if the file was replaced."""
        heads = []
        with _explain_os_errors(self.path), self.path.open("rb") as file:
            status = _check_regular(os.fstat(file.fileno()))
            self.was_replaced = (
                status.st_ino != self._inode or status.st_size < self._read_bytes
            )
            if self.was_replaced:
                self._inode, self._read_bytes = status.st_ino, 0
            file.seek(self._read_bytes)
            while line := file.readline(_MAX_HEAD_BYTES):
                if not line.endswith(b"\n") and len(line) < _MAX_HEAD_BYTES:
                    break  # the line may still be written
                self._read_bytes += len(line)
                # Lines that are not heads are ignored, as the guarantees of SignedHeads say.
                with suppress(
                    ValueError, TypeError, LookupError, AttributeError, RecursionError
                ):
                    body = json.loads(line)
                    source = body.pop("source")
                    heads.append(Head.from_json(body, source))
        return heads

    def append(self, line: bytes) -> None:
        """Append a line, after a line break if the previous line is incomplete."""
        with _explain_os_errors(self.path):
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    line = line if file.read(1) == b"\n" else b"\n" + line
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                written = os.write(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)
            if written != len(line):
                raise OSError(None, "no space for a whole line")


def _check_regular(status: os.stat_result) -> os.stat_result:
    """Refuse devices and pipes, which have no end and store nothing."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "it is not a regular file")
    return status


@contextmanager
def _explain_os_errors(path: Path) -> Iterator[None]:
    """Convert an error of the operating system about a file of heads."""
    try:
        yield
    except OSError as cause:
        raise LedgerError(
            f"{path}: the file of signed heads cannot be used ({cause.strerror or cause}). "
            "Mount or restore it, or free disk space."
        ) from cause


FORMAT = "veracal source 1"
DESCRIPTION, KEY, SHARES, HEADS, ENROLLED = (
    "source.json",
    "key.pem",
    "shares.ledger",
    "heads",
    "enrolled",
)
TEMPORARY_PREFIX = ".new."  # of the folder of an unfinished enrollment
_MAX_DESCRIPTION_BYTES = 2**16
_MAX_ENROLLMENTS = 10_000


@dataclass(frozen=True)
class SourceFolder:
    """A source on disk."""

    path: Path
    id: str  # random digits, which identify the heads of the source's own ledger
    name: str  # public name of the institution
    public: PublicKey
    unit: Unit
    created: str  # date
    heads: Path | None  # second file for signed heads, outside of the folder

    @property
    def key(self) -> PrivateKey:
        """The private key, read from its file each time."""
        key = PrivateKey.read(self.path / KEY)
        if key.public != self.public:
            raise DataError(
                str(self.path / KEY),
                "the key that this source was created with",
                "another key",
                "Restore the right key, or create a new source.",
            )
        return key

    @property
    def digest_key(self) -> DigestKey:
        """The key of file digests, read from its file each time."""
        return DigestKey.read(self.path)

    @property
    def shares(self) -> Ledger:
        """The institution's ledger, which each enrollment is charged to."""
        return Ledger(self.path / SHARES)

    @property
    def budget(self) -> Budget:
        """Total budget for all coordinators together."""
        return replace(self.shares.budget, unit=self.unit)

    def signed_heads(self, source: str, folder: Path) -> SignedHeads:
        """The heads of a ledger of this source, in its folder and in the external file."""
        external = [] if self.heads is None else [self.heads]
        return SignedHeads(source, self.public, [folder / HEADS, *external])

    def enrollment_ids(self) -> tuple[str, ...]:
        """Ids of all enrollments, in the order in which they were charged."""
        folder = self.path / ENROLLED
        with translate_os_errors(folder):
            ids = {each.name for each in folder.iterdir()}
        ids = {name for name in ids if is_hexadecimal(name, ID_DIGITS)}
        charged = [entry.request for entry in self.shares.entries() if entry.request in ids]
        uncharged = sorted(ids - set(charged))  # after a rollback of the ledger
        return tuple(map(str, (*charged, *uncharged)))[:_MAX_ENROLLMENTS]


def create_source(
    path: str | Path, name: str, budget: Budget, *, heads: str | Path | None = None
) -> SourceFolder:
    """Create the folder of a new source.

    Parameters
    ----------
    path : path
        A new folder on a local disk. It is created atomically.
    name : str
        Public name of the institution.
    budget : Budget
        Total budget for all coordinators, with relation and unit. It never changes.
    heads : path, optional
        Second file for signed heads, outside of the folder, preferably on another disk.
    """
    folder = Path(path).absolute()
    external = None if heads is None else Path(heads).absolute()
    check_name(name)
    new_file(folder, "folder")
    if external is not None and external.is_relative_to(folder):
        raise DataError(
            str(external),
            "a file outside of the source's folder",
            "a file inside",
            "Choose a file on another disk: a restored backup includes all of the folder.",
        )
    if external is not None and not external.exists():
        new_file(external)
    key = PrivateKey.new()
    created = today().isoformat()
    id_ = secrets.token_hex(ID_DIGITS // 2)
    source = SourceFolder(folder, id_, name, key.public, budget.unit, created, external)
    with translate_os_errors(folder):
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            key.save(temporary / KEY)
            DigestKey.create(temporary)
            (temporary / ENROLLED).mkdir(mode=0o700)
            per_unit = replace(budget, unit=Unit(budget.unit.name))
            if budget.pure:
                open_ledger(temporary / SHARES, per_unit)
            else:
                open_ledger(temporary / SHARES, per_unit, kind="open", composition="addition")
            create_heads_file(temporary / HEADS)
            if external is not None:
                create_heads_file(external)
            body = {
                "created": created,
                "format": FORMAT,
                "heads": None if external is None else str(external),
                "id": id_,
                "key": key.public.text,
                "name": name,
                "unit": asdict(budget.unit),
            }
            with atomic_file(temporary / DESCRIPTION) as file:
                file.write(canonical(body).encode() + b"\n")
            sync_folder(temporary)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return source


def read_source(path: str | Path) -> SourceFolder:
    """Read the folder of a source."""
    folder = Path(path).absolute()
    expected = "the folder of a source that `veracal source init` created"
    remedy = "Check the path, or create a source."
    if not folder.is_dir():
        raise DataError(str(folder), expected, "no folder", remedy)
    if not os.path.lexists(folder / DESCRIPTION):
        raise DataError(str(folder), expected, f"no file {DESCRIPTION}", remedy)
    content = read_file(folder, DESCRIPTION, _MAX_DESCRIPTION_BYTES)
    try:
        fields = json.loads(content)
        if fields["format"] != FORMAT:
            raise ValueError("Another format.")
        if not all(isinstance(fields[name], str) for name in ("id", "name", "created")):
            raise ValueError("Another type.")
        return SourceFolder(
            path=folder,
            id=fields["id"],
            name=fields["name"],
            public=PublicKey(fields["key"]),
            unit=parse_unit(fields["unit"]),
            created=fields["created"],
            heads=None if fields["heads"] is None else Path(fields["heads"]),
        )
    except (ValueError, LookupError, TypeError) as cause:
        raise DataError(str(folder), expected, f"an invalid {DESCRIPTION}", remedy) from cause


def share_event(budget: Budget) -> Event:
    """Event that charges the whole budget of an enrollment to the institution's ledger.

    The budget covers a unit with all of its rows, so this ledger counts units of one row.
    """
    if budget.pure:
        return Pure(budget.epsilon, budget.relation)
    return Approximate(budget.epsilon, budget.delta, budget.relation)
