"""Records of people, as their holder hands them to the rest of the house.

Labels made wrong on purpose, to see what a learner makes of doubt.

Whether anything can be learnt from records at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Array, Frozen, Ints
from veracal.data.labels import (
    Label,
    check_classes,
    check_codes,
    check_digests,
    check_features,
    check_ids,
    check_slots,
    encode_labels,
    frozen,
    refuse_shared_slots,
    restore,
    row_numbers,
    same_length,
)
from veracal.data.rows import MappedRows
from veracal.errors import DataError

_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class Group:
    """An attribute that divides people: one code for each row, and the codes' names.

    Attributes
    ----------
    codes : array of ints in [0, len(names)), of shape (n,)
    names : tuple of str
        Declared names, whether or not anybody bears them.
    """

    codes: Ints
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or len(set(self.names)) < len(self.names):
            raise DataError(
                "a group", "a list of different names", repr(self.names)[:80], "Rename some."
            )
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "codes", check_codes("a group", self.codes, len(self.names)))

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"Group(names={self.names})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore(self, state)

    def take(self, index: Ints | slice) -> "Group":
        """Keep the rows of ``index``, in its order."""
        return Group(self.codes[index], self.names)

    @classmethod
    def from_values(
        cls, values: ArrayLike, names: Sequence[Label], *, where: str = "a group"
    ) -> "Group":
        """Code an array of values by their declared names."""
        return cls(encode_labels(values, names, where), tuple(map(str, names)))


def cross(first: Group, *others: Group) -> Group:
    """Intersect attributes: women over 60 are the cross of women and of people over 60.

    Names are joined with ``" & "``; every combination is kept, inhabited or not, so the
    list of names says nothing about the records.
    """
    codes, names = first.codes, first.names
    for other in others:
        codes = codes * len(other.names) + other.codes
        names = tuple(f"{mine} & {theirs}" for mine in names for theirs in other.names)
    return Group(codes, names)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    r"""Features, labels, groups and units of n records, with what is public about them.

    Attributes
    ----------
    X : array of shape (n, d), images of shape (n, height, width[, 3]), or text
        Real numbers, bytes of images, text of shape (n, 1) for sentences and (n, 2) for
        pairs, or :class:`MappedRows` of a file larger than memory.
    y : array of ints in [0, k), of shape (n,)
        Position of each label in ``classes``.
    classes : tuple of str or int
        Declared labels. They are never read from the records.
    groups : mapping of str to Group
        Attributes by which results are told apart.
    units : array of ids, of shape (n,), optional
        Whom each row belongs to. None: each row is a unit of its own.
    slots : array of ids, of shape (n,), optional
        Immutable id of the place that each row holds, which a replacement inherits. Only
        the relation replace-one uses them. No two rows share one.
    feature_names : tuple of str
        One for each column of X; empty for images and text.
    size : int, optional
        Declared number of rows, a public figure that sampling rates and step counts may
        use. It is never the real n.
    at_most : int, optional
        Most rows of one unit, once :func:`limit_contributions` has seen to it.
    norm : float, optional
        Declared bound on the Euclidean norm of a row of X, enforced when it was made.
    may_drop : bool
        Whether loading may have left out rows, for a missing value or as too many of one
        unit. Replacing a record in the file can then change the number of rows here.
    dealt_by : tuple of str
        Marks of the keys by which these rows were dealt, so that none deals them twice.
    row_digests : array of shape (n,), of 16 bytes each, optional
        Identity of each record, from the content of its file and not from X; see
        :mod:`veracal.data.row_digests`. ``load(..., row_digests=True)`` computes it, and
        it follows the rows through every operation. It is not keyed, so it is as private as
        the records: it is never shown or saved. A pickle, which holds the records
        themselves, keeps it, because a copy without it would be split in another way.
    encoded : bool
        Whether X was computed from the records, by a schema, an image decoder or a frozen
        network. Then the bytes of X do not identify a record.
    drawn_by : tuple of str
        Marks of the random draws that split these rows, each with the name of the part: rows
        that were split by different draws may be in the training part of one split and in the
        test part of another.
    name : str
        What to call it.

    Guarantees
    ----------
    X holds no NaN and no infinity, every label and group code is declared, all parts have n
    rows, and ``norm`` and ``at_most`` hold; anything else is refused here, before a private
    computation starts. Arrays that somebody can write to, through whatever view, are copied,
    and the copies cannot be written to. ``repr`` shows no record.
    """

    X: Array | MappedRows
    y: Ints
    classes: tuple[Label, ...]
    groups: Mapping[str, Group] = field(default_factory=dict)
    units: Array | None = None
    feature_names: tuple[str, ...] = ()
    size: int | None = None
    at_most: int | None = None
    norm: float | None = None
    may_drop: bool = False
    dealt_by: tuple[str, ...] = ()
    drawn_by: tuple[str, ...] = ()
    name: str = "data"
    slots: Array | None = None
    row_digests: Array | None = None
    encoded: bool = False

    def __post_init__(self) -> None:
        for name in ("size", "at_most"):
            if getattr(self, name) is not None:
                _checks.whole(**{name: getattr(self, name)})
        if self.norm is not None:
            _checks.positive(norm=self.norm)
        classes = check_classes(self.classes, self.name)
        X = check_features(self.X, self.norm, self.name)
        n = X.shape[0]
        fixed = {
            "X": X,
            "y": check_codes(f"{self.name}: labels", self.y, len(classes), n),
            "classes": classes,
            "groups": Frozen(self.groups),
            "units": None if self.units is None else check_ids(self.units, n, self.name),
            "slots": None if self.slots is None else check_slots(self.slots, n, self.name),
            "row_digests": (
                None
                if self.row_digests is None
                else check_digests(self.row_digests, n, self.name)
            ),
            "feature_names": tuple(self.feature_names),
        }
        for name, value in fixed.items():
            object.__setattr__(self, name, value)
        for name, group in self.groups.items():
            same_length(f"{self.name}: group {name!r}", len(group), n)
        if self.feature_names and len(self.feature_names) != X.shape[1]:
            raise DataError(
                f"{self.name}: feature names",
                f"{X.shape[1]}, one for each column",
                str(len(self.feature_names)),
                "Name each column of X once.",
            )
        _check_contributions(self)

    @classmethod
    def from_labels(
        cls,
        X: Any,
        labels: ArrayLike,
        classes: Sequence[Label],
        *,
        groups: Mapping[str, Group] = Frozen(),
        units: ArrayLike | None = None,
        slots: ArrayLike | None = None,
        feature_names: Sequence[str] = (),
        size: int | None = None,
        norm: float | None = None,
        name: str = "data",
    ) -> Self:
        """Make a data set from labels as they are written, instead of their positions."""
        return cls(
            X,
            encode_labels(labels, classes, f"{name}: labels"),
            tuple(classes),
            groups=groups,
            units=None if units is None else np.asarray(units),
            slots=None if slots is None else np.asarray(slots),
            feature_names=tuple(feature_names),
            size=size,
            norm=norm,
            name=name,
        )

    def __len__(self) -> int:
        return self.X.shape[0]

    def __repr__(self) -> str:
        groups = ", ".join(self.groups) or "none"
        most = "" if self.at_most is None else f" of at most {self.at_most} rows"
        unit = "row" if self.units is None else f"id{most}"
        shape = "×".join(map(str, self.X.shape[1:]))
        return (
            f"Dataset({self.name!r}: {len(self)} rows of {shape}, {len(self.classes)} classes, "
            f"groups: {groups}, unit: {unit}, declared size: {self.size})"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore(self, state)

    @property
    def n_classes(self) -> int:
        """Number of declared classes."""
        return len(self.classes)

    @property
    def labels(self) -> Array:
        """Labels as they are written, of shape (n,)."""
        return np.asarray(self.classes)[self.y]

    def take(self, index: Ints) -> Self:
        """Keep the rows of ``index`` (numbers or a mask), in its order.

        Rows of a file stay on disk. The declared figures are kept as they are; slots are
        not if a row is taken twice.
        """
        rows = row_numbers(index, len(self))
        X = self.X.take(rows) if isinstance(self.X, MappedRows) else frozen(self.X[rows])
        bound = self.at_most is not None or self.slots is not None
        twice = bound and len(np.unique(rows)) < len(rows)
        return self._changed(
            X=X,
            y=frozen(self.y[rows]),
            groups=Frozen({k: g.take(rows) for k, g in self.groups.items()}),
            units=None if self.units is None else frozen(self.units[rows]),
            slots=None if self.slots is None or twice else frozen(self.slots[rows]),
            row_digests=None if self.row_digests is None else frozen(self.row_digests[rows]),
            at_most=None if twice else self.at_most,  # a row taken twice counts twice
        )

    def _changed(self, **changes: Any) -> Self:
        """Copy with other fields, for changes that cannot break what was checked.

        The checks are skipped: a pass over all records for each subset would be work
        done twice. Code outside this room makes a new ``Dataset`` instead.
        """
        copy = object.__new__(type(self))
        for known in fields(self):
            value = changes.get(known.name, getattr(self, known.name))
            object.__setattr__(copy, known.name, value)
        return copy

    def batches(self, rows: int = _ROWS) -> Iterator[Self]:
        """Iterate over consecutive rows, at most ``rows`` at a time, in memory."""
        _checks.whole(rows=rows)
        for start in range(0, len(self), rows):
            here = slice(start, start + rows)  # a view: nobody can write to the arrays
            yield self._changed(
                X=self.X.take(here)[:] if isinstance(self.X, MappedRows) else self.X[here],
                y=self.y[here],
                groups=Frozen({k: g.take(here) for k, g in self.groups.items()}),
                units=None if self.units is None else self.units[here],
                slots=None if self.slots is None else self.slots[here],
                row_digests=None if self.row_digests is None else self.row_digests[here],
            )


def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """Join data sets of one declaration, row after row."""
    first = parts[0]
    if len(parts) == 1:
        return first
    names = tuple(first.groups)
    units = _joined([part.units for part in parts])
    slots = _joined([part.slots for part in parts])
    if slots is not None:
        refuse_shared_slots(slots, first.name)
    return first._changed(
        X=frozen(np.concatenate([part.X[:] for part in parts])),
        y=frozen(np.concatenate([part.y for part in parts])),
        groups=Frozen(
            {
                name: Group(
                    np.concatenate([part.groups[name].codes for part in parts]),
                    first.groups[name].names,
                )
                for name in names
            }
        ),
        units=units,
        slots=slots,
        row_digests=_joined([part.row_digests for part in parts]),
    )


def _joined(arrays: "list[Array | None]") -> Array | None:
    """Join arrays of all parts; None unless every part has one."""
    found = [array for array in arrays if array is not None]
    return frozen(np.concatenate(found)) if len(found) == len(arrays) else None


def _check_contributions(dataset: Dataset) -> None:
    """Refuse a unit with more rows than declared."""
    if dataset.at_most is None or dataset.units is None or not len(dataset):
        return
    most = int(np.unique(dataset.units, return_counts=True)[1].max())
    if most > dataset.at_most:
        raise DataError(
            f"{dataset.name}: units",
            f"at most {dataset.at_most} rows of one unit",
            str(most),
            "Use limit_contributions first.",
        )


def corrupt_labels(dataset: Dataset, p: float, *, rng: np.random.Generator) -> Dataset:
    r"""Replace each label, with probability p, by a class drawn uniformly from all k.

    The drawn class may be the old one, so a label changes with probability
    :math:`p (k-1)/k`, and the best possible confidence in a clean label becomes
    :math:`1 - p (k-1)/k` (Zhang et al. 2022, appendix on label noise injection).

    Parameters
    ----------
    dataset : Dataset
    p : float in [0, 1]
    rng : Generator
    """
    _checks.fraction(p=p)
    drawn = rng.integers(dataset.n_classes, size=len(dataset))
    y = np.where(rng.random(len(dataset)) < p, drawn, dataset.y)
    return dataset._changed(y=y)


def check_worth(dataset: Dataset, path: str | Path) -> None:
    """Refuse records from which nothing can be learnt: none, or all of one class.

    The rule holds for whatever is loaded from a path: a table, images, sentences, or one
    part of a collection.

    Parameters
    ----------
    dataset : Dataset
    path : path
        Where it came from.
    """
    if not len(dataset):
        raise DataError(
            str(path), "at least one record", "none left", "Look at what is dropped as missing."
        )
    if (dataset.y == dataset.y[0]).all():
        raise DataError(
            str(path),
            "records of at least two classes",
            f"only {dataset.classes[dataset.y[0]]!r}",
            "Check what was declared as the label, and which records were chosen.",
        )
