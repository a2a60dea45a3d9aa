"""One record moves the sums of a linear model by no more than its event states.

Whole fits of the real classifier are replayed with the same randomness on neighboring data
sets, under both relations, with every clip rule and in both precisions. The noise cancels in
the difference of the first noisy sums. Rows are long, short, zero or overflow; classes lose
their last record. No fit may stop, and some must come close to the stated sensitivity, or the
gate would be blind.

The proof fixes the weights of every step, and a replay does not; so the gate varies the public
initial weights at random, in float64. In float32 they are zero: there the last bits of a row's
logits may depend on other rows, which the classifier documents as assumed exact.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from assurance.linear import (
    CLIPPED,
    FACTS,
    NORMS,
    Patches,
    fitted,
    patched,
    summed_otherwise,
    unclipped,
)
from veracal.accounting import Event, Gaussian, PoissonGaussian, Repeated
from veracal.data import Dataset
from veracal.mechanisms import (
    DPSGD,
    SGD,
    Adam,
    Automatic,
    ClippedSum,
    ClipRule,
    Flat,
    FullBatch,
    GlobalAdapt,
    GlobalV1,
    GlobalV2,
    Langevin,
    Momentum,
    Optimizer,
    Step,
)
from veracal.training.base import TrainingData, add_labels, row_norms
from veracal.training.gradient_sums import GradientSums, clipped_residuals, gradient_norms
from veracal.training.logistic import PrivateLogisticRegression

# Mutants replace these by functions that call them.
CLIPPED_RESIDUALS, GRADIENT_NORMS = clipped_residuals, gradient_norms

NAME = "linear"
BOUND, WIDTH, SIZE = 0.3, 4, 5
CLIPS: tuple[ClipRule, ...] = (
    Flat(BOUND),
    Automatic(BOUND),
    GlobalV1(BOUND, 2.0),
    GlobalV2(BOUND),
    GlobalAdapt(BOUND, 2.0, count_noise=3.0),
)
UPDATES: tuple[Optimizer, ...] = (
    SGD(0.1),
    Momentum(0.1),
    Adam(0.1),
    Langevin(0.1, 1.0),
    Langevin(0.5, 1.0, mode="langevin", pre_noise=0.7),
)
# 0.599 and 3.99 just pass the global rules; squares, logits and sums of the last overflow.
LENGTHS = {
    "float64": (0.0, 1e-170, 1e-30, 0.1, 0.599, 1.0, 3.99, 1e6, 1e150, 1e200, 1e285, 1e307),
    "float32": (0.0, 1e-40, 1e-30, 0.1, 0.599, 1.0, 3.99, 1e6, 1e30, 3e38),
}


# ---------------------------------------------------------------- mutants

cost = PrivateLogisticRegression._cost
make_sums, call_sums = GradientSums.__init__, GradientSums.__call__


def costing(change: Callable[[PrivateLogisticRegression, Any], Any]) -> Patches:
    """State another event for a step."""

    def stated(model: PrivateLogisticRegression, size: int | None) -> Event:
        event = cost(model, size)
        assert isinstance(event, Repeated)
        return replace(event, event=change(model, event.event))

    return {"veracal.training.logistic.PrivateLogisticRegression._cost": stated}


def count_noise_before_clip(model: PrivateLogisticRegression, event: Any) -> Any:
    """Count noise before the clip as noise after it."""
    extra = getattr(model.optimizer, "pre_noise", 0.0)
    return replace(event, noise=math.hypot(event.noise, extra))


def removed_for_replaced(sampler: FullBatch, noise: float, bound: float, relation: Any) -> Any:
    """State the sensitivity of add-remove under replace-one."""
    return Gaussian(noise, bound, relation)


def count_forgotten(descent: DPSGD, multiplier: float) -> Event:
    """Charge an adaptive rule as if it counted nothing."""
    return descent.sampler.event(multiplier * BOUND, BOUND, descent.relation)


def raw_used(
    residual: Any, norms: Any, clip: ClipRule, *, slack: float = 0.0
) -> tuple[Any, int]:
    """Compute the clipped part, and return the remainder."""
    clipped, exceeding = CLIPPED_RESIDUALS(residual.copy(), norms, clip, slack=slack)
    assert clipped.shape == residual.shape
    return unclipped(residual, norms, clip)[0], exceeding


def clipped_whole(clipped: ClippedSum, rows: int, clip: ClipRule) -> ClippedSum:
    """Clip the sum instead of its parts."""
    with np.errstate(over="ignore"):
        length = np.linalg.norm(clipped.total)
    if not np.isfinite(length):
        return ClippedSum(0 * clipped.total)
    return ClippedSum(clipped.total * clip.factors(np.array([length])), clipped.exceeding)


def to_median(
    residual: Any, norms: Any, clip: ClipRule, *, slack: float = 0.0
) -> tuple[Any, int]:
    """Clip to the median of the gradients, and scale that to the bound."""
    usual = Flat(max(1e-3, float(np.median(np.append(norms[np.isfinite(norms)], 1.0)))))
    clipped, exceeding = CLIPPED_RESIDUALS(residual, norms, usual, slack=slack)
    return clipped * (clip.bound / usual.bound), exceeding


def broken_as_short(residual: Any, lengths: Any) -> Any:
    """Replace a norm that is not finite by 1."""
    norms = GRADIENT_NORMS(residual, lengths)
    return np.where(np.isfinite(norms), norms, 1.0)


def without_one(sums: Any, X: Any, codes: Any, norms: Any, *rest: Any, **more: Any) -> None:
    """Omit the intercept's 1 from the norm."""
    make_sums(sums, X, codes, row_norms(X), *rest, **more)


