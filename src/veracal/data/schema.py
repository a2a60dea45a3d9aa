"""Schemas: public facts about a table, declared before a record is read, and their TOML."""

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from veracal._types import Frozen
from veracal.data.files import (
    DEFAULT_LIMITS,
    Limits,
    construct_from_settings,
    expect_table,
    open_file,
)
from veracal.data.rows import Label, check_classes
from veracal.errors import SchemaError


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


Problem = tuple[str, str, str]  # what was expected, what was found, and a remedy


_TREATMENTS = {"drop": "'drop'", "indicator": "'indicator'", "constant": "{constant = …}"}


class _Declaration:
    """Conversion and checks that all kinds of columns share."""

    _treatments: ClassVar[tuple[str, ...]] = ("drop",)  # of missing values
    _remedy: ClassVar[str] = "Declare one of these treatments."
    _outside: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("values", "classes"):
                object.__setattr__(self, name, listed(value, name))
            elif isinstance(value, np.generic):
                object.__setattr__(self, name, value.item())

    def problems(self) -> Iterator[Problem]:
        """Yield what makes the declaration invalid."""
        settings = vars(self)
        feature, outside = settings.get("feature", True), settings.get("outside")
        if not isinstance(feature, bool):
            yield "feature = true or false", repr(feature), "Write it without quotes."
        missing = settings.get("missing")
        treatment = "constant" if isinstance(missing, FillValue) else missing
        if treatment not in (None, *self._treatments):
            known = ", ".join(_TREATMENTS[each] for each in self._treatments)
            yield f"missing = {known} or none", repr(missing), self._remedy
        if self._outside and outside not in self._outside:
            words = " or ".join(map(repr, self._outside))
            yield f"outside = {words}", repr(outside), "Declare one of them."


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

    def problems(self) -> Iterator[Problem]:
        """Yield what makes the declaration invalid."""
        yield from super().problems()
        lower, upper = self.lower, self.upper
        if not (_is_real(lower) and _is_real(upper) and lower < upper):
            actual = f"lower={lower!r}, upper={upper!r}"
            remedy = "Declare bounds that hold by public knowledge."
            yield "finite bounds with lower < upper", actual, remedy
        shift, scale = self.shift, self.scale
        if not (_is_real(shift) and _is_real(scale) and scale > 0):
            actual = f"center={shift!r}, spread={scale!r}"
            remedy = "Correct them, or leave them out to scale by the bounds."
            yield "a finite center and a finite spread > 0", actual, remedy


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
    _treatments = ("drop", "indicator", "constant")

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        return (name, f"{name}=missing") if self.missing == "indicator" else (name,)

    def problems(self) -> Iterator[Problem]:
        """Yield what makes the declaration invalid."""
        yield from super().problems()
        fill = self.missing.value if isinstance(self.missing, FillValue) else self.lower
        if not (_is_real(fill) and self.lower <= float(fill) <= self.upper):
            expected = f"the constant to be a number in [{self.lower}, {self.upper}]"
            yield expected, repr(fill), "Declare another."


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
    _treatments = ("drop", "indicator", "constant")
    _outside = ("error", "ignore")

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        names = tuple(f"{name}={value}" for value in self.values)
        return (*names, f"{name}=missing") if self.missing == "indicator" else names

    def problems(self) -> Iterator[Problem]:
        """Yield what makes the declaration invalid."""
        yield from super().problems()
        for value in self.values:
            if not isinstance(value, str | int) or isinstance(value, bool):
                remedy = "Write truth values as the texts 'true' and 'false'."
                yield "values as text or whole numbers", repr(value), remedy
        texts = [str(value) for value in self.values]
        if not texts or len(set(texts)) < len(texts):
            expected = "at least one value, each different from the others as text"
            yield expected, repr(self.values)[:80], "List every value it may have, once."
        if "missing" in texts and self.missing == "indicator":
            expected = "no value called 'missing' beside a missing indicator"
            yield expected, "both", "List 'missing' among the missing marks, not the values."
        fill = self.missing.value if isinstance(self.missing, FillValue) else texts[0]
        if str(fill) not in texts:
            expected = "the constant to be one of the declared values"
            yield expected, repr(fill), "Declare another."


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

    def problems(self) -> Iterator[Problem]:
        """Yield what makes the declaration invalid."""
        if not _is_real(self.size, int) or self.size < 1:
            yield "a whole number of entries", repr(self.size), "Set size to it."
        yield from super().problems()


