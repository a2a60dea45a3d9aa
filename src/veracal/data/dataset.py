"""Data sets: features, labels, groups and units of records, with their declared facts.

The unit of protection is an individual with one or several rows, whose number is limited here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks, _random
from veracal._types import Array, Frozen, Ints
from veracal.data.rows import (
    Label,
    MappedRows,
    check_classes,
    check_codes,
    check_features,
    check_ids,
    check_length,
    encode_labels,
    read_only,
    reject_shared_slots,
    restore_state,
    row_numbers,
)
from veracal.errors import DataError

_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class Group:
    """A categorical attribute of the records: one code for each row, and the codes' names.

    The names are declared, whether or not they occur. Codes are ints in [0, len(names)).
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


class Records:
    """Base of immutable classes of arrays with one row for each record."""

    _by_row: ClassVar[tuple[str, ...]] = ("y", "units", "slots", "row_digests")
    groups: Mapping[str, Group]
    name: str

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore_state(self, state)

    def _changed(self, **changes: Any) -> Self:
        """Copy with other fields, for changes that cannot violate the guarantees.

        The checks, which pass over all records, are skipped. Other layers construct a new
        object instead.
        """
        copy = object.__new__(type(self))
        state = {known.name: getattr(self, known.name) for known in fields(self)}  # type: ignore[arg-type]
        restore_state(copy, {**state, **changes})
        return copy

    def _select(self, index: Ints | slice, **changes: Any) -> Self:
        """Copy with the rows of ``index``, in its order."""
        arrays = {name: getattr(self, name) for name in self._by_row}
        selected = {name: a if a is None else a[index] for name, a in arrays.items()}
        groups = Frozen({name: group.take(index) for name, group in self.groups.items()})
        return self._changed(groups=groups, **selected, **changes)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Records):
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
        Empty for images and text.
    size : int, optional
        Public number of rows, which sampling rates and step counts may use; never the real n.
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
        Digest of each record, computed from its file by ``load(..., row_digests=True)`` and
        not from X; see :mod:`veracal.data.row_digests`. They are not keyed, so they are as
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
        where = self.name
        for name in ("size", "max_contributions"):
            if getattr(self, name) is not None:
                _checks.whole(**{name: getattr(self, name)})
        if self.norm is not None:
            _checks.positive(norm=self.norm)
        classes = check_classes(self.classes, where)
        X = check_features(self.X, self.norm, where)
        n = X.shape[0]
        fixed: dict[str, Any] = {
            "X": X,
            "y": check_codes(f"{where}: labels", self.y, len(classes), n),
            "classes": classes,
            "groups": Frozen(self.groups),
            "feature_names": tuple(self.feature_names),
        }
        for name in ("units", "slots"):
            if (ids := getattr(self, name)) is not None:
                fixed[name] = check_ids(ids, n, where, name)
        if self.slots is not None:
            reject_shared_slots(fixed["slots"], where)
        if self.row_digests is not None:
            digests = np.asarray(self.row_digests)
            if digests.dtype != np.dtype("V16") or digests.ndim != 1:
                raise DataError(
                    f"{where}: row digests",
                    "16 bytes for each row",
                    f"{digests.dtype} of shape {digests.shape}",
                    "Load the records with row_digests=True.",
                )
            check_length(f"{where}: row digests", len(digests), n)
            fixed["row_digests"] = read_only(digests)
        for name, value in fixed.items():
            object.__setattr__(self, name, value)
        for name, group in self.groups.items():
            check_length(f"{where}: group {name!r}", len(group), n)
        if self.feature_names and len(self.feature_names) != X.shape[1]:
            raise DataError(
                f"{where}: feature names",
                f"{X.shape[1]}, one for each column",
                str(len(self.feature_names)),
                "Name each column of X once.",
            )
        if self.max_contributions is not None and self.units is not None and n:
            most = int(np.unique(self.units, return_counts=True)[1].max())
            if most > self.max_contributions:
                raise DataError(
                    f"{where}: units",
                    f"at most {self.max_contributions} rows of one unit",
                    str(most),
                    "Use limit_contributions first.",
                )

    @classmethod
    def from_labels(
        cls,
        X: Any,
        labels: ArrayLike,
        classes: Sequence[Label],
        *,
        name: str = "data",
        **declared: Any,
    ) -> Self:
        """Make a data set from label values instead of their indices."""
        codes = encode_labels(labels, classes, f"{name}: labels")
        return cls(X, codes, tuple(classes), name=name, **declared)

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
        X = self.X.take(rows) if isinstance(self.X, MappedRows) else self.X[rows]
        selected = self._select(rows, X=X)
        needs_unique = self.max_contributions is not None or self.slots is not None
        if needs_unique and len(np.unique(rows)) < len(rows):
            return selected._changed(
                slots=None, max_contributions=None
            )  # a repeated row counts twice
        return selected

    def batches(self, rows: int = _ROWS) -> Iterator[Self]:
        """Iterate over batches of at most ``rows`` consecutive rows, loaded into memory."""
        _checks.whole(rows=rows)
        for start in range(0, len(self), rows):
            here = slice(start, start + rows)  # views of read-only arrays
            X = self.X.take(here)[:] if isinstance(self.X, MappedRows) else self.X[here]
            yield self._select(here, X=X)


