"""The folder of a federation: the coordinator's key, and the list of sources and their transport.

The list is a TOML file that the coordinator may edit. It names files by paths relative to it.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from veracal import _checks
from veracal._types import Frozen
from veracal.data import (
    Limits,
    atomic_file,
    open_file,
    private_folder,
    translate_os_errors,
    write_new_text,
)
from veracal.errors import DataError
from veracal.federation.coordinator.history import RequestHistory, SourceAccount
from veracal.federation.protocol.envelopes import MAX_TERMS_BYTES, PrivateKey, PublicKey
from veracal.federation.protocol.messages import Head
from veracal.federation.protocol.terms import Terms, check_name
from veracal.federation.source.serving import open_source
from veracal.federation.transports import FilesTransport, LocalTransport, Transport, slug

TransportKind = Literal["files", "flower"]
TRANSPORT_KINDS: tuple[TransportKind, ...] = get_args(TransportKind)
LIST_FILE, KEY_FILE, PUBLIC_KEY_FILE = "federation.toml", "coordinator.pem", "coordinator.pub"
_MAX_LIST_BYTES = 2**20
_REQUIRED = {"name": str, "key": str, "history": str}
_OPTIONAL = {"min_sources": int, "timeout": (int, float)}
# Settings of each transport, and its settings for each source.
_TRANSPORTS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = Frozen(
    {
        "local": ({}, {"folder": str}),
        "files": (
            {"requests": str, "answers": str, "wait": (int, float), "given_up": list},
            {},
        ),
        "flower": (
            {"address": str, "ca": str, "secret": str, "home": str},
            {"node_key": str},
        ),
    }
)
_DEFAULTS = {"wait": 0, "given_up": []}
_TYPE_NAMES = {
    str: "text",
    int: "a whole number",
    (int, float): "a number",
    list: "a list",
    dict: "a table",
}

_HEADING = """\
# The sources of a federation and the transport. Paths are relative to this file.

[coordinator]
name = {name}
key = "coordinator.pem"          # private key, which signs requests
history = "coordinator.history"  # requests and answers; keep this file
{min_sources}  # sources that must answer; by default all
{timeout}  # seconds to wait in a round; by default from the terms

"""
_TEMPLATES: dict[str, str] = {
    "files": """\
[transport]
kind = "files"
requests = "requests"     # carry files from here to the sources,
answers = "answers"       # and bring their answers here
wait = {wait:<4}               # seconds to wait for answers before the command ends
given_up = []             # names of sources to wait for no longer
""",
    "flower": """\
