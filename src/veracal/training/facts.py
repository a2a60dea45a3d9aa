"""What is public about the records of a fit, and what had to be read off them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.data import Dataset
from veracal.data.labels import Label, check_classes, encode_labels
from veracal.data.rows import MappedRows
from veracal.errors import DataError
from veracal.privacy import Relation, Unit
from veracal.privacy.answers.holder import check_protected

_ENTRIES = 1 << 22  # of rows that are looked at together


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Facts:
    """The records of one fit, and what is known about them.

    Attributes
    ----------
    X : array or MappedRows of shape (n, d)
    codes : array of ints in [0, k), of shape (n,)
        Position of each label among the classes; empty as long as they have not been read.
    classes : array of shape (k,)
    size : int
        Declared number of records. The real one where ``reasons`` says so, where replace-one
        makes it public, and where the model has no use for it.
    norm : float or None
        Declared bound on the norm of a row, if any.
    reasons : tuple of str
        What was read from the records in want of a declaration. Not empty: not private.
    """

    X: Array | MappedRows
    codes: Ints
    classes: Array
    size: int
    norm: float | None = None
    reasons: tuple[str, ...] = ()


def facts_of_arrays(
    X: Array | MappedRows,
    y: Array,
    *,
    classes: Sequence[Label] | None,
    size: int | None,
    relation: Relation,
    needs_size: bool = True,
) -> Facts:
    """Take what was declared, and infer the rest for scikit-learn's sake."""
    reasons = []
    codes: Ints
    if classes is None:
        known, codes = np.unique(y, return_inverse=True)
        reasons.append("the classes were read from the labels; declare classes=...")
        if len(known) < 2:
            raise ValueError(
                f"Expected two classes or more, got one class ({known[0]!r}) in the labels. "
                "Declare every class the records may have: classes=..."
            )
    else:
        known = declared_classes(classes)
        codes = encode_labels(y, known.tolist(), "labels")
    if size is None:
        if relation == "add-remove" and needs_size:
            reasons.append("the number of records was read from them; declare size=...")
        size = len(X)
    check_size(size, len(X), relation)
    return Facts(X, codes, known, int(size), None, tuple(reasons))


def public_facts(
    dataset: Dataset,
    *,
    classes: Sequence[Label] | None,
    size: int | None,
    relation: Relation,
    unit: Unit | None = None,
    needs_size: bool = True,
    all_here: bool = True,
) -> Facts:
    """Take what the data set or the model declares; nothing is inferred, no record is read.

    Where not all records are here, the size must be declared, and is that of all.

    Raises
    ------
    DataError
        By what is public alone, so that it may be raised before anything is charged.
    """
    check_protected(dataset, relation, unit)
    declared = dataset.size if size is None else size
    if declared is None and (relation == "replace-one" or not needs_size):
        declared = len(dataset) if needs_size else max(1, len(dataset))
    if declared is None:
        raise DataError(
            dataset.name,
            "a declared number of records",
            "none",
            "Give size=... to the model or to the data set: the real number is private.",
        )
    check_size(declared, len(dataset) if all_here else declared, relation)
    known = declared_classes(dataset.classes if classes is None else classes)
    if set(known.tolist()) != set(dataset.classes):
        raise DataError(
            f"{dataset.name}: classes",
            f"the classes of the model, {known.tolist()}",
            repr(list(dataset.classes)),
            "Declare the same classes on both sides.",
        )
    return Facts(dataset.X, np.empty(0, dtype=int), known, int(declared), dataset.norm)


def with_labels(facts: Facts, dataset: Dataset) -> Facts:
    """Read the labels, as positions among the model's classes."""
    place = {label: position for position, label in enumerate(facts.classes.tolist())}
    codes = np.array([place[label] for label in dataset.classes])[dataset.y]
    return replace(facts, codes=codes)


def declared_classes(classes: Sequence[Label]) -> Array:
    """Declared classes in ascending order, as scikit-learn keeps them."""
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise DataError(
            "model: classes", "a list of labels", repr(classes), "Write classes=[...]."
        )
    return np.unique(np.asarray(check_classes(list(classes), "model")))


def check_numbers(dataset: Dataset) -> None:
    """Refuse what is no data set, images and text, by the form of the records alone."""
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"Expected a data set of veracal.data, got {type(dataset).__name__}. Use fit(X, y) "
            "for arrays."
        )
    if dataset.X.ndim != 2 or dataset.X.dtype.kind not in "fu":
        raise DataError(
            f"{dataset.name}: features",
            "numbers of shape (n, d)",
            f"{dataset.X.dtype} of shape (n, {', '.join(map(str, dataset.X.shape[1:]))})",
            "Turn images or text into frozen features first (veracal.data.features).",
        )


def check_size(size: int, n: int, relation: Relation) -> None:
    """Refuse a size that is none, or is not n where n is public."""
    _checks.whole(size=size)
    if relation == "replace-one" and size != n:
        raise ValueError(
            f"Expected size={n}, the number of records, which replace-one takes to be "
            f"public, got size={size!r}."
        )


def row_norms(X: Array | MappedRows) -> Floats:
    """Euclidean norms of all rows in float64, read some at a time."""
    norms = np.empty(len(X))
    rows = max(1, _ENTRIES // max(1, X.shape[1]))
    for start in range(0, len(X), rows):
        block = np.asarray(X[start : start + rows], dtype=np.float64)
        norms[start : start + len(block)] = _norms(block)
    return norms


def _norms(rows: Floats) -> Floats:
    """Norms of some rows; where squares would overflow or vanish, of rows scaled first.

    Rows of numbers that follow each other in memory are added up each by itself, in an order
    that depends on their width alone: a clip rule that jumps must not see other rows in them.
    """
    rows = np.ascontiguousarray(rows)
    with np.errstate(all="ignore"):
        norms: Floats = np.sqrt(np.square(rows).sum(axis=1))
        odd = np.flatnonzero(~((norms > 1e-140) & (norms < 1e140)))
        if len(odd):
            peaks = np.abs(rows[odd]).max(axis=1, initial=0.0)
            scaled = rows[odd] / np.where(peaks > 0, peaks, 1.0)[:, None]
            norms[odd] = peaks * np.sqrt(np.square(scaled).sum(axis=1))
    return norms
