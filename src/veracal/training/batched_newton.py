r"""Where minimizers of objectives with much noise are to be found, on average.

The noise b of a level moves the margin of row i around a mean :math:`\mu_i`, with some
variance :math:`\tau_i^2`. Averaged over it, the chance of a row is nearly
:math:`\sigma(-\mu_i/\kappa_i)` with :math:`\kappa_i = \sqrt{1 + \pi\tau_i^2/8}` (MacKay 1992,
https://doi.org/10.1162/neco.1992.4.5.720), and its slope
:math:`u_i = \sigma'(\mu_i/\kappa_i)/\kappa_i`. The mean weights then solve
:math:`\lambda \circ \bar w = \sum_i \sigma(-\mu_i/\kappa_i) a_i` with
:math:`\mu_i = \bar w \cdot a_i`, noise moves them by :math:`-\bar H^{-1} b` with
:math:`\bar H = \operatorname{diag}\lambda + \sum_i u_i a_i a_i^\top`, and that gives the
variances. Nothing rests on it but speed: a search that begins there is short, and
:math:`\bar H`, one matrix for all models of a level, brings the eigenvalues of each model's
own second derivatives together.

Sums over rows in single precision, of many models at once and a few at a time.

Models are columns: what each of them has of its own, a step length say, then multiplies
along the memory, and sums over coordinates add whole rows.

Newton's method in single precision, of many models with few features.

The second derivatives of all models are one product of matrices, of bends with products of two
features. They are factored for all models at once, entry by entry: loops are over features, and
every operation is on a whole row of models. (A library would factor small matrices one after
the other, and spend its time between them.)

Minimizers of many models in single precision, from gradients alone.

The method is L-BFGS (Nocedal 1980, https://doi.org/10.1090/S0025-5718-1980-0572855-7), every
model with a memory of its own. It begins with the inverse second derivatives of the model's
level, which leave little to be learnt, so that a handful of gradients is enough.

Minimizers of very many objectives that differ by their noise alone, exact and soon.

Searching is left to single precision, which is fast and ends at about a millionth of what is
added up. From there the gradient is taken in double precision, once, and one step with the
second derivatives leads to the minimizer. The gradient *there* is known without another look:
with :math:`z_i` the margins before the step x and :math:`t_i = a_i \cdot x`,

.. math::

    \Bigl\lVert \nabla F(w + x) - \nabla F(w) - \nabla^2 F(w)\, x \Bigr\rVert
    \le \tfrac12 e^{\max_i |t_i|} \sum_i h(z_i)\, t_i^2 \lVert a_i \rVert,

since the second derivative h of the logistic loss satisfies :math:`|h'| \le h`. Whatever is not
found so goes to :func:`~.solver.minimize`, one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from veracal._types import Bools, Floats, Ints
from veracal.training.newton import RowSource, minimize, build_problem

_LEVEL_RATIO = (
    1.6  # between the norms of levels: with finer ones the searches are hardly shorter
)
_LEVEL_PASSES = 4


def noise_levels(norms: Floats) -> Ints:
    """Numbers of the levels of noise of some norms; the same norm has the same number."""
    least = np.finfo(np.float64).tiny
    found: Ints = np.rint(np.log(np.maximum(norms, least)) / np.log(_LEVEL_RATIO)).astype(
        np.int64
    )
    return found


def solve_level(rows: Floats, scales: Floats, number: int) -> tuple[Floats, Floats]:
    """Mean of the minimizers at a level of noise, and their response to it.

    Parameters
    ----------
    rows : array of shape (n, d)
        Signed, and scaled so that all penalties are 1.
    scales : array of shape (d,)
        Of the coordinates of the noise: its entries are divided by them.
    number : int
        See :func:`level_numbers`.

    Returns
    -------
    center : array of shape (d,)
    response : array of shape (d, d)
        The inverse of the mean second derivatives.
    """
    n, d = rows.shape
    variances = (_LEVEL_RATIO**number / scales) ** 2 / d
    center, wider = np.zeros(d), np.ones(n)
    response = np.eye(d)
    for _ in range(_LEVEL_PASSES):
        chances = expit(-(rows @ center) / wider)
        slopes = chances * (1 - chances) / wider
        response = np.linalg.inv((rows.T * slopes) @ rows + np.eye(d))
        center = center - response @ (center - chances @ rows)
        moved = rows @ response
        wider = np.sqrt(1 + np.pi / 8 * (moved**2 @ variances))
    return center, response


_BLOCK_MARGINS = 1 << 17  # numbers held at a time: they stay in a processor's second cache
_MIN_COLUMNS = 32  # columns of a block
_MAX_MARGIN = 30.0  # a margin beyond which single precision tells no chance from 0 or 1


class Float32Rows:
    """Rows in float32 that all models share.

    Parameters
    ----------
    rows : array of shape (n, d)
        Each multiplied by its sign.
    """

    def __init__(self, rows: Floats) -> None:
        self.rows: Floats = np.ascontiguousarray(rows, dtype=np.float32)
        self.turned: Floats = np.ascontiguousarray(self.rows.T)

    def blocks(self, models: int, *, times: int = 1) -> list[slice]:
        """Some columns at a time; fewer by a factor, where more is held of each."""
        n = max(1, len(self.rows))
        width = max(_MIN_COLUMNS, _BLOCK_MARGINS // (n * times))
        return [slice(at, min(at + width, models)) for at in range(0, models, width)]

    def pulls(self, weights: Floats) -> Floats:
        r"""Sums :math:`\sum_i \sigma(-z_i) a_i`, of shape (d, m)."""
        found = np.empty_like(weights)
        for part in self.blocks(weights.shape[1]):
            np.matmul(self.turned, self.chances(weights[:, part]), out=found[:, part])
        return found

    def chances(self, weights: Floats) -> Floats:
        r"""Chances :math:`\sigma(-z_i)` of shape (n, m), for a block of models."""
        z: Floats = self.rows @ weights
        np.clip(
            z, -_MAX_MARGIN, _MAX_MARGIN, out=z
        )  # faster than what overflows or becomes subnormal
        np.exp(z, out=z)
        z += 1
        return np.divide(1, z, out=z)

    def bent(self, bends: Floats, vectors: Floats) -> Floats:
        r"""Sums :math:`\sum_i h_i (a_i \cdot v) a_i`, of shape (d, m)."""
        found = np.empty_like(vectors)
        for part in self.blocks(vectors.shape[1]):
            z = self.rows @ vectors[:, part]
            z *= bends[:, part]
            np.matmul(self.turned, z, out=found[:, part])
        return found


def column_dots(one: Floats, other: Floats) -> Floats:
    """Products of the columns of two arrays, of shape (m,)."""
    found: Floats = np.einsum("ij,ij->j", one, other)
    return found


def column_norms(vectors: Floats) -> Floats:
    """Norms of columns, of shape (m,)."""
    found: Floats = np.sqrt(column_dots(vectors, vectors))
    return found


_NEWTON_DROP = 0.25  # share of models found, from which on the others go on without them
_NEWTON_OVERSHOOT = 0.5  # of the slope at the start of a step: no more of it uphill at its end
_SHORTEST, _LONGEST = 0.1, 0.7  # of a step that overshot


class FeaturePairs:
    """Products of two features of each row, for second derivatives with penalties of 1.

    Parameters
    ----------
    light : Light
    """

    def __init__(self, light: Float32Rows) -> None:
        self._light = light
        d = light.rows.shape[1]
        first, other = np.triu_indices(d)
        self._turned = np.ascontiguousarray((light.rows[:, first] * light.rows[:, other]).T)
        self._places = np.empty((d, d), dtype=int)
        self._places[first, other] = self._places[other, first] = np.arange(len(first))

    def sums(self, bends: Floats) -> Floats:
        r"""Entries of :math:`\sum_i h_i a_i a_i^\top` for bends of shape (n, m)."""
        found: Floats = self._turned @ bends
        return found

    def derivatives(self, noise: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Gradients of shape (d, m), and entries of the second derivatives."""
        gradients, m = weights + noise, weights.shape[1]
        entries = np.empty((len(self._turned), m), dtype=np.float32)
        for part in self._light.blocks(m):
            chances = self._light.chances(weights[:, part])
            gradients[:, part] -= self._light.turned @ chances
            chances -= chances * chances
            np.matmul(self._turned, chances, out=entries[:, part])
        return gradients, entries

    def solve(self, entries: Floats, right: Floats) -> Floats:
        """Solve each model's system, with a right side in each column."""
        factors, found = _cholesky(entries[self._places]), right.copy()
        d = len(found)
        for j in range(d):
            found[j] /= factors[j, j]
            found[j + 1 :] -= factors[j + 1 :, j] * found[j]
        for j in reversed(range(d)):
            found[j] /= factors[j, j]
            found[:j] -= factors[j, :j] * found[j]
        return found


