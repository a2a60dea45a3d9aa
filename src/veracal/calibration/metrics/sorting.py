"""Sorted columns, in which equal values are one.

Arrays have a row for each record, but lie column by column in memory: sorting and whatever
follows go down the columns, and take a fraction of the time there.
"""

import numpy as np

from veracal._types import Array, Floats, Ints

_CELLS = 2**20  # numbers sorted at a time
_SMALL = 2**16  # numbers that 16 bits tell apart, which are sorted without comparing them


def sorted_columns(values: Array) -> tuple[Ints, Array]:
    """Rows of each column from small to large, and the values in that order.

    Equal values come in no particular order, which takes a fraction of the time.
    """
    columns = np.ascontiguousarray(values.T)
    small = values.dtype == np.uint16  # sorted by radix, if stably
    order: Ints = np.argsort(columns, axis=1, kind="stable" if small else None).T
    return order, in_order(columns.T, order)


def in_order(values: Array, order: Ints) -> Array:
    """Rows of each column in an order of its own."""
    n, k = values.shape
    flat = np.ascontiguousarray(values.T).reshape(-1)
    result: Array = flat.take(order.T + n * np.arange(k)[:, None]).T
    return result


def run_starts(ranked: Array) -> Ints:
    """Where the run of equal values begins that each sorted value is in."""
    columns = ranked.T
    first = np.zeros(columns.shape, dtype=np.int64)
    begins = columns[:, 1:] != columns[:, :-1]
    np.multiply(begins, np.arange(1, columns.shape[1]), out=first[:, 1:])
    result: Ints = np.maximum.accumulate(first, axis=1).T
    return result


def mean_ranks(ranked: Array) -> Floats:
    """Ranks from 1 of sorted values, equal ones sharing their mean."""
    n, k = ranked.shape
    first = run_starts(ranked).T
    run = first + n * np.arange(k)[:, None]
    lengths = np.bincount(run.reshape(-1), minlength=n * k)
    result: Floats = (first + (lengths.take(run) + 1) / 2).T
    return result


def codes(values: Array) -> Ints:
    """Integers in the order of the values of each column, equal where these are."""
    n, k = values.shape
    result: Ints = np.empty((n, k), dtype=np.uint16 if n <= _SMALL else np.int64)
    width = max(1, _CELLS // max(1, n))
    for start in range(0, k, width):
        columns = slice(start, start + width)
        order, ranked = sorted_columns(values[:, columns])
        starts = run_starts(ranked).astype(result.dtype)
        np.put_along_axis(result[:, columns], order, starts, axis=0)
    return result
