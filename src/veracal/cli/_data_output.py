"""Data sets, schemas and splits as tables and as JSON."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from veracal.cli._output import format_count, format_list, table
from veracal.data import (
    CatalogEntry,
    Category,
    Column,
    Dataset,
    FillValue,
    Ignore,
    Number,
    Schema,
    Slot,
    Split,
    Target,
    UnitColumn,
    Vector,
)

if TYPE_CHECKING:
    from rich.console import Group


INTERNAL = "internal: private under add/remove"
_WIDE = 100  # characters that the list of sets needs to have one line for each
_NARROW = 80  # below it, the declaration of a column is one cell


def entry_facts(known: CatalogEntry) -> dict[str, Any]:
    """Everything the catalog says about a built-in set."""
    return {
        "name": known.name,
        "title": known.title,
        "shape": known.shape,
        "task": known.task,
        "license": known.license,
        "parts": list(known.parts),
        "variants": list(known.variants),
        "note": known.note,
    }


def catalog_table(entries: Iterable[CatalogEntry], width: int) -> "Group":
    """Table of the built-in sets, with two lines for each on a narrow terminal."""
    rows: list[tuple[str, ...]] = []
    for known in entries:
        if width >= _WIDE:
            rows.append((known.name, known.title, known.shape))
        else:
            rows += [(known.name, known.title), ("", known.shape)]
    columns: tuple[str, ...] = ("name", "what", "records × features × classes")
    if width < _WIDE:
        columns = ("name", "what, and records × features × classes")
    return table("Built-in data sets", columns, rows, whole=columns[0::2])


def dataset_facts(dataset: Dataset, schema: Schema | None, parts: Split) -> dict[str, Any]:
    """The declaration of a set and its split; exact counts are marked as internal."""
    return {
        "name": dataset.name,
        "features": {"shape": list(dataset.X.shape[1:]), "names": list(dataset.feature_names)},
        "classes": list(dataset.classes),
        "groups": {name: list(group.names) for name, group in dataset.groups.items()},
        "unit": "row" if dataset.units is None else "id",
        "at_most": dataset.max_contributions,
        "norm": dataset.norm,
        "size": dataset.size,
        "schema": None if schema is None else tomllib.loads(schema.to_toml()),
        "split": {
            "relation": parts.relation,
            "parts": {
                name: {"share": share, "nominal_size": part.size}
                for (name, part), share in zip(_parts(parts), parts.fractions, strict=True)
                if part is not None
            },
        },
        "internal": {
            "note": INTERNAL,
            "rows": len(dataset),
            "parts": {name: len(part) for name, part in parts.parts.items()},
        },
    }


def dataset_tables(
    dataset: Dataset, schema: Schema | None, parts: Split, width: int
) -> Iterator["Group"]:
    """Tables of the schema, the public figures and the split."""
    if schema is not None:
        columns: tuple[str, ...] = ("column", "kind", "declared", "if missing", "in X")
        rows = [_column_row(name, column) for name, column in schema.columns.items()]
        if width < _NARROW:
            columns, rows = ("column", "declared", "in X"), list(map(_narrowed, rows))
        yield table(f"{dataset.name}: the schema", columns, rows, right=("in X",))
    yield table(f"{dataset.name}: public facts", ("", ""), _public(dataset, schema))
    yield table(
        f"{dataset.name}: a new random split, independent for each {_unit(dataset)}",
        ("part", "share", "nominal size", "real rows"),
        [
            (name, f"{share:.0%}", _or_not(part.size), f"{len(part):,}")
            for (name, part), share in zip(_parts(parts), parts.fractions, strict=True)
            if part is not None
        ],
        right=("share", "nominal size", "real rows"),
        note=f"Real rows are {INTERNAL}.",
    )


def _parts(parts: Split) -> list[tuple[str, Dataset | None]]:
    """All three parts by name, including those without a share."""
    return [(name, getattr(parts, name)) for name in ("train", "calibration", "test")]


def _unit(dataset: Dataset) -> str:
    """What is split independently."""
    return "row" if dataset.units is None else "unit"


def _record(dataset: Dataset) -> str:
    """The form of one record."""
    shape = dataset.X.shape[1:]
    if dataset.X.dtype.kind == "T":
        return "a text" if shape == (1,) else "a pair of texts"
    if len(shape) == 1:
        return format_count(shape[0], "number")
    return f"{'×'.join(map(str, shape))} pixels"


def _or_not(value: object) -> str:
    """Format a figure that may not be declared."""
    return "not declared" if value is None else f"{value:,}"


def _public(dataset: Dataset, schema: Schema | None) -> Iterator[tuple[str, str]]:
    """Declared figures of a set."""
    yield "classes", format_list(dataset.classes)
    yield "a record is", _record(dataset)
    for name, group in dataset.groups.items():
        yield f"group {name}", format_list(group.names)
    if dataset.units is None:
        yield "unit", "the row"
    else:
        yield (
            "unit",
            f"{(schema and schema.unit) or 'an id'}, with {_rows(dataset.max_contributions)}",
        )
    yield (
        "norm of a row",
        "not bounded" if dataset.norm is None else f"at most {_short(dataset.norm)}",
    )
    yield "declared size", _or_not(dataset.size)
    if schema is not None and schema.missing:
        yield "missing marks", format_list(schema.missing, quote=True)


def _rows(most: int | None) -> str:
    """How many rows one unit may have."""
    return "any number of rows" if most is None else f"at most {format_count(most, 'row')}"


def _short(number: float) -> str:
    """Format a number with 12 digits."""
    return f"{number:.12g}"


def _narrowed(row: Sequence[str]) -> tuple[str, str, str]:
    """One row of the table of columns, for a narrow terminal."""
    name, kind, declared, missing, width = row
    usual = missing in ("", "error")
    words = [kind, declared, "" if usual else f"if missing: {missing}"]
    return name, "; ".join(word for word in words if word), width


def _column_row(name: str, column: Column) -> tuple[str, ...]:
    """One row of the table of columns."""
    kind = "unit" if isinstance(column, UnitColumn) else type(column).__name__.lower()
    width = "–"
    if not isinstance(column, Target | UnitColumn | Slot | Ignore) and column.feature:
        width = str(len(column.feature_names(name)))
    return name, kind, _declared(column), _missing(column), width


def _declared(column: Column) -> str:
    """The declared values of a column."""
    match column:
        case Number():
            return _bounds(column)
        case Vector():
            return f"{format_count(column.size, 'number')}, {_bounds(column)}"
        case Category():
            return format_list(column.values) + _outside(column.outside)
        case Target():
            return format_list(column.classes)
        case UnitColumn():
            return _rows(column.at_most)
        case _:
            return ""


def _bounds(column: Number | Vector) -> str:
    """Bounds of numbers, and the treatment of others."""
    return f"{_short(column.lower)} to {_short(column.upper)}" + _outside(column.outside)


def _outside(rule: str) -> str:
    """The treatment of undeclared values, unless it is an error."""
    return {"error": "", "clip": ", clipped", "ignore": ", others ignored"}[rule]


def _missing(column: Column) -> str:
    """The treatment of a missing value."""
    treatment = getattr(column, "missing", None)
    if isinstance(treatment, FillValue):
        return f"{format_list([treatment.value])} instead"
    words = {None: "error", "drop": "drop the row", "indicator": "indicator"}
    return "" if isinstance(column, Ignore) else words[treatment]
