"""Engines for linear models: DP-SGD, objective and output perturbation, many runs at a time."""

import copy
import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._threads import threadpool_limits
from veracal._types import Floats
from veracal.data import Dataset
from veracal.multiplicity.engines.base import (
    AuditEngine,
    Kind,
    Streams,
    describe,
    fingerprint,
    reorder_classes,
    validate_rows,
)
from veracal.training import (
    BatchedFits,
    BatchedProblem,
    ObjectivePerturbation,
    OutputPerturbation,
    PerturbedClassifier,
    PrivateLogisticRegression,
    bytes_per_model,
    independent_batches,
    minimize,
    one_vs_rest_logits,
    prepare_fits,
    shared_batches,
    spherical_gamma,
    standard_normals,
    train_batched,
)

_MAX_MODELS = 256  # runs trained at once
_MAX_PERTURBED_RUNS = 2048
_MAX_SCORES = 1 << 23  # entries of scores held at once
_CACHE_BYTES = 1 << 21  # bytes of a batch's working set


class DPSGDEngine(AuditEngine):
    """Batched runs of :class:`~veracal.training.PrivateLogisticRegression`.

    Each run equals, up to rounding, a fit by ``fit_records`` with DP-SGD, DP-Adam or DP-SGLD;
    the models take their steps together, along a batch axis (:mod:`veracal.training.batched`).
    Noise is never shared. When only noise varies, all runs share their batches; otherwise each
    has its own. Linear models start at zero or at ``initial``, so that "all" varies noise and
    batches.

    Parameters
    ----------
    model : PrivateLogisticRegression
        Not fitted. Its ``random_state`` is not used.
    train : Dataset
        Training records, with a declared size unless the model or the relation implies it.
    X : array of shape (individuals, d)
        Rows to score.
    threads : int, optional
        By default one for each core. Scores do not depend on it.

    Raises
    ------
    ValueError
        If runs cannot be batched: with an adaptive clip rule, a hook, a custom optimizer, noise
        before clipping, rows on disk, or part of the protection disabled.

    Examples
    --------
    >>> from veracal.multiplicity.engines.base import Seed
    >>> rows = np.repeat([[-1.0, 0.5], [1.0, 0.5]], 50, axis=0)
    >>> train = Dataset(rows, np.repeat([0, 1], 50), ("well", "ill"), size=100)
    >>> model = PrivateLogisticRegression(epsilon=1.0, delta=1e-3)
    >>> engine = DPSGDEngine(model, train, rows[::50])
    >>> engine.scores(3, Seed.from_random_state(0).streams(0)).shape
    (3, 2)
    """

    name = "batched DP-SGD"
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
        self._fits = prepare_fits(model, train)
        self._rows = validate_rows(X, train.X.shape[1])
        self.classes = train.classes
        self.individuals = len(self._rows)
        outputs = len(self._fits.start)
        self.runs_per_call = int(
            np.clip(_MAX_SCORES // (outputs * self.individuals), 1, _MAX_MODELS)
        )

    def scores(self, count: int, streams: Streams) -> Floats:
        """Logits of some runs in float64; overflows become the largest number."""
        weights, d = self.weights(count, streams).astype(np.float64), self._rows.shape[1]
        outputs = weights.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            sums = (weights[:, :, :d].reshape(-1, d) @ self._rows.T).reshape(
                count, outputs, self.individuals
            )
            if weights.shape[2] > d:
                sums += weights[:, :, -1:]
        if not np.isfinite(sums).all():
            np.nan_to_num(sums, copy=False)
        logits = sums[:, 0] if outputs == 1 else np.ascontiguousarray(np.moveaxis(sums, 1, 2))
        return reorder_classes(logits, self._fits.classes.tolist(), self.classes)

    def weights(self, count: int, streams: Streams) -> Floats:
        """Weights of some runs, of shape (count, outputs, d), or d + 1 with an intercept.

        Raises
        ------
        ValueError
            If the weights of a run diverge.
        """
        separate_batches = streams.varied != "noise"
        per_part = _CACHE_BYTES // bytes_per_model(self._fits, own=separate_batches)
        # At least two parts, so that two cores are busy.
        pieces = min(count, max(2, math.ceil(count / max(1, per_part))))
        parts = [len(part) for part in np.array_split(np.arange(count), pieces)]
        # SFC64 draws normals in four fifths of the time of the default generator.
        seeds: Any = streams.noise.bit_generator.seed_seq
        noise = [np.random.Generator(np.random.SFC64(seed)) for seed in seeds.spawn(len(parts))]
        if separate_batches:
            batches = streams.batches.spawn(len(parts))
        else:
            batches = [copy.deepcopy(streams.batches) for _ in parts]
        # One BLAS thread each: more would contend with each other.
        with (
            threadpool_limits(1, user_api="blas"),
            ThreadPoolExecutor(min(self._threads, len(parts))) as pool,
        ):
            results = pool.map(
                partial(_train_models, self._fits, separate_batches), parts, batches, noise
            )
            weights = np.concatenate(list(results))
        if not np.isfinite(weights).all():
            raise ValueError(
                "Expected weights that stay finite, but some runs diverged. Use a lower "
                "learning rate or less weight decay."
            )
        return weights

    def settings(self) -> dict[str, Any]:
        """Parameters of the model, and hashes of the data and the initial weights."""
        return {
            "engine": self.name,
            "model": type(self._model).__name__,
            "parameters": describe(self._model)["parameters"],
            "expected_batch": float(self._fits.dp_sgd.expected_batch),
            "classes": list(self.classes),
            "records": fingerprint(self._fits.rows, self._fits.codes),
            "start": fingerprint(self._fits.start),
            "individuals": fingerprint(self._rows),
        }


def _train_models(
    fits: BatchedFits,
    separate_batches: bool,
    models: int,
    batch_rng: np.random.Generator,
    noise_rng: np.random.Generator,
) -> Floats:
    """Weights of a batch of models."""
    batches = (
        independent_batches(fits, models, rng=batch_rng)
        if separate_batches
        else shared_batches(fits, rng=batch_rng)
    )
    return train_batched(fits, models, batches, standard_normals(fits, models, rng=noise_rng))


class _PerturbationEngine(AuditEngine):
    """Common part of both perturbation engines: the binary problems, and scoring by weights."""

    kind = "logit"

    def __init__(self, model: PerturbedClassifier, train: Dataset, X: ArrayLike) -> None:
        self._task = model.binary(train)
        self._X = validate_rows(X, train.X.shape[1])
        self._model = model
        self.classes = train.classes
        self.individuals = len(self._X)
        entries = max(1, self.individuals * len(self._task.signs))
        self.runs_per_call = max(1, min(_MAX_PERTURBED_RUNS, _MAX_SCORES // entries))

    def settings(self) -> dict[str, Any]:
        """Parameters of the model, and hashes of the records and individuals."""
        task, rows = self._task, self._task.rows
        return {
            "engine": self.name,
            "model": type(self._model).__name__,
            "parameters": describe(self._model)["parameters"],
            "norm": task.norm,
            "classes": list(self.classes),
            "records": fingerprint(rows[0 : rows.shape[0]], task.signs),
            "individuals": fingerprint(self._X),
        }

    def _scores(self, weights: Floats) -> Floats:
        """Logits from weights of shape (runs, models, d), computed as the estimator does."""
        coef = weights[:, :, :-1] if self._model.fit_intercept else weights
        runs, models, d = coef.shape
        sums = (coef.reshape(-1, d) @ self._X.T).reshape(runs, models, self.individuals)
        if self._model.fit_intercept:
            sums += weights[:, :, -1:]
        logits = sums[:, 0] if models == 1 else np.moveaxis(one_vs_rest_logits(sums), 1, 2)
        return reorder_classes(logits, self._task.classes.tolist(), self.classes)


class OutputEngine(_PerturbationEngine):
    r"""Output perturbation, exactly: the weights without noise are computed once.

    .. math:: w_r = \operatorname*{argmin}_w F(w) + b_r,

    with noise from the model's own distribution, Gaussian or of Gamma-distributed length, both
    on the grid of the released weights.

    Parameters
    ----------
    model : OutputPerturbation
    train, X
        As of :class:`DPSGDEngine`.
    """

    name = "re-noise"

    def __init__(self, model: OutputPerturbation, train: Dataset, X: ArrayLike) -> None:
        super().__init__(model, train, X)
        task = self._task
        self._exact = model.exact(task.rows, task.signs, task.norm)
        self._noise = model.noise(task.norm, len(task.classes))

    def scores(self, count: int, streams: Streams) -> Floats:
        """Logits of runs that differ only by noise."""
        return self._scores(self._noise.simulate(self._exact, count, rng=streams.noise))


class ObjectiveEngine(_PerturbationEngine):
    r"""Objective perturbation: the minimizers of m objectives that differ in their noise.

    .. math:: w_r = \operatorname*{argmin}_w \sum_i \ln(1 + e^{-s_i w \cdot x_i})
        + \tfrac12 \sum_j \lambda_j w_j^2 + b_r \cdot w,

    each as exact as a single fit. The calibration of the noise is the model's, that of
    diffprivlib 0.6.2 included.

    Parameters
    ----------
    model : ObjectivePerturbation
    train, X
        As of :class:`DPSGDEngine`.
    """

    name = "batched objective perturbation"

    def __init__(self, model: ObjectivePerturbation, train: Dataset, X: ArrayLike) -> None:
        super().__init__(model, train, X)
        self._used = model.perturbation(self._task.norm, len(self._task.classes))
        self._penalty = model.penalties(self._used, self._task.rows.shape[1])
        rows, fits_batched = self._task.rows, BatchedProblem.fits(self._task.rows)
        self._problems = [
            BatchedProblem(rows, signs, self._penalty)
            for signs in self._task.signs
            if fits_batched
        ]

    def scores(self, count: int, streams: Streams) -> Floats:
        """Logits of runs, each minimized with its own noise."""
        task = self._task
        k, d = len(task.signs), task.rows.shape[1]
        noise = spherical_gamma(d, self._used.noise_scale, rng=streams.noise, size=count * k)
        linear = noise.reshape(count, k, d)
        weights = np.empty_like(linear)
        for c, problem in enumerate(self._problems):
            weights[:, c] = problem.minimize(linear[:, c]).weights
        for c, signs in enumerate(task.signs[len(self._problems) :]):
            weights[:, c] = minimize(task.rows, signs, linear[:, c], penalty=self._penalty)
        return self._scores(weights)
