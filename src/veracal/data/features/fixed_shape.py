"""Scores of rows in batches of one shape, so that a row's score is its own."""

from collections.abc import Callable

import numpy as np

from veracal._types import Array, Floats

Score = Callable[[Array], Floats]


def each_by_itself(forward: Score, made_up: Array) -> Score:
    """Score any number of rows through a network that takes a batch at a time.

    Rounding follows the shape of a batch: the same row, scored with fewer others, can
    differ in its last bits. Every batch therefore has the shape of ``made_up``, whose rows
    fill up what records leave empty. That leaves the row's place in the batch and the
    values of its neighbors, which :func:`keeps_rows_apart` tries on the made-up rows.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    made_up : array of shape (c, ...)
        One batch of public rows; the first should be as long as rows can be.

    Returns
    -------
    function of an array of shape (m, ...) to an array of shape (m, d), for m ≥ 1

    Guarantees
    ----------
    If a batch of one row is scored the same way each time, and what holds for made-up
    rows of a shape holds for all rows of it (the order of additions is chosen by shape and
    not by value), then the score of a row is a function of that row alone, bit for bit:
    adding, removing, changing or reordering other rows leaves it as it was. Where batches
    fail the trial, rows are scored one at a time, which is slower and needs no trial.
    """
    batch = made_up if keeps_rows_apart(forward, made_up) else made_up[:1]

    def score(rows: Array) -> Floats:
        parts = [rows[start : start + len(batch)] for start in range(0, len(rows), len(batch))]
        return np.concatenate([forward(_filled(part, batch))[: len(part)] for part in parts])

    return score


def keeps_rows_apart(forward: Score, made_up: Array) -> bool:
    """Tell whether neither place nor company changes a made-up row's score by a bit."""
    twins, company = made_up.copy(), made_up.copy()
    twins[:] = company[::2] = made_up[0]
    scores = np.concatenate([forward(twins), forward(company)[::2]])
    # Compared as bytes: a NaN would differ from itself, and −0 would equal 0.
    return len({row.tobytes() for row in scores}) == 1


def _filled(rows: Array, batch: Array) -> Array:
    """Copy of a batch with rows in the place of its first ones."""
    filled = batch.copy()
    filled[: len(rows)] = rows
    return filled
