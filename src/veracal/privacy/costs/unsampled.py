"""What events would cost if their batches were not secret."""

import math

from veracal.privacy.budget import Unit
from veracal.privacy.costs.leaves import Branch, branches
from veracal.privacy.events import (
    Composed,
    Event,
    Gaussian,
    Parallel,
    PoissonGaussian,
    Repeated,
)


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
    found = branches(event, unit)
    if not any(isinstance(leaf, PoissonGaussian) for branch in found for leaf in branch):
        return None
    return Parallel(tuple(_known(branch, unit.at_most) for branch in found))


def _known(branch: Branch, rows: int) -> Event:
    """A composition whose batches are known."""
    sampled = {leaf: n for leaf, n in branch.items() if isinstance(leaf, PoissonGaussian)}
    parts: list[Event] = [
        Repeated(leaf, n) for leaf, n in branch.items() if leaf not in sampled
    ]
    for rate in {leaf.rate for leaf in sampled}:
        steps = sum(n for leaf, n in sampled.items() if leaf.rate == rate)
        left = math.ceil(rate * steps)
        for leaf in sorted(sampled, key=lambda leaf: leaf.noise / (leaf.sensitivity or 1)):
            if leaf.rate == rate and left > 0:
                used = min(left, sampled[leaf])
                left -= used
                parts.append(Repeated(_once(leaf, rows), used))
    return Composed(tuple(parts))


def _once(leaf: PoissonGaussian, rows: int) -> Gaussian:
    """A step that is known to use all rows of the unit."""
    reach = rows * leaf.sensitivity * (2 if leaf.relation == "replace-one" else 1)
    return Gaussian(leaf.noise, reach, leaf.relation)
