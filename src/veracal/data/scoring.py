"""Scores of rows that do not depend on other rows, and of classifiers on data sets.

The rounding of a matrix product depends on its shape and, within it, on the position of a row:
the same row, scored with fewer others or after another one, may differ in its last bits.
(OpenBLAS on some processors rounds the last four of 256 rows differently in single precision,
with ten classes, and about a hundred rows with a hundred classes.) Adding or removing one
individual would then change the scores of others, which no sensitivity covers. Here every
block has the same shape, and rows are placed only at positions where synthetic rows gave the
same bits as at the first position. Later steps see scores and no features.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Floats, Ints, aligned
from veracal.data.dataset import Dataset
from veracal.data.rows import MappedRows
from veracal.data.scores import Scores
from veracal.errors import DataError

Score = Callable[[Array], Floats]
# Numbers compared at every position. A single one may agree by chance: for ten float32
# products, another order of additions gives the same sum in one of two cases.
_COMPARED = 40
_BLOCK = 256  # rows that are scored together
_MAX_LOGIT = 0.9 * np.finfo(np.float64).max  # leaves room for sums
_METHODS = ("logits", "decision_function")


def equivalent_positions(forward: Score, synthetic: Array, n_probes: int = 1) -> Ints:
    """Positions of a block at which rows get the same bits as at the first position.

    Position 0 and any others that qualify, ascending; only 0 if other rows of the block change
    the bits of a row.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    synthetic : array of shape (c, ...)
        One block of public rows. No record is read.
    n_probes : int
        Number of leading rows that are compared at every position: first among copies of
        themselves, then mixed with each other and with the remaining rows.
    """
    probes = synthetic[:n_probes]
    blocks = (np.repeat(row[None], len(synthetic), axis=0) for row in probes)
    outputs = [_bits(forward(aligned(block))) for block in blocks]
    same = np.all([(output == output[0]).all(axis=1) for output in outputs], axis=0)
    mixed, turn = aligned(synthetic.copy()), np.arange(len(synthetic)) % (n_probes + 1)
    is_probe = turn < n_probes
    mixed[is_probe] = probes[turn[is_probe]]
    positions, compared = np.flatnonzero(same), np.flatnonzero(same & is_probe)
    expected = np.stack([output[0] for output in outputs])[turn[compared]]
    agrees = (_bits(forward(mixed))[compared] == expected).all()
    return positions if agrees else positions[:1]


def score_at_positions(
    forward: Score, rows: Array | MappedRows, positions: Ints, block: Array
) -> Iterator[Floats]:
    """Score rows at equivalent positions of a block; copies of one row fill the others.

    Yields the scores of as many rows as there are positions, in the order of the rows.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    rows : array or MappedRows of shape (m, ...)
    positions : array of ints
        As returned by :func:`equivalent_positions`.
    block : array of shape (c, ...)
        Buffer of the type that ``forward`` takes; its content is overwritten.

    Guarantees
    ----------
    If the order of additions by which ``forward`` scores a row of a block depends on the shape
    of the block, the position in it and addresses modulo 64 bytes only, and not on values,
    then the score of a row is a function of that row only, bit for bit: adding, removing,
    changing or reordering other rows does not change it. With the first position alone this
    holds for any ``forward``, since all rows of a block are copies of one row.
    """
    block = aligned(block)  # in some libraries bits depend on addresses
    others = np.setdiff1d(np.arange(len(block)), positions)
    for start in range(0, len(rows), len(positions)):
        batch = np.asarray(rows[start : start + len(positions)])
        used, free = positions[: len(batch)], positions[len(batch) :]
        block[used] = batch
        block[others] = block[free] = batch[0]
        yield forward(block)[used]


def all_positions_equivalent(forward: Score, synthetic: Array) -> bool:
    """Whether a row gets the same bits at every position of a block, beside any other rows.

    Synthetic rows, as of :func:`equivalent_positions`, should differ from each other.

    Guarantees
    ----------
    At every position at least 40 numbers are compared with those of the first position,
    however few a row has (fewer only if there are fewer rows), and each row with itself at
    other positions.
    """
    block = aligned(synthetic.copy())
    unshifted = _bits(forward(block))
    most = max(1, len(synthetic) - 1)
    n_probes = min(most, math.ceil(_COMPARED / max(1, unshifted.shape[1])))
    if len(equivalent_positions(forward, synthetic, n_probes)) < len(synthetic):
        return False
    shifts = (1 << i for i in range((len(synthetic) - 1).bit_length()))
    return all(
        np.array_equal(
            _bits(forward(aligned(np.roll(block, shift, axis=0)))),
            np.roll(unshifted, shift, axis=0),
        )
        for shift in shifts
    )


def score_independently(forward: Score, synthetic: Array, *variants: Score) -> Score:
    """Return a function that scores m ≥ 1 rows by a network that takes batches of c rows.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    synthetic : array of shape (c, ...)
        One batch of public rows; the first should be as long as rows can be.
    *variants : functions like ``forward``
        The same network with other weights, which are checked as well: with particular
        weights, synthetic rows may not reveal an order of additions that records would.

    Guarantees
    ----------
    Those of :func:`score_at_positions` if all positions of a batch are equivalent
    (:func:`all_positions_equivalent`). Otherwise rows are scored in batches of one, which is
    slower and needs no check.
    """
    usable = all(all_positions_equivalent(one, synthetic) for one in (forward, *variants))
    batch = synthetic if usable else synthetic[:1]

    def score(rows: Array) -> Floats:
        parts = score_at_positions(forward, rows, np.arange(len(batch)), np.empty_like(batch))
        return np.concatenate(list(parts))

    return score


def _bits(scores: Floats) -> Ints:
    """Bits of scores as integers, so that NaN equals itself and −0 differs from 0."""
    flat = np.asarray(scores, dtype=np.float64).reshape(len(scores), -1)
    return np.ascontiguousarray(flat).view(np.int64)


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
    :func:`veracal.data.score_at_positions`. If the check of positions fails, each row is
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
    conditions of :func:`veracal.data.compute_logits`; for images and texts, if the model
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
