"""Commands about data sets."""

from pathlib import Path
from typing import Annotated, Any

import typer

from veracal.cli import _output as _show

app = typer.Typer(no_args_is_help=True, help="List and inspect data sets.")

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
        _show.print_json({"sets": [entry_facts(known) for known in CATALOG.values()]})
        return
    console = _show.console()
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
        Path | None, typer.Option(help="Schema of a file: what is publicly known about it.")
    ] = None,
    part: Annotated[str | None, typer.Option(help="Which part: train, test, …")] = None,
    variant: Annotated[str | None, typer.Option(help="Which published version.")] = None,
    json: Json = False,
) -> None:
    """Load a data set through its schema, split it by secret coins, and show both."""
    from veracal.cli._data_output import dataset_facts, dataset_tables
    from veracal.data import split

    dataset, declared = _loaded(what, schema, part, variant)
    declared = declared or _named_schema(what)
    dealt = split(dataset)
    if json:
        _show.print_json(dataset_facts(dataset, declared, dealt))
        return
    console = _show.console()
    for table in dataset_tables(dataset, declared, dealt, console.width):
        console.print(table)


@app.command(epilog="Example:  veracal data check visits.csv --schema visits.toml")
def check(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, Parquet, Arrow, npz or npy file.")],
    schema: Annotated[Path, typer.Option(help="What is publicly known about it.")],
    json: Json = False,
) -> None:
    """Stream FILE through its schema and count its records, keeping none."""
    from veracal.cli._data_output import INTERNAL
    from veracal.data import Schema, count_records

    declared = Schema.load(schema)
    with _show.progress_bar(f"Checking {file.name}") as progress:
        found = count_records(file, declared, progress=progress)
    figures = {"read": found.read, "kept": found.kept, "dropped": found.dropped}
    if json:
        _show.print_json({"file": str(file), "internal": {**figures, "note": INTERNAL}})
        return
    _show.say(f"{file.name} is as {schema.name} declares.")
    for word, count in figures.items():
        _show.say(f"{word:>9}  {_show.counted(count, 'record')}")
    _show.say(f"           ({INTERNAL})")


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
    epsilon: Annotated[float, typer.Option(help="What the answer may cost.")],
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DATA",
            help="Ledger that pays for the answer, or the data set whose ledger does; by "
            "default that of NAME or FILE, see 'veracal ledger list'.",
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Schema of a file: what is publicly known about it.")
    ] = None,
    ledger_part: Annotated[
        str | None, typer.Option(help="Part of the ledger that these records are.")
    ] = None,
    version: Annotated[
        str, typer.Option(help="Public mark of the records; change it when they change.")
    ] = "",
    part: Annotated[str | None, typer.Option(help="Which part of the set: train, …")] = None,
    variant: Annotated[str | None, typer.Option(help="Which published version.")] = None,
    json: Json = False,
) -> None:
    """Count rows privately: with exact noise, paid for by a ledger before they are counted.

    The same question asked again gets the same answer and costs nothing.
    """
    from veracal.accounting import rounded_down, rounded_up, to_micro
    from veracal.ledger import Ledger, resolve_ledger
    from veracal.queries import Count, Curator, laplace_event

    paying = Ledger(resolve_ledger(what if ledger is None else ledger))
    try:
        cost = to_micro(epsilon)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--epsilon") from error
    budget = paying.budget
    event = laplace_event(Count(), cost, budget.relation, budget.unit)
    if not any(entry.event == event for entry in paying.entries()):  # it may be asked again
        paying.require(event, Count.name, part=ledger_part)
    records, _ = _loaded(what, schema, part, variant)
    holder = Curator(records, paying, part=ledger_part, version=version)
    release = holder.answer(Count(), micro_epsilon=cost)
    low, high = release.intervals(0.95)[0]
    left = paying.remaining(ledger_part)
    if json:
        figures = {
            "count": int(release.value),
            "interval": {"level": 0.95, "low": int(low), "high": int(high)},
            "epsilon": release.epsilon,
            "left": {"epsilon": left.epsilon, "delta": left.delta},
            "head": release.head,
        }
        _show.print_json(figures)
        return
    _show.say(f"about {int(release.value):,} rows")
    _show.say(f"95 % of such answers are off by {int(high - release.value):,} at most")
    paid, rest = rounded_up(epsilon, 6), rounded_down(left.epsilon, 6)
    _show.say(f"epsilon {paid} paid, {rest} left in {paying.path.name}")


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
        Path | None, typer.Option(help="Schema of a file: what is publicly known about it.")
    ] = None,
    part: Annotated[str | None, typer.Option(help="Which part: train, test, …")] = None,
    pixels: Annotated[
        int | None,
        typer.Option(min=32, help="Side that images are resized to; 96, or as a folder says."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, max=512, help="Where texts are cut.")] = 128,
    network: Annotated[
        Path | None, typer.Option(help="Folder of a Hugging Face model to take instead.")
    ] = None,
    cache: Annotated[bool, typer.Option(help="Keep the features for the next time.")] = True,
    json: Json = False,
) -> None:
    """Turn images or text into vectors by a frozen network, one record at a time.

    Images go through EfficientNet-Lite0, text through MiniLM, or both through a model that
    is in a folder; nothing is fetched. The folder of features holds X.npy, y.npy and
    schema.toml, and loads as a matrix that stays on disk.
    """
    from veracal.data import (
        SCHEMA_FILE,
        Schema,
        check_group_names,
        load,
        new_folder,
        save_matrix,
    )
    from veracal.neural import extract

    source = _source(what, schema, part)
    new_folder(out)  # before the work, not after it
    declared = None if schema is None else Schema.load(schema)
    with _show.progress_bar(f"Loading {what}") as progress:
        dataset = load(source, schema=declared, part=part, progress=progress)
    check_group_names(dataset)  # again before the work
    extractor = _extractor(dataset.X.dtype.kind == "T", pixels, tokens, network)
    with _show.progress_bar(f"Extracting {extractor.name}") as progress:
        found = extract(dataset, extractor, cache=None if cache else False, progress=progress)
    assert extractor.bounds is not None
    save_matrix(found, out, bounds=extractor.bounds)
    figures = {
        "folder": str(out),
        "schema": str(out / SCHEMA_FILE),
        "extractor": extractor.name,
        "numbers": extractor.dimension,
    }
    if json:
        _show.print_json(figures)
    else:
        typer.echo(out)
    _show.status(f"{extractor.dimension} numbers for each record; treat them as the records.")


