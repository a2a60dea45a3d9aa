"""Several sources that are asked many things, all of which the same ones have answered.

What questions cost together, and what their answers promise together.

Questions to one source or to several, all answered by the same ones.

What all private fitters share.
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
from veracal.errors import BudgetError, SilentError
from veracal.ledger import Item, Ledger, ledger_total
from veracal.queries import (
    AnswersByRound,
    ExpectedResponse,
    IndexedSources,
    MultiSource,
    Path,
    PayingSource,
    Pool,
    PooledRelease,
    Query,
    Release,
    Source,
    check_enough,
    is_declared,
    is_multi_source,
    is_pool,
    laplace_event,
)


class Cohort(AnswersByRound):
    """A pool in which whoever was silent once stays silent: map, guard and figures agree.

    Parameters
    ----------
    source : Several
    silent : mapping of path to str
        Who is not asked from the beginning, and why.

    Guarantees
    ----------
    It asks the source and nobody else. Adding again over fewer sources is made of released
    answers, and costs nothing.
    """

    def __init__(self, source: MultiSource, silent: Mapping[Path, str]) -> None:
        self.source, self.silent = source, dict(silent)

    def round(
        self,
        wanted: ExpectedResponse,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all but those that were silent before."""
        left_out = {**self.silent, **(silent or {})}
        release = self.source.round(wanted, request=request, silent=left_out)
        self.silent = {**left_out, **release.silent()}
        return release

    def paths(self) -> list[Path]:
        """Where each single source is."""
        return self.source.paths()


def added_over(source: Source, release: Release) -> Release:
    """An answer that was given before, of those alone that are still in the cohort."""
    if isinstance(source, Cohort) and isinstance(release, PooledRelease):
        return release.without(source.silent)
    return release


def silences(source: Source) -> tuple[str | None, ...]:
    """Why each single source was silent, None for those that answered everything."""
    if not isinstance(source, Cohort):
        return (None,)
    return tuple(_why(path, source.silent) for path in source.paths())


def _why(path: Sequence[int], silent: Mapping[Path, str]) -> str | None:
    """Why a source was silent, or a pool that it is in."""
    ends = (tuple(path[:length]) for length in range(1, len(path) + 1))
    return next((silent[end] for end in ends if end in silent), None)


_ONCE = "all sources together, if nobody has records at two; whoever has pays at each"
_OFTEN = (
    "all {n} sources together, if nobody has records at more than {times} of them; whoever has "
    "pays at each"
)
_MOVING = "a record replaced inside its source; one that moves to another source costs at both"
_TOO_POOR = "it cannot pay for everything that will be asked"


@dataclass(frozen=True)
class PricedQuery:
    """A question, and what one unit of the records pays for its answer.

    Attributes
    ----------
    query : Query
    micro_epsilon : int
        In millionths of epsilon.
    """

    query: Query
    micro_epsilon: int

    def event(self, relation: Relation, unit: Unit | None = None) -> Event:
        """What is charged for it."""
        return laplace_event(self.query, self.micro_epsilon, relation, unit)

    def of(self, source: Source, request: str | None = None) -> Release:
        """Ask it."""
        return source.answer(self.query, micro_epsilon=self.micro_epsilon, request=request)


