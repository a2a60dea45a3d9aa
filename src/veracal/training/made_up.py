"""Records that nobody has, in the form of a data set's."""

import math
from collections.abc import Sequence

import numpy as np

from veracal._types import Array, Floats
from veracal.data import Dataset
from veracal.data.labels import Label
from veracal.data.rows import MappedRows
from veracal.privacy import Relation

_ROWS = 16


def made_up(dataset: Dataset, relation: Relation) -> Dataset:
    """Invent a data set from what is public about another; see :func:`made_up_like`."""
    return made_up_like(
        dataset.X,
        dataset.classes,
        size=dataset.size,
        norm=dataset.norm,
        relation=relation,
        name=dataset.name,
    )


def made_up_like(
    X: Array | MappedRows,
    classes: Sequence[Label],
    *,
    size: int | None,
    norm: float | None,
    relation: Relation,
    name: str = "data",
) -> Dataset:
    """Invent records of the same form.

    They stand in for records wherever a step is only to learn how wide its rows are, or is
    tried before anything is charged.

    Parameters
    ----------
    X : array or MappedRows of numbers, of shape (n, ...)
        Of which only the shape and the type are looked at.
    classes, size, norm, name
        As declared.
    relation : {"add-remove", "replace-one"}

    Returns
    -------
    Dataset
        Of the same width, type and declared figures. Under replace-one, where it is public, it
        has as many rows; under add-remove a few.

    Guarantees
    ----------
    It depends on no record and, under add-remove, not on how many there are.
    """
    n = len(X) if relation == "replace-one" else max(_ROWS, len(classes))
    some = usual_rows(math.prod(X.shape[1:]))
    if norm is not None:
        some *= norm / (2 * np.linalg.norm(some, axis=1, keepdims=True))
    rows = np.abs(some * 100).astype(np.uint8) if X.dtype.kind == "u" else some.astype(X.dtype)
    return Dataset(
        np.resize(rows, (n, rows.shape[1])).reshape(n, *X.shape[1:]),
        np.arange(n) % len(classes),
        tuple(classes),
        size=size,
        norm=norm,
        name=name,
    )


def usual_rows(width: int) -> Floats:
    """A few rows of numbers for which usual functions have a value."""
    rng = np.random.default_rng(0)  # public draws: there is nothing to hide in them
    return rng.uniform(0.1, 0.9, (_ROWS, width))
