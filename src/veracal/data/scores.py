"""Scores: logits or probabilities of a classifier with labels, groups and units, validated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, logsumexp, softmax

from veracal import _checks
from veracal._types import Array, Floats, Frozen, Ints
from veracal.data.dataset import Group, Records
from veracal.data.rows import (
    Label,
    check_classes,
    check_codes,
    check_ids,
    check_length,
    encode_labels,
    is_immutable,
    read_only,
    reject_masked,
    row_numbers,
)
from veracal.errors import DataError

Kind = Literal["logits", "probabilities"]
_NUMBERS = 131_072  # numbers checked at a time, which fit the processor's cache


def _floats(values: ArrayLike, name: str) -> Floats:
    """Return real numbers of one or two dimensions, in single or double precision."""
    reject_masked(values, name)
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise DataError(
            name,
            "real numbers of shape (n, k), or (n,) for two classes",
            f"{array.dtype} of shape {array.shape}",
            "Pass one row for each record.",
        )
    single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    dtype = np.dtype(np.float32 if single else np.float64)
    if array.dtype == dtype and is_immutable(array):
        return array
    with np.errstate(over="ignore"):  # a number too large for a float is refused as infinite
        return read_only(np.array(array, dtype=dtype))


def _check_values(values: Floats, kind: Kind, name: str) -> None:
    """Reject arrays that are no rows of logits or of probabilities."""
    if values.ndim != 2:
        raise DataError(
            name, "shape (n, k)", f"shape {values.shape}", f"Use Scores.from_{kind}."
        )
    if kind == "logits":
        # The sum of finite numbers may overflow; the sum with NaN or infinity is never finite.
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(values.sum())
        if not finite and not np.isfinite(values).all():
            raise _bad(values, ~np.isfinite(values), "finite logits", name)
        return
    tol = 1e-3 if values.dtype == np.float32 else 1e-6
    rows = max(1, _NUMBERS // max(1, values.shape[1]))
    for start in range(0, len(values), rows):
        block = values[start : start + rows]
        _check_range(block, name, start)
        if (np.abs(block @ np.ones(block.shape[1], block.dtype) - 1) < tol / 2).all():
            continue
        sums = block.sum(axis=1, dtype=np.float64)  # near the tolerance or beyond it
        off = np.abs(sums - 1) > tol
        if off.any():
            raise _bad(sums, off, "probabilities that sum to 1", name, start)


def _check_range(values: Floats, name: str, start: int = 0) -> None:
    """Reject NaN and numbers outside [0, 1]; ``start`` is the number of the first record."""
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        wrong = ~((values >= 0) & (values <= 1))
        expected = "probabilities in [0, 1] (pass logits as logits)"
        raise _bad(values, wrong, expected, name, start)


def _bad(values: Array, wrong: Array, expected: str, name: str, start: int = 0) -> DataError:
    """Error that names the first wrong value and its record."""
    row = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))[0])
    value = values[row][wrong[row]].flat[0] if values.ndim > 1 else values[row]
    return DataError(
        name, expected, f"{value:g} in record {start + row + 1}", "Correct the record."
    )


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Records):
    r"""Logits or probabilities of n records for k classes, with labels, groups and units.

    Construct them with :meth:`from_logits` or :meth:`from_probabilities`: the kind of the
    numbers is declared and never guessed.

    Attributes
    ----------
    values : array of shape (n, k)
        The numbers as passed.
    classes : tuple of str or int
        Declared labels.
    labels : array of ints in [0, k), of shape (n,), or None
        True labels as indices of the classes. None if they are unknown, or if they belong to
        another set of classes (see :meth:`merge`).
    units : array of ids of shape (n,), or None

    Guarantees
    ----------
    Logits are finite; probabilities lie in [0, 1], and each row sums to 1 within 1e-3 for
    single and 1e-6 for double precision and is never silently rescaled. Every label and group
    is declared, every unit has an id. Writable arrays are copied, and the copies are read-only.
    """

    values: Floats
    kind: Kind
    classes: tuple[Label, ...]
    labels: Ints | None = None
    groups: Mapping[str, Group] = field(default_factory=dict)
    units: Array | None = None
    name: str = "scores"
    _by_row = ("values", "labels", "units")

    def __post_init__(self) -> None:
        _checks.one_of(("logits", "probabilities"), kind=self.kind)
        values = _floats(self.values, self.name)
        _check_values(values, self.kind, self.name)
        n, k = values.shape
        classes = check_classes(self.classes, self.name)
        for name, group in self.groups.items():
            if not isinstance(group, Group):
                raise DataError(
                    f"{self.name}: group {name!r}",
                    "a Group",
                    type(group).__name__,
                    "Construct it with Group.from_values(values, names).",
                )
            check_length(f"{self.name}: group {name!r}", len(group), n)
        if len(classes) != k:
            raise DataError(
                f"{self.name}: classes",
                f"{k} for scores of shape {values.shape}",
                str(len(classes)),
                f"Pass {k}.",
            )
        where, labels, units = f"{self.name}: labels", self.labels, self.units
        fixed = {
            "values": values,
            "classes": classes,
            "labels": None if labels is None else check_codes(where, labels, k, n),
            "groups": Frozen(self.groups),
            "units": None if units is None else check_ids(units, n, self.name),
        }
        for name, value in fixed.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_logits(
        cls,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        classes: Sequence[Label] | None = None,
        groups: Mapping[str, Group] = Frozen(),
        units: ArrayLike | None = None,
        name: str = "scores",
    ) -> Self:
        """Construct from logits of shape (n, k), or (n,) for the second of two classes.

        Labels are values of ``classes``; without classes, 0, …, k-1.
        """
        return cls._construct("logits", logits, labels, classes, groups, units, name)

    @classmethod
    def from_probabilities(
        cls,
        probabilities: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        classes: Sequence[Label] | None = None,
        groups: Mapping[str, Group] = Frozen(),
        units: ArrayLike | None = None,
        name: str = "scores",
    ) -> Self:
        """Construct from probabilities of shape (n, k), or (n,) for the second of two classes.

        Labels are values of ``classes``; without classes, 0, …, k-1.
        """
        kind: Kind = "probabilities"
        return cls._construct(kind, probabilities, labels, classes, groups, units, name)

    @classmethod
    def _construct(
        cls,
        kind: Kind,
        numbers: ArrayLike,
        labels: ArrayLike | None,
        classes: Sequence[Label] | None,
        groups: Mapping[str, Group],
        units: ArrayLike | None,
        name: str,
    ) -> Self:
        """Construct from label values, and from numbers of one class or of all."""
        values = _floats(numbers, name)
        if values.ndim == 1:
            if kind == "probabilities":
                _check_range(values, name)  # so that an error names the value that was passed
            first = np.zeros_like(values) if kind == "logits" else 1 - values
            values = read_only(np.stack([first, values], axis=1))
        k = values.shape[1]
        declared = check_classes(tuple(range(k)) if classes is None else classes, name)
        codes = None if labels is None else encode_labels(labels, declared, f"{name}: labels")
        codes = None if codes is None else read_only(codes)  # avoids a second copy
        ids: Any = units
        return cls(values, kind, declared, codes, groups, ids, name)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        labeled = "unlabeled" if self.labels is None else "labeled"
        return (
            f"Scores({self.name!r}: {self.kind} of {len(self)} {labeled} records for "
            f"{len(self.classes)} classes, groups: {', '.join(self.groups) or 'none'})"
        )

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def probabilities(self) -> Floats:
        r"""Probabilities of shape (n, k): as passed, or :math:`\mathrm{softmax}(z)`."""
        if self.kind == "probabilities":
            return self.values
        with np.errstate(over="ignore"):  # an overflowing difference gives probability 0
            result: Floats = softmax(self.values.astype(np.float64), axis=1)
        return result

    @property
    def logits(self) -> Floats:
        r"""Logits of shape (n, k): as passed, or :math:`\log p`, where 0 becomes -inf.

        Logits of the same probabilities differ by a constant for each row; the logarithm is
        the choice whose exponentials sum to 1.
        """
        if self.kind == "logits":
            return self.values
        with np.errstate(divide="ignore"):
            return np.log(self.values.astype(np.float64))

    @property
    def log_probabilities(self) -> Floats:
        """Logarithms of the probabilities, computed from logits without loss of precision."""
        if self.kind == "probabilities":
            return self.logits
        with np.errstate(over="ignore"):
            result: Floats = log_softmax(self.values.astype(np.float64), axis=1)
        return result

    @property
    def predictions(self) -> Ints:
        """Index of the largest value of each row, the first of equal ones.

        The numbers are compared as passed: rounding a sigmoid near one half would turn close
        values into ties.
        """
        result: Ints = self.values.argmax(axis=1)
        return result

    @property
    def confidence(self) -> Floats:
        """Probability of the predicted class, of shape (n,)."""
        return np.take_along_axis(self.probabilities, self.predictions[:, None], axis=1)[:, 0]

    @property
    def correct(self) -> Array:
        """Whether each prediction is correct; needs labels."""
        result: Array = self.predictions == self.known_labels
        return result

    @property
    def known_labels(self) -> Ints:
        """Labels, or an error if there are none."""
        if self.labels is None:
            raise DataError(
                self.name, "labeled scores", "no labels", "Pass labels to the constructor."
            )
        return self.labels

    def take(self, index: ArrayLike) -> Self:
        """Select the rows of ``index`` (numbers or a mask), in its order."""
        return self._select(row_numbers(index, len(self)))

    def renamed(self, name: str) -> Self:
        """The same scores under another name."""
        return self._changed(name=name)

    def merge(
        self, into: Mapping[str, Sequence[Label]], *, labels: ArrayLike | None = None
    ) -> Self:
        r"""Merge classes, for example three-way into two-way entailment.

        Probabilities of merged classes are added; logits become
        :math:`\log \sum_{j} e^{z_j}`, which is equivalent.

        Parameters
        ----------
        into : mapping of new class to old classes
            Every old class appears exactly once, and every new class has at least one.
        labels : array of shape (n,), optional
            Labels as values of the new classes, for records that never had the old ones. By
            default each old label is mapped with its class.

        Examples
        --------
        >>> scores = Scores.from_probabilities([[0.5, 0.2, 0.3]], classes=["e", "n", "c"])
        >>> scores.merge({"e": ["e"], "not e": ["n", "c"]}).values
        array([[0.5, 0.5]])
        """
        is_invalid = any(isinstance(old, str) or not len(old) for old in into.values())
        named = [] if is_invalid else [c for old in into.values() for c in old]
        if len(named) != self.n_classes or set(named) != set(self.classes):
            raise DataError(
                f"{self.name}: merge",
                f"lists with each of {self.classes} exactly once",
                repr(dict(into)),
                "List every class once.",
            )
        members = [[self.classes.index(c) for c in old] for old in into.values()]
        if self.kind == "logits":
            merged = [logsumexp(self.values[:, m], axis=1) for m in members]
        else:  # rounding may raise a sum an ulp above 1
            merged = [np.minimum(self.values[:, m].sum(axis=1), 1) for m in members]
        classes = check_classes(tuple(into), f"{self.name}: merge")
        codes: Ints | None = None
        if labels is not None:
            codes = encode_labels(labels, classes, f"{self.name}: labels")
            check_length(f"{self.name}: labels", len(codes), len(self))
        elif self.labels is not None:
            new_index = np.empty(self.n_classes, dtype=np.int64)
            for new, columns in enumerate(members):
                new_index[columns] = new
            codes = new_index[self.labels]
        return self._changed(values=np.stack(merged, axis=1), classes=classes, labels=codes)
