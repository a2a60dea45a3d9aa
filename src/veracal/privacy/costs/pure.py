"""Costs that need no delta, as exact numbers."""

import math
from fractions import Fraction

from veracal import _checks
from veracal.privacy.budget import Unit
from veracal.privacy.costs.leaves import Branch, branches, costs_nothing
from veracal.privacy.events import AsReplaceOne, DiscreteLaplace, Event, Laplace, Parallel, Pure

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


def micro(epsilon: float) -> int:
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


def upwards(exact: Fraction) -> float:
    """The least float that is not below an exact number.

    Examples
    --------
    >>> upwards(Fraction(1, 4)), upwards(Fraction(1, 3)) > Fraction(1, 3)
    (0.25, True)
    """
    near = float(exact)
    return near if Fraction(near) >= exact else math.nextafter(near, math.inf)
