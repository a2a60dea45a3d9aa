"""What questions cost together, and what their answers promise together."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veracal import _checks
from veracal.calibration.private.same_sources import SameSources
from veracal.errors import BudgetError, SilentError
from veracal.privacy import (
    Composed,
    Event,
    Item,
    Ledger,
    Parallel,
    Payer,
    Pool,
    PooledRelease,
    Query,
    Relation,
    Release,
    Repeated,
    Source,
    Statement,
    Unit,
    laplace_event,
    ledger_total,
    pure_epsilon,
    statement,
)
from veracal.privacy.answers.pooling import Members, Path, check_enough, is_pool
from veracal.privacy.answers.sources import declares
from veracal.privacy.costs.pure import micro

_ONCE = "all sources together, if nobody has records at two; whoever has pays at each"
_OFTEN = (
    "all {n} sources together, if nobody has records at more than {times} of them; whoever has "
    "pays at each"
)
_MOVING = "a record replaced inside its source; one that moves to another source costs at both"
_TOO_POOR = "it cannot pay for everything that will be asked"


@dataclass(frozen=True)
class Ask:
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
    return micro(epsilon)


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


def afford(
    source: Any,
    items: Callable[[Relation, Unit, str | None], Iterable[Item]],
    request: str | None = None,
) -> None:
    """Refuse questions that a source cannot pay for to the last, before the first is charged.

    Of a pool that needs only some of its sources enough must be able to; an
    :class:`~veracal.calibration.private.inquiry.Inquiry` then leaves out the others.

    What was charged before, under this id if there is one, counts as paid: it may be this very
    fit, which broke off. Between this and the charges others may spend what is left; the
    charges decide.

    Parameters
    ----------
    source : Source
        A :class:`~veracal.privacy.Payer`, or a pool of some; others have no ledger.
    items : callable
        ``items(relation, unit, part)`` are the questions' costs.
    request : str, optional
        Id of the whole.
    """
    unaffordable(source, items, request)


def unaffordable(
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
    if declares(source) and isinstance(source, Payer):
        costs = items(source.relation, source.unit, source.part)
        source.require(source.unpaid(costs, request=request))
    return _poor(source, items, request) if is_pool(source) else {}


def _poor(
    pool: Members,
    items: Callable[[Relation, Unit, str | None], Iterable[Item]],
    request: str | None,
) -> dict[Path, str]:
    """The same of a pool."""
    found, why = dict[Path, str](), list[str | None]()
    for i, one in enumerate(pool.members()):
        why.append(None)
        try:
            inside = unaffordable(one, items, request)
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
    """Several events on the same records as one."""
    listed = tuple(events)
    return listed[0] if len(listed) == 1 else Composed(listed)


def planned(
    asks: Iterable[Ask], relation: Relation, unit: Unit | None, part: str | None
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
    unasked: Sequence[Ask] = (),
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
    releases: Sequence[Release], unasked: Sequence[Ask] = (), unit: Unit | None = None
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
    if declares(source):
        return source.unit
    if isinstance(source, SameSources):
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
