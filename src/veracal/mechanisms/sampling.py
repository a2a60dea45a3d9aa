"""Samplers: the batches of DP-SGD, and the event of one noisy sum over a batch.

A sampler draws the batches and states the event of a noisy sum over them. Both come from one
object, so training cannot sample in one way and be accounted in another.
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
        The probability. Derive it from *declared* sizes (expected batch / declared number of
        records), since the true number of records is private under add/remove.

    Guarantees
    ----------
    The size of a batch is random and may be zero. Batches are independent, and secret if the
    generator is secret; amplification by sampling relies on both.
    """

    rate: float

    def __post_init__(self) -> None:
        _checks.positive(rate=self.rate)
        _checks.fraction(rate=self.rate)
        object.__setattr__(self, "rate", float(self.rate))

    def batch(self, n: int, rng: np.random.Generator) -> Ints:
        """Draw the rows of one batch out of n, in ascending order.

        Distances between successive members are geometric, so time and memory grow with the
        batch and not with n. The first rows do not depend on n.
        """
        _checks.whole(n=n, least=0)
        expected = n * self.rate
        size = int(expected + 4 * expected**0.5) + 8
        blocks: list[Ints] = []
        last = -1
        while last < n:
            # Cap distances at the end of the table, so that their sum cannot overflow.
            gaps = np.minimum(rng.geometric(self.rate, size), n + 1)
            gaps[0] += last
            blocks.append(gaps.cumsum())
            last = int(blocks[-1][-1])
        rows = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return rows[: rows.searchsorted(n)]

    def batches(self, n: int, steps: int, rng: np.random.Generator) -> Iterator[Ints]:
        """Draw one batch for each step."""
        return (self.batch(n, rng) for _ in range(steps))

    def event(self, noise_std: float, bound: float, relation: Relation) -> PoissonGaussian:
        """Event of a sum over one batch, each row within ``bound``, plus Gaussian noise."""
        return PoissonGaussian(noise_std, bound, relation, rate=self.rate)


@dataclass(frozen=True)
class FullBatch:
    """Use every record in every step."""

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
        # Replacing a row removes one contribution and adds another.
        sensitivity = 2 * bound if relation == "replace-one" else bound
        return Gaussian(noise_std, sensitivity, relation)


Sampler = Poisson | FullBatch