AnyRecords = TypeVar("AnyRecords", bound=Records)


def concatenate(parts: Sequence[AnyRecords]) -> AnyRecords:
    """Concatenate records with the same declared facts.

    Ids and digests are kept if every part has them.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    names = (*first._by_row, "X") if isinstance(first, Dataset) else first._by_row
    by_name = {name: [getattr(part, name) for part in parts] for name in names}
    arrays = {
        name: None if any(a is None for a in each) else np.concatenate([a[:] for a in each])
        for name, each in by_name.items()
    }
    if (slots := arrays.get("slots")) is not None:
        reject_shared_slots(slots, first.name)
    groups = {
        name: Group(np.concatenate([part.groups[name].codes for part in parts]), group.names)
        for name, group in first.groups.items()
    }
    return first._changed(groups=Frozen(groups), **arrays)


def corrupt_labels(dataset: Dataset, p: float, *, rng: np.random.Generator) -> Dataset:
    r"""Replace each label, with probability p, by a class drawn uniformly from all k.

    The drawn class may be the old one, so a label changes with probability
    :math:`p (k-1)/k`, and the best possible confidence in a clean label becomes
    :math:`1 - p (k-1)/k` (Zhang et al. 2022, appendix on label noise injection).
    """
    _checks.fraction(p=p)
    drawn = rng.integers(dataset.n_classes, size=len(dataset))
    y = np.where(rng.random(len(dataset)) < p, drawn, dataset.y)
    return dataset._changed(y=y)


def check_learnable(dataset: Dataset, path: str | Path) -> None:
    """Reject a data set, loaded from a path, without records or with only one class."""
    if not len(dataset):
        raise DataError(
            path, "at least one record", "none left", "Check which rows are dropped."
        )
    if (dataset.y == dataset.y[0]).all():
        raise DataError(
            path,
            "records of at least two classes",
            f"only {dataset.classes[dataset.y[0]]!r}",
            "Check the declared label column and the selection of records.",
        )


def unit_numbers(units: Array | None, n: int) -> tuple[Ints, int]:
    """Number the units of n rows from 0, and count them; without ids each row is a unit."""
    if units is None:
        return np.arange(n), n
    ids, numbers = np.unique(units, return_inverse=True)
    return numbers.reshape(-1), len(ids)


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Rows of each unit side by side, for resampling whole units."""

    order: Ints  # row numbers, unit after unit
    starts: Ints  # of the rows of each unit in ``order``
    sizes: Ints  # their number

    @classmethod
    def of(cls, units: Array | None, n: int) -> "UnitRows":
        """Gather the rows of each unit; without ids each row is a unit."""
        numbers, n_units = unit_numbers(units, n)
        sizes = np.bincount(numbers, minlength=n_units)
        return cls(np.argsort(numbers, kind="stable"), np.cumsum(sizes) - sizes, sizes)

    def resample(self, rng: np.random.Generator) -> Ints:
        """Rows of units drawn with replacement, as many as there are units."""
        drawn = rng.integers(len(self.sizes), size=len(self.sizes))
        lengths = self.sizes[drawn]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows: Ints = self.order[np.repeat(self.starts[drawn], lengths) + within]
        return rows


def limit_contributions(
    dataset: Dataset,
    *,
    max_contributions: int | None,
    unit: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
) -> Dataset:
    """Keep at most ``max_contributions`` random rows of each unit, in their original order.

    Parameters
    ----------
    max_contributions : int or None
        None keeps all rows and guarantees nothing.
    unit : array of ids, optional
        Unit id of each row, in place of the data set's own units.
    rng : Generator, optional
        By default from secret entropy.

    Guarantees
    ----------
    No unit has more than ``max_contributions`` rows. Which rows of a unit are kept depends only
    on the number of its rows and on fresh draws: adding or removing a whole unit leaves the
    distribution of the rows of all other units unchanged.
    """
    if unit is not None:
        dataset = replace(dataset, units=np.asarray(unit), max_contributions=None)
    if max_contributions is None:
        return dataset._changed(max_contributions=None)
    _checks.whole(max_contributions=max_contributions)
    if dataset.units is None:
        return dataset._changed(
            max_contributions=max_contributions
        )  # each row is a unit, and has one row
    rng = _random.secret_generator() if rng is None else rng
    numbers, _ = unit_numbers(dataset.units, len(dataset))
    order = np.lexsort((rng.random(len(dataset)), numbers))
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    kept = np.sort(order[rank < max_contributions])
    return dataset.take(kept)._changed(max_contributions=max_contributions, may_drop=True)
