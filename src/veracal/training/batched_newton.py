r"""Minimizers of very many objectives that differ by their noise alone, exact and fast.

The search runs in single precision, which is fast and ends at about a millionth of the size of
the summands. From there the gradient is computed in double precision, once, and one step with
the second derivatives leads to the minimizer. The gradient *after the step* is bounded without
another pass: with :math:`z_i` the margins before the step x and :math:`t_i = a_i \cdot x`,

.. math::

    \Bigl\lVert \nabla F(w + x) - \nabla F(w) - \nabla^2 F(w)\, x \Bigr\rVert
    \le \tfrac12 e^{\max_i |t_i|} \sum_i h(z_i)\, t_i^2 \lVert a_i \rVert,

since the second derivative h of the logistic loss satisfies :math:`|h'| \le h`. Models that are
not solved in this way go to :func:`~.newton.minimize`, one after the other.

*Starting points.* The noise b of a level moves the margin of row i around a mean :math:`\mu_i`,
with some variance :math:`\tau_i^2`. Averaged over it, the probability of a row is approximately
:math:`\sigma(-\mu_i/\kappa_i)` with :math:`\kappa_i = \sqrt{1 + \pi\tau_i^2/8}` (MacKay 1992,
https://doi.org/10.1162/neco.1992.4.5.720), and its slope
:math:`u_i = \sigma'(\mu_i/\kappa_i)/\kappa_i`. The mean weights then solve
:math:`\lambda \circ \bar w = \sum_i \sigma(-\mu_i/\kappa_i) a_i` with
:math:`\mu_i = \bar w \cdot a_i`, noise moves them by :math:`-\bar H^{-1} b` with
:math:`\bar H = \operatorname{diag}\lambda + \sum_i u_i a_i a_i^\top`, and that gives the
variances. Only speed depends on this approximation: a search that starts there is short, and
:math:`\bar H`, one matrix for all models of a level, is a preconditioner for the second
derivatives of each model.

*Layout.* Models are columns, so that scalars of each model, such as step lengths, multiply
along contiguous memory, and sums over coordinates add whole rows.

*Few features.* Newton's method in single precision. The second derivatives of all models are
one matrix product, of curvatures with products of two features. They are factored for all
models at once, entry by entry: loops are over features, and each operation is on a whole row of
models. (A library would factor small matrices one by one, at a higher overhead.)

*More features.* L-BFGS (Nocedal 1980, https://doi.org/10.1090/S0025-5718-1980-0572855-7), with
a separate history for each model. It starts from the inverse second derivatives of the model's
level, so that a few gradients suffice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from veracal._types import Bools, Floats, Ints
from veracal.training.newton import RowSource, build_problem, minimize

_LEVEL_RATIO = 1.6  # ratio of the norms of neighboring levels; finer levels hardly help
_LEVEL_PASSES = 4


def noise_levels(norms: Floats) -> Ints:
    """Indices of the noise levels of some norms; equal norms have equal indices."""
    logs = np.log(np.maximum(norms, np.finfo(np.float64).tiny))
    levels: Ints = np.rint(logs / np.log(_LEVEL_RATIO)).astype(np.int64)
    return levels


def solve_level(rows: Floats, scales: Floats, number: int) -> tuple[Floats, Floats]:
    """Mean minimizer at a noise level, and its response: the inverse of the mean Hessian.

    Parameters
    ----------
    rows : array of shape (n, d)
        Signed, and scaled so that all penalties are 1.
    scales : array of shape (d,)
        Divisors of the entries of the noise.
    number : int
        See :func:`noise_levels`.
    """
    n, d = rows.shape
    variances = (_LEVEL_RATIO**number / scales) ** 2 / d
    center, widths = np.zeros(d), np.ones(n)
    response = np.eye(d)
    for _ in range(_LEVEL_PASSES):
        probabilities = expit(-(rows @ center) / widths)
        slopes = probabilities * (1 - probabilities) / widths
        response = np.linalg.inv((rows.T * slopes) @ rows + np.eye(d))
        center = center - response @ (center - probabilities @ rows)
        moved = rows @ response
        widths = np.sqrt(1 + np.pi / 8 * (moved**2 @ variances))
    return center, response


_BLOCK_MARGINS = 1 << 17  # margins held at a time, which fit into a processor's L2 cache
_MIN_COLUMNS = 32  # columns of a block
_MAX_MARGIN = 30.0  # margin beyond which the probability is 0 or 1 in single precision


class Float32Rows:
    """Rows in float32 that all models share, each multiplied by its sign."""

    def __init__(self, rows: Floats) -> None:
        self.rows: Floats = np.ascontiguousarray(rows, dtype=np.float32)
        self.transposed: Floats = np.ascontiguousarray(self.rows.T)

    def blocks(self, models: int, *, times: int = 1) -> list[slice]:
        """Ranges of columns to process at a time; fewer by the factor ``times``."""
        n = max(1, len(self.rows))
        width = max(_MIN_COLUMNS, _BLOCK_MARGINS // (n * times))
        return [slice(at, min(at + width, models)) for at in range(0, models, width)]

    def loss_gradients(self, weights: Floats) -> Floats:
        r"""Sums :math:`\sum_i \sigma(-z_i) a_i`, of shape (d, m)."""
        result = np.empty_like(weights)
        for part in self.blocks(weights.shape[1]):
            np.matmul(
                self.transposed, self.probabilities(weights[:, part]), out=result[:, part]
            )
        return result

    def probabilities(self, weights: Floats) -> Floats:
        r"""Probabilities :math:`\sigma(-z_i)` of shape (n, m), for a block of models."""
        z: Floats = self.rows @ weights
        np.clip(z, -_MAX_MARGIN, _MAX_MARGIN, out=z)  # overflows and subnormal numbers are slow
        np.exp(z, out=z)
        z += 1
        return np.divide(1, z, out=z)

    def curvature_products(self, curvatures: Floats, vectors: Floats) -> Floats:
        r"""Sums :math:`\sum_i h_i (a_i \cdot v) a_i`, of shape (d, m)."""
        result = np.empty_like(vectors)
        for part in self.blocks(vectors.shape[1]):
            z = self.rows @ vectors[:, part]
            z *= curvatures[:, part]
            np.matmul(self.transposed, z, out=result[:, part])
        return result


def column_dots(one: Floats, other: Floats) -> Floats:
    """Dot products of the columns of two arrays, of shape (m,)."""
    products: Floats = np.einsum("ij,ij->j", one, other)
    return products


def column_norms(vectors: Floats) -> Floats:
    """Norms of columns, of shape (m,)."""
    norms: Floats = np.sqrt(column_dots(vectors, vectors))
    return norms


_NEWTON_DROP = 0.25  # share of solved models at which they are dropped from the search
_OVERSHOOT = 0.5  # maximum slope after a step, as a share of the slope before it
_SHORTEST, _LONGEST = 0.1, 0.7  # factors of a step that overshot


class FeaturePairs:
    """Products of two features of each row, for second derivatives with penalties of 1."""

    def __init__(self, float32_rows: Float32Rows) -> None:
        self._float32_rows = float32_rows
        d = float32_rows.rows.shape[1]
        first, other = np.triu_indices(d)
        self._pair_products = np.ascontiguousarray(
            (float32_rows.rows[:, first] * float32_rows.rows[:, other]).T
        )
        self._indices = np.empty((d, d), dtype=int)
        self._indices[first, other] = self._indices[other, first] = np.arange(len(first))

    def sums(self, curvatures: Floats) -> Floats:
        r"""Entries of :math:`\sum_i h_i a_i a_i^\top` for curvatures of shape (n, m)."""
        result: Floats = self._pair_products @ curvatures
        return result

    def derivatives(self, noise: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Gradients of shape (d, m), and entries of the second derivatives."""
        gradients, m = weights + noise, weights.shape[1]
        entries = np.empty((len(self._pair_products), m), dtype=np.float32)
        for part in self._float32_rows.blocks(m):
            probabilities = self._float32_rows.probabilities(weights[:, part])
            gradients[:, part] -= self._float32_rows.transposed @ probabilities
            probabilities -= probabilities * probabilities
            np.matmul(self._pair_products, probabilities, out=entries[:, part])
        return gradients, entries

    def solve(self, entries: Floats, right: Floats) -> Floats:
        """Solve each model's linear system; each column is a right-hand side."""
        factors, result, d = entries[self._indices], right.copy(), len(right)
        for j in range(d):
            factors[j, j] += 1
        for j in range(d):  # Cholesky factors, in place
            np.sqrt(factors[j, j], out=factors[j, j])
            factors[j + 1 :, j] /= factors[j, j]
            for i in range(j + 1, d):
                factors[i, j + 1 : i + 1] -= factors[i, j] * factors[j + 1 : i + 1, j]
        for j in range(d):
            result[j] /= factors[j, j]
            result[j + 1 :] -= factors[j + 1 :, j] * result[j]
        for j in reversed(range(d)):
            result[j] /= factors[j, j]
            result[:j] -= factors[j, :j] * result[j]
        return result


