"""The commands that find, fetch, check, count and encode data sets."""

from pathlib import Path
from typing import Annotated, Any

import typer

from veracal.cli import _output

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="List, inspect and count data sets."
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _names(incomplete: str) -> list[str]:
    """Complete the name of a data set."""
    from veracal.data import CATALOG

    return [name for name in CATALOG if name.startswith(incomplete)]


@app.command("list", epilog="Example:  veracal data list --json")
def list_(json: Json = False) -> None:
    """List the built-in data sets."""
    from veracal.cli._data_output import catalog_table, entry_facts
    from veracal.data import CATALOG

    if json:
        _output.print_json({"sets": [entry_facts(known) for known in CATALOG.values()]})
        return
    console = _output.console()
    console.print(catalog_table(CATALOG.values(), console.width))


@app.command(epilog="Example:  veracal data show breast-cancer")
def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE", help="A name, or a file of records.", autocompletion=_names
        ),
    ],
    schema: Annotated[
        Path | None, typer.Option(help="Schema of a file, with the public facts about it.")
    ] = None,
    part: Annotated[str | None, typer.Option(help="Published part: train, test, …")] = None,
    variant: Annotated[str | None, typer.Option(help="Published version.")] = None,
    json: Json = False,
) -> None:
    """Load a data set through its schema, split it at random, and show both."""
    from veracal.cli._data_output import dataset_facts, dataset_tables
    from veracal.data import split

    dataset, declared = _load(what, schema, part, variant)
    declared = declared or _named_schema(what)
    parts = split(dataset)
    if json:
        _output.print_json(dataset_facts(dataset, declared, parts))
        return
    console = _output.console()
    for table in dataset_tables(dataset, declared, parts, console.width):
        console.print(table)


@app.command(epilog="Example:  veracal data check visits.csv --schema visits.toml")
def check(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, Parquet, Arrow, npz or npy file.")],
    schema: Annotated[Path, typer.Option(help="Schema with the public facts about FILE.")],
    json: Json = False,
) -> None:
    """Check FILE against its schema, and count its records, in one pass."""
    from veracal.cli._data_output import INTERNAL
    from veracal.data import Schema, count_records

    declared = Schema.load(schema)
    with _output.progress_bar(f"Checking {file.name}") as progress:
        counts = count_records(file, declared, progress=progress)
    figures = {"read": counts.read, "kept": counts.kept, "dropped": counts.dropped}
    if json:
        _output.print_json({"file": str(file), "internal": {**figures, "note": INTERNAL}})
        return
    _output.print_line(f"{file.name} matches {schema.name}.")
    for word, count in figures.items():
        _output.print_line(f"{word:>9}  {_output.format_count(count, 'record')}")
    _output.print_line(f"           ({INTERNAL})")


@app.command(
    epilog="Example:  veracal data count breast-cancer --epsilon 0.1 --ledger study.ledger"
)
def count(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE", help="A name, or a file of records.", autocompletion=_names
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="Privacy cost of the answer.")],
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DATA",
            help="Ledger to charge, or a data set with a default ledger; by default that of "
            "NAME or FILE, see 'veracal ledger list'.",
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Schema of a file, with the public facts about it.")
    ] = None,
    ledger_part: Annotated[
        str | None, typer.Option(help="Partition of the ledger that these records are.")
    ] = None,
    version: Annotated[
        str, typer.Option(help="Public version of the records; change it when they change.")
    ] = "",
    part: Annotated[str | None, typer.Option(help="Published part: train, …")] = None,
    variant: Annotated[str | None, typer.Option(help="Published version.")] = None,
    json: Json = False,
) -> None:
    """Count rows privately, with discrete noise, charged to a ledger first.

    The same query again returns the same answer, and costs nothing.
    """
    from veracal.accounting import format_down, format_up, to_micro
    from veracal.ledger import Ledger, resolve_ledger
    from veracal.queries import Count, Curator, laplace_event

    account = Ledger(resolve_ledger(what if ledger is None else ledger))
    try:
        cost = to_micro(epsilon)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--epsilon") from error
    event = laplace_event(Count(), cost, account.budget.relation, account.budget.unit)
    is_repeated = any(entry.event == event for entry in account.entries())
    if not is_repeated:
        account.require(event, Count.name, partition=ledger_part)
    records, _ = _load(what, schema, part, variant)
    curator = Curator(records, account, partition=ledger_part, version=version)
    release = curator.answer(Count(), micro_epsilon=cost)
    low, high = release.intervals(0.95)[0]
    left = account.remaining(ledger_part)
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


