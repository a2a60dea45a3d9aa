"""Values that change along the steps of a descent, all known beforehand."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from veracal import _checks
from veracal._types import Floats, Ints

MOST_LEVELS = 64


class Schedule(ABC):
    """A learning rate or a noise multiplier for each step, counted from 0."""

    @abstractmethod
    def at(self, step: int) -> float:
        """The value at one step."""

    def values(self, steps: int) -> Floats:
        """The values at the first ``steps`` steps."""
        return np.array([self.at(step) for step in range(steps)], dtype=np.float64)


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every step."""

    value: float

    def __post_init__(self) -> None:
        _checks.positive(value=self.value)

    def at(self, step: int) -> float:
        """The value at one step."""
        return float(self.value)


@dataclass(frozen=True)
class Exponential(Schedule):
    r"""Decay by a constant factor: :math:`s \, e^{-r \lfloor t / k \rfloor}` at step t.

    Parameters
    ----------
    start : float > 0
        The value s at step 0.
    decay : float
        The rate r; negative lets the value grow.
    every : int
        The number k of steps between two changes: with the steps of an epoch, the value
        decays once an epoch.

    Examples
    --------
    >>> Exponential(1.0, decay=math.log(2), every=2).values(4)
    array([1. , 1. , 0.5, 0.5])
    """

    start: float
    decay: float
    every: int = 1

    def __post_init__(self) -> None:
        _checks.positive(start=self.start)
        _checks.whole(every=self.every)
        if self.decay != 0:
            _checks.positive(decay=abs(self.decay))

    def at(self, step: int) -> float:
        """The value at one step."""
        return float(self.start) * math.exp(-self.decay * (step // int(self.every)))


@dataclass(frozen=True)
class Linear(Schedule):
    r"""A straight line: :math:`a + (b - a) \min(1, t / T)` at step t.

    Parameters
    ----------
    start : float > 0
        The value a at step 0.
    end : float >= 0
        The value b from step T on. A descent of T steps ends one step before it, so a
        learning rate may fall to zero.
    steps : int
        The number T.

    Examples
    --------
    >>> Linear(1.0, 0.0, steps=4).values(4)
    array([1.  , 0.75, 0.5 , 0.25])
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _checks.positive(start=self.start)
        _checks.whole(steps=self.steps)
        if self.end != 0:
            _checks.positive(end=self.end)

    def at(self, step: int) -> float:
        """The value at one step."""
        done = min(1.0, step / self.steps)
        return float(self.start) * (1 - done) + float(self.end) * done


def value_at(value: float | Schedule, step: int) -> float:
    """The value at one step, of a number or of a schedule."""
    return value.at(step) if isinstance(value, Schedule) else float(value)


def values(value: float | Schedule, steps: int) -> Floats:
    """The values at the first steps, of a number or of a schedule."""
    if isinstance(value, Schedule):
        return value.values(steps)
    return np.full(steps, value, dtype=np.float64)


def levels(
    noise_multipliers: Iterable[float], most: int = MOST_LEVELS
) -> tuple[tuple[float, int], ...]:
    r"""Group the noise of every step into few levels, each as low as its lowest step.

    One step costs about :math:`1 / \sigma^2`. With :math:`n_i` steps at the i-th lowest
    multiplier, rounding adds least when every level holds the same share of
    :math:`\sum_i \sqrt{n_i (\sigma_{i-1}^{-2} - \sigma_i^{-2})}`, as in quantization at
    high resolution (Bennett 1948). Up to ``most`` distinct values stay as they are.

    Parameters
    ----------
    noise_multipliers : floats > 0
        One for each step.
    most : int
        Most levels.

    Returns
    -------
    tuple of (noise multiplier, number of steps)
        From the lowest noise to the highest.

    Guarantees
    ----------
    Every step is counted once, at a noise multiplier no higher than its own, so whatever
    grows as noise shrinks is never understated by the levels.

    Examples
    --------
    >>> levels([2.0, 1.0, 2.0, 1.5], most=2)
    ((1.0, 1), (1.5, 3))
    """
    _checks.whole(most=most)
    multipliers = np.asarray(list(noise_multipliers), dtype=np.float64)
    if not (multipliers.size and np.isfinite(multipliers).all() and (multipliers > 0).all()):
        raise ValueError(
            "Expected a finite noise multiplier > 0 for one step or more, "
            f"got {multipliers.tolist()[:5]!r}."
        )
    distinct, counts = np.unique(multipliers, return_counts=True)
    if len(distinct) > most:
        firsts = _first_of_each_level(distinct, counts, int(most))
        counts = np.add.reduceat(counts, firsts)
        distinct = distinct[firsts]
    return tuple((float(m), int(n)) for m, n in zip(distinct, counts, strict=True))


def _first_of_each_level(distinct: Floats, counts: Ints, most: int) -> Ints:
    """Where each level starts among ascending multipliers; ``most`` levels at the most."""
    costs = (distinct[0] / distinct) ** 2  # falls from 1 towards 0
    shares = np.cumsum(np.sqrt(counts[1:] * -np.diff(costs)))
    level = np.minimum(shares // (shares[-1] / most), most - 1)
    # The lowest multiplier is in level 0, and opens it.
    return np.append(0, 1 + np.flatnonzero(np.diff(level, prepend=0.0)))