def price(epsilon: float | None, micro_epsilon: int | None) -> int:
    """Millionths of epsilon, given one way or the other.

    Examples
    --------
    >>> price(0.1, None), price(None, 7)
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


def split(micro_epsilon: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Divide millionths of epsilon by shares, rounded down: never more than there are.

    Noise is derived from these, so that all questions can be paid to the last.

    Examples
    --------
    >>> split(1_000_000, [1, 1, 1])
    (333333, 333333, 333333)
    """
    _checks.whole(micro_epsilon=micro_epsilon)
    parts = tuple(int(micro_epsilon) * share // sum(shares) for share in shares)
    if min(parts) < 1:
        raise ValueError(
            f"Expected a millionth of epsilon or more for each of {len(shares)} questions, got "
            f"micro_epsilon={micro_epsilon!r} for all of them. Spend more."
        )
    return parts


def check_affordable(
    source: Any,
    items: Callable[[Relation, Unit, str | None], Iterable[Item]],
    request: str | None = None,
) -> None:
    """Refuse questions that a source cannot pay for to the last, before the first is charged.

    Of a pool that needs only some of its sources enough must be able to; an
    :class:`~veracal.calibration.private.session.QuerySession` then leaves out the others.

    What was charged before, under this id if there is one, counts as paid: it may be this very
    fit, which broke off. Between this and the charges others may spend what is left; the
    charges decide.

    Parameters
    ----------
    source : Source
        A :class:`~veracal.queries.PayingSource`, or a pool of some; others have no ledger.
    items : callable
        ``items(relation, unit, part)`` are the questions' costs.
    request : str, optional
        Id of the whole.
    """
    find_unaffordable(source, items, request)


def find_unaffordable(
    source: Any,
    items: Callable[[Relation, Unit, str | None], Iterable[Item]],
    request: str | None = None,
) -> dict[Path, str]:
    """Which sources of a pool cannot pay for everything, and may be left out.

    Raises
    ------
    BudgetError
        If one cannot that may not be left out.
    SilentError
        If too few of a pool can.
    """
    if is_declared(source) and isinstance(source, PayingSource):
        costs = items(source.relation, source.unit, source.part)
        source.require(source.unpaid(costs, request=request))
    return _poor(source, items, request) if is_pool(source) else {}


def _poor(
    pool: IndexedSources,
    items: Callable[[Relation, Unit, str | None], Iterable[Item]],
    request: str | None,
) -> dict[Path, str]:
    """The same of a pool."""
    found, why = dict[Path, str](), list[str | None]()
    for i, one in enumerate(pool.members()):
        why.append(None)
        try:
            inside = find_unaffordable(one, items, request)
            found |= {(i, *path): reason for path, reason in inside.items()}
        except (BudgetError, SilentError) as error:
            if pool.least is None and isinstance(error, BudgetError):
                raise BudgetError(f"source {i}: {error} Or let fewer answer: least.") from error
            if pool.least is None:
                raise
            found[i,] = why[i] = _TOO_POOR
    check_enough(why, pool.least)
    return found


def named(request: str | None, what: object) -> str | None:
    """Id of one question of several under a caller's id; None leaves it to the question."""
    return None if request is None else f"{request}: {what}"


def composed(events: Iterable[Event]) -> Event:
    """MultiSource events on the same records as one."""
    listed = tuple(events)
    return listed[0] if len(listed) == 1 else Composed(listed)


def planned(
    asks: Iterable[PricedQuery], relation: Relation, unit: Unit | None, part: str | None
) -> list[Item]:
    """Lines of a plan for a ledger that is opened for these questions."""
    return [Item(ask.query.name, ask.event(relation, unit), 1, part) for ask in asks]


def stated(
    releases: Sequence[Release],
    unit: Unit,
    *,
    covers: str,
    delta: float = 0.0,
    at_sources: int = 1,
    unasked: Sequence[PricedQuery] = (),
    ledger_total: str | None = None,
) -> Statement | None:
    r"""What all answers promise together; None where nothing protects them.

    The answers of a pool are composed for each of its sources, with everything it was asked
    for, and the worst of them counts.

    Parameters
    ----------
    releases : sequence of Release
    unit : Unit
    covers : str
        What the answers are about, in words.
    delta : float
    at_sources : int
        At how many sources of a pool one unit has records, at most. It pays at each of them.
    unasked : sequence of Ask
        Questions that would have been asked had the answers been others. They count: a
        guarantee is for whatever is answered, and may not depend on that.
    ledger_total : str, optional
        Total of the ledger that pays, in a sentence (:func:`total_of`).

    Guarantees
    ----------
    With m sources for a unit and pure costs, the m largest are added, and no m sources cost
    more. With a delta, one event is composed m times that holds every mechanism as often as any
    source was asked for it: it costs no less than any source, so m times no less than any m.
    """
    _checks.whole(at_sources=at_sources)
    if not all(release.private for release in releases):
        return None
    columns = _columns(releases, unasked, unit)
    times = min(int(at_sources), len(columns))
    event = _worst(columns) if times == 1 else _of(columns, times, delta, unit)
    told = [covers]
    if len(columns) > 1:
        told.append(_ONCE if times == 1 else _OFTEN.format(times=times, n=len(columns)))
        told += [_MOVING] if event.relation == "replace-one" else []
    return statement(event, delta, unit, covers=told, ledger_total=ledger_total)


def _columns(
    releases: Sequence[Release], unasked: Sequence[PricedQuery] = (), unit: Unit | None = None
) -> list[Event]:
    """What each source was asked for or might have been, all of it composed."""
    columns = dict[Path, list[Event]]()
    for release in releases:
        for path, event in _parts(release).items():
            columns.setdefault(path, []).append(event)
    for events in columns.values():
        relation = events[0].relation
        events += [ask.event(relation, unit) for ask in unasked]
    return [composed(events) for events in columns.values()]


def _worst(columns: Sequence[Event]) -> Event:
    """What the worst source costs; many are alike, and counted once."""
    every = tuple(dict.fromkeys(columns))
    return every[0] if len(every) == 1 else Parallel(every)


def _of(columns: Sequence[Event], times: int, delta: float, unit: Unit) -> Event:
    """What is paid at several sources, at most."""
    costs = {event: pure_epsilon(event, unit) for event in set(columns)}
    known = {event: cost for event, cost in costs.items() if cost is not None}
    if delta == 0 and len(known) == len(costs):
        ordered = sorted(columns, key=lambda event: known[event], reverse=True)
        return Composed(tuple(ordered[:times]))
    most = Counter[Event]()
    for event in costs:
        most |= Counter(event.events if isinstance(event, Composed) else (event,))
    return Composed(tuple(Repeated(event, n * times) for event, n in most.items()))


def unit_of(source: Any) -> Unit:
    """Whom a source protects, as far as it says so, or those of a pool do."""
    if is_declared(source):
        return source.unit
    if isinstance(source, Cohort):
        return unit_of(source.source)
    if isinstance(source, Pool):
        units = {unit_of(one) for one in source.sources}
        return max(units, key=lambda unit: unit.at_most)
    return Unit()


def total_of(source: Any) -> str | None:
    """Return the total of a source's ledger, as it stands now.

    None where the ledger is not here, and for pools, whose sources have one each.
    """
    ledger = getattr(source, "ledger", None)
    return ledger_total(ledger) if isinstance(ledger, Ledger) else None


def _parts(release: Release) -> Mapping[Path, Event]:
    """What each source of a pool was asked for, or the one source."""
    if isinstance(release, PooledRelease):
        return release.asked
    assert release.event is not None
    if isinstance(release.event, Parallel):
        return {(i,): event for i, event in enumerate(release.event.events)}
    return {(): release.event}


class QuerySession:
    """Questions to a source, one after the other.

    If the source is a pool, some of its sources may fall silent on the way. Every answer is
    then added again over the *cohort*, those that have answered everything so far, so that all
    answers are about the same records. Who was silent once is not asked again.

    Parameters
    ----------
    source : Source
    request : str, optional
        Id of the whole; every question gets one of its own from it. Without one every question
        is its own id.

    Guarantees
    ----------
    Adding again over fewer sources is made of released answers, and costs nothing. Every source
    that was asked counts in a statement with everything it was asked for, whether or not it
    answered and whether or not its answers were used.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Count, Pool, Public
    >>> scores = Scores.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> inquiry = QuerySession(Pool([Public(scores), Public(scores)], least=1))
    >>> inquiry.ask(PricedQuery(Count(), 1_000), "count").value, inquiry.present
    (4.0, 2)
    """

    def __init__(self, source: Source, request: str | None = None) -> None:
        self.source, self.request = source, request
        self._cohort = Cohort(source, {}) if is_multi_source(source) else source
        self._releases = list[Release]()

    def afford(self, items: Callable[[Relation, Unit, str | None], Iterable[Item]]) -> None:
        """Refuse what cannot be paid for to the last, before the first is charged.

        Of a pool that needs only some of its sources, those that cannot pay for everything are
        left out, uncharged, if enough remain.

        Parameters
        ----------
        items : callable
            As for :func:`~veracal.calibration.private.session.check_affordable`.
        """
        poor = find_unaffordable(self.source, items, self.request)
        if isinstance(self._cohort, Cohort):
            self._cohort.silent |= poor

    def ask(self, ask: PricedQuery, what: str) -> Release:
        """Ask a question.

        Parameters
        ----------
        ask : Ask
        what : str
            Which one it is, for its id.

        Raises
        ------
        SilentError
            If too few of several sources have answered everything so far.
        """
        return self._asked(ExpectedResponse(ask.query, micro_epsilon=ask.micro_epsilon), what)

    def ask_gaussian(self, query: Query, noise_multiplier: float, what: str) -> Release:
        """Ask a question with Gaussian noise."""
        return self._asked(ExpectedResponse(query, noise_multiplier=noise_multiplier), what)

    def _asked(self, wanted: ExpectedResponse, what: str) -> Release:
        """Ask whoever is in the cohort."""
        self._releases.append(wanted.of(self._cohort, named(self.request, what)))
        return self._releases[-1]

    @property
    def answers(self) -> tuple[Release, ...]:
        """All answers so far, of the cohort."""
        return tuple(added_over(self._cohort, release) for release in self._releases)

    @property
    def releases(self) -> tuple[Release, ...]:
        """All answers as they were given, those of sources that fell silent later included."""
        return tuple(self._releases)

    @property
    def asked(self) -> int:
        """Number of single sources that there are to ask."""
        return len(silences(self._cohort))

    @property
    def present(self) -> int:
        """Number of single sources that have answered everything so far."""
        return silences(self._cohort).count(None)

    @property
    def silences(self) -> dict[Path, str]:
        """Who is no longer asked and why, by the number of the source in the pool."""
        return dict(self._cohort.silent) if isinstance(self._cohort, Cohort) else {}


class PrivateFitter(BaseEstimator):  # type: ignore[misc]
    """A fitter of a map that asks a source, whoever that is, and reads no record itself."""

    keeps: ClassVar[bool] = False  # whether its maps are known to keep all predictions
    infers: ClassVar[bool] = False  # whether its answers also say whether its map helps

    map_: CalibrationMap
    private_: bool
    releases_: tuple[Release, ...]
    _ledger_total: str | None = None

    def event(self, relation: Relation = "add-remove", unit: Unit | None = None) -> Event:
        """Cost of one fit, known before any record is read."""
        return composed(ask.event(relation, unit) for ask in self._asks())

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        part: str | None = None,
    ) -> list[Item]:
        """Lines of a plan, for a ledger that is opened for this fit."""
        return planned(self._asks(), relation, unit, part)

    def _asks(self) -> list[PricedQuery]:
        """The questions of a fit, each with its cost; for fitters that ask for pure noise."""
        raise NotImplementedError

    def transform(self, scores: Scores) -> Scores:
        """Map scores, which are only read and may be anybody's."""
        check_is_fitted(self, "map_")
        return self.map_.transform(scores)

    @property
    def statement_(self) -> Statement | None:
        """What the fit promises to whom; None where nothing protects it: public records."""
        check_is_fitted(self, "map_")
        covers, unit, delta = self._about
        return stated(
            self.releases_, unit, covers=covers, delta=delta, ledger_total=self._ledger_total
        )

    def _keep(
        self,
        map_: CalibrationMap,
        releases: Sequence[Release],
        source: Source,
        *,
        covers: str,
        delta: float = 0.0,
    ) -> Self:
        """Keep what was learnt, and what it promises."""
        self.map_ = map_
        self.releases_ = tuple(releases)
        self.private_ = all(release.private for release in self.releases_)
        self._about = covers, unit_of(source), delta  # never the source: it has the records
        self._ledger_total = total_of(source)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags
