"""Rows that are no longer than declared."""

import numpy as np
from sklearn.base import OneToOneFeatureMixin

from veracal import _checks
from veracal._types import Array, Floats
from veracal.data.rows import MappedRows
from veracal.training.preprocessing.transformer import PrivateTransformer, float_type

_SLACK = 2e-6  # a computed norm may be a little low, and single precision rounds up
_LEAST, _MOST = 1e-100, 1e100


def shortened(rows: Floats, norm: float) -> Floats:
    r"""Scale rows down that are longer than a norm: :math:`x \min(1, c / \lVert x \rVert)`.

    Parameters
    ----------
    rows : array of finite floats, of shape (n, d)
    norm : float
        The bound c.

    Returns
    -------
    array of the same shape and type

    Guarantees
    ----------
    Every row of the result is finite and no longer than ``norm``, roundings included, and
    depends on its own row alone. Norms are taken of rows divided by their largest entry, so
    that none overflows, however large a finite number is.
    """
    aim = norm * (1 - _SLACK)
    peaks = np.abs(rows).max(axis=1, keepdims=True, initial=0.0).astype(np.float64)
    unit = rows / np.where(peaks > 0, peaks, 1.0)
    lengths = np.linalg.norm(unit, axis=1, keepdims=True)  # from 1 to the root of d
    lengths = np.where(lengths > 0, lengths, 1.0)
    long = peaks > aim / lengths
    # Chosen, not multiplied: a factor may underflow where a row is huge.
    result: Floats = np.where(long, unit * (aim / lengths), rows).astype(rows.dtype)
    return result


class NormClipper(OneToOneFeatureMixin, PrivateTransformer):  # type: ignore[misc]
    """Shorten rows that are longer than a declared norm, and count none of them.

    Parameters
    ----------
    norm : float from 1e-100 to 1e100
        Longest Euclidean norm of a row.

    Attributes
    ----------
    private_ : bool
        Always True: nothing is read off the records.

    Guarantees
    ----------
    A fit reads no record. No row of the result is longer than ``norm``, roundings included,
    and each depends on its own row alone.

    Examples
    --------
    >>> NormClipper(1.0).fit_transform([[3.0, 4.0], [0.3, 0.4]]).round(3)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """

    def __init__(self, norm: float = 1.0) -> None:
        self.norm = norm

    def _check_settings(self) -> None:
        _checks.positive(norm=self.norm)
        if not _LEAST <= self.norm <= _MOST:
            raise ValueError(
                f"Expected norm between {_LEAST:g} and {_MOST:g}, got norm={self.norm!r}."
            )

    def _undeclared(self) -> tuple[str, ...]:
        return ()

    def _learn(self, rows: Array | MappedRows, size: int | None) -> tuple[str, ...]:
        return ()

    def _apply(self, rows: Array) -> Array:
        return shortened(rows.astype(float_type(rows)), self.norm)

    def longest_row(self) -> float | None:
        """Bound on the norm of a transformed row."""
        return float(self.norm)
