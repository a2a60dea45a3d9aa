"""What a training run shows of itself afterwards: that it did what it was meant to."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2

from veracal._types import Floats
from veracal.privacy import Descent, Step
from veracal.training.deep.layout import Layout

_FALSE_ALARM = 1e-9  # chance that noise as it should be is taken for too little


@dataclass(frozen=True)
class SelfCheck:
    """What a run shows of itself; all of it follows from what was released.

    Attributes
    ----------
    noise : float
        Mean squared length of the noisy sums, divided by what the noise alone should have.
        Far below 1, there was less noise than was paid for.
    least : float
        What the noise alone does not fall below, but once in a thousand million runs.
    unmoved : tuple of str
        Parameters that are what they were before.
    constant : bool
        Whether the network gives all made-up examples the same logits.
    problems : tuple of str
        In words; empty if there are none.
    """

    noise: float
    least: float
    unmoved: tuple[str, ...]
    constant: bool

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, if anything is."""
        found = []
        if self.noise < self.least:
            found.append(
                f"the noisy sums are {self.noise:.2g} times as long (squared) as the noise "
                "that was paid for: do not release this model"
            )
        if self.unmoved:
            names = ", ".join(self.unmoved[:5])
            found.append(f"{len(self.unmoved)} parameters did not move: {names}")
        if self.constant:
            found.append("the network gives every made-up example the same logits")
        return tuple(found)

    def warn(self) -> None:
        """Warn of what is wrong."""
        for problem in self.problems:
            warnings.warn(problem, stacklevel=2)


class Watched:
    """Measures the noisy sums of a run.

    Parameters
    ----------
    descent : Descent
    size : int
        Numbers in a sum.
    """

    def __init__(self, descent: Descent, size: int) -> None:
        self._multipliers, self._size = descent.noise_multipliers(), size
        self._total, self._steps = 0.0, 0

    def note(self, step: Step) -> None:
        """Take in the noisy sum of a step."""
        expected = (self._multipliers[step.number] * step.clip.bound) ** 2 * self._size
        noisy: Any = step.noisy_sum
        self._total += float(np.vdot(noisy, noisy) / expected)
        self._steps += 1

    def noise(self) -> tuple[float, float]:
        """Mean squared length, of what the noise alone should have, and its least."""
        if not self._steps:
            return 1.0, 0.0
        entries = self._steps * self._size
        return self._total / self._steps, float(chi2.ppf(_FALSE_ALARM, entries)) / entries


def unmoved(layout: Layout, before: Floats, after: Floats) -> tuple[str, ...]:
    """Parameters that are what they were."""
    return tuple(
        place.name
        for place in layout.places
        if np.array_equal(before[place.start : place.end], after[place.start : place.end])
    )
