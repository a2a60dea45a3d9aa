"""Records of people, as their holder hands them to the rest of the house."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Array, Frozen, Ints
from veracal.data.labels import TEXT, Label, check_classes, encode_labels
from veracal.data.rows import MappedRows
from veracal.errors import DataError

_CHECKED_ROWS = 65_536


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
        codes = _codes("a group", self.codes, len(self.names))
        object.__setattr__(self, "codes", codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"Group(names={self.names})"

    def take(self, index: Ints) -> "Group":
        """Keep the rows of ``index``, in its order."""
        return Group(self.codes[index], self.names)

    @classmethod
    def from_values(cls, values: ArrayLike, names: Sequence[Label]) -> "Group":
        """Code an array of values by their declared names."""
        return cls(encode_labels(values, names, "a group"), tuple(map(str, names)))


def cross(*groups: Group) -> Group:
    """Intersect attributes: women over 60 are the cross of women and of people over 60.

    Names are joined with ``" & "``; every combination is kept, inhabited or not, so the
    list of names says nothing about the records.
    """
    codes, names = groups[0].codes, groups[0].names
    for other in groups[1:]:
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
    feature_names : tuple of str
        One for each column of X; empty for images and text.
    size : int, optional
        Declared number of rows, a public figure that sampling rates and step counts may
        use. It is never the real n.
    at_most : int, optional
        Most rows of one unit, once :func:`limit_contributions` has seen to it.
    norm : float, optional
        Declared bound on the Euclidean norm of a row of X, enforced when it was made.
    name : str
        What to call it.

    Guarantees
    ----------
    X holds no NaN and no infinity, every label and group code is declared, and all parts
    have n rows; anything else is refused here, before a private computation starts.
    ``repr`` shows no record.
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
    name: str = "data"

    def __post_init__(self) -> None:
        classes = check_classes(self.classes, self.name)
        X = _features(self.X, self.name)
        n = X.shape[0]
        fixed = {
            "X": X,
            "y": _codes(f"{self.name}: labels", self.y, len(classes), n),
            "classes": classes,
            "groups": Frozen(self.groups),
            "units": None if self.units is None else _ids(self.units, n, self.name),
            "feature_names": tuple(self.feature_names),
        }
        for name, value in fixed.items():
            object.__setattr__(self, name, value)
        for name, group in self.groups.items():
            _same_length(f"{self.name}: group {name!r}", len(group), n)
        if self.feature_names and len(self.feature_names) != X.shape[1]:
            raise DataError(
                f"{self.name}: feature names",
                f"{X.shape[1]}, one for each column",
                str(len(self.feature_names)),
                "Name each column of X once.",
            )
        for name in ("size", "at_most"):
            if getattr(self, name) is not None:
                _checks.whole(**{name: getattr(self, name)})
        if self.norm is not None:
            _checks.positive(norm=self.norm)

    @classmethod
    def from_labels(
        cls,
        X: Any,
        labels: ArrayLike,
        classes: Sequence[Label],
        *,
        groups: Mapping[str, Group] = Frozen(),
        units: ArrayLike | None = None,
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

        Rows of a file stay on disk. The declared figures are kept as they are.
        """
        index = np.asarray(index)
        if index.dtype == bool:
            index = np.flatnonzero(index)
        X = self.X.take(index) if isinstance(self.X, MappedRows) else self.X[index]
        return self.changed(
            X=X,
            y=self.y[index],
            groups=Frozen({k: g.take(index) for k, g in self.groups.items()}),
            units=None if self.units is None else self.units[index],
        )

    def changed(self, **changes: Any) -> Self:
        """Copy with other fields, for changes that cannot break what was checked.

        The checks are skipped: a pass over all records for each subset would be work
        done twice. Code outside this room makes a new ``Dataset`` instead.
        """
        copy = object.__new__(type(self))
        for known in fields(self):
            value = changes.get(known.name, getattr(self, known.name))
            object.__setattr__(copy, known.name, value)
        return copy

    def batches(self, rows: int = _CHECKED_ROWS) -> Iterator[Self]:
        """Iterate over consecutive rows, at most ``rows`` at a time, in memory."""
        _checks.whole(rows=rows)
        for start in range(0, len(self), rows):
            index = np.arange(start, min(start + rows, len(self)))
            part = self.take(index)
            yield part.changed(X=part.X[:])


