"""The list of sources and their transport: a TOML file that the coordinator edits."""

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

_HELP = "Correct the file. `veracal federation init` writes a template."
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


@dataclass(frozen=True)
class ListedSource:
    """A source in the list.

    Attributes
    ----------
    terms : Terms
    settings : mapping of str to str
        Settings of the transport for this source.
    """

    terms: Terms
    settings: Mapping[str, str]


@dataclass(frozen=True)
class SourceList:
    """The sources of a federation and their transport.

    Attributes
    ----------
    path : path
        The file; paths in it are relative to its folder.
    name : str
        Name of the study.
    key, history : path
    min_sources : int or None
        Number of sources that must answer; None for all.
    timeout : float or None
        Seconds to wait in a round.
    transport : mapping
        Its kind and its settings.
    sources : tuple of ListedSource
    """

    path: Path
    name: str
    key: Path
    history: Path
    min_sources: int | None
    timeout: float | None
    transport: Mapping[str, Any]
    sources: tuple[ListedSource, ...]

    @property
    def terms(self) -> tuple[Terms, ...]:
        """Terms of every source."""
        return tuple(source.terms for source in self.sources)

    def resolve(self, name: str) -> Path:
        """Resolve a path of the file, relative to its folder."""
        return self.path.parent / name

    def with_wait(self, wait: float | None, given_up: Sequence[str]) -> "SourceList":
        """Replace how long to wait for files, and for which sources.

        Raises
        ------
        ValueError
            If the transport is not ``"files"``.
        """
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


def read_source_list(path: Path) -> SourceList:
    """Read a list of sources.

    Raises
    ------
    DataError
        If a field is missing, unknown or of the wrong type, or terms cannot be read.
    """
    tables = read_tables(path)
    _check(
        tables, {"coordinator": dict, "transport": dict, "sources": list}, {}, path, "the list"
    )
    settings = _check(tables["coordinator"], _REQUIRED, _OPTIONAL, path, "[coordinator]")
    transport, per_source = _read_transport(tables["transport"], path)
    if not tables["sources"]:
        raise _list_error(path, "[[sources]]", "one source or more", "none")
    sources = []
    for table in tables["sources"]:
        entry = _check(table, {"terms": str, **per_source}, {}, path, "[[sources]]")
        terms, _ = read_terms(path.parent / entry["terms"])
        sources.append(ListedSource(terms, Frozen({name: entry[name] for name in per_source})))
    folder = path.parent
    return SourceList(
        path,
        settings["name"],
        folder / settings["key"],
        folder / settings["history"],
        settings.get("min_sources"),
        settings.get("timeout"),
        transport,
        tuple(sources),
    )


class ConfiguredTransport:
    """The transport of a list of sources, opened when the first request is sent.

    Plans, and rounds whose answers are all in the history, need no connection. Use it in a
    ``with`` block.

    Parameters
    ----------
    source_list : SourceList
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
        """Carry requests, as of :class:`~veracal.federation.transports.base.Transport`."""
        if self._open is None:
            self._open = self._stack.enter_context(open_transport(self._source_list))
        yield from self._open.exchange(requests, timeout=timeout)


@contextmanager
def open_transport(source_list: SourceList) -> Iterator[Transport]:
    """Open the transport of a list of sources."""
    settings, resolve = source_list.transport, source_list.resolve
    if settings["kind"] == "local":
        servers = {
            source.terms.source: open_source(
                resolve(source.settings["folder"]), source.terms.source
            ).answer
            for source in source_list.sources
        }
        yield LocalTransport(servers)
    elif settings["kind"] == "files":
        yield FilesTransport(
            resolve(settings["requests"]),
            resolve(settings["answers"]),
            source_list.terms,
            wait=float(settings["wait"]),
            given_up=settings["given_up"],
        )
    else:
        # Flower takes a second to import, and may not be installed.
        from veracal.federation.flower.transport import FlowerTransport

        nodes = {
            source.terms.source: resolve(source.settings["node_key"])
            for source in source_list.sources
        }
        with FlowerTransport(
            settings["address"],
            ca=resolve(settings["ca"]),
            secret=resolve(settings["secret"]),
            nodes=nodes,
            home=resolve(settings["home"]),
        ) as transport:
            yield transport


def _read_transport(
    table: dict[str, Any], path: Path
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Settings of the transport, and the types of its settings for each source."""
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _TRANSPORTS:
        raise _list_error(path, "kind of [transport]", ", ".join(_TRANSPORTS), repr(kind)[:80])
    settings, per_source = _TRANSPORTS[kind]
    optional = {name: types for name, types in settings.items() if name in _DEFAULTS}
    required = {name: types for name, types in settings.items() if name not in _DEFAULTS}
    _check(table, {"kind": str, **required}, optional, path, "[transport]")
    return Frozen({**{name: _DEFAULTS[name] for name in optional}, **table}), per_source


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
            raise _list_error(
                path, f"{name} of {where}", "another type of value", repr(value)[:80]
            )
    return table


def _list_error(path: Path, where: str, expected: str, actual: str) -> DataError:
    """Error for an invalid list of sources."""
    return DataError(f"{path}: {where}", expected, actual, _HELP)
