"""Pools: several sources that answer as one by the sum of their answers, with dropout."""

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard, runtime_checkable

from veracal import _checks
from veracal._types import Frozen
from veracal.accounting import DiscreteGaussian, DiscreteLaplace, Event, Parallel
from veracal.errors import AnswerError, BudgetError, DropoutError, LedgerError
from veracal.queries.curator import Curator
from veracal.queries.query import NonAdditive, Query
from veracal.queries.response_checks import QueryRequest, find_invalid_responses
from veracal.queries.sources import GaussianSource, Release, Source, is_declared

Path = tuple[int, ...]  # to a source: its index in the pool, then in the inner pool, ...
INVALID_RESPONSE = "its answer is invalid"


@dataclass(frozen=True)
class SkippedSource:
    """Replaces the answer of a source that dropped out before, with the reason."""

    why: str


DROPOUT_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (BudgetError, "its budget does not allow the answer"),
    (AnswerError, "it could not compute the answer"),
    (DropoutError, "it did not answer"),
    (LedgerError, "its ledger cannot be used"),
    (TimeoutError, "it did not answer in time"),
    (OSError, "it could not be reached"),
)
_IS_MULTI_SOURCE: "weakref.WeakKeyDictionary[type, bool]" = weakref.WeakKeyDictionary()
_MAX_NAMED = 5  # dropped sources that an error lists


@dataclass(frozen=True)
class PooledRelease(Release):
    """The sum of the answers of several sources.

    The fields of :class:`Release` refer to the sources that answered: their sum, its noise.

    Attributes
    ----------
    parts : tuple of (Release or None)
        The answers, in the order of the sources; None for a source that dropped out.
    silences : tuple of (str or None)
        Why each source dropped out; None for one that answered.
    asked : mapping of path to Event
        The event requested from each single source, which may have charged it whether or not
        it answered. A path is the index of a source, followed by an index inside it if it is a
        pool. Sources that were not queried, or hold public records, are omitted.
    """

    parts: tuple[Release | None, ...] = field(default=(), repr=False)
    silences: tuple[str | None, ...] = field(default=(), repr=False)
    asked: Mapping[Path, Event] = field(default_factory=Frozen, repr=False)

    def without(self, silent: Mapping[Path, str]) -> "PooledRelease":
        """The same answer as a sum over fewer sources; ``asked`` is unchanged.

        Guarantees
        ----------
        It is computed from released parts alone, so it costs nothing.
        """
        if not silent:
            return self
        within = group_by_source(silent)
        kept = [
            None if part is None or (i,) in silent else _without(part, within.get(i, {}))
            for i, part in enumerate(self.parts)
        ]
        why = tuple(silent.get((i,), reason) for i, reason in enumerate(self.silences))
        if not any(part is not None for part in kept):
            raise DropoutError("Expected at least one source to answer, got none.", why)
        return _sum(self, kept, why, self.asked)

    def silent(self) -> dict[Path, str]:
        """The sources that dropped out, with the reasons, including those of inner pools."""
        reasons = dict[Path, str]()
        reasons |= {(i,): why for i, why in enumerate(self.silences) if why is not None}
        for i, part in enumerate(self.parts):
            if isinstance(part, PooledRelease):
                reasons |= {(i, *path): why for path, why in part.silent().items()}
        return reasons


