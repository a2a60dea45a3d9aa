r"""Sums over rows of the logistic loss of many models at once.

With signs :math:`s_i = \pm 1`, model w has margins :math:`z_i = s_i\, w \cdot x_i` and

.. math::

    F(w) = \sum_i \ln(1 + e^{-z_i}) + \tfrac12 \sum_j \lambda_j w_j^2 + b \cdot w, \quad
    \nabla F = -\sum_i \sigma(-z_i)\, s_i x_i + \lambda \circ w + b, \quad
    \nabla^2 F = \sum_i \sigma(z_i)\sigma(-z_i)\, x_i x_i^\top + \operatorname{diag}\lambda.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from veracal._types import Bools, Floats, Ints

_BLOCK = 1 << 16  # margins that are held at a time: they stay in the processor's cache
_PAIRS = 1 << 21  # products of two features that are held at a time
_LEAST, _MOST = 16, 8192  # rows of a block
_ROUNDING = 2.0**-53


class Rows(Protocol):
    """Rows that can be counted and read block by block; a numpy array is one."""

    @property
    def shape(self) -> Any:
        """Number of rows and of features."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Some consecutive rows."""


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Problem:
    """Rows shared by m models, with what each model has of its own.

    Attributes
    ----------
    X : rows of shape (n, d)
    signs : array of -1 and 1, of shape (n,) or (m, n)
        Labels, the same for all models or each model's own.
    linear : array of shape (m, d)
        The vectors b.
    penalty : array of shape (d,)
        The weights lambda of the squares.
    """

    X: Rows
    signs: Ints
    linear: Floats
    penalty: Floats

    def of(self, models: Any) -> "Problem":
        """The same rows with some of the models."""
        own = self.signs if self.signs.ndim == 1 else self.signs[models]
        return replace(self, signs=own, linear=self.linear[models])

    def blocks(self, most: int = _MOST) -> Iterator[tuple[int, Floats, Floats | float]]:
        """First row, rows and each model's signs; a shared sign is multiplied into its row."""
        n, _ = self.X.shape
        size = max(_LEAST, min(most, _BLOCK // max(1, len(self.linear))))
        for start in range(0, n, size):
            rows = np.asarray(self.X[start : start + size], dtype=np.float64)
            signs = self.signs[..., start : start + size].astype(np.float64)
            if signs.ndim == 1:
                yield start, rows * signs[:, None], 1.0
            else:
                yield start, rows, signs


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about records
class Slopes:
    """First derivatives of m models at their weights.

    Attributes
    ----------
    gradients : array of shape (m, d)
    lengths : array of shape (m,)
        Norms of the gradients.
    rounding : array of shape (m,)
        What rounding to float64 alone may leave of a gradient, see :func:`slopes`.
    """

    gradients: Floats
    lengths: Floats
    rounding: Floats


class Curvature(Protocol):
    """What gathers second derivatives while a pass goes on, and solves with them."""

    def add(self, start: int, rows: Floats, bends: Floats) -> None:
        """Take in a block of rows, with sigma(z) sigma(-z) of shape (m, rows)."""

    def solve(self, models: Bools, right: Floats, share: Floats) -> Floats:
        """Solve with the matrices of some models, up to a share of the right side."""


def slopes(problem: Problem, weights: Floats, second: Curvature | None = None) -> Slopes:
    r"""Gradients of m models in one pass over the rows.

    The rounding of a gradient is taken to be at most :math:`16u` times

    .. math::

        \sum_i \sigma(-z_i) \lVert x_i \rVert
        + \lVert w \rVert \sum_i \sigma(z_i)\sigma(-z_i) \lVert x_i \rVert^2
        + \lVert \lambda \circ w \rVert + \lVert b \rVert,

    u being :math:`2^{-53}`: the first, third and fourth term are what is added up, the
    second what the last bit of w moves.

    Parameters
    ----------
    problem : Problem
    weights : array of shape (m, d)
    second : Curvature, optional
        Gathers second derivatives in the same pass.
    """
    gradients = problem.penalty * weights + problem.linear
    spread = np.linalg.norm(weights, axis=1)
    added = np.linalg.norm(problem.penalty * weights, axis=1)
    added += np.linalg.norm(problem.linear, axis=1)
    most = _MOST if second is None else _PAIRS // weights.shape[1]
    for start, rows, signs in problem.blocks(most):
        chances, bends = tails((weights @ rows.T) * signs)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        added += chances @ norms + spread * (bends @ norms**2)
        gradients -= (chances * signs) @ rows
        if second is not None:
            second.add(start, rows, bends)
    return Slopes(gradients, np.linalg.norm(gradients, axis=1), 16 * _ROUNDING * added)


def tails(margins: Floats) -> tuple[Floats, Floats]:
    r"""The chances :math:`\sigma(-z)`, and the bends :math:`\sigma(z)\sigma(-z)`.

    Only :math:`e^{-|z|}` is computed, which cannot overflow.

    Examples
    --------
    >>> tails(np.array([0.0, 1000.0, -1000.0]))
    (array([0.5, 0. , 1. ]), array([0.25, 0.  , 0.  ]))
    """
    small = np.abs(margins)
    np.exp(np.negative(small, out=small), out=small)
    inverse = 1 + small
    np.divide(1, inverse, out=inverse)  # the larger of the two chances
    small *= inverse  # the smaller one
    return np.where(margins >= 0, small, inverse), small * inverse