def newton(
    pairs: FeaturePairs, noise: Floats, start: Floats, *, tol: float, passes: int
) -> Floats:
    """Approximate the minimizers by Newton's method, one step past the tolerance.

    Parameters
    ----------
    pairs : FeaturePairs
        Of rows scaled so that all penalties are 1.
    noise, start : arrays of float32, of shape (d, m)
    tol : float
        Tolerance for the gradient, relative to the noise and the weights. The last step squares
        the remaining error.
    passes : int
        Maximum number of passes.
    """
    result, positions = start.copy(), np.arange(start.shape[1])
    weights = trial = start
    gradients = steps = np.zeros_like(start)
    shares = np.ones(start.shape[1], dtype=np.float32)
    for passed in range(passes):
        new_gradients, entries = pairs.derivatives(noise, trial)
        next_steps = pairs.solve(entries, -new_gradients)
        size = column_norms(noise) + column_norms(trial)
        done = ~(column_norms(new_gradients) > tol * size)  # NaN counts as done
        models, before, after = _find_overshoots(gradients, new_gradients, steps, done)
        models = models if passed else models[:0]
        # Factors at which the slopes would vanish if they changed linearly.
        factors = np.clip(before[models] / (before - after)[models], _SHORTEST, _LONGEST)
        shortened = shares[models] * factors
        for now, old in ((trial, weights), (new_gradients, gradients), (next_steps, steps)):
            now[:, models] = old[:, models]
        weights, gradients, steps = trial, new_gradients, next_steps
        shares[:] = 1
        shares[models] = shortened
        if done.all():
            break
        if np.mean(done) > _NEWTON_DROP:
            result[:, positions] = weights + steps
            remaining = np.flatnonzero(~done)
            positions, shares = positions[remaining], shares[remaining]
            noise, weights, gradients, steps = (
                array[:, remaining] for array in (noise, weights, gradients, steps)
            )
        trial = weights + shares * steps
    result[:, positions] = weights + steps
    return result


