"""Column declarations of a schema."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from veracal.data.labels import Label, check_classes
from veracal.errors import SchemaError


@dataclass(frozen=True)
class FillValue:
    """Treatment of a missing value: replace it by this declared value."""

    value: Label | float


Missing = Literal["drop", "indicator"] | FillValue | None


@dataclass(frozen=True)
class Number:
    r"""A real number between public bounds, entering X as :math:`(x - c) / s`.

    Parameters
    ----------
    lower, upper : float
        Bounds that hold by public knowledge; they are not read from the records.
    center, spread : float, optional
        c and s. By default the bounds' midpoint and half width, so that X lies in [-1, 1].
    missing : 'drop', 'indicator', FillValue or None
        Treatment of a missing value, which depends on no other row; None raises an error.
        The indicator replaces the value by c and adds a column that is 1 for these rows.
    outside : 'error' or 'clip'
        Treatment of a value outside the bounds.
    feature : bool
        Whether it enters X, or only forms groups.
    """

    lower: float
    upper: float
    center: float | None = None
    spread: float | None = None
    missing: Missing = None
    outside: Literal["error", "clip"] = "error"
    feature: bool = True

    def __post_init__(self) -> None:
        _plain(self)

    @property
    def shift(self) -> float:
        """The center c that is subtracted."""
        return (
            self.lower + (self.upper - self.lower) / 2 if self.center is None else self.center
        )

    @property
    def scale(self) -> float:
        """The spread s that is divided by."""
        return (self.upper - self.lower) / 2 if self.spread is None else self.spread

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        return (name, f"{name}=missing") if self.missing == "indicator" else (name,)

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        _check_feature(self, where)
        _check_range(self, where)
        _check_words(where, self.missing, self.outside, ("error", "clip"))
        if isinstance(self.missing, FillValue) and not (
            _is_real(self.missing.value)
            and self.lower <= float(self.missing.value) <= self.upper
        ):
            raise _bad_constant(
                where, f"a number in [{self.lower}, {self.upper}]", self.missing
            )


@dataclass(frozen=True)
class Category:
    """One of a declared list of values, encoded in X as one 0/1 column for each.

    Parameters
    ----------
    values : sequence of str or int
        Every value the column may have.
    missing : 'drop', 'indicator', FillValue or None
        As for :class:`Number`; the indicator adds a column for "missing".
    outside : 'error' or 'ignore'
        Treatment of a value that was not declared; 'ignore' sets all columns to 0.
    feature : bool
        Whether it enters X, or only forms groups.
    """

    values: Sequence[Label]
    missing: Missing = None
    outside: Literal["error", "ignore"] = "error"
    feature: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", listed(self.values, "values"))

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        names = tuple(f"{name}={value}" for value in self.values)
        return (*names, f"{name}=missing") if self.missing == "indicator" else names

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        for value in self.values:
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise SchemaError(
                    where,
                    "values as text or whole numbers",
                    repr(value),
                    "Write truth values as the texts 'true' and 'false'.",
                )
        texts = [str(value) for value in self.values]
        if not texts or len(set(texts)) < len(texts):
            raise SchemaError(
                where,
                "at least one value, each different from the others as text",
                repr(tuple(self.values))[:80],
                "List every value the column may have, once.",
            )
        if "missing" in texts and self.missing == "indicator":
            raise SchemaError(
                where,
                "no value called 'missing' beside a missing indicator",
                "both",
                "List 'missing' among the missing marks instead of the values.",
            )
        _check_feature(self, where)
        _check_words(where, self.missing, self.outside, ("error", "ignore"))
        if isinstance(self.missing, FillValue) and str(self.missing.value) not in texts:
            raise _bad_constant(where, "one of the declared values", self.missing)


@dataclass(frozen=True)
class Vector:
    """A fixed number of reals with common bounds, such as pixels or an embedding.

    A file holds it as a list column (Parquet, Arrow), as a two-dimensional array (npz), or
    as columns ``name_0``, ``name_1``, … (CSV). ``missing`` may be 'drop' or None and applies
    to the vector as a whole.
    """

    size: int
    lower: float
    upper: float
    center: float | None = None
    spread: float | None = None
    missing: Literal["drop"] | None = None
    outside: Literal["error", "clip"] = "error"
    feature: bool = True

    def __post_init__(self) -> None:
        _plain(self)

    @property
    def shift(self) -> float:
        """The center c that is subtracted."""
        return Number(self.lower, self.upper, self.center).shift

    @property
    def scale(self) -> float:
        """The spread s that is divided by."""
        return Number(self.lower, self.upper, spread=self.spread).scale

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        return tuple(f"{name}_{i}" for i in range(self.size))

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        if not _is_whole(self.size) or self.size < 1:
            raise SchemaError(
                where, "a whole number of entries", repr(self.size), "Set size to it."
            )
        if self.missing not in ("drop", None):
            raise SchemaError(
                where, "missing = 'drop' or none", repr(self.missing), "Drop the row instead."
            )
        _check_feature(self, where)
        _check_range(self, where)
        _check_words(where, self.missing, self.outside, ("error", "clip"))


@dataclass(frozen=True)
class Text:
    """A text. One or two such columns form X, without any other feature."""

    missing: Missing = None
    feature: bool = True

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        return (name,)

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        if self.missing == "indicator" or (
            isinstance(self.missing, FillValue) and not isinstance(self.missing.value, str)
        ):
            raise SchemaError(
                where, "missing = 'drop' or a text", repr(self.missing), "Declare one of them."
            )
        _check_feature(self, where)
        _check_words(where, self.missing, "error", ("error",))


@dataclass(frozen=True)
class Target:
    """The label, with every class that records may have. ``missing`` may be 'drop' or None."""

    classes: Sequence[Label]
    missing: Literal["drop"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", listed(self.classes, "classes"))

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        check_classes(self.classes, where)
        _check_drop_only(where, self.missing)


@dataclass(frozen=True)
class UnitColumn:
    """Id of the individual that a row belongs to, and the bound on the rows of one individual.

    ``missing`` may be 'drop' or None. With ``at_most=None`` the number of rows is unbounded,
    which private computations reject.
    """

    at_most: int | None = None
    missing: Literal["drop"] | None = None

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        if self.at_most is not None and not (_is_whole(self.at_most) and self.at_most > 0):
            raise SchemaError(
                where, "at_most to be a whole number > 0", repr(self.at_most), "Correct it."
            )
        _check_drop_only(where, self.missing)


@dataclass(frozen=True)
class Slot:
    """Immutable slot id of a row, for the relation replace-one.

    A replacement record inherits the slot id, so ids must identify positions (an enrollment
    number, a bed, a place in a fixed panel) and never be derived from the record. Every row
    has one, and no two rows share one.
    """

    def check(self, where: str) -> None:
        """Do nothing: a slot has no settings."""


@dataclass(frozen=True)
class Ignore:
    """A column of the file that is not read."""

    def check(self, where: str) -> None:
        """Do nothing: there are no settings."""


Feature = Number | Category | Vector | Text
Column = Feature | Target | UnitColumn | Slot | Ignore


def listed(values: object, what: str) -> tuple[Any, ...]:
    """Return a declared list as a tuple of Python values; text is not a list."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise SchemaError(
            what, "a list", repr(values)[:40], "Write it in brackets, even with one entry."
        )
    return tuple(v.item() if isinstance(v, np.generic) else v for v in values)


