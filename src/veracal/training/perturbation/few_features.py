"""Newton's method in single precision, of many models with few features.

The second derivatives of all models are one product of matrices, of bends with products of two
features. They are factored for all models at once, entry by entry: loops are over features, and
every operation is on a whole row of models. (A library would factor small matrices one after
the other, and spend its time between them.)
"""

import numpy as np

from veracal._types import Bools, Floats, Ints
from veracal.training.perturbation.light import Light, dots, lengths

_LEAVE = 0.25  # share of models found, from which on the others go on without them
_OVERSHOT = 0.5  # of the slope at the start of a step: no more of it uphill at its end
_SHORTEST, _LONGEST = 0.1, 0.7  # of a step that overshot


class Pairs:
    """Products of two features of each row, for second derivatives with penalties of 1.

    Parameters
    ----------
    light : Light
    """

    def __init__(self, light: Light) -> None:
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
        factors, found = _factored(entries[self._places]), right.copy()
        d = len(found)
        for j in range(d):
            found[j] /= factors[j, j]
            found[j + 1 :] -= factors[j + 1 :, j] * found[j]
        for j in reversed(range(d)):
            found[j] /= factors[j, j]
            found[:j] -= factors[j, :j] * found[j]
        return found


def _factored(matrices: Floats) -> Floats:
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


def newton(pairs: Pairs, noise: Floats, start: Floats, *, tol: float, passes: int) -> Floats:
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
        done = ~(lengths(there) > tol * (lengths(noise) + lengths(trial)))  # or not a number
        models = _overshot(gradients, there, steps, done) if passed else places[:0]
        shortened = _shortened(gradients, there, steps, shares, models)
        for now, before in ((trial, weights), (there, gradients), (ahead, steps)):
            now[:, models] = before[:, models]
        weights, gradients, steps = trial, there, ahead
        shares[:] = 1
        shares[models] = shortened
        if done.all():
            break
        if np.mean(done) > _LEAVE:
            found[:, places] = weights + steps
            on = np.flatnonzero(~done)
            places, shares, noise = places[on], shares[on], noise[:, on]
            weights, gradients, steps = weights[:, on], gradients[:, on], steps[:, on]
        trial = weights + shares * steps
    found[:, places] = weights + steps
    return found


def _overshot(gradients: Floats, there: Floats, steps: Floats, done: Bools) -> Ints:
    """Models that are well uphill at the end of their step."""
    uphill = dots(there, steps) > -_OVERSHOT * dots(gradients, steps)
    found: Ints = np.flatnonzero(uphill & ~done)
    return found


def _shortened(
    gradients: Floats, there: Floats, steps: Floats, shares: Floats, models: Ints
) -> Floats:
    """Shares of steps at which slopes would vanish, were they to change evenly on the way."""
    before = dots(gradients[:, models], steps[:, models])
    after = dots(there[:, models], steps[:, models])
    found: Floats = shares[models] * np.clip(before / (before - after), _SHORTEST, _LONGEST)
    return found
