"""What events would cost if their batches were not secret."""

import math
from dataclasses import replace

from veracal.privacy.budget import Unit
from veracal.privacy.costs.leaves import Branch, branches, mechanisms
from veracal.privacy.events import (
    AsReplaceOne,
    Composed,
    Event,
    Gaussian,
    Parallel,
    PoissonGaussian,
    Pure,
    Repeated,
    Search,
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
