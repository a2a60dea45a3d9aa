"""The exact minimizer of a penalized logistic loss, of many models at once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Bools, Floats, Ints
from veracal.errors import AnswerError
from veracal.training.perturbation.curvature import Hessians, Products
from veracal.training.perturbation.logistic import Curvature, Problem, Rows, slopes

TOL = 1e-10
RESIDUAL = 1e-5  # of R: how long a gradient may be in the end, whatever rounding does
_DENSE = 128  # features up to which matrices of d times d are formed at once,
_MOST_DENSE = 4096  # and up to which they are when nothing else helps
_MODELS = 1024  # solved together at most
_NUMBERS = 1 << 24  # held for the second derivatives of the models solved together
_SOME, _FEW, _MANY = 40, 60, 400  # passes: plainly, for a point of the path, for its end
_NARROWER = 2.0
_ENOUGH = 1e-4  # of the decrease that a step promises at first
_TINY = 1e-300
_SHORTEST = 2.0**-40


def minimize(
    X: Rows,
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
    problem = problem_of(X, signs, linear, penalty)
    m, d = problem.linear.shape
    weights = np.zeros((m, d))
    held = d * d if d <= _DENSE else X.shape[0] + 8 * d
    together = max(1, min(_MODELS, _NUMBERS // max(1, held)))
    for start in range(0, m, together):
        part = problem.of(slice(start, start + together))
        found = _solve(part, tol)
        if not solved(part, found, tol=tol, limit=limit).all():
            raise AnswerError(
                "Expected to find the minimizer of the objective, and float64 did not allow "
                "it with these settings; nothing is released. Use a smaller C, or a smaller "
                "norm."
            )
        weights[start : start + together] = found
    return weights


def solved(problem: Problem, weights: Floats, *, tol: float, limit: float = np.inf) -> Bools:
    """Whether each model's gradient is as short as ``tol``, or as rounding lets it be."""
    seen = slopes(problem, weights)
    short = seen.lengths <= np.maximum(tol, seen.rounding)
    result: Bools = short & (seen.lengths + seen.rounding <= limit)
    return result


def problem_of(X: Rows, signs: ArrayLike, linear: ArrayLike, penalty: Any) -> Problem:
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
    plain: type[Hessians | Products] = Hessians if d <= _DENSE else Products
    start = np.zeros_like(problem.linear)
    weights = _newton(problem, start, plain, tol=tol, passes=_SOME)
    hard = np.flatnonzero(~solved(problem, weights, tol=tol))
    if len(hard):
        weights[hard] = _path(problem.of(hard), plain, tol)
    if plain is Products and d <= _MOST_DENSE:
        for model in np.flatnonzero(~solved(problem, weights, tol=tol)):
            weights[[model]] = _path(problem.of([model]), Hessians, tol)
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
        seen = slopes(part, trials, curvature)
        first = np.maximum(seen.lengths, _TINY) if passed == 0 else first
        better = seen.lengths < (1 - _ENOUGH * shares[on]) * lengths[on]
        ended = near[on]  # where rounding rules, one step more is tried and no other
        shares[on[~better]] /= 2
        moved = on[better]
        weights[moved], lengths[moved] = trials[better], seen.lengths[better]
        near[moved] = seen.lengths[better] <= seen.rounding[better]
        shares[moved] = 1.0
        left = np.minimum(0.1, np.sqrt(seen.lengths[better] / first[moved]))
        steps[moved] = curvature.solve(better, -seen.gradients[better], left)
        on = on[~ended & (lengths[on] > tol) & (shares[on] > _SHORTEST)]
        if not len(on):
            break
    return weights


def _path(problem: Problem, second: Callable[[Problem], Curvature], tol: float) -> Floats:
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
        weights = _newton(rounded, weights, second, tol=1e-3 * longest, passes=_FEW)
        narrower = max(1.0, width / _NARROWER)
        weights *= width / narrower
        width = narrower
    return _newton(problem, weights, second, tol=tol, passes=_MANY)
