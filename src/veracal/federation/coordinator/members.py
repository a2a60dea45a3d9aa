"""The folder of a federation: a coordinator's key, and the list of who may be asked.

Who takes part in a federation, and what each has spent as far as the coordinator knows.
"""

import datetime
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from veracal import _checks
from veracal.data import Limits, no_surprises, opened, placed, private_folder, write_new
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
_MOST = 2**20  # bytes of a list

_HEADING = """\
# Who is asked, and how. Paths are relative to this file.

[coordinator]
name = {name}
key = "coordinator.pem"    # private: it signs what is asked
history = "coordinator.history"  # what was asked and answered; keep it
{least}  # how many sources must answer; else all
{timeout}  # seconds to wait in a round; else by the terms

"""
_TRANSPORTS: dict[str, str] = {
    "files": """\
[transport]
kind = "files"
requests = "requests"     # carry what appears here to the sources,
answers = "answers"       # and bring back what they answer
wait = {wait:<4}               # seconds to watch for answers before the command ends
given_up = []             # names of sources that nobody waits for any longer
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
# Sources that answer as one are asked the same query: it must mean the same to each.
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
    carrier: TransportKind = "files",
    address: str = "127.0.0.1:9092",
    least: int | None = None,
    timeout: int | None = None,
    wait: int = 0,
) -> PublicKey:
    """Make the folder of a federation in which nobody takes part yet.

    Parameters
    ----------
    folder : path
        New, or empty.
    name : str
        What the study is called.
    carrier : {"files", "flower"}
        How requests get to sources.
    address : str
        Of the SuperLink, for Flower.
    least : int, optional
        How many sources must answer; by default all.
    timeout : int, optional
        Seconds to wait in a round; by default twice the longest deadline, and a minute.
    wait : int
        With files: seconds to watch for answers before a command ends and says what to carry.

    Returns
    -------
    PublicKey
        The coordinator's, which sources enroll.
    """
    _checks.one_of(TRANSPORT_KINDS, carrier=carrier)
    if not (name.isprintable() and 0 < len(name) <= 100):
        raise ValueError(f"Expected a name of 1 to 100 printable characters, got {name!r}.")
    prepare_folder(folder)
    key = PrivateKey.new()
    key.save(folder / KEY_FILE)
    write_new(folder / PUBLIC_KEY_FILE, key.public.text + "\n")
    text = _HEADING.format(
        name=_quoted(name),
        least=f"{'# least = 2' if least is None else f'least = {least}':<24}",
        timeout=f"{'# timeout = 120' if timeout is None else f'timeout = {timeout}':<24}",
    )
    text += _TRANSPORTS[carrier].format(address=address, wait=wait)
    with placed(folder / LIST_FILE) as file:
        file.write(text.encode())
    return key.public


def prepare_folder(folder: Path) -> Path:
    """A folder that only its owner can enter, and in which nothing is; or raise."""
    with no_surprises(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(
                str(folder), "a new or empty folder", "something there", "Name another."
            )
    return private_folder(folder)


def read_terms(path: Path) -> tuple[Terms, bytes]:
    """Terms in a file, and the bytes that the source signed."""
    with opened(path, Limits(file_bytes=MAX_TERMS_BYTES)) as file:
        raw = file.read(MAX_TERMS_BYTES + 1)
    return Terms.unseal(raw, str(path)), raw


def check_compatible(folder: Path, terms: Terms, today: datetime.date | None = None) -> None:
    """Refuse terms that do not go with those who take part already.

    Raises
    ------
    DataError
        If they were made for another coordinator, are no longer good, take part already or
        would make one query mean two things.
    """
    where, public = f"terms of {terms.name}", PrivateKey.read(folder / KEY_FILE).public
    if terms.coordinator != public:
        raise DataError(
            where,
            f"terms for this coordinator ({public.fingerprint})",
            f"terms for another ({terms.coordinator.fingerprint})",
            "Ask the source to enroll with the public key of this federation.",
        )
    if terms.is_expired(today or datetime.datetime.now(datetime.UTC).date()):
        raise DataError(
            where,
            "terms that are still good",
            f"an end at {terms.expires}",
            "Ask for new ones.",
        )
    for other in read_members(folder):
        _check_pair(where, terms, other)


def add_source(folder: Path, terms: Terms, raw: bytes, *, node_key: Path | None = None) -> Path:
    """Let a source take part: keep its terms, and list them.

    Parameters
    ----------
    folder : path
    terms, raw
        As :func:`read_terms` gives them.
    node_key : path, optional
        Public key of the source's node, for Flower.

    Returns
    -------
    path
        Where the terms are kept.
    """
    check_compatible(folder, terms)
    stem = f"{slug(terms.name)}-{terms.source[:6]}"
    place = folder / f"{stem}.terms"
    lines = ["", "[[sources]]", f"terms = {_quoted(place.name)}"]
    if node_key is not None:
        with opened(node_key, Limits(file_bytes=_MOST)) as file:
            public = file.read(_MOST)
        with placed(folder / f"{stem}.pub", force=True) as file:
            file.write(public)
        lines.append(f"node_key = {_quoted(stem + '.pub')}")
    with placed(place, force=True) as file:
        file.write(raw)
    listing = folder / LIST_FILE
    with no_surprises(listing):
        before = listing.read_bytes()
    with placed(listing, force=True) as file:
        file.write(before.rstrip(b"\n") + ("\n".join(["", *lines]) + "\n").encode())
    return place


def read_members(folder: Path) -> list[Terms]:
    """Terms of everybody who takes part."""
    return [read_terms(folder / str(one.get("terms")))[0] for one in _sources(folder)]


def read_transport_kind(folder: Path) -> TransportKind:
    """How requests get to the sources of a federation."""
    kind = _table(folder, "transport").get("kind")
    for known in TRANSPORT_KINDS:
        if kind == known:
            return known
    raise _wrong(folder, f"a transport of kind {kind!r}"[:80])


def read_node_keys(folder: Path) -> dict[str, Path]:
    """Public keys of the nodes of those who take part over Flower, by id of the source."""
    listed = zip(read_members(folder), _sources(folder), strict=True)
    return {
        terms.source: folder / str(one["node_key"])
        for terms, one in listed
        if "node_key" in one
    }


def read_address(folder: Path) -> str:
    """Where the SuperLink of a federation is, as ``host:port``."""
    return str(_table(folder, "transport").get("address"))


def history_path(folder: Path) -> Path:
    """Where the coordinator's history is, or will be."""
    named = _table(folder, "coordinator").get("history")
    return folder / (named if isinstance(named, str) else _HISTORY)


def _check_pair(where: str, terms: Terms, other: Terms) -> None:
    """Two sources are two, and are asked the same queries."""
    if terms.source == other.source or terms.name == other.name:
        what = "its enrollment" if terms.source == other.source else "one of that name"
        raise DataError(
            where,
            "a source that does not take part yet",
            f"{what} in the list",
            f"Remove the other from {LIST_FILE} if this is to take its place; what was answered "
            "stays paid for.",
        )
    if terms.key == other.key:
        raise DataError(
            where,
            "a source with a key of its own",
            f"the key of {other.name}",
            "One institution takes part once: its records would count twice.",
        )
    for field, words in _SHARED.items():
        if getattr(terms, field) != getattr(other, field):
            raise DataError(
                where,
                f"the same {field} as {other.name}",
                words,
                "Ask the source to enroll with what the others have declared.",
            )


def _sources(folder: Path) -> Sequence[dict[str, Any]]:
    """The sources of the list."""
    listed = _listing(folder).get("sources", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise _wrong(folder, "sources that are no tables")
    return listed


def _table(folder: Path, name: str) -> dict[str, Any]:
    """A table of the list."""
    found = _listing(folder).get(name)
    if not isinstance(found, dict):
        raise _wrong(folder, f"no table [{name}]")
    return found


def _listing(folder: Path) -> dict[str, Any]:
    """The list as it stands in its file."""
    return read_tables(folder / LIST_FILE)


def read_tables(path: Path) -> dict[str, Any]:
    """A list of sources as it is written, wherever it is."""
    with opened(path, Limits(file_bytes=_MOST)) as file:
        content = file.read(_MOST)
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise _list_error(path, f"no TOML: {cause}"[:200]) from cause


def _wrong(folder: Path, found: str) -> DataError:
    """Error for the list of a federation that cannot be read."""
    return _list_error(folder / LIST_FILE, found)


def _list_error(path: Path, found: str) -> DataError:
    """Error for a list that cannot be read."""
    return DataError(
        str(path), "a list as `veracal federation init` makes it", found, "Correct it."
    )


def _quoted(text: str) -> str:
    """Printable text as TOML writes it."""
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class MemberStatus:
    """A source, as its coordinator's history knows it.

    Attributes
    ----------
    terms : Terms
    answered, unknown : int
        Answers that have come, and requests whose fate is not known: they count as charged.
    spent, left : tuple of (epsilon, delta)
        Of what was answered, or may have been. The source's own ledger decides: one that
        refused has as a rule charged nothing, but its answer may have come too late.
    head : Head or None
        The last that it has signed.
    fault : str or None
        Why it is not believed any more.
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
        """Entries that the source's ledger has, and that this history knows nothing of."""
        return 0 if self.head is None else max(0, self.head.index - self.answered)

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
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
    """Everybody who takes part."""
    sources, place = read_members(folder), history_path(folder)
    if not place.exists():  # looking makes no history
        return [summarize_member(terms, None) for terms in sources]
    with RequestHistory(place, PrivateKey.read(folder / KEY_FILE).public) as history:
        return [summarize_member(terms, history) for terms in sources]


def summarize_member(terms: Terms, history: RequestHistory | None) -> MemberStatus:
    """One source."""
    account = SourceAccount(terms)
    charges = [] if history is None else history.charges(terms.source)
    events = [sent.event for sent in charges]
    answered = sum(sent.state == "answered" for sent in charges)
    return MemberStatus(
        terms,
        answered,
        len(charges) - answered,
        account.privacy(events),
        account.left(events),
        None if history is None else history.head(terms.source),
        None if history is None else history.fault(terms.source),
    )
