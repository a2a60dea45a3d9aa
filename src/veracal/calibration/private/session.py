"""Query sessions with one or several sources, their cost and statement, and private fitters.

If sources drop out of a session, all answers are restricted to the *cohort*: the sources that
have answered every query so far.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from veracal import _checks
from veracal.accounting import (
    Composed,
    Event,
    Parallel,
    Relation,
    Repeated,
    Statement,
    Unit,
    pure_epsilon,
    statement,
    to_micro,
)
from veracal.calibration.maps.base import CalibrationMap
from veracal.data import Scores
from veracal.errors import BudgetError, DropoutError
from veracal.ledger import Item, Ledger, ledger_total
from veracal.queries import (
    IndexedSources,
    MultiSource,
    Path,
    PayingSource,
    Pool,
    PooledRelease,
    Query,
    QueryRequest,
    Release,
    RoundBasedSource,
    Source,
    check_quorum,
    is_declared,
    is_multi_source,
    is_pool,
    laplace_event,
)


class Cohort(RoundBasedSource):
    """A pool whose sources stay excluded once they drop out, so that all results agree.

    Parameters
    ----------
    source : MultiSource
    excluded : mapping of path to str
        Sources that are excluded from the start, with the reason.

    Guarantees
    ----------
    Restricting an answer to fewer sources is postprocessing of released answers, at no cost.
    """

    def __init__(self, source: MultiSource, excluded: Mapping[Path, str]) -> None:
        self.source, self.excluded = source, dict(excluded)

    def round(
        self,
        wanted: QueryRequest,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Query all sources that have not dropped out."""
        excluded = {**self.excluded, **(silent or {})}
        release = self.source.round(wanted, request=request, silent=excluded)
        self.excluded = {**excluded, **release.silent()}
        return release

    def paths(self) -> list[Path]:
        """Path of each single source."""
        return self.source.paths()


def restrict_release(source: Source, release: Release) -> Release:
    """An earlier answer, restricted to the sources that are still in the cohort."""
    if isinstance(source, Cohort) and isinstance(release, PooledRelease):
        return release.without(source.excluded)
    return release


def dropouts(source: Source) -> tuple[str | None, ...]:
    """Reason why each single source dropped out; None if it answered every query."""
    if not isinstance(source, Cohort):
        return (None,)
    return tuple(_dropout_reason(path, source.excluded) for path in source.paths())


def _dropout_reason(path: Sequence[int], excluded: Mapping[Path, str]) -> str | None:
    """Reason why a source, or a pool that contains it, dropped out."""
    prefixes = (tuple(path[:length]) for length in range(1, len(path) + 1))
    return next((excluded[prefix] for prefix in prefixes if prefix in excluded), None)


_ONE_SOURCE = "all sources together, for individuals with records at one source only"
_SEVERAL = "all {n} sources together, for individuals with records at {times} of them at most"
_MOVES = "a record replaced within its source; a record that moves to another counts at both"
_UNAFFORDABLE = "its budget cannot pay for all queries"


@dataclass(frozen=True)
class PricedQuery:
    """A query with its cost for each privacy unit.

    Attributes
    ----------
    query : Query
    micro_epsilon : int
        Cost in millionths of epsilon.
    """

    query: Query
    micro_epsilon: int

    def event(self, relation: Relation, unit: Unit | None = None) -> Event:
        """Event that is charged for the answer."""
        return laplace_event(self.query, self.micro_epsilon, relation, unit)

    def ask(self, source: Source, request: str | None = None) -> Release:
        """The answer of a source."""
        return source.answer(self.query, micro_epsilon=self.micro_epsilon, request=request)


def micro_epsilon_of(epsilon: float | None, micro_epsilon: int | None) -> int:
    """Millionths of epsilon from exactly one of the two arguments.

    Examples
    --------
    >>> micro_epsilon_of(0.1, None), micro_epsilon_of(None, 7)
    (100000, 7)
    """
    if (epsilon is None) == (micro_epsilon is None):
        raise ValueError(
            "Expected one of epsilon and micro_epsilon, got "
            f"{'neither' if epsilon is None else 'both'}."
        )
    if micro_epsilon is not None:
        _checks.whole(micro_epsilon=micro_epsilon)
        return int(micro_epsilon)
    assert epsilon is not None
    return to_micro(epsilon)