def on_both_threads(sums: Any, weights: Any, rows: Any, clip: ClipRule) -> ClippedSum:
    """Give the block in the middle to both threads."""
    if sums._pre_noise or sums._blocks.count < 3:
        return call_sums(sums, weights, rows, clip)
    rows, cuts = sums._assign_blocks(rows)
    half = len(cuts) // 2
    mine = sums._sum_blocks(weights, rows, cuts[: half + 2], clip, 0)
    other = sums._sum_blocks(weights, rows, cuts[half:], clip, 1)
    return sums._combine(weights, [mine, other])


def occurring_classes(public: TrainingData, dataset: Dataset) -> TrainingData:
    """Keep only the classes that occur."""
    facts = add_labels(public, dataset)
    seen = np.unique(facts.codes)
    seen = seen if len(seen) > 1 else np.arange(2)
    codes = np.minimum(np.searchsorted(seen, facts.codes), len(seen) - 1)
    return replace(facts, codes=codes, classes=facts.classes[seen])


def mean_of_batch(clipped: ClippedSum, rows: int, clip: ClipRule) -> ClippedSum:
    """Scale the mean of the batch to the expected one."""
    return replace(clipped, total=clipped.total * SIZE / rows)


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M4 half the sensitivity": costing(
        lambda _, event: replace(event, sensitivity=event.sensitivity / 2)
    ),
    "M4 replaced as if removed": {
        "veracal.mechanisms.sampling.FullBatch.event": removed_for_replaced
    },
    "M5 no clip": {CLIPPED: unclipped},
    "M5 no clip after pre-noise": {
        "veracal.training.gradient_sums.clipped_sum": lambda gradients, clip: ClippedSum(
            gradients.sum(axis=0)
        )
    },
    "M6 clip computed, raw used": {CLIPPED: raw_used},
    "M7 clip per batch": {CLIPPED: unclipped, **summed_otherwise(clipped_whole)},
    "M8 a broken norm taken for 1": {NORMS: broken_as_short},
    "M8 too long for float32, times zero": {
        "veracal.training.gradient_sums._NORMS": dict.fromkeys(LENGTHS, (0.0, np.inf))
    },
    "M9 clip to the median norm": {CLIPPED: to_median},
    "M10 classes from the records": {FACTS: occurring_classes},
    "M12 mean over the real batch": summed_otherwise(mean_of_batch),
    "M17 pre-noise credited": costing(count_noise_before_clip),
    "M17 count of an adaptive rule not charged": {
        "veracal.mechanisms.dp_sgd.DPSGD._step_event": count_forgotten
    },
    "intercept not in the norm": {
        "veracal.training.gradient_sums.GradientSums.__init__": without_one
    },
    "norm of the residual alone": {
        NORMS: lambda residual, lengths: GRADIENT_NORMS(residual, np.ones(len(lengths)))
    },
    "norm of the row alone": {NORMS: lambda residual, lengths: lengths},
    "a block on both threads": {
        "veracal.training.gradient_sums.GradientSums.__call__": on_both_threads
    },
}