def _find_overshoots(
    gradients: Floats, new_gradients: Floats, steps: Floats, done: Bools
) -> tuple[Ints, Floats, Floats]:
    """Models whose slope rises too much along their step, and all slopes before and after it."""
    before, after = column_dots(gradients, steps), column_dots(new_gradients, steps)
    return np.flatnonzero((after > -_OVERSHOOT * before) & ~done), before, after


_MEMORY = 5  # steps in the L-BFGS history
_QUASI_NEWTON_DROP = 0.3  # share of solved models at which they are dropped from the search
_TINY = np.float32(1e-30)


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about records
class InverseHessians:
    """Approximate inverse Hessians; adjacent models of one level share a matrix."""

    matrices: Sequence[Floats]
    numbers: Ints  # index of each model's matrix, in ascending order

    def of(self, models: Ints) -> "InverseHessians":
        """The matrices of some models, in ascending order."""
        return InverseHessians(self.matrices, self.numbers[models])

    def times(self, vectors: Floats) -> Floats:
        """Multiply each model's vector, in columns, by its matrix."""
        result = np.empty_like(vectors)
        edges = np.searchsorted(self.numbers, np.arange(len(self.matrices) + 1))
        for matrix, start, end in zip(self.matrices, edges[:-1], edges[1:], strict=True):
            if start < end:
                np.matmul(matrix, vectors[:, start:end], out=result[:, start:end])
        return result