def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """Join data sets of one declaration, row after row."""
    first = parts[0]
    if len(parts) == 1:
        return first
    names = tuple(first.groups)
    return first.changed(
        X=np.concatenate([part.X[:] for part in parts]),
        y=np.concatenate([part.y for part in parts]),
        groups=Frozen(
            {
                name: Group(
                    np.concatenate([part.groups[name].codes for part in parts]),
                    first.groups[name].names,
                )
                for name in names
            }
        ),
        units=(None if first.units is None else np.concatenate([part.units for part in parts])),
    )


def _features(X: Any, where: str) -> Array | MappedRows:
    """Return features in a type the house knows, checked to be finite, not writeable."""
    if isinstance(X, np.memmap):
        X = MappedRows.of(X)
    if isinstance(X, MappedRows):
        _finite_windows(X, where)
        return X
    array = np.asarray(X)
    if array.dtype.kind in "UO":
        array = _text(array, where)
    elif array.dtype.kind in "biu" and array.dtype != np.uint8:
        array = array.astype(np.float64)
    elif array.dtype == np.float16 or not array.dtype.isnative:
        array = array.astype(np.result_type(array.dtype.newbyteorder("="), np.float32))
    if array.dtype.kind not in "fuT" or array.ndim < 2:
        raise DataError(
            f"{where}: features",
            "numbers of shape (n, d), images or text of shape (n, 1 or 2)",
            f"{array.dtype} of shape {array.shape}",
            "Pass one row for each record.",
        )
    for start in range(0, len(array), _CHECKED_ROWS):
        _finite(array[start : start + _CHECKED_ROWS], start, where)
    array = array.view()
    array.flags.writeable = False
    return array


def _text(array: Array, where: str) -> Array:
    """Return an array of text, refusing objects of any other kind."""
    if not all(isinstance(value, str) for value in array.flat):
        raise DataError(
            f"{where}: features", "numbers or text", "other objects", "Encode them by a schema."
        )
    return array.astype(TEXT)


def _finite_windows(rows: MappedRows, where: str) -> None:
    """Refuse rows on disk that hold anything but finite numbers."""
    if rows.dtype.kind not in "fu" or rows.ndim < 2:
        raise DataError(
            f"{where}: features",
            "floats or bytes of shape (n, d)",
            f"{rows.dtype} of shape {rows.shape}",
            "Save the array as float32.",
        )
    start = 0
    for window in rows.windows(_CHECKED_ROWS):
        _finite(window, start, where)
        start += len(window)


def _finite(block: Array, start: int, where: str) -> None:
    """Refuse a block of rows with NaN or infinity in it."""
    if block.dtype.kind != "f" or np.isfinite(block).all():
        return
    row = int(np.flatnonzero(~np.isfinite(block.reshape(len(block), -1)).all(axis=1))[0])
    value = block[row][~np.isfinite(block[row])].flat[0]
    raise DataError(
        f"{where}: features",
        "finite numbers",
        f"{value} in record {start + row + 1}",
        "Declare how missing values are treated, or correct the record.",
    )


def _codes(where: str, codes: ArrayLike, k: int, n: int | None = None) -> Ints:
    """Return an array of whole numbers in [0, k)."""
    array = np.asarray(codes)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            where,
            "whole numbers of shape (n,)",
            f"{array.dtype} of shape {array.shape}",
            "Encode the labels by their position among the classes.",
        )
    if n is not None:
        _same_length(where, len(array), n)
    if len(array) and (array.min() < 0 or array.max() >= k):
        bad = array[(array < 0) | (array >= k)][0]
        raise DataError(
            where, f"codes from 0 to {k - 1}", str(bad), "Declare the class, or correct it."
        )
    return array.astype(np.int64, copy=False)


def _ids(units: ArrayLike, n: int, where: str) -> Array:
    """Return unit ids as whole numbers or text."""
    array = np.asarray(units)
    if array.dtype.kind in "UO":
        array = array.astype(TEXT)
    if array.ndim != 1 or array.dtype.kind not in "iuT":
        raise DataError(
            f"{where}: units",
            "ids of shape (n,), whole numbers or text",
            f"{array.dtype} of shape {array.shape}",
            "Pass one id for each row.",
        )
    _same_length(f"{where}: units", len(array), n)
    return array


def _same_length(where: str, found: int, n: int) -> None:
    """Refuse a part with another number of rows than X."""
    if found != n:
        raise DataError(where, f"{n} rows, as X has", str(found), "Pass one value a row.")