def _extractor(is_text: bool, pixels: int | None, tokens: int, network: Path | None) -> Any:
    """The frozen network that is asked for."""
    from veracal.neural import EfficientNetLite0, ImageEncoder, MiniLM, TextEncoder

    if network is None:
        return MiniLM(tokens) if is_text else EfficientNetLite0(pixels or 96)
    return TextEncoder(network, tokens) if is_text else ImageEncoder(network, pixels)


def _loaded(
    what: str, schema: Path | None, part: str | None, variant: str | None
) -> tuple[Any, Any]:
    """Load a set or a file, and return it with the schema that was named."""
    from veracal.data import Schema, load

    source = _source(what, schema, part or variant)
    declared = None if schema is None else Schema.load(schema)
    with _show.progress_bar(f"Loading {what}") as progress:
        dataset = load(
            source,
            schema=declared,
            part=part,
            variant=variant,
            progress=progress,
        )
    return dataset, declared


def _source(what: str, schema: Path | None, choice: str | None) -> str | Path:
    """Return the name or the path that is meant, or refuse options that do not fit it."""
    from veracal.data import CATALOG, no_surprises, readable
    from veracal.errors import DataError

    path = Path(what)
    with no_surprises(path):
        is_here = path.exists()
    is_name = not (is_here or path.suffix or len(path.parts) > 1)
    if schema is not None and is_name and what in CATALOG:
        raise typer.BadParameter(f"{what!r} brings its own.", param_hint="--schema")
    if choice is not None and not is_name:
        raise typer.BadParameter("only named sets have any.", param_hint="--part, --variant")
    if is_name and schema is None:
        return what
    if not is_here:
        readable(path)  # says that nothing is there
    if schema is None:
        raise DataError(
            what,
            "a schema: bounds, categories and classes that are publicly known",
            "none",
            "Nothing is inferred from records. Start from `veracal schema draft FILE`, replace "
            "what it read by public knowledge, and name it with --schema.",
        )
    return path


def _named_schema(what: str) -> Any:
    """Return the schema of a built-in table, None for a synthetic set."""
    from veracal.data import entry

    return entry(what).schema
