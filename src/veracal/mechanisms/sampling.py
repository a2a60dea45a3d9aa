"""Who takes part in a step, and what a step with those costs.

A sampler draws the batches and states the event of a noisy sum over them. Both come from one
record, so a descent cannot sample in one way and be accounted in another.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from veracal import _checks
from veracal._types import Ints
from veracal.accounting import RELATIONS, Gaussian, PoissonGaussian, Relation


@dataclass(frozen=True)
class Poisson:
    """Each record enters a batch with the same probability, independently of all others.

    Parameters
    ----------
    rate : float in (0, 1]
        The probability. Choose it from *declared* sizes (expected batch / declared number of
        records): the real number of records is private under add/remove.

    Guarantees
    ----------
    The size of a batch is random and may be zero. Batches are independent, and secret when
    the generator is: that is what amplification by sampling rests on.
    """

    rate: float

    def __post_init__(self) -> None:
        _checks.positive(rate=self.rate)
        _checks.fraction(rate=self.rate)
        object.__setattr__(self, "rate", float(self.rate))

    def batch(self, n: int, rng: np.random.Generator) -> Ints:
        """Draw the rows of one batch out of n, in ascending order.

        The distance to the next member is geometric, so time and memory grow with the
        batch and not with n. The first rows do not depend on n.
        """
        _checks.whole(n=n, least=0)
        expected = n * self.rate
        size = int(expected + 4 * expected**0.5) + 8
        found: list[Ints] = []
        last = -1
        while last < n:
            # A distance beyond the end is as good as any other, and cannot overflow.
            gaps = np.minimum(rng.geometric(self.rate, size), n + 1)
            gaps[0] += last
            found.append(gaps.cumsum())
            last = int(found[-1][-1])
        every = found[0] if len(found) == 1 else np.concatenate(found)
        return every[: every.searchsorted(n)]

    def batches(self, n: int, steps: int, rng: np.random.Generator) -> Iterator[Ints]:
        """Draw one batch for each step."""
        return (self.batch(n, rng) for _ in range(steps))

    def event(self, noise_std: float, bound: float, relation: Relation) -> PoissonGaussian:
        """Event of a sum over one batch, each row within ``bound``, plus Gaussian noise."""
        return PoissonGaussian(noise_std, bound, relation, rate=self.rate)


@dataclass(frozen=True)
class FullBatch:
    """Every record takes part in every step."""

    def batch(self, n: int, rng: np.random.Generator) -> Ints:
        """All n rows."""
        _checks.whole(n=n, least=0)
        return np.arange(n)

    def batches(self, n: int, steps: int, rng: np.random.Generator) -> Iterator[Ints]:
        """All n rows for each step."""
        return (self.batch(n, rng) for _ in range(steps))

    def event(self, noise_std: float, bound: float, relation: Relation) -> Gaussian:
        """Event of a sum over all rows, each row within ``bound``, plus Gaussian noise."""
        _checks.one_of(RELATIONS, relation=relation)
        # A replaced row leaves its old place and takes a new one.
        reach = 2 * bound if relation == "replace-one" else bound
        return Gaussian(noise_std, reach, relation)


Sampler = Poisson | FullBatch