# ---------------------------------------------------------------- replays


@dataclass(frozen=True)
class Case:
    """Settings of a fit."""

    clip: ClipRule
    optimizer: Optimizer
    rate: float
    relation: Any
    dtype: str
    classes: int

    @property
    def ordered(self) -> bool:
        """Whether removing a row changes the random numbers of later rows."""
        return self.rate < 1 or getattr(self.optimizer, "pre_noise", 0.0) > 0

    def settings(self, seed: int) -> dict[str, Any]:
        """Settings of the model."""
        rng = np.random.default_rng(seed)
        settings: dict[str, Any] = {
            "clip": self.clip,
            "optimizer": self.optimizer,
            "sampling_rate": self.rate,
            "relation": self.relation,
            "steps": 1,
            "dtype": self.dtype,
            "size": SIZE if self.relation == "add-remove" else None,
            "noise_multiplier": None if isinstance(self.optimizer, Langevin) else 1.0,
            "fit_intercept": bool(rng.integers(2)),
            "random_state": seed,
        }
        if self.dtype == "float64" and rng.random() < 0.5:
            outputs = 1 if self.classes == 2 else self.classes
            size = rng.choice([1.0, 1e12, 1e29])
            public = rng.standard_normal((outputs, WIDTH)), rng.standard_normal(outputs)
            settings["initial"] = size * public[0], size * public[1]
        return settings


def run(subject: Patches, *, long: bool) -> str:
    """Replay neighbors."""
    rng = np.random.default_rng(0)
    neighbors, worst = 0, 0.0
    with patched(subject):
        check_pre_noise()
        for _ in range(40 if long else 1):
            for case in cases(rng):
                worst = max(worst, compare(case, rng))
                neighbors += 1
        least = min(strongest(case) for case in cases(rng) if case.optimizer == SGD(0.1))
        assert least > 0.9, f"nothing comes close to the bound: {least:.3f}"
    return (
        f"{neighbors:,} neighbors reach {worst:.6f} of what is charged, every rule {least:.2f}"
    )


def strongest(case: Case) -> float:
    """Share of the allowance that one row of the worst length uses."""
    norm = 0.5 if case.classes == 2 else (2 / 3) ** 0.5  # of the residual, at weights of zero
    just = {"GlobalV1": 2.0, "GlobalV2": BOUND}.get(type(case.clip).__name__, 1e6)
    X = np.zeros((1, WIDTH), case.dtype)
    X[0, 0] = 0.999 * just / norm
    y = np.zeros(1, int)
    other = (X[:0], y[:0]) if case.relation == "add-remove" else (-X, y)
    settings = {**case.settings(0), "sampling_rate": 1.0, "fit_intercept": False}
    settings["initial"] = None
    return replayed(case, (X, y), other, settings)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Every combination of settings, in any order."""
    every = list(
        itertools.product(
            CLIPS,
            UPDATES,
            (1.0, 0.7),
            ("add-remove", "replace-one"),
            ("float64", "float32"),
            (2, 3),
        )
    )
    for place in rng.permutation(len(every)):
        yield Case(*every[place])


def compare(case: Case, rng: np.random.Generator) -> float:
    """Remove or replace one record, and return how much of the allowance is used."""
    X, y = records(case, int(rng.integers(1, 8)), rng)
    row = len(X) - 1 if case.ordered else int(rng.integers(len(X)))
    if case.relation == "add-remove":
        other = np.delete(X, row, axis=0), np.delete(y, row)
    else:
        fresh, label = records(case, 1, rng)
        X = X.astype(np.result_type(X, fresh))
        other = X.copy(), y.copy()
        other[0][row] = -X[row] if rng.random() < 0.7 else fresh[0]
        other[1][row] = y[row] if rng.random() < 0.7 else label[0]
    settings = case.settings(int(rng.integers(10**9)))
    with small_blocks() if rng.random() < 0.5 else nullcontext():
        return replayed(case, (X, y), other, settings)


def records(case: Case, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Rows of many lengths, half of them along one direction, with labels."""
    directions = rng.standard_normal((n, WIDTH))
    directions[rng.random(n) < 0.5] = np.ones(WIDTH)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    if (
        case.dtype == "float32" and rng.random() < 0.5
    ):  # float64 rows outside the range of float32
        X = directions * rng.choice(LENGTHS["float64"], (n, 1))
    else:
        X = (directions * rng.choice(LENGTHS[case.dtype], (n, 1))).astype(case.dtype)
    return X, rng.integers(case.classes, size=n)


