"""Engines of perturbed models that are broken on purpose."""

from dataclasses import replace
from typing import Any

import numpy as np

from veracal._types import Floats
from veracal.multiplicity.engines.base import Streams
from veracal.multiplicity.engines.linear import ObjectiveEngine, OutputEngine
from veracal.training.batched_newton import BatchedProblem, Minimizers
from veracal.training.perturbation import clip_rows


class Altered(ObjectiveEngine):
    """Objective perturbation that solves for other noise than it drew."""

    def scores(self, count: int, streams: Streams) -> Floats:
        """Draw as usual, and alter what was drawn."""
        return super().scores(count, replace(streams, noise=self.drawing(count, streams)))

    def drawing(self, count: int, streams: Streams) -> Any:
        """The generator that is used instead."""
        return Rewritten(streams.noise, lambda drawn: self.altered(drawn, count))

    def altered(self, drawn: Floats, count: int) -> Floats:
        """What becomes of draws with a row for each run and class."""
        return drawn


class Rewritten:
    """A generator whose draws are changed on their way out."""

    def __init__(self, rng: np.random.Generator, change: Any) -> None:
        self._rng, self._change = rng, change

    def standard_normal(self, size: Any) -> Floats:
        """Normal draws, changed."""
        found: Floats = self._change(self._rng.standard_normal(size))
        return found

    def gamma(self, shape: float, scale: float, size: Any) -> Floats:
        """Gamma draws, changed."""
        found: Floats = self._change(self._rng.gamma(shape, scale, size))
        return found

    def normal(self, mean: float, std: float, size: Any) -> Floats:
        """Normal draws, changed."""
        found: Floats = self._change(self._rng.normal(mean, std, size))
        return found


class Reused(Altered):
    """One draw for all runs."""

    def altered(self, drawn: Floats, count: int) -> Floats:
        return np.tile(drawn[: len(drawn) // count], (count, 1))


class Neighbors(Altered):
    """Every other run takes the noise of the one before."""

    def altered(self, drawn: Floats, count: int) -> Floats:
        each = drawn.reshape(count, -1)
        return np.repeat(each[::2], 2, axis=0)[:count].reshape(drawn.shape)


class OneForAll(Altered):
    """All classes of a run have the noise of its first."""

    def altered(self, drawn: Floats, count: int) -> Floats:
        models = len(drawn) // count
        return np.repeat(drawn[::models], models, axis=0)


class Quieter(ObjectiveEngine):
    """A tenth of the noise is missing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._used = replace(self._used, noise_scale=0.9 * self._used.noise_scale)


class FromBatches(ObjectiveEngine):
    """Noise comes from the stream of batches, which need not differ between runs."""

    def scores(self, count: int, streams: Streams) -> Floats:
        return super().scores(count, replace(streams, noise=streams.batches))


class FreeIntercept(ObjectiveEngine):
    """The intercept has next to no penalty."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        penalty = self._penalty * np.append(np.ones(len(self._penalty) - 1), 0.01)
        self._many = [
            BatchedProblem(self._task.rows, signs, penalty) for signs in self._task.signs
        ]


class NotCorrected(ObjectiveEngine):
    """Weights are left as single precision found them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._many = [Rounded(self._task.rows, s, self._penalty) for s in self._task.signs]


class Rounded(BatchedProblem):
    """Minimizers to seven digits."""

    def minimize(self, linear: Any) -> Minimizers:
        found = super().minimize(linear)
        return replace(found, weights=found.weights.astype(np.float32).astype(np.float64))


class NotPutBack(ObjectiveEngine):
    """Models are sorted to be solved, and stay sorted, one class unlike another."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._many = [Sorted(self._task.rows, s, self._penalty) for s in self._task.signs]


class Sorted(BatchedProblem):
    """Minimizers in the order of their noise."""

    def minimize(self, linear: Any) -> Minimizers:
        order = np.argsort(np.linalg.norm(linear, axis=1))
        return super().minimize(linear[order])


class Transposed(ObjectiveEngine):
    """What is laid out by people is read as if it were by runs."""

    def scores(self, count: int, streams: Streams) -> Floats:
        found = super().scores(count, streams)
        return np.ascontiguousarray(np.swapaxes(found, 0, 1)).reshape(found.shape)


class ClippedPeople(ObjectiveEngine):
    """People are shortened as if they were records."""

    def __init__(self, model: Any, train: Any, X: Any) -> None:
        super().__init__(model, train, clip_rows(X, model.norm, fit_intercept=False))


class OutputOnce(OutputEngine):
    """Noise is drawn by the first chunk, and kept."""

    kept: Floats | None = None

    def scores(self, count: int, streams: Streams) -> Floats:
        if self.kept is None:
            self.kept = super().scores(count, streams)
        return self.kept


class OutputQuieter(OutputEngine):
    """A tenth of the noise is missing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        law = self._noise
        self._noise = replace(
            law,
            noise_scale=law.noise_scale and 0.9 * law.noise_scale,
            noise_std=law.noise_std and 0.9 * law.noise_std,
        )


class OutputReused(OutputEngine):
    """One draw for all runs of a chunk."""

    def scores(self, count: int, streams: Streams) -> Floats:
        return np.repeat(super().scores(1, streams), count, axis=0)


class OutputNotSpread(OutputEngine):
    """The Gaussian noise of two classes, for any number of them."""

    def __init__(self, model: Any, train: Any, X: Any) -> None:
        super().__init__(model, train, X)
        if self._noise.noise_std is not None:
            self._noise = model.noise(self._task.norm, 2)
