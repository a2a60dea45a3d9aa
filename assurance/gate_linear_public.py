"""Only the sums of a linear model depend on the records.

With features of zero and no intercept, gradients are zero. Any number of records, also none,
must then give the same bits at every step, as long as the declared size is the same: the event,
the steps, the noise, the weights.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assurance.linear import FACTS, Patches, fitted, patched
from veracal.data import Dataset
from veracal.mechanisms import (
    DPSGD,
    SGD,
    Adam,
    Automatic,
    ClippedSum,
    Flat,
    GlobalAdapt,
    GlobalV1,
    Langevin,
    Linear,
    Momentum,
)
from veracal.training.base import TrainingData, add_labels

NAME = "linear_public"
SIZE, COUNTS = 50, (0, 1, 2, 49, 50, 51)
run_descent, clipped_of, perturbed = DPSGD.run, DPSGD._clipped, DPSGD._add_noise

SETTINGS: tuple[dict[str, Any], ...] = (
    {"optimizer": SGD(0.1), "noise_multiplier": 1.0},
    {"optimizer": SGD(Linear(1.0, 0.0, 6)), "noise_multiplier": 1.0, "average": 0.5},
    {"optimizer": Momentum(0.1), "noise_multiplier": 2.0, "weight_decay": 0.1},
    {"optimizer": Adam(0.1), "clip": GlobalAdapt(0.5, 5.0), "noise_multiplier": 1.0},
    {"optimizer": Langevin(0.1, 1.0), "clip": Automatic(0.5), "average": 0.5},
    {"optimizer": Langevin(0.1, 1.0, mode="langevin"), "clip": GlobalV1(0.5, 1.0)},
    {"epsilon": 2.0, "delta": 1e-3},  # the noise follows from the budget
    {"epsilon": 2.0, "delta": 1e-3, "noise_multiplier": 4.0},  # the steps do
    {"epsilon": 2.0, "delta": 1e-3, "optimizer": Langevin(0.9, 0.5), "clip": Flat(0.5)},
)


# ---------------------------------------------------------------- mutants


def size_counted(public: TrainingData, dataset: Dataset) -> TrainingData:
    """Use the real number of records instead of the declared one."""
    return replace(add_labels(public, dataset), size=max(1, len(dataset)))


def descending(change: Callable[[DPSGD, int], DPSGD]) -> Patches:
    """Change a run by the real number of records."""

    def run(descent: DPSGD, weights: Any, sums: Any, records: int, **more: Any) -> Any:
        return run_descent(change(descent, records), weights, sums, records, **more)

    return {"veracal.mechanisms.dp_sgd.DPSGD.run": run}


def rate_by_count(descent: DPSGD, records: int) -> DPSGD:
    """Let the learning rate follow the number of records."""
    if not isinstance(descent.optimizer, SGD):
        return descent
    return replace(descent, optimizer=SGD(0.1 * (records + 1)))


def real_batch(descent: DPSGD, weights: Any, rows: Any, *rest: Any) -> ClippedSum:
    """Divide by the number of rows in the batch."""
    object.__setattr__(descent, "expected_batch", max(1, len(rows)))
    return clipped_of(descent, weights, rows, *rest)


def remember_empty(descent: DPSGD, weights: Any, rows: Any, *rest: Any) -> ClippedSum:
    """Check whether the batch is empty."""
    descent.__dict__["empty"] = len(rows) == 0
    return clipped_of(descent, weights, rows, *rest)


def only_if_any(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
    """Add no noise for an empty batch."""
    return total if descent.__dict__["empty"] else perturbed(descent, total, noise_std, noise)


def noise_by_rows(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
    """Skip a draw of noise for an empty batch."""
    if descent.__dict__["empty"]:
        noise.units()
    return perturbed(descent, total, noise_std, noise)


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M11 n leaks into the expected batch": {FACTS: size_counted},
    "M11 n leaks into the number of steps": descending(
        lambda descent, records: replace(descent, steps=max(1, records // 5))
    ),
    "M11 n leaks into the learning rate": descending(rate_by_count),
    "M11 n leaks into the noise": descending(
        lambda descent, records: replace(
            descent, noise_multiplier=None if descent.noise_multiplier is None else 1 + records
        )
    ),
    "M12 mean over the real batch": {"veracal.mechanisms.dp_sgd.DPSGD._clipped": real_batch},
    "M14 empty batch without noise": {
        "veracal.mechanisms.dp_sgd.DPSGD._clipped": remember_empty,
        "veracal.mechanisms.dp_sgd.DPSGD._add_noise": only_if_any,
    },
    "noise that depends on who takes part": {
        "veracal.mechanisms.dp_sgd.DPSGD._clipped": remember_empty,
        "veracal.mechanisms.dp_sgd.DPSGD._add_noise": noise_by_rows,
    },
}


def run(subject: Patches, *, long: bool) -> str:
    """Compare all that a fit leaves behind."""
    compared = 0
    with patched(subject):
        for seed in range(20 if long else 1):
            for settings in SETTINGS:
                for rate in (1.0,) if "epsilon" in settings and not long else (1.0, 0.3):
                    compared += compare(settings, rate, seed)
    return f"{compared} fits leave the same bits as one on no records"


def compare(settings: dict[str, Any], rate: float, seed: int) -> int:
    """Fit to different numbers of records."""
    if "epsilon" not in settings:
        settings = {**settings, "steps": 6}
    elif "noise_multiplier" not in settings and "optimizer" not in settings:
        settings = {**settings, "steps": 20}
    common = {"sampling_rate": rate, "size": SIZE, "random_state": seed}
    ends = [release_without_signal(n, {**settings, **common}) for n in COUNTS]
    for n, end in zip(COUNTS, ends, strict=True):
        for name in end:
            assert end[name] == ends[0][name], (
                f"{n} records leave another {name} than none: rate {rate}, {settings}"
            )
    return len(COUNTS) - 1


def release_without_signal(n: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that a fit releases if all gradients are zero."""
    rng = np.random.default_rng(n)
    dataset = Dataset(np.zeros((n, 2)), rng.integers(3, size=n), (0, 1, 2))
    model, steps = fitted(dataset, fit_intercept=False, **settings)
    return {
        "event": model.event_,
        "number of steps": (model.n_iter_, len(steps)),
        "noise": model.noise_multipliers_.tobytes(),
        "noisy sum": [step.noisy_sum.tobytes() for step in steps],
        "weights": [step.weights.tobytes() for step in steps],
        "clip rule": [step.clip for step in steps],
        "model": model.coef_.tobytes() + model.intercept_.tobytes(),
        "reason": model.not_private_because_,
    }