def _plain(column: object) -> None:
    """Convert numpy scalars among the settings to Python numbers."""
    for known in fields(column):  # type: ignore[arg-type]
        value = getattr(column, known.name)
        if isinstance(value, np.generic):
            object.__setattr__(column, known.name, value.item())


def _is_whole(value: object) -> bool:
    """Whether a value is an integer and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    """Whether a value is a finite number in the range of a float."""
    try:
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
        )
    except OverflowError:
        return False


def _check_range(column: "Number | Vector", where: str) -> None:
    """Raise unless the bounds are finite and ordered, and the spread is positive."""
    lower, upper = column.lower, column.upper
    if not (_is_real(lower) and _is_real(upper) and lower < upper):
        raise SchemaError(
            where,
            "finite bounds with lower < upper",
            f"lower={lower!r}, upper={upper!r}",
            "Declare bounds that hold by public knowledge.",
        )
    shift, scale = column.shift, column.scale
    if not (_is_real(shift) and _is_real(scale) and scale > 0):
        raise SchemaError(
            where,
            "a finite center and a finite spread > 0",
            f"center={shift!r}, spread={scale!r}",
            "Correct them, or leave them out to scale by the bounds.",
        )


def _check_feature(column: "Feature", where: str) -> None:
    """Raise unless the flag is a bool."""
    if not isinstance(column.feature, bool):
        raise SchemaError(
            where, "feature = true or false", repr(column.feature), "Write it without quotes."
        )


def _check_words(
    where: str, missing: object, outside: object, allowed: tuple[str, ...]
) -> None:
    """Raise unless the treatments are known."""
    if not (missing in ("drop", "indicator", None) or isinstance(missing, FillValue)):
        raise SchemaError(
            where,
            "missing = 'drop', 'indicator' or {constant = …}",
            repr(missing),
            "Declare one of these treatments.",
        )
    if outside not in allowed:
        words = " or ".join(repr(word) for word in allowed)
        raise SchemaError(where, f"outside = {words}", repr(outside), "Declare one of them.")


def _check_drop_only(where: str, missing: object) -> None:
    """Raise unless a missing value drops the row or is an error."""
    if missing not in ("drop", None):
        raise SchemaError(
            where,
            "missing = 'drop' or none",
            repr(missing),
            "Labels and ids are not imputed.",
        )


def _bad_constant(where: str, expected: str, constant: FillValue) -> SchemaError:
    """Error for a constant that violates the declaration of its column."""
    return SchemaError(
        where, f"the constant to be {expected}", repr(constant.value), "Declare another."
    )