[transport]
kind = "flower"
address = "{address}"
ca = "flower/ca.crt"
secret = "flower/superlink.secret"
home = "flower/home"
""",
}
# All sources answer the same query, so it must mean the same to each of them.
_SHARED = {
    "model": "another model",
    "classes": "another number of classes",
    "reads": "another kind of scores",
    "relation": "another relation",
    "bins": "another number of bins",
    "clamp": "another largest loss",
    "parameters": "another grid of parameters",
}


def create_federation(
    folder: Path,
    name: str,
    *,
    transport: TransportKind = "files",
    address: str = "127.0.0.1:9092",
    min_sources: int | None = None,
    timeout: int | None = None,
    wait: int = 0,
) -> PublicKey:
    """Create the folder of a study without sources, and return the coordinator's public key.

    Parameters
    ----------
    folder : path
        A new or empty folder.
    name : str
    transport : {"files", "flower"}
    address : str
        Address of the SuperLink, for Flower.
    min_sources : int, optional
        Number of sources that must answer; by default all.
    timeout : int, optional
        Seconds to wait in a round; by default a minute more than twice the longest deadline.
    wait : int
        With files: seconds to wait for answers before a command ends and says what to carry.
    """
    _checks.one_of(TRANSPORT_KINDS, transport=transport)
    check_name(name)
    prepare_folder(folder)
    key = PrivateKey.new()
    key.save(folder / KEY_FILE)
    write_new_text(folder / PUBLIC_KEY_FILE, key.public.text + "\n")
    sources_line = (
        "# min_sources = 2" if min_sources is None else f"min_sources = {min_sources}"
    )
    timeout_line = "# timeout = 120" if timeout is None else f"timeout = {timeout}"
    text = _HEADING.format(
        name=json.dumps(name, ensure_ascii=False),
        min_sources=f"{sources_line:<31}",
        timeout=f"{timeout_line:<31}",
    )
    text += _TEMPLATES[transport].format(address=address, wait=wait)
    with atomic_file(folder / LIST_FILE) as file:
        file.write(text.encode())
    return key.public


def prepare_folder(folder: Path) -> Path:
    """Create an empty folder that only its owner can access; raise if it is not empty."""
    with translate_os_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(
                str(folder), "a new or empty folder", "a folder with files", "Choose another."
            )
    return private_folder(folder)


@dataclass(frozen=True)
class SourceList:
    """The sources of a federation and their transport.

    Attributes
    ----------
    path : path
        The file; paths in it are relative to its folder.
    name : str
        Name of the study.
    min_sources : int or None
        Number of sources that must answer; None for all.
    timeout : float or None
        Seconds to wait in a round.
    transport : mapping
        Its kind and its settings.
    terms : tuple of Terms
    settings : tuple of mapping
        Settings of the transport for each source.
    """

    path: Path
    name: str
    key: Path
    history: Path
    min_sources: int | None
    timeout: float | None
    transport: Mapping[str, Any]
    terms: tuple[Terms, ...]
    settings: tuple[Mapping[str, str], ...]

    def paths(self, name: str) -> dict[str, Path]:
        """A setting of every source that is a path, by the id of the source."""
        pairs = zip(self.terms, self.settings, strict=True)
        return {terms.source: self.resolve(settings[name]) for terms, settings in pairs}

    def resolve(self, name: str) -> Path:
        """Resolve a path of the file, relative to its folder."""
        return self.path.parent / name

    def with_wait(self, wait: float | None, given_up: Sequence[str]) -> "SourceList":
        """Replace how long to wait for files, and for which sources."""
        if wait is None and not given_up:
            return self
        if self.transport["kind"] != "files":
            raise ValueError(
                "Waiting and giving up sources need a federation with files, got transport "
                f"{self.transport['kind']!r}. Omit these options."
            )
        transport = {**self.transport, "given_up": [*self.transport["given_up"], *given_up]}
        if wait is not None:
            transport["wait"] = wait
        return replace(self, transport=Frozen(transport))


def read_source_list(path: Path, *, allow_empty: bool = False) -> SourceList:
    """Read a list of sources.

    A field that is missing, unknown or of the wrong type is refused, and so are unreadable
    terms and, unless ``allow_empty``, a list without sources.
    """
    with open_file(path, Limits(file_bytes=_MAX_LIST_BYTES)) as file:
        content = file.read(_MAX_LIST_BYTES)
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise _list_error(path, "the list", "valid TOML", str(cause)[:200]) from cause
    tables = {"sources": [], **tables}
    required = {"coordinator": dict, "transport": dict, "sources": list}
    _check(tables, required, {}, path, "the list")
    coordinator = _check(tables["coordinator"], _REQUIRED, _OPTIONAL, path, "[coordinator]")
    kind = tables["transport"].get("kind")
    if not isinstance(kind, str) or kind not in _TRANSPORTS:
        raise _list_error(path, "kind of [transport]", ", ".join(_TRANSPORTS), repr(kind)[:80])
    types, types_per_source = _TRANSPORTS[kind]
    optional = {name: types[name] for name in types if name in _DEFAULTS}
    required = {"kind": str, **{name: types[name] for name in types if name not in _DEFAULTS}}
    transport = _check(tables["transport"], required, optional, path, "[transport]")
    if not (tables["sources"] or allow_empty):
        raise _list_error(path, "[[sources]]", "one source or more", "none")
    entries = [
        _check(entry, {"terms": str, **types_per_source}, {}, path, "[[sources]]")
        for entry in tables["sources"]
    ]
    return SourceList(
        path,
        coordinator["name"],
        path.parent / coordinator["key"],
        path.parent / coordinator["history"],
        coordinator.get("min_sources"),
        coordinator.get("timeout"),
        Frozen({**{name: _DEFAULTS[name] for name in optional}, **transport}),
        tuple(read_terms(path.parent / entry["terms"])[0] for entry in entries),
        tuple(Frozen({name: entry[name] for name in types_per_source}) for entry in entries),
    )


def _check(
    table: Any,
    required: Mapping[str, Any],
    optional: Mapping[str, Any],
    path: Path,
    where: str,
) -> dict[str, Any]:
    """Check that a table has all required fields, no unknown ones, and the right types."""
    if not isinstance(table, dict):
        raise _list_error(path, where, "a table", type(table).__name__)
    missing = required.keys() - table.keys()
    unknown = table.keys() - required.keys() - optional.keys()
    if missing or unknown:
        actual = f"no {min(missing)!r}" if missing else f"{min(unknown)!r}"[:80]
        expected = f"{', '.join([*required, *optional])} and nothing else"
        raise _list_error(path, where, expected, actual)
    for name, types in {**required, **optional}.items():
        value = table.get(name)
        if name in table and (not isinstance(value, types) or isinstance(value, bool)):
            raise _list_error(path, f"{name} of {where}", _TYPE_NAMES[types], repr(value)[:80])
    return table


def _list_error(path: Path, where: str, expected: str, actual: str) -> DataError:
    """Error for an invalid list of sources."""
    return DataError(
        f"{path}: {where}",
        expected,
        actual,
        "Correct the file. `veracal federation init` writes a template.",
    )


def read_terms(path: Path) -> tuple[Terms, bytes]:
    """Read terms from a file; return them and the signed bytes."""
    with open_file(path, Limits(file_bytes=MAX_TERMS_BYTES)) as file:
        raw = file.read(MAX_TERMS_BYTES + 1)
    return Terms.unseal(raw, str(path)), raw


def check_compatible(folder: Path, terms: Terms) -> None:
    """Refuse terms that are incompatible with the federation.

    They must be for its coordinator, not be expired, not belong to a member, and give queries
    the same meaning as the terms of the members.
    """
    where, public = f"terms of {terms.name}", PrivateKey.read(folder / KEY_FILE).public
    if terms.coordinator != public:
        raise DataError(
            where,
            f"terms for this coordinator ({public.fingerprint})",
            f"terms for another coordinator ({terms.coordinator.fingerprint})",
            "Ask the source to enroll the public key of this federation.",
        )
    if terms.is_expired():
        raise DataError(
            where,
            "terms that are not expired",
            f"terms that expired on {terms.expires}",
            "Ask for new terms.",
        )
    for other in read_source_list(folder / LIST_FILE, allow_empty=True).terms:
        if terms.source == other.source or terms.name == other.name:
            same_id = terms.source == other.source
            raise DataError(
                where,
                "a source that is not a member yet",
                f"{'its enrollment' if same_id else 'a source of that name'} in the list",
                f"Remove the other source from {LIST_FILE} if this one replaces it. Answers "
                "that were charged stay charged.",
            )
        if terms.key == other.key:
            raise DataError(
                where,
                "a source with a key of its own",
                f"the key of {other.name}",
                "Add each institution once: its records would count twice.",
            )
        for field, difference in _SHARED.items():
            if getattr(terms, field) != getattr(other, field):
                raise DataError(
                    where,
                    f"the same {field} as {other.name}",
                    difference,
                    "Ask the source to enroll with the declarations of the other sources.",
                )


def add_source(folder: Path, terms: Terms, raw: bytes, *, node_key: Path | None = None) -> Path:
    """Store the terms that :func:`read_terms` returned, and add their source to the list.

    ``node_key`` is the public key of the source's node, for Flower. The path of the stored
    terms is returned.
    """
    check_compatible(folder, terms)
    stem = f"{slug(terms.name)}-{terms.source[:6]}"
    stored = folder / f"{stem}.terms"
    lines = ["", "[[sources]]", f"terms = {json.dumps(stored.name)}"]
    if node_key is not None:
        with open_file(node_key, Limits(file_bytes=_MAX_LIST_BYTES)) as file:
            public = file.read(_MAX_LIST_BYTES)
        with atomic_file(folder / f"{stem}.pub", force=True) as file:
            file.write(public)
        lines.append(f"node_key = {json.dumps(f'{stem}.pub')}")
    with atomic_file(stored, force=True) as file:
        file.write(raw)
    listing = folder / LIST_FILE
    with translate_os_errors(listing):
        before = listing.read_bytes()
    with atomic_file(listing, force=True) as file:
        file.write(before.rstrip(b"\n") + ("\n".join(["", *lines]) + "\n").encode())
    return stored


class ConfiguredTransport:
    """The transport of a list of sources, opened when the first request is sent.

    Plans, and rounds whose answers are all in the history, need no connection. Use it in a
    ``with`` block.
    """

    def __init__(self, source_list: SourceList) -> None:
        self._source_list, self._stack = source_list, ExitStack()
        self._open: Transport | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
        self._open = None

    @property
    def by_hand(self) -> bool:
        """Whether a person carries each request."""
        return bool(self._source_list.transport["kind"] == "files")

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Carry requests, as of :class:`~veracal.federation.transports.Transport`."""
        if self._open is None:
            self._open = self._open_transport()
        yield from self._open.exchange(requests, timeout=timeout)

    def _open_transport(self) -> Transport:
        """Open the transport, until the end of the ``with`` block."""
        listing = self._source_list
        settings, resolve = listing.transport, listing.resolve
        if settings["kind"] == "local":
            folders = listing.paths("folder")
            return LocalTransport(
                {id_: open_source(folder, id_).answer for id_, folder in folders.items()}
            )
        if settings["kind"] == "files":
            return FilesTransport(
                resolve(settings["requests"]),
                resolve(settings["answers"]),
                listing.terms,
                wait=float(settings["wait"]),
                given_up=settings["given_up"],
            )
        # Flower takes a second to import, and may not be installed.
        from veracal.federation.flower.transport import FlowerTransport

        return self._stack.enter_context(
            FlowerTransport(
                settings["address"],
                ca=resolve(settings["ca"]),
                secret=resolve(settings["secret"]),
                nodes=listing.paths("node_key"),
                home=resolve(settings["home"]),
            )
        )


