"""Shared code of the gates of linear models: repeatable fits, and patches that break them.

A subject is a set of patches: names in the library and what to put there instead. The correct
subject patches nothing.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np

from veracal.data import Dataset
from veracal.mechanisms import ClippedSum, ClipRule, Step
from veracal.training.gradient_sums import GradientSums
from veracal.training.logistic import PrivateLogisticRegression

Patches = Mapping[str, object]
MODEL = "veracal.training.logistic.PrivateLogisticRegression."
FACTS = "veracal.training.base.add_labels"
SUMS = "veracal.training.gradient_sums."
CLIPPED = "veracal.training.gradient_sums.clipped_residuals"
NORMS = "veracal.training.gradient_sums.gradient_norms"
LOOP = "veracal.mechanisms.dp_sgd.DPSGD."
# It searches for libraries on disk, which takes longer than a fit.
_LIMITS = "veracal.training.gradient_sums.threadpool_limits"


@contextmanager
def patched(patches: Patches) -> Iterator[None]:
    """Put the patches in place."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch(_LIMITS, return_value=nullcontext()))
        for name, instead in patches.items():
            stack.enter_context(mock.patch(name, instead))
        yield


def fitted(
    dataset: Dataset, **settings: Any
) -> tuple[PrivateLogisticRegression, tuple[Step, ...]]:
    """A model fitted to a data set, and all its steps.

    A fit that stops, or warns, tells something of the records.
    """
    steps: list[Step] = []

    def watch(model: PrivateLogisticRegression, step: Step) -> None:
        steps.append(step)

    usual = {"epsilon": None, "delta": 1e-9, "average": 0.0, "on_step": watch}
    model = PrivateLogisticRegression(**{**usual, **settings})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.fit_records(dataset)
    except (ValueError, IndexError, RuntimeWarning) as error:
        raise AssertionError(f"records stop the fit: {error}") from error
    return model, tuple(steps)


def unclipped(
    residual: Any, norms: Any, clip: ClipRule, *, slack: float = 0.0
) -> tuple[Any, int]:
    """Clip nothing but gradients that are not finite."""
    residual[~np.isfinite(norms)] = 0
    return residual, 0


def summed_otherwise(change: Callable[[ClippedSum, int, ClipRule], ClippedSum]) -> Patches:
    """Change the sum of a batch, given its number of rows."""
    original = GradientSums.__call__

    def call(sums: GradientSums, weights: Any, rows: Any, clip: ClipRule) -> ClippedSum:
        return change(original(sums, weights, rows, clip), len(rows), clip)

    return {"veracal.training.gradient_sums.GradientSums.__call__": call}
