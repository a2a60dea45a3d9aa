r"""Sums over rows of the logistic loss of many models at once.

With signs :math:`s_i = \pm 1`, model w has margins :math:`z_i = s_i\, w \cdot x_i` and

.. math::

    F(w) = \sum_i \ln(1 + e^{-z_i}) + \tfrac12 \sum_j \lambda_j w_j^2 + b \cdot w, \quad
    \nabla F = -\sum_i \sigma(-z_i)\, s_i x_i + \lambda \circ w + b, \quad
    \nabla^2 F = \sum_i \sigma(z_i)\sigma(-z_i)\, x_i x_i^\top + \operatorname{diag}\lambda.

Linear systems with the second derivatives of many models at once.

The exact minimizer of a penalized logistic loss, of many models at once.

The exact density of what a perturbed objective releases.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Bools, Floats, Ints
from veracal.errors import AnswerError

_BLOCK_MARGINS = 1 << 16  # margins that are held at a time: they stay in the processor's cache
_PAIRS = 1 << 21  # products of two features that are held at a time
_MIN_BLOCK, _MAX_BLOCK = 16, 8192  # rows of a block
_ROUNDING = 2.0**-53


class RowSource(Protocol):
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

    X: RowSource
    signs: Ints
    linear: Floats
    penalty: Floats

    def of(self, models: Any) -> "Problem":
        """The same rows with some of the models."""
        own = self.signs if self.signs.ndim == 1 else self.signs[models]
        return replace(self, signs=own, linear=self.linear[models])

    def blocks(self, most: int = _MAX_BLOCK) -> Iterator[tuple[int, Floats, Floats | float]]:
        """First row, rows and each model's signs; a shared sign is multiplied into its row."""
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
class Gradients:
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


def compute_gradients(
    problem: Problem, weights: Floats, second: Curvature | None = None
) -> Gradients:
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
    most = _MAX_BLOCK if second is None else _PAIRS // weights.shape[1]
    for start, rows, signs in problem.blocks(most):
        chances, bends = sigmoid_tails((weights @ rows.T) * signs)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        added += chances @ norms + spread * (bends @ norms**2)
        gradients -= (chances * signs) @ rows
        if second is not None:
            second.add(start, rows, bends)
    return Gradients(gradients, np.linalg.norm(gradients, axis=1), 16 * _ROUNDING * added)


def sigmoid_tails(margins: Floats) -> tuple[Floats, Floats]:
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


_ITERATIONS = 1000  # of conjugate gradients


class Hessians:
    """Sums of :math:`h_i x_i x_i^T` of m models, as matrices."""

    def __init__(self, problem: Problem) -> None:
        m, d = problem.linear.shape
        self._penalty = problem.penalty
        self._first, self._other = np.triu_indices(d)
        self._sums = np.zeros((m, len(self._first)))

    def add(self, start: int, rows: Floats, bends: Floats) -> None:
        """Take in a block of rows."""
        if len(bends) <= 8:
            for model, bend in enumerate(bends):
                whole = (rows.T * bend) @ rows
                self._sums[model] += whole[self._first, self._other]
            return
        # All models share the products of features, and the rest is one product of matrices.
        self._sums += bends @ (rows[:, self._first] * rows[:, self._other])

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
        """Solve with the chosen models' matrices; ``share`` is for solvers that stop early."""
        matrices, d = self.matrices(models), right.shape[1]
        # Where the penalty is lost beside the data, as much is added as rounding takes away.
        lost = d * np.finfo(np.float64).eps * np.trace(matrices, axis1=1, axis2=2)
        matrices[:, np.arange(d), np.arange(d)] += lost[:, None]
        solved: Floats = np.linalg.solve(matrices, right[:, :, None])[:, :, 0]
        return solved


class HessianProducts:
    """The same sums, known by their products with vectors: no d times d is ever formed."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._bends = np.zeros((len(problem.linear), problem.X.shape[0]))
        self._diagonal = np.tile(problem.penalty, (len(problem.linear), 1))

    def add(self, start: int, rows: Floats, bends: Floats) -> None:
        """Take in a block of rows."""
        self._bends[:, start : start + len(rows)] = bends
        self._diagonal += bends @ rows**2

    def times(self, models: Ints, vectors: Floats) -> Floats:
        """Multiply the chosen models' matrices by a vector each."""
        problem = self._problem.of(models)
        total = problem.penalty * vectors
        for start, rows, _ in problem.blocks():  # signs squared are one
            bends = self._bends[models, start : start + len(rows)]
            total += (bends * (vectors @ rows.T)) @ rows
        return total

    def solve(self, models: Bools, right: Floats, share: Floats) -> Floats:
        """Conjugate gradients, preconditioned by the diagonal.

        They stop where at most ``share`` of the right side is left.
        """
        chosen = np.flatnonzero(models)
        found, left = np.zeros_like(right), right.copy()
        ready = left / self._diagonal[chosen]
        along, size = ready.copy(), np.einsum("ij,ij->i", left, ready)
        goal = share * np.linalg.norm(right, axis=1)
        for _ in range(_ITERATIONS):
            on = np.flatnonzero(np.linalg.norm(left, axis=1) > goal)
            if not len(on):
                break
            product = self.times(chosen[on], along[on])
            step = size[on] / np.einsum("ij,ij->i", along[on], product)
            found[on] += step[:, None] * along[on]
            left[on] -= step[:, None] * product
            ready = left[on] / self._diagonal[chosen[on]]
            fresh = np.einsum("ij,ij->i", left[on], ready)
            along[on] = ready + (fresh / size[on])[:, None] * along[on]
            size[on] = fresh
        return found


