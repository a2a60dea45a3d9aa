"""Scores of a fitted classifier on a data set, where each row's score depends on that row only.

Later steps see scores and no features.
"""

import warnings
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Floats, Ints
from veracal.data.dataset import Dataset
from veracal.data.rows import MappedRows, Score, equivalent_positions, score_at_positions
from veracal.data.scores import Scores
from veracal.errors import DataError

_BLOCK = 256  # rows that are scored together
_COMPARED = 40  # logits of synthetic rows; a few may agree by chance
_MAX_LOGIT = 0.9 * np.finfo(np.float64).max  # leaves room for sums
_METHODS = ("logits", "decision_function")


def scoring_method(model: Any) -> str:
    """Name of the method that returns a model's logits."""
    for method in _METHODS:
        if callable(getattr(model, method, None)):
            return method
    raise ValueError(
        f"Expected a classifier with {' or '.join(_METHODS)}, got {model!r}. Probabilities are "
        "not enough: their logarithms may be infinite."
    )


def compute_logits(
    model: Any, X: Array | MappedRows, classes: int, *, without_errors: bool = False
) -> Floats:
    """Finite logits of rows, of shape (n, classes).

    Parameters
    ----------
    model : classifier
        Fitted, with ``logits`` or ``decision_function``. With ``rows_independent = True``, as the
        linear classifiers of this package have it, the model itself keeps the guarantee below
        and gets all rows at once.
    X : array or MappedRows of shape (n, d)
    classes : int
    without_errors : bool
        Whether a row for which the model raises an error gets logits of zero, for records
        about which no error may reveal anything.

    Guarantees
    ----------
    The logits of a row are a function of that row, bit for bit, under the conditions of
    :func:`veracal.data.rows.score_at_positions`. If the check of positions fails, each row is
    scored in a block of copies of itself, which is slower. Infinite logits become the largest
    number of their sign, NaN becomes zero.
    """
    method = getattr(model, scoring_method(model))

    def score_block(rows: Array | MappedRows) -> Floats:
        n = len(rows)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning could reveal a record
            logits = np.asarray(method(rows), dtype=np.float64)
            if classes == 2 and logits.shape == (n,):
                logits = np.stack([np.zeros(n), logits], axis=1)
            if logits.shape != (n, classes):
                raise ValueError(
                    f"Expected logits of shape {(n, classes)}, got {logits.shape} from the "
                    "classifier."
                )
            finite: Floats = np.clip(np.nan_to_num(logits, nan=0.0), -_MAX_LOGIT, _MAX_LOGIT)
            return finite

    def forward(rows: Array) -> Floats:
        try:
            return score_block(rows)
        except Exception:
            if not without_errors:
                raise
        logits = np.zeros((len(rows), classes))
        for i, row in enumerate(rows):  # each in a block of copies of itself
            with suppress(Exception):
                logits[i] = score_block(np.repeat(row[None], len(rows), axis=0))[0]
        return logits

    if getattr(model, "rows_independent", False) is True:
        try:
            return score_block(X)
        except Exception:
            if not without_errors:
                raise
    positions = _positions(score_block, X.shape[1], X.dtype, classes)
    blocks = score_at_positions(forward, X, positions, np.empty((_BLOCK, X.shape[1]), X.dtype))
    return np.concatenate([np.empty((0, classes)), *blocks])


def _positions(score_block: Score, width: int, dtype: Any, classes: int) -> Ints:
    """Equivalent positions of a block; only the first if synthetic rows raise an error."""
    n_probes = max(4, _COMPARED // (classes if classes > 2 else 1))  # two may share one logit
    values = np.random.default_rng(0).uniform(1, 99, (n_probes + 1, width))
    synthetic = (values / (1 if np.dtype(dtype).kind in "iu" else 100)).astype(dtype)
    try:
        return equivalent_positions(
            score_block, np.resize(synthetic, (_BLOCK, width)), n_probes
        )
    except Exception:
        return np.zeros(1, dtype=np.int64)


class Logits(Protocol):
    """A fitted classifier that returns logits."""

    classes_: Array

    def logits(self, X: ArrayLike) -> Floats:
        """Logits of shape (n, k), in the order of ``classes_``."""


def score(model: Logits, dataset: Dataset) -> Scores:
    """Logits of a model on a data set, with its labels, groups and units.

    Classes are in the order in which the data set declares them. Scores of private records
    are private: results computed from them are *internal* unless they are charged.

    Guarantees
    ----------
    The scores of a record are independent of all other records, bit for bit, under the
    conditions of :func:`veracal.data.scoring.compute_logits`; for images and texts, if the model
    treats rows independently, as the networks of this package do.

    Examples
    --------
    >>> from veracal.data import load
    >>> from veracal.training import PrivateLogisticRegression
    >>> data = load("breast-cancer")
    >>> model = PrivateLogisticRegression(epsilon=3.0).fit_records(data)
    >>> score(model, data).values.shape
    (569, 2)
    """
    index = {label: i for i, label in enumerate(model.classes_.tolist())}
    if set(index) != set(dataset.classes):
        raise DataError(
            f"{dataset.name}: classes",
            f"the classes of the model, {list(index)}",
            repr(list(dataset.classes)),
            "Score records of the task the model was fitted to.",
        )
    order = [index[label] for label in dataset.classes]
    rows: Any = dataset.X
    logits = compute_logits(model, rows, len(order)) if rows.ndim == 2 else model.logits(rows)
    return Scores(
        np.asarray(logits)[:, order],
        "logits",
        dataset.classes,
        dataset.y,
        dataset.groups,
        dataset.units,
        dataset.name,
    )
