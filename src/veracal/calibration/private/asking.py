"""What questions cost together, and what their answers promise together."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from veracal import _checks
from veracal.calibration.paid import Paid
from veracal.privacy import (
    Composed,
    Event,
    Holder,
    Item,
    Parallel,
    Pool,
    Query,
    Relation,
    Release,
    Source,
    Statement,
    Unit,
    laplace_event,
    statement,
)
from veracal.privacy.costs.pure import micro

_ONCE = "all sources together, if nobody has records at two; whoever has pays at each"


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

    What was charged before, under this id if there is one, counts as paid: it may be this very
    fit, which broke off. Between this and the charges others may spend what is left; the
    charges decide.

    Parameters
    ----------
    source : Source
        A holder, or a pool of some; others have no ledger.
    items : callable
        ``items(relation, unit, part)`` are the questions' costs.
    request : str, optional
        Id of the whole.
    """
    for one in source.sources if isinstance(source, Pool) else (source,):
        if isinstance(one, Pool):
            afford(one, items, request)
        elif isinstance(one, Holder):
            budget = one.ledger.budget
            costs = items(budget.relation, budget.unit, one.part)
            one.require(one.unpaid(costs, request=request))


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
    releases: Sequence[Release], unit: Unit, *, covers: str, delta: float = 0.0
) -> Statement | None:
    """What all answers promise together; None where nothing protects them.

    The answers of a pool are composed for each of its sources, and the worst of them counts.
    """
    if not all(release.private for release in releases):
        return None
    columns = zip(*(_parts(release) for release in releases), strict=True)
    every = tuple(composed(column) for column in columns)
    event = every[0] if len(every) == 1 else Parallel(every)
    told = (covers,) if len(every) == 1 else (covers, _ONCE)
    return statement(event, delta, unit, covers=told)


def unit_of(source: Any) -> Unit:
    """Whom a source protects, as far as it says so: by its ledger, or those of a pool."""
    if isinstance(source, Holder):
        return source.ledger.budget.unit
    if isinstance(source, Pool):
        units = {unit_of(one) for one in source.sources}
        return max(units, key=lambda unit: unit.at_most)
    if isinstance(source, Paid) and source.unit is not None:
        return source.unit
    return Unit()


def _parts(release: Release) -> tuple[Event, ...]:
    """What each source of a pool charged, or the one source."""
    if isinstance(release.event, Parallel):
        return release.event.events
    assert release.event is not None
    return (release.event,)
