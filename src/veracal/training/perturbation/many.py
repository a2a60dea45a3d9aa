r"""Minimizers of very many objectives that differ by their noise alone, exact and soon.

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

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Bools, Floats, Ints
from veracal.training.perturbation.few_features import Pairs, newton
from veracal.training.perturbation.levels import level_numbers, level_of
from veracal.training.perturbation.light import Light, dots, lengths
from veracal.training.perturbation.logistic import Rows
from veracal.training.perturbation.quasi_newton import Responses, quasi_newton
from veracal.training.perturbation.solver import minimize, problem_of

TOL = 1e-8  # of the gradient, relative to the noise and the penalty's pull that it adds up
MOST = 1 << 22  # numbers in rows of which all that is needed can be held at once
_MODELS = 2048  # searched for together
_MARGINS = 1 << 22  # of them that are held
_FEW = 16  # features up to which second derivatives are cheap
_NEWTON_TOL, _QUASI_NEWTON_TOL = 3e-3, 5e-6
_PASSES, _ROUNDS = 30, 3
_SOLVES = 12  # passes of conjugate gradients,
_ENOUGH = 0.98  # which end when so many models are solved; the others get another round
_MARGIN = 0.3  # of the tolerance, up to which they solve
_LIGHT, _HEAVY = 64 * 2.0**-24, 16 * 2.0**-53  # rounding of sums, relative to what they add


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


class Many:
    """Rows, labels and penalties that many models share.

    Parameters
    ----------
    X : array of shape (n, d), or anything whose rows can be read
        Of :data:`MOST` numbers at most, see :meth:`fits`.
    signs : array of -1 and 1, of shape (n,)
    penalty : float > 0, or an array of shape (d,)

    Examples
    --------
    >>> many = Many(np.zeros((0, 2)), np.zeros(0), 2.0)
    >>> many.minimize([[1.0, -3.0]]).weights
    array([[-0.5,  1.5]])
    """

    def __init__(self, X: Rows, signs: ArrayLike, penalty: float | Floats) -> None:
        task = problem_of(X, signs, np.zeros((1, X.shape[1])), penalty)
        if task.signs.ndim != 1:
            raise ValueError("Expected the same signs for all models, got signs of each.")
        self._X, self._signs, self._penalty = X, task.signs, task.penalty
        rows = np.asarray(X[0 : X.shape[0]], dtype=np.float64) * task.signs[:, None]
        self._norms = lengths(rows.T)
        self._scales = np.sqrt(task.penalty)
        self._rows = rows / self._scales  # as if all penalties were 1
        self._light = Light(self._rows)
        self._pairs = Pairs(self._light) if X.shape[1] <= _FEW else None
        self._levels: dict[int, tuple[Floats, Floats]] = {}

    @staticmethod
    def fits(X: Rows) -> bool:
        """Whether rows are few enough to be held in both precisions."""
        return bool(X.shape[0] * X.shape[1] <= MOST)

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
        noise = problem_of(self._X, self._signs, linear, self._penalty).linear
        weights, solved = np.empty_like(noise), np.zeros(len(noise), dtype=bool)
        together = max(1, min(_MODELS, _MARGINS // max(1, len(self._rows))))
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
        numbers = level_numbers(np.linalg.norm(linear, axis=1))
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

    def _start(self, noise: Floats, numbers: Ints) -> tuple[Floats, Responses]:
        """Where each model's level expects it, and how it bends there."""
        weights = np.empty_like(noise)
        known, first = np.unique(numbers, return_index=True)
        for number, start, end in zip(known, first, [*first[1:], len(numbers)], strict=True):
            center, response = self._level(int(number))
            weights[:, start:end] = center[:, None] - response @ noise[:, start:end]
        matrices = [self._level(int(number))[1].astype(np.float32) for number in known]
        return weights, Responses(matrices, np.searchsorted(known, numbers))

    def _level(self, number: int) -> tuple[Floats, Floats]:
        """Center and response of a level, solved for when it is first met."""
        if number not in self._levels:
            self._levels[number] = level_of(self._rows, self._scales, number)
        return self._levels[number]

    def _search(self, start: Floats, noise: Floats, near: Responses) -> Floats:
        """Weights in single precision."""
        if self._pairs is not None:
            return newton(self._pairs, noise, start, tol=_NEWTON_TOL, passes=_PASSES)
        return quasi_newton(
            self._light, noise, start, near, tol=_QUASI_NEWTON_TOL, passes=_PASSES
        )

    def _corrected(
        self, weights: Floats, noise: Floats, near: Responses
    ) -> tuple[Floats, Bools]:
        """Take one step with the second derivatives, and bound the gradient after it."""
        gradients, bends = self._slopes(weights, noise)
        scales = self._scales[:, None]
        size = lengths(noise * scales) + lengths(weights * scales)
        step = self._step(gradients, bends, near, _MARGIN * TOL / self._scales.max() * size)
        left, curved = self._after(gradients, bends, step)
        far = float(np.max(lengths(self._rows.T), initial=0.0)) * lengths(step)
        bound = lengths(left * scales) + 0.5 * np.exp(far) * curved
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

    def _step(self, gradients: Floats, bends: Floats, near: Responses, goal: Floats) -> Floats:
        """Newton's step, in single precision."""
        right = -gradients.astype(np.float32)
        if self._pairs is None:
            return self._conjugate(right, bends, near, goal.astype(np.float32))
        entries = [self._pairs.sums(bends[:, p]) for p in self._light.blocks(right.shape[1])]
        return self._pairs.solve(np.hstack(entries), right)

    def _conjugate(self, left: Floats, bends: Floats, near: Responses, goal: Floats) -> Floats:
        """Conjugate gradients, preconditioned by the responses, for nearly all models."""
        found = np.zeros_like(left)
        along = ready = near.times(left)
        size = dots(left, ready)
        for _ in range(_SOLVES):
            product = self._light.bent(bends, along)
            product += along
            share = size / np.maximum(dots(along, product), np.float32(1e-37))
            found += along * share
            left -= product * share
            if np.mean(lengths(left) <= goal) >= _ENOUGH:
                break
            ready = near.times(left)
            fresh = dots(left, ready)
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
        most = 0.25 * self._norms @ lengths(self._rows.T)
        heavy = self._norms.sum() + most * lengths(weights) + size
        found: Floats = _HEAVY * heavy + _LIGHT * most * lengths(step)
        return found
