r"""Golden section: the least of a function with one valley, from few of its values.

With :math:`r = (\sqrt 5 - 1)/2` the bracket [low, high] is asked at two points,

.. math:: t_0 = high - r (high - low), \qquad t_1 = low + r (high - low),

and the part beyond the worse of them is cut off. The point that is left stands at a golden
point of what remains, so that every further cut takes one new value (Kiefer 1953). K cuts take
K + 1 values: two at the start and one after every cut *but the last*, whose value nobody would
look at. Luo et al. 2020 (https://arxiv.org/abs/2008.09643, App. C.1) print it so that a value
is paid for in vain; and where the new point is made of the old bracket, later cuts go astray.

Ends, points and values may be arrays of any shape, each entry a search of its own: no branch
is taken by a value. So many simulated searches run at once, by the code that asks real sources.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Bools, Floats, Ints

RATIO = (math.sqrt(5) - 1) / 2

Objective = Callable[[Floats], ArrayLike]
Asking = Callable[[Floats], Sequence[ArrayLike]]


@dataclass(frozen=True, eq=False)
class Bracket:
    """Ends between which the least is looked for.

    Attributes
    ----------
    low, high : arrays of one shape

    Examples
    --------
    >>> [float(point) for point in np.round(Bracket(0.5, 3.0).points(), 3)]
    [1.455, 2.045]
    """

    low: Floats
    high: Floats

    def points(self) -> tuple[Floats, Floats]:
        """The two golden points, the lower first."""
        reach = RATIO * (self.high - self.low)
        return self.high - reach, self.low + reach

    def narrowed(self, rises: Bools) -> "Bracket":
        """What is left: where ``rises`` the lower part up to the upper point, else the upper.

        Parameters
        ----------
        rises : array of bool
            Whether the function is larger at the upper of the points.
        """
        lower, upper = self.points()
        return Bracket(np.where(rises, self.low, lower), np.where(rises, upper, self.high))

    @property
    def middle(self) -> Floats:
        """Half way between the ends."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, eq=False)
class Narrowed:
    """What a search found, and what it saw.

    Attributes
    ----------
    bracket : Bracket
        The last one.
    points, values : arrays of shape (K + 1, ...)
        Where the function was asked, and what it was there, in that order.
    """

    bracket: Bracket
    points: Floats
    values: Floats

    @property
    def least(self) -> Floats:
        """Where the least is taken to be: the middle of the last bracket."""
        return self.bracket.middle


def evaluations(reductions: int) -> int:
    """How many values some reductions take.

    Examples
    --------
    >>> evaluations(5)
    6
    """
    _checks.whole(reductions=reductions)
    return int(reductions) + 1


def golden_section(
    objective: Objective, low: ArrayLike, high: ArrayLike, reductions: int = 5
) -> Narrowed:
    r"""Narrow a bracket by :math:`r^K`, with K + 1 values of a function.

    Where both values are equal the upper part is kept.

    Parameters
    ----------
    objective : callable
        From points to values, arrays of the shape of low and high. It is called K + 1 times,
        and never again with a point for which it was called.
    low, high : numbers or arrays of one shape
        Every low below its high.
    reductions : int
        The number K of cuts.

    Examples
    --------
    >>> found = golden_section(lambda t: (t - 2) ** 2, 0.5, 3.0, reductions=5)
    >>> len(found.points), round(float(found.bracket.high - found.bracket.low), 4)
    (6, 0.2254)
    """
    seen: list[ArrayLike] = []

    def ask(point: Floats) -> list[ArrayLike]:
        seen.append(objective(point))
        return seen

    return narrowed(ask, low, high, reductions)


def narrowed(ask: Asking, low: ArrayLike, high: ArrayLike, reductions: int = 5) -> Narrowed:
    """The same where a new value may change the ones before it.

    So it is if a source falls silent: values are then made anew, without it, for the points
    that are still compared. Cuts that were made stay.

    Parameters
    ----------
    ask : callable
        From a new point to the values of all points so far, in the order they were asked.
    low, high, reductions
        As of :func:`golden_section`.
    """
    total, bracket = evaluations(reductions), Bracket(*_ends(low, high))
    asked = list(bracket.points())
    for point in asked:
        values = ask(point)
    lower, upper = (np.full(bracket.low.shape, i) for i in (0, 1))  # their places in asked
    while True:
        seen = np.stack([np.asarray(value, dtype=np.float64) for value in values])
        rises = _at(seen, lower) < _at(seen, upper)
        bracket = bracket.narrowed(rises)
        if len(asked) == total:
            return Narrowed(bracket, np.stack(asked), seen)
        # The new point is of the new bracket, never of the old one.
        asked.append(np.where(rises, *bracket.points()))
        values, fresh = ask(asked[-1]), len(asked) - 1
        lower, upper = np.where(rises, fresh, upper), np.where(rises, lower, fresh)


def _at(seen: Floats, place: Ints) -> Floats:
    """What was seen at a place, which may be another one in each search."""
    result: Floats = np.take_along_axis(seen, place[None], axis=0)[0]
    return result


def _ends(low: ArrayLike, high: ArrayLike) -> tuple[Floats, Floats]:
    """Ends of a bracket as floats of one shape."""
    ends = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    bottom, top = np.broadcast_arrays(*ends)
    if not (np.isfinite(bottom).all() and np.isfinite(top).all() and (bottom < top).all()):
        raise ValueError(f"Expected finite ends, low < high, got low={low!r}, high={high!r}.")
    return bottom, top
