"""The mechanisms of an event, and costs that have a closed form.

Decomposes an event into its mechanisms, computes exact pure costs and the Gaussian mechanism's
exact curve, and the cost that an event would have without amplification by sampling.
"""

import math
from collections.abc import Iterator
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
_MAX_BRANCHES = 256


def branches(event: Event, unit: Unit, *, keep_weights: bool = False) -> list[Branch]:
    """Decompose an event into branches: the alternative compositions that may affect one unit.

    Disjoint partitions are alternatives, since a unit is in only one of them. Mechanisms that
    compose with them appear in every branch. The cost of the event is the cost of its worst
    branch.

    The returned mechanisms act on all rows of the unit at once. With ``keep_weights``, parallel
    events with weights stay undivided.
    """
    if isinstance(event, Composed):
        result: list[Branch] = [{}]
        for part in event.events:
            result = _combine(result, branches(part, unit, keep_weights=keep_weights))
        return result
    if isinstance(event, Repeated):
        inner = branches(event.event, unit)
        if len(inner) == 1:
            return [{leaf: n * event.times for leaf, n in inner[0].items()}]
        # Partitions may change between repetitions, so a unit may be in a different one each
        # time.
        result = [{}]
        for _ in range(event.times):
            result = _combine(result, inner)
        return result
    if isinstance(event, Parallel) and not (keep_weights and event.weights):
        return [branch for part in event.events for branch in branches(part, unit)]
    return [{for_rows(event, unit.max_contributions): 1}]


def mechanisms(event: Event) -> Iterator[Event]:
    """Yield every mechanism inside an event, at any depth."""
    if isinstance(event, Composed | Parallel):
        for part in event.events:
            yield from mechanisms(part)
    elif isinstance(event, Repeated | Search | AsReplaceOne):
        yield from mechanisms(event.event)
    else:
        yield event


def is_unbounded(leaf: Event) -> bool:
    """Whether the privacy loss is infinite."""
    if isinstance(leaf, Approximate):
        return leaf.delta >= 1
    if isinstance(leaf, Search | AsReplaceOne):
        inner = branches(leaf.event, Unit())
        return any(n and is_unbounded(one) for branch in inner for one, n in branch.items())
    if isinstance(leaf, Pure | Parallel | Composed | Repeated) or costs_nothing(leaf):
        return False
    # Gaussian noise below a millionth of the sensitivity protects nothing: epsilon exceeds
    # 1e11.
    least = 0.0 if isinstance(leaf, Laplace | DiscreteLaplace) else 1e-6 * leaf.sensitivity
    return leaf.noise == 0 or leaf.noise < least


def costs_nothing(leaf: Event) -> bool:
    """Whether the mechanism's output does not depend on the records."""
    if isinstance(leaf, Pure):
        return leaf.epsilon == 0
    if isinstance(leaf, Approximate):
        return leaf.epsilon == 0 and leaf.delta == 0
    if isinstance(leaf, Search | AsReplaceOne):
        inner = branches(leaf.event, Unit())
        return all(not n or costs_nothing(one) for branch in inner for one, n in branch.items())
    if isinstance(leaf, Parallel | Composed | Repeated):
        return False
    idle = isinstance(leaf, PoissonGaussian) and leaf.rate == 0
    return idle or leaf.sensitivity == 0


def _combine(first: list[Branch], second: list[Branch]) -> list[Branch]:
    """Compose every branch with every other one, without repetitions; raise if too many."""
    merged = [merge_branches(one, other) for one in first for other in second]
    kept = {frozenset(branch.items()): branch for branch in merged}
    if len(kept) > _MAX_BRANCHES:
        raise ValueError(
            f"Expected at most {_MAX_BRANCHES} combinations of parallel partitions, got more. "
            "Compose the events of each partition first, then combine them in one Parallel."
        )
    return list(kept.values())


def merge_branches(one: Branch, other: Branch) -> Branch:
    """Add the counts of each mechanism of two compositions."""
    total = dict(one)
    for leaf, n in other.items():
        total[leaf] = total.get(leaf, 0) + n
    return total


