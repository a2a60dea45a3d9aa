"""Events taken apart into the mechanisms they consist of."""

from collections.abc import Iterable, Iterator

from veracal.privacy.budget import Unit
from veracal.privacy.costs.losses import for_rows
from veracal.privacy.events import (
    Approximate,
    AsReplaceOne,
    Composed,
    DiscreteLaplace,
    Event,
    Laplace,
    Parallel,
    PoissonGaussian,
    Pure,
    Repeated,
    Search,
)

Branch = dict[Event, int]  # mechanisms, and how often each one runs
_MOST = 256


def branches(event: Event, unit: Unit, *, keep_weights: bool = False) -> list[Branch]:
    """Take an event apart: all that may happen to one unit, one branch for each way.

    Disjoint parts are alternatives, since a unit is in one of them only; what composes with
    them stands in every branch. The cost of the event is that of its worst branch, found at
    the very end.

    Parameters
    ----------
    event : Event
    unit : Unit
        Mechanisms are returned as they touch all rows of the unit.
    keep_weights : bool
        Leave parallel events with weights as they are.
    """
    if isinstance(event, Composed):
        found: list[Branch] = [{}]
        for part in event.events:
            more = branches(part, unit, keep_weights=keep_weights)
            found = _distinct(joined((one, other)) for one in found for other in more)
        return found
    if isinstance(event, Repeated):
        inner = branches(event.event, unit)
        if len(inner) == 1:
            return [{leaf: n * event.times for leaf, n in inner[0].items()}]
        # The parts may be others each time, so a unit may be in one now and in another then.
        several: list[Branch] = [{}]
        for _ in range(event.times):
            several = _distinct(joined((one, other)) for one in several for other in inner)
        return several
    if isinstance(event, Parallel) and not (keep_weights and event.weights):
        return [branch for part in event.events for branch in branches(part, unit)]
    return [{for_rows(event, unit.at_most): 1}]


def mechanisms(event: Event) -> Iterator[Event]:
    """Every mechanism anywhere inside, whatever it is wrapped into."""
    if isinstance(event, Composed | Parallel):
        for part in event.events:
            yield from mechanisms(part)
    elif isinstance(event, Repeated | Search | AsReplaceOne):
        yield from mechanisms(event.event)
    else:
        yield event


def is_unbounded(leaf: Event) -> bool:
    """Whether nothing hides the records: an infinite loss."""
    if isinstance(leaf, Approximate):
        return leaf.delta >= 1
    if isinstance(leaf, Search | AsReplaceOne):
        found = branches(leaf.event, Unit())
        return any(n and is_unbounded(one) for branch in found for one, n in branch.items())
    if isinstance(leaf, Pure | Parallel | Composed | Repeated) or costs_nothing(leaf):
        return False
    # Gaussian noise of less than a millionth hides nothing: epsilon is some 1e11 and more.
    least = 0.0 if isinstance(leaf, Laplace | DiscreteLaplace) else 1e-6 * leaf.sensitivity
    return leaf.noise == 0 or leaf.noise < least


def costs_nothing(leaf: Event) -> bool:
    """Whether the mechanism never touches the records."""
    if isinstance(leaf, Pure):
        return leaf.epsilon == 0
    if isinstance(leaf, Approximate):
        return leaf.epsilon == 0 and leaf.delta == 0
    if isinstance(leaf, Search | AsReplaceOne):
        found = branches(leaf.event, Unit())
        return all(not n or costs_nothing(one) for branch in found for one, n in branch.items())
    if isinstance(leaf, Parallel | Composed | Repeated):
        return False
    idle = isinstance(leaf, PoissonGaussian) and leaf.rate == 0
    return idle or leaf.sensitivity == 0


def _distinct(found: Iterable[Branch]) -> list[Branch]:
    """Leave out branches that occur before, and refuse too many."""
    kept = {frozenset(branch.items()): branch for branch in found}
    if len(kept) > _MOST:
        raise ValueError(
            f"Expected at most {_MOST} combinations of parallel parts, got more. "
            "Compose the events of each part first, then put the parts in parallel once."
        )
    return list(kept.values())


def joined(parts: tuple[Branch, ...]) -> Branch:
    """Add up how often each mechanism runs in several compositions together."""
    total: Branch = {}
    for part in parts:
        for leaf, n in part.items():
            total[leaf] = total.get(leaf, 0) + n
    return total