def _cholesky(matrices: Floats) -> Floats:
    """Cholesky factors of matrices of shape (d, d, m) plus the identity, in place."""
    d = len(matrices)
    for j in range(d):
        matrices[j, j] += 1
    for j in range(d):
        np.sqrt(matrices[j, j], out=matrices[j, j])
        matrices[j + 1 :, j] /= matrices[j, j]
        for i in range(j + 1, d):
            matrices[i, j + 1 : i + 1] -= matrices[i, j] * matrices[j + 1 : i + 1, j]
    return matrices


def newton(
    pairs: FeaturePairs, noise: Floats, start: Floats, *, tol: float, passes: int
) -> Floats:
    """Approach the minimizers by Newton's method, a step beyond where gradients are short.

    Parameters
    ----------
    pairs : Pairs
        Of rows scaled so that all penalties are 1.
    noise, start : arrays of float32, of shape (d, m)
    tol : float
        How long a gradient may be, relative to the noise and the weights it is a sum of. A
        last step from there squares what is left.
    passes : int
        At most.

    Returns
    -------
    array of float32, of shape (d, m)
    """
    found, places = start.copy(), np.arange(start.shape[1])
    weights = trial = start
    gradients = steps = np.zeros_like(start)
    shares = np.ones(start.shape[1], dtype=np.float32)
    for passed in range(passes):
        there, entries = pairs.derivatives(noise, trial)
        ahead = pairs.solve(entries, -there)
        done = ~(
            column_norms(there) > tol * (column_norms(noise) + column_norms(trial))
        )  # or not a number
        models = _find_overshoots(gradients, there, steps, done) if passed else places[:0]
        shortened = _shorten_steps(gradients, there, steps, shares, models)
        for now, before in ((trial, weights), (there, gradients), (ahead, steps)):
            now[:, models] = before[:, models]
        weights, gradients, steps = trial, there, ahead
        shares[:] = 1
        shares[models] = shortened
        if done.all():
            break
        if np.mean(done) > _NEWTON_DROP:
            found[:, places] = weights + steps
            on = np.flatnonzero(~done)
            places, shares, noise = places[on], shares[on], noise[:, on]
            weights, gradients, steps = weights[:, on], gradients[:, on], steps[:, on]
        trial = weights + shares * steps
    found[:, places] = weights + steps
    return found


