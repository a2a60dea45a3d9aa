"""The smallest possible time of a run of batched objective perturbation on this machine.

What is counted are the passes over the rows that the search really makes, each at the best
rate of its own shape on one core: products of matrices, exponentials, and nothing between them.
Below that lies what no search can avoid, one gradient in double precision.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.training_limits import fastest
from veracal.training.batched_newton import BatchedProblem, FeaturePairs, Float32Rows

COLUMNS = 256  # models that are timed together


@dataclass(frozen=True)
class Passes:
    """Passes over the rows of one model, on average."""

    searching: float  # gradients in single precision
    bending: float  # products with second derivatives
    pairing: float  # sums of second derivatives
    checking: float  # gradients in double precision


@contextmanager
def counted(models: int) -> Iterator[dict[str, float]]:
    """Count passes while models are solved, and divide them by their number."""
    seen: Counter[str] = Counter()
    names = {
        (Float32Rows, "probabilities"): ("searching", lambda weights: weights.shape[1]),
        (Float32Rows, "curvature_products"): ("bending", lambda _, vectors: vectors.shape[1]),
        (FeaturePairs, "derivatives"): ("pairing", lambda noise, weights: weights.shape[1]),
        (FeaturePairs, "sums"): ("pairing", lambda bends: bends.shape[1]),
        (BatchedProblem, "_derivatives"): ("checking", lambda weights, noise: weights.shape[1]),
        (BatchedProblem, "_correct"): ("bending", lambda weights, *_: weights.shape[1]),
    }
    kept = {(made, name): getattr(made, name) for made, name in names}

    def counting(made: Any, name: str) -> Any:
        label, width = names[made, name]
        usual = kept[made, name]

        def call(self: Any, *args: Any) -> Any:
            seen[label] += width(*args)
            return usual(self, *args)

        return call

    found: dict[str, float] = {}
    try:
        for made, name in names:
            setattr(made, name, counting(made, name))
        yield found
    finally:
        for (made, name), usual in kept.items():
            setattr(made, name, usual)
    found |= {label: seen[label] / models for label in Passes.__annotations__}


@dataclass(frozen=True)
class Limit:
    """Seconds of one model: of its passes at the best rates, and of a single check."""

    passes: Passes
    searching: float
    bending: float
    pairing: float
    checking: float
    megaflops: float
    megabytes: float  # of margins, which stay in the cache

    @property
    def least(self) -> float:
        """All passes, and nothing between them."""
        names = Passes.__annotations__
        return float(sum(getattr(self.passes, name) * getattr(self, name) for name in names))


def limit_of(rows: np.ndarray, passes: Passes) -> Limit:
    """Measure the rates of one core on rows of shape (n, d)."""
    n, d = rows.shape
    pairs = d * (d + 1) // 2 if passes.pairing else 0
    light, heavy = (np.ascontiguousarray(rows, dtype=t) for t in (np.float32, np.float64))
    flops = 4 * n * d * (passes.searching + passes.bending + passes.checking)
    flops += 2 * n * pairs * passes.pairing
    touched = 4 * n * (passes.searching + passes.bending + passes.pairing + 2 * passes.checking)
    return Limit(
        passes,
        _products(light) + _exponentials(np.float32, n),
        _products(light),
        _pairs(n, pairs) if pairs else 0.0,
        _products(heavy) + _exponentials(np.float64, n),
        flops / 1e6,
        touched / 1e6,
    )


def _products(rows: np.ndarray) -> float:
    """Seconds of one model in the two products of a pass."""
    weights = np.ones((rows.shape[1], COLUMNS), dtype=rows.dtype)
    margins = rows @ weights
    there = fastest(lambda _: np.matmul(rows, weights, out=margins))
    turned = np.ascontiguousarray(rows.T)
    back = fastest(lambda _: np.matmul(turned, margins, out=weights))
    return (there + back) / COLUMNS


def _exponentials(dtype: Any, n: int) -> float:
    """Seconds of one model in exponentials."""
    z, out = np.full((n, COLUMNS), -3.0, dtype=dtype), np.empty((n, COLUMNS), dtype=dtype)
    return fastest(lambda _: np.exp(z, out=out)) / COLUMNS


def _pairs(n: int, pairs: int) -> float:
    """Seconds of one model in sums of second derivatives."""
    products = np.ones((pairs, n), dtype=np.float32)
    bends = np.ones((n, COLUMNS), dtype=np.float32)
    out = np.empty((pairs, COLUMNS), dtype=np.float32)
    return fastest(lambda _: np.matmul(products, bends, out=out)) / COLUMNS
