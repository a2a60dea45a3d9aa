"""The batches that a network is trained on are Poisson samples at the declared rate.

The records that reach the gradient sums of the real classifier are recorded for hundreds of
steps, over all blocks of a batch, and tested with the statistics of the gate ``sampler`` and
the mutants of ``linear_sampler``. A record in two blocks, or in none, is detected, too.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from torch import nn

from assurance import gate_linear_sampler as linear
from assurance.networks import SUMS, Patches, fitted, patched
from veracal.mechanisms import DPSGD
from veracal.neural.examples import IndexedRecords
from veracal.neural.gradient_sums import NetworkSums

NAME = "network_sampler"
SECONDS = 10
block, blocks, run_descent = IndexedRecords.block, NetworkSums._assign_slots, DPSGD.run


def last_block_lost(sums: NetworkSums, rows: Any) -> Any:
    """Leave out the last block of a batch that has several."""
    return blocks(sums, rows)[:1]


def first_block_twice(sums: NetworkSums, rows: Any) -> Any:
    """Sum the first block twice."""
    parts = blocks(sums, rows)
    return parts[:1] + parts


def empty_skipped(descent: DPSGD, weights: Any, sums: Any, records: int, **more: Any) -> Any:
    """Skip the hook for a step with an empty batch."""
    hook, called = more["on_step"], [False]

    def spied(weights: Any, rows: Any, clip: Any) -> Any:
        called[0] = True  # which an empty batch is not
        return sums(weights, rows, clip)

    def call_hook(step: Any) -> Any:
        was, called[0] = called[0], False
        return hook(step) if was else None

    return run_descent(descent, weights, spied, records, **{**more, "on_step": call_hook})


CORRECT: Callable[[], Patches] = dict
MUTANTS: dict[str, Callable[[], Patches]] = {
    **linear.MUTANTS,
    "M14 empty batches skipped": lambda: {"veracal.mechanisms.dp_sgd.DPSGD.run": empty_skipped},
    "the last block lost": lambda: {SUMS + "_assign_slots": last_block_lost},
    "the first block twice": lambda: {SUMS + "_assign_slots": first_block_twice},
}


def run(subject: Callable[[], Patches], *, long: bool) -> str:
    """Test the batches of some fits."""

    def members(*setting: Any, seed: int) -> Any:
        with patched(subject()):
            return batch_members(*setting, seed=seed)

    return linear.tested(members, 10_000 if long else 600)


def batch_members(size: int, real: int, rate: float, steps: int, *, seed: int) -> Any:
    """Which records took part in which step."""
    times = np.zeros((steps, real), dtype=int)
    seen = {"step": 0}

    def spied(records: IndexedRecords, rows: Any, real: Any) -> Any:
        np.add.at(times[seen["step"]], rows[real], 1)  # others fill the block up
        return block(records, rows, real)

    def counted(model: Any, step: Any) -> None:
        assert step.number == seen["step"], "a step was skipped"
        seen["step"] = step.number + 1

    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((real, 2)), rng.integers(2, size=real)
    with mock.patch("veracal.neural.examples.IndexedRecords.block", spied):
        model, _ = fitted(
            nn.Linear(2, 2),
            X,
            y,
            noise_multiplier=1.0,
            sampling_rate=rate,
            steps=steps,
            size=size,
            random_state=seed,
            block=100,
            on_step=counted,
        )
    assert seen["step"] == steps, "a step was skipped"
    linear.check_stated(model.event_, rate, steps)
    assert times.max() <= 1, "a record is in two blocks"
    return times > 0
