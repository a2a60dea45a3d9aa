"""Sorted columns, in which equal values are one."""

import numpy as np

from veracal._types import Floats, Ints


def sorted_columns(values: Floats) -> tuple[Ints, Floats]:
    """Rows of each column from small to large, and the values in that order.

    Equal values come in no particular order, which takes a fraction of the time.
    """
    order: Ints = np.argsort(values, axis=0)
    ranked: Floats = np.take_along_axis(values, order, axis=0)
    return order, ranked


def run_starts(ranked: Floats) -> Ints:
    """Where the run of equal values begins that each sorted value is in."""
    first = np.arange(len(ranked))[:, None] * np.ones((1, ranked.shape[1]), dtype=np.int64)
    first[1:][ranked[1:] == ranked[:-1]] = 0
    result: Ints = np.maximum.accumulate(first, axis=0)
    return result


def mean_ranks(ranked: Floats) -> Floats:
    """Ranks from 1 of sorted values, equal ones sharing their mean."""
    last = len(ranked) - 1 - run_starts(ranked[::-1])[::-1]
    result: Floats = (run_starts(ranked) + last) / 2 + 1
    return result
