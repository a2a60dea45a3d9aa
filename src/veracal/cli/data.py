"""The commands that list, check, count and encode data sets."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _options, _output
from veracal.cli._output import format_count, format_list

if TYPE_CHECKING:
    from veracal.data import Column, Dataset, Schema, Split

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="List, inspect and count data sets."
)


def _complete(incomplete: str) -> list[str]:
    """Complete the name of a data set."""
    from veracal.data import CATALOG

    return [name for name in CATALOG if name.startswith(incomplete)]


What = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="A name from 'veracal data list', or a file of records.",
        autocompletion=_complete,
    ),
]
PublishedPart = Annotated[
    str | None, typer.Option(help="Published part of a built-in set: train, test, …")
]
Variant = Annotated[str | None, typer.Option(help="Published version of a built-in set.")]

INTERNAL = "internal: private under add/remove"
_WIDE = 100  # characters that the list of sets needs to have one line for each
_NARROW = 80  # below it, the declaration of a column is one cell


@app.command("list", epilog="Example:  veracal data list --json")
def list_(json: _options.Json = False) -> None:
    """List the built-in data sets."""
    from veracal.data import CATALOG

    if json:
        names = ("name", "title", "shape", "task", "license", "parts", "variants", "note")
        facts = [{name: getattr(known, name) for name in names} for known in CATALOG.values()]
        _output.print_json({"sets": facts})
        return
    columns: tuple[str, ...] = ("name", "what", "records × features × classes")
    rows: list[tuple[str, ...]] = [(k.name, k.title, k.shape) for k in CATALOG.values()]
    if _output.console().width < _WIDE:  # two lines for each
        columns = ("name", "what, and records × features × classes")
        rows = [row for name, *two in rows for row in zip((name, ""), two, strict=True)]
    _output.print_table("Built-in data sets", columns, rows, whole=columns[0::2])


@app.command(epilog="Example:  veracal data show breast-cancer")
def show(
    what: What,
    schema: _options.SchemaFile = None,
    part: PublishedPart = None,
    variant: Variant = None,
    json: _options.Json = False,
) -> None:
    """Load a data set through its schema, split it at random, and show both."""
    from veracal.data import entry, split

    dataset, declared = _load(what, schema, part, variant)
    declared = declared or entry(what).schema  # none for a synthetic set
    parts = split(dataset)
    facts = _to_json(dataset, declared, parts)
    if json:
        _output.print_json(facts)
        return
    if declared is not None:
        _print_columns(dataset.name, declared)
    rows = [
        ("classes", format_list(facts["classes"])),
        ("a record is", _describe_record(dataset)),
        *((f"group {name}", format_list(names)) for name, names in facts["groups"].items()),
    ]
    if dataset.units is None:
        rows.append(("unit", "the row"))
    else:
        unit = (declared and declared.unit) or "an id"
        rows.append(("unit", f"{unit}, with {_rows(dataset.max_contributions)}"))
    norm = "not bounded" if dataset.norm is None else f"at most {dataset.norm:.12g}"
    rows += [("norm of a row", norm), ("declared size", _or_not(dataset.size))]
    if declared is not None and declared.missing:
        rows.append(("missing marks", format_list(declared.missing, quote=True)))
    _output.print_table(f"{dataset.name}: public facts", ("", ""), rows)
    unit = "row" if dataset.units is None else "unit"
    real = facts["internal"]["parts"]
    _output.print_table(
        f"{dataset.name}: a new random split, independent for each {unit}",
        ("part", "share", "nominal size", "real rows"),
        [
            (name, f"{each['share']:.0%}", _or_not(each["nominal_size"]), f"{real[name]:,}")
            for name, each in facts["split"]["parts"].items()
        ],
        right=("share", "nominal size", "real rows"),
        note=f"Real rows are {INTERNAL}.",
    )


def _to_json(dataset: "Dataset", schema: "Schema | None", parts: "Split") -> dict[str, Any]:
    """The declaration of a set and its split; exact counts are marked as internal."""
    shares = dict(zip(("train", "calibration", "test"), parts.fractions, strict=True))
    return {
        "name": dataset.name,
        "features": {"shape": list(dataset.X.shape[1:]), "names": list(dataset.feature_names)},
        "classes": list(dataset.classes),
        "groups": {name: list(group.names) for name, group in dataset.groups.items()},
        "unit": "row" if dataset.units is None else "id",
        "max_contributions": dataset.max_contributions,
        "norm": dataset.norm,
        "size": dataset.size,
        "schema": None if schema is None else tomllib.loads(schema.to_toml()),
        "split": {
            "relation": parts.relation,
            "parts": {
                name: {"share": shares[name], "nominal_size": part.size}
                for name, part in parts.parts.items()
            },
        },
        "internal": {
            "note": INTERNAL,
            "rows": len(dataset),
            "parts": {name: len(part) for name, part in parts.parts.items()},
        },
    }


def _describe_record(dataset: "Dataset") -> str:
    """The form of one record."""
    shape = dataset.X.shape[1:]
    if dataset.X.dtype.kind == "T":
        return "a text" if shape == (1,) else "a pair of texts"
    if len(shape) == 1:
        return format_count(shape[0], "number")
    return f"{'×'.join(map(str, shape))} pixels"


def _or_not(size: int | None) -> str:
    """Format a size that may not be declared."""
    return "not declared" if size is None else f"{size:,}"


def _rows(most: int | None) -> str:
    """How many rows one unit may have."""
    return "any number of rows" if most is None else f"at most {format_count(most, 'row')}"


def _print_columns(name: str, schema: "Schema") -> None:
    """Print the columns of a schema: kind, declared values, missing values, and numbers."""
    columns: tuple[str, ...] = ("column", "kind", "declared", "if missing", "in X")
    rows: list[tuple[str, ...]] = [_column_row(*each) for each in schema.columns.items()]
    if _output.console().width < _NARROW:
        columns, wide, rows = ("column", "declared", "in X"), rows, []
        for column, kind, declared, missing, width in wide:
            usual = missing in ("", "error")
            cells = (kind, declared, "" if usual else f"if missing: {missing}")
            rows.append((column, "; ".join(filter(None, cells)), width))
    _output.print_table(f"{name}: the schema", columns, rows, right=("in X",))


def _column_row(name: str, column: "Column") -> tuple[str, str, str, str, str]:
    """One row of the table of columns."""
    from veracal.data import (
        Category,
        FillValue,
        Ignore,
        Number,
        Slot,
        Target,
        UnitColumn,
        Vector,
    )

    others = {"error": "", "clip": ", clipped", "ignore": ", others ignored"}
    match column:
        case Number() | Vector():
            declared = f"{column.lower:.12g} to {column.upper:.12g}{others[column.outside]}"
            if isinstance(column, Vector):
                declared = f"{format_count(column.size, 'number')}, {declared}"
        case Category():
            declared = format_list(column.values) + others[column.outside]
        case Target():
            declared = format_list(column.classes)
        case UnitColumn():
            declared = _rows(column.max_contributions)
        case _:
            declared = ""
    treatment = getattr(column, "missing", None)
    if isinstance(column, Ignore):
        missing = ""
    elif isinstance(treatment, FillValue):
        missing = f"{format_list([treatment.value])} instead"
    else:
        words = {None: "error", "drop": "drop the row", "indicator": "indicator"}
        missing = words[treatment]
    width = "–"
    if not isinstance(column, Target | UnitColumn | Slot | Ignore) and column.feature:
        width = str(len(column.feature_names(name)))
    kind = "unit" if isinstance(column, UnitColumn) else type(column).__name__.lower()
    return name, kind, declared, missing, width


@app.command(epilog="Example:  veracal data check visits.csv --schema visits.toml")
def check(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, Parquet, Arrow, npz or npy file.")],
    schema: Annotated[Path, typer.Option(help="TOML file with the public facts about FILE.")],
    json: _options.Json = False,
) -> None:
    """Check FILE against its schema, and count its records, in one pass."""
    from veracal.data import Schema, count_records

    declared = Schema.load(schema)
    with _output.progress_bar(f"Checking {file.name}") as progress:
        counts = count_records(file, declared, progress=progress)
    figures = {"read": counts.read, "kept": counts.kept, "dropped": counts.dropped}
    if json:
        _output.print_json({"file": str(file), "internal": {**figures, "note": INTERNAL}})
        return
    _output.print_line(f"{file.name} matches {schema.name}.")
    for word, number in figures.items():
        _output.print_line(f"{word:>9}  {format_count(number, 'record')}")
    _output.print_line(f"           ({INTERNAL})")


@app.command(
    epilog="Example:  veracal data count breast-cancer --epsilon 0.1 --ledger study.ledger"
)
def count(
    what: What,
    epsilon: Annotated[
        float, typer.Option(help="Epsilon of the answer, charged before it is computed.")
    ],
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DATA",
            help="Ledger to charge, or a data set with a default ledger; by default that of "
            "NAME or FILE, see 'veracal ledger list'.",
        ),
    ] = None,
    schema: _options.SchemaFile = None,
    partition: _options.Partition = None,
    version: _options.Version = None,
    part: PublishedPart = None,
    variant: Variant = None,
    json: _options.Json = False,
) -> None:
    """Count rows privately, with discrete noise, charged to a ledger first.

    The same query again returns the same answer, and costs nothing.
    """
    from veracal.accounting import format_down, format_up, to_micro
    from veracal.ledger import Ledger, resolve_ledger
    from veracal.queries import Count, Curator, laplace_event

    account = Ledger(resolve_ledger(what if ledger is None else ledger))
    with _output.usage_errors("--epsilon"):
        cost = to_micro(epsilon)
    event = laplace_event(Count(), cost, account.budget.relation, account.budget.unit)
    is_repeated = any(entry.event == event for entry in account.entries())
    if not is_repeated:
        with _output.usage_errors("--partition"):
            account.require(event, Count.name, partition=partition)
    records, _ = _load(what, schema, part, variant)
    curator = Curator(records, account, partition=partition, version=version or "")
    release = curator.answer(Count(), micro_epsilon=cost)
    low, high = release.intervals(0.95)[0]
    left = account.remaining(partition)
    if json:
        figures = {
            "count": int(release.value),
            "interval": {"level": 0.95, "low": int(low), "high": int(high)},
            "epsilon": release.epsilon,
            "left": {"epsilon": left.epsilon, "delta": left.delta},
            "head": release.head,
        }
        _output.print_json(figures)
        return
    _output.print_line(f"about {int(release.value):,} rows")
    _output.print_line(
        f"95 % of such answers are within {int(high - release.value):,} of the count"
    )
    paid, rest = format_up(epsilon, 6), format_down(left.epsilon, 6)
    _output.print_line(f"epsilon {paid} paid, {rest} left in {account.path.name}")


@app.command(
    epilog="Example:  veracal data features pets --schema pets.toml --out pets-features"
)
def features(
    records: Annotated[
        Path, typer.Argument(help="Folder or zip archive of images, or table of texts.")
    ],
    schema: Annotated[
        Path, typer.Option(help="Schema of the texts, or the table 'images' of a TOML file.")
    ],
    out: Annotated[Path, typer.Option(help="New folder for the features.")],
    part: Annotated[
        str | None, typer.Option(help="Part of the images, as the form finds it in paths.")
    ] = None,
    pixels: Annotated[
        int | None,
        typer.Option(
            min=32, help="Side of the resized images; by default 96, or that of --network."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, max=512, help="Longest text, in tokens.")] = 128,
    network: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a Hugging Face model to use instead of the built-in network."
        ),
    ] = None,
    cache: Annotated[
        bool, typer.Option(help="Keep the features in the cache folder, and reuse them.")
    ] = True,
    json: _options.Json = False,
) -> None:
    """Encode images or text as vectors with a frozen network, each record independently.

    Images are encoded by EfficientNet-Lite0 and text by MiniLM, or either by a model in a
    folder; nothing is fetched. The output folder contains X.npy, y.npy and schema.toml, and
    is loaded as a matrix that stays on disk.
    """
    from veracal.data import SCHEMA_FILE, check_group_names, load, new_file, save_matrix
    from veracal.neural import EfficientNetLite0, ImageEncoder, MiniLM, TextEncoder, extract

    new_file(out, "folder")  # fail before the work
    with _output.progress_bar(f"Loading {records.name}") as progress:
        dataset = load(records, schema=schema, part=part, progress=progress)
    check_group_names(dataset)  # fail before the work
    extractor: Any
    if dataset.X.dtype.kind == "T":
        extractor = MiniLM(tokens) if network is None else TextEncoder(network, tokens)
    elif network is None:
        extractor = EfficientNetLite0(pixels or 96)
    else:
        extractor = ImageEncoder(network, pixels)
    with _output.progress_bar(f"Extracting {extractor.name}") as progress:
        encoded = extract(dataset, extractor, cache=None if cache else False, progress=progress)
    assert extractor.bounds is not None
    save_matrix(encoded, out, bounds=extractor.bounds)
    figures = {
        "folder": str(out),
        "schema": str(out / SCHEMA_FILE),
        "extractor": extractor.name,
        "numbers": extractor.dimension,
    }
    if json:
        _output.print_json(figures)
    else:
        typer.echo(out)
    _output.print_status(
        f"{extractor.dimension} numbers for each record. Treat them like the records."
    )


def _load(
    what: str, schema: Path | None, part: str | None, variant: str | None
) -> "tuple[Dataset, Schema | None]":
    """Load a set or a file; return it with the schema of the options."""
    from veracal.data import Schema, load

    source = _source(what, schema, part or variant)
    declared = None if schema is None else Schema.load(schema)
    with _output.progress_bar(f"Loading {what}") as progress:
        dataset = load(source, schema=declared, part=part, variant=variant, progress=progress)
    return dataset, declared


def _source(what: str, schema: Path | None, choice: str | None) -> str | Path:
    """Parse NAME or FILE, and reject options that do not apply to it."""
    from veracal.data import CATALOG, check_readable, translate_os_errors
    from veracal.errors import DataError

    path = Path(what)
    with translate_os_errors(path):
        is_name = _options.is_name(what)
    if schema is not None and is_name and what in CATALOG:
        raise typer.BadParameter(
            f"The built-in set {what!r} has its own: leave this out.", param_hint="--schema"
        )
    if choice is not None and not is_name:
        raise typer.BadParameter(
            "Only built-in sets have these.", param_hint="--part, --variant"
        )
    if is_name and schema is None:
        return what
    if not path.exists():
        check_readable(path)  # raises the usual error for a missing file
    if schema is None:
        raise DataError(
            what,
            "a schema with public bounds, categories and classes",
            "none",
            "Nothing is inferred from records. Draft one with `veracal schema draft FILE`, "
            "replace what it read from the records by public knowledge, and pass --schema.",
        )
    return path
