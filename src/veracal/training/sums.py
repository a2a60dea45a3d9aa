"""Clipped gradient sums over the batches of a descent, a block of rows at a time."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from veracal._types import Array, Floats, Ints
from veracal.data.rows import MappedRows
from veracal.privacy import Clip, Clipped, clipped_sum, pre_noised
from veracal.training.softmax import (
    clipped_gradient_sum,
    logits_of,
    residuals,
    rounding_slack,
)

_MOST_SLACK = 0.02  # of the bound; where single precision would take more, it is double
_ENTRIES = 1 << 22  # of rows that are held together
_SHARED = 1 << 22  # products of a batch from which on a second thread pays


@dataclass(frozen=True)
class Blocks:
    """How the rows of a batch are cut, from public figures alone.

    Attributes
    ----------
    rows : int
        Rows of a block: every product has this shape, the last block being filled up, so
        that the bits of a row's product do not depend on who else is in the batch.
    dtype : dtype
        Precision of the products.
    most : int
        Rows of a batch up to which ``slack`` covers the rounding; beyond, a batch is summed
        in float64. A Poisson batch is that large once in 10^30.
    slack : float
        Share of the clip bound left to rounding.
    """

    rows: int
    dtype: Any
    most: int
    slack: float


def blocks_for(expected_batch: float, dtype: Any) -> Blocks:
    """Cut batches of this expected size, in single precision where its rounding is small."""
    most = math.ceil(expected_batch + 12 * math.sqrt(expected_batch)) + 64
    rows = 16 if expected_batch < 48 else 32 if expected_batch < 128 else 64
    slack = rounding_slack(dtype, most, rows)
    if slack <= _MOST_SLACK:
        return Blocks(rows, np.dtype(dtype), most, slack)
    return blocks_for(expected_batch, np.float64)


class GradientSums:
    """What a :class:`~veracal.privacy.Descent` asks of the records of a linear model.

    Parameters
    ----------
    X : array or MappedRows of shape (n, d)
    codes : array of ints, of shape (n,)
    norms : array of shape (n,)
        Norms of the rows in float64, with the 1 that an intercept meets.
    blocks : Blocks
    intercept : bool
    pre_noise : float
        Standard deviation of noise on each gradient before it is clipped.
    rng : Generator
        Where that noise comes from.
    """

    def __init__(
        self,
        X: Array | MappedRows,
        codes: Ints,
        norms: Floats,
        blocks: Blocks,
        *,
        intercept: bool,
        pre_noise: float,
        rng: np.random.Generator,
    ) -> None:
        self._X, self._codes, self._norms = X, codes, norms
        self._blocks, self._intercept = blocks, intercept
        self._pre_noise, self._rng = pre_noise, rng
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def two_threads(self) -> Iterator[None]:
        """Divide large batches between two threads, each with a single one below it."""
        # Threads of the linear algebra would wait for each other, and for the noise.
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(1) as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    def __call__(self, weights: Floats, rows: Ints, clip: Clip) -> Clipped:
        """The clipped sum over some rows."""
        together = max(1, _ENTRIES // max(weights.shape[1], 1))
        if self._pre_noise:
            parts = [self._pre_noised(weights, part, clip) for part in _cut(rows, 64)]
        else:
            parts = [self._sum(weights, part, clip, len(rows)) for part in _cut(rows, together)]
        return _added(parts)

    def _sum(self, weights: Floats, rows: Ints, clip: Clip, batch: int) -> Clipped:
        """The clipped sum over rows that are held together, perhaps on two threads."""
        if self._pool is None or len(rows) * weights.size < _SHARED:
            return self._lane(weights, rows, clip, batch)
        half = math.ceil(len(rows) / 2 / self._blocks.rows) * self._blocks.rows
        other = self._pool.submit(self._lane, weights, rows[half:], clip, batch)
        return _added([self._lane(weights, rows[:half], clip, batch), other.result()])

    def _lane(self, weights: Floats, rows: Ints, clip: Clip, batch: int) -> Clipped:
        """The clipped sum on one thread."""
        size = self._blocks.rows
        count = max(1, math.ceil(len(rows) / size))
        # A batch beyond what the slack covers comes once in 10^30, and is summed exactly.
        dtype = self._blocks.dtype if batch <= self._blocks.most else np.dtype(np.float64)
        X = np.empty((count * size, self._X.shape[1]), dtype=dtype)
        self._read(rows, X[: len(rows)])
        X[len(rows) :] = 0
        codes, norms = np.zeros(count * size, dtype=np.intp), np.zeros(count * size)
        codes[: len(rows)], norms[: len(rows)] = self._codes[rows], self._norms[rows]
        present = np.arange(count * size) < len(rows)
        return clipped_gradient_sum(
            weights.astype(dtype, copy=False),
            X.reshape(count, size, -1),
            codes.reshape(count, size),
            norms.reshape(count, size),
            present.reshape(count, size),
            clip,
            intercept=self._intercept,
            slack=self._blocks.slack,
        )

    def _read(self, rows: Ints, out: Array) -> None:
        """Copy rows, in the precision of the products."""
        if isinstance(self._X, np.ndarray) and self._X.dtype == out.dtype:
            np.take(self._X, rows, axis=0, out=out, mode="clip")  # "raise" would copy twice
        else:
            out[...] = self._X[rows]

    def _pre_noised(self, weights: Floats, rows: Ints, clip: Clip) -> Clipped:
        """The clipped sum of noisy gradients, which have no closed form: they are formed."""
        X = np.asarray(self._X[rows], dtype=np.float64)
        wide = np.hstack([X, np.ones((len(X), 1))]) if self._intercept else X
        logits = logits_of(weights.astype(np.float64), X, intercept=self._intercept)
        gradients = residuals(logits, self._codes[rows])[:, :, None] * wide[:, None, :]
        return clipped_sum(pre_noised(gradients, self._pre_noise, rng=self._rng), clip)


def _cut(rows: Ints, most: int) -> Iterator[Ints]:
    """Consecutive pieces of at most so many rows."""
    for start in range(0, len(rows), most):
        yield rows[start : start + most]


def _added(parts: list[Clipped]) -> Clipped:
    """The sum of several sums."""
    if len(parts) == 1:
        return parts[0]
    total = parts[0].total
    for part in parts[1:]:
        total += part.total
    return Clipped(total, sum(part.exceeding for part in parts))
