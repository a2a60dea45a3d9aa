"""Minimizers of many models in single precision, from gradients alone.

The method is L-BFGS (Nocedal 1980, https://doi.org/10.1090/S0025-5718-1980-0572855-7), every
model with a memory of its own. It begins with the inverse second derivatives of the model's
level, which leave little to be learnt, so that a handful of gradients is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from veracal._types import Bools, Floats, Ints
from veracal.training.perturbation.light import Light, dots, lengths

_MEMORY = 5  # steps that are remembered
_LEAVE = 0.3  # share of models found, from which on the others go on without them
_OVERSHOT = 0.5  # of the slope at the start of a step: no more of it uphill at its end
_TINY = np.float32(1e-30)


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about records
class Responses:
    """A matrix for each model, the same for neighbors in the order of models.

    Attributes
    ----------
    matrices : sequence of arrays of shape (d, d)
    numbers : array of ints of shape (m,)
        Which of them a model has, in ascending order.
    """

    matrices: Sequence[Floats]
    numbers: Ints

    def of(self, models: Ints) -> "Responses":
        """Those of some models, in ascending order."""
        return Responses(self.matrices, self.numbers[models])

    def times(self, vectors: Floats) -> Floats:
        """Multiply each model's vector, in columns, by its matrix."""
        found = np.empty_like(vectors)
        edges = np.searchsorted(self.numbers, np.arange(len(self.matrices) + 1))
        for matrix, start, end in zip(self.matrices, edges[:-1], edges[1:], strict=True):
            if start < end:
                np.matmul(matrix, vectors[:, start:end], out=found[:, start:end])
        return found


def quasi_newton(
    light: Light, noise: Floats, start: Floats, near: Responses, *, tol: float, passes: int
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
    search = _Search(np.arange(start.shape[1]), noise, start, gradients, near)
    for _ in range(passes):
        step = search.direction()
        trial = search.weights + step
        there = trial + search.noise
        there -= light.pulls(trial)
        done = search.learn(step, trial, there, tol)
        if done.all():
            break
        if np.mean(done) > _LEAVE:
            found[:, search.places] = search.weights
            search = search.of(np.flatnonzero(~done))
    found[:, search.places] = search.weights
    return found


@dataclass(eq=False, repr=False)  # printed nowhere: it is about records
class _Search:
    """Models that are still searched for, and the last steps of each."""

    places: Ints
    noise: Floats
    weights: Floats
    gradients: Floats
    near: Responses
    memory: list[tuple[Floats, Floats, Floats]] = field(default_factory=list)

    def direction(self) -> Floats:
        """Where the gradients would vanish, if they went on changing as in the last steps."""
        left, shares = -self.gradients, []
        for step, change, inverse in reversed(self.memory):
            share = dots(step, left) * inverse
            left -= change * share
            shares.append(share)
        found = self.near.times(left)
        for (step, change, inverse), share in zip(self.memory, reversed(shares), strict=True):
            share -= dots(change, found) * inverse
            found += step * share
        return found

    def learn(self, step: Floats, trial: Floats, there: Floats, tol: float) -> Bools:
        """Remember a step, and take it where it did not overshoot; tell who is found."""
        change = there - self.gradients
        bend = dots(step, change)
        # With all penalties 1 it is no less than the squared step, but for rounding.
        sound = bend > 0.5 * dots(step, step)
        inverse = np.where(sound, 1 / np.maximum(bend, _TINY), np.float32(0))
        self.memory = [*self.memory[1 - _MEMORY :], (step, change, inverse)]
        left = lengths(there)
        done: Bools = ~(left > tol * (lengths(self.noise) + lengths(trial)))  # or not a number
        uphill = dots(there, step) > -_OVERSHOT * dots(self.gradients, step)
        models = np.flatnonzero(uphill & ~done)
        trial[:, models], there[:, models] = self.weights[:, models], self.gradients[:, models]
        self.weights, self.gradients = trial, there
        return done

    def of(self, models: Ints) -> "_Search":
        """Some of the models."""
        return _Search(
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