@dataclass(frozen=True)
class MemberStatus:
    """A source's status according to the coordinator's history.

    The source's own ledger is authoritative: a refused request was usually not charged, but its
    answer may have missed the deadline.
    """

    terms: Terms
    answered: int
    unknown: int  # requests without a known outcome, which count as charged
    spent: tuple[float, float]  # epsilon and delta
    left: tuple[float, float]
    head: Head | None  # the last head that the source signed
    fault: str | None  # why the source is no longer trusted

    @property
    def missing(self) -> int:
        """Number of entries of the source's ledger that are not in this history."""
        return 0 if self.head is None else max(0, self.head.index - self.answered)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {
            "name": self.terms.name,
            "source": self.terms.source,
            "fingerprint": self.terms.key.fingerprint,
            "answered": self.answered,
            "unknown": self.unknown,
            "missing": self.missing,
            "spent": dict(zip(("epsilon", "delta"), self.spent, strict=True)),
            "left": dict(zip(("epsilon", "delta"), self.left, strict=True)),
            "head": None if self.head is None else self.head.to_json(),
            "fault": self.fault,
            "expires": self.terms.expires,
        }


def summarize_members(folder: Path) -> list[MemberStatus]:
    """Status of every source of a federation."""
    listing = read_source_list(folder / LIST_FILE, allow_empty=True)
    with ExitStack() as stack:
        history = None
        if listing.history.exists():  # a status must not create it
            public = PrivateKey.read(listing.key).public
            history = stack.enter_context(RequestHistory(listing.history, public))
        members = []
        for terms in listing.terms:
            account, source = SourceAccount(terms), terms.source
            charges = [] if history is None else history.charges(source)
            events = [request.event for request in charges]
            answered = sum(request.state == "answered" for request in charges)
            members.append(
                MemberStatus(
                    terms,
                    answered,
                    len(charges) - answered,
                    account.privacy(events),
                    account.left(events),
                    None if history is None else history.head(source),
                    None if history is None else history.fault(source),
                )
            )
    return members
