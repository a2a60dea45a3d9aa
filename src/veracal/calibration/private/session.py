"""Query sessions with one or several sources, their cost and statement, and private fitters.

If sources drop out of a session, all answers are restricted to the *cohort*: the sources that
have answered every query so far.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veracal import _checks
from veracal._display import DisplayMixin
from veracal._types import Floats, Frozen
from veracal.accounting import (
    MICRO,
    RELATIONS,
    Budget,
    Composed,
    DiscreteGaussian,
    Event,
    Parallel,
    Relation,
    Repeated,
    Statement,
    Unit,
    epsilon_for,
    noise_for,
    pure_epsilon,
    statement,
    to_micro,
)
from veracal.calibration.maps.base import CalibrationMap
from veracal.data import Scores
from veracal.errors import BudgetError, DropoutError
from veracal.ledger import Item, Ledger, ledger_total
from veracal.mechanisms import Linear, gaussian_noise
from veracal.queries import (
    GaussianSource,
    MultiSource,
    Path,
    PayingSource,
    Pool,
    PooledRelease,
    Query,
    QueryRequest,
    Release,
    Source,
    check_quorum,
    is_declared,
)


class Cohort(MultiSource):
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
        query_request: QueryRequest,
        *,
        request: str | None = None,
        dropped: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Query all sources that have not dropped out."""
        excluded = {**self.excluded, **(dropped or {})}
        release = self.source.round(query_request, request=request, dropped=excluded)
        self.excluded = {**excluded, **release.dropped()}
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
    """Why each single source, or a pool that contains it, dropped out; None if it did not."""
    if not isinstance(source, Cohort):
        return (None,)
    reasons = list[str | None]()
    for path in source.paths():
        prefixes = (path[:length] for length in range(1, len(path) + 1))
        reasons.append(
            next((source.excluded[p] for p in prefixes if p in source.excluded), None)
        )
    return tuple(reasons)


_ONE_SOURCE = "all sources together, for individuals with records at one source only"
_SEVERAL = "all {n} sources together, for individuals with records at {times} of them at most"
_MOVES = "a record replaced within its source; a record that moves to another counts at both"
_UNAFFORDABLE = "its budget cannot pay for all queries"
Items = Callable[[Relation, Unit, str | None], Iterable[Item]]


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


def divide_over_queries(
    micro_epsilon: int, shares: Mapping[str, tuple[Query, int]]
) -> Mapping[str, QueryRequest]:
    """Requests by name, which divide millionths of epsilon by the share of each query."""
    costs = divide_epsilon(micro_epsilon, [share for _, share in shares.values()])
    pairs = zip(shares.items(), costs, strict=True)
    return Frozen({name: QueryRequest(query, cost) for (name, (query, _)), cost in pairs})


def find_unaffordable(source: Any, items: Items, request: str | None = None) -> dict[Path, str]:
    """Check that a source can pay for all queries, before the first is charged.

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

    Returns
    -------
    dict of path to str
        Sources of a pool that cannot pay and may be excluded, with the reason.

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
    members = source.members() if isinstance(source, MultiSource) else ()
    if not members:
        return {}
    unaffordable, reasons = dict[Path, str](), list[str | None]()
    for i, member in enumerate(members):
        reasons.append(None)
        try:
            nested = find_unaffordable(member, items, request)
            unaffordable |= {(i, *path): reason for path, reason in nested.items()}
        except (BudgetError, DropoutError) as cause:
            if source.min_sources is None and isinstance(cause, BudgetError):
                raise BudgetError(
                    f"source {i}: {cause} Or require fewer sources: min_sources."
                ) from cause
            if source.min_sources is None:
                raise
            unaffordable[i,] = reasons[i] = _UNAFFORDABLE
    check_quorum(reasons, source.min_sources)
    return unaffordable


def sub_request(request: str | None, name: object) -> str | None:
    """Request id of a single query, derived from that of the whole; None stays None."""
    return None if request is None else f"{request}: {name}"


def compose(events: Iterable[Event]) -> Event:
    """Several events on the same records as one event."""
    listed = tuple(events)
    return listed[0] if len(listed) == 1 else Composed(listed)


class PlannedQueries(ABC):
    """Queries that are fixed before the first of them, with their cost."""

    @abstractmethod
    def _plan(self, unit: Unit) -> list[tuple[QueryRequest, int]]:
        """The queries, and how often each is made."""

    def event(self, relation: Relation = "add-remove", unit: Unit | None = None) -> Event:
        """Cost of all queries, known before any record is read."""
        planned = self._plan(unit or Unit())
        repeats = any(times > 1 for _, times in planned)
        events = [(request.event(relation, unit), times) for request, times in planned]
        return compose(Repeated(event, times) if repeats else event for event, times in events)

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        partition: str | None = None,
    ) -> list[Item]:
        """Ledger items of all queries."""
        return [
            Item(request.query.name, request.event(relation, unit), times, partition)
            for request, times in self._plan(unit or Unit())
        ]


def combined_statement(
    releases: Sequence[Release],
    unit: Unit,
    *,
    covers: str,
    delta: float = 0.0,
    at_sources: int = 1,
    unused: Sequence[QueryRequest] = (),
    ledger_total: str | None = None,
) -> Statement | None:
    r"""Privacy statement of all answers together; None without private answers.

    The answers of a pool are composed for each of its sources, including queries that it did
    not answer, and the largest cost counts.

    Parameters
    ----------
    covers : str
        What the statement covers, in words.
    at_sources : int
        Largest number of sources of a pool at which one unit has records.
    unused : sequence of QueryRequest
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
    by_source = dict[Path, list[Event]]()
    for release in releases:
        costs: Mapping[Path, Event]
        if isinstance(release, PooledRelease):
            costs = release.requested
        elif isinstance(release.event, Parallel):
            costs = {(i,): event for i, event in enumerate(release.event.events)}
        else:
            assert release.event is not None
            costs = {(): release.event}
        for path, event in costs.items():
            by_source.setdefault(path, []).append(event)
    totals = [
        compose([*events, *(query.event(events[0].relation, unit) for query in unused)])
        for events in by_source.values()
    ]
    times = min(int(at_sources), len(totals))
    if times == 1:
        distinct = tuple(dict.fromkeys(totals))
        total: Event = distinct[0] if len(distinct) == 1 else Parallel(distinct)
    else:
        total = _cost_at_several(totals, times, delta, unit)
    covered = [covers]
    if len(totals) > 1:
        covered.append(
            _ONE_SOURCE if times == 1 else _SEVERAL.format(times=times, n=len(totals))
        )
        covered += [_MOVES] if total.relation == "replace-one" else []
    return statement(total, delta, unit, covers=covered, ledger_total=ledger_total)


def _cost_at_several(totals: Sequence[Event], times: int, delta: float, unit: Unit) -> Event:
    """Upper bound on the cost at several sources, from the costs of all of them."""
    costs = {event: pure_epsilon(event, unit) for event in set(totals)}
    pure = {event: cost for event, cost in costs.items() if cost is not None}
    if delta == 0 and len(pure) == len(costs):
        ordered = sorted(totals, key=lambda event: pure[event], reverse=True)
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
    >>> session = QuerySession(Pool([Public(scores), Public(scores)], min_sources=1))
    >>> session.ask(QueryRequest(Count(), 1_000), "count").value, session.n_present
    (4.0, 2)
    """

    def __init__(self, source: Source, request: str | None = None) -> None:
        self.source, self.request = source, request
        self._cohort = Cohort(source, {}) if isinstance(source, MultiSource) else source
        self._releases = list[Release]()

    def check_affordable(self, items: Items) -> None:
        """Check that all queries can be paid for, before the first is charged.

        Of a pool with a minimum number of sources, those that cannot pay for all queries are
        excluded without a charge, if enough remain.

        Parameters
        ----------
        items : callable
            As in :func:`find_unaffordable`.
        """
        unaffordable = find_unaffordable(self.source, items, self.request)
        if isinstance(self._cohort, Cohort):
            self._cohort.excluded |= unaffordable

    def ask(self, query_request: QueryRequest, name: str) -> Release:
        """Query the cohort, and store the answer.

        Parameters
        ----------
        name : str
            Name within the session, for the request id.

        Raises
        ------
        DropoutError
            If too few sources have answered every query so far.
        """
        own = sub_request(self.request, name)
        self._releases.append(query_request.ask(self._cohort, own))
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


class PrivateFitter(PlannedQueries, DisplayMixin):
    """Base class of private fitters: they query a source and never read records directly.

    A fitter declares its queries in :meth:`_queries`, and fits in :meth:`_fit`.
    """

    covers: ClassVar[str]  # what the statement covers, in words
    keeps_predictions: ClassVar[bool] = False  # whether its maps never change a prediction
    infers_guard: ClassVar[bool] = False  # whether its answers also decide about the map

    map_: CalibrationMap
    private_: bool
    releases_: tuple[Release, ...]

    def fit(self, source: Source, *, request: str | None = None) -> Self:
        """Query a source and fit the map.

        Parameters
        ----------
        source : Source
            A ``GaussianSource`` if the queries have Gaussian noise.
        request : str, optional
            Request id of the fit, for fresh answers of a source. Without one every query is its
            own id.
        """
        unit = unit_of(source)
        queries = [query for query, times in self._plan(unit) for _ in range(times)]
        gaussian = any(query.noise_multiplier is not None for query in queries)
        if gaussian and not isinstance(source, GaussianSource):
            raise ValueError(
                f"Expected a source that answers with Gaussian noise, got {source!r}. Use "
                "PrivateTemperature('search'), which needs none."
            )
        session = QuerySession(source, request)
        session.check_affordable(self.items)
        self.map_ = self._fit(session, queries)
        self.releases_ = session.releases
        self.private_ = all(release.private for release in self.releases_)
        # The source is not stored, because it holds the records.
        self._unit, self._delta = unit, float(getattr(self, "delta", 0.0)) if gaussian else 0.0
        self._ledger_total = ledger_total_of(source)
        return self

    def _queries(self) -> list[QueryRequest]:
        """The queries of a fit, at placeholder parameters."""
        raise NotImplementedError

    def _plan(self, unit: Unit) -> list[tuple[QueryRequest, int]]:
        return [(request, 1) for request in self._queries()]

    @abstractmethod
    def _fit(self, session: QuerySession, queries: Sequence[QueryRequest]) -> CalibrationMap:
        """Make the queries at parameters that depend on earlier answers, and fit the map."""

    def transform(self, scores: Scores) -> Scores:
        """Map any scores; they are only read."""
        check_is_fitted(self, "map_")
        return self.map_.transform(scores)

    @property
    def statement_(self) -> Statement | None:
        """Privacy guarantee of the fit; None for public records."""
        check_is_fitted(self, "map_")
        return combined_statement(
            self.releases_,
            self._unit,
            covers=self.covers,
            delta=self._delta,
            ledger_total=self._ledger_total,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags


PAPER_STEPS = 100


class DescentFitter(PrivateFitter):
    r"""Base class of fitters with full-batch descent.

    .. math:: \theta \leftarrow \theta - \eta_t g_t / n

    where :math:`g_t` is the noisy sum of clipped gradients, n a *declared* number of records
    (its share for the sources that still answer), and :math:`\eta_t` falls on a line from the
    learning rate to zero (Zhang et al. 2022, https://arxiv.org/abs/2210.08248, Algorithm 1).
    With another method than ``"descent"`` the fitter makes the queries of :meth:`_queries`.

    Guarantees
    ----------
    Noise, steps and divisor are known before a record is read. Every step is one discrete
    Gaussian on integers; together they cost at most epsilon at delta.
    """

    method: str
    epsilon: float | None
    micro_epsilon: int | None
    delta: float | None
    size: int | None
    steps: int | None
    learning_rate: float

    @abstractmethod
    def _start(self) -> Floats:
        """The parameters of the identity."""

    @abstractmethod
    def _gradient(self, parameters: Floats, step: int) -> Query:
        """The query of one step; its sensitivity does not depend on parameters or step."""

    def _plan(self, unit: Unit) -> list[tuple[QueryRequest, int]]:
        self._check_settings()
        if self.method != "descent":
            return super()._plan(unit)
        if self.delta is None or self.size is None:
            raise ValueError(
                "Expected a delta and a declared size for descent, got "
                f"delta={self.delta!r}, size={self.size!r}. Declare both, or use another method."
            )
        epsilon = micro_epsilon_of(self.epsilon, self.micro_epsilon) / MICRO
        steps = PAPER_STEPS if self.steps is None else self.steps
        _checks.positive(epsilon=epsilon, delta=self.delta, size=self.size)
        _checks.positive(learning_rate=self.learning_rate)
        _checks.whole(steps=steps)
        query = self._gradient(self._start(), 0)
        sensitivities = tuple(
            unit.max_contributions * query.sensitivity_l2(r) for r in RELATIONS
        )
        noise = _noise(epsilon, self.delta, int(steps), sensitivities, query.entries)
        return [(QueryRequest(query, noise_multiplier=noise), int(steps))]

    def _check_settings(self) -> None:
        """Raise for invalid settings that both methods use."""

    def _descend(
        self, session: QuerySession, queries: Sequence[QueryRequest]
    ) -> tuple[Floats, float]:
        """Descend with one gradient query per step.

        Returns the parameters, and an upper bound on the standard deviation of a parameter due
        to the noise of all steps, ignoring that later steps correct earlier noise.
        """
        assert self.size is not None
        parameters, variance, steps = self._start(), 0.0, len(queries)
        rates = Linear(self.learning_rate, 0.0, steps).values(steps)
        for step, (rate, query) in enumerate(zip(rates, queries, strict=True)):
            gradient = self._gradient(parameters, step)
            release = session.ask(replace(query, query=gradient), str(step))
            size = self.size * session.n_present / session.n_sources
            parameters = parameters - rate * release.values / size
            variance += (rate * release.noise_std / size) ** 2
        return parameters, float(np.sqrt(variance))


@cache
def _noise(
    epsilon: float, delta: float, steps: int, sensitivities: tuple[float, ...], entries: int
) -> float:
    """Noise multiplier of each of several steps, sufficient for all listed sensitivities."""

    def event(noise: float, sensitivity: float) -> Event:
        distribution = DiscreteGaussian(
            gaussian_noise(sensitivity, noise), sensitivity, entries=entries
        )
        return Repeated(distribution, steps)

    noise_multiplier = noise_for(
        Budget(epsilon, delta), lambda noise: event(noise, max(sensitivities))
    )
    # Discretization changes the cost slightly; correct it.
    while any(
        epsilon_for(event(noise_multiplier, sensitivity), delta) > epsilon
        for sensitivity in sensitivities
    ):
        noise_multiplier *= 1 + 1e-6
    return noise_multiplier
