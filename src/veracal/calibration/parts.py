"""Records for training, for the map and for the guard."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from veracal._types import Array, Ints
from veracal.data import Dataset, split
from veracal.data.labels import Label, check_classes, encode_labels
from veracal.errors import DataError
from veracal.privacy import Relation, Unit
from veracal.privacy.answers.holder import check_protected

CLASSES = "the classes were read from the labels; declare classes=..."
SIZE = "the number of records was read from them; declare size=..."
Shares = tuple[float, float, float]


def dealt(
    dataset: Dataset, shares: Shares, relation: Relation, *, rng: np.random.Generator
) -> tuple[Dataset, Dataset, Dataset]:
    """Deal records to train on, to fit the map to and to ask the guard of.

    Parameters
    ----------
    dataset : Dataset
    shares : three floats that sum to 1
        Without a last part, the guard's records are the map's.
    relation : {"add-remove", "replace-one"}
    rng : Generator
        Of the coins; a secret one.

    Guarantees
    ----------
    As of :func:`veracal.data.split`: each unit has a coin of its own, or under replace-one
    each place, so neighbors differ in one part. The declared size of a part is its share of
    the whole's; under replace-one, where it is public, its real size.
    """
    exact = relation == "replace-one"
    made = split(dataset, shares, relation=relation, fixed_size=exact, rng=rng)
    train, held, last = made.train, made.calibration, made.test
    assert held is not None
    if exact:  # rounding may put a part one off its share
        train, held = replace(train, size=len(train)), replace(held, size=len(held))
    return train, held, held if last is None else last


def in_form(dataset: Dataset, shares: Shares, relation: Relation) -> Dataset:
    """What training gets after the deal, in form alone: of no use but to be checked."""
    rows = len(dataset) if relation == "replace-one" else 0
    coins = np.random.default_rng(0)  # public ones, for what is thrown away
    return dealt(dataset.take(np.arange(rows)), shares, relation, rng=coins)[0]


def sized(dataset: Dataset, size: int | None, relation: Relation) -> Dataset:
    """The data set with a size that was declared elsewhere, or that is public."""
    if size is None and dataset.size is None and relation == "replace-one":
        size = len(dataset)
    return dataset if size in (None, dataset.size) else replace(dataset, size=size)


def check_declared(
    dataset: object, classes: Sequence[Label] | None, relation: Relation, unit: Unit | None
) -> None:
    """Refuse a data set that is not what was declared, by what is public about it."""
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"Expected a data set of veracal.data, got {type(dataset).__name__}. Use fit(X, y) "
            "for arrays."
        )
    check_protected(dataset, relation, unit)
    if classes is not None and set(classes) != set(dataset.classes):
        raise DataError(
            f"{dataset.name}: classes",
            f"the classes of the model, {list(classes)}",
            repr(list(dataset.classes)),
            "Declare the same classes on both sides.",
        )


def dataset_of(
    rows: Array,
    labels: Array,
    classes: Sequence[Label] | None,
    size: int | None,
    relation: Relation,
) -> tuple[Dataset, Array, tuple[str, ...]]:
    """Arrays as a data set, with what was not declared read from them.

    Returns
    -------
    dataset : Dataset
    classes : array of shape (k,)
        In ascending order, of the labels' own type.
    reasons : tuple of str
        What was read. Not empty: not private.
    """
    known, codes, reasons = _known_classes(classes, labels)
    if size is None and relation == "add-remove":
        reasons += (SIZE,)
    # A data set has no labels that are truth values or floats.
    plain = known.astype(np.int64) if known.dtype.kind in "fb" else known
    size = len(rows) if size is None else size
    return Dataset(rows, codes, tuple(plain.tolist()), size=size), known, reasons


def _known_classes(
    classes: Sequence[Label] | None, labels: Array
) -> tuple[Array, Ints, tuple[str, ...]]:
    """Classes in ascending order, labels among them, and the reason if they were read."""
    if classes is not None:
        known = np.unique(np.asarray(check_classes(list(classes), "model")))
        return known, encode_labels(labels, known.tolist(), "labels"), ()
    known, codes = np.unique(labels, return_inverse=True)
    if len(known) < 2:
        raise ValueError(
            f"Expected two classes or more, got one class ({known[0]!r}) in the labels. "
            "Declare every class the records may have: classes=..."
        )
    return known, codes, (CLASSES,)