@runtime_checkable
class MultiSource(Source, Protocol):
    """A source that consists of several, and returns the answer of each."""

    def round(
        self,
        expected: QueryRequest,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all but those that were silent before."""

    def paths(self) -> list[Path]:
        """Paths of the single sources."""


@runtime_checkable
class IndexedSources(MultiSource, Protocol):
    """A multi-source whose members are accessible."""

    @property
    def least(self) -> int | None:
        """Minimum number of sources that must answer; all if None."""

    def members(self) -> Sequence[object]:
        """The sources, in order."""


class RoundBasedSource(ABC):
    """Base class of multi-sources, which answer a query by one round with all sources."""

    @abstractmethod
    def round(
        self,
        expected: QueryRequest,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all but those that were silent before."""

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> PooledRelease:
        """Query every source, and add the answers."""
        _checks.whole(micro_epsilon=micro_epsilon)
        return self.round(
            QueryRequest(query, micro_epsilon=int(micro_epsilon)), request=request
        )

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> PooledRelease:
        """Query every source with Gaussian noise, and add the answers."""
        return self.round(
            QueryRequest(query, noise_multiplier=noise_multiplier), request=request
        )


def is_multi_source(source: object) -> TypeGuard[MultiSource]:
    """Whether a source is a multi-source; cached by class, since the check is slow."""
    kind = type(source)
    if kind not in _IS_MULTI_SOURCE:
        _IS_MULTI_SOURCE[kind] = issubclass(kind, MultiSource)
    return _IS_MULTI_SOURCE[kind]


def is_pool(source: object) -> TypeGuard[IndexedSources]:
    """Whether a source is a multi-source with accessible members."""
    return is_multi_source(source) and isinstance(source, IndexedSources)


def combine_answers(
    expected: QueryRequest,
    given: Sequence[object],
    sources: Sequence[object],
    *,
    least: int | None,
    most_records: int | None,
    silent: Mapping[Path, str],
) -> PooledRelease:
    """Remove invalid answers, check that enough remain, and add them.

    Parameters
    ----------
    expected : ExpectedResponse
    given : sequence of object
        For each source its answer, its error, or a :class:`SkippedSource`.
    sources : sequence of Source or ProtectionOnly
    least, most_records
        As in :class:`~veracal.queries.Pool`.
    silent : mapping of path to str
        The sources that were not queried.
    """
    parts = [one if isinstance(one, Release) else None for one in given]
    why = [None if isinstance(one, Release) else _dropout_reason(one) for one in given]
    single = {  # a pool has validated its own answers
        i: part
        for i, part in enumerate(parts)
        if part is not None and not is_multi_source(sources[i])
    }
    for i, fault in find_invalid_responses(expected, single, sources, most_records).items():
        parts[i], why[i] = None, f"{INVALID_RESPONSE}: {fault}"
    check_quorum(why, least, next((one for one in given if isinstance(one, Exception)), None))
    asked, usual, within = (
        dict[Path, Event](),
        _most_expensive_event(parts),
        group_by_source(silent),
    )
    for i, (one, source) in enumerate(zip(given, sources, strict=True)):
        if not isinstance(one, SkippedSource):
            asked |= _requested_events(expected, source, parts[i], usual, i, within.get(i, {}))
    return _sum(expected, parts, tuple(why), Frozen(asked))


def check_additive(query: Query) -> None:
    """Raise if the answers of several sources to a query cannot be added."""
    if isinstance(query, NonAdditive):
        raise ValueError(
            f"Expected a sum over records, got {query.name!r}, for which answers of several "
            "sources cannot be added. Query each source separately, or use sums."
        )


def check_quorum(
    silences: Sequence[str | None], least: int | None, cause: Exception | None = None
) -> None:
    """Raise unless enough sources answered: ``least`` of them, or all."""
    needed = len(silences) if least is None else least
    silent = [(i, why) for i, why in enumerate(silences) if why is not None]
    left = len(silences) - len(silent)
    if left >= needed:
        return
    names = "; ".join(f"source {i}: {why}" for i, why in silent[:_MAX_NAMED])
    more = "" if len(silent) <= _MAX_NAMED else f"; and {len(silent) - _MAX_NAMED} more"
    raise DropoutError(
        f"Expected answers of at least {needed} of {len(silences)} sources, got {left} "
        f"({names}{more}). Charges are not refunded. Repeat the query once they answer, or "
        "require fewer sources.",
        tuple(silences),
    ) from cause


def _dropout_reason(one: object) -> str:
    """Why a source dropped out, in words that do not depend on records."""
    if isinstance(one, SkippedSource):
        return one.why
    reasons = (reason for kind, reason in DROPOUT_REASONS if isinstance(one, kind))
    return next(reasons, f"{INVALID_RESPONSE}: it is not a release")


def group_by_source(silent: Mapping[Path, str]) -> dict[int, dict[Path, str]]:
    """The dropped sources inside each inner pool."""
    groups = dict[int, dict[Path, str]]()
    for path, why in silent.items():
        if len(path) > 1:
            groups.setdefault(path[0], {})[path[1:]] = why
    return groups


def _most_expensive_event(parts: Iterable[Release | None]) -> Event | None:
    """The event with the least noise among the answers, which costs most."""
    events = {
        event
        for part in parts
        if part is not None
        for event in (part.asked.values() if isinstance(part, PooledRelease) else [part.event])
    }
    noises = [one for one in events if isinstance(one, DiscreteLaplace | DiscreteGaussian)]
    return min(noises, key=lambda one: one.noise, default=None)


def _requested_events(
    expected: QueryRequest,
    source: object,
    part: Release | None,
    usual: Event | None,
    i: int,
    silent: Mapping[Path, str],
) -> dict[Path, Event]:
    """The events requested from a source: those of its answer, or those of other sources."""
    if isinstance(part, PooledRelease):
        return {(i, *path): event for path, event in part.asked.items()}
    if part is not None:
        return {} if part.event is None else {(i,): part.event}
    if is_pool(source):
        within = group_by_source(silent)
        events = dict[Path, Event]()
        for j, one in enumerate(source.members()):
            if (j,) not in silent:
                events |= _requested_events(expected, one, None, usual, j, within.get(j, {}))
        return {(i, *path): event for path, event in events.items()}
    event = expected.event_of(source) or usual
    paths = source.paths() if is_multi_source(source) else [()]
    return {} if event is None else {(i, *path): event for path in paths}


def _without(part: Release, silent: Mapping[Path, str]) -> Release:
    """An answer without some of the sources inside it."""
    return part.without(silent) if isinstance(part, PooledRelease) else part


def _sum(
    expected: QueryRequest | PooledRelease,
    parts: Sequence[Release | None],
    silences: tuple[str | None, ...],
    asked: Mapping[Path, Event],
) -> PooledRelease:
    """The sum of several answers, with their costs."""
    answers = [part for part in parts if part is not None]
    events = tuple(a.event for a in answers if a.event is not None)
    name = expected.query if isinstance(expected, PooledRelease) else expected.query.name
    costs = [a.micro_epsilon for a in answers]
    pure = all(cost is not None for cost in costs)
    return PooledRelease(
        name,
        tuple(sum(entry) for entry in zip(*(a.units for a in answers), strict=True)),
        answers[0].grid,
        math.hypot(*(a.noise_std for a in answers)),
        max(cost or 0 for cost in costs) if pure else None,
        Parallel(events) if events else None,
        private=all(a.private for a in answers),
        parts=tuple(parts),
        silences=silences,
        asked=asked,
    )


@dataclass(frozen=True, eq=False)
class Pool(RoundBasedSource):
    r"""Several sources that answer as one, by the sum of their answers.

    Each source adds its own noise and charges its own ledger the full ``micro_epsilon``.

    Parameters
    ----------
    sources : iterable of Source
        A source may itself be a pool.
    least : int, optional
        Minimum number of sources that must answer. The others may *drop out*: lack the budget,
        fail, be unreachable, or give an invalid answer. Without it all must answer, and the
        first dropout raises.
    most_records : int, optional
        *Declared* maximum number of records of a source. An answer larger than this number of
        records and noise allow is invalid. Without it only impossible totals are invalid.

    Guarantees
    ----------
    If no unit has records at two sources, each unit pays ``micro_epsilon`` once. A unit with
    records at several sources pays at each of them. Replacing a record means replacing it
    within its source; moving a record between sources costs both. The charge of a source is not
    refunded, whether or not its answer is used, and a repeated query returns the same answer.

    The validity of answers is determined from released answers and public numbers alone
    (:mod:`veracal.queries.response_checks`), so it costs nothing. A valid answer is rejected
    with probability below :math:`2^{-40}`. That a source rejects a query, fails or is late is
    visible without noise, so none of this may depend on its records: a :class:`Curator` rejects
    by its ledger alone, but its running time is not covered.
    """

    sources: Iterable[Source]
    least: int | None = None
    most_records: int | None = None

    def __post_init__(self) -> None:
        sources = tuple(self.sources)
        if not sources or len({id(source) for source in sources}) < len(sources):
            raise ValueError(f"Expected different sources, at least one, got {sources!r}.")
        object.__setattr__(self, "sources", sources)
        _check_distinct(sources)
        counts = range(1, len(sources) + 1)
        if self.least is not None and (self.least is True or self.least not in counts):
            raise ValueError(
                f"Expected least to be a number of sources from 1 to {len(sources)}, got "
                f"least={self.least!r}."
            )
        if self.most_records is not None:
            _checks.whole(most_records=self.most_records, least=0)

    def round(
        self,
        expected: QueryRequest,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Query all sources except those that dropped out before.

        Parameters
        ----------
        expected : ExpectedResponse
        request : str, optional
        silent : mapping of path to reason, optional
            The sources that are not queried, with the reasons. A path is the index of a source,
            followed by an index inside it if it is a pool.

        Raises
        ------
        DropoutError
            If fewer than ``least`` answered.
        """
        self._check(expected)
        silent = silent or {}
        within = group_by_source(silent)
        given = [
            SkippedSource(silent[i,])
            if (i,) in silent
            else self._one(expected, source, _source_request_id(request, i), within.get(i, {}))
            for i, source in enumerate(self.sources)
        ]
        return combine_answers(
            expected,
            given,
            tuple(self.sources),
            least=self.least,
            most_records=self.most_records,
            silent=silent,
        )

    def paths(self) -> list[Path]:
        """Paths of the single sources."""
        return [
            (i, *path)
            for i, source in enumerate(self.sources)
            for path in (source.paths() if is_multi_source(source) else [()])
        ]

    def members(self) -> Sequence[Source]:
        """The sources, in order."""
        return tuple(self.sources)

    def _check(self, expected: QueryRequest) -> None:
        """Raise if a query cannot be answered by this pool, before anything is charged."""
        check_additive(expected.query)
        gaussian = expected.noise_multiplier is not None
        if gaussian and not all(isinstance(one, GaussianSource) for one in self.sources):
            raise ValueError(
                "Expected sources that all support Gaussian noise, got one that does not. Use "
                "Laplace noise, or remove the source."
            )

    def _one(
        self,
        expected: QueryRequest,
        source: Source,
        request: str | None,
        silent: Mapping[Path, str],
    ) -> object:
        """The answer of one source, or its error."""
        try:
            if is_multi_source(source):
                return source.round(expected, request=request, silent=silent)
            return expected.of(source, request)
        except tuple(kind for kind, _ in DROPOUT_REASONS) as error:
            if self.least is None:
                raise
            return error


def _check_distinct(sources: Iterable[object]) -> None:
    """Raise unless the sources are distinct and have the same relation.

    This is checked before anything is charged. Two answers from one ledger are identical,
    including their noise, and answers under two relations have no common guarantee.
    """
    single = list(_single_sources(sources))
    for one in single:
        if not callable(getattr(one, "answer", None)):
            raise ValueError(
                f"Expected sources, got {type(one).__name__}. Use Curator(scores, ledger) for "
                "private scores, or Public(scores) for public ones."
            )
    holders = [one for one in single if isinstance(one, Curator)]
    accounts = {(one.ledger.path.resolve(), one.partition) for one in holders}
    if len({id(one) for one in single}) < len(single) or len(accounts) < len(holders):
        raise ValueError(
            "Expected different sources, each with its own ledger or partition of a ledger, "
            "got "
            "two that share one. Open a ledger for each."
        )
    if len({one.relation for one in single if is_declared(one)}) > 1:
        raise ValueError(
            "Expected sources with one neighboring relation, got add-remove and replace-one. "
            "Remove the sources of one relation: together they have no common guarantee."
        )


def _single_sources(sources: Iterable[object]) -> Iterator[object]:
    """The single sources, including those in inner pools."""
    for one in sources:
        if isinstance(one, Pool):
            yield from _single_sources(one.sources)
        else:
            yield one


def _source_request_id(request: str | None, i: int) -> str | None:
    """Request id for one of several sources."""
    return None if request is None else f"{request}/{i}"
