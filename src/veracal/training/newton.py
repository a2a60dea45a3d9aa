r"""Exact minimizers of penalized logistic losses, of many models at once, by Newton's method.

With signs :math:`s_i = \pm 1`, model w has margins :math:`z_i = s_i\, w \cdot x_i` and

.. math::

    F(w) = \sum_i \ln(1 + e^{-z_i}) + \tfrac12 \sum_j \lambda_j w_j^2 + b \cdot w, \quad
    \nabla F = -\sum_i \sigma(-z_i)\, s_i x_i + \lambda \circ w + b, \quad
    \nabla^2 F = \sum_i \sigma(z_i)\sigma(-z_i)\, x_i x_i^\top + \operatorname{diag}\lambda.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Bools, Floats, Ints
from veracal.errors import AnswerError

_BLOCK_MARGINS = 1 << 16  # margins in memory at a time, which fit into the processor's cache
_PAIRS = 1 << 21  # products of two features in memory at a time
_MIN_BLOCK, _MAX_BLOCK = 16, 8192  # rows of a block
_ROUNDING = 2.0**-53


class RowSource(Protocol):
    """Rows that can be read block by block, such as a NumPy array."""

    @property
    def shape(self) -> Any:
        """Number of rows and of features."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Some consecutive rows."""


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Problem:
    """Rows shared by m models, and the linear term and signs of each model."""

    X: RowSource  # of shape (n, d)
    signs: Ints  # of shape (n,), the same for all models, or (m, n)
    linear: Floats  # the vectors b, of shape (m, d)
    penalty: Floats  # the coefficients lambda of the squares, of shape (d,)

    def of(self, models: Any) -> "Problem":
        """The same rows with some of the models."""
        own = self.signs if self.signs.ndim == 1 else self.signs[models]
        return replace(self, signs=own, linear=self.linear[models])

    def blocks(self, most: int = _MAX_BLOCK) -> Iterator[tuple[int, Floats, Floats | float]]:
        """First index, rows and signs of each block; rows include shared signs as factors."""
        n, _ = self.X.shape
        size = max(_MIN_BLOCK, min(most, _BLOCK_MARGINS // max(1, len(self.linear))))
        for start in range(0, n, size):
            rows = np.asarray(self.X[start : start + size], dtype=np.float64)
            signs = self.signs[..., start : start + size].astype(np.float64)
            if signs.ndim == 1:
                yield start, rows * signs[:, None], 1.0
            else:
                yield start, rows, signs


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about records
class FirstDerivatives:
    """Gradients of m models, of shape (m, d), their norms, and bounds on their rounding."""

    gradients: Floats
    lengths: Floats
    rounding: Floats


def compute_gradients(
    problem: Problem, weights: Floats, second: "Curvature | None" = None
) -> FirstDerivatives:
    r"""Gradients of m models in one pass over the rows.

    The rounding of a gradient is assumed to be at most :math:`16u` times

    .. math::

        \sum_i \sigma(-z_i) \lVert x_i \rVert
        + \lVert w \rVert \sum_i \sigma(z_i)\sigma(-z_i) \lVert x_i \rVert^2
        + \lVert \lambda \circ w \rVert + \lVert b \rVert,

    where u is :math:`2^{-53}`: the first, third and fourth terms bound the summands, the second
    the effect of the last bit of w. ``second`` accumulates second derivatives in the same pass.
    """
    gradients = problem.penalty * weights + problem.linear
    weight_norms = np.linalg.norm(weights, axis=1)
    magnitude = np.linalg.norm(problem.penalty * weights, axis=1)
    magnitude += np.linalg.norm(problem.linear, axis=1)
    block = _MAX_BLOCK if second is None else _PAIRS // weights.shape[1]
    for start, rows, signs in problem.blocks(block):
        # Only exp(-|z|) is computed, which cannot overflow.
        margins = (weights @ rows.T) * signs
        small = np.abs(margins)
        np.exp(np.negative(small, out=small), out=small)
        larger = 1 + small
        np.divide(1, larger, out=larger)
        small *= larger  # of the two probabilities
        probabilities, curvatures = np.where(margins >= 0, small, larger), small * larger
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        magnitude += probabilities @ norms + weight_norms * (curvatures @ norms**2)
        gradients -= (probabilities * signs) @ rows
        if second is not None:
            second.add(start, rows, curvatures)
    return FirstDerivatives(
        gradients, np.linalg.norm(gradients, axis=1), 16 * _ROUNDING * magnitude
    )


_ITERATIONS = 1000  # of conjugate gradients


class Hessians:
    """Second derivatives of m models, sums of :math:`h_i x_i x_i^T`, as matrices."""

    def __init__(self, problem: Problem) -> None:
        m, d = problem.linear.shape
        self._penalty = problem.penalty
        self._first, self._other = np.triu_indices(d)
        self._sums = np.zeros((m, len(self._first)))

    def add(self, start: int, rows: Floats, curvatures: Floats) -> None:
        """Add a block of rows."""
        if len(curvatures) <= 8:
            for model, h in enumerate(curvatures):
                matrix = (rows.T * h) @ rows
                self._sums[model] += matrix[self._first, self._other]
            return
        # All models share the products of features; the rest is one matrix product.
        self._sums += curvatures @ (rows[:, self._first] * rows[:, self._other])

    def matrices(self, models: Bools) -> Floats:
        """Second derivatives of the chosen models, of shape (m, d, d)."""
        sums = self._sums[models]
        d = len(self._penalty)
        result = np.empty((len(sums), d, d))
        result[:, self._first, self._other] = sums
        result[:, self._other, self._first] = sums
        result[:, np.arange(d), np.arange(d)] += self._penalty
        return result

    def solve(self, models: Bools, right: Floats, share: Floats) -> Floats:
        """Solve exactly with the chosen models' matrices; ``share`` is not used."""
        matrices, d = self.matrices(models), right.shape[1]
        # If rounding removes the penalty next to the data, as much is added again.
        rounding = d * np.finfo(np.float64).eps * np.trace(matrices, axis1=1, axis2=2)
        matrices[:, np.arange(d), np.arange(d)] += rounding[:, None]
        solution: Floats = np.linalg.solve(matrices, right[:, :, None])[:, :, 0]
        return solution


class HessianProducts:
    """The same sums, through products with vectors; no d times d matrix is formed."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._curvatures = np.zeros((len(problem.linear), problem.X.shape[0]))
        self._diagonal = np.tile(problem.penalty, (len(problem.linear), 1))

    def add(self, start: int, rows: Floats, curvatures: Floats) -> None:
        """Add a block of rows."""
        self._curvatures[:, start : start + len(rows)] = curvatures
        self._diagonal += curvatures @ rows**2

    def times(self, models: Ints, vectors: Floats) -> Floats:
        """Multiply each chosen model's matrix by a vector."""
        problem = self._problem.of(models)
        total = problem.penalty * vectors
        for start, rows, _ in problem.blocks():  # signs squared are one
            curvatures = self._curvatures[models, start : start + len(rows)]
            total += (curvatures * (vectors @ rows.T)) @ rows
        return total

    def solve(self, models: Bools, right: Floats, share: Floats) -> Floats:
        """Conjugate gradients with a diagonal preconditioner.

        They stop when the residual is at most ``share`` of the right-hand side.
        """
        chosen = np.flatnonzero(models)
        solution, residual = np.zeros_like(right), right.copy()
        preconditioned = residual / self._diagonal[chosen]
        direction = preconditioned.copy()
        size = np.einsum("ij,ij->i", residual, preconditioned)
        target = share * np.linalg.norm(right, axis=1)
        for _ in range(_ITERATIONS):
            active = np.flatnonzero(np.linalg.norm(residual, axis=1) > target)
            if not len(active):
                break
            product = self.times(chosen[active], direction[active])
            step = size[active] / np.einsum("ij,ij->i", direction[active], product)
            solution[active] += step[:, None] * direction[active]
            residual[active] -= step[:, None] * product
            preconditioned = residual[active] / self._diagonal[chosen[active]]
            new_size = np.einsum("ij,ij->i", residual[active], preconditioned)
            direction[active] = (
                preconditioned + (new_size / size[active])[:, None] * direction[active]
            )
            size[active] = new_size
        return solution


Curvature = Hessians | HessianProducts
TOL = 1e-10
MAX_RESIDUAL = 1e-5  # maximum norm of the final gradient relative to R, rounding included
_MAX_DENSE = 128  # features up to which d times d matrices are formed at first,
_MAX_DENSE_FALLBACK = 4096  # and up to which they are formed as a last resort
_MODELS_TOGETHER = 1024  # models that are solved together at most
_HESSIAN_ENTRIES = 1 << 24  # entries of second derivatives held at once
# Passes of the plain solver, at each point of the continuation path, and at its end.
_PLAIN_PASSES, _PATH_PASSES, _FINAL_PASSES = 40, 60, 400
_WIDTH_RATIO = 2.0
_SUFFICIENT_DECREASE = 1e-4  # share of the predicted decrease that a step must achieve
_TINY = 1e-300
_MIN_STEP = 2.0**-40


def minimize(
    X: RowSource,
    signs: ArrayLike,
    linear: ArrayLike,
    *,
    penalty: float | Floats,
    tol: float = TOL,
    limit: float = np.inf,
) -> Floats:
    r"""Minimize a penalized logistic loss with a linear term, for each of m models.

    .. math::

        F(w) = \sum_{i=1}^n \ln(1 + e^{-s_i w \cdot x_i})
               + \tfrac12 \sum_j \lambda_j w_j^2 + b \cdot w

    F is strongly convex, so the minimizer is unique. Newton's method starts at zero, with all
    models in the same passes over the rows. A step is halved until the norm of the *gradient*
    decreases, as it does for short enough Newton steps: unlike a decrease of F, which
    disappears in rounding, this can be observed down to the precision of float64. Up to 128
    features the linear systems are solved with matrices, above by conjugate gradients, which
    need no d times d storage.

    Parameters
    ----------
    X : array of shape (n, d), or anything whose blocks of rows can be read
        n may be 0. Memory does not grow with n times m: rows are read block by block, and
        models are solved in groups.
    signs : array of -1 and 1, of shape (n,) or (m, n)
    linear : array of shape (m, d) or (d,)
        The vector b of each model.
    penalty : float > 0, or an array of shape (d,)
    tol : float
        Target norm of the final gradient, if rounding permits it.
    limit : float
        Maximum norm of the final gradient, rounding included, on which a caller's noise relies.

    Raises
    ------
    AnswerError
        If the final gradient of a model, computed again, exceeds both ``tol`` and the bound on
        its rounding (see :func:`compute_gradients`). Nothing is returned then: the privacy of a
        perturbed objective depends on the exact minimizer.

    Examples
    --------
    >>> minimize(np.zeros((0, 2)), np.zeros(0), [[1.0, -3.0]], penalty=2.0)
    array([[-0.5,  1.5]])
    """
    problem = build_problem(X, signs, linear, penalty)
    m, d = problem.linear.shape
    weights = np.zeros((m, d))
    entries = d * d if d <= _MAX_DENSE else X.shape[0] + 8 * d
    group = max(1, min(_MODELS_TOGETHER, _HESSIAN_ENTRIES // max(1, entries)))
    for start in range(0, m, group):
        part = problem.of(slice(start, start + group))
        minimizers = _solve(part, tol)
        if not has_converged(part, minimizers, tol=tol, limit=limit).all():
            raise AnswerError(
                "Expected to find the minimizer of the objective, and float64 did not allow "
                "it with these settings; nothing is released. Use a smaller C, or a smaller "
                "norm."
            )
        weights[start : start + group] = minimizers
    return weights


def has_converged(
    problem: Problem, weights: Floats, *, tol: float, limit: float = np.inf
) -> Bools:
    """Whether each model's gradient is within ``tol``, or within its rounding error."""
    final = compute_gradients(problem, weights)
    small = final.lengths <= np.maximum(tol, final.rounding)
    result: Bools = small & (final.lengths + final.rounding <= limit)
    return result


def build_problem(X: RowSource, signs: ArrayLike, linear: ArrayLike, penalty: Any) -> Problem:
    """Check shapes and settings, and build the problem."""
    vectors = np.atleast_2d(np.asarray(linear, dtype=np.float64))
    n, d = X.shape
    sign_array = np.asarray(signs)
    weights = np.broadcast_to(np.asarray(penalty, dtype=np.float64), (d,))
    _checks.positive(**{"least penalty": float(weights.min())})
    if vectors.shape[1] != d or sign_array.shape not in {(n,), (len(vectors), n)}:
        raise ValueError(
            f"Expected linear of shape (m, {d}) and signs of shape ({n},) or (m, {n}), got "
            f"{vectors.shape} and {sign_array.shape}."
        )
    return Problem(X, sign_array, vectors, weights)


def _solve(problem: Problem, tol: float) -> Floats:
    """Try Newton's method, then continuation, then continuation with matrices of any size."""
    d = problem.X.shape[1]
    plain: type[Curvature] = Hessians if d <= _MAX_DENSE else HessianProducts
    start = np.zeros_like(problem.linear)
    weights = _newton(problem, start, plain, tol=tol, passes=_PLAIN_PASSES)
    unsolved = np.flatnonzero(~has_converged(problem, weights, tol=tol))
    if len(unsolved):
        weights[unsolved] = _continuation(problem.of(unsolved), plain, tol)
    if plain is HessianProducts and d <= _MAX_DENSE_FALLBACK:
        for model in np.flatnonzero(~has_converged(problem, weights, tol=tol)):
            weights[[model]] = _continuation(problem.of([model]), Hessians, tol)
    return weights


def _newton(
    problem: Problem,
    start: Floats,
    second: Callable[[Problem], Curvature],
    *,
    tol: float,
    passes: int,
) -> Floats:
    """Newton's method; each pass evaluates one trial point of each unfinished model."""
    weights, steps = start.copy(), np.zeros_like(start)
    lengths, first = np.full(len(start), np.inf), np.ones(len(start))
    shares, near = np.ones(len(start)), np.zeros(len(start), dtype=bool)
    active: Ints = np.arange(len(start))
    for passed in range(passes):
        part = problem.of(active)
        points = weights[active] + shares[active, None] * steps[active]
        curvature = second(part)
        values = compute_gradients(part, points, curvature)
        first = np.maximum(values.lengths, _TINY) if passed == 0 else first
        improved = (
            values.lengths < (1 - _SUFFICIENT_DECREASE * shares[active]) * lengths[active]
        )
        finished = near[active]  # at the precision of float64 only one more step is tried
        shares[active[~improved]] /= 2
        moved = active[improved]
        weights[moved], lengths[moved] = points[improved], values.lengths[improved]
        near[moved] = values.lengths[improved] <= values.rounding[improved]
        shares[moved] = 1.0
        accuracy = np.minimum(0.1, np.sqrt(values.lengths[improved] / first[moved]))
        steps[moved] = curvature.solve(improved, -values.gradients[improved], accuracy)
        active = active[~finished & (lengths[active] > tol) & (shares[active] > _MIN_STEP)]
        if not len(active):
            break
    return weights


def _continuation(
    problem: Problem, second: Callable[[Problem], Curvature], tol: float
) -> Floats:
    r"""Newton's method along penalties that decrease to the given one.

    If margins are large compared to 1, the loss is nearly piecewise linear, and Newton steps
    jump from one kink to the next. With :math:`\tau\lambda` instead of :math:`\lambda` the
    minimizer is that of a loss smoothed over a width :math:`\tau`, divided by :math:`\tau`;
    each minimizer, scaled up, is the starting point for the next one.
    """
    longest = max(
        (float(np.linalg.norm(rows, axis=1).max()) for _, rows, _ in problem.blocks()),
        default=1.0,
    )
    pull = longest * problem.X.shape[0] + float(np.linalg.norm(problem.linear, axis=1).max())
    width = max(1.0, longest * pull / float(problem.penalty.min()))
    weights = np.zeros_like(problem.linear)
    while width > 1:
        smoothed = replace(problem, penalty=problem.penalty * width)
        weights = _newton(smoothed, weights, second, tol=1e-3 * longest, passes=_PATH_PASSES)
        narrower = max(1.0, width / _WIDTH_RATIO)
        weights *= width / narrower
        width = narrower
    return _newton(problem, weights, second, tol=tol, passes=_FINAL_PASSES)
