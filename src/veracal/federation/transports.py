"""Transports of bytes between a coordinator and sources: in one process, or as signed files.

Transports are untrusted: both ends validate every byte.

For sources that open no port, the coordinator writes ``north-0a1b2c3d4e5f.request`` to a
folder. Someone carries it (by mail, SFTP or a USB stick) to a folder of the source, which
writes an ``….answer`` of the same name, to be carried back. The files are signed messages, so
it does not matter who carries them, how often, or whether one is lost: the same request gets
the same answer. Others may write to these folders. A file name is only looked up in its folder,
only regular files are opened, and files that are too long are not read.
"""

import itertools
import os
import queue
import stat
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from veracal import _checks
from veracal._types import Frozen
from veracal.data import atomic_file, translate_os_errors
from veracal.errors import DataError, PendingError
from veracal.federation.protocol.envelopes import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    REQUEST,
    EnvelopeError,
    read_unverified,
    unseal,
)
from veracal.federation.protocol.messages import Refusal, unseal_reply
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.serving import SourceServer
from veracal.ledger import digest


@runtime_checkable
class Transport(Protocol):
    """A carrier of bytes.

    It may lose, delay, repeat or change messages: both ends validate every byte. A transport
    that holds processes or connections is also a context manager.
    """

    @property
    def by_hand(self) -> bool:
        """Whether a person carries each request, so that a repeat is expensive."""

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Carry requests to their sources, and yield replies as they arrive.

        Requests and replies are by the id of the source. Sources without a reply after
        ``timeout`` seconds are not yielded. A ``PendingError`` says that replies are still on
        their way and need action by a person. Replies that were yielded are valid, and a later
        exchange continues.
        """


class LocalTransport:
    """Carries requests to servers in this process, each in a separate thread.

    Parameters
    ----------
    servers : mapping of str to callable
        ``answer(request) -> reply``, by the id of the source, such as
        ``veracal.federation.source.serving.SourceServer.answer``.
    """

    by_hand = False

    def __init__(self, servers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self.servers = Frozen(dict(servers))

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Send all requests at once, and yield replies in the order of completion."""
        arrived: queue.SimpleQueue[tuple[str, bytes | None]] = queue.SimpleQueue()

        def answer(source: str, raw: bytes) -> None:
            reply = None
            try:
                reply = self.servers[source](raw)
            except Exception:  # noqa: S110 - an error of the other party, which it logs
                pass
            finally:
                arrived.put((source, reply))

        known = [(source, raw) for source, raw in requests.items() if source in self.servers]
        for pair in known:
            threading.Thread(target=answer, args=pair, daemon=True).start()
        until = time.monotonic() + timeout
        for _ in known:
            try:
                source, reply = arrived.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if reply is not None:
                yield source, reply


REQUEST_SUFFIX, ANSWER_SUFFIX = ".request", ".answer"
MAX_NAMES = 10_000  # per scan of a folder
_SLUG_LENGTH = 40
_DIGEST_LENGTH = 12
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class InboxFile:
    """A file in a folder at the time of a scan."""

    name: str
    content: bytes | None  # None if it was not read
    problem: str = ""  # why it was not read, for the owner of the folder
    age: float = 0.0  # seconds since its modification time; absolute, for times in the future
    identity: tuple[int, ...] = ()  # changes when the file is written or replaced


