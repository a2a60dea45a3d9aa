"""The numbers a classifier gives: what they must be, and how they add up."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from veracal._types import Array, Floats
from veracal.data.checked import frozen, is_settled
from veracal.data.labels import refuse_mask
from veracal.errors import DataError

Kind = Literal["logits", "probabilities"]
_NUMBERS = 131_072  # checked at a time: they stay in the processor's cache


def floats(values: ArrayLike, name: str) -> Floats:
    """Return real numbers of one or two dimensions, in single or double precision."""
    refuse_mask(values, name)
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise DataError(
            name,
            "real numbers of shape (n, k), or (n,) for two classes",
            f"{array.dtype} of shape {array.shape}",
            "Pass one row for each record.",
        )
    single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    dtype = np.dtype(np.float32 if single else np.float64)
    if array.dtype == dtype and is_settled(array):
        return array
    with np.errstate(over="ignore"):  # a number too large for a float is refused as infinite
        return frozen(np.array(array, dtype=dtype))


def check_values(values: Floats, kind: Kind, name: str) -> None:
    """Refuse what is not a row of logits or of probabilities for each record."""
    if values.ndim != 2:
        raise DataError(
            name, "shape (n, k)", f"shape {values.shape}", f"Use Scores.from_{kind}."
        )
    if kind == "logits":
        # The sum of finite numbers may be infinite, that of others is never finite.
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(values.sum())
        if not finite and not np.isfinite(values).all():
            raise _bad(values, ~np.isfinite(values), "finite logits", name)
        return
    tol = 1e-3 if values.dtype == np.float32 else 1e-6
    rows = max(1, _NUMBERS // max(1, values.shape[1]))
    for start in range(0, len(values), rows):  # each block is looked at while it is at hand
        block = values[start : start + rows]
        check_range(block, name, start)
        if (np.abs(block @ np.ones(block.shape[1], block.dtype) - 1) < tol / 2).all():
            continue
        sums = block.sum(axis=1, dtype=np.float64)  # close to the line, or beyond
        off = np.abs(sums - 1) > tol
        if off.any():
            raise _bad(sums, off, "probabilities that sum to 1", name, start)


def check_range(values: Floats, name: str, start: int = 0) -> None:
    """Refuse numbers outside [0, 1], NaN among them, in records from ``start`` on."""
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        wrong = ~((values >= 0) & (values <= 1))
        expected = "probabilities in [0, 1] (pass logits as logits)"
        raise _bad(values, wrong, expected, name, start)


def joined_logits(values: Floats, members: Sequence[Sequence[int]]) -> Floats:
    """Logits of joined classes."""
    return np.stack([logsumexp(values[:, list(m)], axis=1) for m in members], axis=1)


def joined_probabilities(values: Floats, members: Sequence[Sequence[int]]) -> Floats:
    """Probabilities of joined classes; rounding may lift a sum an ulp above 1."""
    sums = np.stack([values[:, list(m)].sum(axis=1) for m in members], axis=1)
    result: Floats = np.minimum(sums, 1)
    return result


def _bad(values: Array, wrong: Array, expected: str, name: str, start: int = 0) -> DataError:
    """Error that names the first wrong value and its record, those before it counted."""
    row = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))[0])
    value = values[row][wrong[row]].flat[0] if values.ndim > 1 else values[row]
    found = f"{value:g} in record {start + row + 1}"
    return DataError(name, expected, found, "Correct the record.")
