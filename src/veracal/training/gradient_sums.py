r"""Gradients of softmax and logistic regression, clipped and summed in closed form.

With residual :math:`r_i = p_i - e_{y_i}` (for two classes one number,
:math:`\sigma(w \cdot x_i) - y_i`), the gradient of example i is the outer product
:math:`r_i (x_i, 1)^\top`. Its norm is :math:`\lVert r_i \rVert \sqrt{\lVert x_i \rVert^2 + 1}`,
and the clipped sum

.. math:: \sum_i c_i \, r_i \, (x_i, 1)^\top

is one matrix product: per-example gradients are never materialized (Goodfellow 2015,
https://arxiv.org/abs/1510.01799). The functions accept further leading axes, for several models
at once. :class:`GradientSums` computes the sums over the batches of a run, block by block.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import expit

from veracal._threads import threadpool_limits
from veracal._types import Array, Floats, Ints
from veracal.data import MappedRows
from veracal.mechanisms import (
    ClippedSum,
    ClipRule,
    add_gradient_noise,
    clipped_sum,
    is_continuous,
    select_and_scale,
)

_MAX_FACTOR = 1e30


def compute_logits(weights: Floats, X: Floats, *, intercept: bool) -> Floats:
    """Weighted sums of shape (..., n, k), from weights (..., k, d + 1) and rows (..., n, d)."""
    if not intercept:
        return X @ np.swapaxes(weights, -1, -2)
    sums = X @ np.swapaxes(weights[..., :-1], -1, -2)
    sums += weights[..., None, :, -1]
    return sums


def compute_logits_rowwise(weights: Floats, X: Floats, *, intercept: bool) -> Floats:
    """The same sums for weights (k, d + 1) and rows (n, d), computed slowly row by row.

    The order of additions in a matrix product may depend on the number of rows, and so may that
    of ``einsum`` on a matrix, from 8,192 columns on. Here each row is one call of the same
    shape.
    """
    slopes = np.ascontiguousarray(weights[:, : X.shape[1]])
    sums = np.empty((len(X), len(weights)))
    for row, out in zip(np.ascontiguousarray(X), sums, strict=True):
        np.einsum("d,kd->k", row, slopes, out=out, optimize=False)
    return sums + weights[:, -1] if intercept else sums


def residuals(logits: Floats, codes: Ints) -> Floats:
    """Probabilities minus one-hot labels, of shape (..., n, k), computed in place.

    With k = 1, two classes share one logit, that of the second class.
    """
    if logits.shape[-1] == 1:
        expit(logits, out=logits)
        logits -= codes[..., None]
        return logits
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    flat = logits.reshape(-1, logits.shape[-1])
    flat[np.arange(len(flat)), np.broadcast_to(codes, logits.shape[:-1]).ravel()] -= 1
    return logits


def gradient_norms(residual: Floats, row_norms: Floats) -> Floats:
    """Norms of the gradients in float64, from residuals and norms of the rows."""
    squares = np.einsum("...k,...k->...", residual, residual, dtype=np.float64)
    norms: Floats = np.sqrt(squares) * row_norms
    return norms


def clipped_residuals(
    residual: Floats, norms: Floats, clip: ClipRule, *, slack: float = 0.0
) -> tuple[Floats, int]:
    """Residuals times their clip factors, in place; zero where a norm is not finite.

    Parameters
    ----------
    residual : array of shape (..., n, k)
    norms : array of shape (..., n)
    clip : ClipRule
    slack : float
        Share of the clip bound that is reserved for rounding.

    Returns
    -------
    residual, and the number that exceeds a threshold (:class:`veracal.mechanisms.ClippedSum`)
    """
    chosen = select_and_scale(norms.ravel(), clip)
    # The factor of a very small gradient may exceed 1e30, and would be infinite in float32.
    factors = np.minimum(chosen.factors * (1 - slack), _MAX_FACTOR)
    if len(factors) < norms.size:
        residual[~chosen.kept.reshape(norms.shape)] = 0  # zero times NaN is NaN
        scattered = np.zeros(norms.size)
        scattered[chosen.kept] = factors
        factors = scattered
    residual *= factors.astype(residual.dtype).reshape(*norms.shape, 1)
    return residual, chosen.exceeding


def rounding_slack(dtype: Any, block: int, chain: int) -> float:
    r"""Share of the clip bound that the rounding of the sum over a block may take.

    A floating-point sum of products in which no term takes part in more than l additions
    differs from the exact sum by at most :math:`(l + 2) u` times the sum of the absolute values
    of its terms (Higham 2002, section 3.1), where u is half the distance from 1 to the next
    float; for m terms added in any order, l is less than m. No term is longer than the bound C,
    so the error of the sum of a block is at most :math:`(l + 2) u \, m C`, and that of the
    difference between the sums of two neighbors twice as much. All other blocks have the same
    rows in both, in the same order, and therefore the same bits.
    """
    return 2 * (chain + 2) * float(np.finfo(dtype).eps) / 2 * block


_BLOCK = 128  # expected rows of a block
_CHUNK = 512  # rows of a chunk of a batch in float64
_MAX_BLOCKS = 64  # with more blocks, products are in float64
_NORMS = {"float32": (1e-30, 1e30), "float64": (1e-290, 1e290)}  # norms with precise factors
# Shares of the clip bound by which rounded logits may change one gradient in float64, and all
# gradients of a batch: the slack is twice as large, and norms in float64 need little of it.
_MAX_SHIFT, _MAX_TOTAL_SHIFT = 1e-9, 1e-6
_ENTRIES = 1 << 22  # entries of the rows that are in memory at a time
_TWO_THREADS_FROM = 1 << 26  # products of a batch from which two threads are faster
_BLOCK_DRAWS = 1 << 14  # block numbers that are drawn together
_EXPLICIT_GRADIENTS = 64  # per-example gradients that are materialized together


@dataclass(frozen=True)
class Blocks:
    r"""Partition of a batch into blocks, from public figures alone.

    Each row is assigned to a random block, so that one record more or less changes the
    products of one block and not a bit of the others: given the assignment of all records, the
    sums of two neighbors differ in the block of one record, and a bound that holds given the
    assignment also holds on average over assignments, since divergences are jointly convex.
    Blocks of consecutive rows would not work: without a record, all later rows move up by one.

    A block of more than ``most`` rows (in float64, twice the declared batch), which is rare, is
    summed in float64.
    """

    dtype: Any  # precision of the products; blocks are added up in float64
    count: int
    most: int  # rows of a block for which the slack covers the rounding
    slack: float  # share of the clip bound reserved for rounding


def plan_blocks(expected_batch: float, dtype: Any) -> Blocks:
    """Partition batches of a declared size: in float32 into blocks of about a hundred rows."""
    count = max(1, math.ceil(expected_batch / _BLOCK))
    if np.dtype(dtype) == np.float64 or count > _MAX_BLOCKS:
        most = 2 * math.ceil(expected_batch) + 1_000
        # Chunks are added one after the other, in the same precision.
        slack = rounding_slack(np.float64, most, _CHUNK + most // _CHUNK)
        return Blocks(np.dtype(np.float64), 1, most, slack)
    each = expected_batch / count
    most = math.ceil(each + 4 * math.sqrt(each)) + 1
    return Blocks(np.dtype(dtype), count, most, rounding_slack(dtype, most, most))


class GradientSums:
    """Clipped gradient sums of a linear model, for :class:`~veracal.mechanisms.DPSGD`.

    Parameters
    ----------
    X : array or MappedRows of shape (n, d)
    codes : array of ints, of shape (n,)
    norms : array of shape (n,)
        Norms of the rows in float64, with the appended 1 if there is an intercept.
    blocks : Blocks
    rng : Generator
        For the block assignment and the noise before the clip.
    intercept : bool
    pre_noise : float
        Standard deviation of noise on each gradient before it is clipped.

    Guarantees
    ----------
    Adding or removing one record moves a sum by at most ``clip.bound`` in Frobenius norm, and
    replacing one by at most twice that, the rounding of the sums included. A row whose norm is
    outside the range of the products (1e-30 to 1e30 in float32) contributes zero.

    The last bits of a row's logits depend on the rows that are multiplied together with it.
    For rules that are discontinuous, or not known to be continuous
    (:func:`~veracal.mechanisms.clipping.is_continuous`), logits are therefore computed row by
    row, in float64. For other rules, a row so long that rounding could change its gradient
    noticeably, by a typical estimate, is computed in higher precision, or on its own. The
    remaining rounding of all rows together is covered by the slack.
    """

    def __init__(
        self,
        X: Array | MappedRows,
        codes: Ints,
        norms: Floats,
        blocks: Blocks,
        *,
        rng: np.random.Generator,
        intercept: bool = True,
        pre_noise: float = 0.0,
    ) -> None:
        low, high = _NORMS[blocks.dtype.name]
        # Rows outside the range of this precision are excluded: zero times inf is NaN.
        out = ~((norms >= low) & (norms <= high))
        self._X, self._codes, self._norms = X, codes, np.where(out, np.inf, norms)
        self._any_excluded = bool(out.any())
        self._longest = float(norms[~out].max(initial=0.0))
        self._blocks, self._intercept = blocks, intercept
        self._pre_noise, self._rng = pre_noise, rng
        self._pool: ThreadPoolExecutor | None = None
        self._buffers: list[Array] = [np.empty(0, blocks.dtype), np.empty(0, blocks.dtype)]
        self._unused_draws: Ints = np.empty(0, np.uint8)

    @contextmanager
    def two_threads(self) -> Iterator[None]:
        """Divide large batches between two threads, with single-threaded BLAS in each."""
        # Threads of BLAS would wait for each other, and for the noise.
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(1) as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    def __call__(self, weights: Floats, rows: Ints, clip: ClipRule) -> ClippedSum:
        """The clipped sum over rows."""
        # A warning would reveal a record; rows that overflow have no finite norm.
        with np.errstate(all="ignore"):
            if self._pre_noise and len(rows):
                return self._pre_noised_sum(weights, rows, clip)
            rows, cuts = self._assign_blocks(rows)
            small = len(rows) * weights.size < _TWO_THREADS_FROM
            if self._pool is None or len(cuts) < 3 or small:
                return self._combine(weights, [self._sum_blocks(weights, rows, cuts, clip, 0)])
            half = len(cuts) // 2
            other = self._pool.submit(self._sum_blocks, weights, rows, cuts[half:], clip, 1)
            mine = self._sum_blocks(weights, rows, cuts[: half + 1], clip, 0)
            return self._combine(weights, [mine, other.result()])

    def _pre_noised_sum(self, weights: Floats, rows: Ints, clip: ClipRule) -> ClippedSum:
        """The clipped sum of noisy gradients, which have no closed form."""
        total, exceeding = np.zeros(weights.shape), 0
        for start in range(0, len(rows), _EXPLICIT_GRADIENTS):
            part = rows[start : start + _EXPLICIT_GRADIENTS]
            residual = self._residuals_in_float64(weights, part, compute_logits_rowwise)
            X = np.asarray(self._X[part], dtype=np.float64)
            wide = np.hstack([X, np.ones((len(X), 1))]) if self._intercept else X
            gradients = residual[:, :, None] * wide[:, None, :]
            noisy = add_gradient_noise(gradients, self._pre_noise, rng=self._rng)
            clipped = clipped_sum(noisy, clip)
            total += clipped.total
            exceeding += clipped.exceeding
        return ClippedSum(total, exceeding)

    def _combine(self, weights: Floats, sums: list[tuple[Floats, Floats, int]]) -> ClippedSum:
        """The total of the threads' sums, in the shape of the weights."""
        slopes, ones, exceeding = sums[0]
        for more_slopes, more_ones, more_exceeding in sums[1:]:
            slopes += more_slopes
            ones += more_ones
            exceeding += more_exceeding
        if not self._intercept:
            return ClippedSum(slopes, exceeding)
        total = np.empty(weights.shape)
        total[:, :-1], total[:, -1] = slopes, ones
        return ClippedSum(total, exceeding)

    def _assign_blocks(self, rows: Ints) -> tuple[Ints, list[int]]:
        """Rows in the order of their blocks, and the boundaries of the blocks."""
        if self._blocks.count == 1:
            single = self._blocks.dtype != np.float64 and len(rows) <= self._blocks.most
            size = max(1, len(rows)) if single else _CHUNK
            return rows, [*range(0, len(rows), size), len(rows)] if len(rows) else [0, 0]
        blocks = self._draw_blocks(rows)
        order = np.argsort(blocks, kind="stable")
        sizes = np.bincount(blocks, minlength=self._blocks.count)
        return rows[order], [0, *np.cumsum(sizes).tolist()]

    def _draw_blocks(self, rows: Ints) -> Ints:
        """A freshly drawn block number for each row."""
        if len(self._unused_draws) < len(rows):
            size = max(_BLOCK_DRAWS, len(rows))
            self._unused_draws = self._rng.integers(
                self._blocks.count, size=size, dtype=np.uint8
            )
        blocks, self._unused_draws = np.split(self._unused_draws, [len(rows)])
        return blocks

    def _sum_blocks(
        self, weights: Floats, rows: Ints, cuts: list[int], clip: ClipRule, thread: int
    ) -> tuple[Floats, Floats, int]:
        """The sum over the blocks between cuts, on one thread, in float64.

        Slopes, intercepts and the number of exceeding norms. Slopes are added separately: next
        to the intercepts, numpy adds three times as slowly.
        """
        slopes, ones, exceeding = np.empty((0, 0)), np.zeros(len(weights)), 0
        narrow = weights.astype(self._blocks.dtype, copy=False)
        with np.errstate(all="ignore"):  # threads do not inherit it
            for part in _group_blocks(cuts, max(1, _ENTRIES // weights.shape[1])):
                chosen = rows[part[0] : part[-1]]
                inner = [cut - part[0] for cut in part]
                X = self._read(chosen, thread)
                residual, count = self._clip(narrow, X, chosen, inner, clip)
                exceeding += count
                for start, stop in pairwise(inner):
                    scaled, block = residual[start:stop], X[start:stop]
                    if stop - start > self._blocks.most:
                        scaled = scaled.astype(np.float64, copy=False)
                        block = block.astype(np.float64, copy=False)
                    product = scaled.T @ block
                    if slopes.size:
                        slopes += product
                    else:
                        slopes = product.astype(np.float64, copy=False)
                if self._intercept:
                    ones += residual.sum(axis=0, dtype=np.float64)
        return slopes, ones, exceeding

    def _clip(
        self, weights: Floats, X: Array, rows: Ints, cuts: list[int], clip: ClipRule
    ) -> tuple[Floats, int]:
        """Clipped residuals of some rows, and the number that exceed a threshold."""
        lengths, blocks = self._norms[rows], self._blocks
        if not is_continuous(clip):
            residual = self._residuals_in_float64(weights, rows, compute_logits_rowwise)
        else:
            logits = np.empty((len(X), len(weights)), X.dtype)
            for start, stop in pairwise(cuts):
                np.matmul(X[start:stop], weights[:, : X.shape[1]].T, out=logits[start:stop])
            if self._intercept:
                logits += weights[:, -1]
            residual = residuals(logits, self._codes[rows])
            # Recompute residuals that rounding, and so the other rows, could change noticeably:
            # imprecise float32 rows in float64, and row by row if necessary.
            longest = math.sqrt(np.vecdot(weights, weights).max())
            shift32 = blocks.slack / max(1, blocks.most)
            shift64 = min(_MAX_SHIFT, _MAX_TOTAL_SHIFT / blocks.most)
            tiers = (
                (2.0**-24, shift32, compute_logits),
                (2.0**-53, shift64, compute_logits_rowwise),
            )
            for rounding, most, product in tiers[blocks.dtype == np.float64 :]:
                # Two roundings of the product of the norms: more than a typical sum has.
                scale = 2 * rounding * longest / clip.bound
                if not scale * self._longest * self._longest > most:
                    break
                imprecise = np.isfinite(lengths) & (scale * lengths * lengths > most)
                chosen = np.flatnonzero(imprecise)
                if len(chosen):
                    residual[chosen] = self._residuals_in_float64(
                        weights, rows[chosen], product
                    )
        norms = gradient_norms(residual, lengths)
        residual, exceeding = clipped_residuals(residual, norms, clip, slack=blocks.slack)
        return residual.astype(X.dtype, copy=False), exceeding

    def _residuals_in_float64(
        self, weights: Floats, rows: Ints, product: Callable[..., Floats]
    ) -> Floats:
        """Residuals of some rows in float64."""
        X, wide = np.asarray(self._X[rows], np.float64), weights.astype(np.float64)
        return residuals(product(wide, X, intercept=self._intercept), self._codes[rows])

    def _read(self, rows: Ints, thread: int) -> Array:
        """Rows in the precision of the products, in a thread's buffer; excluded rows are zero."""
        shape = len(rows), self._X.shape[1]
        needed = math.prod(shape)
        if self._buffers[thread].size < needed:
            self._buffers[thread] = np.empty(needed + needed // 4, self._blocks.dtype)
        buffer = self._buffers[thread][:needed].reshape(shape)
        if isinstance(self._X, np.ndarray) and self._X.dtype == buffer.dtype:
            np.take(self._X, rows, axis=0, out=buffer, mode="clip")  # "raise" would copy twice
        else:
            buffer[...] = self._X[rows]
        if self._any_excluded:
            buffer[np.isinf(self._norms[rows])] = 0
        return buffer


def _group_blocks(cuts: list[int], most: int) -> Iterator[list[int]]:
    """Groups of consecutive blocks with at most so many rows, if possible."""
    start = 0
    for i in range(1, len(cuts)):
        if i == len(cuts) - 1 or cuts[i + 1] - cuts[start] > most:
            yield cuts[start : i + 1]
            start = i