TOL = 1e-10
RESIDUAL = 1e-5  # of R: how long a gradient may be in the end, whatever rounding does
_MAX_DENSE = 128  # features up to which matrices of d times d are formed at once,
_MAX_DENSE_FALLBACK = 4096  # and up to which they are when nothing else helps
_MODELS_TOGETHER = 1024  # solved together at most
_HESSIAN_ENTRIES = 1 << 24  # held for the second derivatives of the models solved together
_PLAIN_PASSES, _PATH_PASSES, _FINAL_PASSES = (
    40,
    60,
    400,
)  # passes: plainly, for a point of the path, for its end
_WIDTH_RATIO = 2.0
_SUFFICIENT_DECREASE = 1e-4  # of the decrease that a step promises at first
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

    F is strongly convex, so that there is one minimizer. It is approached by Newton's method
    from zero, all models in the same passes over the rows. A step is halved until the
    *gradient* becomes shorter, as it does at first along any Newton step: unlike a fall of F,
    which drowns in rounding, that can be seen down to where float64 ends. Up to 128 features
    the linear systems are solved as matrices, above by conjugate gradients, which need no d
    times d numbers.

    Parameters
    ----------
    X : array of shape (n, d), or anything whose blocks of rows can be read
        n may be 0. Memory does not grow with n times m: rows are read block by block, and
        models are solved some at a time.
    signs : array of -1 and 1, of shape (n,) or (m, n)
    linear : array of shape (m, d) or (d,)
        The vector b of each model.
    penalty : float > 0, or an array of shape (d,)
        The weight lambda, or one for each coordinate.
    tol : float
        How long the gradient may be in the end, where rounding lets it become so short.
    limit : float
        The most that it may be, rounding included, for a caller whose noise counts on it.

    Returns
    -------
    array of shape (m, d)

    Raises
    ------
    AnswerError
        If the gradient of a model, computed once more at the end, is longer than ``tol`` and
        than what rounding explains (:func:`~.logistic.slopes` gives the rule). Nothing is
        returned then: the privacy of a perturbed objective rests on the exact minimizer.

    Examples
    --------
    >>> minimize(np.zeros((0, 2)), np.zeros(0), [[1.0, -3.0]], penalty=2.0)
    array([[-0.5,  1.5]])
    """
    problem = build_problem(X, signs, linear, penalty)
    m, d = problem.linear.shape
    weights = np.zeros((m, d))
    held = d * d if d <= _MAX_DENSE else X.shape[0] + 8 * d
    together = max(1, min(_MODELS_TOGETHER, _HESSIAN_ENTRIES // max(1, held)))
    for start in range(0, m, together):
        part = problem.of(slice(start, start + together))
        found = _solve(part, tol)
        if not has_converged(part, found, tol=tol, limit=limit).all():
            raise AnswerError(
                "Expected to find the minimizer of the objective, and float64 did not allow "
                "it with these settings; nothing is released. Use a smaller C, or a smaller "
                "norm."
            )
        weights[start : start + together] = found
    return weights


def has_converged(
    problem: Problem, weights: Floats, *, tol: float, limit: float = np.inf
) -> Bools:
    """Whether each model's gradient is as short as ``tol``, or as rounding lets it be."""
    seen = compute_gradients(problem, weights)
    short = seen.lengths <= np.maximum(tol, seen.rounding)
    result: Bools = short & (seen.lengths + seen.rounding <= limit)
    return result


def build_problem(X: RowSource, signs: ArrayLike, linear: ArrayLike, penalty: Any) -> Problem:
    """Check shapes and settings."""
    vectors = np.atleast_2d(np.asarray(linear, dtype=np.float64))
    n, d = X.shape
    marks = np.asarray(signs)
    weights = np.broadcast_to(np.asarray(penalty, dtype=np.float64), (d,))
    _checks.positive(**{"least penalty": float(weights.min())})
    if vectors.shape[1] != d or marks.shape not in {(n,), (len(vectors), n)}:
        raise ValueError(
            f"Expected linear of shape (m, {d}) and signs of shape ({n},) or (m, {n}), got "
            f"{vectors.shape} and {marks.shape}."
        )
    return Problem(X, marks, vectors, weights)


