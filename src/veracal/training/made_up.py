"""Records that nobody has, in the form of a data set's."""

import numpy as np

from veracal.data import Dataset
from veracal.privacy import Relation

_ROWS = 16


def made_up(dataset: Dataset, relation: Relation) -> Dataset:
    """Invent a data set from what is public about another.

    It stands in for the records wherever a step is only to learn how wide its rows are, or is
    tried before anything is charged.

    Parameters
    ----------
    dataset : Dataset
        Numbers of shape (n, d).
    relation : {"add-remove", "replace-one"}

    Returns
    -------
    Dataset
        Of the same width, type, classes and declared figures. Under replace-one, where it is
        public, it has as many rows; under add-remove a few.

    Guarantees
    ----------
    It depends on no record and, under add-remove, not on how many there are.
    """
    n = len(dataset) if relation == "replace-one" else max(_ROWS, dataset.n_classes)
    rng = np.random.default_rng(0)  # public draws: there is nothing to hide in them
    some = rng.standard_normal((_ROWS, dataset.X.shape[1]))
    if dataset.norm is not None:
        some *= dataset.norm / (2 * np.linalg.norm(some, axis=1, keepdims=True))
    whole = dataset.X.dtype.kind == "u"
    rows = np.abs(some * 100).astype(np.uint8) if whole else some.astype(dataset.X.dtype)
    return Dataset(
        np.resize(rows, (n, rows.shape[1])),
        np.arange(n) % dataset.n_classes,
        dataset.classes,
        size=dataset.size,
        norm=dataset.norm,
        name=dataset.name,
    )