def _find_overshoots(gradients: Floats, there: Floats, steps: Floats, done: Bools) -> Ints:
    """Models that are well uphill at the end of their step."""
    uphill = column_dots(there, steps) > -_NEWTON_OVERSHOOT * column_dots(gradients, steps)
    found: Ints = np.flatnonzero(uphill & ~done)
    return found


def _shorten_steps(
    gradients: Floats, there: Floats, steps: Floats, shares: Floats, models: Ints
) -> Floats:
    """Shares of steps at which slopes would vanish, were they to change evenly on the way."""
    before = column_dots(gradients[:, models], steps[:, models])
    after = column_dots(there[:, models], steps[:, models])
    found: Floats = shares[models] * np.clip(before / (before - after), _SHORTEST, _LONGEST)
    return found


_MEMORY = 5  # steps that are remembered
_QUASI_NEWTON_DROP = 0.3  # share of models found, from which on the others go on without them
_QUASI_NEWTON_OVERSHOOT = (
    0.5  # of the slope at the start of a step: no more of it uphill at its end
)
_TINY = np.float32(1e-30)


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about records
class InverseHessians:
    """A matrix for each model, the same for neighbors in the order of models.

    Attributes
    ----------
    matrices : sequence of arrays of shape (d, d)
    numbers : array of ints of shape (m,)
        Which of them a model has, in ascending order.
    """

    matrices: Sequence[Floats]
    numbers: Ints

    def of(self, models: Ints) -> "InverseHessians":
        """Those of some models, in ascending order."""
        return InverseHessians(self.matrices, self.numbers[models])

    def times(self, vectors: Floats) -> Floats:
        """Multiply each model's vector, in columns, by its matrix."""
        found = np.empty_like(vectors)
        edges = np.searchsorted(self.numbers, np.arange(len(self.matrices) + 1))
        for matrix, start, end in zip(self.matrices, edges[:-1], edges[1:], strict=True):
            if start < end:
                np.matmul(matrix, vectors[:, start:end], out=found[:, start:end])
        return found