def divide_epsilon(micro_epsilon: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Divide millionths of epsilon by shares, each rounded down.

    The noise is computed from the rounded parts, so that all queries fit into the total.

    Examples
    --------
    >>> divide_epsilon(1_000_000, [1, 1, 1])
    (333333, 333333, 333333)
    """
    _checks.whole(micro_epsilon=micro_epsilon)
    parts = tuple(int(micro_epsilon) * share // sum(shares) for share in shares)
    if min(parts) < 1:
        raise ValueError(
            f"Expected at least one millionth of epsilon for each of {len(shares)} queries, "
            f"got micro_epsilon={micro_epsilon!r} for all of them. Increase it."
        )
    return parts


def check_affordable(
    source: Any,
    items: Callable[[Relation, Unit, str | None], Iterable[Item]],
    request: str | None = None,
) -> None:
    """Check that a source can pay for all queries, before the first is charged.

    Of a pool with a minimum number of sources, enough must be able to pay; a
    :class:`~veracal.calibration.private.session.QuerySession` then excludes the others.

    Earlier charges (under this request id, if given) count as paid, so that an interrupted fit
    can continue. Other charges may follow between this check and the queries; the ledger
    decides at each charge.

    Parameters
    ----------
    source : Source
        A :class:`~veracal.queries.PayingSource` or a pool; other sources have no ledger.
    items : callable
        ``items(relation, unit, partition)`` returns the ledger items of the queries.
    request : str, optional
        Request id of the whole.
    """
    find_unaffordable(source, items, request)


def find_unaffordable(
    source: Any,
    items: Callable[[Relation, Unit, str | None], Iterable[Item]],
    request: str | None = None,
) -> dict[Path, str]:
    """Sources of a pool that cannot pay for all queries and may be excluded, with the reason.

    Raises
    ------
    BudgetError
        If a source cannot pay that may not be excluded.
    DropoutError
        If too few sources of a pool can pay.
    """
    if is_declared(source) and isinstance(source, PayingSource):
        costs = items(source.relation, source.unit, source.partition)
        source.require(source.unpaid(costs, request=request))
    return _unaffordable_members(source, items, request) if is_pool(source) else {}


def _unaffordable_members(
    pool: IndexedSources,
    items: Callable[[Relation, Unit, str | None], Iterable[Item]],
    request: str | None,
) -> dict[Path, str]:
    """The same for the members of a pool."""
    unaffordable, reasons = dict[Path, str](), list[str | None]()
    for i, member in enumerate(pool.members()):
        reasons.append(None)
        try:
            nested = find_unaffordable(member, items, request)
            unaffordable |= {(i, *path): reason for path, reason in nested.items()}
        except (BudgetError, DropoutError) as cause:
            if pool.least is None and isinstance(cause, BudgetError):
                raise BudgetError(
                    f"source {i}: {cause} Or require fewer sources: least."
                ) from cause
            if pool.least is None:
                raise
            unaffordable[i,] = reasons[i] = _UNAFFORDABLE
    check_quorum(reasons, pool.least)
    return unaffordable


def sub_request(request: str | None, name: object) -> str | None:
    """Request id of a single query, derived from that of the whole; None stays None."""
    return None if request is None else f"{request}: {name}"


def compose(events: Iterable[Event]) -> Event:
    """Several events on the same records as one event."""
    listed = tuple(events)
    return listed[0] if len(listed) == 1 else Composed(listed)


def plan_items(
    queries: Iterable[PricedQuery], relation: Relation, unit: Unit | None, partition: str | None
) -> list[Item]:
    """Ledger items of several queries."""
    return [
        Item(query.query.name, query.event(relation, unit), 1, partition) for query in queries
    ]


def combined_statement(
    releases: Sequence[Release],
    unit: Unit,
    *,
    covers: str,
    delta: float = 0.0,
    at_sources: int = 1,
    unused: Sequence[PricedQuery] = (),
    ledger_total: str | None = None,
) -> Statement | None:
    r"""Privacy statement of all answers together; None without private answers.

    The answers of a pool are composed for each of its sources, including queries that it did
    not answer, and the largest cost counts.

    Parameters
    ----------
    releases : sequence of Release
    unit : Unit
    covers : str
        What the statement covers, in words.
    delta : float
    at_sources : int
        Largest number of sources of a pool at which one unit has records.
    unused : sequence of PricedQuery
        Planned queries that were omitted because of earlier answers. They count, because the
        guarantee must not depend on the answers.
    ledger_total : str, optional
        Total of the charged ledger in words (:func:`ledger_total_of`).

    Guarantees
    ----------
    For a unit with records at m sources and pure costs, the m largest costs are added, an upper
    bound for any m sources. With a delta, an event with every mechanism as often as any source
    used it is composed m times; its cost is at least that of any source.
    """
    _checks.whole(at_sources=at_sources)
    if not all(release.private for release in releases):
        return None
    costs = _costs_by_source(releases, unused, unit)
    times = min(int(at_sources), len(costs))
    event = _largest_cost(costs) if times == 1 else _cost_at_several(costs, times, delta, unit)
    covered = [covers]
    if len(costs) > 1:
        covered.append(
            _ONE_SOURCE if times == 1 else _SEVERAL.format(times=times, n=len(costs))
        )
        covered += [_MOVES] if event.relation == "replace-one" else []
    return statement(event, delta, unit, covers=covered, ledger_total=ledger_total)


def _costs_by_source(
    releases: Sequence[Release], unused: Sequence[PricedQuery] = (), unit: Unit | None = None
) -> list[Event]:
    """Composition of everything that each source was queried for, or would have been."""
    costs = dict[Path, list[Event]]()
    for release in releases:
        for path, event in _cost_of_release(release).items():
            costs.setdefault(path, []).append(event)
    for events in costs.values():
        relation = events[0].relation
        events += [query.event(relation, unit) for query in unused]
    return [compose(events) for events in costs.values()]


def _largest_cost(costs: Sequence[Event]) -> Event:
    """Largest cost of the sources; equal ones are counted once."""
    distinct = tuple(dict.fromkeys(costs))
    return distinct[0] if len(distinct) == 1 else Parallel(distinct)


def _cost_at_several(events: Sequence[Event], times: int, delta: float, unit: Unit) -> Event:
    """Upper bound on the cost at several sources, from the costs of all of them."""
    costs = {event: pure_epsilon(event, unit) for event in set(events)}
    pure = {event: cost for event, cost in costs.items() if cost is not None}
    if delta == 0 and len(pure) == len(costs):
        ordered = sorted(events, key=lambda event: pure[event], reverse=True)
        return Composed(tuple(ordered[:times]))
    maximum = Counter[Event]()
    for event in costs:
        maximum |= Counter(event.events if isinstance(event, Composed) else (event,))
    return Composed(tuple(Repeated(event, n * times) for event, n in maximum.items()))


def unit_of(source: Any) -> Unit:
    """Privacy unit of a source, or the one with the most rows in a pool."""
    if is_declared(source):
        return source.unit
    if isinstance(source, Cohort):
        return unit_of(source.source)
    if isinstance(source, Pool):
        units = {unit_of(one) for one in source.sources}
        return max(units, key=lambda unit: unit.max_contributions)
    return Unit()


def ledger_total_of(source: Any) -> str | None:
    """Total of a source's ledger in words, as it is now.

    None if the ledger is remote, and for pools, whose sources have their own ledgers.
    """
    ledger = getattr(source, "ledger", None)
    return ledger_total(ledger) if isinstance(ledger, Ledger) else None


def _cost_of_release(release: Release) -> Mapping[Path, Event]:
    """Event of each source of a pool, or of the single source."""
    if isinstance(release, PooledRelease):
        return release.asked
    assert release.event is not None
    if isinstance(release.event, Parallel):
        return {(i,): event for i, event in enumerate(release.event.events)}
    return {(): release.event}


class QuerySession:
    """A sequence of queries to a source.

    Sources of a pool may drop out during the session. All answers are then restricted to the
    *cohort*, the sources that have answered every query so far, so that they are about the same
    records. Sources that dropped out are not queried again.

    Parameters
    ----------
    source : Source
    request : str, optional
        Request id of the session, from which those of the queries are derived. Without one
        every query is its own id.

    Guarantees
    ----------
    Restricting answers to fewer sources is postprocessing, at no cost. Statements count every
    query to every source, whether or not it was answered and whether or not the answer was
    used.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Count, Pool, Public
    >>> scores = Scores.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> session = QuerySession(Pool([Public(scores), Public(scores)], least=1))
    >>> session.ask(PricedQuery(Count(), 1_000), "count").value, session.n_present
    (4.0, 2)
    """

    def __init__(self, source: Source, request: str | None = None) -> None:
        self.source, self.request = source, request
        self._cohort = Cohort(source, {}) if is_multi_source(source) else source
        self._releases = list[Release]()

    def check_affordable(
        self, items: Callable[[Relation, Unit, str | None], Iterable[Item]]
    ) -> None:
        """Check that all queries can be paid for, before the first is charged.

        Of a pool with a minimum number of sources, those that cannot pay for all queries are
        excluded without a charge, if enough remain.

        Parameters
        ----------
        items : callable
            As in :func:`~veracal.calibration.private.session.check_affordable`.
        """
        unaffordable = find_unaffordable(self.source, items, self.request)
        if isinstance(self._cohort, Cohort):
            self._cohort.excluded |= unaffordable

    def ask(self, query: PricedQuery, name: str) -> Release:
        """Query the cohort with Laplace noise.

        Parameters
        ----------
        query : PricedQuery
        name : str
            Name within the session, for the request id.

        Raises
        ------
        DropoutError
            If too few sources have answered every query so far.
        """
        return self._ask(QueryRequest(query.query, micro_epsilon=query.micro_epsilon), name)

    def ask_gaussian(self, query: Query, noise_multiplier: float, name: str) -> Release:
        """Query the cohort with Gaussian noise."""
        return self._ask(QueryRequest(query, noise_multiplier=noise_multiplier), name)

    def _ask(self, wanted: QueryRequest, name: str) -> Release:
        """Query the cohort and store the answer."""
        self._releases.append(wanted.of(self._cohort, sub_request(self.request, name)))
        return self._releases[-1]

    @property
    def answers(self) -> tuple[Release, ...]:
        """All answers so far, restricted to the cohort."""
        return tuple(restrict_release(self._cohort, release) for release in self._releases)

    @property
    def releases(self) -> tuple[Release, ...]:
        """All answers as released, including those of sources that dropped out later."""
        return tuple(self._releases)

    @property
    def n_sources(self) -> int:
        """Number of single sources."""
        return len(dropouts(self._cohort))

    @property
    def n_present(self) -> int:
        """Number of single sources that have answered every query so far."""
        return dropouts(self._cohort).count(None)

    @property
    def dropouts(self) -> dict[Path, str]:
        """Sources that dropped out, with the reason, by their path in the pool."""
        return dict(self._cohort.excluded) if isinstance(self._cohort, Cohort) else {}


class PrivateFitter(BaseEstimator):  # type: ignore[misc]
    """Base class of private fitters: they query a source and never read records directly."""

    keeps_predictions: ClassVar[bool] = False  # whether its maps never change a prediction
    infers_guard: ClassVar[bool] = False  # whether its answers also decide about the map

    map_: CalibrationMap
    private_: bool
    releases_: tuple[Release, ...]
    _ledger_total: str | None = None

    def event(self, relation: Relation = "add-remove", unit: Unit | None = None) -> Event:
        """Cost of one fit, known before any record is read."""
        return compose(query.event(relation, unit) for query in self._queries())

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        partition: str | None = None,
    ) -> list[Item]:
        """Ledger items of one fit."""
        return plan_items(self._queries(), relation, unit, partition)

    def _queries(self) -> list[PricedQuery]:
        """The queries of a fit with Laplace noise, each with its cost."""
        raise NotImplementedError

    def transform(self, scores: Scores) -> Scores:
        """Map any scores; they are only read."""
        check_is_fitted(self, "map_")
        return self.map_.transform(scores)

    @property
    def statement_(self) -> Statement | None:
        """Privacy guarantee of the fit; None for public records."""
        check_is_fitted(self, "map_")
        covers, unit, delta = self._statement_terms
        return combined_statement(
            self.releases_, unit, covers=covers, delta=delta, ledger_total=self._ledger_total
        )

    def _store(
        self,
        map_: CalibrationMap,
        releases: Sequence[Release],
        source: Source,
        *,
        covers: str,
        delta: float = 0.0,
    ) -> Self:
        """Store the fitted map, its releases and the terms of its statement."""
        self.map_ = map_
        self.releases_ = tuple(releases)
        self.private_ = all(release.private for release in self.releases_)
        # The source is not stored, because it holds the records.
        self._statement_terms = covers, unit_of(source), delta
        self._ledger_total = ledger_total_of(source)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags
