"""A pool of remote sources: rounds of queries, and a recalibration with its plan and costs."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from veracal import _checks
from veracal._types import Frozen
from veracal.accounting import Event, Relation
from veracal.artifact import LedgerHead, RecalibrationRecord, SourceCost
from veracal.calibration import (
    EnrolledBounds,
    Recalibration,
    RecalibrationPlan,
    find_unaffordable,
)
from veracal.errors import BudgetError, DropoutError
from veracal.federation.coordinator.history import ClosedRound, RequestHistory
from veracal.federation.coordinator.remote import (
    LATE,
    REFUSED,
    Dropout,
    Remote,
    enrolled_bounds,
)
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.terms import Terms, today
from veracal.federation.transports import Transport
from veracal.ledger import canonical, digest
from veracal.queries import (
    MultiSource,
    Path,
    PooledRelease,
    QueryRequest,
    Release,
    SkippedSource,
    check_additive,
    check_min_sources,
    combine_answers,
)

SourceResponse = Release | Dropout | SkippedSource
SourceStatus = Literal[
    "queried", "queried again", "answered", "refused", "dropped out", "skipped"
]
SLACK = 60.0  # seconds for carrying, in addition to twice the deadline
_CANNOT_PAY = "its budget does not allow the answer"
_MAX_NAMES = 5  # sources that an error names for one reason


@dataclass(frozen=True)
class RoundEvent:
    """Progress of one source in a round, for callbacks."""

    round: int  # its number, from 1
    query: str
    source: int  # its index, from 0
    status: SourceStatus
    why: str = ""  # why it dropped out or was skipped


class RemotePool(MultiSource):
    """Several remote sources that answer together, by the sum of their answers.

    It has the interface of :class:`~veracal.queries.Pool`.

    Parameters
    ----------
    terms : iterable of Terms
        Terms of every source.
    key : PrivateKey
        The coordinator's key.
    transport : Transport
    history : RequestHistory, optional
        Stores requests, answers and rounds; by default in memory, lost with the process.
    min_sources : int, optional
        Number of sources that must answer; by default all.
    run : str
        Distinguishes several uses of one history and the same sources. A source that dropped
        out of a round of a run stays out of that round.
    timeout : float, optional
        Seconds to wait in a round; by default a minute more than twice the longest deadline.
    watch : callable, optional
        Receives a :class:`RoundEvent` for each step.

    Guarantees
    ----------
    Only declared queries are sent. Each query is checked against the terms of all sources
    first, so no source is charged for a query that another one does not answer. An answered
    query is never sent again. A source that refused is queried once more, at no cost, because
    its answer may have missed the deadline. A round ends in one transaction: an interrupted
    round is continued, and a finished round is repeated from the history with the same
    sources. A source's cost includes every request, whether or not it answered.
    """

    def __init__(
        self,
        terms: Iterable[Terms],
        key: PrivateKey,
        transport: Transport,
        history: RequestHistory | None = None,
        *,
        min_sources: int | None = None,
        run: str = "",
        timeout: float | None = None,
        watch: Callable[[RoundEvent], None] = lambda event: None,
    ) -> None:
        all_terms = tuple(terms)
        _check_pool(all_terms)
        if min_sources is not None:
            check_min_sources(min_sources, len(all_terms))
        if timeout is not None:
            _checks.positive(timeout=timeout)
        self.history = RequestHistory(None, key.public) if history is None else history
        self.run = digest(
            canonical({"run": run, "sources": [each.source for each in all_terms]})
        )
        self.sources = tuple(
            Remote(each, key, None, self.history, run=self.run) for each in all_terms
        )
        self.relation: Relation = all_terms[0].relation
        # The unit with the most rows, if they differ.
        self.unit = max(
            (each.unit for each in all_terms), key=lambda unit: unit.max_contributions
        )
        self.min_sources, self.watch = min_sources, watch
        self.timeout = timeout or 2 * max(each.deadline for each in all_terms) + SLACK
        self.enrolled: EnrolledBounds = enrolled_bounds(all_terms)
        self._transport = transport
        self._rounds = list[str]()

    def __repr__(self) -> str:
        return f"RemotePool({', '.join(source.name for source in self.sources)})"

    def paths(self) -> list[Path]:
        """Path of every source."""
        return [(i,) for i in range(len(self.sources))]

    def members(self) -> tuple[Remote, ...]:
        """The sources, in order."""
        return self.sources

    def round(
        self,
        expected: QueryRequest,
        *,
        request: str | None = None,
        dropped: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Query all sources at once, except those that dropped out before.

        At the sources, the hash of a query is its id, so the same query gets the same answer
        under any ``request``, the caller's id of it.

        Raises
        ------
        ValueError
            If a source did not declare this query. Nothing is sent.
        DropoutError
            If fewer than ``min_sources`` sources answered. The round stays open: a repeat does not
            send the query to sources that answered.
        PendingError
            If answers are still on their way. The round stays open too.
        """
        check_additive(expected.query)
        skipped = {path[0]: why for path, why in (dropped or {}).items()}
        present = {i: source for i, source in enumerate(self.sources) if i not in skipped}
        for source in present.values():
            request_id = source.request(expected).id
            if request is not None:
                self.history.label(self.run, source.terms.source, request, request_id)
        query = expected.query
        identity = {
            "kind": type(query).__name__,
            "query": query.name,
            "settings": dict(query.settings),
            "bits": query.grid.bits,
            "entries": query.entries,
            "micro_epsilon": expected.micro_epsilon,
            "noise_multiplier": expected.noise_multiplier,
        }
        query_id = digest(canonical(identity))
        if query_id not in self._rounds:
            self._rounds.append(query_id)
        stored = self.history.find_round(self.run, query_id)
        if stored is None:
            number = self._rounds.index(query_id) + 1
            by_source = self._query_sources(expected, number, present)
            by_source |= {i: SkippedSource(why) for i, why in skipped.items()}
            responses = [by_source[i] for i in range(len(self.sources))]
            self._check_enough(responses)
            named = [(s.terms.source, r) for s, r in zip(self.sources, responses, strict=True)]
            outcome = ClosedRound(
                tuple(name for name, r in named if not isinstance(r, SkippedSource)),
                Frozen({name: r.reason for name, r in named if not isinstance(r, Release)}),
            )
            stored = self.history.close_round(self.run, query_id, outcome)
            if stored == outcome:
                return self._combine(expected, responses)
        # The round ended before, or just now in another process: that outcome holds.
        responses = []
        for i, source in enumerate(self.sources):
            source_id = source.terms.source
            response: SourceResponse | None
            if i in skipped:
                response = SkippedSource(skipped[i])
            elif (why := stored.dropouts.get(source_id)) is None:
                response = source.stored_response(expected)
            else:
                requested = source_id in stored.requested
                response = Dropout(why) if requested else SkippedSource(why)
            assert response is not None  # a round ends after its answers are in the history
            responses.append(response)
        self._check_enough(responses)
        return self._combine(expected, responses)

    def _query_sources(
        self, expected: QueryRequest, number: int, present: Mapping[int, Remote]
    ) -> dict[int, SourceResponse]:
        """Send requests to the sources that have not answered yet, and collect replies."""
        name = expected.query.name
        responses, requests = dict[int, SourceResponse](), dict[str, bytes]()
        queried = list[int]()
        for i, source in present.items():
            known = source.known_response(expected)
            if known is not None:
                responses[i] = known
                continue
            try:
                requests[source.terms.source] = source.prepare_request(expected, number)
            except BudgetError:
                if self.min_sources is None:
                    raise
                responses[i] = SkippedSource(_CANNOT_PAY)
                continue
            queried.append(i)
            self.watch(RoundEvent(number, name, i, "queried"))
        for i, response in responses.items():
            self._report(number, expected, i, response)
        self._collect(expected, number, requests, responses)
        for i in queried:
            if i not in responses:
                responses[i] = Dropout(LATE)
                self._report(number, expected, i, responses[i])
        if self._transport.by_hand:  # a person would have to carry a second request
            return responses
        # A source sends the same refusal for every reason, and an answer that missed the
        # deadline is ready now. A repeated query costs nothing.
        requests = {}
        for i in queried:
            if responses[i] == Dropout(REFUSED):
                source = present[i]
                requests[source.terms.source] = source.prepare_request(expected, number)
                self.watch(RoundEvent(number, name, i, "queried again"))
        self._collect(expected, number, requests, responses)
        return responses

    def _collect(
        self,
        expected: QueryRequest,
        number: int,
        requests: Mapping[str, bytes],
        responses: dict[int, SourceResponse],
    ) -> None:
        """Send requests and add the responses to them."""
        if not requests:
            return
        index = {source.terms.source: i for i, source in enumerate(self.sources)}
        for source, raw in self._transport.exchange(requests, timeout=self.timeout):
            if source not in requests or isinstance(responses.get(index[source]), Release):
                continue  # a reply that was not requested, or a repeated answer
            i = index[source]
            responses[i] = self.sources[i].receive(expected, raw)
            self._report(number, expected, i, responses[i])

    def _report(
        self, number: int, expected: QueryRequest, i: int, response: SourceResponse
    ) -> None:
        """Report the response of a source."""
        status: SourceStatus = "answered"
        why = "" if isinstance(response, Release) else response.reason
        if why == REFUSED:
            status, why = "refused", ""
        elif not isinstance(response, Release):
            status = "skipped" if isinstance(response, SkippedSource) else "dropped out"
        self.watch(RoundEvent(number, expected.query.name, i, status, why))

    def _combine(
        self, expected: QueryRequest, responses: Sequence[SourceResponse]
    ) -> PooledRelease:
        """Add the answers, and count the requests to sources that gave none."""
        answers = [SkippedSource(r.reason) if isinstance(r, Dropout) else r for r in responses]
        dropped: dict[Path, str] = {
            (i,): r.reason for i, r in enumerate(answers) if isinstance(r, SkippedSource)
        }
        release = combine_answers(
            expected,
            answers,
            self.sources,
            min_sources=self.min_sources,
            max_records=None,
            dropped=dropped,
        )
        unanswered: dict[Path, Event] = {
            (i,): expected.event(source.relation, source.unit)
            for i, (source, r) in enumerate(zip(self.sources, responses, strict=True))
            if isinstance(r, Dropout)
        }
        return replace(release, requested=Frozen({**release.requested, **unanswered}))

    def _check_enough(self, responses: Sequence[SourceResponse]) -> None:
        """Raise if too few sources answered, and name the others."""
        why = [None if isinstance(r, Release) else r.reason for r in responses]
        answered, needed = why.count(None), self.min_sources or len(why)
        if answered >= needed:
            return
        names = dict[str, list[str]]()
        for source, reason in zip(self.sources, why, strict=True):
            if reason is not None:
                names.setdefault(reason, []).append(source.name)
        dropouts = []
        for reason, who in names.items():
            more = f" and {len(who) - _MAX_NAMES} more" if len(who) > _MAX_NAMES else ""
            dropouts.append(f"{', '.join(who[:_MAX_NAMES])}{more}: {reason}")
        raise DropoutError(
            f"Expected answers of at least {needed} of {len(why)} sources, got "
            f"{answered} ({'; '.join(dropouts)}). The answers are stored: repeat the command "
            "when the others can answer, or require fewer sources.",
            tuple(why),
        )


def _check_pool(terms: tuple[Terms, ...]) -> None:
    """Refuse sources that cannot be queried together, before anything is sent."""
    if not terms:
        raise ValueError("Expected one source or more, got none.")
    for field in ("source", "key", "name"):
        seen = set[object]()
        for each in terms:
            if getattr(each, field) in seen:
                raise ValueError(
                    f"Expected sources of different institutions, got {each.name!r} twice (by "
                    f"its {field}). Omit one of them."
                )
            seen.add(getattr(each, field))
    for field, words in (("model", "score by one model"), ("relation", "have one relation")):
        names = dict[object, list[str]]()
        for each in terms:
            names.setdefault(getattr(each, field), []).append(each.name)
        if len(names) > 1:
            groups = "; ".join(
                f"{', '.join(who)}: {str(value)[:12]}" for value, who in names.items()
            )
            raise ValueError(
                f"Expected sources that all {words}, got {groups}. Omit some of them, or ask "
                "them to enroll again."
            )


@dataclass(frozen=True)
class SourcePlan:
    """What a recalibration will request of one source."""

    name: str
    answers: int  # maximum number
    known: int  # of these are in the history
    epsilon: float  # of all answers, as the source's ledger counts it
    delta: float
    left: float  # remaining epsilon according to the history
    left_delta: float
    why: str | None  # why the source is skipped; None if its budget suffices