def gaussian_ratio(branch: Branch) -> float | None:
    """Sensitivity over noise of the Gaussian mechanism equivalent to a branch of Gaussians.

    None if the branch contains any other mechanism.
    """
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
        epsilon = float(get_epsilon_gaussian(1 / ratio, delta))
    return epsilon * (1 + 1e-9)


def gaussian_delta(ratio: float, epsilon: float) -> float:
    r"""Exact delta of a Gaussian mechanism whose sensitivity is ``ratio`` times its noise.

    .. math:: \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)
    """
    near, far = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
    delta = float(special.ndtr(near) - math.exp(epsilon + special.log_ndtr(far)))
    return min(1.0, max(0.0, delta) * (1 + 1e-9) + 4e-16)  # the difference cancels digits


MICRO = 1_000_000


def pure_epsilon(event: Event, unit: Unit | None = None) -> Fraction | None:
    """The exact sum of pure costs, or None if some mechanism has no pure cost.

    An epsilon given by the caller is read as its shortest decimal representation:
    ``Pure(0.1)`` costs exactly one tenth. Noise scales are read as the exact binary numbers.
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
        If some mechanism of the event has no pure cost.
    """
    cost = pure_epsilon(event, unit)
    if cost is None:
        raise ValueError(
            f"Expected an event with a pure cost, got {event!r}. Use (discrete) Laplace noise, "
            "or a ledger with delta > 0."
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
        elif isinstance(leaf, Parallel):  # kept for its weights, which a pure cost does not use
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
    """Convert epsilon to whole millionths of its decimal representation, rounded down.

    Examples
    --------
    >>> to_micro(0.3)
    300000
    """
    _checks.positive(epsilon=epsilon)
    micro = math.floor(Fraction(repr(float(epsilon))) * MICRO)
    if micro < 1:
        raise ValueError(f"Expected epsilon of at least 1e-6, got epsilon={epsilon!r}.")
    return micro


def round_up_float(exact: Fraction) -> float:
    """The smallest float that is not below an exact number.

    Examples
    --------
    >>> round_up_float(Fraction(1, 4)), round_up_float(Fraction(1, 3)) > Fraction(1, 3)
    (0.25, True)
    """
    near = float(exact)
    return near if Fraction(near) >= exact else math.nextafter(near, math.inf)


def without_sampling(event: Event, unit: Unit | None = None) -> Event | None:
    r"""The event without amplification by sampling.

    Of T steps on batches drawn at rate q, a record is assumed to be used in the
    :math:`\lceil qT \rceil` steps with the least noise, and these steps are assumed to be
    public. This covers every choice of batches that does not depend on the records and uses no
    record more often, such as successive passes in shuffled order.

    Returns
    -------
    Event or None
        The event for all rows of the unit. None if nothing is sampled.
    """
    unit = unit or Unit()
    if not any(isinstance(leaf, PoissonGaussian) for leaf in mechanisms(event)):
        return None
    return Parallel(
        tuple(_with_known_batches(branch, unit) for branch in branches(event, unit))
    )


def _with_known_batches(branch: Branch, unit: Unit) -> Event:
    """The composition if its batches were public, for all rows of the unit."""
    sampled: dict[PoissonGaussian, int] = {}
    parts: list[Event] = []
    for leaf, n in branch.items():
        if isinstance(leaf, PoissonGaussian):
            sampled[leaf] = n
            continue
        if isinstance(leaf, Search | AsReplaceOne):
            inside = branches(leaf.event, unit)
            whole = Parallel(tuple(_with_known_batches(one, unit) for one in inside))
            leaf = replace(leaf, event=whole)
        parts.append(Repeated(leaf, n))
    for rate in {leaf.rate for leaf in sampled}:
        steps = sum(n for leaf, n in sampled.items() if leaf.rate == rate)
        left = math.ceil(rate * steps)
        for leaf in sorted(sampled, key=lambda leaf: leaf.noise / (leaf.sensitivity or 1)):
            if leaf.rate == rate and left > 0:
                used = min(left, sampled[leaf])
                left -= used
                both = 2 if leaf.relation == "replace-one" else 1
                sensitivity = unit.max_contributions * leaf.sensitivity * both
                parts.append(Repeated(Gaussian(leaf.noise, sensitivity, leaf.relation), used))
    return Composed(tuple(parts) or (Pure(0.0, next(iter(branch)).relation),))