def _solve(problem: Problem, tol: float) -> Floats:
    """Try the plain way, then the path, then the path with matrices whatever their size."""
    d = problem.X.shape[1]
    plain: type[Hessians | HessianProducts] = Hessians if d <= _MAX_DENSE else HessianProducts
    start = np.zeros_like(problem.linear)
    weights = _newton(problem, start, plain, tol=tol, passes=_PLAIN_PASSES)
    hard = np.flatnonzero(~has_converged(problem, weights, tol=tol))
    if len(hard):
        weights[hard] = _continuation(problem.of(hard), plain, tol)
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
    """Newton's method; every pass looks at one trial of each model that is not done."""
    weights, steps = start.copy(), np.zeros_like(start)
    lengths, first = np.full(len(start), np.inf), np.ones(len(start))
    shares, near = np.ones(len(start)), np.zeros(len(start), dtype=bool)
    on: Ints = np.arange(len(start))
    for passed in range(passes):
        part = problem.of(on)
        trials = weights[on] + shares[on, None] * steps[on]
        curvature = second(part)
        seen = compute_gradients(part, trials, curvature)
        first = np.maximum(seen.lengths, _TINY) if passed == 0 else first
        better = seen.lengths < (1 - _SUFFICIENT_DECREASE * shares[on]) * lengths[on]
        ended = near[on]  # where rounding rules, one step more is tried and no other
        shares[on[~better]] /= 2
        moved = on[better]
        weights[moved], lengths[moved] = trials[better], seen.lengths[better]
        near[moved] = seen.lengths[better] <= seen.rounding[better]
        shares[moved] = 1.0
        left = np.minimum(0.1, np.sqrt(seen.lengths[better] / first[moved]))
        steps[moved] = curvature.solve(better, -seen.gradients[better], left)
        on = on[~ended & (lengths[on] > tol) & (shares[on] > _MIN_STEP)]
        if not len(on):
            break
    return weights


def _continuation(
    problem: Problem, second: Callable[[Problem], Curvature], tol: float
) -> Floats:
    r"""Newton's method along penalties that fall to the one asked for.

    Where margins are large beside 1, the loss has kinks, and Newton steps jump from one to
    the next. With :math:`\tau\lambda` instead of :math:`\lambda` the minimizer is that of
    the kinks rounded off over a width :math:`\tau`, divided by :math:`\tau`; so each
    minimizer, scaled up, starts the search for the next one.
    """
    longest = max(
        (float(np.linalg.norm(rows, axis=1).max()) for _, rows, _ in problem.blocks()),
        default=1.0,
    )
    pull = longest * problem.X.shape[0] + float(np.linalg.norm(problem.linear, axis=1).max())
    width = max(1.0, longest * pull / float(problem.penalty.min()))
    weights = np.zeros_like(problem.linear)
    while width > 1:
        rounded = replace(problem, penalty=problem.penalty * width)
        weights = _newton(rounded, weights, second, tol=1e-3 * longest, passes=_PATH_PASSES)
        narrower = max(1.0, width / _WIDTH_RATIO)
        weights *= width / narrower
        width = narrower
    return _newton(problem, weights, second, tol=tol, passes=_FINAL_PASSES)


def log_density(
    weights: ArrayLike,
    X: RowSource,
    signs: ArrayLike,
    *,
    penalty: float | Floats,
    noise_scale: float,
) -> Floats:
    r"""Log density of releasing some weights, given the records.

    .. math::

        \ln p(w) = -\frac{\lVert g(w) \rVert}{s} + \ln\det H(w)
        - \ln\Bigl(s^d\, \Gamma(d)\, \frac{2\pi^{d/2}}{\Gamma(d/2)}\Bigr)

    with g and H the first and second derivatives of the objective without noise: w is
    released exactly if the noise is :math:`-g(w)`, and the last term is the integral of
    :math:`e^{-\lVert b \rVert / s}`. The difference between neighbors is the privacy loss,
    which tests and attacks maximize over records and w.

    Parameters
    ----------
    weights : array of shape (m, d) or (d,)
    X : array of shape (n, d)
        Clipped rows, the appended one included.
    signs : array of -1 and 1, of shape (n,)
    penalty : float > 0, or an array of shape (d,)
    noise_scale : float > 0
        The scale s of :func:`~.noise.spherical_gamma`.

    Returns
    -------
    array of shape (m,)

    Examples
    --------
    Without records, w is the noise divided by the penalty:

    >>> log_density([[0.0]], np.zeros((0, 1)), [], penalty=4.0, noise_scale=2.0).round(9)
    array([0.])
    """
    _checks.positive(noise_scale=noise_scale)
    points = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    problem = build_problem(X, signs, np.zeros_like(points), penalty)
    curvature = Hessians(problem)
    seen = compute_gradients(problem, points, curvature)
    _, dets = np.linalg.slogdet(curvature.matrices(np.ones(len(points), dtype=bool)))
    d = points.shape[1]
    sphere = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
    whole = d * math.log(noise_scale) + math.lgamma(d) + sphere
    result: Floats = dets - seen.lengths / noise_scale - whole
    return result
