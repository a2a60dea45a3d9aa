"""Small files in folders that strangers may write to: how they are named, read and put there.

A folder where files arrive by mail, SFTP or a stick holds whatever somebody has put there. A
name is looked up in the folder and used for nothing else; what is no plain file is not opened;
what is too long is not read.

Requests and answers as signed files, for sources that open no port.

The coordinator writes ``north-0a1b2c3d4e5f.request`` into a folder. Somebody carries it (by
mail, SFTP, a stick) into a folder of the source, where an ``….answer`` of the same name
appears, which is carried back. Files are signed like any other message, so it does not matter
who carries them, how often, or whether one gets lost: the same request gets the same answer.
"""

import os
import stat
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from veracal import _checks
from veracal.data import no_surprises, placed
from veracal.errors import DataError, WaitingError
from veracal.federation.protocol.envelopes import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    REQUEST,
    EnvelopeError,
    read_unverified,
    unseal,
)
from veracal.federation.protocol.messages import Answer, Refusal, unseal_reply
from veracal.federation.protocol.terms import Terms
from veracal.ledger import digest

REQUEST_SUFFIX, ANSWER_SUFFIX = ".request", ".answer"
MAX_NAMES = 10_000  # that one look at a folder takes note of
_SLUG = 40
_SHORT = 12
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class InboxFile:
    """A file, as it was when it was looked at.

    Attributes
    ----------
    name : str
    content : bytes or None
        None if it was not read.
    problem : str
        Why it was not read, for whoever owns the folder.
    age : float
        Seconds since it was last written to; of a time to come, until then.
    identity : tuple of int
        Changes when somebody writes to it, or puts another in its place.
    """

    name: str
    content: bytes | None
    problem: str
    age: float
    identity: tuple[int, ...]


