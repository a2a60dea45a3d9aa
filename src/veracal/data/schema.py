"""Schemas: public facts about a table, declared before a record is read, and their TOML."""

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from veracal._types import Frozen
from veracal.data.columns import (
    Category,
    Column,
    Feature,
    FillValue,
    Ignore,
    Number,
    Slot,
    Target,
    Text,
    UnitColumn,
    Vector,
    listed,
)
from veracal.data.files import DEFAULT_LIMITS, Limits, open_file
from veracal.data.labels import Label
from veracal.errors import DataError, SchemaError


def construct_from_settings(kind: Any, settings: Mapping[str, Any], where: str) -> Any:
    """Construct a dataclass from settings, rejecting unknown and missing ones by name."""
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
    return kind(**settings)


def expect_table(entry: object, where: str) -> dict[str, Any]:
    """Return a TOML table, or raise if the entry is none."""
    if not isinstance(entry, dict):
        raise SchemaError(where, "a table", repr(entry)[:40], "Write it as [section.name].")
    return entry


SEPARATORS = ",;\t|: ^~"


def check_schema(schema: "Schema") -> None:
    """Raise unless the declarations of a schema are valid and consistent."""
    where = schema.name if isinstance(schema.name, str) else "schema"
    for name, column in schema.columns.items():
        column.check(f"{where}: column {name!r}")
    _check_roles(schema, where)
    for name, grouping in schema.groups.items():
        _check_grouping(schema, grouping, f"{where}: group {name!r}")
    _check_marks(schema, where)
    if not isinstance(schema.name, str):
        raise SchemaError("schema: name", "text", repr(schema.name), "Put it in quotes.")
    if not all(isinstance(mark, str) for mark in schema.missing):
        raise SchemaError(
            f"{where}: missing",
            "marks as text",
            repr(schema.missing),
            'Write them as in ["?"].',
        )
    for name, whole in (("size", True), ("norm", False)):
        value = getattr(schema, name)
        number = isinstance(value, int if whole else int | float) and not isinstance(
            value, bool
        )
        if value is not None and not (number and 0 < value < math.inf):
            kind = "a whole number" if whole else "a finite number"
            raise SchemaError(f"{where}: {name}", f"{kind} > 0", repr(value), "Correct it.")
    if not isinstance(schema.header, bool):
        raise SchemaError(
            f"{where}: header", "true or false", repr(schema.header), "Correct it."
        )
    separator = schema.separator
    if separator is not None and not (
        isinstance(separator, str) and separator in SEPARATORS and len(separator) == 1
    ):
        raise SchemaError(
            f"{where}: separator",
            "one character that can separate fields",
            repr(separator),
            "Name a comma, semicolon, tab, bar, colon or blank.",
        )


def _check_marks(schema: "Schema", where: str) -> None:
    """Raise if a mark of missing values is also a declared value."""
    for name, column in schema.columns.items():
        declared: Iterable[object] = ()
        if isinstance(column, Category):
            declared = column.values
        elif isinstance(column, Target):
            declared = column.classes
        for value in declared:
            if str(value) in schema.missing:
                raise SchemaError(
                    f"{where}: column {name!r}",
                    "values that do not also mark missing ones",
                    repr(value),
                    "Remove it from the values or from missing: records with this value would "
                    "be treated as missing.",
                )


def _check_roles(schema: "Schema", where: str) -> None:
    """Raise unless there is one target, at most one unit, and features of compatible kinds."""
    kinds = list(map(type, schema.columns.values()))
    if kinds.count(Target) != 1 or kinds.count(UnitColumn) > 1:
        raise SchemaError(
            f"{where}: columns",
            "exactly one target and at most one unit",
            f"{kinds.count(Target)} targets and {kinds.count(UnitColumn)} units",
            "Declare the column to predict as kind = 'target'.",
        )
    if kinds.count(Slot) > 1 or (Slot in kinds and UnitColumn in kinds):
        raise SchemaError(
            f"{where}: columns",
            "at most one slot, and none together with a unit",
            f"{kinds.count(Slot)} slots and {kinds.count(UnitColumn)} units",
            "Declare kind = 'unit' for add-remove, or kind = 'slot' for replace-one, where "
            "each row is an individual, and the other as kind = 'ignore'.",
        )
    features = list(schema.features.values())
    texts = sum(isinstance(column, Text) for column in features)
    if not features or texts not in (0, len(features)) or texts > 2:
        raise SchemaError(
            f"{where}: columns",
            "numbers, categories and vectors, or else one or two texts, as features",
            f"{len(features)} features, {texts} of them text",
            "Declare the others as kind = 'ignore', or set feature = false.",
        )
    names = schema.feature_names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(
            f"{where}: columns",
            "features of different names",
            f"{twice!r} twice",
            "Rename one.",
        )


