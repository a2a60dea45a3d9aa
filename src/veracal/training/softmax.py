r"""Gradients of softmax and logistic regression, clipped and summed in closed form.

With residual :math:`r_i = p_i - e_{y_i}` (for two classes one number,
:math:`\sigma(w \cdot x_i) - y_i`), the gradient of example i is the outer product
:math:`r_i (x_i, 1)^\top`. Its norm is :math:`\lVert r_i \rVert \sqrt{\lVert x_i \rVert^2 + 1}`,
and the clipped sum

.. math:: \sum_i c_i \, r_i \, (x_i, 1)^\top

is one matrix product: no gradient of an example is ever written down (Goodfellow 2015,
https://arxiv.org/abs/1510.01799). All functions take further axes in front, for several
models or several blocks of rows at once.
"""

import numpy as np
from scipy.special import expit

from veracal._types import Array, Bools, Floats, Ints
from veracal.privacy import Clip, Clipped, selection


def logits_of(weights: Floats, X: Floats, *, intercept: bool) -> Floats:
    """Weighted sums of shape (..., n, k), from weights (..., k, d + 1) and rows (..., n, d)."""
    if not intercept:
        return X @ np.swapaxes(weights, -1, -2)
    sums = X @ np.swapaxes(weights[..., :-1], -1, -2)
    sums += weights[..., None, :, -1]
    return sums


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
    truth = np.take_along_axis(logits, codes[..., None], axis=-1) - 1
    np.put_along_axis(logits, codes[..., None], truth, axis=-1)
    return logits


def gradient_norms(residual: Floats, row_norms: Floats) -> Floats:
    """Norms of the gradients in float64, from residuals and norms of the rows they meet."""
    squares = np.einsum("...k,...k->...", residual, residual, dtype=np.float64)
    norms: Floats = np.sqrt(squares) * row_norms
    return norms


def clipped_residuals(
    residual: Floats, norms: Floats, present: Bools, clip: Clip, slack: float
) -> tuple[Floats, int]:
    """Residuals times their factors, in place; zero where a row is absent or not finite.

    Returns
    -------
    residual : array of shape (n, k)
    exceeding : int
        See :class:`veracal.privacy.Clipped`.
    """
    chosen = selection(norms[present], clip)
    factors = np.zeros(len(norms))
    kept = np.flatnonzero(present)[chosen.kept]
    factors[kept] = chosen.factors * (1 - slack)
    if len(kept) < len(norms):
        residual[factors == 0] = 0  # zero times NaN is NaN
    residual *= factors[:, None].astype(residual.dtype)
    return residual, chosen.exceeding


def clipped_gradient_sum(
    weights: Floats,
    X: Floats,
    codes: Ints,
    row_norms: Floats,
    present: Bools,
    clip: Clip,
    *,
    intercept: bool,
    slack: float = 0.0,
) -> Clipped:
    r"""Sum of clipped gradients over blocks of rows.

    Parameters
    ----------
    weights : array of shape (k, d), or (k, d + 1) with an intercept
    X : array of shape (b, m, d)
        The rows, b blocks of m.
    codes : array of ints in [0, k), of shape (b, m)
    row_norms : array of shape (b, m)
        :math:`\sqrt{\lVert x_i \rVert^2 + 1}`, or :math:`\lVert x_i \rVert` without an
        intercept, in float64.
    present : array of bool, of shape (b, m)
        False for rows that only fill up a block.
    clip : Clip
    intercept : bool
    slack : float
        Share of the bound that is left to rounding; see :func:`rounding_slack`.

    Returns
    -------
    Clipped
        The total is float64, of the shape of the weights.

    Guarantees
    ----------
    Adding or removing one example moves the total by at most ``clip.bound`` in Frobenius
    norm, and replacing one by at most twice that, roundings included.
    """
    blocks, rows, width = X.shape
    residual = residuals(logits_of(weights, X, intercept=intercept), codes)
    flat = residual.reshape(blocks * rows, -1)
    norms = gradient_norms(flat, row_norms.ravel())
    flat, exceeding = clipped_residuals(flat, norms, present.ravel(), clip, slack)
    total = np.empty(weights.shape, dtype=np.float64)
    scaled = np.swapaxes(flat.reshape(blocks, rows, -1), 1, 2)
    np.add.reduce(scaled @ X, axis=0, dtype=np.float64, out=total[:, :width])
    if intercept:
        total[:, -1] = flat.sum(axis=0, dtype=np.float64)
    return Clipped(total, exceeding)


def rounding_slack(dtype: Array, rows: int, block: int) -> float:
    r"""Share of the bound that roundings of a sum over so many rows may take.

    A sum of m products in floating point, added in any order, differs from the exact one by
    at most :math:`(m + 2) u` times the sum of the sizes of its terms (Higham 2002, section
    3.1), u being half the distance from 1 to the next float. Blocks of m rows are summed in
    the precision u and added up in float64. As no term is longer than the bound C, the sum
    of B rows is off by at most :math:`(m + 2) u B C`, and the difference between the sums of
    two neighbors by twice that.
    """
    unit = float(np.finfo(dtype).eps) / 2
    return 2 * (block + 2) * unit * rows
