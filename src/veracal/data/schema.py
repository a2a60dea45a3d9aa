"""Schemas: public facts about a table, declared before a record is read, and their TOML."""

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from veracal._types import Frozen
from veracal.data.files import DEFAULT_LIMITS, Limits, open_file
from veracal.data.labels import Label, check_classes
from veracal.errors import DataError, SchemaError


def listed(values: object, what: str) -> tuple[Any, ...]:
    """Return a declared list as a tuple of Python values; text is not a list."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise SchemaError(
            what, "a list", repr(values)[:40], "Write it in brackets, even with one entry."
        )
    return tuple(v.item() if isinstance(v, np.generic) else v for v in values)


def _is_real(value: object, kind: Any = int | float) -> bool:
    """Whether a value is a finite number in the range of a float, and no bool."""
    try:
        return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


@dataclass(frozen=True)
class FillValue:
    """Treatment of a missing value: replace it by this declared value."""

    value: Label | float


Missing = Literal["drop", "indicator"] | FillValue | None


class _Declaration:
    """Conversion and checks that all kinds of columns share."""

    _treatments: ClassVar[tuple[str, str]] = (
        "missing = 'drop' or none",
        "Drop the row instead.",
    )
    _outside: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("values", "classes"):
                object.__setattr__(self, name, listed(value, name))
            elif isinstance(value, np.generic):
                object.__setattr__(self, name, value.item())

    def _allows(self, missing: object) -> bool:
        """Whether missing values may be treated like this."""
        return missing == "drop"

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        settings = vars(self)
        if not isinstance(settings.get("feature", True), bool):
            raise SchemaError(
                where,
                "feature = true or false",
                repr(settings["feature"]),
                "Write it without quotes.",
            )
        missing = settings.get("missing")
        if missing is not None and not self._allows(missing):
            expected, remedy = self._treatments
            raise SchemaError(where, expected, repr(missing), remedy)
        outside = settings.get("outside")
        if self._outside and outside not in self._outside:
            words = " or ".join(map(repr, self._outside))
            raise SchemaError(
                where, f"outside = {words}", repr(outside), "Declare one of them."
            )


class _Bounded(_Declaration):
    """Numbers between public bounds, which are shifted and scaled."""

    _outside = ("error", "clip")
    lower: float
    upper: float
    center: float | None
    spread: float | None

    @property
    def shift(self) -> float:
        """The center c that is subtracted."""
        middle = self.lower + (self.upper - self.lower) / 2
        return middle if self.center is None else self.center

    @property
    def scale(self) -> float:
        """The spread s that is divided by."""
        return (self.upper - self.lower) / 2 if self.spread is None else self.spread

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        super().check(where)
        lower, upper = self.lower, self.upper
        if not (_is_real(lower) and _is_real(upper) and lower < upper):
            raise SchemaError(
                where,
                "finite bounds with lower < upper",
                f"lower={lower!r}, upper={upper!r}",
                "Declare bounds that hold by public knowledge.",
            )
        shift, scale = self.shift, self.scale
        if not (_is_real(shift) and _is_real(scale) and scale > 0):
            raise SchemaError(
                where,
                "a finite center and a finite spread > 0",
                f"center={shift!r}, spread={scale!r}",
                "Correct them, or leave them out to scale by the bounds.",
            )


_ANY_TREATMENT = (
    "missing = 'drop', 'indicator' or {constant = …}",
    "Declare one of these treatments.",
)


@dataclass(frozen=True)
class Number(_Bounded):
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
    _treatments = _ANY_TREATMENT

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        return (name, f"{name}=missing") if self.missing == "indicator" else (name,)

    def _allows(self, missing: object) -> bool:
        return missing in ("drop", "indicator") or isinstance(missing, FillValue)

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        super().check(where)
        if isinstance(self.missing, FillValue):
            constant = self.missing.value
            if not (_is_real(constant) and self.lower <= float(constant) <= self.upper):
                raise SchemaError(
                    where,
                    f"the constant to be a number in [{self.lower}, {self.upper}]",
                    repr(constant),
                    "Declare another.",
                )


@dataclass(frozen=True)
class Category(_Declaration):
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
    _treatments = _ANY_TREATMENT
    _outside = ("error", "ignore")

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        names = tuple(f"{name}={value}" for value in self.values)
        return (*names, f"{name}=missing") if self.missing == "indicator" else names

    def _allows(self, missing: object) -> bool:
        return missing in ("drop", "indicator") or isinstance(missing, FillValue)

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        super().check(where)
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
        if isinstance(self.missing, FillValue) and str(self.missing.value) not in texts:
            raise SchemaError(
                where,
                "the constant to be one of the declared values",
                repr(self.missing.value),
                "Declare another.",
            )


@dataclass(frozen=True)
class Vector(_Bounded):
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

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        return tuple(f"{name}_{i}" for i in range(self.size))

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        if not _is_real(self.size, int) or self.size < 1:
            raise SchemaError(
                where, "a whole number of entries", repr(self.size), "Set size to it."
            )
        super().check(where)


@dataclass(frozen=True)
class Text(_Declaration):
    """A text. One or two such columns form X, without any other feature."""

    missing: Missing = None
    feature: bool = True
    _treatments = ("missing = 'drop' or a text", "Declare one of them.")

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        return (name,)

    def _allows(self, missing: object) -> bool:
        is_text = isinstance(missing, FillValue) and isinstance(missing.value, str)
        return missing == "drop" or is_text


_NOT_IMPUTED = ("missing = 'drop' or none", "Labels and ids are not imputed.")


@dataclass(frozen=True)
class Target(_Declaration):
    """The label, with every class that records may have. ``missing`` may be 'drop' or None."""

    classes: Sequence[Label]
    missing: Literal["drop"] | None = None
    _treatments = _NOT_IMPUTED

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        check_classes(self.classes, where)
        super().check(where)


@dataclass(frozen=True)
class UnitColumn(_Declaration):
    """Id of the individual that a row belongs to, and the bound on the rows of one individual.

    ``missing`` may be 'drop' or None. With ``at_most=None`` the number of rows is unbounded,
    which private computations reject.
    """

    at_most: int | None = None
    missing: Literal["drop"] | None = None
    _treatments = _NOT_IMPUTED

    def check(self, where: str) -> None:
        """Raise unless the declaration is valid."""
        if self.at_most is not None and not (_is_real(self.at_most, int) and self.at_most > 0):
            raise SchemaError(
                where, "at_most to be a whole number > 0", repr(self.at_most), "Correct it."
            )
        super().check(where)


@dataclass(frozen=True)
class Slot(_Declaration):
    """Immutable slot id of a row, for the relation replace-one.

    A replacement record inherits the slot id, so ids must identify positions (an enrollment
    number, a bed, a place in a fixed panel) and never be derived from the record. Every row
    has one, and no two rows share one.
    """


@dataclass(frozen=True)
class Ignore(_Declaration):
    """A column of the file that is not read."""


Feature = Number | Category | Vector | Text
Column = Feature | Target | UnitColumn | Slot | Ignore
SEPARATORS = ",;\t|: ^~"
FORMAT = 1
_LARGEST_FILE = 2**24
_KINDS: Mapping[str, type[Column]] = {
    "number": Number,
    "category": Category,
    "vector": Vector,
    "text": Text,
    "target": Target,
    "unit": UnitColumn,
    "slot": Slot,
    "ignore": Ignore,
}


@dataclass(frozen=True)
class Grouping:
    r"""Groups of records by the values of a column.

    Parameters
    ----------
    column : str
        A category, each of whose values is a group, or a number that edges cut into bands.
    edges : sequence of float, optional
        For a number: the groups are :math:`(e_0, e_1], (e_1, e_2], \dots`, the first one
        closed on both sides. They must cover the column's bounds.
    """

    column: str
    edges: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.edges is not None:
            object.__setattr__(self, "edges", listed(self.edges, "edges"))

    def names(self, column: Column) -> tuple[str, ...]:
        """Names of the groups, empty or not."""
        if isinstance(column, Category):
            names = [str(value) for value in column.values]
        else:
            assert self.edges is not None
            # All digits only where fewer would not give the same number.
            texts = [f"{e:g}" if float(f"{e:g}") == e else repr(e) for e in self.edges]
            names = [f"({low}, {high}]" for low, high in pairwise(texts)]
            names[0] = "[" + names[0][1:]
        if getattr(column, "missing", None) == "indicator":
            names.append("missing")
        return tuple(names)

    def check(self, columns: Mapping[str, Column], where: str) -> None:
        """Raise unless the groups cover every value that the column allows."""
        column = columns.get(self.column) if isinstance(self.column, str) else None
        edges = self.edges
        if edges is not None and not all(map(_is_real, edges)):
            raise SchemaError(
                where, "edges as finite numbers", str(list(edges)), "Correct them."
            )
        if isinstance(column, Category) and edges is None:
            if column.outside == "ignore":
                raise SchemaError(
                    where, "a column with outside = 'error'", "'ignore'", "List every value."
                )
            return
        if not isinstance(column, Number) or edges is None:
            raise SchemaError(
                where,
                "a declared category, or a number with edges",
                f"column {self.column!r} with edges {edges!r}",
                "Declare the column, and edges if it is a number.",
            )
        rising = all(low < high for low, high in pairwise(edges))
        if len(edges) < 2 or not rising or edges[0] > column.lower or edges[-1] < column.upper:
            raise SchemaError(
                where,
                f"rising edges that cover [{column.lower:g}, {column.upper:g}]",
                str(list(edges)),
                "Add the column's bounds as outer edges.",
            )


@dataclass(frozen=True)
class Schema:
    """The declared columns and public facts of a table.

    Parameters
    ----------
    columns : mapping of str to column
        Every column of the file, in the file's order if it has no header.
    groups : mapping of str to Grouping
        Attributes by which results will be broken down.
    missing : sequence of str
        Marks of a missing value, compared with the field as it is written.
    norm : float, optional
        Bound on the Euclidean norm of a row of X. Longer rows are scaled down to it.
    size : int, optional
        Public number of rows. It is never compared with the real one.
    header : bool
        Whether the first line of a CSV file names the columns.
    separator : str, optional
        Character between fields; by default a comma, and a tab for ``.tsv``.
    name : str
        Name of the data.

    Guarantees
    ----------
    A schema encodes each row independently: the encoding of a record depends on that record
    and on the schema only. Neighboring tables therefore become neighboring data sets.
    """

    columns: Mapping[str, Column]
    groups: Mapping[str, Grouping] = field(default_factory=dict)
    missing: Sequence[str] = ()
    norm: float | None = None
    size: int | None = None
    header: bool = True
    separator: str | None = None
    name: str = "data"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", Frozen(self.columns))
        object.__setattr__(self, "groups", Frozen(self.groups))
        object.__setattr__(self, "missing", listed(self.missing, "missing"))
        where = self.name if isinstance(self.name, str) else "schema"
        self._check_settings(where)
        for name, column in self.columns.items():
            column.check(f"{where}: column {name!r}")
        self._check_columns(where)
        for name, grouping in self.groups.items():
            grouping.check(self.columns, f"{where}: group {name!r}")

    def _check_settings(self, where: str) -> None:
        """Raise unless the settings of the table as a whole are valid."""
        if not isinstance(self.name, str):
            raise SchemaError("schema: name", "text", repr(self.name), "Put it in quotes.")
        if not all(isinstance(mark, str) for mark in self.missing):
            raise SchemaError(
                f"{where}: missing",
                "marks as text",
                repr(self.missing),
                'Write them as in ["?"].',
            )
        numbers = (("size", int, "a whole number"), ("norm", int | float, "a finite number"))
        for name, kind, words in numbers:
            value = getattr(self, name)
            if value is not None and not (_is_real(value, kind) and value > 0):
                raise SchemaError(
                    f"{where}: {name}", f"{words} > 0", repr(value), "Correct it."
                )
        if not isinstance(self.header, bool):
            raise SchemaError(
                f"{where}: header", "true or false", repr(self.header), "Correct it."
            )
        # A tuple, since "" and ",;" are parts of the text.
        if self.separator is not None and self.separator not in tuple(SEPARATORS):
            raise SchemaError(
                f"{where}: separator",
                "one character that can separate fields",
                repr(self.separator),
                "Name a comma, semicolon, tab, bar, colon or blank.",
            )

    def _check_columns(self, where: str) -> None:
        """Raise unless there is one target, at most one id, and features of compatible kinds."""
        where = f"{where}: columns"
        kinds = list(map(type, self.columns.values()))
        targets, units, slots = (kinds.count(kind) for kind in (Target, UnitColumn, Slot))
        if targets != 1 or units > 1:
            raise SchemaError(
                where,
                "exactly one target and at most one unit",
                f"{targets} targets and {units} units",
                "Declare the column to predict as kind = 'target'.",
            )
        if slots > 1 or (slots and units):
            raise SchemaError(
                where,
                "at most one slot, and none together with a unit",
                f"{slots} slots and {units} units",
                "Declare kind = 'unit' for add-remove, or kind = 'slot' for replace-one, where "
                "each row is an individual, and the other as kind = 'ignore'.",
            )
        features, names = self.features, self.feature_names
        texts = sum(isinstance(column, Text) for column in features.values())
        if not features or texts not in (0, len(features)) or texts > 2:
            raise SchemaError(
                where,
                "numbers, categories and vectors, or else one or two texts, as features",
                f"{len(features)} features, {texts} of them text",
                "Declare the others as kind = 'ignore', or set feature = false.",
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaError(
                where, "features of different names", f"{twice!r} twice", "Rename one."
            )
        for name, column in self.columns.items():
            values = getattr(column, "values", getattr(column, "classes", ()))
            for value in values:
                if str(value) in self.missing:
                    raise SchemaError(
                        f"{where[:-1]} {name!r}",
                        "values that do not also mark missing ones",
                        repr(value),
                        "Remove it from the values or from missing: records with this value "
                        "would be treated as missing.",
                    )

    def _name_of(self, kind: type[Column]) -> str | None:
        """Name of the only column of a kind."""
        return next((n for n, c in self.columns.items() if isinstance(c, kind)), None)

    @property
    def target(self) -> str:
        """Name of the label column."""
        name = self._name_of(Target)
        assert name is not None
        return name

    @property
    def classes(self) -> tuple[Label, ...]:
        """Declared classes."""
        return tuple(self.columns[self.target].classes)  # type: ignore[union-attr]

    @property
    def unit(self) -> str | None:
        """Name of the column of unit ids."""
        return self._name_of(UnitColumn)

    @property
    def slot(self) -> str | None:
        """Name of the column of slot ids, for replace-one."""
        return self._name_of(Slot)

    @property
    def at_most(self) -> int | None:
        """Bound on the rows of one unit."""
        return None if self.unit is None else self.columns[self.unit].at_most  # type: ignore[union-attr]

    @property
    def features(self) -> Mapping[str, Feature]:
        """Columns that enter X, in order."""
        return {n: c for n, c in self.columns.items() if isinstance(c, Feature) and c.feature}

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        features = self.features.items()
        return tuple(part for name, c in features for part in c.feature_names(name))

    @classmethod
    def load(cls, path: str | Path, *, limits: Limits = DEFAULT_LIMITS) -> "Schema":
        """Read a TOML file."""
        path = Path(path)
        with open_file(path, limits) as file:
            data = file.read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            raise SchemaError(str(path), "a schema of at most 16 MiB", "more", "Shorten it.")
        try:
            text = data.decode()
        except UnicodeDecodeError as cause:
            raise SchemaError(
                str(path), "UTF-8 text", f"byte {data[cause.start]:#04x}", "Save it as UTF-8."
            ) from cause
        return cls.from_toml(text, where=str(path))

    @classmethod
    def from_toml(cls, text: str, *, where: str = "schema") -> "Schema":
        """Parse TOML text. Unknown names are rejected with the most similar known one."""
        try:
            entries = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as cause:
            raise SchemaError(where, "TOML", str(cause), "Correct the file.") from cause
        version = entries.pop("format", None)
        if version != FORMAT or isinstance(version, bool):
            raise SchemaError(
                where,
                f"format = {FORMAT}",
                "no format" if version is None else f"format = {version!r}",
                f"Write format = {FORMAT} at the top, or update Veracal if the file is newer.",
            )
        if entries.pop("draft", False):
            raise SchemaError(
                where,
                "a schema of public facts",
                "draft = true",
                "Replace the values read from the records by public knowledge, then delete "
                "that line.",
            )
        columns = expect_table(entries.pop("columns", {}), f"{where}: columns")
        entries["columns"] = {
            name: _parse_column(entry, f"{where}: column {name!r}")
            for name, entry in columns.items()
        }
        groups = expect_table(entries.pop("groups", {}), f"{where}: groups")
        entries["groups"] = {
            name: construct_from_settings(Grouping, entry, f"{where}: group {name!r}")
            for name, entry in groups.items()
        }
        schema: Schema = construct_from_settings(cls, entries, where)
        return schema

    def to_toml(self) -> str:
        """Write TOML text that :meth:`from_toml` reads back to an equal schema."""
        kind_of = {kind: name for name, kind in _KINDS.items()}
        lines = [f"format = {FORMAT}"]
        lines += _settings(self, skip=("columns", "groups"))
        for name, column in self.columns.items():
            lines += ["", f"[columns.{quoted(name)}]", f'kind = "{kind_of[type(column)]}"']
            lines += _settings(column)
        for name, grouping in self.groups.items():
            lines += ["", f"[groups.{quoted(name)}]", *_settings(grouping)]
        return "\n".join(lines) + "\n"


def quoted(value: object) -> str:
    """Format a value as TOML."""
    if isinstance(value, FillValue):
        return f"{{ constant = {quoted(value.value)} }}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(quoted, value)) + "]"
    # JSON and TOML differ otherwise only in DEL, which TOML requires to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _settings(record: Any, skip: Sequence[str] = ()) -> list[str]:
    """Format the fields of a record that differ from their defaults."""
    lines = []
    for known in fields(record):
        value = getattr(record, known.name)
        if known.name not in skip and value is not None and value != known.default:
            lines.append(f"{known.name} = {quoted(value)}")
    return lines


def _parse_column(entry: object, where: str) -> Column:
    """Construct a column from its table in a TOML file."""
    settings = dict(expect_table(entry, where))
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        words = ", ".join(_KINDS)
        raise SchemaError(where, f"kind to be one of {words}", repr(kind), "Declare its kind.")
    missing = settings.get("missing")
    if isinstance(missing, dict):
        if set(missing) != {"constant"}:
            raise SchemaError(
                where, "missing = { constant = … }", repr(missing)[:60], "Give one constant."
            )
        settings["missing"] = FillValue(missing["constant"])
    column: Column = construct_from_settings(_KINDS[kind], settings, where)
    return column


def construct_from_settings(kind: Any, settings: object, where: str) -> Any:
    """Construct a dataclass from a table of settings.

    Unknown and missing settings are rejected by name, and errors of the class name ``where``.
    """
    settings = expect_table(settings, where)
    known = {known.name: known for known in fields(kind)}
    for name in settings:
        if name not in known:
            similar = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {similar[0]!r}?" if similar else "Remove it."
            words = ", ".join(known) or "no settings"
            raise SchemaError(where, f"only {words}", repr(name), hint)
    for name, entry in known.items():
        required = entry.default is MISSING and entry.default_factory is MISSING
        if required and name not in settings:
            raise SchemaError(
                where,
                f"{name!r} to be declared",
                "no such entry",
                "Declare it: nothing is inferred.",
            )
    try:
        return kind(**settings)
    except DataError as error:
        if error.where.startswith(where):
            raise
        raise SchemaError(
            f"{where}: {error.where}", error.expected, error.found, error.remedy
        ) from error


def expect_table(entry: object, where: str) -> dict[str, Any]:
    """Return a TOML table, or raise if the entry is none."""
    if not isinstance(entry, dict):
        raise SchemaError(where, "a table", repr(entry)[:40], "Write it as [section.name].")
    return entry
