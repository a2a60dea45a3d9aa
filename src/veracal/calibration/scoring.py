"""Logits of a classifier, each row by itself, whatever the classifier does."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from veracal._types import Array, Floats
from veracal.data.rows import MappedRows

_BLOCK = 256  # rows that are scored together
_MOST = 0.9 * np.finfo(np.float64).max  # of a logit; the rest is room for sums
_WAYS = ("logits", "decision_function")
Ask = Callable[[Array], Floats]


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

    Rounding follows the shape of a product: the same row, scored with fewer others, may differ
    in its last bits. So every block has the same shape, the last one filled up with copies of
    a row of its own.

    Parameters
    ----------
    model : classifier
        Fitted, with ``logits`` or ``decision_function``.
    X : array or MappedRows of shape (n, d)
    classes : int
    without_errors : bool
        Whether a row for which the model raises an error has logits of zero instead: for
        records of which no error may tell.

    Guarantees
    ----------
    If a model scores rows each by itself, in an order of additions that the shape of a block
    alone decides, the logits of a row are a function of that row, bit for bit. What is not
    finite becomes the largest number of its sign, or zero for NaN.
    """
    way = getattr(model, way_of(model))

    def ask(rows: Array) -> Floats:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no warning tells of a record
            return _in_form(way(rows), len(rows), classes)

    blocks = []
    for start in range(0, len(X), _BLOCK):
        rows = np.asarray(X[start : start + _BLOCK])
        full = rows[np.minimum(np.arange(_BLOCK), len(rows) - 1)]
        blocks.append((_each(ask, full, classes) if without_errors else ask(full))[: len(rows)])
    return np.concatenate(blocks) if blocks else np.empty((0, classes))


def _each(ask: Ask, rows: Array, classes: int) -> Floats:
    """Score a block; if that is an error, every row in a block of copies of itself."""
    try:
        return ask(rows)
    except Exception:
        return np.stack([_alone(ask, row, len(rows), classes) for row in rows])


def _alone(ask: Ask, row: Array, block: int, classes: int) -> Floats:
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
