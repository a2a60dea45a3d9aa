"""Scores of people by any classifier, with a column for each declared class.

Any training, run again and again on the workers of one machine or of a cluster.
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
    fingerprint,
    name_of,
    told,
)
from veracal.multiplicity.engines.workers import TaskExecutor, one_core, one_line, outcomes

_MOST = 0.9 * np.finfo(np.float64).max  # of a logit; the rest is room for sums
_ROUNDING = 1e-5  # that probabilities in float32 may be off
_WAYS: dict[Kind, tuple[str, ...]] = {
    "logit": ("logits", "decision_function"),
    "probability": ("predict_proba", "predict"),
}
_BEST_FIRST = ("logits", "predict_proba", "decision_function", "predict")


def kind_of(model: Any) -> Kind:
    """What the scores of a classifier are, known before it is fitted.

    Logits where the classifier has them (a method ``logits``); else probabilities; else a
    ``decision_function``, taken for logits; else decisions, as probabilities 0 and 1.
    """
    last = model
    while isinstance(last, Pipeline) and last.steps:
        last = last.steps[-1][1]
    if isinstance(last, MappedPredictions):
        return "probability"  # whether its map gives logits is known after the fit alone
    for way in _BEST_FIRST:
        if _gives(model, way):
            return next(kind for kind, ways in _WAYS.items() if way in ways)
    raise ValueError(f"Expected a classifier with {_or(_BEST_FIRST)}, got {model!r}.")


def scores_of(
    model: Any, X: Array | MappedRows, classes: tuple[Label, ...], kind: Kind
) -> Array:
    """Scores of rows by a fitted classifier, of shape (n, k), in the order of ``classes``.

    Parameters
    ----------
    model : classifier
        Fitted. Its ``classes_`` tell which column is whose. A class that it does not know
        has probability zero, or the least logit there is.
    X : array or MappedRows of shape (n, d)
    classes : tuple of str or int
    kind : {"logit", "probability"}
    """
    way = next((way for way in _WAYS[kind] if _gives(model, way)), None)
    if way is None:
        raise ValueError(f"Expected a classifier with {_or(_WAYS[kind])}, got {model!r}.")
    given = np.asarray(getattr(model, way)(X))
    if way == "predict":
        return np.eye(len(classes))[encode_labels(given, classes, "a decision")]
    known = getattr(model, "classes_", None)
    if known is None:
        raise ValueError(f"Expected a fitted classifier with classes_, got {model!r}.")
    return _in_order(given, encode_labels(known, classes, "classes_"), len(classes), kind)


def in_form(scores: Any, people: int, k: int, kind: Kind, where: str) -> Floats:
    """Scores as an engine gives them: finite, of shape (people,) for two classes.

    Parameters
    ----------
    scores : array of shape (people,) or (people, k)
        Those of the second class alone, if there are two; or of every class.
    people, k : int
    kind : {"logit", "probability"}
        Logits beyond the range of floats become the largest ones; probabilities of three and
        more classes are divided by their sum, which rounding may have moved.
    where : str
        Which run this is, as an error tells it.

    Raises
    ------
    DataError
        If they are NaN, or no probabilities, or too few or too many.
    """
    found = _numbers(scores, where)
    alone = k == 2 and found.shape == (people,)
    if not alone and found.shape != (people, k):
        expected = f"shape {(people, k)}" + f" or {(people,)}" * (k == 2)
        raise DataError(
            where, expected, f"shape {found.shape}", "Give one row of scores for each person."
        )
    if np.isnan(found).any():
        first = int(np.argwhere(np.isnan(found))[0][0])
        raise DataError(
            where,
            "scores that are numbers",
            f"NaN for person {first}",
            "Nothing was concluded from this run. Look at what the model does with that row.",
        )
    return _probabilities(found, where) if kind == "probability" else _logits(found)


def _numbers(scores: Any, where: str) -> Floats:
    """Scores as an array of float64."""
    try:
        return np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as cause:
        raise DataError(
            where, "an array of scores", f"{type(scores).__name__}", "Return numbers."
        ) from cause


def _logits(found: Floats) -> Floats:
    """Finite logits; of two classes, by how much the second one is ahead."""
    finite = np.clip(found, -_MOST, _MOST)
    if finite.ndim == 1 or finite.shape[1] > 2:
        return finite
    halves: Floats = finite[:, 1] / 2 - finite[:, 0] / 2  # the whole could overflow
    ahead: Floats = 2 * np.clip(halves, -_MOST / 2, _MOST / 2)
    return ahead


def _probabilities(found: Floats, where: str) -> Floats:
    """Probabilities, of two classes those of the second."""
    sums = np.ones(len(found)) if found.ndim == 1 else found.sum(axis=1)
    outside = (found < -_ROUNDING) | (found > 1 + _ROUNDING)
    if outside.any() or np.abs(sums - 1).max(initial=0) > _ROUNDING:
        raise DataError(
            where,
            "probabilities between 0 and 1 that sum to 1",
            f"values from {found.min():g} to {found.max():g}, "
            f"sums from {sums.min():g} to {sums.max():g}",
            "If these are logits, say kind='logit'.",
        )
    kept: Floats = np.clip(found, 0, 1)
    if kept.ndim == 1 or kept.shape[1] == 2:
        return kept.reshape(len(kept), -1)[:, -1]
    whole: Floats = kept / kept.sum(axis=1, keepdims=True)
    return whole


def _in_order(given: Array, places: Array, k: int, kind: Kind) -> Array:
    """Columns of known classes, put where the declared order has them."""
    if kind == "logit" and given.ndim == 1 and len(places) == 2:
        given = np.stack([np.zeros(len(given)), given], axis=1)
    if given.ndim != 2 or given.shape[1] != len(places):
        raise ValueError(
            f"Expected one column of scores for each of {len(places)} classes of the model, "
            f"got shape {given.shape}."
        )
    result = np.full((len(given), k), 0.0 if kind == "probability" else -_MOST)
    result[:, places] = given
    return result


def _gives(model: Any, way: str) -> bool:
    """Tell whether a model has a method, and means by its columns what we do."""
    if way == "decision_function" and _of_pairs(model):
        return False
    return callable(getattr(model, way, None))


def _of_pairs(model: Any) -> bool:
    """Tell whether a decision function has a column for each pair of classes."""
    parameters: dict[str, Any] = getattr(model, "get_params", dict)()
    return any(
        name.split("__")[-1] == "decision_function_shape" and value == "ovo"
        for name, value in parameters.items()
    )


def _or(ways: tuple[str, ...]) -> str:
    return " or ".join(ways)


_KINDS: tuple[Kind, ...] = ("logit", "probability")
_SEEDS = 2**31  # what every library takes for a random_state
_BYTES = 1 << 26  # of scores that may wait for their reader


@dataclass(frozen=True, eq=False)
class RunContext:
    """What a training function is given.

    Attributes
    ----------
    number : int or None
        Of this run, for messages; None where it is run by itself. What chance decides must
        come from ``streams`` or :meth:`seed`.
    streams : Streams
        Generators of this run.
    records : Dataset
        To train on.
    people : array of shape (people, d)
        To score.
    """

    number: int | None
    streams: Streams
    records: Dataset
    people: Array | MappedRows

    def seed(self, purpose: Literal["initial", "batches", "noise"]) -> int:
        """A seed in [0, 2³¹) of what a stream decides, the same whenever it is asked for."""
        _checks.one_of(("initial", "batches", "noise"), purpose=purpose)
        rng: np.random.Generator = getattr(self.streams, purpose)
        own = rng.bit_generator.seed_seq
        assert isinstance(own, np.random.SeedSequence)
        # A child that spawn() does not reach, so that no generator of the run repeats it.
        child = np.random.SeedSequence(own.entropy, spawn_key=(*own.spawn_key, _SEEDS))
        return int(child.generate_state(1)[0]) % _SEEDS


Training = Callable[[RunContext], Any]


class RetrainEngine(AuditEngine):
    r"""Any classifier or training function, trained again from the start for each run.

    Runs are independent of each other and of where they are worked on: run i draws from the
    streams of number i alone, with a fixed number of threads. It has the same scores on loky,
    Ray and Dask, on any number of workers, and after an audit was stopped and resumed.

    Parameters
    ----------
    model : classifier or function
        A classifier with scikit-learn's ``get_params`` and ``fit``. Every run fits a clone,
        in which each ``random_state``, nested ones too, is a fresh seed: its fits are not
        private, and say so. One that takes data sets (``fit_records``), as all of
        :mod:`veracal.training` do, is given the data set with all that is declared in it;
        another one rows and labels. Or a function of a :class:`Run` that returns scores of
        shape (people,) or (people, k), or else a fitted classifier.
    train : Dataset
        Records to train on.
    X : array of shape (people, d)
        People to score.
    jobs : int, optional
        Runs at a time; 1 is this process. None: as many as there are cores.
    backend : {"loky", "ray", "dask"}, optional
        None: what the active ``joblib.parallel_config`` says, or processes of this machine
        (loky). Ray and Dask come with the extra ``cluster``. They are started as their own
        documentation says, with ``ray.init()`` or ``dask.distributed.Client()``.
    address : str, optional
        Of a cluster of Ray or Dask to connect to.
    threads : int
        Of linear algebra, in each run.
    kind : {"logit", "probability"}, optional
        What scores are. None: for a classifier what it has, logits before probabilities; for
        a function, probabilities.
    version : str, optional
        Of the model or the function, by which a resumed audit notices that it was changed.

    Notes
    -----
    One ``random_state`` decides all that a classifier draws, so that it can only be run with
    ``varied="all"``. What it draws from elsewhere, such as a global generator, makes runs
    that differ, and that nobody can repeat. Seeds have 31 bits: among m runs, two are the
    same with a chance of at most m²/2³² (0.6 % for 5,000), and then count twice.

    Examples
    --------
    >>> from veracal.data import load
    >>> from veracal.training import PrivateLogisticRegression
    >>> data = load("breast-cancer")
    >>> engine = RetrainEngine(PrivateLogisticRegression(), data, data.X[:5], jobs=1)
    >>> engine.scores(1, Seed.of(0).streams(0)).shape
    (1, 5)
    """

    name = "retrain"
    together = 1

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
        self._place = TaskExecutor(backend, jobs, address, threads)
        if kind is not None:
            _checks.one_of(_KINDS, kind=kind)
        is_function = _is_function(model)
        own: Kind = "probability" if is_function else kind_of(model)
        people = _people(train, X)
        self._work = _Work(
            model if is_function else clone(model), train, people, kind or own, is_function
        )
        self._version = version
        self.classes = train.classes
        self.people = len(people)
        self.kind = self._work.kind

    def scores(self, count: int, streams: Streams) -> Floats:
        """Scores of one run, trained in this process."""
        if count != 1:
            raise ValueError(f"Expected runs one at a time, got count={count!r}.")
        self._work.check(streams.varied)
        with one_core(self._place.threads):
            return self._work.scores(None, streams)[None]

    def stream(self, pending: Iterable[range], seed: Seed) -> Iterator[tuple[range, Floats]]:
        """Scores of runs as they come in, each by itself, in whatever order.

        Closing the iterator ends the runs that are under way.

        Raises
        ------
        RunError
            If a run raises an error, with its number.
        DataError
            If the scores of a run are no scores.
        WorkerError
            If a worker dies, or a cluster is not there.
        """
        self._work.check(seed.varied)
        numbers = (number for runs in pending for number in runs)
        if self._place.here:
            for number in numbers:
                with one_core(self._place.threads):
                    found = self._work.scores(number, seed.streams(number))
                yield range(number, number + 1), found[None]
            return
        most = max(1, _BYTES // (8 * self.people * len(self.classes)))
        tasks = ((number, seed) for number in numbers)
        results = outcomes(_attempted, self._work, tasks, self._place, most=most)
        try:
            for number, found in results:
                if isinstance(found, VeracalError):
                    raise found
                yield range(number, number + 1), found[None]
        finally:
            results.close()

    def settings(self) -> dict[str, Any]:
        """What is run again, with a hash of records and people."""
        return {
            "engine": self.name,
            "model": self._told,
            "version": self._version,
            "kind": self.kind,
            "classes": list(self.classes),
            "records": self._hashes[0],
            "people": self._hashes[1],
        }

    @cached_property
    def _told(self) -> Any:
        """The model and its parameters, or the name of the function."""
        return told(self._work.model)

    @cached_property
    def _hashes(self) -> tuple[str, str]:
        """Hashes of records, with what is declared of them, and of people."""
        train = self._work.train
        declared = np.array([str((train.size, train.norm, train.at_most))])
        units = () if train.units is None else (_plain(train.units),)
        records = fingerprint(_plain(train.X), train.y, declared, *units)
        return records, fingerprint(_plain(self._work.people))


# ---------------------------------------------------------------- one run


@dataclass(frozen=True, eq=False)
class _Work:
    """What all runs have in common, as workers hold it."""

    model: Any
    train: Dataset
    people: Array | MappedRows
    kind: Kind
    is_function: bool

    def check(self, varied: str) -> None:
        """Refuse to vary less than a classifier does."""
        if varied != "all" and not self.is_function:
            raise ValueError(
                f"Expected varied='all' for {name_of(self.model)}, whose random_state decides "
                f"all that it draws, got varied={varied!r}. A training function can tell "
                "them apart: it is given a seed for each."
            )

    def scores(self, number: int | None, streams: Streams) -> Floats:
        """Scores of one run, of shape (people,) or (people, k)."""
        classes = self.train.classes
        try:
            found = self._trained(RunContext(number, streams, self.train, self.people))
            if _is_classifier(found):
                found = scores_of(found, self.people, classes, self.kind)
        except (Exception, SystemExit) as cause:
            raise RunError(number, one_line(cause)) from cause
        where = "a run" if number is None else f"run {number}"
        return in_form(found, len(self.people), len(classes), self.kind, where)

    def _trained(self, run: RunContext) -> Any:
        """A fitted classifier, or what the function returns."""
        if self.is_function:
            return self.model(run)
        fresh = clone(self.model)
        drawn = sorted(
            name for name in fresh.get_params() if name.split("__")[-1] == "random_state"
        )
        seeds = run.streams.noise.integers(_SEEDS, size=len(drawn)).tolist()
        fresh.set_params(**dict(zip(drawn, seeds, strict=True)))
        if callable(getattr(fresh, "fit_records", None)):
            return fresh.fit_records(run.records)
        return fresh.fit(run.records.X[:], np.array(run.records.classes)[run.records.y])


def _attempted(work: _Work, task: tuple[int, Seed]) -> tuple[int, Floats | VeracalError]:
    """Scores of a run, or why there are none, in the process of a worker.

    Errors are returned, since not every one survives being sent.
    """
    number, seed = task
    try:
        return number, work.scores(number, seed.streams(number))
    except VeracalError as error:
        if error.__cause__ is not None:
            error.add_note("".join(traceback.format_exception(error.__cause__)))
        return number, error


# ---------------------------------------------------------------- what is given


def _is_classifier(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "predict", None))


def _is_function(model: Any) -> bool:
    """Tell a function from a classifier; refuse what is neither."""
    if not isinstance(model, type):
        if all(callable(getattr(model, name, None)) for name in ("fit", "get_params")):
            return False
        if callable(model) and not callable(getattr(model, "fit", None)):
            return True
    raise ValueError(
        "Expected a classifier with fit and get_params, as scikit-learn's have, or a function "
        f"of a Run, got {model!r}. Put anything else into a function that trains it."
    )


def _people(train: Dataset, X: Any) -> Array | MappedRows:
    """People to score, of the same form as the records."""
    if len(np.unique(train.y)) < 2:
        only = train.classes[train.y[0]] if len(train) else "no record"
        raise DataError(
            train.name,
            "records of at least two classes",
            f"only {only!r}" if len(train) else only,
            "A model trained on them has nothing to decide.",
        )
    people = check_features(X, None, "people")
    if people.shape[1:] != train.X.shape[1:] or not len(people):
        raise DataError(
            "people",
            f"one or more rows of shape {train.X.shape[1:]}, as the records are",
            f"shape {people.shape}",
            "Give people the features that the model is trained on.",
        )
    return people


def _plain(values: Array | MappedRows) -> Array:
    """Values whose bytes are the values themselves: text in memory is pointers."""
    array = np.asarray(values[:])
    return array.astype(str) if array.dtype.kind in "TO" else array
