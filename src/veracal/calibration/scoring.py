"""Logits of a classifier, each row by itself, whatever the classifier does."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from veracal._types import Array, Floats, Ints
from veracal.data.rows import MappedRows

_BLOCK = 256  # rows that are scored together
_TRIALS = 4  # made-up rows
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

    Rounding follows the shape of a product and, inside it, the place: the same row, scored
    with fewer others or after one more of them, may differ in its last bits. (OpenBLAS on
    some processors rounds the last four of 256 rows differently in single precision, with ten
    classes.) So every block has the same shape, and rows stand only where a trial on made-up
    rows has found the bits of the first place; copies of a row stand elsewhere.

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
    and the place in it decide, and not the values, the logits of a row are a function of that
    row, bit for bit. What is not finite becomes the largest number of its sign, or zero for
    NaN. Where the trial fails, each row is scored in a block of copies of itself, which is
    slower.
    """
    way = getattr(model, way_of(model))

    def ask(rows: Array) -> Floats:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no warning tells of a record
            return _in_form(way(rows), len(rows), classes)

    places = alike(ask, X.shape[1], X.dtype)
    blocks: list[Floats] = [np.empty((0, classes))]
    for start in range(0, len(X), len(places)):
        rows = np.asarray(X[start : start + len(places)])
        block, mine = np.repeat(rows[:1], _BLOCK, axis=0), places[: len(rows)]
        block[mine] = rows
        blocks.append((_each(ask, block, classes) if without_errors else ask(block))[mine])
    return np.concatenate(blocks)


def alike(ask: Ask, width: int, dtype: Any) -> Ints:
    """Places of a block at which a row has the bits that it has at the first.

    Parameters
    ----------
    ask : callable
        Logits of a block of rows.
    width : int
        Of a row.
    dtype : dtype
        Of rows.

    Returns
    -------
    array of ints
        At least the first place, 0; and only that where others in the block change a row's
        bits, or where the made-up rows of the trial are an error.
    """
    some = np.random.default_rng(0).uniform(1, 99, (_TRIALS, width))  # public, and usual
    made_up = (some / (1 if np.dtype(dtype).kind in "iu" else 100)).astype(dtype)
    try:
        copies = [_bits(ask(np.repeat(row[None], _BLOCK, axis=0))) for row in made_up]
        mixed = _bits(ask(np.resize(made_up, (_BLOCK, width))))
    except Exception:
        return np.zeros(1, dtype=np.int64)
    same = np.all([(found == found[0]).all(axis=1) for found in copies], axis=0)
    places = np.flatnonzero(same)
    firsts = np.stack([found[0] for found in copies])[places % _TRIALS]
    return places if (mixed[places] == firsts).all() else places[:1]


def _bits(logits: Floats) -> Ints:
    """Floats as integers, so that -0.0 and 0.0 are told apart."""
    return np.ascontiguousarray(logits, dtype=np.float64).view(np.int64)


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
