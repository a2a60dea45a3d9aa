"""Batches are Poisson, as accounted.

Three statistics, each at alpha = 1e-6: how much batch sizes vary, how often a record is in two
batches in a row, and how much records differ in how often they were drawn. Shuffling, batches
of a fixed size and similar samplers fail at least one. Empty batches must have the right
frequency.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from veracal import _random
from veracal.mechanisms.sampling import Poisson

NAME = "sampler"
ALPHA = 1e-6


@dataclass(frozen=True)
class Shuffled(Poisson):
    """Walk through a shuffled list, a batch at a time."""

    def batch(self, n: int, rng: np.random.Generator) -> np.ndarray:
        size = max(1, round(n * self.rate))
        left = self.__dict__.pop("left", ())
        if len(left) < size:
            left = rng.permutation(n)
        self.__dict__["left"] = left[size:]
        return np.sort(left[:size])


@dataclass(frozen=True)
class FixedSize(Poisson):
    """Draw the expected number of records, always."""

    def batch(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return np.sort(rng.choice(n, max(1, round(n * self.rate)), replace=False))


@dataclass(frozen=True)
class NeverEmpty(Poisson):
    """Redraw empty batches."""

    def batch(self, n: int, rng: np.random.Generator) -> np.ndarray:
        while len(rows := super().batch(n, rng)) == 0:
            pass
        return rows


@dataclass(frozen=True)
class AnotherRate(Poisson):
    """Sample five percent more often than accounted."""

    def batch(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return Poisson(1.05 * self.rate).batch(n, rng)


@dataclass(frozen=True)
class HalfAccounted(Poisson):
    """Account for half the rate."""

    def event(self, noise_std, bound, relation):  # type: ignore[no-untyped-def]
        return Poisson(self.rate / 2).event(noise_std, bound, relation)


@dataclass(frozen=True)
class ByRow(Poisson):
    """Draw later rows more often."""

    def batch(self, n: int, rng: np.random.Generator) -> np.ndarray:
        rates = self.rate * np.linspace(0.7, 1.3, n)
        return np.flatnonzero(rng.random(n) < rates)


@dataclass(frozen=True)
class Sticky(Poisson):
    """Use every batch twice."""

    def batch(self, n: int, rng: np.random.Generator) -> np.ndarray:
        rows: np.ndarray | None = self.__dict__.pop("rows", None)
        if rows is None:
            rows = self.__dict__["rows"] = super().batch(n, rng)
        return rows


CORRECT: Callable[[float], Poisson] = Poisson
MUTANTS: dict[str, Callable[[float], Poisson]] = {
    "M13 shuffling for Poisson": Shuffled,
    "fixed batch size": FixedSize,
    "M14 empty batches drawn again": NeverEmpty,
    "a rate 5 % higher": AnotherRate,
    "accounted at half the rate": HalfAccounted,
    "some rows more often": ByRow,
    "every batch twice": Sticky,
}


def run(subject: Callable[[float], Poisson], *, long: bool) -> str:
    """Test the three statistics and the empty batches."""
    rng = _random.secret_generator() if long else np.random.default_rng(0)
    steps, worst = (10_000 if long else 1_000), 1.0
    for n, rate in ((1_000, 0.05), (400, 0.5), (20_000, 0.001)):
        sampler = subject(rate)
        stated = sampler.event(1.0, 1.0, "add-remove").rate
        assert stated == rate, f"sampled at {rate}, accounted at {stated}"
        members = np.zeros((steps, n), dtype=bool)
        for step in range(steps):
            members[step, sampler.batch(n, rng)] = True
        for name, pvalue in statistics(members, rate).items():
            assert pvalue > ALPHA, f"{name} at rate {rate}: p = {pvalue:.1e}"
            worst = min(worst, pvalue)
    empty = empty_pvalue(subject(0.05), steps, rng)
    assert empty > ALPHA, f"empty batches are too rare or too many: p = {empty:.1e}"
    return f"3 statistics at 3 rates, smallest p = {worst:.3f}; empty batches p = {empty:.2f}"


def dispersion(counts: np.ndarray, trials: int, rate: float) -> float:
    """Two-sided p-value of the variance of counts against the binomial one."""
    law = stats.binom(trials, rate)
    mean, variance, _, excess = (float(moment) for moment in law.stats("mvsk"))
    squares = (counts - mean) ** 2 / variance
    deviation = (squares.mean() - 1) / np.sqrt((2 + excess) / len(counts))
    return 2 * float(stats.norm.sf(abs(deviation)))


def statistics(members: np.ndarray, rate: float) -> dict[str, float]:
    """P-values of the three statistics."""
    steps, n = members.shape
    pairs = members[0 : steps - 1 : 2] & members[1:steps:2]  # disjoint, so independent
    return {
        "batch size": dispersion(members.sum(axis=1), n, rate),
        "mean size": float(stats.binomtest(int(members.sum()), members.size, rate).pvalue),
        "records in two batches in a row": float(
            stats.binomtest(int(pairs.sum()), pairs.size, rate**2).pvalue
        ),
        "how often each record was drawn": dispersion(members.sum(axis=0), steps, rate),
    }


def empty_pvalue(sampler: Poisson, steps: int, rng: np.random.Generator) -> float:
    """P-value of the number of empty batches out of 20 records."""
    empty = sum(len(sampler.batch(20, rng)) == 0 for _ in range(steps))
    return float(stats.binomtest(empty, steps, (1 - sampler.rate) ** 20).pvalue)