def slug(name: str) -> str:
    """Convert a name to lowercase letters, digits and single hyphens, for file names.

    Examples
    --------
    >>> slug("Clínica Nord / 2")
    'clinica-nord-2'
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = "".join(c if c.isalnum() else " " for c in plain).split()
    return "-".join(words)[:_SLUG_LENGTH].strip("-") or "source"


def file_stem(name: str, request: bytes) -> str:
    """Name of the files of a request without suffix, from the content of the request.

    A request file that was renamed on its way is therefore answered under the right name.
    """
    return f"{slug(name)}-{digest(request)[:_DIGEST_LENGTH]}"


def list_names(folder: Path, suffix: str) -> list[str]:
    """Sorted names in a folder that end with a suffix, at most :data:`MAX_NAMES`."""
    with translate_os_errors(folder), os.scandir(folder) as entries:
        matches = (entry.name for entry in entries if entry.name.endswith(suffix))
        names = sorted(itertools.islice(matches, MAX_NAMES))
    return [name for name in names if not name.startswith(".")]


def read_untrusted_file(folder: Path, name: str, max_bytes: int) -> InboxFile | None:
    """Read a regular file of bounded length; None if it does not exist.

    Guarantees
    ----------
    Links are not followed, pipes and devices do not block, and a file that is too long is not
    read.
    """
    if os.sep in name or name in ("", ".", ".."):
        return InboxFile(printable(name), None, "its name is a path")
    try:
        handle = os.open(folder / name, _FLAGS)
    except FileNotFoundError:
        return None
    except OSError:  # a link, or a file without permission
        return InboxFile(name, None, "it is a link, or cannot be opened")
    try:
        status = os.fstat(handle)
        content, problem = None, ""
        if not stat.S_ISREG(status.st_mode):
            problem = "it is not a regular file"
        elif status.st_size > max_bytes:
            problem = f"it is longer than {max_bytes:,} bytes"
        else:
            try:
                with os.fdopen(handle, "rb", closefd=False) as file:
                    content = file.read(max_bytes + 1)  # it may grow while it is read
            except OSError as cause:
                problem = f"it cannot be read: {cause.strerror}"
    finally:
        os.close(handle)
    age = abs(time.time() - status.st_mtime)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return InboxFile(name, content, problem, age, identity)


def deliver_file(folder: Path, name: str, content: bytes, *, newer: bool = False) -> bool:
    """Write a file atomically, unless it exists with this content; return whether it was written.

    Parameters
    ----------
    folder, name, content
    newer : bool
        Whether to replace a regular file with other content.

    Raises
    ------
    DataError
        If something else has this name, or the disk is full.
    """
    existing = read_untrusted_file(folder, name, len(content))
    replaceable = newer and (folder / name).is_file() and not (folder / name).is_symlink()
    if existing is None or (replaceable and existing.content != content):
        # By renaming: USB sticks have file systems without hard links.
        with atomic_file(folder / name, force=True) as file:
            file.write(content)
        return True
    if existing.content == content:
        return False
    raise DataError(
        str(folder / name),
        "no file, or the same file",
        "another file",
        "Move it away. Nothing was overwritten.",
    )


def printable(name: str) -> str:
    """A name from an untrusted party, short and without control characters."""
    return "".join(c if c.isprintable() else "?" for c in name)[:80]


SETTLED = 10.0  # seconds without a write after which a file counts as complete
MAX_MESSAGES = 1_000  # log lines about files that cannot be handled
_POLL = 1.0  # seconds between two scans


class FilesTransport:
    """The coordinator's side: writes requests and waits for answers.

    Parameters
    ----------
    requests, answers : path
        Folders, which may be the same. They are created if necessary.
    sources : iterable of Terms
        Terms of all sources.
    wait : float
        Seconds to wait for answers. If some are missing then, a
        :class:`~veracal.errors.PendingError` says which files to carry. Carry them and repeat
        the call.
    given_up : iterable of str
        Names of sources to wait for no longer; they drop out.
    poll : float
        Seconds between two scans.
    """

    by_hand = True

    def __init__(
        self,
        requests: Path,
        answers: Path,
        sources: Iterable[Terms],
        *,
        wait: float = 0.0,
        given_up: Iterable[str] = (),
        poll: float = _POLL,
    ) -> None:
        _checks.positive(poll=poll)
        if not wait >= 0:
            raise ValueError(f"Expected wait >= 0 seconds, got wait={wait!r}.")
        self.requests, self.answers = Path(requests), Path(answers)
        self.sources = {terms.source: terms for terms in sources}
        self.wait, self.poll = wait, poll
        self.given_up = frozenset(given_up)
        unknown = sorted(self.given_up - {terms.name for terms in self.sources.values()})
        if unknown:
            raise ValueError(
                "Expected to give up sources of the list, got "
                f"{', '.join(map(printable, unknown))}."
            )

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Write requests, which stay there until answered, and yield answers as they appear.

        The timeout is not used: the person who carries files decides how long that takes. If
        answers are missing after ``wait`` seconds, a ``PendingError`` names them.
        """
        missing = {
            source: file_stem(self.sources[source].name, raw)
            for source, raw in requests.items()
        }
        for folder in (self.requests, self.answers):
            with translate_os_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        until: float | None = None
        while True:
            for source, name in list(missing.items()):
                content = self._read_answer(source, name, requests[source])
                if content is not None:
                    del missing[source]
                    with translate_os_errors(self.requests):
                        (self.requests / (name + REQUEST_SUFFIX)).unlink(missing_ok=True)
                    yield source, content
            if until is None:
                for source, name in missing.items():
                    deliver_file(self.requests, name + REQUEST_SUFFIX, requests[source])
                until = time.monotonic() + self.wait
            awaited = {
                source: name
                for source, name in missing.items()
                if self.sources[source].name not in self.given_up
            }
            if not awaited:
                return
            if time.monotonic() >= until:
                break
            time.sleep(min(self.poll, max(0.0, until - time.monotonic())))
        names = tuple(printable(self.sources[source].name) for source in awaited)
        files = ", ".join(name + REQUEST_SUFFIX for name in awaited.values())
        answers = [name + ANSWER_SUFFIX for name in awaited.values()]
        invalid = [name for name in answers if read_untrusted_file(self.answers, name, 0)]
        again = f" Bring {', '.join(invalid)} again: it is not what the source signed."
        raise PendingError(
            f"Waiting for answers of {', '.join(names)}: carry {files} from {self.requests} to "
            f"them, bring their answers to {self.answers}, and repeat the command. It "
            f"continues from here, and no query is charged twice.{again if invalid else ''}",
            names,
        )

    def _read_answer(self, source: str, name: str, request: bytes) -> bytes | None:
        """A complete reply that the source signed for this request, or None."""
        file = read_untrusted_file(self.answers, name + ANSWER_SUFFIX, MAX_REPLY_BYTES)
        if file is None or file.content is None:
            return None
        try:
            reply = unseal_reply(file.content, self.sources[source].key)
        except EnvelopeError:  # incomplete or of another party: the right file may follow
            return None
        if isinstance(reply, Refusal):
            return file.content if reply.source == source else None
        request_id = read_unverified(REQUEST, request, max_bytes=MAX_REQUEST_BYTES).get("id")
        is_reply = (reply.head.source, reply.request) == (source, request_id)
        return file.content if is_reply else None  # otherwise its file was renamed


