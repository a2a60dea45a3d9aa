"""Rounding of a sum in float32 stays within the share of the clip bound reserved for it.

Hundreds of equal rows, or rows whose sums round in the worst way, are summed by the real
classifier with and without one of them. The change by the record itself and by the rounding of
all others must together not exceed the bound. There is no tolerance.
"""

import itertools
from typing import Any

import numpy as np

from assurance.linear import NORMS, Patches, fitted, patched
from veracal.data import Dataset
from veracal.mechanisms import Flat
from veracal.training.gradient_sums import GradientSums, plan_blocks, rounding_slack

NAME = "linear_rounding"
WIDTH = 4
make_sums = GradientSums.__init__


def narrow_norms(residual: Any, lengths: Any) -> Any:
    """Compute norms in float32."""
    narrow = np.linalg.norm(residual.astype(np.float32), axis=-1)
    return (narrow * lengths.astype(np.float32)).astype(float)


def cut_by_count(sums: Any, X: Any, codes: Any, norms: Any, blocks: Any, **more: Any) -> None:
    """Choose blocks by the real number of records."""
    blocks = plan_blocks(max(1, len(X)), blocks.dtype)
    make_sums(sums, X, codes, norms, blocks, **more)


def fixed_blocks(sums: Any, rows: Any) -> Any:
    """A fixed block for each record, by its position from the end, shared by neighbors."""
    blocks = np.random.default_rng(1).integers(sums._blocks.count, size=20_000, dtype=np.uint8)
    return blocks[len(sums._codes) - 1 - rows]


def by_number(sums: Any, rows: Any) -> Any:
    """Choose blocks by row index, which changes if an earlier record is removed."""
    return (np.minimum(rows // 128, sums._blocks.count - 1)).astype(np.uint8)


# The proof compares neighbors given the block assignment, so the replay fixes it.
CORRECT: Patches = {"veracal.training.gradient_sums.GradientSums._draw_blocks": fixed_blocks}
MUTANTS: dict[str, Patches] = {
    "blocks by the numbers of rows": {
        "veracal.training.gradient_sums.GradientSums._draw_blocks": by_number
    },
    "factors without digits": {
        "veracal.training.gradient_sums._NORMS": {"float32": (0.0, 1e38)}
    },
    "M11 n leaks into the cut of blocks": {
        "veracal.training.gradient_sums.GradientSums.__init__": cut_by_count
    },
    "no slack for the sum of a block": {
        "veracal.training.gradient_sums.rounding_slack": lambda dtype, block, chain: 0.0
    },
    "slack for each row, not for the sum": {
        "veracal.training.gradient_sums.rounding_slack": lambda dtype, block, _: rounding_slack(
            dtype, 1, 1
        )
    },
    "norms in float32 without slack": {
        NORMS: narrow_norms,
        "veracal.training.gradient_sums.rounding_slack": lambda dtype, block, chain: 0.0,
        "veracal.mechanisms.clipping._SLACK": 0.0,
    },
}


def run(subject: Patches, *, long: bool) -> str:
    """Remove rows."""
    with patched({**CORRECT, **subject}):
        alike = max(aligned_rows(n, size) for n, size in ((129, 128), (512, 512), (900, 512)))
        shifted = max(shifted_rows(blocks) for blocks in (4, 64))
        single = max(single_row(seed) for seed in range(3_000 if long else 100))
        single = max(single, *(longest_row(bound) for bound in (1.0, 1e-6)))
    return f"rows alike {alike:.4f} of the bound, rows shifted {shifted:.4f}, one {single:.6f}"


def aligned_rows(n: int, size: int) -> float:
    """Remove one of many identical long rows."""
    return largest_move(np.full((n, WIDTH), 1e3, np.float32), size=size)


def shifted_rows(blocks: int) -> float:
    """Remove the first of many rows, so that every block starts one row later.

    In a block, long rows carry the sum just beyond a power of two, where short ones are
    rounded up to twice their size; with one long row less they are not.
    """
    worst = 0.0
    for long_rows, short in itertools.product((78, 79, 80), (5.9e-6, 6.1e-6)):
        block = np.zeros((128, 2), np.float32)
        block[:long_rows, 0], block[long_rows:, 0] = 1e3, short
        worst = max(worst, largest_move(np.tile(block, (blocks, 1)), size=128 * blocks))
    return worst


def longest_row(bound: float) -> float:
    """Remove the only row, whose entries or factor are at the limits of float32."""
    lengths = np.minimum(np.logspace(20, 38.6, 60), 3.4e38)
    rows = (np.full((1, WIDTH), length, np.float32) for length in lengths)
    return max(largest_move(row, size=1, bound=bound) for row in rows)


def single_row(seed: int) -> float:
    """Remove the only row."""
    row = np.random.default_rng(seed).standard_normal((1, WIDTH)) * 1e3
    return largest_move(row.astype(np.float32), size=1)


def largest_move(X: Any, *, size: int, bound: float = 1.0) -> float:
    """Change of the sum when the first row is removed, in units of the bound."""
    settings: dict[str, Any] = {
        "clip": Flat(bound),
        "noise_multiplier": 1.0,
        "steps": 1,
        "sampling_rate": 1.0,
        "size": size,
        "fit_intercept": False,
        "random_state": 0,
    }
    sums = [
        fitted(Dataset(rows, np.zeros(len(rows), int), (0, 1, 2)), **settings)[1][0].noisy_sum
        for rows in (X, X[1:])
    ]
    moved = float(np.linalg.norm(sums[0] - sums[1])) / bound
    assert moved <= 1, f"one of {len(X)} rows in float32 moves their sum by {moved:.7f}"
    return moved
