r"""Gradients of softmax and logistic regression, clipped and summed in closed form.

With residual :math:`r_i = p_i - e_{y_i}` (for two classes one number,
:math:`\sigma(w \cdot x_i) - y_i`), the gradient of example i is the outer product
:math:`r_i (x_i, 1)^\top`. Its norm is :math:`\lVert r_i \rVert \sqrt{\lVert x_i \rVert^2 + 1}`,
and the clipped sum

.. math:: \sum_i c_i \, r_i \, (x_i, 1)^\top

is one matrix product: no gradient of an example is ever written down (Goodfellow 2015,
https://arxiv.org/abs/1510.01799). Everything takes further axes in front, for several models at
once.

Clipped gradient sums over the batches of a descent, a block of rows at a time.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import expit

from veracal._threads import threadpool_limits
from veracal._types import Array, Bools, Floats, Ints
from veracal.data import MappedRows
from veracal.mechanisms import (
    Clipped,
    ClipRule,
    clipped_sum,
    is_continuous,
    pre_noised,
    selection,
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
    """The same sums for weights (k, d + 1) and rows (n, d), each row by itself, and slowly.

    A product may add up in an order that depends on how many rows there are, and so may
    ``einsum`` of a matrix, from 8,192 columns on. Here every row is one call of the same shape.
    """
    slopes = np.ascontiguousarray(weights[:, : X.shape[1]])
    sums = np.empty((len(X), len(weights)))
    for row, made in zip(np.ascontiguousarray(X), sums, strict=True):
        np.einsum("d,kd->k", row, slopes, out=made, optimize=False)
    return sums + weights[:, -1] if intercept else sums


def residuals(logits: Floats, codes: Ints) -> Floats:
    """Probabilities minus the truth, in place of the logits, of shape (..., n, k).

    With k = 1 the two classes have one logit, that of the second class.
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
    """Norms of the gradients in float64, from residuals and norms of the rows they meet."""
    squares = np.einsum("...k,...k->...", residual, residual, dtype=np.float64)
    norms: Floats = np.sqrt(squares) * row_norms
    return norms


def clipped_residuals(
    residual: Floats, norms: Floats, clip: ClipRule, *, slack: float = 0.0
) -> tuple[Floats, int]:
    """Residuals times their factors, in place; zero where a norm is not finite.

    Parameters
    ----------
    residual : array of shape (..., n, k)
    norms : array of shape (..., n)
    clip : Clip
    slack : float
        Share of the bound that is left to rounding.

    Returns
    -------
    residual : array of shape (..., n, k)
    exceeding : int
        See :class:`veracal.mechanisms.Clipped`; of all models together.
    """
    chosen = selection(norms.ravel(), clip)
    # In float32 a factor beyond 1e30, of a gradient of next to nothing, would be infinite.
    factors = np.minimum(chosen.factors * (1 - slack), _MAX_FACTOR)
    if len(factors) < norms.size:
        residual[~chosen.kept.reshape(norms.shape)] = 0  # zero times NaN is NaN
        whole = np.zeros(norms.size)
        whole[chosen.kept] = factors
        factors = whole
    residual *= factors.astype(residual.dtype).reshape(*norms.shape, 1)
    return residual, chosen.exceeding


def clipped_gradient_sum(
    weights: Floats, X: Floats, codes: Ints, clip: ClipRule, *, intercept: bool = True
) -> Clipped:
    """Sum of clipped gradients over some rows, in float64.

    Parameters
    ----------
    weights : array of shape (..., k, d), or (..., k, d + 1) with an intercept
        Two classes have k = 1.
    X : array of shape (n, d)
    codes : array of ints, of shape (n,)
    clip : Clip
    intercept : bool

    Returns
    -------
    Clipped
        The total has the shape of the weights.

    Guarantees
    ----------
    Adding or removing one example moves the total by at most ``clip.bound`` in Frobenius
    norm; replacing one, by at most twice that.
    """
    X = np.asarray(X, dtype=np.float64)
    residual = residuals(
        compute_logits(np.asarray(weights, float), X, intercept=intercept), codes
    )
    with np.errstate(over="ignore", invalid="ignore"):  # what has no norm is left out
        lengths = np.sqrt(np.einsum("ij,ij->i", X, X) + intercept)
        norms = gradient_norms(residual, lengths)
    residual, exceeding = clipped_residuals(residual, norms, clip)
    kept = np.isfinite(lengths)
    total = np.swapaxes(residual[..., kept, :], -1, -2) @ X[kept]
    if intercept:
        ones = residual[..., kept, :].sum(axis=-2)
        total = np.concatenate([total, ones[..., None]], axis=-1)
    return Clipped(total, exceeding)


