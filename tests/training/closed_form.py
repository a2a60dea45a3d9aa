"""The clipped gradient sum of a linear model by its definition, in float64 and without blocks."""

import numpy as np

from veracal.mechanisms import ClippedSum, ClipRule
from veracal.training.gradient_sums import (
    clipped_residuals,
    compute_logits,
    gradient_norms,
    residuals,
)


def clipped_gradient_sum(
    weights: np.ndarray,
    X: np.ndarray,
    codes: np.ndarray,
    clip: ClipRule,
    *,
    intercept: bool = True,
) -> ClippedSum:
    """Sum over rows for weights of shape (..., k, d), or (..., k, d + 1) with an intercept."""
    X = np.asarray(X, dtype=np.float64)
    logits = compute_logits(np.asarray(weights, float), X, intercept=intercept)
    residual = residuals(logits, codes)
    with np.errstate(over="ignore", invalid="ignore"):  # such rows are dropped
        lengths = np.sqrt(np.einsum("ij,ij->i", X, X) + intercept)
        norms = gradient_norms(residual, lengths)
    residual, exceeding = clipped_residuals(residual, norms, clip)
    kept = np.isfinite(lengths)
    total = np.swapaxes(residual[..., kept, :], -1, -2) @ X[kept]
    if intercept:
        ones = residual[..., kept, :].sum(axis=-2)
        total = np.concatenate([total, ones[..., None]], axis=-1)
    return ClippedSum(total, exceeding)
