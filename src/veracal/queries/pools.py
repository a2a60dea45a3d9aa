r"""Pools: several sources that answer as one by the sum of their answers, with dropout.

Sources need not be trusted. An answer is checked against public facts: the query, the requested
noise, and the largest sum that records and noise can produce.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from veracal import _checks
from veracal._types import Frozen
from veracal.accounting import (
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Parallel,
    Relation,
    Unit,
)
from veracal.errors import AnswerError, BudgetError, DropoutError, LedgerError
from veracal.mechanisms import MAX_TOTAL
from veracal.queries.curator import Curator
from veracal.queries.query import NonAdditive, Query
from veracal.queries.sources import (
    GaussianSource,
    Public,
    QueryRequest,
    Release,
    Source,
    is_declared,
    noise_std,
)

Path = tuple[int, ...]  # to a source: its index in the pool, then in the inner pool, ...
INVALID_RESPONSE = "its answer is invalid"
_DROPOUT_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (BudgetError, "its budget does not allow the answer"),
    (AnswerError, "it could not compute the answer"),
    (DropoutError, "it did not answer"),
    (LedgerError, "its ledger cannot be used"),
    (TimeoutError, "it did not answer in time"),
    (OSError, "it could not be reached"),
)
_MAX_NAMED = 5  # dropped sources that an error lists
_NEGATIVE_LOG_TAIL = 40 * math.log(2)  # valid answers are rejected with probability < 2^-40


@dataclass(frozen=True)
class SkippedSource:
    """Replaces the answer of a source that dropped out before, with the reason."""

    reason: str


@dataclass(frozen=True)
class ProtectionOnly:
    """Represents a source by its unit and relation alone."""

    relation: Relation
    unit: Unit


@dataclass(frozen=True)
class PooledRelease(Release):
    """The sum of the answers of several sources.

    The fields of :class:`Release` refer to the sources that answered: their sum, its noise.

    Attributes
    ----------
    parts : tuple of (Release or None)
        The answers, in the order of the sources; None for a source that dropped out.
    dropouts : tuple of (str or None)
        Why each source dropped out; None for one that answered.
    requested : mapping of path to Event
        The event requested from each single source, which may have charged it whether or not
        it answered. A path is the index of a source, followed by an index inside it if it is a
        pool. Sources that were not queried, or hold public records, are omitted.
    """

    parts: tuple[Release | None, ...] = field(default=(), repr=False)
    dropouts: tuple[str | None, ...] = field(default=(), repr=False)
    requested: Mapping[Path, Event] = field(default_factory=Frozen, repr=False)

    def without(self, dropped: Mapping[Path, str]) -> "PooledRelease":
        """The same answer as a sum over fewer sources; ``requested`` is unchanged.

        Guarantees
        ----------
        It is computed from released parts alone, so it costs nothing.
        """
        if not dropped:
            return self
        within = _group_by_source(dropped)
        kept = list(self.parts)
        for i, part in enumerate(self.parts):
            if (i,) in dropped:
                kept[i] = None
            elif isinstance(part, PooledRelease):
                kept[i] = part.without(within.get(i, {}))
        reasons = tuple(dropped.get((i,), reason) for i, reason in enumerate(self.dropouts))
        if not any(part is not None for part in kept):
            raise DropoutError("Expected at least one source to answer, got none.", reasons)
        return _sum(self.query, kept, reasons, self.requested)

    def dropped(self) -> dict[Path, str]:
        """The sources that dropped out, with the reasons, including those of inner pools."""
        reasons = dict[Path, str]()
        reasons |= {(i,): why for i, why in enumerate(self.dropouts) if why is not None}
        for i, part in enumerate(self.parts):
            if isinstance(part, PooledRelease):
                reasons |= {(i, *path): why for path, why in part.dropped().items()}
        return reasons


class MultiSource(ABC):
    """Base class of sources that consist of several, and return the answer of each.

    Attributes
    ----------
    min_sources : int or None
        Minimum number of sources that must answer; all if None.
    """

    min_sources: int | None = None

    @abstractmethod
    def round(
        self,
        query_request: QueryRequest,
        *,
        request: str | None = None,
        dropped: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Query all sources except those that dropped out before."""

    @abstractmethod
    def paths(self) -> list[Path]:
        """Paths of the single sources."""

    def members(self) -> Sequence[object]:
        """The sources in order, if they are accessible; otherwise none."""
        return ()

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> PooledRelease:
        """Query every source, and add the answers."""
        return self.round(QueryRequest(query, micro_epsilon), request=request)

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> PooledRelease:
        """Query every source with Gaussian noise, and add the answers."""
        return self.round(
            QueryRequest(query, noise_multiplier=noise_multiplier), request=request
        )