@contextmanager
def small_blocks() -> Iterator[None]:
    """Divide the few rows of a test into blocks for two threads."""
    with (
        mock.patch("veracal.training.gradient_sums._BLOCK", 2),
        mock.patch("veracal.training.gradient_sums._CHUNK", 2),
        mock.patch("veracal.training.gradient_sums._TWO_THREADS_FROM", 0),
    ):
        yield


def replayed(case: Case, one: Any, other: Any, settings: dict[str, Any]) -> float:
    """Fit to two neighbors, and return how much of the allowance is used."""
    classes = tuple(range(case.classes))
    fits = [fitted(Dataset(*pair, classes), **settings) for pair in (one, other)]
    expected = settings["sampling_rate"] * (settings["size"] or len(one[0]))
    return compare_fits(case, *fits, expected=expected)


def compare_fits(case: Case, one: Any, other: Any, *, expected: float) -> float:
    """Compare two fits on neighbors."""
    (model, (step,)), (same, (another,)) = one, other
    assert step.noisy_sum.shape == another.noisy_sum.shape, "a record changes a shape"
    assert list(model.classes_) == list(same.classes_), "a record changes the classes"
    assert model.event_ == same.event_, "a record changes the event"
    moved, allowed = (
        change_in_noise_units(model, step, another, expected),
        accounted(model.event_),
    )
    assert moved <= allowed, (
        f"{case}: one record moves the sum by {moved:.6g} of its noise, "
        f"and {allowed:.6g} is accounted for"
    )
    return moved / allowed


def change_in_noise_units(
    model: PrivateLogisticRegression, one: Step, other: Step, expected: float
) -> float:
    """Change of sum and count together, each in units of its noise."""
    noise = float(model.noise_multipliers_[0]) * one.clip.bound
    with np.errstate(over="ignore"):
        moved = float(np.linalg.norm(one.noisy_sum - other.noisy_sum)) / noise
    if not (isinstance(one.clip, GlobalAdapt) and isinstance(other.clip, GlobalAdapt)):
        return moved
    counted = math.log(one.clip.threshold / other.clip.threshold) * expected
    return math.hypot(moved, round(counted) / one.clip.count_noise)


def accounted(event: Any) -> float:
    """Sensitivity according to the event, in units of the noise."""
    step = event.event
    replaced = isinstance(step, PoissonGaussian) and step.relation == "replace-one"
    return float(step.sensitivity / step.noise) * (1 + replaced)


def check_pre_noise() -> None:
    """Noise before the clip must not make a fit cheaper."""
    plain, noisy = (
        PrivateLogisticRegression(
            epsilon=None,
            delta=1e-9,
            steps=3,
            size=SIZE,
            optimizer=Langevin(0.5, 1.0, pre_noise=pre_noise),
        ).event()
        for pre_noise in (0.0, 5.0)
    )
    assert plain == noisy, f"pre-noise turns {plain} into {noisy}"