def rounding_slack(dtype: Any, block: int, chain: int) -> float:
    r"""Share of the bound that roundings of the sum over a block may take.

    A sum of products in floating point, in which no term takes part in more than l
    additions, differs from the exact one by at most :math:`(l + 2) u` times the sum of the
    sizes of its terms (Higham 2002, section 3.1), u being half the distance from 1 to the
    next float; for m terms added in any order, l is less than m. No term is longer than the
    bound C, so the sum of a block is off by at most :math:`(l + 2) u \, m C`, and the
    difference between the sums of two neighbors by twice that. All other blocks have the
    same rows in both, in the same order, and so the same bits.
    """
    return 2 * (chain + 2) * float(np.finfo(dtype).eps) / 2 * block


_BLOCK = 128  # rows expected in a block
_CHUNK = 512  # and in a piece of a batch in float64
_MAX_BLOCKS = 64  # beyond, single precision is given up
_NORMS = {"float32": (1e-30, 1e30), "float64": (1e-290, 1e290)}  # whose factors keep digits
# Of the bound, that rounded logits may move of a gradient in float64, and of all in a batch: a
# factor leaves twice that to norms, of which float64 needs next to nothing.
_MAX_SHIFT, _MAX_TOTAL_SHIFT = 1e-9, 1e-6
_ENTRIES = 1 << 22  # of rows that are held together
_TWO_THREADS_FROM = 1 << 26  # products of a batch from which on a second thread pays
_BLOCK_DRAWS = 1 << 14  # that are drawn together
_EXPLICIT_GRADIENTS = 64  # gradients that are written down together


@dataclass(frozen=True)
class Blocks:
    r"""How the rows of a batch are cut, from public figures alone.

    Every row draws its block by lot, so that a record more or less changes the products of
    one block and not a bit of the others: given the lots of all records, the sums of two
    neighbors differ in the block of one record, and what holds given the lots holds on
    average over them, since divergences are jointly convex. Blocks by the numbers of rows
    would not do. Without a record, all rows behind it have lower numbers.

    Attributes
    ----------
    dtype : dtype
        Precision of the products. Blocks are added up in float64.
    count : int
    most : int
        Rows of a block up to which ``slack`` covers the rounding; a larger one, which
        chance makes rare, is summed in float64. There, twice the declared batch.
    slack : float
        Share of the clip bound left to rounding.
    """

    dtype: Any
    count: int
    most: int
    slack: float