@dataclass(frozen=True)
class Text(_Declaration):
    """A text. One or two such columns form X, without any other feature."""

    missing: Missing = None
    feature: bool = True
    _treatments = ("drop", "constant")

    def feature_names(self, name: str) -> tuple[str, ...]:
        """Names of its columns in X."""
        return (name,)

    def problems(self) -> Iterator[Problem]:
        """Yield what makes the declaration invalid."""
        yield from super().problems()
        if isinstance(self.missing, FillValue) and not isinstance(self.missing.value, str):
            yield "the constant to be a text", repr(self.missing.value), "Put it in quotes."


@dataclass(frozen=True)
class Target(_Declaration):
    """The label, with every class that records may have. ``missing`` may be 'drop' or None."""

    classes: Sequence[Label]
    missing: Literal["drop"] | None = None
    _remedy = "Labels are not imputed."


@dataclass(frozen=True)
class UnitColumn(_Declaration):
    """Id of the individual that a row belongs to, and the bound on the rows of one individual.

    ``missing`` may be 'drop' or None. With ``max_contributions=None`` the number of rows is
    unbounded, which private computations reject.
    """

    max_contributions: int | None = None
    missing: Literal["drop"] | None = None
    _remedy = "Ids are not imputed."

    def problems(self) -> Iterator[Problem]:
        """Yield what makes the declaration invalid."""
        yield from super().problems()
        most = self.max_contributions
        if most is not None and not (_is_real(most, int) and most > 0):
            yield "max_contributions to be a whole number > 0", repr(most), "Correct it."


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

    def problems(self, columns: Mapping[str, Column]) -> Iterator[Problem]:
        """Yield what makes the groups invalid or lets a value of the column be in none."""
        column = columns.get(self.column) if isinstance(self.column, str) else None
        edges = self.edges
        if edges is not None and not all(map(_is_real, edges)):
            yield "edges as finite numbers", str(list(edges)), "Correct them."
        if isinstance(column, Category) and edges is None:
            if column.outside == "ignore":
                yield "a column with outside = 'error'", "'ignore'", "List every value."
            return
        if not isinstance(column, Number) or edges is None:
            actual = f"column {self.column!r} with edges {edges!r}"
            remedy = "Declare the column, and edges if it is a number."
            yield "a declared category, or a number with edges", actual, remedy
            return
        rising = all(low < high for low, high in pairwise(edges))
        if len(edges) < 2 or not rising or edges[0] > column.lower or edges[-1] < column.upper:
            expected = f"rising edges that cover [{column.lower:g}, {column.upper:g}]"
            yield expected, str(list(edges)), "Add the column's bounds as outer edges."


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
        for part, problem in self._problems():
            raise SchemaError(part, *problem)

    def _problems(self) -> Iterator[tuple[str, Problem]]:
        """Yield what makes the declarations invalid or inconsistent, each with its place."""
        where = self.name if isinstance(self.name, str) else "schema"
        for setting, problem in self._problems_of_settings():
            yield f"{where}: {setting}", problem
        for name, column in self.columns.items():
            if isinstance(column, Target):
                check_classes(column.classes, f"{where}: column {name!r}")
            values = getattr(column, "values", getattr(column, "classes", ()))
            for problem in column.problems():
                yield f"{where}: column {name!r}", problem
            for value in values:
                if str(value) in self.missing:
                    remedy = (
                        "Remove it from the values or from missing: records with this value "
                        "would be treated as missing."
                    )
                    expected = "values that do not also mark missing ones"
                    yield f"{where}: column {name!r}", (expected, repr(value), remedy)
        for problem in self._problems_of_columns():
            yield f"{where}: columns", problem
        for name, grouping in self.groups.items():
            for problem in grouping.problems(self.columns):
                yield f"{where}: group {name!r}", problem

    def _problems_of_settings(self) -> Iterator[tuple[str, Problem]]:
        """Yield what is wrong with the settings of the table as a whole."""
        if not isinstance(self.name, str):
            yield "name", ("text", repr(self.name), "Put it in quotes.")
        if not all(isinstance(mark, str) for mark in self.missing):
            yield "missing", ("marks as text", repr(self.missing), 'Write them as in ["?"].')
        if self.size is not None and not (_is_real(self.size, int) and self.size > 0):
            yield "size", ("a whole number > 0", repr(self.size), "Correct it.")
        if self.norm is not None and not (_is_real(self.norm) and self.norm > 0):
            yield "norm", ("a finite number > 0", repr(self.norm), "Correct it.")
        if not isinstance(self.header, bool):
            yield "header", ("true or false", repr(self.header), "Correct it.")
        # A tuple, since "" and ",;" are parts of the text.
        if self.separator is not None and self.separator not in tuple(SEPARATORS):
            remedy = "Name a comma, semicolon, tab, bar, colon or blank."
            expected = "one character that can separate fields"
            yield "separator", (expected, repr(self.separator), remedy)

    def _problems_of_columns(self) -> Iterator[Problem]:
        """Yield what is wrong with the columns beside each other."""
        kinds = list(map(type, self.columns.values()))
        targets, units, slots = (kinds.count(kind) for kind in (Target, UnitColumn, Slot))
        if targets != 1 or units > 1:
            actual = f"{targets} targets and {units} units"
            remedy = "Declare the column to predict as kind = 'target'."
            yield "exactly one target and at most one unit", actual, remedy
        if slots > 1 or (slots and units):
            remedy = (
                "Declare kind = 'unit' for add-remove, or kind = 'slot' for replace-one, where "
                "each row is an individual, and the other as kind = 'ignore'."
            )
            actual = f"{slots} slots and {units} units"
            yield "at most one slot, and none together with a unit", actual, remedy
        features, names = self.features, self.feature_names
        texts = sum(isinstance(column, Text) for column in features.values())
        if not features or texts not in (0, len(features)) or texts > 2:
            expected = "numbers, categories and vectors, or else one or two texts, as features"
            actual = f"{len(features)} features, {texts} of them text"
            remedy = "Declare the others as kind = 'ignore', or set feature = false."
            yield expected, actual, remedy
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            yield "features of different names", f"{twice!r} twice", "Rename one."

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
    def max_contributions(self) -> int | None:
        """Bound on the rows of one unit."""
        return None if self.unit is None else self.columns[self.unit].max_contributions  # type: ignore[union-attr]

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
        return cls.from_settings(read_toml(Path(path), limits), str(path))

    @classmethod
    def from_toml(cls, text: str, *, where: str = "schema") -> "Schema":
        """Parse TOML text. Unknown names are rejected with the most similar known one."""
        return cls.from_settings(parse_toml(text, where), where)

    @classmethod
    def from_settings(cls, entries: dict[str, Any], where: str) -> "Schema":
        """Construct a schema from the entries of a parsed TOML file."""
        if "images" in entries:
            raise SchemaError(
                where,
                "the columns of a table",
                "a form of images",
                "Encode the images by `veracal data features` first, and use the folder and "
                "the schema that it writes.",
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


def read_toml(path: Path, limits: Limits) -> dict[str, Any]:
    """Read the entries of a TOML file of the known format that is not a draft."""
    with open_file(path, limits) as file:
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise SchemaError(path, "a schema of at most 16 MiB", "more", "Shorten it.")
    try:
        text = data.decode()
    except UnicodeDecodeError as cause:
        raise SchemaError(
            path, "UTF-8 text", f"byte {data[cause.start]:#04x}", "Save it as UTF-8."
        ) from cause
    return parse_toml(text, str(path))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse the text of such a file."""
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
    return entries


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
