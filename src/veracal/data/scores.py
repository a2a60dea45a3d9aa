"""What a classifier says of records whose answer is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, logsumexp, softmax

from veracal._types import Array, Floats, Frozen, Ints
from veracal.data.dataset import Group
from veracal.data.labels import Label, check_classes, encode_labels
from veracal.errors import DataError

Kind = Literal["logits", "probabilities"]


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    r"""Logits or probabilities of n records for k classes, with labels, groups and units.

    Make one with :meth:`from_logits` or :meth:`from_probabilities`: which of the two the
    numbers are is said once and never guessed.

    Attributes
    ----------
    values : array of shape (n, k)
        The numbers as they were given.
    kind : 'logits' or 'probabilities'
        What they are.
    classes : tuple of str or int
        Declared labels.
    labels : array of ints in [0, k), of shape (n,), or None
        Right answers, by position among the classes. None where they are not known, or
        belong to another set of classes (see :meth:`merge`).
    groups : mapping of str to Group
    units : array of ids of shape (n,), or None
    name : str

    Guarantees
    ----------
    Logits are finite; probabilities lie in [0, 1] and each row sums to 1 within 1e-3 for
    single and 1e-6 for double precision, and is never silently rescaled.
    """

    values: Floats
    kind: Kind
    classes: tuple[Label, ...]
    labels: Ints | None = None
    groups: Mapping[str, Group] = field(default_factory=dict)
    units: Array | None = None
    name: str = "scores"

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
        """Hold logits of shape (n, k), or of shape (n,) for the second of two classes.

        Labels are written as in ``classes``; without classes, as 0, …, k-1.
        """
        values = _floats(logits, name)
        if values.ndim == 1:
            values = np.stack([np.zeros_like(values), values], axis=1)
        if not np.isfinite(values).all():
            raise _bad(values, ~np.isfinite(values), "finite logits", name)
        return cls._checked(values, "logits", labels, classes, groups, units, name)

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
        """Hold probabilities of shape (n, k), or of shape (n,) for the second of two classes.

        Labels are written as in ``classes``; without classes, as 0, …, k-1.
        """
        values = _floats(probabilities, name)
        if values.ndim == 1:
            values = np.stack([1 - values, values], axis=1)
        wrong = ~((values >= 0) & (values <= 1))
        if wrong.any():
            raise _bad(values, wrong, "probabilities in [0, 1] (pass logits as logits)", name)
        tol = 1e-3 if values.dtype == np.float32 else 1e-6
        sums = values.sum(axis=1, dtype=np.float64)
        off = np.abs(sums - 1) > tol
        if off.any():
            raise _bad(sums, off, "probabilities that sum to 1", name)
        return cls._checked(values, "probabilities", labels, classes, groups, units, name)

    @classmethod
    def _checked(
        cls,
        values: Floats,
        kind: Kind,
        labels: ArrayLike | None,
        classes: Sequence[Label] | None,
        groups: Mapping[str, Group],
        units: ArrayLike | None,
        name: str,
    ) -> Self:
        """Make scores whose values were checked, checking what belongs to them."""
        n, k = values.shape
        declared = check_classes(tuple(range(k)) if classes is None else classes, name)
        codes = None if labels is None else encode_labels(labels, declared, f"{name}: labels")
        ids = None if units is None else np.asarray(units)
        parts = {"classes": (len(declared), k), "groups": (n, n)}
        parts |= {} if codes is None else {"labels": (len(codes), n)}
        parts |= {} if ids is None else {"units": (len(ids), n)}
        parts |= {f"group {key!r}": (len(group), n) for key, group in groups.items()}
        for part, (found, expected) in parts.items():
            if found != expected:
                raise DataError(
                    f"{name}: {part}",
                    f"{expected} for scores of shape {values.shape}",
                    str(found),
                    "Pass as many.",
                )
        values = values.view()
        values.flags.writeable = False
        return cls(values, kind, declared, codes, Frozen(groups), ids, name)

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
        r"""Probabilities of shape (n, k): as given, or :math:`\mathrm{softmax}(z)`."""
        if self.kind == "probabilities":
            return self.values
        result: Floats = softmax(self.values.astype(np.float64), axis=1)
        return result

    @property
    def logits(self) -> Floats:
        r"""Logits of shape (n, k): as given, or :math:`\log p`, where 0 becomes -inf.

        Any logits of the same probabilities differ by one constant a row; the logarithm is
        the choice that sums to one after :math:`\exp`.
        """
        if self.kind == "logits":
            return self.values
        with np.errstate(divide="ignore"):
            return np.log(self.values.astype(np.float64))

    @property
    def log_probabilities(self) -> Floats:
        """Logarithms of the probabilities, without the loss of going through them."""
        if self.kind == "probabilities":
            return self.logits
        result: Floats = log_softmax(self.values.astype(np.float64), axis=1)
        return result

    @property
    def predictions(self) -> Ints:
        """Position of the largest value of each row, the first of equal ones.

        The comparison is made on the numbers as given: rounding a sigmoid near one half
        would turn close calls into ties.
        """
        result: Ints = self.values.argmax(axis=1)
        return result

    @property
    def confidence(self) -> Floats:
        """Probability of the predicted class, of shape (n,)."""
        return np.take_along_axis(self.probabilities, self.predictions[:, None], axis=1)[:, 0]

    @property
    def correct(self) -> Array:
        """Whether each prediction is right; needs labels."""
        result: Array = self.predictions == self.known_labels
        return result

    @property
    def known_labels(self) -> Ints:
        """Labels, or an error that says how to add them."""
        if self.labels is None:
            raise DataError(
                self.name, "labeled scores", "no labels", "Pass labels when making them."
            )
        return self.labels

    def take(self, index: Ints) -> Self:
        """Keep the rows of ``index`` (numbers or a mask), in its order."""
        index = np.asarray(index)
        if index.dtype == bool:
            index = np.flatnonzero(index)
        return self._changed(
            values=self.values[index],
            labels=None if self.labels is None else self.labels[index],
            groups=Frozen({k: g.take(index) for k, g in self.groups.items()}),
            units=None if self.units is None else self.units[index],
        )

    def merge(
        self, into: Mapping[str, Sequence[Label]], *, labels: ArrayLike | None = None
    ) -> Self:
        r"""Join classes, as in moving from three-way to two-way entailment.

        Probabilities of joined classes add up; logits become
        :math:`\log \sum_{j} e^{z_j}` over them, which is the same thing.

        Parameters
        ----------
        into : mapping of new class to the old classes it takes in
            Every old class appears exactly once.
        labels : array of shape (n,), optional
            Labels written as the new classes, for records that never had the old ones. By
            default each old label follows its class.

        Examples
        --------
        >>> scores = Scores.from_probabilities([[0.5, 0.2, 0.3]], classes=["e", "n", "c"])
        >>> scores.merge({"e": ["e"], "not e": ["n", "c"]}).values
        array([[0.5, 0.5]])
        """
        old = [
            self.classes.index(c) if c in self.classes else -1
            for new in into.values()
            for c in new
        ]
        if sorted(old) != list(range(self.n_classes)):
            raise DataError(
                f"{self.name}: merge",
                f"each of {self.classes} exactly once",
                repr({new: list(members) for new, members in into.items()}),
                "Name every class in one place.",
            )
        members = [[self.classes.index(c) for c in new] for new in into.values()]
        place = np.empty(self.n_classes, dtype=np.int64)
        for new, columns in enumerate(members):
            place[columns] = new
        join = _joined_logits if self.kind == "logits" else _joined_probabilities
        classes = check_classes(tuple(into), f"{self.name}: merge")
        codes: Ints | None
        if labels is not None:
            codes = encode_labels(labels, classes, f"{self.name}: labels")
        else:
            codes = None if self.labels is None else place[self.labels]
        if codes is not None and len(codes) != len(self):
            raise DataError(
                f"{self.name}: labels", str(len(self)), str(len(codes)), "Pass one a row."
            )
        return self._changed(values=join(self.values, members), classes=classes, labels=codes)

    def _changed(self, **changes: Any) -> Self:
        """Copy with other fields that need no check."""
        kept = {known.name: getattr(self, known.name) for known in fields(self)}
        return type(self)(**{**kept, **changes})


def _joined_logits(values: Floats, members: Sequence[Sequence[int]]) -> Floats:
    """Logits of joined classes."""
    return np.stack([logsumexp(values[:, list(m)], axis=1) for m in members], axis=1)


def _joined_probabilities(values: Floats, members: Sequence[Sequence[int]]) -> Floats:
    """Probabilities of joined classes; rounding may lift a sum an ulp above 1."""
    sums = np.stack([values[:, list(m)].sum(axis=1) for m in members], axis=1)
    result: Floats = np.minimum(sums, 1)
    return result


def _floats(values: ArrayLike, name: str) -> Floats:
    """Return real numbers of one or two dimensions, in single or double precision."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise DataError(
            name,
            "real numbers of shape (n, k), or (n,) for two classes",
            f"{array.dtype} of shape {array.shape}",
            "Pass one row for each record.",
        )
    single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    return np.array(array, dtype=np.float32 if single else np.float64)


def _bad(values: Array, wrong: Array, expected: str, name: str) -> DataError:
    """Error that names the first wrong value and its record."""
    row = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))[0])
    value = values[row][wrong[row]].flat[0] if values.ndim > 1 else values[row]
    return DataError(name, expected, f"{value:g} in record {row + 1}", "Correct the record.")