def plan_sources(pool: RemotePool, steps: RecalibrationPlan) -> tuple[SourcePlan, ...]:
    """What each source will be asked for and charged, and whether its budget suffices.

    Nothing is sent.
    """
    plan = []
    for source in pool.sources:
        items = steps.items(source.relation, source.unit)
        unpaid = source.unpaid(items)
        why = source.history.fault(source.terms.source)
        try:
            source.require(unpaid)
        except BudgetError as error:
            why = str(error)
        events = [item.event for item in items for _ in range(item.times)]
        known = len(events) - sum(item.times for item in unpaid)
        cost, left = source.account.privacy(events), source.account.left(source.charges())
        plan.append(SourcePlan(source.name, len(events), known, *cost, *left, why))
    return tuple(plan)


def check_plan(pool: RemotePool, steps: RecalibrationPlan, plan: Sequence[SourcePlan]) -> None:
    """Refuse a recalibration that too few sources can pay for, before anything is sent."""
    why = [each.why for each in plan if each.why is not None]
    needed = len(plan) if pool.min_sources is None else pool.min_sources
    if len(plan) - len(why) < needed:
        enough = "all" if pool.min_sources is None else f"{needed}"
        others = f" And {len(why) - 1} more, as the plan shows." if len(why) > 1 else ""
        raise BudgetError(
            f"Expected {enough} of {len(plan)} sources to have enough budget for every query, "
            f"got {len(plan) - len(why)}. {why[0]}{others} Or require fewer sources."
        )
    try:
        find_unaffordable(pool, steps.items)
    except DropoutError as error:
        raise BudgetError(str(error)) from error


