"""Data sets: features, labels, groups and units of records, with their declared facts."""

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
    check_length,
    check_slots,
    encode_labels,
    read_only,
    reject_shared_slots,
    restore_state,
    row_numbers,
)
from veracal.data.rows import MappedRows
from veracal.errors import DataError

_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class Group:
    """A categorical attribute of the records: one code for each row, and the codes' names.

    Attributes
    ----------
    codes : array of ints in [0, len(names)), of shape (n,)
    names : tuple of str
        Declared names, whether or not they occur.
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
        restore_state(self, state)

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
    """Intersect attributes: crossing sex and age band gives groups such as women over 60.

    Names are joined with ``" & "``. Every combination is kept, empty or not, so the list of
    names reveals nothing about the records.
    """
    codes, names = first.codes, first.names
    for other in others:
        codes = codes * len(other.names) + other.codes
        names = tuple(f"{mine} & {theirs}" for mine in names for theirs in other.names)
    return Group(codes, names)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    r"""Features, labels, groups and units of n records, with their declared facts.

    Attributes
    ----------
    X : array of shape (n, d), images of shape (n, height, width[, 3]), or text
        Real numbers, images as bytes, text of shape (n, 1) for sentences and (n, 2) for
        pairs, or :class:`MappedRows` of a file larger than memory.
    y : array of ints in [0, k), of shape (n,)
        Index of each label in ``classes``.
    classes : tuple of str or int
        Declared labels. They are never inferred from the records.
    groups : mapping of str to Group
        Attributes by which results are broken down.
    units : array of ids, of shape (n,), optional
        Individual that each row belongs to. None: each row is its own unit.
    slots : array of ids, of shape (n,), optional
        Immutable slot id of each row, which a replacement record inherits. Only the
        relation replace-one uses slots. No two rows share one.
    feature_names : tuple of str
        One for each column of X; empty for images and text.
    size : int, optional
        Declared number of rows, a public figure that sampling rates and step counts may
        use. It is never set to the real n.
    max_contributions : int, optional
        Bound on the rows of one unit, which :func:`limit_contributions` enforces.
    norm : float, optional
        Declared bound on the Euclidean norm of a row of X, enforced during construction.
    may_drop : bool
        Whether loading may have dropped rows, because of a missing value or the bound on the
        rows of a unit. Replacing a record in the file can then change the number of rows.
    split_keys : tuple of str
        Fingerprints of the public keys that split these rows, so that no key is used twice.
    row_digests : array of shape (n,), of 16 bytes each, optional
        Digest of each record, computed from its file and not from X; see
        :mod:`veracal.data.row_digests`. ``load(..., row_digests=True)`` computes the digests,
        and every operation keeps them with their rows. They are not keyed, so they are as
        private as the records: they are never displayed or saved. A pickle, which holds the
        records themselves, keeps them, because a copy without them would be split differently.
    encoded : bool
        Whether X was computed from the records by a schema, an image decoder or a frozen
        network. If so, the bytes of X do not identify a record.
    split_draws : tuple of str
        Ids of the random draws that split these rows, each with the name of the partition.
        Rows that were split by different draws may be in the training partition of one split
        and in the test partition of another.
    name : str
        Name of the data set.

    Guarantees
    ----------
    X holds no NaN and no infinity, every label and group code is declared, all arrays have n
    rows, and ``norm`` and ``max_contributions`` hold. Violations raise before a private computation
    starts. Writable arrays, and views of writable arrays, are copied, and the copies are
    read-only. ``repr`` shows no record.
    """

    X: Array | MappedRows
    y: Ints
    classes: tuple[Label, ...]
    groups: Mapping[str, Group] = field(default_factory=dict)
    units: Array | None = None
    feature_names: tuple[str, ...] = ()
    size: int | None = None
    max_contributions: int | None = None
    norm: float | None = None
    may_drop: bool = False
    split_keys: tuple[str, ...] = ()
    split_draws: tuple[str, ...] = ()
    name: str = "data"
    slots: Array | None = None
    row_digests: Array | None = None
    encoded: bool = False

    def __post_init__(self) -> None:
        for name in ("size", "max_contributions"):
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
            check_length(f"{self.name}: group {name!r}", len(group), n)
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
        """Make a data set from label values instead of their indices."""
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
        limit = self.max_contributions
        most = "" if limit is None else f" of at most {limit} rows"
        unit = "row" if self.units is None else f"id{most}"
        shape = "×".join(map(str, self.X.shape[1:]))
        return (
            f"Dataset({self.name!r}: {len(self)} rows of {shape}, {len(self.classes)} classes, "
            f"groups: {groups}, unit: {unit}, declared size: {self.size})"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore_state(self, state)

    @property
    def n_classes(self) -> int:
        """Number of declared classes."""
        return len(self.classes)

    @property
    def labels(self) -> Array:
        """Label values, of shape (n,)."""
        return np.asarray(self.classes)[self.y]

    def take(self, index: Ints) -> Self:
        """Select the rows of ``index`` (numbers or a mask), in its order.

        Rows of a file stay on disk. Declared facts are kept; slots are dropped if a row is
        selected twice.
        """
        rows = row_numbers(index, len(self))
        X = self.X.take(rows) if isinstance(self.X, MappedRows) else read_only(self.X[rows])
        needs_unique = self.max_contributions is not None or self.slots is not None
        twice = needs_unique and len(np.unique(rows)) < len(rows)
        return self._changed(
            X=X,
            y=read_only(self.y[rows]),
            groups=Frozen({k: g.take(rows) for k, g in self.groups.items()}),
            units=None if self.units is None else read_only(self.units[rows]),
            slots=None if self.slots is None or twice else read_only(self.slots[rows]),
            row_digests=None if self.row_digests is None else read_only(self.row_digests[rows]),
            # A row selected twice counts twice.
            max_contributions=None if twice else self.max_contributions,
        )

    def _changed(self, **changes: Any) -> Self:
        """Copy with other fields, for changes that cannot violate the guarantees.

        The checks, which pass over all records, are skipped. Other layers construct a new
        ``Dataset`` instead.
        """
        copy = object.__new__(type(self))
        for known in fields(self):
            value = changes.get(known.name, getattr(self, known.name))
            object.__setattr__(copy, known.name, value)
        return copy

    def batches(self, rows: int = _ROWS) -> Iterator[Self]:
        """Iterate over batches of at most ``rows`` consecutive rows, loaded into memory."""
        _checks.whole(rows=rows)
        for start in range(0, len(self), rows):
            here = slice(start, start + rows)  # views of read-only arrays
            yield self._changed(
                X=self.X.take(here)[:] if isinstance(self.X, MappedRows) else self.X[here],
                y=self.y[here],
                groups=Frozen({k: g.take(here) for k, g in self.groups.items()}),
                units=None if self.units is None else self.units[here],
                slots=None if self.slots is None else self.slots[here],
                row_digests=None if self.row_digests is None else self.row_digests[here],
            )


def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """Concatenate data sets with the same declared facts."""
    first = parts[0]
    if len(parts) == 1:
        return first
    names = tuple(first.groups)
    units = _joined([part.units for part in parts])
    slots = _joined([part.slots for part in parts])
    if slots is not None:
        reject_shared_slots(slots, first.name)
    return first._changed(
        X=read_only(np.concatenate([part.X[:] for part in parts])),
        y=read_only(np.concatenate([part.y for part in parts])),
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
    """Concatenate the arrays of all parts; None unless every part has one."""
    present = [array for array in arrays if array is not None]
    return read_only(np.concatenate(present)) if len(present) == len(arrays) else None


def _check_contributions(dataset: Dataset) -> None:
    """Reject a unit with more rows than declared."""
    if dataset.max_contributions is None or dataset.units is None or not len(dataset):
        return
    most = int(np.unique(dataset.units, return_counts=True)[1].max())
    if most > dataset.max_contributions:
        raise DataError(
            f"{dataset.name}: units",
            f"at most {dataset.max_contributions} rows of one unit",
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


def check_learnable(dataset: Dataset, path: str | Path) -> None:
    """Reject a loaded data set without records, or with records of only one class.

    Parameters
    ----------
    dataset : Dataset
    path : path
        File or folder that it was loaded from.
    """
    if not len(dataset):
        raise DataError(
            str(path),
            "at least one record",
            "none left",
            "Check which rows are dropped.",
        )
    if (dataset.y == dataset.y[0]).all():
        raise DataError(
            str(path),
            "records of at least two classes",
            f"only {dataset.classes[dataset.y[0]]!r}",
            "Check the declared label column and the selection of records.",
        )