def slug(name: str) -> str:
    """A name as a part of a file's name: small letters, digits and single hyphens.

    Examples
    --------
    >>> slug("Clínica Nord / 2")
    'clinica-nord-2'
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = "".join(c if c.isalnum() else " " for c in plain).split()
    return "-".join(words)[:_SLUG].strip("-") or "source"


def file_stem(name: str, request: bytes) -> str:
    """What files about a request to a source are called, by their content alone.

    Whoever has the request has its name, so a file that was renamed on its way is answered
    under the right one.
    """
    return f"{slug(name)}-{digest(request)[:_SHORT]}"


def list_names(folder: Path, suffix: str) -> list[str]:
    """Names in a folder that end so, in order; not more than there can be in good faith."""
    with no_surprises(folder), os.scandir(folder) as entries:
        found = sorted(_first(e.name for e in entries if e.name.endswith(suffix)))
    return [name for name in found if not name.startswith(".")]


def read_untrusted_file(folder: Path, name: str, most: int) -> InboxFile | None:
    """Read a plain file of at most so many bytes; None if it is gone.

    Guarantees
    ----------
    Links are not followed, pipes and devices not waited for, and no byte of a file that is too
    long is read.
    """
    if os.sep in name or name in ("", ".", ".."):
        return InboxFile(printable(name), None, "its name is a path", 0.0, ())
    try:
        handle = os.open(folder / name, _FLAGS)
    except FileNotFoundError:
        return None
    except OSError:  # a link, or somebody else's
        return InboxFile(name, None, "it is a link, or cannot be opened", 0.0, ())
    try:
        return _read(handle, name, most)
    finally:
        os.close(handle)


def deliver_file(folder: Path, name: str, content: bytes, *, newer: bool = False) -> bool:
    """Write a file whole or not at all, unless it is there already with this content.

    Parameters
    ----------
    folder : path
    name : str
    content : bytes
    newer : bool
        Whether it takes the place of a plain file with other content.

    Returns
    -------
    bool
        Whether it was written.

    Raises
    ------
    DataError
        If something else has its name, or there is no room.
    """
    there = read_untrusted_file(folder, name, len(content))
    replaceable = newer and (folder / name).is_file() and not (folder / name).is_symlink()
    if there is None or (replaceable and there.content != content):
        # By renaming: sticks have file systems without hard links.
        with placed(folder / name, force=True) as file:
            file.write(content)
        return True
    if there.content == content:
        return False
    raise DataError(
        str(folder / name),
        "no file, or the one that belongs there",
        "another",
        "Move it away; nothing was written over.",
    )


def printable(name: str) -> str:
    """A name that a stranger chose, for people: short, and without what a terminal obeys."""
    return "".join(c if c.isprintable() else "?" for c in name)[:80]


def _read(handle: int, name: str, most: int) -> InboxFile:
    """Read what was opened, if it is plain and short."""
    told = os.fstat(handle)
    identity = (told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns)
    age = abs(time.time() - told.st_mtime)
    content, problem = None, ""
    if not stat.S_ISREG(told.st_mode):
        problem = "it is no plain file"
    elif told.st_size > most:
        problem = f"it is longer than {most:,} bytes"
    else:
        try:
            content = _bytes(handle, most)
        except OSError as cause:
            problem = f"it cannot be read: {cause.strerror}"
    return InboxFile(name, content, problem, age, identity)


def _bytes(handle: int, most: int) -> bytes:
    """Everything there is, up to one byte more than is allowed."""
    parts, left = [], most + 1
    while left > 0 and (part := os.read(handle, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _first(found: Iterator[str]) -> Iterator[str]:
    """The first of many names."""
    for _, name in zip(range(MAX_NAMES), found, strict=False):
        yield name


SETTLED = 10.0  # seconds after which a file that nobody writes to counts as whole
MAX_MESSAGES = 1_000  # lines about files that nothing can be done about
_LOOK = 1.0  # seconds between two looks


class FilesTransport:
    """The coordinator's side: writes requests, and watches for answers.

    Parameters
    ----------
    requests, answers : path
        Folders, which may be the same; they are made if they are not there.
    sources : iterable of Terms
        Who can be asked.
    wait : float
        Seconds to watch for answers. If some are still missing then, a
        :class:`~veracal.errors.WaitingError` says what to carry where: carry it, and run the
        same thing again.
    given_up : iterable of str
        Names of sources that nobody waits for any longer: they are silent.
    poll : float
        Seconds between two looks.
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
        poll: float = _LOOK,
    ) -> None:
        _checks.positive(poll=poll)
        if not wait >= 0:
            raise ValueError(f"Expected to wait 0 seconds or more, got wait={wait!r}.")
        self.requests, self.answers = Path(requests), Path(answers)
        self.sources = {terms.source: terms for terms in sources}
        self.wait, self.poll = wait, poll
        self.given_up = frozenset(given_up)
        _check_given_up(self.given_up, self.sources.values())

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Write requests and yield answers as they appear.

        A request lies in its folder for as long as it is not answered.

        Parameters
        ----------
        requests : mapping from ids of sources to what they are asked
        timeout : float
            Not used: whoever carries files decides how long that takes.

        Raises
        ------
        WaitingError
            If answers are missing after :attr:`wait` seconds. What has arrived was yielded;
            what is missing can still come.
        """
        missing = {
            source: file_stem(self.sources[source].name, raw)
            for source, raw in requests.items()
        }
        self._make_folders()
        yield from self._arrived(missing, requests)
        for source, name in missing.items():
            deliver_file(self.requests, name + REQUEST_SUFFIX, requests[source])
        until = time.monotonic() + self.wait
        while waited := self._awaited(missing):
            if time.monotonic() >= until:
                raise self._waiting(waited)
            time.sleep(min(self.poll, max(0.0, until - time.monotonic())))
            yield from self._arrived(missing, requests)

    def _make_folders(self) -> None:
        """Have places for both."""
        for folder in (self.requests, self.answers):
            with no_surprises(folder):
                folder.mkdir(parents=True, exist_ok=True)

    def _arrived(
        self, missing: dict[str, str], requests: Mapping[str, bytes]
    ) -> Iterator[tuple[str, bytes]]:
        """Answers that are here; what is answered need not be carried any more."""
        for source, name in list(missing.items()):
            content = self._answer(source, name, requests[source])
            if content is not None:
                del missing[source]
                with no_surprises(self.requests):
                    (self.requests / (name + REQUEST_SUFFIX)).unlink(missing_ok=True)
                yield source, content

    def _awaited(self, missing: Mapping[str, str]) -> dict[str, str]:
        """Those whom somebody still waits for."""
        return {
            source: name
            for source, name in missing.items()
            if self.sources[source].name not in self.given_up
        }

    def _answer(self, source: str, name: str, request: bytes) -> bytes | None:
        """What a source has signed for this request, once it is here to its last byte."""
        found = read_untrusted_file(self.answers, name + ANSWER_SUFFIX, MAX_REPLY_BYTES)
        if found is None or found.content is None:
            return None
        try:
            reply = unseal_reply(found.content, self.sources[source].key)
        except EnvelopeError:  # half of a file, or somebody else's: the right one may come
            return None
        return found.content if _is_reply_to(reply, source, request) else None

    def _waiting(self, waited: Mapping[str, str]) -> WaitingError:
        """What is to be carried where."""
        who = tuple(printable(self.sources[source].name) for source in waited)
        files = ", ".join(name + REQUEST_SUFFIX for name in waited.values())
        odd = [
            n + ANSWER_SUFFIX
            for n in waited.values()
            if read_untrusted_file(self.answers, n + ANSWER_SUFFIX, 0)
        ]
        again = (
            f" Bring {', '.join(odd)} again: it is not what the source signed." if odd else ""
        )
        return WaitingError(
            f"Waiting for answers of {', '.join(who)}: carry {files} from {self.requests} to "
            f"them, bring what they answer into {self.answers}, and run the same command "
            f"again. It goes on from here; nothing is asked or paid twice.{again}",
            who,
        )


class Responder(Protocol):
    """Answers requests at a source, as ``veracal.federation.SourceServer`` does."""

    @property
    def terms(self) -> Terms:
        """What was declared."""

    def answer(self, raw: bytes) -> bytes:
        """One reply to whatever comes in, at the deadline."""


Log = Callable[[str], None]


def serve_folder(
    server: Responder,
    inbox: Path,
    outbox: Path,
    *,
    once: bool = False,
    poll: float = _LOOK,
    stop: threading.Event | None = None,
    tell: Log = lambda line: None,
) -> int:
    """The source's side: answer every request in a folder, into another.

    A request that was answered is taken out of the inbox; should it come again, its answer is
    the same. What is not signed by the coordinator may still be on its way: it is looked at
    again, and refused once nobody has written to it for a while; it stays where it is.

    Parameters
    ----------
    server : Desk
    inbox, outbox : path
        Folders that exist and are not the same: others may write to the first, and only the
        source to the second.
    once : bool
        Whether to end when nothing is left to be answered, instead of waiting for more.
    poll : float
        Seconds between two looks.
    stop : threading.Event, optional
        Set, by another thread, when it is time to end.
    tell : callable
        Is told in a line what was done, for the source's owner.

    Returns
    -------
    int
        Number of answers that were written.

    Guarantees
    ----------
    Names of files are chosen by strangers and lead nowhere: an answer is named by the content
    of its request and the source's own name. It appears whole, at the deadline.
    """
    _check_folders(inbox, outbox)
    counter = _FolderServer(server, inbox, outbox, tell)
    over = threading.Event() if stop is None else stop
    while not over.is_set():
        while not over.is_set() and counter.step():
            pass
        if once:
            break
        over.wait(poll)
    return counter.written


class _FolderServer:
    """One folder being served: what was answered, and what was already told."""

    def __init__(self, server: Responder, inbox: Path, outbox: Path, tell: Log) -> None:
        self._server, self._inbox, self._outbox, self._tell = server, inbox, outbox, tell
        self._done: dict[str, tuple[int, ...]] = {}
        self._told: set[tuple[str, str]] = set()
        self.written = 0

    def step(self) -> bool:
        """Answer one request, signed ones first; False if there is none."""
        waiting = [
            found
            for name in list_names(self._inbox, REQUEST_SUFFIX)
            for found in self._seen(name)
        ]
        signed = [found for found in waiting if self._is_signed(found)]
        # Whoever can write to the folder must not keep the coordinator waiting, be it with what
        # it has sent before.
        signed.sort(key=self._is_old)
        for found in signed or [one for one in waiting if one.age > SETTLED]:
            if self._serve(found, signed=bool(signed)):
                return True
        return False

    def _seen(self, name: str) -> Iterator[InboxFile]:
        """A file that can be read and was not answered."""
        found = read_untrusted_file(self._inbox, name, MAX_REQUEST_BYTES)
        if found is None or self._done.get(name) == found.identity:
            return
        if found.content is None:
            self._say(found, f"left alone: {found.problem}")
        else:
            yield found

    def _is_signed(self, found: InboxFile) -> bool:
        """Whether it is what the coordinator wrote, to its last byte."""
        assert found.content is not None
        try:
            unseal(
                REQUEST, found.content, self._server.terms.coordinator, most=MAX_REQUEST_BYTES
            )
        except EnvelopeError:
            return False
        return True

    def _name(self, found: InboxFile) -> str:
        """What the reply to a request is called."""
        assert found.content is not None
        return file_stem(self._server.terms.name, found.content) + ANSWER_SUFFIX

    def _is_old(self, found: InboxFile) -> bool:
        """Whether a request was replied to before."""
        return read_untrusted_file(self._outbox, self._name(found), 0) is not None

    def _serve(self, found: InboxFile, *, signed: bool) -> bool:
        """Answer one request; False if there was nothing to do, or no way to do it."""
        assert found.content is not None
        name = self._name(found)
        if not signed and self._is_old(found):
            self._done[found.name] = found.identity  # refused before
            return False
        reply = self._server.answer(found.content)
        try:
            deliver_file(self._outbox, name, reply, newer=True)  # refused once, answered now
        except DataError as error:  # no room: the answer is kept, and written when there is
            self._say(found, f"answered, but not written: {error}")
            return False
        self._done[found.name] = found.identity
        self.written += 1
        self._tell(f"{printable(found.name)}: replied in {name}")
        if signed:
            self._take(found)
        return True

    def _take(self, found: InboxFile) -> None:
        """Remove a request that was answered, unless another took its place or it cannot be."""
        now = read_untrusted_file(self._inbox, found.name, MAX_REQUEST_BYTES)
        if now is not None and now.identity == found.identity:
            try:
                (self._inbox / found.name).unlink(missing_ok=True)
            except OSError as cause:
                self._say(found, f"stays in the inbox: {cause.strerror}")

    def _say(self, found: InboxFile, line: str) -> None:
        """Tell something about a file, once."""
        if (found.name, line) not in self._told and len(self._told) < MAX_MESSAGES:
            self._told.add((found.name, line))
            self._tell(f"{printable(found.name)}: {line}")


def _is_reply_to(reply: Answer | Refusal, source: str, request: bytes) -> bool:
    """Whether a reply is one to this request, and was not renamed on its way."""
    if isinstance(reply, Refusal):
        return reply.source == source
    asked = read_unverified(REQUEST, request, most=MAX_REQUEST_BYTES)
    return (reply.head.source, reply.request) == (source, asked.get("id"))


def _check_folders(inbox: Path, outbox: Path) -> None:
    """Both are there, and are two."""
    for folder in (inbox, outbox):
        if not folder.is_dir():
            raise DataError(str(folder), "a folder", "none", "Make it first.")
    if inbox.resolve() == outbox.resolve():
        raise DataError(
            str(outbox),
            "a folder of its own for answers",
            "the one that requests arrive in",
            "Name another: strangers may write to the inbox, and only you to the outbox.",
        )


def _check_given_up(given_up: frozenset[str], sources: Iterable[Terms]) -> None:
    """Nobody is given up who was not waited for."""
    unknown = sorted(given_up - {terms.name for terms in sources})
    if unknown:
        raise ValueError(
            f"Expected to give up sources of the list, got {', '.join(map(printable, unknown))}."
        )
