"""Rows shortened to a declared norm, with a one appended for the intercept."""

from dataclasses import dataclass

import numpy as np

from veracal._types import Array, Floats
from veracal.data.rows import MappedRows

_IN_MEMORY = 1 << 25  # numbers that are clipped once and kept, instead of at every pass
_LARGE = 1e150
_SLACK = 1e-9  # rounding of a norm of up to a million entries, and of a declared one


def reach(norm: float, *, fit_intercept: bool) -> float:
    r"""The most R that one clipped row moves a gradient: its norm with the appended one.

    .. math:: R = \sqrt{c^2 + 1}, \text{ without an intercept } R = c

    Both a billionth larger, which is more than the rounding of a clipped row.

    Examples
    --------
    >>> round(reach(3.0, fit_intercept=False), 6)
    3.0
    """
    return float(np.hypot(norm, 1.0) if fit_intercept else norm) * (1 + _SLACK)


def clip_rows(block: Array, norm: float, *, fit_intercept: bool) -> Floats:
    r"""Scale rows longer than ``norm`` down to it, and append a one to each.

    Parameters
    ----------
    block : array of shape (n, d)
    norm : float > 0
    fit_intercept : bool
        Whether to append a one.

    Returns
    -------
    array of float64, of shape (n, d) or (n, d + 1)

    Guarantees
    ----------
    No row is longer than :func:`reach`; how many were scaled is written nowhere. A row with
    NaN or infinity in it becomes a row of zeros (and its one): selected, not multiplied.

    Examples
    --------
    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0, fit_intercept=True).round(2)
    array([[0.6, 0.8, 1. ],
           [0.3, 0.4, 1. ]])
    """
    n, d = block.shape
    result = np.ones((n, d + fit_intercept))
    rows = result[:, :d]
    rows[:] = block
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    odd = ~(lengths < _LARGE)  # a square overflowed, or is not a number
    long = (lengths > norm) & ~odd
    rows[long] *= (norm / lengths[long])[:, None]
    rows[odd] = _clip_odd(rows[odd], norm)
    return result


def _clip_odd(rows: Floats, norm: float) -> Floats:
    """Rows beyond 1e150, scaled by their largest entry first; broken ones become zeros."""
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    peaks = np.maximum(np.abs(rows).max(axis=1, initial=0.0), 1.0)
    rows = rows / peaks[:, None]
    lengths = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    clipped_rows: Floats = rows * (norm / lengths)[:, None]
    return clipped_rows  # zeros stay zeros


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class ClippedRows:
    """Rows of a matrix, possibly on disk, clipped whenever they are read.

    Attributes
    ----------
    X : array or MappedRows of shape (n, d)
    norm : float
    fit_intercept : bool
    """

    X: Array | MappedRows
    norm: float
    fit_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the clipped rows."""
        return len(self.X), self.X.shape[1] + self.fit_intercept

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, rows: slice) -> Floats:
        return clip_rows(self.X[rows], self.norm, fit_intercept=self.fit_intercept)


def clipped(X: Array | MappedRows, norm: float, *, fit_intercept: bool) -> Floats | ClippedRows:
    """Clip rows now if they fit into memory, otherwise block by block as they are read."""
    lazily = ClippedRows(X, norm, fit_intercept)
    return lazily if np.prod(lazily.shape) > _IN_MEMORY else lazily[0 : len(X)]