def source_costs(pool: RemotePool, result: Recalibration) -> tuple[SourceCost, ...]:
    """What every source was charged for a result."""
    costs = []
    for i, (source, why) in enumerate(zip(pool.sources, result.dropouts, strict=True)):
        events = [
            release.requested[i,]
            for release in result.releases
            if isinstance(release, PooledRelease) and (i,) in release.requested
        ]
        head = source.history.head(source.terms.source)
        costs.append(
            SourceCost(
                source.name,
                source.terms.key.fingerprint,
                source.unit.name,
                source.unit.max_contributions,
                source.relation,
                *source.account.privacy(events),
                why is None,
                why,
                None if head is None else LedgerHead(head.index, head.hash),
            )
        )
    return tuple(costs)


def recalibration_record(
    pool: RemotePool, result: Recalibration, name: str
) -> RecalibrationRecord:
    """The record of a recalibration in a study, which an artifact stores."""
    return RecalibrationRecord(
        study=name,
        made=today().isoformat(),
        method=result.method,
        map=result.map,
        guard=None if result.guard is None else result.guard.to_json(),
        temperatures={
            each: replace(one, low=_finite(one.low), high=_finite(one.high))
            for each, one in result.temperatures.items()
        },
        before=result.before,
        after=result.after,
        guarantee=result.statement,
        sources=source_costs(pool, result),
    )


def _finite(end: float | None) -> float | None:
    """The end of an interval; None if it is infinite, which JSON cannot represent."""
    return None if end is None or not math.isfinite(end) else end
