"""Events taken apart into the mechanisms they consist of.

Gaussian noise without sampling, in closed form.

Costs that need no delta, as exact numbers.

What events would cost if their batches were not secret.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
from dp_accounting import get_epsilon_gaussian
from scipy import special

from veracal import _checks
from veracal.accounting.events import (
    Approximate,
    AsReplaceOne,
    Composed,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Parallel,
    PoissonGaussian,
    Pure,
    Repeated,
    Search,
    Unit,
)
from veracal.accounting.pld import for_rows

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


def gaussian_ratio(branch: Branch) -> float | None:
    """Sensitivity over noise of the one Gaussian that many are together, if nothing else is."""
    squares = [
        n * (leaf.sensitivity / leaf.noise) ** 2
        for leaf, n in branch.items()
        if isinstance(leaf, Gaussian)
    ]
    return math.sqrt(sum(squares)) if len(squares) == len(branch) else None


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Exact epsilon of a Gaussian mechanism (Balle and Wang 2018, Theorem 8), rounded up."""
    if ratio <= 2 * delta:  # the total variation, ratio / sqrt(2 pi) at most, is within delta
        return 0.0
    with np.errstate(all="ignore"):
        found = float(get_epsilon_gaussian(1 / ratio, delta))
    return found * (1 + 1e-9)


def gaussian_delta(ratio: float, epsilon: float) -> float:
    r"""Exact delta of a Gaussian mechanism whose sensitivity is ``ratio`` times its noise.

    .. math:: \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)
    """
    near, far = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
    found = float(special.ndtr(near) - math.exp(epsilon + special.log_ndtr(far)))
    return min(1.0, max(0.0, found) * (1 + 1e-9) + 4e-16)  # the difference cancels digits


MICRO = 1_000_000


def pure_epsilon(event: Event, unit: Unit | None = None) -> Fraction | None:
    """The exact sum of pure costs, or None if a part has none.

    A float of the caller's is taken for the decimal number it is written as: ``Pure(0.1)``
    costs a tenth. Scales of noise are taken for the exact numbers they are.
    """
    unit = unit or Unit()
    sums = [branch_pure(branch, unit) for branch in branches(event, unit)]
    known = [cost for cost in sums if cost is not None]
    return max(known) if len(known) == len(sums) else None


def micro_epsilon(event: Event, unit: Unit | None = None) -> int:
    """Pure cost in millionths of epsilon, rounded up.

    Raises
    ------
    ValueError
        If some part of the event has no pure cost.
    """
    cost = pure_epsilon(event, unit)
    if cost is None:
        raise ValueError(
            f"Expected an event of pure cost, got {event!r}. Use (discrete) Laplace noise, or "
            "a ledger with a delta."
        )
    return math.ceil(cost * MICRO)


def branch_pure(branch: Branch, unit: Unit) -> Fraction | None:
    """Exact sum of pure costs."""
    total = Fraction(0)
    for leaf, n in branch.items():
        if not n or costs_nothing(leaf):
            continue
        if isinstance(leaf, Pure):
            total += n * Fraction(repr(leaf.epsilon))
        elif isinstance(leaf, Laplace | DiscreteLaplace) and leaf.noise > 0:
            total += n * Fraction(leaf.sensitivity) / Fraction(leaf.noise)
        elif isinstance(leaf, Parallel):  # kept whole for its weights; a pure cost has no use
            worst = pure_epsilon(leaf, unit)
            if worst is None:
                return None
            total += n * worst
        elif isinstance(leaf, AsReplaceOne):
            inner = pure_epsilon(leaf.event, unit)
            if inner is None:
                return None
            total += 2 * n * inner
        else:
            return None
    return total


def to_micro(epsilon: float) -> int:
    """Whole millionths in a number of the caller's, as it is written in decimal, rounded down.

    Examples
    --------
    >>> micro(0.3)
    300000
    """
    _checks.positive(epsilon=epsilon)
    found = math.floor(Fraction(repr(float(epsilon))) * MICRO)
    if found < 1:
        raise ValueError(f"Expected a millionth or more, got epsilon={epsilon!r}.")
    return found


def round_up_float(exact: Fraction) -> float:
    """The least float that is not below an exact number.

    Examples
    --------
    >>> upwards(Fraction(1, 4)), upwards(Fraction(1, 3)) > Fraction(1, 3)
    (0.25, True)
    """
    near = float(exact)
    return near if Fraction(near) >= exact else math.nextafter(near, math.inf)


def without_sampling(event: Event, unit: Unit | None = None) -> Event | None:
    r"""The event without the amplification that secret batches give.

    Of T steps on batches drawn at rate q, a record is taken to be used in
    :math:`\lceil qT \rceil`, those with the least noise, and everybody knows in which. This
    covers every way of choosing batches in which no record is used more often and the choice
    depends on no record: one pass after another in a shuffled order, for example.

    Returns
    -------
    Event or None
        With all rows of the unit in it already. None where nothing is sampled.
    """
    unit = unit or Unit()
    if not any(isinstance(leaf, PoissonGaussian) for leaf in mechanisms(event)):
        return None
    return Parallel(tuple(_known(branch, unit) for branch in branches(event, unit)))


def _known(branch: Branch, unit: Unit) -> Event:
    """A composition whose batches are known."""
    sampled = {leaf: n for leaf, n in branch.items() if isinstance(leaf, PoissonGaussian)}
    parts: list[Event] = [
        Repeated(_unwrapped(leaf, unit), n) for leaf, n in branch.items() if leaf not in sampled
    ]
    for rate in {leaf.rate for leaf in sampled}:
        steps = sum(n for leaf, n in sampled.items() if leaf.rate == rate)
        left = math.ceil(rate * steps)
        for leaf in sorted(sampled, key=lambda leaf: leaf.noise / (leaf.sensitivity or 1)):
            if leaf.rate == rate and left > 0:
                used = min(left, sampled[leaf])
                left -= used
                parts.append(Repeated(_once(leaf, unit.at_most), used))
    return Composed(tuple(parts) or (Pure(0.0, next(iter(branch)).relation),))


def _unwrapped(leaf: Event, unit: Unit) -> Event:
    """A search or a conversion, with all rows and known batches inside it."""
    if not isinstance(leaf, Search | AsReplaceOne):
        return leaf
    inside = tuple(_known(branch, unit) for branch in branches(leaf.event, unit))
    return replace(leaf, event=Parallel(inside))


def _once(leaf: PoissonGaussian, rows: int) -> Gaussian:
    """A step that is known to use all rows of the unit."""
    reach = rows * leaf.sensitivity * (2 if leaf.relation == "replace-one" else 1)
    return Gaussian(leaf.noise, reach, leaf.relation)