def quasi_newton(
    float32_rows: Float32Rows,
    noise: Floats,
    start: Floats,
    inverse_hessians: InverseHessians,
    *,
    tol: float,
    passes: int,
) -> Floats:
    """Approximate the minimizers by L-BFGS until the gradients meet the tolerance.

    The arguments are those of :func:`newton`, and an approximate inverse of each model's second
    derivatives. The result for a model that did not converge is its last point.
    """
    result, positions, weights = start.copy(), np.arange(start.shape[1]), start
    gradients = start + noise - float32_rows.loss_gradients(start)
    memory: list[tuple[Floats, Floats, Floats]] = []  # last steps, changes, inverse curvatures
    for _ in range(passes):
        residual, shares = -gradients, []
        for past, change, inverse in reversed(memory):
            share = column_dots(past, residual) * inverse
            residual -= change * share
            shares.append(share)
        step = inverse_hessians.times(residual)
        for (past, change, inverse), share in zip(memory, reversed(shares), strict=True):
            share -= column_dots(change, step) * inverse
            step += past * share
        trial = weights + step
        new_gradients = trial + noise
        new_gradients -= float32_rows.loss_gradients(trial)
        change = new_gradients - gradients
        curvature = column_dots(step, change)
        # With penalties of 1 it is at least the squared step, except for rounding.
        sound = curvature > 0.5 * column_dots(step, step)
        inverse = np.where(sound, 1 / np.maximum(curvature, _TINY), np.float32(0))
        memory = [*memory[1 - _MEMORY :], (step, change, inverse)]
        size = column_norms(noise) + column_norms(trial)
        done = ~(column_norms(new_gradients) > tol * size)  # NaN counts as done
        models, _, _ = _find_overshoots(gradients, new_gradients, step, done)
        trial[:, models] = weights[:, models]
        new_gradients[:, models] = gradients[:, models]
        weights, gradients = trial, new_gradients
        if done.all():
            break
        if np.mean(done) > _QUASI_NEWTON_DROP:
            result[:, positions] = weights
            rest = np.flatnonzero(~done)
            positions, inverse_hessians = positions[rest], inverse_hessians.of(rest)
            noise, weights, gradients = noise[:, rest], weights[:, rest], gradients[:, rest]
            memory = [(past[:, rest], moved[:, rest], i[rest]) for past, moved, i in memory]
    result[:, positions] = weights
    return result


TOL = 1e-8  # tolerance of the gradient, relative to noise and penalty
MAX_ENTRIES = 1 << 22  # entries of the rows that can be held in both precisions
_MODELS_TOGETHER = 2048  # models that are searched together
_MARGINS_TOGETHER = 1 << 22  # margins of all models held together
_MAX_PAIR_FEATURES = 16  # features up to which second derivatives are cheap
_NEWTON_TOL, _QUASI_NEWTON_TOL = 3e-3, 5e-6
_MAX_PASSES, _ROUNDS = 30, 3
_CG_PASSES = 12  # passes of conjugate gradients,
_CG_SOLVED_SHARE = 0.98  # which end when this share is solved
_CG_TOL_SHARE = 0.3  # share of the tolerance to which they solve
# Rounding of sums, relative to the summands.
_FLOAT32_ROUNDING, _FLOAT64_ROUNDING = 64 * 2.0**-24, 16 * 2.0**-53


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about records
class Minimizers:
    """Weights of m models, of shape (m, d), and how many of them were solved one by one."""

    weights: Floats
    slow: int