def plan_blocks(expected_batch: float, dtype: Any) -> Blocks:
    """Cut batches of a declared size: in float32 into blocks of about a hundred rows."""
    count = max(1, math.ceil(expected_batch / _BLOCK))
    if np.dtype(dtype) == np.float64 or count > _MAX_BLOCKS:
        most = 2 * math.ceil(expected_batch) + 1_000
        # Pieces are added one after the other, in the same precision.
        slack = rounding_slack(np.float64, most, _CHUNK + most // _CHUNK)
        return Blocks(np.dtype(np.float64), 1, most, slack)
    each = expected_batch / count
    most = math.ceil(each + 4 * math.sqrt(each)) + 1
    return Blocks(np.dtype(dtype), count, most, rounding_slack(dtype, most, most))


class GradientSums:
    """What a :class:`~veracal.mechanisms.DPSGD` asks of the records of a linear model.

    Parameters
    ----------
    X : array or MappedRows of shape (n, d)
    codes : array of ints, of shape (n,)
    norms : array of shape (n,)
        Norms of the rows in float64, with the 1 that an intercept meets.
    blocks : Blocks
    rng : Generator
        Of the lots, and of the noise before the clip.
    intercept : bool
    pre_noise : float
        Standard deviation of noise on each gradient before it is clipped.

    Guarantees
    ----------
    Adding or removing one record moves a sum by at most ``clip.bound`` in Frobenius norm, and
    replacing one by at most twice that, the rounding of the sums included. A row too long or
    too short for the products (beyond 1e30 or 1e-30 in float32) contributes nothing.

    The last bits of a row's logits depend on the rows it is multiplied together with. Rules
    that jump at a threshold, and all that are not known to be continuous
    (:func:`~veracal.mechanisms.clipping.is_continuous`), therefore get logits that are
    computed row by row, in float64. For others, a row so long that its gradient could move
    visibly, by a typical estimate of rounding, is computed more precisely, or by itself. What
    remains of all rows together is within what the clip leaves to rounding.
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
        # Rows without products in this precision are left out: zero times inf is NaN.
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
        """Divide large batches between two threads, each with a single one below it."""
        # Threads of the linear algebra would wait for each other, and for the noise.
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(1) as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    def __call__(self, weights: Floats, rows: Ints, clip: ClipRule) -> Clipped:
        """The clipped sum over rows."""
        # A warning, too, would tell of a record; what overflows has no finite norm.
        with np.errstate(all="ignore"):
            if self._pre_noise and len(rows):
                parts = [
                    rows[i : i + _EXPLICIT_GRADIENTS]
                    for i in range(0, len(rows), _EXPLICIT_GRADIENTS)
                ]
                return _add_sums([self._pre_noised_sum(weights, part, clip) for part in parts])
            rows, cuts = self._assign_blocks(rows)
            half = len(cuts) // 2
            if (
                self._pool is None
                or len(cuts) < 3
                or len(rows) * weights.size < _TWO_THREADS_FROM
            ):
                return self._combine(weights, [self._sum_blocks(weights, rows, cuts, clip, 0)])
            other = self._pool.submit(self._sum_blocks, weights, rows, cuts[half:], clip, 1)
            mine = self._sum_blocks(weights, rows, cuts[: half + 1], clip, 0)
            return self._combine(weights, [mine, other.result()])

    def _combine(self, weights: Floats, lanes: "list[_Lane]") -> Clipped:
        """What the lanes have summed, in the shape of the weights."""
        first = lanes[0]
        for lane in lanes[1:]:
            first.slopes += lane.slopes
            first.ones += lane.ones
        if not self._intercept:
            return Clipped(first.slopes, sum(lane.exceeding for lane in lanes))
        total = np.empty(weights.shape)
        total[:, :-1], total[:, -1] = first.slopes, first.ones
        return Clipped(total, sum(lane.exceeding for lane in lanes))

    def _assign_blocks(self, rows: Ints) -> tuple[Ints, list[int]]:
        """Rows in the order of their blocks, and where blocks begin and end."""
        if self._blocks.count == 1:
            single = self._blocks.dtype != np.float64 and len(rows) <= self._blocks.most
            together = max(1, len(rows)) if single else _CHUNK
            return rows, [*range(0, len(rows), together), len(rows)] if len(rows) else [0, 0]
        lots = self._draw_blocks(rows)
        order = np.argsort(lots, kind="stable")
        sizes = np.bincount(lots, minlength=self._blocks.count)
        return rows[order], [0, *np.cumsum(sizes).tolist()]

    def _draw_blocks(self, rows: Ints) -> Ints:
        """The block of every row, drawn anew."""
        if len(self._unused_draws) < len(rows):
            fresh = max(_BLOCK_DRAWS, len(rows))
            self._unused_draws = self._rng.integers(
                self._blocks.count, size=fresh, dtype=np.uint8
            )
        lots, self._unused_draws = np.split(self._unused_draws, [len(rows)])
        return lots

    def _sum_blocks(
        self, weights: Floats, rows: Ints, cuts: list[int], clip: ClipRule, lane: int
    ) -> "_PartialSum":
        """The clipped sum over blocks between cuts, on one thread."""
        # Slopes by themselves: next to the intercepts, numpy adds three times as slowly.
        total = _PartialSum(np.zeros(len(weights)))
        narrow = weights.astype(self._blocks.dtype, copy=False)
        with np.errstate(all="ignore"):  # threads do not inherit it
            for part in _group_blocks(cuts, max(1, _ENTRIES // weights.shape[1])):
                chosen = rows[part[0] : part[-1]]
                inner = [cut - part[0] for cut in part]
                residual, more = self._clipped(narrow, chosen, lane, inner, clip)
                self._add(residual, self._buffer(len(chosen), lane), inner, total)
                total.exceeding += more
        return total

    def _clipped(
        self, weights: Floats, rows: Ints, lane: int, cuts: list[int], clip: ClipRule
    ) -> tuple[Floats, int]:
        """Clipped residuals of some rows, and how many exceed a threshold."""
        X, codes, lengths = self._read(rows, lane), self._codes[rows], self._norms[rows]
        if not is_continuous(clip):
            exact = self._residuals_in_float64(weights, rows, compute_logits_rowwise)
            norms = gradient_norms(exact, lengths)
            exact, more = clipped_residuals(exact, norms, clip, slack=self._blocks.slack)
            return exact.astype(X.dtype, copy=False), more
        logits = np.empty((len(X), len(weights)), X.dtype)
        for start, stop in pairwise(cuts):
            np.matmul(X[start:stop], weights[:, : X.shape[1]].T, out=logits[start:stop])
        if self._intercept:
            logits += weights[:, -1]
        residual = residuals(logits, codes)
        self._recompute_imprecise(residual, weights, rows, lengths, clip)
        norms = gradient_norms(residual, lengths)
        return clipped_residuals(residual, norms, clip, slack=self._blocks.slack)

    def _recompute_imprecise(
        self, residual: Floats, weights: Floats, rows: Ints, lengths: Floats, clip: ClipRule
    ) -> None:
        """Compute anew what rounding, and with it the other rows, might move visibly."""
        longest = math.sqrt(np.vecdot(weights, weights).max())
        doubt = self._blocks.slack / max(1, self._blocks.most)
        # What was single is computed in double precision, and if that will not do, alone.
        least = min(_MAX_SHIFT, _MAX_TOTAL_SHIFT / self._blocks.most)
        tiers = ((2.0**-24, doubt, compute_logits), (2.0**-53, least, compute_logits_rowwise))
        for rounding, most, product in tiers[self._blocks.dtype == np.float64 :]:
            # Two roundings of the product of the norms: more than a sum usually has.
            steep = 2 * rounding * longest / clip.bound
            if not steep * self._longest * self._longest > most:
                return
            moved = np.isfinite(lengths) & (steep * lengths * lengths > most)
            if moved.any():
                chosen = np.flatnonzero(moved)
                residual[chosen] = self._residuals_in_float64(weights, rows[chosen], product)

    def _residuals_in_float64(
        self, weights: Floats, rows: Ints, product: Callable[..., Floats]
    ) -> Floats:
        """Residuals of some rows in float64."""
        X, wide = np.asarray(self._X[rows], np.float64), weights.astype(np.float64)
        return residuals(product(wide, X, intercept=self._intercept), self._codes[rows])

    def _add(self, residual: Floats, X: Array, cuts: list[int], total: "_PartialSum") -> None:
        """Add the gradients of some blocks."""
        for start, stop in pairwise(cuts):
            scaled, block = residual[start:stop], X[start:stop]
            if stop - start > self._blocks.most:
                scaled, block = (
                    part.astype(np.float64, copy=False) for part in (scaled, block)
                )
            total.add(scaled.T @ block)
        if self._intercept:
            total.ones += residual.sum(axis=0, dtype=np.float64)

    def _buffer(self, count: int, lane: int) -> Array:
        """Memory for so many rows, which is used again and again."""
        shape = count, self._X.shape[1]
        needed = math.prod(shape)
        if self._buffers[lane].size < needed:
            self._buffers[lane] = np.empty(needed + needed // 4, self._blocks.dtype)
        return self._buffers[lane][:needed].reshape(shape)

    def _read(self, rows: Ints, lane: int) -> Array:
        """Rows in the precision of the products."""
        room = self._buffer(len(rows), lane)
        if isinstance(self._X, np.ndarray) and self._X.dtype == room.dtype:
            np.take(self._X, rows, axis=0, out=room, mode="clip")  # "raise" would copy twice
        else:
            room[...] = self._X[rows]
        if self._any_excluded:
            room[self._out(rows)] = 0
        return room

    def _out(self, rows: Ints) -> Bools:
        """Which rows are left out."""
        return np.isinf(self._norms[rows])

    def _pre_noised_sum(self, weights: Floats, rows: Ints, clip: ClipRule) -> Clipped:
        """The clipped sum of noisy gradients, which have no closed form: they are formed."""
        X = np.asarray(self._X[rows], dtype=np.float64)
        wide = np.hstack([X, np.ones((len(X), 1))]) if self._intercept else X
        logits = compute_logits_rowwise(
            weights.astype(np.float64), X, intercept=self._intercept
        )
        gradients = residuals(logits, self._codes[rows])[:, :, None] * wide[:, None, :]
        return clipped_sum(pre_noised(gradients, self._pre_noise, rng=self._rng), clip)


@dataclass(eq=False, repr=False)
class _PartialSum:
    """What one thread has summed, in float64: slopes, intercepts, and how many exceed."""

    ones: Floats
    slopes: Floats = field(default_factory=lambda: np.empty((0, 0)))
    exceeding: int = 0

    def add(self, product: Floats) -> None:
        """Add the slopes of one block."""
        if self.slopes.size:
            self.slopes += product
        else:
            self.slopes = product.astype(np.float64, copy=False)


def _group_blocks(cuts: list[int], most: int) -> Iterator[list[int]]:
    """Runs of consecutive blocks that hold about so many rows together."""
    start = 0
    for i in range(1, len(cuts)):
        if i == len(cuts) - 1 or cuts[i + 1] - cuts[start] > most:
            yield cuts[start : i + 1]
            start = i


def _add_sums(parts: list[Clipped]) -> Clipped:
    """The sum of several sums."""
    total = parts[0].total
    for part in parts[1:]:
        total += part.total
    return Clipped(total, sum(part.exceeding for part in parts))