def _check_grouping(schema: "Schema", grouping: "Grouping", where: str) -> None:
    """Raise unless a grouping covers every value that its column allows."""
    column = schema.columns.get(grouping.column) if isinstance(grouping.column, str) else None
    if grouping.edges is not None and not all(
        isinstance(e, int | float) and not isinstance(e, bool) and math.isfinite(e)
        for e in grouping.edges
    ):
        raise SchemaError(
            where, "edges as finite numbers", str(list(grouping.edges)), "Correct them."
        )
    if isinstance(column, Category) and grouping.edges is None:
        if column.outside == "ignore":
            raise SchemaError(
                where, "a column with outside = 'error'", "'ignore'", "List every value."
            )
        return
    if not isinstance(column, Number) or grouping.edges is None:
        raise SchemaError(
            where,
            "a declared category, or a number with edges",
            f"column {grouping.column!r} with edges {grouping.edges!r}",
            "Declare the column, and edges if it is a number.",
        )
    edges = grouping.edges
    rising = all(low < high for low, high in pairwise(edges))
    if len(edges) < 2 or not rising or edges[0] > column.lower or edges[-1] < column.upper:
        raise SchemaError(
            where,
            f"rising edges that cover [{column.lower:g}, {column.upper:g}]",
            str(list(edges)),
            "Add the column's bounds as outer edges.",
        )


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
_KIND_OF = {kind: name for name, kind in _KINDS.items()}


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
            names = tuple(map(str, column.values))
        else:
            assert self.edges is not None
            pairs = pairwise(self.edges)
            names = tuple(f"({_short(low)}, {_short(high)}]" for low, high in pairs)
            names = ("[" + names[0][1:], *names[1:])
        return (*names, "missing") if getattr(column, "missing", None) == "indicator" else names


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
        for attribute in ("columns", "groups"):
            frozen = Frozen(getattr(self, attribute))
            object.__setattr__(self, attribute, frozen)
        object.__setattr__(self, "missing", listed(self.missing, "missing"))
        check_schema(self)

    @property
    def target(self) -> str:
        """Name of the label column."""
        return next(name for name, column in self.columns.items() if isinstance(column, Target))

    @property
    def classes(self) -> tuple[Label, ...]:
        """Declared classes."""
        return tuple(self.columns[self.target].classes)  # type: ignore[union-attr]

    @property
    def unit(self) -> str | None:
        """Name of the column of unit ids."""
        return next(
            (n for n, column in self.columns.items() if isinstance(column, UnitColumn)), None
        )

    @property
    def slot(self) -> str | None:
        """Name of the column of slot ids, for replace-one."""
        return next((n for n, column in self.columns.items() if isinstance(column, Slot)), None)

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
        names = [column.feature_names(name) for name, column in self.features.items()]
        return tuple(name for part in names for name in part)

    @classmethod
    def load(cls, path: str | Path, *, limits: Limits = DEFAULT_LIMITS) -> "Schema":
        """Read a TOML file."""
        path = Path(path)
        with open_file(path, limits) as file:
            data = file.read(_LARGEST_FILE + 1)
        limits.check("file_bytes", len(data), path)
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
        _check_format(entries.pop("format", None), where)
        if entries.pop("draft", False):
            raise SchemaError(
                where,
                "a schema of public facts",
                "draft = true",
                "Replace the values read from the records by public knowledge, then delete "
                "that line.",
            )
        try:
            return cls._from_entries(entries, where)
        except DataError as error:
            if error.where.startswith(where):
                raise
            raise SchemaError(
                f"{where}: {error.where}", error.expected, error.found, error.remedy
            ) from error

    @classmethod
    def _from_entries(cls, entries: dict[str, Any], where: str) -> "Schema":
        """Construct a schema from the entries of a TOML file."""
        columns = expect_table(entries.pop("columns", {}), f"{where}: columns")
        groups = expect_table(entries.pop("groups", {}), f"{where}: groups")
        schema: Schema = _construct(
            cls,
            {
                **entries,
                "columns": {n: _parse_column(n, entry, where) for n, entry in columns.items()},
                "groups": {n: _parse_grouping(n, entry, where) for n, entry in groups.items()},
            },
            where,
        )
        return schema

    def to_toml(self) -> str:
        """Write TOML text that :meth:`from_toml` reads back to an equal schema."""
        lines = [f"format = {FORMAT}"]
        lines += _settings(self, skip=("columns", "groups"))
        for name, column in self.columns.items():
            lines += ["", f"[columns.{quoted(name)}]", f'kind = "{_KIND_OF[type(column)]}"']
            lines += _settings(column)
        for name, grouping in self.groups.items():
            lines += ["", f"[groups.{quoted(name)}]", *_settings(grouping)]
        return "\n".join(lines) + "\n"


def _short(number: float) -> str:
    """Format a number with few digits if that is exact, otherwise with all of them."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


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
        default = () if known.name == "missing" and value == () else known.default
        if known.name not in skip and value is not None and value != default:
            lines.append(f"{known.name} = {quoted(value)}")
    return lines


def _check_format(version: object, where: str) -> None:
    """Reject a schema of another format version."""
    if version != FORMAT or isinstance(version, bool):
        raise SchemaError(
            where,
            f"format = {FORMAT}",
            "no format" if version is None else f"format = {version!r}",
            f"Write format = {FORMAT} at the top, or update Veracal if the file is newer.",
        )


def _parse_column(name: str, entry: object, where: str) -> Column:
    """Parse a [columns.name] table."""
    where = f"{where}: column {name!r}"
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
    column: Column = _construct(_KINDS[kind], settings, where)
    return column


def _parse_grouping(name: str, entry: object, where: str) -> Grouping:
    """Parse a [groups.name] table."""
    where = f"{where}: group {name!r}"
    grouping: Grouping = _construct(Grouping, dict(expect_table(entry, where)), where)
    return grouping


def _construct(kind: Any, settings: Mapping[str, Any], where: str) -> Any:
    """Construct a dataclass from settings, rejecting text in place of a list."""
    for name in ("values", "classes", "edges", "missing"):
        value = settings.get(name)
        if isinstance(value, str) and (name != "missing" or kind is Schema):
            raise SchemaError(
                where, f"{name} to be a list", repr(value), "Write it in brackets."
            )
    return construct_from_settings(kind, settings, where)
