"""Logits of a classifier, each row by itself, whatever the classifier does.

From a fitted model and records to scores: the last place where a feature appears.
"""

import warnings
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Floats, Ints
from veracal.data.dataset import Dataset
from veracal.data.rows import MappedRows, Score, at_places, places_alike
from veracal.data.scores import Scores
from veracal.errors import DataError

_BLOCK = 256  # rows that are scored together
_COMPARED = 40  # logits of made-up rows: a few may have the same bits by chance
_MOST = 0.9 * np.finfo(np.float64).max  # of a logit; the rest is room for sums
_WAYS = ("logits", "decision_function")


def way_of(model: Any) -> str:
    """Name of the method that gives a model's logits."""
    for way in _WAYS:
        if callable(getattr(model, way, None)):
            return way
    raise ValueError(
        f"Expected a classifier with {' or '.join(_WAYS)}, got {model!r}. Probabilities are "
        "not enough: their logarithms may be infinite."
    )


def logits_of(
    model: Any, X: Array | MappedRows, classes: int, *, without_errors: bool = False
) -> Floats:
    """Finite logits of rows, of shape (n, classes).

    Parameters
    ----------
    model : classifier
        Fitted, with ``logits`` or ``decision_function``. If it says ``rows_apart = True``, as
        linear classifiers here do, it keeps the guarantee below by itself, and is asked for
        all rows at once.
    X : array or MappedRows of shape (n, d)
    classes : int
    without_errors : bool
        Whether a row for which the model raises an error has logits of zero instead: for
        records of which no error may tell.

    Guarantees
    ----------
    The logits of a row are a function of that row, bit for bit, on the terms of
    :func:`veracal.data.rows.at_places`. Where the trial of places fails, each row is
    scored in a block of copies of itself, which is slower. What is not finite becomes the
    largest number of its sign, or zero for NaN.
    """
    way = getattr(model, way_of(model))

    def ask(rows: Array | MappedRows) -> Floats:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no warning tells of a record
            return _in_form(way(rows), len(rows), classes)

    def forward(rows: Array) -> Floats:
        return _each(ask, rows, classes) if without_errors else ask(rows)

    if getattr(model, "rows_apart", False) is True:
        try:
            return ask(X)
        except Exception:
            if not without_errors:
                raise
    places = _places(ask, X.shape[1], X.dtype, classes)
    found = at_places(forward, X, places, np.empty((_BLOCK, X.shape[1]), X.dtype))
    return np.concatenate([np.empty((0, classes)), *found])


def _places(ask: Score, width: int, dtype: Any, classes: int) -> Ints:
    """Places of a block that are alike; the first alone where made-up rows are an error."""
    trials = max(4, _COMPARED // (classes if classes > 2 else 1))  # two may share one logit
    some = np.random.default_rng(0).uniform(1, 99, (trials + 1, width))  # public, and usual
    made_up = (some / (1 if np.dtype(dtype).kind in "iu" else 100)).astype(dtype)
    try:
        return places_alike(ask, np.resize(made_up, (_BLOCK, width)), trials)
    except Exception:
        return np.zeros(1, dtype=np.int64)


def _each(ask: Score, rows: Array, classes: int) -> Floats:
    """Score a block; if that is an error, every row in a block of copies of itself."""
    try:
        return ask(rows)
    except Exception:
        return np.stack([_alone(ask, row, len(rows), classes) for row in rows])


def _alone(ask: Score, row: Array, block: int, classes: int) -> Floats:
    """Score one row, or give it zeros."""
    try:
        alone: Floats = ask(np.repeat(row[None], block, axis=0))[0]
    except Exception:
        return np.zeros(classes)
    return alone


def _in_form(values: Any, n: int, classes: int) -> Floats:
    """Finite numbers with a column for each class; two classes may share one."""
    found = np.asarray(values, dtype=np.float64)
    if classes == 2 and found.shape == (n,):
        found = np.stack([np.zeros(n), found], axis=1)
    if found.shape != (n, classes):
        raise ValueError(
            f"Expected logits of shape {(n, classes)}, got {found.shape} from the classifier."
        )
    finite: Floats = np.clip(np.nan_to_num(found, nan=0.0), -_MOST, _MOST)
    return finite


class Logits(Protocol):
    """A fitted classifier that gives logits."""

    classes_: Array

    def logits(self, X: ArrayLike) -> Floats:
        """Logits of shape (n, k), in the order of ``classes_``."""


def score(model: Logits, dataset: Dataset) -> Scores:
    """Logits of a model on a data set, with its labels, groups and units.

    Classes stand in the order in which the data set declares them. The scores of private
    records are private: what is computed from them is *internal* unless it is charged.

    Guarantees
    ----------
    The scores of a record are its own, bit for bit, whoever stands beside it, on the terms of
    :func:`veracal.data.scoring.logits_of`; for images and texts, if the model keeps
    rows apart itself, as networks here do.

    Examples
    --------
    >>> from veracal.data import load
    >>> from veracal.training import PrivateLogisticRegression
    >>> data = load("breast-cancer")
    >>> model = PrivateLogisticRegression(epsilon=3.0).fit_records(data)
    >>> score(model, data).values.shape
    (569, 2)
    """
    pass  # its package imports this one

    place = {label: position for position, label in enumerate(model.classes_.tolist())}
    if set(place) != set(dataset.classes):
        raise DataError(
            f"{dataset.name}: classes",
            f"the classes of the model, {list(place)}",
            repr(list(dataset.classes)),
            "Score records of the task the model was fitted to.",
        )
    order = [place[label] for label in dataset.classes]
    rows: Any = dataset.X
    found = logits_of(model, rows, len(order)) if rows.ndim == 2 else model.logits(rows)
    return Scores(
        np.asarray(found)[:, order],
        "logits",
        dataset.classes,
        dataset.y,
        dataset.groups,
        dataset.units,
        dataset.name,
    )