def quasi_newton(
    light: Float32Rows,
    noise: Floats,
    start: Floats,
    near: InverseHessians,
    *,
    tol: float,
    passes: int,
) -> Floats:
    """Approach the minimizers until their gradients are short.

    Parameters
    ----------
    light : Light
        Rows, scaled so that all penalties are 1.
    noise, start : arrays of float32, of shape (d, m)
    near : Responses
        About the inverse of each model's second derivatives.
    tol : float
        How long a gradient may be, relative to the noise and the weights it is a sum of.
    passes : int
        At most.

    Returns
    -------
    array of float32, of shape (d, m)
        Of models that were not found in so many passes, where they stood.
    """
    found = start.copy()
    gradients = start + noise - light.pulls(start)
    search = _QuasiNewtonState(np.arange(start.shape[1]), noise, start, gradients, near)
    for _ in range(passes):
        step = search.direction()
        trial = search.weights + step
        there = trial + search.noise
        there -= light.pulls(trial)
        done = search.learn(step, trial, there, tol)
        if done.all():
            break
        if np.mean(done) > _QUASI_NEWTON_DROP:
            found[:, search.places] = search.weights
            search = search.of(np.flatnonzero(~done))
    found[:, search.places] = search.weights
    return found


@dataclass(eq=False, repr=False)  # printed nowhere: it is about records
class _QuasiNewtonState:
    """Models that are still searched for, and the last steps of each."""

    places: Ints
    noise: Floats
    weights: Floats
    gradients: Floats
    near: InverseHessians
    memory: list[tuple[Floats, Floats, Floats]] = field(default_factory=list)

    def direction(self) -> Floats:
        """Where the gradients would vanish, if they went on changing as in the last steps."""
        left, shares = -self.gradients, []
        for step, change, inverse in reversed(self.memory):
            share = column_dots(step, left) * inverse
            left -= change * share
            shares.append(share)
        found = self.near.times(left)
        for (step, change, inverse), share in zip(self.memory, reversed(shares), strict=True):
            share -= column_dots(change, found) * inverse
            found += step * share
        return found

    def learn(self, step: Floats, trial: Floats, there: Floats, tol: float) -> Bools:
        """Remember a step, and take it where it did not overshoot; tell who is found."""
        change = there - self.gradients
        bend = column_dots(step, change)
        # With all penalties 1 it is no less than the squared step, but for rounding.
        sound = bend > 0.5 * column_dots(step, step)
        inverse = np.where(sound, 1 / np.maximum(bend, _TINY), np.float32(0))
        self.memory = [*self.memory[1 - _MEMORY :], (step, change, inverse)]
        left = column_norms(there)
        done: Bools = ~(
            left > tol * (column_norms(self.noise) + column_norms(trial))
        )  # or not a number
        uphill = column_dots(there, step) > -_QUASI_NEWTON_OVERSHOOT * column_dots(
            self.gradients, step
        )
        models = np.flatnonzero(uphill & ~done)
        trial[:, models], there[:, models] = self.weights[:, models], self.gradients[:, models]
        self.weights, self.gradients = trial, there
        return done

    def of(self, models: Ints) -> "_QuasiNewtonState":
        """Some of the models."""
        return _QuasiNewtonState(
            self.places[models],
            self.noise[:, models],
            self.weights[:, models],
            self.gradients[:, models],
            self.near.of(models),
            [
                (step[:, models], change[:, models], i[models])
                for step, change, i in self.memory
            ],
        )


TOL = 1e-8  # of the gradient, relative to the noise and the penalty's pull that it adds up
MAX_ENTRIES = 1 << 22  # numbers in rows of which all that is needed can be held at once
_MODELS_TOGETHER = 2048  # searched for together
_MARGINS_TOGETHER = 1 << 22  # of them that are held
_MAX_PAIR_FEATURES = 16  # features up to which second derivatives are cheap
_NEWTON_TOL, _QUASI_NEWTON_TOL = 3e-3, 5e-6
_MAX_PASSES, _ROUNDS = 30, 3
_CG_PASSES = 12  # passes of conjugate gradients,
_CG_SOLVED_SHARE = (
    0.98  # which end when so many models are solved; the others get another round
)
_CG_TOL_SHARE = 0.3  # of the tolerance, up to which they solve
_FLOAT32_ROUNDING, _FLOAT64_ROUNDING = (
    64 * 2.0**-24,
    16 * 2.0**-53,
)  # rounding of sums, relative to what they add


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about records
class Minimizers:
    """Weights of many models.

    Attributes
    ----------
    weights : array of shape (m, d)
    slow : int
        How many were not found together, but one by one.
    """

    weights: Floats
    slow: int


