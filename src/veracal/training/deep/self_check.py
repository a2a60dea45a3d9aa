"""What a training run shows of itself afterwards: that it did what it was meant to."""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from veracal.privacy import Descent, Step

_FALSE_ALARM = 1e-9  # chance that noise as it should be is taken for too little
_BY_CHANCE = 0.01  # chance that noise alone is taken for something of the records
_DUE = 0.1  # of the bound, that an example's gradient is expected to add at the least
_SOME = 1 << 16  # coordinates whose sums over all steps are kept


@dataclass(frozen=True)
class SelfCheck:
    """What a run shows of itself; all of it follows from what was released.

    How many records a module failed for is not among it, and is not warned of: a warning ends
    up in logs and notebooks, and that count is about records. But where *all* of them add
    nothing, the noisy sums are noise alone, and that may be told.

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
    silent : bool
        Whether the noisy sums cannot be told from noise alone, though a batch of the declared
        size would show if each of its gradients added a tenth of the bound.
    problems : tuple of str
        In words; empty if there are none.
    """

    noise: float
    least: float
    unmoved: tuple[str, ...]
    constant: bool
    silent: bool = False

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
        if self.silent:
            found.append(
                "the noisy sums are as long as noise alone would be: records added next to "
                "nothing. Either the clip bound is far above their gradients, or the module "
                "fails for them (internal_.broken counts those)"
            )
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
        self._batch, self._due = float(descent.expected_batch), 0.0
        self._summed = np.zeros(min(size, _SOME))

    def note(self, step: Step) -> None:
        """Take in the noisy sum of a step."""
        multiplier = float(self._multipliers[step.number])
        std, noisy = multiplier * step.clip.bound, np.asarray(step.noisy_sum).reshape(-1)
        self._total += float(np.vdot(noisy, noisy)) / (std**2 * self._size)
        self._summed += noisy[: len(self._summed)] / std
        self._due += (_DUE * self._batch / multiplier) ** 2
        self._steps += 1

    def noise(self) -> tuple[float, float]:
        """Mean squared length, of what the noise alone should have, and its least."""
        if not self._steps:
            return 1.0, 0.0
        entries = self._steps * self._size
        return self._total / self._steps, float(chi2.ppf(_FALSE_ALARM, entries)) / entries

    def silent(self) -> bool:
        r"""Whether the sums look like noise alone, though they should not.

        Divided by the noise's standard deviation, the squares of all entries add up to a
        :math:`\chi^2` if nothing else is in them; so do those of the sums over the steps,
        divided by how many there are, which shows what is weak but always points the same way.
        """
        if not self._steps:
            return False
        entries = self._steps * self._size
        most = float(chi2.isf(_BY_CHANCE, entries))
        along = float(np.vdot(self._summed, self._summed)) / self._steps
        heard = self._total * self._size > most or along > chi2.isf(
            _BY_CHANCE, len(self._summed)
        )
        return self._due > 2 * (most - entries) and not heard
