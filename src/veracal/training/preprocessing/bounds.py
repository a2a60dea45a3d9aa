"""Declared bounds of columns, and where a value lies between them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from veracal._types import Array, Floats
from veracal.data.rows import MappedRows

Pair = tuple[float, float]
Bounds = Pair | Sequence[Pair]
_ROWS = 65_536


def check_bounds(bounds: Any, name: str = "bounds") -> Floats:
    """Bounds as an array of shape (columns, 2); of one row where one pair is for all columns.

    Raises
    ------
    ValueError
        Unless all are finite, and the lower of each pair is below the upper.
    """
    try:
        pairs = np.atleast_2d(np.asarray(bounds, dtype=np.float64))
    except (TypeError, ValueError):
        pairs = np.empty(0)
    fits = pairs.ndim == 2 and pairs.shape[1] == 2 and np.isfinite(pairs).all()
    # Half of each, or their distance may be infinite.
    if not fits or not (pairs[:, 1] / 2 - pairs[:, 0] / 2 >= np.finfo(np.float64).tiny).all():
        raise ValueError(
            f"Expected {name} to be one (low, high) of finite numbers, low < high, or one such "
            f"pair for each column, got {name}={bounds!r}."
        )
    return pairs


def bounds_of_columns(bounds: Any, width: int) -> tuple[Floats, Floats]:
    """Lower and upper bounds, each of shape (width,)."""
    pairs = check_bounds(bounds)
    if len(pairs) not in (1, width):
        raise ValueError(
            f"Expected one pair of bounds for each of {width} columns, or one for all, got "
            f"{len(pairs)} pairs."
        )
    low, high = np.broadcast_to(pairs, (width, 2)).T
    return low, high


def observed_bounds(rows: Array | MappedRows) -> tuple[Floats, Floats]:
    """Smallest and largest value of each column: read off the records, so *not private*.

    A column of one value gets bounds around it.
    """
    blocks = [
        np.asarray(rows[start : start + _ROWS], dtype=np.float64)
        for start in range(0, len(rows), _ROWS)
    ]
    low = np.min([block.min(axis=0) for block in blocks], axis=0)
    high = np.max([block.max(axis=0) for block in blocks], axis=0)
    flat = high / 2 - low / 2 < np.finfo(np.float64).tiny
    room = np.maximum(np.abs(low) * 1e-6, 1e-6)
    return np.where(flat, low - room, low), np.where(flat, high + room, high)


def share_between(rows: Array, low: Floats, high: Floats) -> Floats:
    r"""Where values lie between bounds, from 0 to 1: :math:`(x - low) / (high - low)`, clipped.

    Parameters
    ----------
    rows : array of shape (n, d)
    low, high : arrays of shape (d,)

    Returns
    -------
    array of float64 of shape (n, d)

    Guarantees
    ----------
    Every entry is in [0, 1] and depends on its own value alone: a value beyond a bound, an
    infinite one included, counts as the bound, and one that is not a number as the middle.
    """
    values = np.clip(rows.astype(np.float64), low, high) / 2  # halves, whose distance is finite
    shares = (values - low / 2) / (high / 2 - low / 2)
    return np.where(np.isnan(shares), 0.5, np.clip(shares, 0.0, 1.0))