class BatchedProblem:
    """Rows, labels and penalties that many models share.

    Parameters
    ----------
    X : array of shape (n, d), or anything whose rows can be read
        Of :data:`MOST` numbers at most, see :meth:`fits`.
    signs : array of -1 and 1, of shape (n,)
    penalty : float > 0, or an array of shape (d,)

    Examples
    --------
    >>> many = BatchedProblem(np.zeros((0, 2)), np.zeros(0), 2.0)
    >>> many.minimize([[1.0, -3.0]]).weights
    array([[-0.5,  1.5]])
    """

    def __init__(self, X: RowSource, signs: ArrayLike, penalty: float | Floats) -> None:
        task = build_problem(X, signs, np.zeros((1, X.shape[1])), penalty)
        if task.signs.ndim != 1:
            raise ValueError("Expected the same signs for all models, got signs of each.")
        self._X, self._signs, self._penalty = X, task.signs, task.penalty
        rows = np.asarray(X[0 : X.shape[0]], dtype=np.float64) * task.signs[:, None]
        self._norms = column_norms(rows.T)
        self._scales = np.sqrt(task.penalty)
        self._rows = rows / self._scales  # as if all penalties were 1
        self._light = Float32Rows(self._rows)
        self._pairs = FeaturePairs(self._light) if X.shape[1] <= _MAX_PAIR_FEATURES else None
        self._levels: dict[int, tuple[Floats, Floats]] = {}

    @staticmethod
    def fits(X: RowSource) -> bool:
        """Whether rows are few enough to be held in both precisions."""
        return bool(X.shape[0] * X.shape[1] <= MAX_ENTRIES)

    def minimize(self, linear: ArrayLike) -> Minimizers:
        r"""Minimize the penalized logistic loss with each of m linear terms.

        Parameters
        ----------
        linear : array of shape (m, d)
            The vector b of each model, see :func:`~.solver.minimize`.

        Returns
        -------
        Minimizers
            The gradient of each model is at most :math:`10^{-8}` times
            :math:`\lVert b \rVert + \lVert \lambda \circ w \rVert`, rounding included; of the
            slow ones, as short as :func:`~.solver.minimize` promises.

        Raises
        ------
        AnswerError
            If the minimizer of a model is not found.
        """
        noise = build_problem(self._X, self._signs, linear, self._penalty).linear
        weights, solved = np.empty_like(noise), np.zeros(len(noise), dtype=bool)
        together = max(1, min(_MODELS_TOGETHER, _MARGINS_TOGETHER // max(1, len(self._rows))))
        for start in range(0, len(noise), together):
            part = slice(start, start + together)
            with np.errstate(all="ignore"):  # what overflows is not solved, and seen below
                weights[part], solved[part] = self._solve(noise[part])
        slow = np.flatnonzero(~solved)
        if len(slow):
            weights[slow] = minimize(self._X, self._signs, noise[slow], penalty=self._penalty)
        return Minimizers(weights, len(slow))

    def _solve(self, linear: Floats) -> tuple[Floats, Bools]:
        """Search in single precision, and correct in double; tell who is solved."""
        numbers = noise_levels(np.linalg.norm(linear, axis=1))
        order = np.argsort(numbers, kind="stable")  # so that a level is a range of columns
        noise = np.ascontiguousarray((linear[order] / self._scales).T)
        weights, near = self._start(noise, numbers[order])
        light = weights.astype(np.float32), noise.astype(np.float32)
        weights[:] = self._search(*light, near)
        good = np.zeros(len(linear), dtype=bool)
        for _ in range(_ROUNDS):
            on = np.flatnonzero(~good)
            weights[:, on], good[on] = self._corrected(
                weights[:, on], noise[:, on], near.of(on)
            )
            if good.all():
                break
        found, solved = np.empty_like(linear), np.empty_like(good)
        found[order], solved[order] = (weights / self._scales[:, None]).T, good
        return found, solved

    def _start(self, noise: Floats, numbers: Ints) -> tuple[Floats, InverseHessians]:
        """Where each model's level expects it, and how it bends there."""
        weights = np.empty_like(noise)
        known, first = np.unique(numbers, return_index=True)
        for number, start, end in zip(known, first, [*first[1:], len(numbers)], strict=True):
            center, response = self._level(int(number))
            weights[:, start:end] = center[:, None] - response @ noise[:, start:end]
        matrices = [self._level(int(number))[1].astype(np.float32) for number in known]
        return weights, InverseHessians(matrices, np.searchsorted(known, numbers))

    def _level(self, number: int) -> tuple[Floats, Floats]:
        """Center and response of a level, solved for when it is first met."""
        if number not in self._levels:
            self._levels[number] = solve_level(self._rows, self._scales, number)
        return self._levels[number]

    def _search(self, start: Floats, noise: Floats, near: InverseHessians) -> Floats:
        """Weights in single precision."""
        if self._pairs is not None:
            return newton(self._pairs, noise, start, tol=_NEWTON_TOL, passes=_MAX_PASSES)
        return quasi_newton(
            self._light, noise, start, near, tol=_QUASI_NEWTON_TOL, passes=_MAX_PASSES
        )

    def _corrected(
        self, weights: Floats, noise: Floats, near: InverseHessians
    ) -> tuple[Floats, Bools]:
        """Take one step with the second derivatives, and bound the gradient after it."""
        gradients, bends = self._slopes(weights, noise)
        scales = self._scales[:, None]
        size = column_norms(noise * scales) + column_norms(weights * scales)
        step = self._step(
            gradients, bends, near, _CG_TOL_SHARE * TOL / self._scales.max() * size
        )
        left, curved = self._after(gradients, bends, step)
        far = float(np.max(column_norms(self._rows.T), initial=0.0)) * column_norms(step)
        bound = column_norms(left * scales) + 0.5 * np.exp(far) * curved
        bound += self._rounding(weights, step, size)
        return weights + step, bound <= TOL * size

    def _slopes(self, weights: Floats, noise: Floats) -> tuple[Floats, Floats]:
        """Gradients in double precision, and bends in single precision, of shape (n, m)."""
        gradients, m = weights + noise, weights.shape[1]
        bends = np.empty((len(self._rows), m), dtype=np.float32)
        for part in self._light.blocks(m, times=2):
            z = self._rows @ weights[:, part]
            np.clip(z, -700.0, 700.0, out=z)
            np.exp(z, out=z)
            z += 1
            np.divide(1, z, out=z)
            gradients[:, part] -= self._rows.T @ z
            chances = z.astype(np.float32)
            np.multiply(chances, 1 - chances, out=bends[:, part])
        return gradients, bends

    def _step(
        self, gradients: Floats, bends: Floats, near: InverseHessians, goal: Floats
    ) -> Floats:
        """Newton's step, in single precision."""
        right = -gradients.astype(np.float32)
        if self._pairs is None:
            return self._conjugate(right, bends, near, goal.astype(np.float32))
        entries = [self._pairs.sums(bends[:, p]) for p in self._light.blocks(right.shape[1])]
        return self._pairs.solve(np.hstack(entries), right)

    def _conjugate(
        self, left: Floats, bends: Floats, near: InverseHessians, goal: Floats
    ) -> Floats:
        """Conjugate gradients, preconditioned by the responses, for nearly all models."""
        found = np.zeros_like(left)
        along = ready = near.times(left)
        size = column_dots(left, ready)
        for _ in range(_CG_PASSES):
            product = self._light.bent(bends, along)
            product += along
            share = size / np.maximum(column_dots(along, product), np.float32(1e-37))
            found += along * share
            left -= product * share
            if np.mean(column_norms(left) <= goal) >= _CG_SOLVED_SHARE:
                break
            ready = near.times(left)
            fresh = column_dots(left, ready)
            along = ready + along * (fresh / np.maximum(size, np.float32(1e-37)))
            size = fresh
        return found

    def _after(self, gradients: Floats, bends: Floats, step: Floats) -> tuple[Floats, Floats]:
        r"""Gradients after a step as far as they are linear, and :math:`\sum h t^2 |a|`."""
        left, curved = gradients + step, np.empty(step.shape[1])
        norms = self._norms.astype(np.float32)
        for part in self._light.blocks(step.shape[1]):
            t = self._light.rows @ step[:, part]
            bent = t * bends[:, part]
            left[:, part] += self._light.turned @ bent
            bent *= t
            curved[part] = norms @ bent
        return left, curved

    def _rounding(self, weights: Floats, step: Floats, size: Floats) -> Floats:
        """What rounding may have hidden: in double precision all, in single the step's part."""
        most = 0.25 * self._norms @ column_norms(self._rows.T)
        heavy = self._norms.sum() + most * column_norms(weights) + size
        found: Floats = _FLOAT64_ROUNDING * heavy + _FLOAT32_ROUNDING * most * column_norms(
            step
        )
        return found
