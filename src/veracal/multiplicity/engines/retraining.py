"""Retrain any classifier or training function, run by run, on one machine or a cluster.

Also the scores of any fitted classifier, with one column for each declared class.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from veracal import _checks
from veracal._types import Array, Floats
from veracal.calibration import MappedPredictions
from veracal.data import Dataset, Label, MappedRows, check_features, encode_labels
from veracal.errors import DataError, RunError, VeracalError
from veracal.multiplicity.engines.base import (
    AuditEngine,
    Kind,
    Seed,
    Streams,
    describe,
    fingerprint,
    qualified_name,
)
from veracal.multiplicity.engines.workers import TaskExecutor, one_core, one_line, run_tasks

_MAX_LOGIT = 0.9 * np.finfo(np.float64).max  # leaves headroom for sums
_ROUNDING = 1e-5  # rounding error of probabilities in float32
_METHODS: dict[Kind, tuple[str, ...]] = {
    "logit": ("logits", "decision_function"),
    "probability": ("predict_proba", "predict"),
}
_PREFERENCE = ("logits", "predict_proba", "decision_function", "predict")


def score_kind(model: Any) -> Kind:
    """The kind of scores that a classifier gives, known before it is fitted.

    Logits if the classifier has a method ``logits``; else probabilities; else its
    ``decision_function``, treated as logits; else decisions, as probabilities 0 and 1.
    """
    last = model
    while isinstance(last, Pipeline) and last.steps:
        last = last.steps[-1][1]
    if isinstance(last, MappedPredictions):
        return "probability"  # only known after the fit whether its map gives logits
    for method in _PREFERENCE:
        if _has_method(model, method):
            return next(kind for kind, methods in _METHODS.items() if method in methods)
    raise ValueError(f"Expected a classifier with {' or '.join(_PREFERENCE)}, got {model!r}.")


def predict_scores(
    model: Any, X: Array | MappedRows, classes: tuple[Label, ...], kind: Kind
) -> Array:
    """Scores of rows by a fitted classifier, of shape (n, k), in the order of ``classes``.

    The model's ``classes_`` give the order of its columns. A class that it does not know gets
    probability zero, or the smallest logit.
    """
    methods = _METHODS[kind]
    method = next((method for method in methods if _has_method(model, method)), None)
    if method is None:
        raise ValueError(f"Expected a classifier with {' or '.join(methods)}, got {model!r}.")
    given = np.asarray(getattr(model, method)(X))
    if method == "predict":
        return np.eye(len(classes))[encode_labels(given, classes, "a decision")]
    known = getattr(model, "classes_", None)
    if known is None:
        raise ValueError(f"Expected a fitted classifier with classes_, got {model!r}.")
    columns = encode_labels(known, classes, "classes_")
    if kind == "logit" and given.ndim == 1 and len(columns) == 2:
        given = np.stack([np.zeros(len(given)), given], axis=1)
    if given.ndim != 2 or given.shape[1] != len(columns):
        raise ValueError(
            f"Expected one column of scores for each of {len(columns)} classes of the model, "
            f"got shape {given.shape}."
        )
    missing = 0.0 if kind == "probability" else -_MAX_LOGIT
    result = np.full((len(given), len(classes)), missing)
    result[:, columns] = given
    return result


def validate_scores(scores: Any, individuals: int, k: int, kind: Kind, run_name: str) -> Floats:
    """Scores in the form of an engine: finite, and of shape (individuals,) for two classes.

    Of the second of two classes, or of every class. Logits beyond the range of floats are
    clipped; probabilities of three or more classes are divided by their sum, to correct
    rounding.

    Raises
    ------
    DataError
        If the scores are NaN, are not probabilities, or have the wrong shape.
    """
    try:
        scores = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as cause:
        raise DataError(
            run_name, "an array of scores", f"{type(scores).__name__}", "Return numbers."
        ) from cause
    single_column = k == 2 and scores.shape == (individuals,)
    if not single_column and scores.shape != (individuals, k):
        expected = f"shape {(individuals, k)}" + f" or {(individuals,)}" * (k == 2)
        raise DataError(
            run_name,
            expected,
            f"shape {scores.shape}",
            "Give one row of scores for each individual.",
        )
    if np.isnan(scores).any():
        first = int(np.argwhere(np.isnan(scores))[0][0])
        raise DataError(
            run_name,
            "scores that are numbers",
            f"NaN for individual {first}",
            "This run was not counted. Check how the model handles that row.",
        )
    if kind == "probability":
        return _normalize_probabilities(scores, run_name)
    finite: Floats = np.clip(scores, -_MAX_LOGIT, _MAX_LOGIT)
    if finite.ndim == 1 or finite.shape[1] > 2:
        return finite
    halves = finite[:, 1] / 2 - finite[:, 0] / 2  # the full difference could overflow
    difference: Floats = 2 * np.clip(halves, -_MAX_LOGIT / 2, _MAX_LOGIT / 2)
    return difference


def _normalize_probabilities(scores: Floats, run_name: str) -> Floats:
    """Probabilities; of two classes, those of the second."""
    sums = np.ones(len(scores)) if scores.ndim == 1 else scores.sum(axis=1)
    outside = (scores < -_ROUNDING) | (scores > 1 + _ROUNDING)
    if outside.any() or np.abs(sums - 1).max(initial=0) > _ROUNDING:
        raise DataError(
            run_name,
            "probabilities between 0 and 1 that sum to 1",
            f"values from {scores.min():g} to {scores.max():g}, "
            f"sums from {sums.min():g} to {sums.max():g}",
            "If these are logits, pass kind='logit'.",
        )
    clipped: Floats = np.clip(scores, 0, 1)
    if clipped.ndim == 1 or clipped.shape[1] == 2:
        return clipped.reshape(len(clipped), -1)[:, -1]
    normalized: Floats = clipped / clipped.sum(axis=1, keepdims=True)
    return normalized


def _has_method(model: Any, method: str) -> bool:
    """Whether a model has a method whose columns are one per class, not one per pair."""
    if method == "decision_function":
        parameters: dict[str, Any] = getattr(model, "get_params", dict)()
        for name, value in parameters.items():
            if name.split("__")[-1] == "decision_function_shape" and value == "ovo":
                return False
    return callable(getattr(model, method, None))


_SEEDS = 2**31  # every library accepts these as random_state
_PENDING_BYTES = 1 << 26  # bytes of scores that may wait to be read


@dataclass(frozen=True, eq=False)
class RunContext:
    """Argument of a training function: its records and the randomness of the run.

    Attributes
    ----------
    number : int or None
        Number of this run, for messages; None outside an audit. All randomness must come from
        ``streams`` or :meth:`seed`.
    streams : Streams
        Generators of this run.
    records : Dataset
        Records to train on.
    individuals : array of shape (individuals, d)
        Rows to score.
    """

    number: int | None
    streams: Streams
    records: Dataset
    individuals: Array | MappedRows

    def seed(self, purpose: Literal["initial", "batches", "noise"]) -> int:
        """A seed in [0, 2³¹) from one of the streams; repeated calls give the same seed."""
        _checks.one_of(("initial", "batches", "noise"), purpose=purpose)
        rng: np.random.Generator = getattr(self.streams, purpose)
        own = rng.bit_generator.seed_seq
        assert isinstance(own, np.random.SeedSequence)
        # A child key that spawn() never uses, so that no generator of the run repeats it.
        child = np.random.SeedSequence(own.entropy, spawn_key=(*own.spawn_key, _SEEDS))
        return int(child.generate_state(1)[0]) % _SEEDS


Training = Callable[[RunContext], Any]


class RetrainEngine(AuditEngine):
    """Retrains any classifier or training function from the start for each run.

    Runs are independent of each other and of where they are computed: run i draws only from the
    streams of number i, with a fixed number of threads. Its scores are the same on loky, Ray
    and Dask, with any number of workers, and after an audit was interrupted and resumed.

    Parameters
    ----------
    model : classifier or function
        A classifier with scikit-learn's ``get_params`` and ``fit``. Every run fits a clone in
        which each ``random_state``, including nested ones, is a fresh seed; such fits are not
        private and say so. A classifier with ``fit_records``, like all of
        :mod:`veracal.training`, gets the data set with its declared facts; others get rows and
        labels. Or a function of a :class:`RunContext` that returns scores of shape
        (individuals,) or (individuals, k), or a fitted classifier.
    train : Dataset
        Records to train on.
    X : array of shape (individuals, d)
        Rows to score.
    jobs : int, optional
        Concurrent runs; 1 uses this process. None: the number of cores.
    backend : {"loky", "ray", "dask"}, optional
        None: the active ``joblib.parallel_config``, or local processes (loky). Ray and Dask
        come with the extra ``cluster``. Start them as their documentation says, with
        ``ray.init()`` or ``dask.distributed.Client()``.
    address : str, optional
        Address of a Ray or Dask cluster to connect to.
    threads : int
        Threads of linear algebra in each run.
    kind : {"logit", "probability"}, optional
        Kind of the scores. None: for a classifier what it offers, logits before probabilities;
        for a function, probabilities.
    version : str, optional
        Version of the model or the function, so that a resumed audit notices a change.

    Notes
    -----
    One ``random_state`` seeds everything that a classifier draws, so that it only supports
    ``varied="all"``. Randomness from other sources, such as a global generator, makes runs that
    differ but cannot be repeated. Seeds have 31 bits: among m runs, two coincide with
    probability at most m²/2³² (0.6 % for 5,000), and then count twice.

    Examples
    --------
    >>> from veracal.data import load
    >>> from veracal.training import PrivateLogisticRegression
    >>> data = load("breast-cancer")
    >>> engine = RetrainEngine(PrivateLogisticRegression(), data, data.X[:5], jobs=1)
    >>> engine.scores(1, Seed.from_random_state(0).streams(0)).shape
    (1, 5)
    """

    name = "retrain"
    runs_per_call = 1

    def __init__(
        self,
        model: Any,
        train: Dataset,
        X: Any,
        *,
        jobs: int | None = None,
        backend: Literal["loky", "ray", "dask"] | None = None,
        address: str | None = None,
        threads: int = 1,
        kind: Kind | None = None,
        version: str | None = None,
    ) -> None:
        self._executor = TaskExecutor(backend, jobs, address, threads)
        if kind is not None:
            _checks.one_of(_METHODS, kind=kind)
        is_class, fits = isinstance(model, type), callable(getattr(model, "fit", None))
        is_function = not is_class and not fits and callable(model)
        has_parameters = callable(getattr(model, "get_params", None))
        if not is_function and (is_class or not fits or not has_parameters):
            raise ValueError(
                "Expected a classifier with fit and get_params, as scikit-learn's have, or a "
                f"function of a RunContext, got {model!r}. Wrap anything else in a function "
                "that trains it."
            )
        own: Kind = "probability" if is_function else score_kind(model)
        individuals = _validate_individuals(train, X)
        self._work = _TrainingTask(
            model if is_function else clone(model), train, individuals, kind or own, is_function
        )
        self._version = version
        self.classes = train.classes
        self.individuals = len(individuals)
        self.kind = self._work.kind

    def scores(self, count: int, streams: Streams) -> Floats:
        """Scores of one run, trained in this process."""
        if count != 1:
            raise ValueError(f"Expected runs one at a time, got count={count!r}.")
        self._work.check(streams.varied)
        with one_core(self._executor.threads):
            return self._work.scores(None, streams)[None]

    def stream(self, pending: Iterable[range], seed: Seed) -> Iterator[tuple[range, Floats]]:
        """Scores of runs as they finish, one run at a time, in any order.

        Closing the iterator stops the runs in progress.

        Raises
        ------
        RunError
            If a run raises an error, with its number.
        DataError
            If the scores of a run are invalid.
        WorkerError
            If a worker dies, or the cluster cannot be reached.
        """
        self._work.check(seed.varied)
        numbers = (number for runs in pending for number in runs)
        if self._executor.in_process:
            for number in numbers:
                with one_core(self._executor.threads):
                    scores = self._work.scores(number, seed.streams(number))
                yield range(number, number + 1), scores[None]
            return
        max_pending = max(1, _PENDING_BYTES // (8 * self.individuals * len(self.classes)))
        tasks = ((number, seed) for number in numbers)
        results = run_tasks(
            _attempt_run, self._work, tasks, self._executor, max_pending=max_pending
        )
        try:
            for number, scores in results:
                if isinstance(scores, VeracalError):
                    raise scores
                yield range(number, number + 1), scores[None]
        finally:
            results.close()

    def settings(self) -> dict[str, Any]:
        """The model, and hashes of the records and individuals."""
        return {
            "engine": self.name,
            "model": describe(self._work.model),
            "version": self._version,
            "kind": self.kind,
            "classes": list(self.classes),
            "records": self._hashes[0],
            "individuals": self._hashes[1],
        }

    @cached_property
    def _hashes(self) -> tuple[str, str]:
        """Hashes of the records with their declared facts, and of the individuals."""
        train = self._work.train
        declared = np.array([str((train.size, train.norm, train.max_contributions))])
        units = () if train.units is None else (_content_array(train.units),)
        records = fingerprint(_content_array(train.X), train.y, declared, *units)
        return records, fingerprint(_content_array(self._work.individuals))


# ---------------------------------------------------------------- one run


@dataclass(frozen=True, eq=False)
class _TrainingTask:
    """The data that all runs share, as workers hold it."""

    model: Any
    train: Dataset
    individuals: Array | MappedRows
    kind: Kind
    is_function: bool

    def check(self, varied: str) -> None:
        """Reject a partial variation that a classifier does not support."""
        if varied != "all" and not self.is_function:
            raise ValueError(
                f"Expected varied='all' for {qualified_name(self.model)}, whose random_state "
                f"seeds everything that it draws, got varied={varied!r}. To vary less, pass a "
                "training function: it gets a seed for each purpose."
            )

    def scores(self, number: int | None, streams: Streams) -> Floats:
        """Scores of one run, of shape (individuals,) or (individuals, k)."""
        classes = self.train.classes
        try:
            scores = self._train(RunContext(number, streams, self.train, self.individuals))
            if not isinstance(scores, type) and callable(getattr(scores, "predict", None)):
                scores = predict_scores(scores, self.individuals, classes, self.kind)
        except (Exception, SystemExit) as cause:
            raise RunError(number, one_line(cause)) from cause
        run_name = "a run" if number is None else f"run {number}"
        return validate_scores(scores, len(self.individuals), len(classes), self.kind, run_name)

    def _train(self, run: RunContext) -> Any:
        """A fitted classifier, or the return value of the function."""
        if self.is_function:
            return self.model(run)
        fresh = clone(self.model)
        names = sorted(
            name for name in fresh.get_params() if name.split("__")[-1] == "random_state"
        )
        seeds = run.streams.noise.integers(_SEEDS, size=len(names)).tolist()
        fresh.set_params(**dict(zip(names, seeds, strict=True)))
        if callable(getattr(fresh, "fit_records", None)):
            return fresh.fit_records(run.records)
        return fresh.fit(run.records.X[:], np.array(run.records.classes)[run.records.y])


def _attempt_run(
    work: _TrainingTask, task: tuple[int, Seed]
) -> tuple[int, Floats | VeracalError]:
    """Scores of a run, or its error, in a worker process.

    Errors are returned, because some cannot be pickled when raised.
    """
    number, seed = task
    try:
        return number, work.scores(number, seed.streams(number))
    except VeracalError as error:
        if error.__cause__ is not None:
            error.add_note("".join(traceback.format_exception(error.__cause__)))
        return number, error


# ---------------------------------------------------------------- arguments


def _validate_individuals(train: Dataset, X: Any) -> Array | MappedRows:
    """Rows to score, in the same form as the records."""
    if len(np.unique(train.y)) < 2:
        only = train.classes[train.y[0]] if len(train) else "no record"
        raise DataError(
            train.name,
            "records of at least two classes",
            f"only {only!r}" if len(train) else only,
            "Audit a training set with at least two classes.",
        )
    individuals = check_features(X, None, "individuals")
    if individuals.shape[1:] != train.X.shape[1:] or not len(individuals):
        raise DataError(
            "individuals",
            f"one or more rows of shape {train.X.shape[1:]}, like the records",
            f"shape {individuals.shape}",
            "Give rows with the features that the model is trained on.",
        )
    return individuals


def _content_array(values: Array | MappedRows) -> Array:
    """An array whose bytes are its values: text arrays in memory hold pointers."""
    array = np.asarray(values[:])
    return array.astype(str) if array.dtype.kind in "TO" else array
