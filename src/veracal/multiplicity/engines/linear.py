"""Noisy gradient descent of linear models, many runs side by side.

Runs of perturbed logistic regression: one problem, many noise vectors.
"""

import copy
import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import ThreadpoolController

from veracal import _checks
from veracal._types import Floats
from veracal.data import Dataset
from veracal.multiplicity.engines.base import (
    AuditEngine,
    Kind,
    Streams,
    checked_people,
    fingerprint,
    in_order,
    told,
)
from veracal.training import (
    BatchedFits,
    BatchedProblem,
    ObjectivePerturbation,
    OutputPerturbation,
    PerturbedClassifier,
    PrivateLogisticRegression,
    apart_logits,
    bytes_of_model,
    descend,
    fits_of,
    minimize,
    normals,
    own_batches,
    shared_batches,
    spherical_gamma,
)

_TOGETHER = 256  # runs
_SCORES = 1 << 23  # entries of scores that are held together
_CACHE = 1 << 21  # bytes that the models of a part work on


class DescentEngine(AuditEngine):
    """Runs of :class:`~veracal.training.PrivateLogisticRegression`, side by side.

    Each run is a fit as ``fit_records`` would make it, by DP-SGD, DP-Adam or DP-SGLD, but for
    rounding; all take their steps together, along an axis of models
    (:mod:`veracal.training.batched`). Noise is never shared. When noise alone is varied,
    all runs have the same batches; else each has its own. Linear models start at zero or at
    ``initial``, where there is nothing to draw: to vary "all" varies noise and batches.

    Parameters
    ----------
    model : PrivateLogisticRegression
        Unfitted. Its ``random_state`` is not used.
    train : Dataset
        To train on, with a declared size unless the model or the relation gives it.
    X : array of shape (people, d)
        Whom to score.
    threads : int, optional
        How many to use; by default one for each core. Scores do not depend on it.

    Raises
    ------
    ValueError
        If runs cannot be taken together: with an adaptive clip, a hook, an update rule of
        one's own, noise before the clip, rows on disk, or a part of the protection taken out.

    Examples
    --------
    >>> from veracal.multiplicity.engines.base import Seed
    >>> rows = np.repeat([[-1.0, 0.5], [1.0, 0.5]], 50, axis=0)
    >>> train = Dataset(rows, np.repeat([0, 1], 50), ("well", "ill"), size=100)
    >>> model = PrivateLogisticRegression(epsilon=1.0, delta=1e-3)
    >>> engine = DescentEngine(model, train, rows[::50])
    >>> engine.scores(3, Seed.of(0).streams(0)).shape
    (3, 2)
    """

    name = "batched descent"
    kind: Kind = "logit"

    def __init__(
        self,
        model: PrivateLogisticRegression,
        train: Dataset,
        X: ArrayLike,
        *,
        threads: int | None = None,
    ) -> None:
        if not isinstance(model, PrivateLogisticRegression):
            raise ValueError(
                f"Expected a PrivateLogisticRegression, got {type(model).__name__}. "
                "RetrainEngine takes any estimator."
            )
        self._threads = (os.cpu_count() or 1) if threads is None else threads
        _checks.whole(threads=self._threads)
        self._model, self._train = model, train
        self._fits = fits_of(model, train)
        self._rows = checked_people(X, train.X.shape[1])
        self.classes = train.classes
        self.people = len(self._rows)
        outputs = len(self._fits.start)
        self.together = int(np.clip(_SCORES // (outputs * self.people), 1, _TOGETHER))

    def scores(self, count: int, streams: Streams) -> Floats:
        """Logits of some runs, in float64; one too large for it is the largest number."""
        weights, d = self.weights(count, streams).astype(np.float64), self._rows.shape[1]
        outputs = weights.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            sums = (weights[:, :, :d].reshape(-1, d) @ self._rows.T).reshape(
                count, outputs, self.people
            )
            if weights.shape[2] > d:
                sums += weights[:, :, -1:]
        if not np.isfinite(sums).all():
            np.nan_to_num(sums, copy=False)
        found = sums[:, 0] if outputs == 1 else np.ascontiguousarray(np.moveaxis(sums, 1, 2))
        return in_order(found, self._fits.classes.tolist(), self.classes)

    def weights(self, count: int, streams: Streams) -> Floats:
        """Weights of some runs, of shape (count, outputs, d), or d + 1 with an intercept.

        Raises
        ------
        ValueError
            If a run has left what numbers can hold.
        """
        own = streams.varied != "noise"
        parts = _parts(count, _CACHE // bytes_of_model(self._fits, own=own))
        noise = [_quick(rng) for rng in streams.noise.spawn(len(parts))]
        if own:
            batches = streams.batches.spawn(len(parts))
        else:
            batches = [copy.deepcopy(streams.batches) for _ in parts]
        # Threads of the linear algebra would wait for each other.
        with (
            _libraries().limit(limits=1, user_api="blas"),
            ThreadPoolExecutor(min(self._threads, len(parts))) as pool,
        ):
            found = pool.map(partial(_run, self._fits, own), parts, batches, noise)
            weights = np.concatenate(list(found))
        if not np.isfinite(weights).all():
            raise ValueError(
                "Expected weights that stay finite, got some that do not. Take a lower "
                "learning rate, or less weight decay."
            )
        return weights

    def settings(self) -> dict[str, Any]:
        """Parameters of the model, and hashes of records, people and start."""
        return {
            "engine": self.name,
            "model": type(self._model).__name__,
            "parameters": told(self._model)["parameters"],
            "expected_batch": float(self._fits.descent.expected_batch),
            "classes": list(self.classes),
            "records": fingerprint(self._fits.rows, self._fits.codes),
            "start": fingerprint(self._fits.start),
            "people": fingerprint(self._rows),
        }


@cache
def _libraries() -> Any:
    """Libraries with threads of their own; to find them on disk takes a while."""
    return ThreadpoolController()


def _quick(rng: np.random.Generator) -> np.random.Generator:
    """A generator from the same seed, which draws normals in four fifths of the time."""
    seed = rng.bit_generator.seed_seq
    assert isinstance(seed, np.random.SeedSequence)
    return np.random.Generator(np.random.SFC64(seed))


def _run(
    fits: BatchedFits,
    own: bool,
    models: int,
    coins: np.random.Generator,
    noise: np.random.Generator,
) -> Floats:
    """Weights of the models of one part."""
    drawn = own_batches(fits, models, rng=coins) if own else shared_batches(fits, rng=coins)
    return descend(fits, models, drawn, normals(fits, models, rng=noise))


def _parts(count: int, most: int) -> list[int]:
    """Models of each part: two parts or more, so that two cores have something to do."""
    parts = min(count, max(2, math.ceil(count / max(1, most))))
    return [len(part) for part in np.array_split(np.arange(count), parts)]


_PERTURBED_TOGETHER = 2048
_NUMBERS = 1 << 23  # scores that are held at a time


class _Perturbed(AuditEngine):
    """What both have in common: the binary problems, and people scored by their weights."""

    kind = "logit"

    def __init__(self, model: PerturbedClassifier, train: Dataset, X: ArrayLike) -> None:
        self._task = model.binary(train)
        self._X = checked_people(X, train.X.shape[1])
        self._model = model
        self.classes = train.classes
        self.people = len(self._X)
        each = max(1, self.people * len(self._task.signs))
        self.together = max(1, min(_PERTURBED_TOGETHER, _NUMBERS // each))

    def settings(self) -> dict[str, Any]:
        """Parameters of the model, and hashes of records and people."""
        task, rows = self._task, self._task.rows
        return {
            "engine": self.name,
            "model": type(self._model).__name__,
            "parameters": told(self._model)["parameters"],
            "norm": task.norm,
            "classes": list(self.classes),
            "records": fingerprint(rows[0 : rows.shape[0]], task.signs),
            "people": fingerprint(self._X),
        }

    def _scores(self, weights: Floats) -> Floats:
        """Logits of people by weights of shape (runs, models, d), as the estimator has them."""
        coef = weights[:, :, :-1] if self._model.fit_intercept else weights
        runs, models, d = coef.shape
        sums = (coef.reshape(-1, d) @ self._X.T).reshape(runs, models, self.people)
        if self._model.fit_intercept:
            sums += weights[:, :, -1:]
        found = sums[:, 0] if models == 1 else np.moveaxis(apart_logits(sums), 1, 2)
        return in_order(found, self._task.classes.tolist(), self.classes)


class OutputEngine(_Perturbed):
    r"""Output perturbation, exact: the weights without noise are found once.

    .. math:: w_r = \operatorname*{argmin}_w F(w) + b_r,

    with noise of the model's own distribution, Gaussian or of Gamma length, both on the grid
    of the released weights.

    Parameters
    ----------
    model : OutputPerturbation
        Not fitted. Its ``random_state`` is not used.
    train : Dataset
    X : array of shape (people, d)
        Whom to score.
    """

    name = "re-noise"

    def __init__(self, model: OutputPerturbation, train: Dataset, X: ArrayLike) -> None:
        super().__init__(model, train, X)
        task = self._task
        self._exact = model.exact(task.rows, task.signs, task.norm)
        self._noise = model.noise(task.norm, len(task.classes))

    def scores(self, count: int, streams: Streams) -> Floats:
        """Logits of runs that differ by noise alone."""
        return self._scores(self._noise.simulate(self._exact, count, rng=streams.noise))


class ObjectiveEngine(_Perturbed):
    r"""Objective perturbation: the minimizers of m objectives that differ by their noise.

    .. math:: w_r = \operatorname*{argmin}_w \sum_i \ln(1 + e^{-s_i w \cdot x_i})
        + \tfrac12 \sum_j \lambda_j w_j^2 + b_r \cdot w,

    each as exact as one fit is. The rule is the model's, of diffprivlib 0.6.2 too.

    Parameters
    ----------
    model : ObjectivePerturbation
        Not fitted. Its ``random_state`` is not used.
    train : Dataset
    X : array of shape (people, d)
        Whom to score.
    """

    name = "batched objective perturbation"

    def __init__(self, model: ObjectivePerturbation, train: Dataset, X: ArrayLike) -> None:
        super().__init__(model, train, X)
        self._used = model.perturbation(self._task.norm, len(self._task.classes))
        self._penalty = model.penalties(self._used, self._task.rows.shape[1])
        rows, few = self._task.rows, BatchedProblem.fits(self._task.rows)
        self._many = [
            BatchedProblem(rows, signs, self._penalty) for signs in self._task.signs if few
        ]

    def scores(self, count: int, streams: Streams) -> Floats:
        """Logits of runs, each minimized with noise of its own."""
        task = self._task
        k, d = len(task.signs), task.rows.shape[1]
        noise = spherical_gamma(d, self._used.noise_scale, rng=streams.noise, size=count * k)
        linear = noise.reshape(count, k, d)
        weights = np.empty_like(linear)
        for c, many in enumerate(self._many):
            weights[:, c] = many.minimize(linear[:, c]).weights
        for c, signs in enumerate(task.signs[len(self._many) :]):
            weights[:, c] = minimize(task.rows, signs, linear[:, c], penalty=self._penalty)
        return self._scores(weights)