@dataclass(frozen=True, eq=False)
class Pool(MultiSource):
    r"""Several sources that answer as one, by the sum of their answers.

    Each source adds its own noise and charges its own ledger the full ``micro_epsilon``.

    Parameters
    ----------
    sources : iterable of Source
        A source may itself be a pool.
    min_sources : int, optional
        Minimum number of sources that must answer. The others may *drop out*: lack the budget,
        fail, be unreachable, or give an invalid answer. Without it all must answer, and the
        first dropout raises.
    max_records : int, optional
        *Declared* maximum number of records of a source. An answer larger than this number of
        records and noise allow is invalid. Without it only impossible totals are invalid.

    Guarantees
    ----------
    If no unit has records at two sources, each unit pays ``micro_epsilon`` once. A unit with
    records at several sources pays at each of them. Replacing a record means replacing it
    within its source; moving a record between sources costs both. The charge of a source is not
    refunded, whether or not its answer is used, and a repeated query returns the same answer.

    The validity of answers is determined from released answers and public numbers alone
    (:func:`find_invalid_responses`), so it costs nothing. A valid answer is rejected with
    probability below :math:`2^{-40}`. That a source rejects a query, fails or is late is
    visible without noise, so none of this may depend on its records: a :class:`Curator` rejects
    by its ledger alone, but its running time is not covered.
    """

    sources: Iterable[Source]
    min_sources: int | None = None
    max_records: int | None = None

    def __post_init__(self) -> None:
        sources = tuple(self.sources)
        if not sources or len({id(source) for source in sources}) < len(sources):
            raise ValueError(f"Expected different sources, at least one, got {sources!r}.")
        object.__setattr__(self, "sources", sources)
        _check_distinct(sources)
        if self.min_sources is not None:
            check_min_sources(self.min_sources, len(sources))
        if self.max_records is not None:
            _checks.whole(max_records=self.max_records, least=0)

    def round(
        self,
        query_request: QueryRequest,
        *,
        request: str | None = None,
        dropped: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Query all sources except those that dropped out before.

        Parameters
        ----------
        request : str, optional
            Id of the request, from which those of the sources are derived.
        dropped : mapping of path to reason, optional
            The sources that are not queried, with the reasons. A path is the index of a source,
            followed by an index inside it if it is a pool.

        Raises
        ------
        DropoutError
            If fewer than ``min_sources`` answered.
        """
        check_additive(query_request.query)
        gaussian = query_request.noise_multiplier is not None
        if gaussian and not all(isinstance(one, GaussianSource) for one in self.sources):
            raise ValueError(
                "Expected sources that all support Gaussian noise, got one that does not. Use "
                "Laplace noise, or remove the source."
            )
        dropped = dropped or {}
        within = _group_by_source(dropped)
        responses = list[object]()
        for i, source in enumerate(self.sources):
            if (i,) in dropped:
                responses.append(SkippedSource(dropped[i,]))
                continue
            own = None if request is None else f"{request}/{i}"
            try:
                responses.append(
                    source.round(query_request, request=own, dropped=within.get(i, {}))
                    if isinstance(source, MultiSource)
                    else query_request.ask(source, own)
                )
            except tuple(kind for kind, _ in _DROPOUT_REASONS) as error:
                if self.min_sources is None:
                    raise
                responses.append(error)
        return combine_answers(
            query_request,
            responses,
            tuple(self.sources),
            min_sources=self.min_sources,
            max_records=self.max_records,
            dropped=dropped,
        )

    def paths(self) -> list[Path]:
        """Paths of the single sources."""
        return [
            (i, *path)
            for i, source in enumerate(self.sources)
            for path in (source.paths() if isinstance(source, MultiSource) else [()])
        ]

    def members(self) -> Sequence[Source]:
        """The sources, in order."""
        return tuple(self.sources)


def _check_distinct(sources: Iterable[object]) -> None:
    """Raise unless the sources are distinct and have the same relation.

    This is checked before anything is charged. Two answers from one ledger are identical,
    including their noise, and answers under two relations have no common guarantee.
    """

    def flat(sources: Iterable[object]) -> Iterator[object]:
        for one in sources:
            yield from flat(one.sources) if isinstance(one, Pool) else (one,)

    single = list(flat(sources))
    for one in single:
        if not callable(getattr(one, "answer", None)):
            raise ValueError(
                f"Expected sources, got {type(one).__name__}. Use Curator(scores, ledger) for "
                "private scores, or Public(scores) for public ones."
            )
    curators = [one for one in single if isinstance(one, Curator)]
    accounts = {(one.ledger.path.resolve(), one.partition) for one in curators}
    if len({id(one) for one in single}) < len(single) or len(accounts) < len(curators):
        raise ValueError(
            "Expected different sources, each with its own ledger or partition of a ledger, "
            "got two that share one. Open a ledger for each."
        )
    if len({one.relation for one in single if is_declared(one)}) > 1:
        raise ValueError(
            "Expected sources with one neighboring relation, got add-remove and replace-one. "
            "Remove the sources of one relation: together they have no common guarantee."
        )


def check_additive(query: Query) -> None:
    """Raise if the answers of several sources to a query cannot be added."""
    if isinstance(query, NonAdditive):
        raise ValueError(
            f"Expected a sum over records, got {query.name!r}, for which answers of several "
            "sources cannot be added. Query each source separately, or use sums."
        )


def check_min_sources(min_sources: object, n_sources: int) -> None:
    """Raise unless a minimum number of sources is a whole number from 1 to all of them."""
    if min_sources is True or min_sources not in range(1, n_sources + 1):
        raise ValueError(
            f"Expected min_sources to be a number of sources from 1 to {n_sources}, got "
            f"min_sources={min_sources!r}."
        )


def check_quorum(
    dropouts: Sequence[str | None], min_sources: int | None, cause: Exception | None = None
) -> None:
    """Raise unless enough sources answered: ``min_sources`` of them, or all."""
    needed = len(dropouts) if min_sources is None else min_sources
    dropped = [(i, reason) for i, reason in enumerate(dropouts) if reason is not None]
    left = len(dropouts) - len(dropped)
    if left >= needed:
        return
    names = "; ".join(f"source {i}: {reason}" for i, reason in dropped[:_MAX_NAMED])
    more = "" if len(dropped) <= _MAX_NAMED else f"; and {len(dropped) - _MAX_NAMED} more"
    raise DropoutError(
        f"Expected answers of at least {needed} of {len(dropouts)} sources, got {left} "
        f"({names}{more}). Charges are not refunded. Repeat the query once they answer, or "
        "require fewer sources.",
        tuple(dropouts),
    ) from cause


def combine_answers(
    query_request: QueryRequest,
    responses: Sequence[object],
    sources: Sequence[object],
    *,
    min_sources: int | None,
    max_records: int | None,
    dropped: Mapping[Path, str],
) -> PooledRelease:
    """Remove invalid answers, check that enough remain, and add them.

    Parameters
    ----------
    responses : sequence of object
        For each source its answer, its error, or a :class:`SkippedSource`.
    sources : sequence of Source or ProtectionOnly
    min_sources, max_records
        As in :class:`~veracal.queries.Pool`.
    dropped : mapping of path to str
        The sources that were not queried.
    """
    parts, reasons = list[Release | None](), list[str | None]()
    for one in responses:
        parts.append(one if isinstance(one, Release) else None)
        if isinstance(one, Release):
            reasons.append(None)
        elif isinstance(one, SkippedSource):
            reasons.append(one.reason)
        else:  # in words that do not depend on records
            known = (reason for kind, reason in _DROPOUT_REASONS if isinstance(one, kind))
            reasons.append(next(known, f"{INVALID_RESPONSE}: it is not a release"))
    single = {  # a pool has validated its own answers
        i: part
        for i, part in enumerate(parts)
        if part is not None and not isinstance(sources[i], MultiSource)
    }
    faults = find_invalid_responses(query_request, single, sources, max_records)
    for i, fault in faults.items():
        parts[i], reasons[i] = None, f"{INVALID_RESPONSE}: {fault}"
    cause = next((one for one in responses if isinstance(one, Exception)), None)
    check_quorum(reasons, min_sources, cause)

    noises = {
        event
        for part in parts
        if part is not None
        for event in (
            part.requested.values() if isinstance(part, PooledRelease) else [part.event]
        )
        if isinstance(event, DiscreteLaplace | DiscreteGaussian)
    }
    usual = min(noises, key=lambda event: event.noise, default=None)  # costs most
    requested, within = dict[Path, Event](), _group_by_source(dropped)
    for i, (one, source) in enumerate(zip(responses, sources, strict=True)):
        if not isinstance(one, SkippedSource):
            events = _requested_events(
                query_request, source, parts[i], usual, within.get(i, {})
            )
            requested |= {(i, *path): event for path, event in events.items()}
    return _sum(query_request.query.name, parts, tuple(reasons), Frozen(requested))


def _requested_events(
    query_request: QueryRequest,
    source: object,
    part: Release | None,
    usual: Event | None,
    dropped: Mapping[Path, str],
) -> dict[Path, Event]:
    """The events requested from a source: those of its answer, or those of other sources."""
    if isinstance(part, PooledRelease):
        return dict(part.requested)
    if part is not None:
        return {} if part.event is None else {(): part.event}
    if isinstance(source, MultiSource) and source.members():
        within, events = _group_by_source(dropped), dict[Path, Event]()
        for j, one in enumerate(source.members()):
            if (j,) not in dropped:
                inner = _requested_events(query_request, one, None, usual, within.get(j, {}))
                events |= {(j, *path): event for path, event in inner.items()}
        return events
    event = usual
    if is_declared(source):
        event = query_request.event(source.relation, source.unit)
    paths = source.paths() if isinstance(source, MultiSource) else [()]
    return {} if event is None else dict.fromkeys(paths, event)


def _group_by_source(dropped: Mapping[Path, str]) -> dict[int, dict[Path, str]]:
    """The dropped sources inside each inner pool."""
    groups = dict[int, dict[Path, str]]()
    for path, reason in dropped.items():
        if len(path) > 1:
            groups.setdefault(path[0], {})[path[1:]] = reason
    return groups


def _sum(
    query: str,
    parts: Sequence[Release | None],
    dropouts: tuple[str | None, ...],
    requested: Mapping[Path, Event],
) -> PooledRelease:
    """The sum of several answers, with their costs."""
    answers = [part for part in parts if part is not None]
    events = tuple(a.event for a in answers if a.event is not None)
    costs = [a.micro_epsilon for a in answers]
    pure = all(cost is not None for cost in costs)
    return PooledRelease(
        query,
        tuple(sum(entry) for entry in zip(*(a.units for a in answers), strict=True)),
        answers[0].grid,
        math.hypot(*(a.noise_std for a in answers)),
        max(cost or 0 for cost in costs) if pure else None,
        Parallel(events) if events else None,
        private=all(a.private for a in answers),
        parts=tuple(parts),
        dropouts=dropouts,
        requested=requested,
    )


# ---------------------------------------------------------------- validation of answers


def find_invalid_responses(
    query_request: QueryRequest,
    answers: Mapping[int, Release],
    sources: Sequence[object],
    max_records: int | None,
) -> dict[int, str]:
    r"""Find answers that are not valid for a request, with the reasons.

    Every entry of a valid answer satisfies

    .. math:: |k| \le n_{\max} \Delta + r

    where :math:`n_{\max}` is the maximum number of records of a source, :math:`\Delta` the
    add-remove sensitivity, and r a bound that the noise exceeds in any entry with probability
    at most :math:`2^{-40}`. Without :math:`n_{\max}` the first term is :math:`2^{62}`, the
    largest total of a curator. Answers under another relation than the majority are invalid
    too: they have no common guarantee.

    Parameters
    ----------
    answers : mapping of int to Release
        By the index of their source.
    max_records : int, optional
        Declared.
    """
    bounds = dict[Event, int | None]()  # of the noise; None if it was not requested
    total = MAX_TOTAL
    if max_records is not None:
        sensitivity = query_request.query.sensitivity("add-remove")
        total = min(int(max_records) * sensitivity, MAX_TOTAL)
    problems = dict[int, str]()
    for i, answer in answers.items():
        problem, event, noise = _form_problem(query_request, answer), answer.event, 0
        if problem is None and event is None:
            exact = answer.noise_std == 0 and not answer.private
            problem = None if exact and isinstance(sources[i], Public) else "it has no noise"
        elif problem is None:
            bound = None
            if isinstance(event, DiscreteLaplace | DiscreteGaussian):
                if event not in bounds:
                    matches = query_request.matches(event)
                    bounds[event] = _noise_bound(query_request, event) if matches else None
                bound = bounds[event]
            if bound is None or not _states_noise(query_request, answer):
                problem = "it has another noise than was asked for"
            else:
                noise = bound
        if problem is None:
            most = total + noise
            if not all(-most <= unit <= most for unit in answer.units):
                problem = "it is larger than records and noise allow"
        if problem is not None:
            problems[i] = problem
    relations = {
        i: a.event.relation
        for i, a in answers.items()
        if i not in problems and a.event is not None
    }
    if len(set(relations.values())) > 1:
        usual = Counter(relations.values()).most_common(1)[0][0]
        other = "its neighboring relation differs from that of the other sources"
        problems |= {i: other for i, relation in relations.items() if relation != usual}
    return problems


def _form_problem(query_request: QueryRequest, answer: Release) -> str | None:
    """Problem with the form of an answer, if any."""
    name, grid, entries = query_request.form
    if answer.query != name:
        return "it answers another query"
    if answer.grid != grid:
        return "it is on another grid"
    if type(answer.units) is not tuple or len(answer.units) != entries:
        return f"it does not have {entries} entries"
    if not all(type(unit) is int for unit in answer.units):
        return "it has entries that are not integers"
    return None


def _states_noise(query_request: QueryRequest, answer: Release) -> bool:
    """Whether cost and standard deviation of an answer are those of its event."""
    assert isinstance(answer.event, DiscreteLaplace | DiscreteGaussian)
    std = noise_std(answer.event) * answer.grid.step
    return (
        answer.micro_epsilon == query_request.micro_epsilon
        and isinstance(answer.noise_std, float)
        and math.isclose(answer.noise_std, std)
    )


def _noise_bound(query_request: QueryRequest, event: DiscreteLaplace | DiscreteGaussian) -> int:
    r"""Bound that the noise exceeds in any entry with probability at most :math:`2^{-40}`.

    It follows from :math:`P(|k| > r) \le 2 e^{-r/s}` for Laplace and :math:`2 e^{-r^2 / 2 s^2}`
    for Gaussian noise, with a union bound over all entries.
    """
    exponent = _NEGATIVE_LOG_TAIL + math.log(2 * query_request.query.entries)
    if isinstance(event, DiscreteLaplace):
        return math.ceil(event.noise * exponent)
    return math.ceil(event.noise * math.sqrt(2 * exponent))
