"""Whether the parts of a schema fit together."""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from veracal.data.columns import Category, Number, Slot, Target, Text, Unit
from veracal.errors import SchemaError

SEPARATORS = ",;\t|: ^~"

if TYPE_CHECKING:
    from veracal.data.schema import Grouping, Schema


def check_schema(schema: "Schema") -> None:
    """Raise unless the parts of a schema fit together."""
    where = schema.name if isinstance(schema.name, str) else "schema"
    for name, column in schema.columns.items():
        column.check(f"{where}: column {name!r}")
    _check_roles(schema, where)
    for name, grouping in schema.groups.items():
        _check_grouping(schema, grouping, f"{where}: group {name!r}")
    _check_marks(schema, where)
    if not isinstance(schema.name, str):
        raise SchemaError("schema: name", "a text", repr(schema.name), "Put it in quotes.")
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
            "one character that can stand between fields",
            repr(separator),
            "Name a comma, semicolon, tab, bar, colon or blank.",
        )


def _check_marks(schema: "Schema", where: str) -> None:
    """Raise if a mark of missing values is also a value that somebody may have."""
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
                    "values that are no marks of missing ones",
                    repr(value),
                    "Take it from the values or from missing: everybody who has it would be "
                    "taken for missing.",
                )


def _check_roles(schema: "Schema", where: str) -> None:
    """Raise unless there is one target, at most one unit, and features of one kind."""
    kinds = list(map(type, schema.columns.values()))
    if kinds.count(Target) != 1 or kinds.count(Unit) > 1:
        raise SchemaError(
            f"{where}: columns",
            "exactly one target and at most one unit",
            f"{kinds.count(Target)} targets and {kinds.count(Unit)} units",
            "Declare what is to be predicted as kind = 'target'.",
        )
    if kinds.count(Slot) > 1 or (Slot in kinds and Unit in kinds):
        raise SchemaError(
            f"{where}: columns",
            "at most one slot, and none beside a unit",
            f"{kinds.count(Slot)} slots and {kinds.count(Unit)} units",
            "Declare kind = 'unit' for add-remove, or kind = 'slot' for replace-one, where "
            "each row is an individual, and the other as kind = 'ignore'.",
        )
    features = list(schema.features.values())
    texts = sum(isinstance(column, Text) for column in features)
    if not features or texts not in (0, len(features)) or texts > 2:
        raise SchemaError(
            f"{where}: columns",
            "numbers, categories and vectors, or else one or two texts, as features",
            f"{len(features)} features of which {texts} are text",
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
    """Raise unless a grouping divides everybody its column allows."""
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
