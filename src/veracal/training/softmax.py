r"""Gradients of softmax and logistic regression, clipped and summed in closed form.

With residual :math:`r_i = p_i - e_{y_i}` (for two classes one number,
:math:`\sigma(w \cdot x_i) - y_i`), the gradient of example i is the outer product
:math:`r_i (x_i, 1)^\top`. Its norm is :math:`\lVert r_i \rVert \sqrt{\lVert x_i \rVert^2 + 1}`,
and the clipped sum

.. math:: \sum_i c_i \, r_i \, (x_i, 1)^\top

is one matrix product: no gradient of an example is ever written down (Goodfellow 2015,
https://arxiv.org/abs/1510.01799). Everything takes further axes in front, for several models at
once.
"""

from typing import Any

import numpy as np
from scipy.special import expit

from veracal._types import Floats, Ints
from veracal.privacy import Clip, Clipped, selection

_MOST_FACTOR = 1e30


def logits_of(weights: Floats, X: Floats, *, intercept: bool) -> Floats:
    """Weighted sums of shape (..., n, k), from weights (..., k, d + 1) and rows (..., n, d)."""
    if not intercept:
        return X @ np.swapaxes(weights, -1, -2)
    sums = X @ np.swapaxes(weights[..., :-1], -1, -2)
    sums += weights[..., None, :, -1]
    return sums


def logits_one_by_one(weights: Floats, X: Floats, *, intercept: bool) -> Floats:
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
    residual: Floats, norms: Floats, clip: Clip, *, slack: float = 0.0
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
        See :class:`veracal.privacy.Clipped`; of all models together.
    """
    chosen = selection(norms.ravel(), clip)
    # In float32 a factor beyond 1e30, of a gradient of next to nothing, would be infinite.
    factors = np.minimum(chosen.factors * (1 - slack), _MOST_FACTOR)
    if len(factors) < norms.size:
        residual[~chosen.kept.reshape(norms.shape)] = 0  # zero times NaN is NaN
        whole = np.zeros(norms.size)
        whole[chosen.kept] = factors
        factors = whole
    residual *= factors.astype(residual.dtype).reshape(*norms.shape, 1)
    return residual, chosen.exceeding


def clipped_gradient_sum(
    weights: Floats, X: Floats, codes: Ints, clip: Clip, *, intercept: bool = True
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
    residual = residuals(logits_of(np.asarray(weights, float), X, intercept=intercept), codes)
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
