"""Steps that are taken at their word to turn each row by itself, and how they are tried."""

import warnings
from typing import Any

import numpy as np
from scipy import sparse

from veracal._types import Array

_BLOCKS = (3, 30, 64, 256)  # rows that are turned together in a trial
_ALONE = 64


def finite(rows: Any) -> Array:
    """A dense array of floats, with zero for what is not finite."""
    dense = np.asarray(rows.toarray() if sparse.issparse(rows) else rows)
    numbers = dense if dense.dtype in (np.float32, np.float64) else dense.astype(np.float64)
    return np.where(np.isfinite(numbers), numbers, 0)


def apply_to_all(step: Any, rows: Array, like: Array) -> Array:
    """Rows as a step turns them that may be anybody's function.

    Parameters
    ----------
    step : fitted transformer
    rows : array of shape (n, d)
    like : array of shape (m, width)
        What the step makes of made-up rows: the form that the result must have.

    Returns
    -------
    array of shape (n, width)

    Guarantees
    ----------
    No row raises an error or a warning, and none changes the form of the result. Rows that
    cannot be turned together are turned one by one; those that raise an error by themselves,
    or would be wider or narrower than the others, become zero.
    """
    together = _tried(step, rows, like)
    if together is not None:
        return together
    result = np.zeros((len(rows), like.shape[1]), like.dtype)
    for place, row in enumerate(rows):
        alone = _tried(step, row[None], like)
        if alone is not None:
            result[place] = alone[0]
    return result


def _tried(step: Any, rows: Array, like: Array) -> Array | None:
    """Rows as a step turns them together; None if it raises or gives another form."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            result = finite(step.transform(rows)).astype(like.dtype, copy=False)
        except Exception:  # whatever a function of the user's may raise for a record
            return None
    return finite(result) if result.shape == (len(rows), like.shape[1]) else None


def in_form(step: Any, form: Array) -> Array:
    """Made-up rows as a step turns them; what it raises for them is told.

    Raises
    ------
    ValueError
        If the result is not one row for each.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        result = finite(step.transform(form))
    if result.ndim != 2 or len(result) != len(form):
        raise not_apart(step)
    return result


def check_rows_apart(step: Any, form: Array) -> None:
    """Refuse a step that lets one row change another's result, tried on made-up rows.

    Parameters
    ----------
    step : fitted transformer
    form : array of shape (m, d)
        Made-up rows that it is meant for; their width and type are taken for all others.

    Raises
    ------
    ValueError
        If rows get another result in company than alone, in one of a few hundred trials.

    Guarantees
    ----------
    None: it catches mistakes. That a step never mixes rows is the word of who wrote it.
    """
    like = in_form(step, form)
    for rows in _trial_rows(form):
        alone = np.concatenate([apply_to_all(step, row[None], like) for row in rows])
        company = np.resize(rows[:4], (_BLOCKS[-1] - len(rows), rows.shape[1]))
        many = np.concatenate([rows, company])
        for size in _BLOCKS:
            starts = range(0, len(rows), size)
            blocks = [apply_to_all(step, many[at : at + size], like) for at in starts]
            if not _same(np.concatenate(blocks)[: len(rows)], alone, rows):
                raise not_apart(step)


def _trial_rows(form: Array) -> list[Array]:
    """Sets of made-up rows: usual, negative, of all sizes, and mostly zero."""
    rng = np.random.default_rng(0)  # public draws: there is nothing to hide in them
    usual = np.resize(np.asarray(form, dtype=np.float64), (_ALONE, form.shape[1]))
    usual = usual * rng.uniform(0.5, 1.5, usual.shape)
    sizes = rng.choice([0.0, 1e-6, -1e-3, 0.5, -2.0, 30.0, -1e3], usual.shape)
    sizes[40], sizes[41], sizes[50:54] = 1e6, -1e6, sizes[49]  # outliers, and copies
    sparse_rows = np.zeros_like(usual)
    sparse_rows[5], sparse_rows[20, ::2], sparse_rows[60] = 3.0, -1.0, 1e6
    sets = [usual, -np.abs(usual) - 0.1, sizes, sparse_rows]
    return [_as(rows, form.dtype) for rows in sets]


def _as(rows: Array, dtype: np.dtype[Any]) -> Array:
    """Rows in another type, that nobody may write to."""
    whole = dtype.kind in "iu"
    result = (np.abs(rows) % 256 if whole else rows).astype(dtype)
    result.flags.writeable = False
    return result


def _same(together: Array, alone: Array, rows: Array) -> bool:
    """Whether two results differ by roundings at most, row by row."""
    exact = together.dtype == np.float64 and rows.dtype != np.float32
    sizes = [np.abs(part).max(axis=1, initial=0.0) for part in (rows, alone)]
    allowed = (1e-9 if exact else 1e-5) * np.maximum(*sizes) + 1e-12
    return bool((np.abs(together - alone).max(axis=1, initial=0.0) <= allowed).all())


def not_apart(step: Any) -> ValueError:
    """What to tell of a step that mixes rows."""
    return ValueError(
        f"Expected a step that turns each row by itself, got {step!r}, whose result for a "
        "row depends on the others. Use constants that are known without the records."
    )
