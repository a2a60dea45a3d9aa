"""The folder of a federation: the coordinator's key, the sources and their status."""

import datetime
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from veracal import _checks
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
from veracal.federation.protocol.terms import Terms
from veracal.federation.transports.files import slug

TransportKind = Literal["files", "flower"]
TRANSPORT_KINDS: tuple[TransportKind, ...] = get_args(TransportKind)
LIST_FILE, KEY_FILE, PUBLIC_KEY_FILE = "federation.toml", "coordinator.pem", "coordinator.pub"
_HISTORY = "coordinator.history"
_MAX_LIST_BYTES = 2**20

_HEADING = """\
# The sources of a federation and the transport. Paths are relative to this file.

[coordinator]
name = {name}
key = "coordinator.pem"          # private key, which signs requests
history = "coordinator.history"  # requests and answers; keep this file
{min_sources}  # sources that must answer; by default all
{timeout}  # seconds to wait in a round; by default from the terms

"""
_TRANSPORTS: dict[str, str] = {
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
    """Create the folder of a federation without sources.

    Parameters
    ----------
    folder : path
        A new or empty folder.
    name : str
        Name of the study.
    transport : {"files", "flower"}
        How requests reach the sources.
    address : str
        Address of the SuperLink, for Flower.
    min_sources : int, optional
        Number of sources that must answer; by default all.
    timeout : int, optional
        Seconds to wait in a round; by default a minute more than twice the longest deadline.
    wait : int
        With files: seconds to wait for answers before a command ends and says what to carry.

    Returns
    -------
    PublicKey
        The coordinator's public key, for enrollment at the sources.
    """
    _checks.one_of(TRANSPORT_KINDS, transport=transport)
    if not (name.isprintable() and 0 < len(name) <= 100):
        raise ValueError(f"Expected a name of 1 to 100 printable characters, got {name!r}.")
    prepare_folder(folder)
    key = PrivateKey.new()
    key.save(folder / KEY_FILE)
    write_new_text(folder / PUBLIC_KEY_FILE, key.public.text + "\n")
    sources_line = (
        "# min_sources = 2" if min_sources is None else f"min_sources = {min_sources}"
    )
    timeout_line = "# timeout = 120" if timeout is None else f"timeout = {timeout}"
    text = _HEADING.format(
        name=_quoted(name), min_sources=f"{sources_line:<31}", timeout=f"{timeout_line:<31}"
    )
    text += _TRANSPORTS[transport].format(address=address, wait=wait)
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


def read_terms(path: Path) -> tuple[Terms, bytes]:
    """Read terms from a file; return them and the signed bytes."""
    with open_file(path, Limits(file_bytes=MAX_TERMS_BYTES)) as file:
        raw = file.read(MAX_TERMS_BYTES + 1)
    return Terms.unseal(raw, str(path)), raw


def check_compatible(folder: Path, terms: Terms, today: datetime.date | None = None) -> None:
    """Refuse terms that are incompatible with the federation.

    Raises
    ------
    DataError
        If the terms are for another coordinator, are expired, belong to a member, or would
        give a query another meaning than the terms of the members.
    """
    where, public = f"terms of {terms.name}", PrivateKey.read(folder / KEY_FILE).public
    if terms.coordinator != public:
        raise DataError(
            where,
            f"terms for this coordinator ({public.fingerprint})",
            f"terms for another coordinator ({terms.coordinator.fingerprint})",
            "Ask the source to enroll the public key of this federation.",
        )
    if terms.is_expired(today or datetime.datetime.now(datetime.UTC).date()):
        raise DataError(
            where,
            "terms that are not expired",
            f"terms that expired on {terms.expires}",
            "Ask for new terms.",
        )
    for other in read_members(folder):
        _check_pair(where, terms, other)


def add_source(folder: Path, terms: Terms, raw: bytes, *, node_key: Path | None = None) -> Path:
    """Add a source: store its terms and add them to the list.

    Parameters
    ----------
    folder : path
    terms, raw
        As returned by :func:`read_terms`.
    node_key : path, optional
        Public key of the source's node, for Flower.

    Returns
    -------
    path
        The stored terms.
    """
    check_compatible(folder, terms)
    stem = f"{slug(terms.name)}-{terms.source[:6]}"
    stored = folder / f"{stem}.terms"
    lines = ["", "[[sources]]", f"terms = {_quoted(stored.name)}"]
    if node_key is not None:
        with open_file(node_key, Limits(file_bytes=_MAX_LIST_BYTES)) as file:
            public = file.read(_MAX_LIST_BYTES)
        with atomic_file(folder / f"{stem}.pub", force=True) as file:
            file.write(public)
        lines.append(f"node_key = {_quoted(stem + '.pub')}")
    with atomic_file(stored, force=True) as file:
        file.write(raw)
    listing = folder / LIST_FILE
    with translate_os_errors(listing):
        before = listing.read_bytes()
    with atomic_file(listing, force=True) as file:
        file.write(before.rstrip(b"\n") + ("\n".join(["", *lines]) + "\n").encode())
    return stored


def read_members(folder: Path) -> list[Terms]:
    """Terms of all sources of a federation."""
    return [read_terms(folder / str(each.get("terms")))[0] for each in _sources(folder)]


def read_transport_kind(folder: Path) -> TransportKind:
    """Transport of a federation."""
    kind = _table(folder, "transport").get("kind")
    for known in TRANSPORT_KINDS:
        if kind == known:
            return known
    raise _list_error(folder / LIST_FILE, f"a transport of kind {kind!r}"[:80])


def read_node_keys(folder: Path) -> dict[str, Path]:
    """Public keys of the sources' Flower nodes, by id of the source."""
    pairs = zip(read_members(folder), _sources(folder), strict=True)
    return {
        terms.source: folder / str(entry["node_key"])
        for terms, entry in pairs
        if "node_key" in entry
    }


def read_address(folder: Path) -> str:
    """Address of a federation's SuperLink, as ``host:port``."""
    return str(_table(folder, "transport").get("address"))


def history_path(folder: Path) -> Path:
    """Path of the coordinator's history, which may not exist yet."""
    named = _table(folder, "coordinator").get("history")
    return folder / (named if isinstance(named, str) else _HISTORY)


def _check_pair(where: str, terms: Terms, other: Terms) -> None:
    """Check that two sources are different and agree on the meaning of queries."""
    if terms.source == other.source or terms.name == other.name:
        what = "its enrollment" if terms.source == other.source else "a source of that name"
        raise DataError(
            where,
            "a source that is not a member yet",
            f"{what} in the list",
            f"Remove the other source from {LIST_FILE} if this one replaces it. Answers that "
            "were charged stay charged.",
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


def _sources(folder: Path) -> Sequence[dict[str, Any]]:
    """Entries of the sources in the list."""
    sources = read_tables(folder / LIST_FILE).get("sources", [])
    if not isinstance(sources, list) or not all(isinstance(each, dict) for each in sources):
        raise _list_error(folder / LIST_FILE, "sources that are not tables")
    return sources


def _table(folder: Path, name: str) -> dict[str, Any]:
    """A table of the list."""
    table = read_tables(folder / LIST_FILE).get(name)
    if not isinstance(table, dict):
        raise _list_error(folder / LIST_FILE, f"no table [{name}]")
    return table


def read_tables(path: Path) -> dict[str, Any]:
    """Parse a list of sources."""
    with open_file(path, Limits(file_bytes=_MAX_LIST_BYTES)) as file:
        content = file.read(_MAX_LIST_BYTES)
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise _list_error(path, f"invalid TOML: {cause}"[:200]) from cause


def _list_error(path: Path, actual: str) -> DataError:
    """Error for an invalid list of sources."""
    return DataError(
        str(path), "a list as `veracal federation init` writes it", actual, "Correct the file."
    )


def _quoted(text: str) -> str:
    """Quote printable text for TOML."""
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class MemberStatus:
    """A source's status according to the coordinator's history.

    Attributes
    ----------
    terms : Terms
    answered, unknown : int
        Numbers of answers, and of requests without a known outcome, which count as charged.
    spent, left : tuple of (epsilon, delta)
        Of answers and of requests without a known outcome. The source's own ledger is
        authoritative: a refused request was usually not charged, but its answer may have
        missed the deadline.
    head : Head or None
        The last head that the source signed.
    fault : str or None
        Why the source is no longer trusted.
    """

    terms: Terms
    answered: int
    unknown: int
    spent: tuple[float, float]
    left: tuple[float, float]
    head: Head | None
    fault: str | None

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
    sources, path = read_members(folder), history_path(folder)
    if not path.exists():  # a status must not create it
        return [summarize_member(terms, None) for terms in sources]
    with RequestHistory(path, PrivateKey.read(folder / KEY_FILE).public) as history:
        return [summarize_member(terms, history) for terms in sources]


def summarize_member(terms: Terms, history: RequestHistory | None) -> MemberStatus:
    """Status of one source."""
    account = SourceAccount(terms)
    charges = [] if history is None else history.charges(terms.source)
    events = [request.event for request in charges]
    answered = sum(request.state == "answered" for request in charges)
    return MemberStatus(
        terms,
        answered,
        len(charges) - answered,
        account.privacy(events),
        account.left(events),
        None if history is None else history.head(terms.source),
        None if history is None else history.fault(terms.source),
    )
