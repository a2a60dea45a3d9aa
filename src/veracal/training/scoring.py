"""From a fitted model and records to scores: the last place where a feature appears."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Floats
from veracal.data import Dataset, Scores
from veracal.errors import DataError


class Logits(Protocol):
    """A fitted classifier that gives logits."""

    classes_: Array

    def logits(self, X: ArrayLike) -> Floats:
        """Logits of shape (n, k), in the order of ``classes_``."""


def score(model: Logits, dataset: Dataset) -> Scores:
    """Logits of a model on a data set, with its labels, groups and units.

    Classes stand in the order in which the data set declares them. The scores of private
    records are private: what is computed from them is *internal* unless it is charged.

    Guarantees
    ----------
    The scores of a record are its own, bit for bit, whoever stands beside it, on the terms of
    :func:`veracal.data.scoring.logits_of`; for images and texts, if the model keeps
    rows apart itself, as networks here do.

    Examples
    --------
    >>> from veracal.data import load
    >>> from veracal.training import PrivateLogisticRegression
    >>> data = load("breast-cancer")
    >>> model = PrivateLogisticRegression(epsilon=3.0).fit_records(data)
    >>> score(model, data).values.shape
    (569, 2)
    """
    from veracal.data.scoring import logits_of  # its package imports this one

    place = {label: position for position, label in enumerate(model.classes_.tolist())}
    if set(place) != set(dataset.classes):
        raise DataError(
            f"{dataset.name}: classes",
            f"the classes of the model, {list(place)}",
            repr(list(dataset.classes)),
            "Score records of the task the model was fitted to.",
        )
    order = [place[label] for label in dataset.classes]
    rows: Any = dataset.X
    found = logits_of(model, rows, len(order)) if rows.ndim == 2 else model.logits(rows)
    return Scores(
        np.asarray(found)[:, order],
        "logits",
        dataset.classes,
        dataset.y,
        dataset.groups,
        dataset.units,
        dataset.name,
    )
