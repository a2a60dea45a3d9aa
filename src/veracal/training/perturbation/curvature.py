"""Linear systems with the second derivatives of many models at once."""

import numpy as np

from veracal._types import Bools, Floats, Ints
from veracal.training.perturbation.logistic import Problem

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


class Products:
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