@app.command(epilog="Example:  veracal data features sst2 --out sst2-train --part train")
def features(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="A named set of images or text, or a file of text.",
            autocompletion=_names,
        ),
    ],
    out: Annotated[Path, typer.Option(help="New folder for the features.")],
    schema: Annotated[
        Path | None, typer.Option(help="Schema of a file, with the public facts about it.")
    ] = None,
    part: Annotated[str | None, typer.Option(help="Published part: train, test, …")] = None,
    pixels: Annotated[
        int | None,
        typer.Option(
            min=32, help="Side of the resized images; by default 96, or that of --network."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, max=512, help="Longest text, in tokens.")] = 128,
    network: Annotated[
        Path | None, typer.Option(help="Folder of a Hugging Face model to use instead.")
    ] = None,
    cache: Annotated[bool, typer.Option(help="Cache the features.")] = True,
    json: Json = False,
) -> None:
    """Encode images or text as vectors with a frozen network, each record independently.

    Images are encoded by EfficientNet-Lite0 and text by MiniLM, or either by a model in a
    folder; nothing is fetched. The output folder contains X.npy, y.npy and schema.toml, and
    is loaded as a matrix that stays on disk.
    """
    from veracal.data import (
        SCHEMA_FILE,
        Schema,
        check_group_names,
        load,
        new_file,
        save_matrix,
    )
    from veracal.neural import extract

    source = _source(what, schema, part)
    new_file(out, "folder")  # fail before the work
    declared = None if schema is None else Schema.load(schema)
    with _output.progress_bar(f"Loading {what}") as progress:
        dataset = load(source, schema=declared, part=part, progress=progress)
    check_group_names(dataset)  # fail before the work
    extractor = _extractor(dataset.X.dtype.kind == "T", pixels, tokens, network)
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


def _extractor(is_text: bool, pixels: int | None, tokens: int, network: Path | None) -> Any:
    """The frozen network of the options."""
    from veracal.neural import EfficientNetLite0, ImageEncoder, MiniLM, TextEncoder

    if network is None:
        return MiniLM(tokens) if is_text else EfficientNetLite0(pixels or 96)
    return TextEncoder(network, tokens) if is_text else ImageEncoder(network, pixels)


def _load(
    what: str, schema: Path | None, part: str | None, variant: str | None
) -> tuple[Any, Any]:
    """Load a set or a file; return it with the schema of the options."""
    from veracal.data import Schema, load

    source = _source(what, schema, part or variant)
    declared = None if schema is None else Schema.load(schema)
    with _output.progress_bar(f"Loading {what}") as progress:
        dataset = load(
            source,
            schema=declared,
            part=part,
            variant=variant,
            progress=progress,
        )
    return dataset, declared


def _source(what: str, schema: Path | None, choice: str | None) -> str | Path:
    """Parse NAME or FILE, and reject options that do not apply to it."""
    from veracal.data import CATALOG, check_readable, translate_os_errors
    from veracal.errors import DataError

    path = Path(what)
    with translate_os_errors(path):
        is_here = path.exists()
    is_name = not (is_here or path.suffix or len(path.parts) > 1)
    if schema is not None and is_name and what in CATALOG:
        raise typer.BadParameter(
            f"{what!r} has its own. Leave this out.", param_hint="--schema"
        )
    if choice is not None and not is_name:
        raise typer.BadParameter("Only named sets have these.", param_hint="--part, --variant")
    if is_name and schema is None:
        return what
    if not is_here:
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


def _named_schema(what: str) -> Any:
    """Return the schema of a built-in table, None for a synthetic set."""
    from veracal.data import entry

    return entry(what).schema
