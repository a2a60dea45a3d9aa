"""The batches of a linear model's training are Poisson at the declared rate.

The input of the real classifier's gradient sums is recorded for a thousand steps, with more
records than declared, and tested by the statistics of the gate ``sampler``. A step without
a call is an empty batch.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats

from assurance.gate_sampler import ALPHA, statistics
from assurance.linear import Patches, fitted, patched
from veracal.accounting import PoissonGaussian, Repeated
from veracal.data import Dataset
from veracal.mechanisms import ClippedSum, ClipRule, Poisson
from veracal.training.gradient_sums import GradientSums

NAME = "linear_sampler"
BATCH = "veracal.mechanisms.sampling.Poisson.batch"
EVENT = "veracal.mechanisms.sampling.Poisson.event"
Batch = Callable[[Poisson, int, np.random.Generator], Any]
plain, call = Poisson.batch, GradientSums.__call__


def shuffled() -> Batch:
    """Walk through a shuffled list, a batch at a time."""
    left: list[int] = []

    def batch(sampler: Poisson, n: int, rng: np.random.Generator) -> Any:
        size = max(1, round(n * sampler.rate))
        if len(left) < size:
            left[:] = rng.permutation(n).tolist()
        chosen, left[:] = left[:size], left[size:]
        return np.sort(chosen)

    return batch


def twice() -> Batch:
    """Use every batch twice."""
    kept: list[Any] = []

    def batch(sampler: Poisson, n: int, rng: np.random.Generator) -> Any:
        if not kept:
            kept.append(plain(sampler, n, rng))
            return kept[0]
        return kept.pop()

    return batch


def fixed_size(sampler: Poisson, n: int, rng: np.random.Generator) -> Any:
    """Draw the expected number of records, always."""
    return np.sort(rng.choice(n, max(1, round(n * sampler.rate)), replace=False))


def by_real_count(sampler: Poisson, n: int, rng: np.random.Generator) -> Any:
    """Choose the rate so that the batch is as large as declared."""
    declared = next(size for size, real, _ in SETTINGS if real == n)
    return plain(Poisson(sampler.rate * declared / n), n, rng)


def never_empty(sampler: Poisson, n: int, rng: np.random.Generator) -> Any:
    """Redraw empty batches."""
    while len(rows := plain(sampler, n, rng)) == 0:
        pass
    return rows


def first_declared(sampler: Poisson, n: int, rng: np.random.Generator) -> Any:
    """Leave out the records beyond the declared number."""
    return plain(sampler, next(size for size, real, _ in SETTINGS if real == n), rng)


def half_stated(sampler: Poisson, noise: float, bound: float, relation: Any) -> Any:
    """Account for half the rate."""
    return PoissonGaussian(noise, bound, relation, rate=sampler.rate / 2)


SETTINGS = ((400, 440, 0.5), (1_000, 900, 0.05), (20, 21, 0.05))  # declared, real, rate
CORRECT: Callable[[], Patches] = dict
MUTANTS: dict[str, Callable[[], Patches]] = {
    "M13 shuffling for Poisson": lambda: {BATCH: shuffled()},
    "fixed batch size": lambda: {BATCH: fixed_size},
    "M14 empty batches drawn again": lambda: {BATCH: never_empty},
    "M11 rate from the real number": lambda: {BATCH: by_real_count},
    "accounted at half the rate": lambda: {EVENT: half_stated},
    "every batch twice": lambda: {BATCH: twice()},
    "records beyond the declared number left out": lambda: {BATCH: first_declared},
}


def run(subject: Callable[[], Patches], *, long: bool) -> str:
    """Test the batches of some fits."""

    def members(*setting: Any, seed: int) -> Any:
        with patched(subject()):
            return batch_members(*setting, seed=seed)

    return tested(members, 10_000 if long else 1_000)


def tested(members_of: Callable[..., Any], steps: int) -> str:
    """Test batches by their members."""
    worst = 1.0
    for many in (steps // 5, steps):  # most mutants fail in the short run
        for place, (size, real, rate) in enumerate(SETTINGS):
            members = members_of(size, real, rate, many, seed=place)
            figures = statistics(members, rate)
            empty = int((~members.any(axis=1)).sum())
            figures["empty batches"] = float(
                stats.binomtest(empty, many, (1 - rate) ** real).pvalue
            )
            for name, pvalue in figures.items():
                assert pvalue > ALPHA, f"{name} at rate {rate}: p = {pvalue:.1e}"
                worst = min(worst, pvalue)
    return f"5 statistics of {len(SETTINGS)} fits, smallest p = {worst:.3f}"


def batch_members(size: int, real: int, rate: float, steps: int, *, seed: int) -> Any:
    """Members of each step's batch."""
    members = np.zeros((steps, real), dtype=bool)
    seen: dict[str, int] = {"step": 0}

    def spied(sums: GradientSums, weights: Any, rows: Any, clip: ClipRule) -> ClippedSum:
        members[seen["step"], rows] = True
        return call(sums, weights, rows, clip)

    def counted(model: Any, step: Any) -> None:
        seen["step"] = step.number + 1

    rng = np.random.default_rng(seed)
    records = Dataset(rng.standard_normal((real, 2)), rng.integers(2, size=real), (0, 1))
    with mock.patch("veracal.training.gradient_sums.GradientSums.__call__", spied):
        model, _ = fitted(
            records,
            noise_multiplier=1.0,
            sampling_rate=rate,
            steps=steps,
            size=size,
            random_state=seed,
            on_step=counted,
        )
    check_stated(model.event_, rate, steps)
    return members


def check_stated(event: Any, rate: float, steps: int) -> None:
    """The event describes these batches."""
    assert isinstance(event, Repeated) and isinstance(event.event, PoissonGaussian)
    assert (event.event.rate, event.times) == (rate, steps), f"accounted as {event}"
