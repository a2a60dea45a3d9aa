"""One record changes the sum to which noise is added by at most what the event states.

A run is replayed with the same randomness on neighboring records, adversarial numbers
included. The noise cancels, so the difference of the noisy sums is that of the exact sums. With
gradients of zero, everything but the sum is compared: neighbors must have the same bits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from veracal.accounting.events import Gaussian, PoissonGaussian, Repeated
from veracal.mechanisms import clipping
from veracal.mechanisms.clipping import (
    Automatic,
    ClippedSum,
    ClipRule,
    Flat,
    GlobalAdapt,
    GlobalV1,
    GlobalV2,
    clipped_sum,
)
from veracal.mechanisms.dp_sgd import DPSGD, Step
from veracal.mechanisms.optimizers import SGD, Adam, Momentum, Optimizer
from veracal.mechanisms.sampling import FullBatch, Poisson

NAME = "gradients"
ENTRIES = 4
CLIPS: tuple[ClipRule, ...] = (
    Flat(0.5),
    Automatic(0.5),
    GlobalV1(0.5, 5.0),
    GlobalV2(0.5),
    GlobalAdapt(0.5, 5.0, count_noise=3.0),
)
ODD = (0.0, -0.0, 5e-324, 1e-300, 1e-160, 0.1, 0.5, -1.0, 1e6, -1e6, 1e154, 1e200, 1e308)
BROKEN = (-1e308, math.nan, math.inf, -math.inf)


@dataclass(frozen=True)
class Subject:
    """A DP-SGD run and its gradient sum."""

    descent: type[DPSGD] = DPSGD
    clipped_sum: Callable[[Any, ClipRule], ClippedSum] = clipped_sum


def settings(descent: DPSGD) -> dict[str, Any]:
    """Settings of a run."""
    return {field.name: getattr(descent, field.name) for field in fields(descent)}


def unclipped(gradients: np.ndarray, clip: ClipRule) -> ClippedSum:
    """Sum finite gradients without clipping."""
    kept = np.isfinite(gradients).all(axis=1) & (np.abs(gradients) < 1e150).all(axis=1)
    return ClippedSum(gradients[kept].astype(float).sum(axis=0))


def raw_used(gradients: np.ndarray, clip: ClipRule) -> ClippedSum:
    """Compute the factors, but sum the raw rows."""
    rows = gradients.astype(float)
    chosen = clipping.select_and_scale(clipping._norms(rows, np), clip)
    kept = rows[chosen.kept]
    scaled = kept * chosen.factors[:, None]
    assert scaled.shape == kept.shape
    return ClippedSum(np.nan_to_num(kept.sum(axis=0)), chosen.exceeding)


def per_batch(gradients: np.ndarray, clip: ClipRule) -> ClippedSum:
    """Clip the sum instead of its parts."""
    finite = gradients[np.isfinite(gradients).all(axis=1)].astype(float)
    return clipped_sum(np.clip(finite, -1e150, 1e150).sum(axis=0, keepdims=True), clip)


def nan_passes(gradients: np.ndarray, clip: ClipRule) -> ClippedSum:
    """Scale rows that are not finite instead of excluding them, and replace NaN in the sum."""
    rows = gradients.astype(float)
    with np.errstate(all="ignore"):
        factors = clip.factors(clipping._norms(rows, np))
        return ClippedSum(np.nan_to_num((factors[:, None] * rows).sum(axis=0)))


def nan_as_zero_norm(gradients: np.ndarray, clip: ClipRule) -> ClippedSum:
    """Compute norms without entries that are not finite, and replace those by large numbers."""
    rows = gradients.astype(float)
    factors = clip.factors(clipping._norms(np.where(np.isfinite(rows), rows, 0.0), np))
    return ClippedSum(
        (factors[:, None] * np.nan_to_num(rows, posinf=1e9, neginf=-1e9)).sum(axis=0)
    )


def norm_overflows(gradients: np.ndarray, clip: ClipRule) -> ClippedSum:
    """Compute norms in half precision: they overflow, and the factor is not a number."""
    rows = np.where(np.isfinite(gradients), gradients, 0.0)
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(rows.astype(np.float16), axis=1).astype(float)
        factors = np.where(np.isfinite(norms), clip.factors(np.abs(norms)), 1.0)
        return ClippedSum(np.nan_to_num((factors[:, None] * rows).sum(axis=0)))


class RateFromCount(DPSGD):
    """Let the learning rate depend on the real number of records."""

    def run(self, weights: Any, function: Any, records: int, **more: Any) -> Any:
        optimizer = replace(self.optimizer, learning_rate=0.1 * (records + 1))  # type: ignore[type-var]
        plain = DPSGD(**{**settings(self), "optimizer": optimizer})
        return plain.run(weights, function, records, **more)


class StepsFromCount(DPSGD):
    """Use the real number of records as the length of an epoch."""

    def run(self, weights: Any, function: Any, records: int, **more: Any) -> Any:
        plain = DPSGD(
            **{
                **settings(self),
                "steps": max(1, records),
            }
        )
        return plain.run(weights, function, records, **more)


class RealBatch(DPSGD):
    """Divide by the number of rows that are in the batch."""

    def _clipped(self, weights: Any, rows: Any, clip: Any, function: Any) -> ClippedSum:
        object.__setattr__(self, "expected_batch", max(1, len(rows)))
        return super()._clipped(weights, rows, clip, function)


class MeanThenNoise(DPSGD):
    """Add noise for the declared batch to the mean of the real one."""

    def _clipped(self, weights: Any, rows: Any, clip: Any, function: Any) -> ClippedSum:
        clipped = super()._clipped(weights, rows, clip, function)
        return replace(clipped, total=clipped.total * self.expected_batch / max(1, len(rows)))


class SkipsEmpty(DPSGD):
    """Skip steps with empty batches."""

    def _add_noise(self, total: Any, noise_std: float, rng: np.random.Generator) -> Any:
        empty = self.__dict__.pop("empty")
        return total if empty else super()._add_noise(total, noise_std, rng)

    def _clipped(self, weights: Any, rows: Any, clip: Any, function: Any) -> ClippedSum:
        self.__dict__["empty"] = len(rows) == 0
        return super()._clipped(weights, rows, clip, function)


class HalfSensitivity(DPSGD):
    """State half the sensitivity."""

    def _step_event(self, multiplier: float) -> Any:
        event = super()._step_event(multiplier)
        return replace(event, sensitivity=event.sensitivity / 2)  # type: ignore[union-attr,type-var]


class ReplacedAsRemoved(DPSGD):
    """State the sensitivity of add-remove under replace-one."""

    def _step_event(self, multiplier: float) -> Any:
        event = super()._step_event(multiplier)
        if isinstance(event, PoissonGaussian):
            return event
        return replace(event, sensitivity=self.clip.bound)  # type: ignore[type-var]


class CountForgotten(DPSGD):
    """Charge an adaptive rule as if it counted nothing."""

    def _step_event(self, multiplier: float) -> Any:
        flat = DPSGD(
            **{
                **settings(self),
                "clip": Flat(self.clip.bound),
            }
        )
        return flat._step_event(multiplier)


class CountPerBatch(DPSGD):
    """Divide the count by the real batch."""

    def _next_clip(self, clip: Any, exceeding: int, rng: np.random.Generator) -> Any:
        rows = self.__dict__.pop("rows")
        return replace(self, expected_batch=max(1, rows))._next_clip_of(clip, exceeding, rng)

    def _next_clip_of(self, clip: Any, exceeding: int, rng: np.random.Generator) -> Any:
        return super()._next_clip(clip, exceeding, rng)

    def _clipped(self, weights: Any, rows: Any, clip: Any, function: Any) -> ClippedSum:
        self.__dict__["rows"] = len(rows)
        return super()._clipped(weights, rows, clip, function)


CORRECT = Subject()
MUTANTS = {
    "M4 half the sensitivity": Subject(HalfSensitivity),
    "M4 replaced as if removed": Subject(ReplacedAsRemoved),
    "M5 no clip": Subject(clipped_sum=unclipped),
    "M6 clip computed, raw used": Subject(clipped_sum=raw_used),
    "M7 clip per batch": Subject(clipped_sum=per_batch),
    "M8 NaN passes": Subject(clipped_sum=nan_passes),
    "M8 broken entries made large": Subject(clipped_sum=nan_as_zero_norm),
    "norms in half precision": Subject(clipped_sum=norm_overflows),
    "M11 n leaks into the learning rate": Subject(RateFromCount),
    "M11 n leaks into the number of steps": Subject(StepsFromCount),
    "M12 mean over the real batch": Subject(RealBatch),
    "M12 mean before the noise": Subject(MeanThenNoise),
    "M14 empty batch without noise": Subject(SkipsEmpty),
    "M17 count of an adaptive rule not charged": Subject(CountForgotten),
    "count over the real batch": Subject(CountPerBatch),
}


def run(subject: Subject, *, long: bool) -> str:
    """Replay neighbors."""
    replays = sum(compare_settings(subject, seed) for seed in range(40 if long else 2))
    rng = np.random.default_rng(0)
    worst, neighbors = 0.0, 0
    for _ in range(15_000 if long else 1_000):
        gradients = batch(rng)
        for clip in CLIPS:
            worst = max(worst, compare(subject, gradients, clip, rng))
            neighbors += 2
    return f"{neighbors:,} neighbors reach {worst:.6f} of the bound; {replays} replays equal"


def batch(rng: np.random.Generator) -> np.ndarray:
    """Gradients of every size, some made of adversarial numbers, in one of three types."""
    n = int(rng.integers(1, 7))
    gradients = rng.standard_normal((n, ENTRIES)) * 10.0 ** rng.uniform(-3, 4, (n, 1))
    odd = rng.random((n, 1)) < 0.4
    gradients = np.where(odd, rng.choice([*ODD, *BROKEN], gradients.shape), gradients)
    with np.errstate(over="ignore"):
        return gradients.astype(rng.choice([np.float64, np.float32, np.float16]))


def compare(
    subject: Subject, gradients: np.ndarray, clip: ClipRule, rng: np.random.Generator
) -> float:
    """Remove and replace one record; return the share of the sensitivity used."""
    row = int(rng.integers(len(gradients)))
    replaced = np.array(gradients)
    with np.errstate(over="ignore"):
        replaced[row] = -replaced[row] if rng.random() < 0.5 else batch(rng)[0]
    whole = sums(subject, gradients, clip)
    used = []
    for relation, other in (
        ("add-remove", np.delete(gradients, row, axis=0)),
        ("replace-one", replaced),
    ):
        moved = change_in_noise_units(whole, sums(subject, other, clip), clip)
        allowed = accounted(subject, clip, relation)
        assert moved <= allowed, (
            f"{relation}, {clip}: one record moves the sum by {moved:.6g} of its noise, "
            f"and {allowed:.6g} is accounted for"
        )
        used.append(moved / allowed)
    return max(used)


@lru_cache
def settled(subject: Subject, clip: ClipRule, relation: Any = "add-remove") -> DPSGD:
    """A run of one step over all records."""
    return subject.descent(
        FullBatch(), clip, SGD(0.1), 1.0, steps=1, expected_batch=5, relation=relation
    )


@lru_cache
def accounted(subject: Subject, clip: ClipRule, relation: Any) -> float:
    """Sensitivity according to the event, in units of the noise."""
    event = settled(subject, clip, relation).event()
    assert isinstance(event, Repeated) and isinstance(event.event, Gaussian)
    return event.event.sensitivity / event.event.noise


def sums(subject: Subject, gradients: np.ndarray, clip: ClipRule) -> tuple[Step, int]:
    """The single step of a run over these gradients, and its count."""
    counted = []

    def clipped_sum_of(weights: Any, rows: Any, rule: ClipRule) -> ClippedSum:
        clipped = subject.clipped_sum(gradients[rows], rule)
        counted.append(clipped.exceeding)
        return clipped

    steps: list[Step] = []
    settled(subject, clip).run(
        np.zeros(ENTRIES),
        clipped_sum_of,
        len(gradients),
        rng=np.random.default_rng(0),
        on_step=steps.append,
    )
    return steps[0], sum(counted[:1])


def change_in_noise_units(
    one: tuple[Step, int], other: tuple[Step, int], clip: ClipRule
) -> float:
    """Change of sum and count together, each in units of its noise."""
    with np.errstate(over="ignore"):
        moved = float(np.linalg.norm(one[0].noisy_sum - other[0].noisy_sum)) / clip.bound
    if not isinstance(clip, GlobalAdapt):
        return moved
    return math.hypot(moved, (one[1] - other[1]) / clip.count_noise)


def compare_settings(subject: Subject, seed: int) -> int:
    """If all gradients are zero, any number of records must give the same bits."""
    replays = 0
    updates: tuple[Optimizer, ...] = (SGD(0.1), Momentum(0.1), Adam(0.1))
    for optimizer in updates:
        for sampler in (FullBatch(), Poisson(0.3)):
            for clip in (Flat(0.5), GlobalAdapt(0.5, 5.0)):
                descent = subject.descent(
                    sampler, clip, optimizer, 1.0, steps=6, expected_batch=5
                )
                ends = [trace(descent, records, seed) for records in (0, 1, 2, 9, 10, 11)]
                for records, end in zip((1, 2, 9, 10, 11), ends[1:], strict=True):
                    assert end == ends[0], (
                        f"{records} records leave other bits than none: {optimizer}, {sampler}"
                    )
                    replays += 1
    return replays


def trace(descent: DPSGD, records: int, seed: int) -> list[bytes]:
    """Everything a run releases, step by step, if all gradients are zero."""
    seen: list[bytes] = []

    def remember(step: Step) -> None:
        threshold = getattr(step.clip, "threshold", 0.0)
        seen.append(
            step.noisy_sum.tobytes() + step.weights.tobytes() + repr(threshold).encode()
        )

    nothing = ClippedSum(np.zeros(2))
    rng = np.random.default_rng(seed)
    descent.run(np.ones(2), lambda *_: nothing, records, rng=rng, on_step=remember)
    return seen
