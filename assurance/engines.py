"""Faulty engines for perturbed models."""

from dataclasses import replace
from typing import Any

import numpy as np

from veracal._types import Floats
from veracal.multiplicity.engines.base import Streams
from veracal.multiplicity.engines.linear import ObjectiveEngine, OutputEngine
from veracal.training.batched_newton import BatchedProblem, Minimizers
from veracal.training.perturbation import clip_rows


class Altered(ObjectiveEngine):
    """Objective perturbation that uses altered noise."""

    def scores(self, count: int, streams: Streams) -> Floats:
        """Draw as usual, and alter the noise."""
        return super().scores(count, replace(streams, noise=self.drawing(count, streams)))

    def drawing(self, count: int, streams: Streams) -> Any:
        """The replacement generator."""
        return Rewritten(streams.noise, lambda drawn: self.altered(drawn, count))

    def altered(self, drawn: Floats, count: int) -> Floats:
        """Alter draws with a row for each run and class."""
        return drawn


class Rewritten:
    """A generator that alters its draws."""

    def __init__(self, rng: np.random.Generator, change: Any) -> None:
        self._rng, self._change = rng, change

    def standard_normal(self, size: Any) -> Floats:
        """Normal draws, changed."""
        result: Floats = self._change(self._rng.standard_normal(size))
        return result

    def gamma(self, shape: float, scale: float, size: Any) -> Floats:
        """Gamma draws, changed."""
        result: Floats = self._change(self._rng.gamma(shape, scale, size))
        return result

    def normal(self, mean: float, std: float, size: Any) -> Floats:
        """Normal draws, changed."""
        result: Floats = self._change(self._rng.normal(mean, std, size))
        return result


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
        self._problems = [
            BatchedProblem(self._task.rows, signs, penalty) for signs in self._task.signs
        ]


class NotCorrected(ObjectiveEngine):
    """Weights are left as single precision found them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._problems = [Rounded(self._task.rows, s, self._penalty) for s in self._task.signs]


class Rounded(BatchedProblem):
    """Minimizers to seven digits."""

    def minimize(self, linear: Any) -> Minimizers:
        result = super().minimize(linear)
        return replace(result, weights=result.weights.astype(np.float32).astype(np.float64))


class NotPutBack(ObjectiveEngine):
    """Models stay in the order in which they were solved."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._problems = [Sorted(self._task.rows, s, self._penalty) for s in self._task.signs]


class Sorted(BatchedProblem):
    """Minimizers in the order of their noise."""

    def minimize(self, linear: Any) -> Minimizers:
        order = np.argsort(np.linalg.norm(linear, axis=1))
        return super().minimize(linear[order])


class Transposed(ObjectiveEngine):
    """Scores laid out by individuals are read as if by runs."""

    def scores(self, count: int, streams: Streams) -> Floats:
        result = super().scores(count, streams)
        return np.ascontiguousarray(np.swapaxes(result, 0, 1)).reshape(result.shape)


class ClippedIndividuals(ObjectiveEngine):
    """Individuals are clipped as if they were training records."""

    def __init__(self, model: Any, train: Any, X: Any) -> None:
        super().__init__(model, train, clip_rows(X, model.norm, fit_intercept=False))


class OutputOnce(OutputEngine):
    """Noise is drawn once and reused for every call."""

    kept: Floats | None = None

    def scores(self, count: int, streams: Streams) -> Floats:
        if self.kept is None:
            self.kept = super().scores(count, streams)
        return self.kept


class OutputQuieter(OutputEngine):
    """A tenth of the noise is missing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        noise_distribution = self._noise
        self._noise = replace(
            noise_distribution,
            noise_scale=noise_distribution.noise_scale and 0.9 * noise_distribution.noise_scale,
            noise_std=noise_distribution.noise_std and 0.9 * noise_distribution.noise_std,
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
