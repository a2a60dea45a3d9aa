"""Clipped gradient sums over the batches of a descent, a block of rows at a time."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from veracal._types import Array, Floats, Ints
from veracal.data.rows import MappedRows
from veracal.privacy import Clip, Clipped, clipped_sum, pre_noised
from veracal.training.softmax import (
    clipped_residuals,
    gradient_norms,
    logits_of,
    residuals,
    rounding_slack,
)

_BLOCK = {"float32": 128, "float64": 4_096}  # rows expected in a block
_LONGEST = {"float32": 1e36, "float64": 1e300}  # rows whose products are finite
_ENTRIES = 1 << 22  # of rows that are held together
_SHARED = 1 << 24  # products of a batch from which on a second thread pays
_FORMED = 64  # gradients that are written down together


@dataclass(frozen=True)
class Blocks:
    """How the rows of a batch are cut, from public figures alone.

    A block holds the rows whose *numbers* lie in a range, so that a record more or less
    changes the products of its own block and not a bit of the others.

    Attributes
    ----------
    dtype : dtype
        Precision of the products. Blocks are added up in float64.
    edges : array of ints, of shape (number of blocks - 1,)
        Number of the first row of every block but the first.
    most : int
        Rows of a block up to which ``slack`` covers the rounding; a larger one, which
        chance makes rare, is summed in float64.
    slack : float
        Share of the clip bound left to rounding.
    """

    dtype: Any
    edges: Ints
    most: int
    slack: float


def blocks_for(size: int, rate: float, dtype: Any) -> Blocks:
    """Cut batches of a declared size and rate, into blocks of about a hundred rows."""
    dtype = np.dtype(dtype)
    expected = size * rate
    count = max(1, math.ceil(expected / _BLOCK[dtype.name]))
    each = expected / count
    most = math.ceil(each + 4 * math.sqrt(each)) + 1
    edges = np.arange(1, count) * math.ceil(size / count)
    return Blocks(dtype, edges, most, rounding_slack(dtype, most))


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
    rng : Generator, optional
        Where that noise comes from.

    Guarantees
    ----------
    Adding or removing one record moves a sum by at most ``clip.bound`` in Frobenius norm,
    and replacing one by at most twice that, the rounding of the sums included. A row too long
    for the products (1e36 in float32, 1e300 in float64) contributes nothing. In float32
    the logits of a row may differ in their last bits with the other rows of its block;
    that, like the noise, is taken for exact arithmetic.
    """

    def __init__(
        self,
        X: Array | MappedRows,
        codes: Ints,
        norms: Floats,
        blocks: Blocks,
        *,
        intercept: bool = True,
        pre_noise: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> None:
        # Rows too long for the precision of the products are left out: zero times inf is NaN.
        long = norms > _LONGEST[blocks.dtype.name]
        self._X, self._codes, self._norms = X, codes, np.where(long, np.inf, norms)
        self._some_are_out = bool(long.any())
        self._blocks, self._intercept = blocks, intercept
        self._pre_noise, self._rng = pre_noise, rng
        self._pool: ThreadPoolExecutor | None = None
        self._rooms: list[Array] = [np.empty(0, blocks.dtype), np.empty(0, blocks.dtype)]

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
        """The clipped sum over rows, which are in ascending order."""
        if self._pre_noise:
            parts = [rows[i : i + _FORMED] for i in range(0, len(rows), _FORMED)]
            return _added([self._of_noisy(weights, part, clip) for part in parts])
        cuts = [0, *np.searchsorted(rows, self._blocks.edges).tolist(), len(rows)]
        half = len(cuts) // 2
        if self._pool is None or len(cuts) < 3 or len(rows) * weights.size < _SHARED:
            return self._lane(weights, rows, cuts, clip, 0)
        other = self._pool.submit(self._lane, weights, rows, cuts[half:], clip, 1)
        mine = self._lane(weights, rows, cuts[: half + 1], clip, 0)
        return _added([mine, other.result()])

    def _lane(
        self, weights: Floats, rows: Ints, cuts: list[int], clip: Clip, lane: int
    ) -> Clipped:
        """The clipped sum over blocks between cuts, on one thread."""
        total, exceeding, fresh = np.empty(weights.shape), 0, True
        narrow = weights.astype(self._blocks.dtype, copy=False)
        # What overflows has no finite norm, and is left out.
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for part in _groups(cuts, max(1, _ENTRIES // weights.shape[1])):
                chosen = rows[part[0] : part[-1]]
                inner = [cut - part[0] for cut in part]
                X = self._read(chosen, lane)
                exceeding += self._add(narrow, X, chosen, inner, clip, total, fresh)
                fresh = False
        return Clipped(total, exceeding)

    def _add(
        self,
        weights: Floats,
        X: Array,
        rows: Ints,
        cuts: list[int],
        clip: Clip,
        total: Floats,
        fresh: bool,
    ) -> int:
        """Add the clipped gradients of some blocks; return how many exceed a threshold.

        A fresh total is written over: to fill it with zeros first would take as long as half
        of a small product.
        """
        d, pieces = X.shape[1], list(pairwise(cuts))
        logits = np.empty((len(X), len(weights)), X.dtype)
        for start, stop in pieces:
            np.matmul(X[start:stop], weights[:, :d].T, out=logits[start:stop])
        if self._intercept:
            logits += weights[:, -1]
        residual = residuals(logits, self._codes[rows])
        norms = gradient_norms(residual, self._norms[rows])
        residual, exceeding = clipped_residuals(residual, norms, clip, slack=self._blocks.slack)
        for start, stop in pieces:
            scaled, block = residual[start:stop], X[start:stop]
            if stop - start > self._blocks.most:
                scaled, block = scaled.astype(np.float64), block.astype(np.float64)
            _put(total[:, :d], scaled.T @ block, fresh and start == 0)
        if self._intercept:
            _put(total[:, -1], residual.sum(axis=0, dtype=np.float64), fresh)
        return exceeding

    def _read(self, rows: Ints, lane: int) -> Array:
        """Rows in the precision of the products, in memory that is used again."""
        shape = len(rows), self._X.shape[1]
        needed = math.prod(shape)
        if self._rooms[lane].size < needed:
            self._rooms[lane] = np.empty(needed + needed // 4, self._blocks.dtype)
        room = self._rooms[lane][:needed].reshape(shape)
        if isinstance(self._X, np.ndarray) and self._X.dtype == room.dtype:
            np.take(self._X, rows, axis=0, out=room, mode="clip")  # "raise" would copy twice
        else:
            room[...] = self._X[rows]
        if self._some_are_out:
            room[np.isinf(self._norms[rows])] = 0
        return room

    def _of_noisy(self, weights: Floats, rows: Ints, clip: Clip) -> Clipped:
        """The clipped sum of noisy gradients, which have no closed form: they are formed."""
        assert self._rng is not None
        X = np.asarray(self._X[rows], dtype=np.float64)
        wide = np.hstack([X, np.ones((len(X), 1))]) if self._intercept else X
        logits = logits_of(weights.astype(np.float64), X, intercept=self._intercept)
        gradients = residuals(logits, self._codes[rows])[:, :, None] * wide[:, None, :]
        return clipped_sum(pre_noised(gradients, self._pre_noise, rng=self._rng), clip)


def _put(total: Floats, part: Floats, fresh: bool) -> None:
    """Write to a fresh total, or add to it."""
    if fresh:
        total[...] = part
    else:
        total += part


def _groups(cuts: list[int], most: int) -> Iterator[list[int]]:
    """Runs of consecutive blocks that hold about so many rows together."""
    start = 0
    for i in range(1, len(cuts)):
        if i == len(cuts) - 1 or cuts[i + 1] - cuts[start] > most:
            yield cuts[start : i + 1]
            start = i


def _added(parts: list[Clipped]) -> Clipped:
    """The sum of several sums."""
    total = parts[0].total
    for part in parts[1:]:
        total += part.total
    return Clipped(total, sum(part.exceeding for part in parts))
