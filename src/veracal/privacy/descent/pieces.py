"""Steps of very many weights, a piece at a time and in their place."""

import operator
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from veracal._types import Floats
from veracal.privacy.descent.updates import Update

_PIECE = 1 << 16  # weights of a piece: with all that a rule computes of them, they stay near


@runtime_checkable
class Entrywise(Update, Protocol):
    """An update rule under which every weight follows its own gradient alone.

    What it remembers is nothing, an array of the shape of the weights, or a tuple of such.
    """

    def part(self, start: int, end: int) -> Update:
        """The rule for some of the weights: those from ``start`` to before ``end``."""


def own(state: Any, weights: Floats) -> Any:
    """What a rule remembers, in arrays of its own: each may be written over by itself."""
    seen: list[Any] = [weights]

    def apart(one: Any) -> Any:
        kept = any(np.shares_memory(one, other) for other in seen)
        seen.append(one)
        return np.array(one) if kept or not one.flags.writeable else one

    return _mapped(apart, state)


def step_in_place(
    update: Update,
    weights: Floats,
    gradient: Callable[[slice], Floats],
    state: Any,
    t: int,
) -> Any:
    """Let weights follow their gradient, and write over them.

    The numbers are those of ``update.step``. An :class:`Entrywise` rule takes some weights at
    a time, so that nothing of the size of all of them is made beside; what it remembers is
    written over, too.

    Parameters
    ----------
    update : Update
    weights : array of shape (n,)
    gradient : callable
        Gives the gradient of some of the weights.
    state : object
        What the rule remembers, by :func:`own`.
    t : int
        The step.

    Returns
    -------
    object
        What the rule remembers now.
    """
    if not isinstance(update, Entrywise):  # of which nobody knows what it remembers
        moved, state = update.step(weights.copy(), gradient(slice(None)), state, t)
        weights[...] = moved
        return state
    for at in _spans(len(weights)):
        rule = update.part(at.start, at.stop)
        some = _mapped(operator.itemgetter(at), state)
        moved, after = rule.step(weights[at], gradient(at), some, t)
        old = (weights[at], *_leaves(some))
        new = [_apart(one, old) for one in (moved, *_leaves(after))]
        for place, values in zip(old, new, strict=True):
            place[...] = values
    return state


def _apart(array: Floats, others: tuple[Floats, ...]) -> Floats:
    """An array, copied if it lies where another is: a rule may give back what it was given."""
    shared = any(np.may_share_memory(array, other) for other in others)
    return np.array(array) if shared else array


def _spans(size: int) -> Iterator[slice]:
    """Pieces of a vector."""
    return (slice(i, min(i + _PIECE, size)) for i in range(0, size, _PIECE))


def _leaves(state: Any) -> tuple[Any, ...]:
    """The arrays of what a rule remembers."""
    if state is None:
        return ()
    return tuple(state) if isinstance(state, tuple) else (state,)


def _mapped(change: Callable[[Any], Any], state: Any) -> Any:
    """The same with every array changed."""
    if isinstance(state, tuple):
        made = [change(one) for one in state]
        return tuple(made) if type(state) is tuple else type(state)(*made)
    return change(state) if isinstance(state, np.ndarray) else state