def serve_folder(
    server: SourceServer,
    inbox: Path,
    outbox: Path,
    *,
    once: bool = False,
    poll: float = _POLL,
    stop: threading.Event | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> int:
    """The source's side: answer every request in one folder into another.

    It returns the number of replies that were written. An answered request is removed from the
    inbox. If it arrives again, its answer is the same. A file without a valid signature may be
    incomplete: it is read again, and refused after it was not written to for a while. It stays
    in the inbox.

    Parameters
    ----------
    server : SourceServer
    inbox, outbox : path
        Two different existing folders. Others may write to the inbox, but only the source to
        the outbox.
    once : bool
        Whether to return when no request is left, instead of waiting for more.
    poll : float
        Seconds between two scans.
    stop : threading.Event, optional
        Another thread sets it to end the function.
    log : callable
        Receives one line for each step, for the owner of the source.

    Guarantees
    ----------
    File names in the inbox are untrusted and never used as paths: an answer is named by the
    content of its request and the source's own name. It is written atomically, at the deadline.
    """
    for folder in (inbox, outbox):
        if not folder.is_dir():
            raise DataError(str(folder), "a folder", "none", "Create it first.")
    if inbox.resolve() == outbox.resolve():
        raise DataError(
            str(outbox),
            "a separate folder for answers",
            "the folder of requests",
            "Choose another folder: others may write to the inbox, but only you to the outbox.",
        )
    folder_server = _FolderServer(server, inbox, outbox, log)
    over = threading.Event() if stop is None else stop
    while not over.is_set():
        while not over.is_set() and folder_server.step():
            pass
        if once:
            break
        over.wait(poll)
    return folder_server.written


class _FolderServer:
    """Serves one inbox; remembers which files were answered and which lines were logged."""

    def __init__(
        self, server: SourceServer, inbox: Path, outbox: Path, log: Callable[[str], None]
    ) -> None:
        self._server, self._inbox, self._outbox, self._log = server, inbox, outbox, log
        self._done: dict[str, tuple[int, ...]] = {}
        self._logged: set[tuple[str, str]] = set()
        self.written = 0

    def step(self) -> bool:
        """Answer one request, signed ones first; False if there is none."""
        key, name = self._server.terms.coordinator, self._server.terms.name
        # Each a file and its content, the name of its reply, and whether that reply exists.
        signed, settled = [], []
        for entry in list_names(self._inbox, REQUEST_SUFFIX):
            file = read_untrusted_file(self._inbox, entry, MAX_REQUEST_BYTES)
            if file is None or self._done.get(entry) == file.identity:
                continue
            if file.content is None:
                self._log_once(file, f"ignored: {file.problem}")
                continue
            reply_name = file_stem(name, file.content) + ANSWER_SUFFIX
            has_reply = read_untrusted_file(self._outbox, reply_name, 0) is not None
            try:
                unseal(REQUEST, file.content, key, max_bytes=MAX_REQUEST_BYTES)
                signed.append((file, file.content, reply_name, has_reply))
            except EnvelopeError:
                if file.age > SETTLED:
                    settled.append((file, file.content, reply_name, has_reply))
        # New requests first: a party that writes old requests to the inbox, or unsigned
        # files, must not delay the coordinator.
        signed.sort(key=lambda each: each[3])
        for file, content, reply_name, has_reply in signed or settled:
            if not signed and has_reply:
                self._done[file.name] = file.identity  # refused before
            elif self._serve(file, content, reply_name):
                if signed:
                    self._remove(file)
                return True
        return False

    def _serve(self, file: InboxFile, content: bytes, name: str) -> bool:
        """Answer one request; False if its reply cannot be written."""
        reply = self._server.answer(content)
        try:
            deliver_file(self._outbox, name, reply, newer=True)  # it may replace a refusal
        except DataError as error:  # full disk: the answer is stored, and written later
            self._log_once(file, f"answered, but not written: {error}")
            return False
        self._done[file.name] = file.identity
        self.written += 1
        self._log(f"{printable(file.name)}: replied in {name}")
        return True

    def _remove(self, file: InboxFile) -> None:
        """Remove an answered request, unless it was replaced or cannot be removed."""
        current = read_untrusted_file(self._inbox, file.name, MAX_REQUEST_BYTES)
        if current is not None and current.identity == file.identity:
            try:
                (self._inbox / file.name).unlink(missing_ok=True)
            except OSError as cause:
                self._log_once(file, f"stays in the inbox: {cause.strerror}")

    def _log_once(self, file: InboxFile, line: str) -> None:
        """Log a line about a file, once."""
        if (file.name, line) not in self._logged and len(self._logged) < MAX_MESSAGES:
            self._logged.add((file.name, line))
            self._log(f"{printable(file.name)}: {line}")