class BatchedProblem:
    """Rows, labels and penalties that many models share.

    Parameters
    ----------
    X : array of shape (n, d), or anything whose rows can be read
        With :data:`MAX_ENTRIES` entries at most, see :meth:`fits`.
    signs : array of -1 and 1, of shape (n,)
    penalty : float > 0, or an array of shape (d,)

    Examples
    --------
    >>> many = BatchedProblem(np.zeros((0, 2)), np.zeros(0), 2.0)
    >>> many.minimize([[1.0, -3.0]]).weights
    array([[-0.5,  1.5]])
    """

    def __init__(self, X: RowSource, signs: ArrayLike, penalty: float | Floats) -> None:
        problem = build_problem(X, signs, np.zeros((1, X.shape[1])), penalty)
        if problem.signs.ndim != 1:
            raise ValueError("Expected the same signs for all models, got signs of each.")
        self._X, self._signs, self._penalty = X, problem.signs, problem.penalty
        rows = np.asarray(X[0 : X.shape[0]], dtype=np.float64) * problem.signs[:, None]
        self._norms = column_norms(rows.T)
        self._scales = np.sqrt(problem.penalty)
        self._rows = rows / self._scales  # scaled so that all penalties are 1
        self._float32_rows = Float32Rows(self._rows)
        self._pairs = (
            FeaturePairs(self._float32_rows) if X.shape[1] <= _MAX_PAIR_FEATURES else None
        )
        self._levels: dict[int, tuple[Floats, Floats]] = {}

    @staticmethod
    def fits(X: RowSource) -> bool:
        """Whether the rows are small enough to be held in both precisions."""
        return bool(X.shape[0] * X.shape[1] <= MAX_ENTRIES)

    def minimize(self, linear: ArrayLike) -> Minimizers:
        r"""Minimize the penalized logistic loss with each of m linear terms, of shape (m, d).

        The gradient of each model is at most :math:`10^{-8}` times
        :math:`\lVert b \rVert + \lVert \lambda \circ w \rVert`, rounding included; of the
        slow ones, as short as :func:`~.newton.minimize` promises.

        Raises
        ------
        AnswerError
            If a model cannot be solved.
        """
        noise = build_problem(self._X, self._signs, linear, self._penalty).linear
        weights, solved = np.empty_like(noise), np.zeros(len(noise), dtype=bool)
        group = max(1, min(_MODELS_TOGETHER, _MARGINS_TOGETHER // max(1, len(self._rows))))
        for start in range(0, len(noise), group):
            part = slice(start, start + group)
            with np.errstate(all="ignore"):  # overflows are handled below
                weights[part], solved[part] = self._solve(noise[part])
        slow = np.flatnonzero(~solved)
        if len(slow):
            weights[slow] = minimize(self._X, self._signs, noise[slow], penalty=self._penalty)
        return Minimizers(weights, len(slow))

    def _solve(self, linear: Floats) -> tuple[Floats, Bools]:
        """Search in single precision, and correct in double; return the solved models."""
        numbers = noise_levels(np.linalg.norm(linear, axis=1))
        order = np.argsort(numbers, kind="stable")  # so that a level is a range of columns
        noise = np.ascontiguousarray((linear[order] / self._scales).T)
        # Start at the response of the model's level to its noise.
        weights = np.empty_like(noise)
        known, first = np.unique(numbers[order], return_index=True)
        for number, begin, end in zip(known, first, [*first[1:], len(linear)], strict=True):
            if number not in self._levels:
                self._levels[number] = solve_level(self._rows, self._scales, int(number))
            center, response = self._levels[number]
            weights[:, begin:end] = center[:, None] - response @ noise[:, begin:end]
        inverse_hessians = InverseHessians(
            [self._levels[number][1].astype(np.float32) for number in known],
            np.searchsorted(known, numbers[order]),
        )
        start, noise32 = weights.astype(np.float32), noise.astype(np.float32)
        weights[:] = self._search(start, noise32, inverse_hessians)
        solved = np.zeros(len(linear), dtype=bool)
        for _ in range(_ROUNDS):
            remaining = np.flatnonzero(~solved)
            weights[:, remaining], solved[remaining] = self._correct(
                weights[:, remaining], noise[:, remaining], inverse_hessians.of(remaining)
            )
            if solved.all():
                break
        result, in_order = np.empty_like(linear), np.empty_like(solved)
        result[order], in_order[order] = (weights / self._scales[:, None]).T, solved
        return result, in_order

    def _search(
        self, start: Floats, noise: Floats, inverse_hessians: InverseHessians
    ) -> Floats:
        """Approximate weights, in single precision."""
        if self._pairs is not None:
            return newton(self._pairs, noise, start, tol=_NEWTON_TOL, passes=_MAX_PASSES)
        return quasi_newton(
            self._float32_rows,
            noise,
            start,
            inverse_hessians,
            tol=_QUASI_NEWTON_TOL,
            passes=_MAX_PASSES,
        )

    def _correct(
        self, weights: Floats, noise: Floats, inverse_hessians: InverseHessians
    ) -> tuple[Floats, Bools]:
        """Take one Newton step in single precision, and bound the gradient after it."""
        gradients, curvatures = self._derivatives(weights, noise)
        scales, m = self._scales[:, None], weights.shape[1]
        size = column_norms(noise * scales) + column_norms(weights * scales)
        right = -gradients.astype(np.float32)
        if self._pairs is None:
            target = (_CG_TOL_SHARE * TOL / self._scales.max() * size).astype(np.float32)
            step = self._conjugate(right, curvatures, inverse_hessians, target)
        else:
            blocks = self._float32_rows.blocks(m)
            entries = [self._pairs.sums(curvatures[:, part]) for part in blocks]
            step = self._pairs.solve(np.hstack(entries), right)
        # The linear part of the gradients after the step, and the sums of h t^2 |a|.
        residual, second_order = gradients + step, np.empty(m)
        norms = self._norms.astype(np.float32)
        for part in self._float32_rows.blocks(m):
            t = self._float32_rows.rows @ step[:, part]
            weighted = t * curvatures[:, part]
            residual[:, part] += self._float32_rows.transposed @ weighted
            weighted *= t
            second_order[part] = norms @ weighted
        lengths, step_lengths = column_norms(self._rows.T), column_norms(step)
        largest = float(np.max(lengths, initial=0.0)) * step_lengths
        bound = column_norms(residual * scales) + 0.5 * np.exp(largest) * second_order
        # The rounding of everything in double precision, and of the step in single precision.
        most = 0.25 * self._norms @ lengths
        double = self._norms.sum() + most * column_norms(weights) + size
        bound += _FLOAT64_ROUNDING * double + _FLOAT32_ROUNDING * most * step_lengths
        return weights + step, bound <= TOL * size

    def _derivatives(self, weights: Floats, noise: Floats) -> tuple[Floats, Floats]:
        """Gradients in double precision, and curvatures in single precision of shape (n, m)."""
        gradients, m = weights + noise, weights.shape[1]
        curvatures = np.empty((len(self._rows), m), dtype=np.float32)
        for part in self._float32_rows.blocks(m, times=2):
            z = self._rows @ weights[:, part]
            np.clip(z, -700.0, 700.0, out=z)
            np.exp(z, out=z)
            z += 1
            np.divide(1, z, out=z)
            gradients[:, part] -= self._rows.T @ z
            probabilities = z.astype(np.float32)
            np.multiply(probabilities, 1 - probabilities, out=curvatures[:, part])
        return gradients, curvatures

    def _conjugate(
        self,
        residual: Floats,
        curvatures: Floats,
        inverse_hessians: InverseHessians,
        target: Floats,
    ) -> Floats:
        """Conjugate gradients with the level's preconditioner, for nearly all models."""
        result = np.zeros_like(residual)
        direction = preconditioned = inverse_hessians.times(residual)
        size = column_dots(residual, preconditioned)
        for _ in range(_CG_PASSES):
            product = self._float32_rows.curvature_products(curvatures, direction)
            product += direction
            share = size / np.maximum(column_dots(direction, product), np.float32(1e-37))
            result += direction * share
            residual -= product * share
            if np.mean(column_norms(residual) <= target) >= _CG_SOLVED_SHARE:
                break
            preconditioned = inverse_hessians.times(residual)
            new_size = column_dots(residual, preconditioned)
            direction = preconditioned + direction * (
                new_size / np.maximum(size, np.float32(1e-37))
            )
            size = new_size
        return result
