"""Columns scaled by what is declared about them."""

import math
from typing import Any

import numpy as np
from sklearn.base import OneToOneFeatureMixin

from veracal._types import Array
from veracal.data.rows import MappedRows
from veracal.training.preprocessing.bounds import (
    Bounds,
    Pair,
    bounds_of_columns,
    check_bounds,
    observed_bounds,
    share_between,
)
from veracal.training.preprocessing.transformer import PrivateTransformer, float_type


class BoundedScaler(OneToOneFeatureMixin, PrivateTransformer):  # type: ignore[misc]
    r"""Scale columns from declared bounds to a common range.

    .. math:: to_0 + (to_1 - to_0) \frac{\min(\max(x, low), high) - low}{high - low}

    Parameters
    ----------
    bounds : (low, high), or one such pair for each column, optional
        Values outside are clipped. They must be known without the records: from the
        definition of the column, or a public data set. None: read off the records, so not
        private.
    to : (low, high)
        The range of the result.

    Attributes
    ----------
    low_, high_ : arrays of shape (d,)
    private_ : bool
    not_private_because_ : tuple of str

    Guarantees
    ----------
    With declared bounds a fit reads no record, and each value of the result depends on one
    value alone and lies in ``to``.

    Examples
    --------
    >>> BoundedScaler(bounds=(0, 100)).fit_transform([[25.0], [50.0], [1000.0]]).ravel()
    array([0.25, 0.5 , 1.  ])
    """

    def __init__(self, bounds: Bounds | None = None, *, to: Pair = (0.0, 1.0)) -> None:
        self.bounds = bounds
        self.to = to

    def _check_settings(self) -> None:
        if self.bounds is not None:
            check_bounds(self.bounds)
        pairs = check_bounds(self.to, "to")
        if pairs.shape != (1, 2) or not math.isfinite(float(self.to[1]) - float(self.to[0])):
            raise ValueError(f"Expected one (low, high) for to, got to={self.to!r}.")

    def _undeclared(self) -> tuple[str, ...]:
        if self.bounds is None:
            return ("the bounds of the columns were read off the records; declare bounds=...",)
        return ()

    def _check_form(self, width: int) -> None:
        if self.bounds is not None:
            bounds_of_columns(self.bounds, width)

    def _learn(self, rows: Array | MappedRows, size: int | None) -> tuple[str, ...]:
        self.low_, self.high_ = (
            observed_bounds(rows)
            if self.bounds is None
            else bounds_of_columns(self.bounds, rows.shape[1])
        )
        return ()

    def _apply(self, rows: Array) -> Array:
        dtype = float_type(rows)
        low, high = _inward(self.to, dtype)
        shares = share_between(rows, self.low_, self.high_)
        scaled = (self.to[0] + (self.to[1] - self.to[0]) * shares).astype(dtype)
        result: Array = np.clip(scaled, low, high)
        return result

    def longest_row(self) -> float | None:
        """Bound on the norm of a transformed row."""
        return float(np.sqrt(self.n_features_in_) * np.abs(self.to).max())


def _inward(to: Pair, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The ends of a range in another precision, none of them outside of it."""
    low, high = np.asarray(to[0], dtype), np.asarray(to[1], dtype)
    if float(low) < to[0]:
        low = np.nextafter(low, dtype.type(np.inf))
    if float(high) > to[1]:
        high = np.nextafter(high, dtype.type(-np.inf))
    return low, high
