"""The list of who is asked, and how: a small file that a coordinator's owner writes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from veracal._types import Frozen
from veracal.errors import DataError
from veracal.federation.coordinator.members import read_tables, read_terms
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.serving import open_source
from veracal.federation.transports.base import LocalTransport, Transport
from veracal.federation.transports.files import FilesTransport

_HELP = "Correct the file; `veracal federation init` makes one to start from."
_COORDINATOR = {"name": str, "key": str, "history": str}
_ALSO = {"least": int, "timeout": (int, float)}
# What each transport is told, and what it is told of each source.
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
_MAY_LACK = {"wait": 0, "given_up": []}


@dataclass(frozen=True)
class ListedSource:
    """A source of the list.

    Attributes
    ----------
    terms : Terms
    told : mapping of str to str
        What the transport has to know of it.
    """

    terms: Terms
    told: Mapping[str, str]


@dataclass(frozen=True)
class SourceList:
    """Who is asked, and how.

    Attributes
    ----------
    path : path
        The file; paths in it are relative to its folder.
    name : str
        What the study is called.
    key, history : path
    least : int or None
        How many sources must answer; all if None.
    timeout : float or None
        Seconds to wait in a round.
    transport : mapping
        Its kind, and what else it is told.
    sources : tuple of Listed
    """

    path: Path
    name: str
    key: Path
    history: Path
    least: int | None
    timeout: float | None
    transport: Mapping[str, Any]
    sources: tuple[ListedSource, ...]

    @property
    def terms(self) -> tuple[Terms, ...]:
        """What each source has declared."""
        return tuple(one.terms for one in self.sources)

    def place(self, name: str) -> Path:
        """A path of the file."""
        return self.path.parent / name

    def waiting(self, wait: float | None, given_up: Sequence[str]) -> "SourceList":
        """The same, with another patience for files that are carried.

        Raises
        ------
        ValueError
            If nothing is carried.
        """
        if wait is None and not given_up:
            return self
        if self.transport["kind"] != "files":
            raise ValueError(
                "Expected a federation by files, for which one can wait or give up a source, "
                f"got one of kind {self.transport['kind']!r}. Leave that out."
            )
        also: dict[str, Any] = {"given_up": [*self.transport["given_up"], *given_up]}
        also |= {} if wait is None else {"wait": wait}
        return replace(self, transport=Frozen({**self.transport, **also}))


def read_listing(path: Path) -> SourceList:
    """Read a list of sources.

    Raises
    ------
    DataError
        For whatever is missing, unknown or of another kind, and for terms that cannot be read.
    """
    told = read_tables(path)
    _check(told, {"coordinator": dict, "transport": dict, "sources": list}, {}, path, "it")
    about = _check(told["coordinator"], _COORDINATOR, _ALSO, path, "[coordinator]")
    transport, each = _transport(told["transport"], path)
    if not told["sources"]:
        raise _wrong(path, "[[sources]]", "one source or more", "none")
    folder = path.parent
    return SourceList(
        path,
        about["name"],
        folder / about["key"],
        folder / about["history"],
        about.get("least"),
        about.get("timeout"),
        transport,
        tuple(_source(one, each, path) for one in told["sources"]),
    )


class ConfiguredTransport:
    """The way to the sources of a list, opened when the first request is sent.

    Whoever plans, or gets all answers from the history, needs no network. Use it in a ``with``
    block.

    Parameters
    ----------
    listing : Listing
    """

    def __init__(self, listing: SourceList) -> None:
        self._listing, self._stack = listing, ExitStack()
        self._open: Transport | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
        self._open = None

    @property
    def by_hand(self) -> bool:
        """Whether somebody has to carry each request."""
        return bool(self._listing.transport["kind"] == "files")

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Carry requests, as of :class:`~veracal.federation.transports.base.Transport`."""
        if self._open is None:
            self._open = self._stack.enter_context(open_transport(self._listing))
        yield from self._open.exchange(requests, timeout=timeout)


@contextmanager
def open_transport(listing: SourceList) -> Iterator[Transport]:
    """The way to the sources, open while it is used."""
    told = listing.transport
    if told["kind"] == "local":
        servers = {
            one.terms.source: open_source(
                listing.place(one.told["folder"]), one.terms.source
            ).answer
            for one in listing.sources
        }
        yield LocalTransport(servers)
    elif told["kind"] == "files":
        yield FilesTransport(
            listing.place(told["requests"]),
            listing.place(told["answers"]),
            listing.terms,
            wait=float(told["wait"]),
            given_up=told["given_up"],
        )
    else:
        # Flower takes a second to import, and may not be installed.
        from veracal.federation.flower.transport import FlowerTransport

        nodes = {
            one.terms.source: listing.place(one.told["node_key"]) for one in listing.sources
        }
        with FlowerTransport(
            told["address"],
            ca=listing.place(told["ca"]),
            secret=listing.place(told["secret"]),
            nodes=nodes,
            home=listing.place(told["home"]),
        ) as transport:
            yield transport


def _transport(told: dict[str, Any], path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What the transport is told, and what it has to be told of each source."""
    kind = told.get("kind")
    if not isinstance(kind, str) or kind not in _TRANSPORTS:
        raise _wrong(path, "kind of [transport]", ", ".join(_TRANSPORTS), repr(kind)[:80])
    whole, each = _TRANSPORTS[kind]
    may = {name: kinds for name, kinds in whole.items() if name in _MAY_LACK}
    must = {name: kinds for name, kinds in whole.items() if name not in _MAY_LACK}
    _check(told, {"kind": str, **must}, may, path, "[transport]")
    lacking = {name: _MAY_LACK[name] for name in may}
    return Frozen({**lacking, **told}), each


def _source(told: Any, each: Mapping[str, Any], path: Path) -> ListedSource:
    """One source of the list."""
    known = _check(told, {"terms": str, **each}, {}, path, "[[sources]]")
    terms, _ = read_terms(path.parent / known["terms"])
    return ListedSource(terms, Frozen({name: known[name] for name in each}))


def _check(
    told: Any, must: Mapping[str, Any], may: Mapping[str, Any], path: Path, where: str
) -> dict[str, Any]:
    """A table with all fields that it must have, and none that it may not have."""
    if not isinstance(told, dict):
        raise _wrong(path, where, "a table", type(told).__name__)
    missing, odd = must.keys() - told.keys(), told.keys() - must.keys() - may.keys()
    if missing or odd:
        found = f"no {min(missing)!r}" if missing else f"{min(odd)!r}"[:80]
        raise _wrong(path, where, f"{', '.join([*must, *may])} and nothing else", found)
    for name, kinds in {**must, **may}.items():
        value = told.get(name)
        if name in told and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise _wrong(path, f"{name} of {where}", "another kind of value", repr(value)[:80])
    return told


def _wrong(path: Path, where: str, expected: str, found: str) -> DataError:
    """Error for a list that is not as it should be."""
    return DataError(f"{path}: {where}", expected, found, _HELP)
