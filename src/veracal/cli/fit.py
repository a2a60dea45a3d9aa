"""The command that makes a private, calibrated, measured model of a table."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _show

if TYPE_CHECKING:
    from veracal.pipeline import Config, Run

app = typer.Typer(no_args_is_help=True, add_completion=False)

# Which field of the config an option sets.
_FIELDS: Mapping[str, tuple[str, str]] = {
    "--schema": ("data", "schema"),
    "--test": ("data", "test"),
    "--seed": ("data", "seed"),
    "--version": ("data", "version"),
    "--epsilon": ("privacy", "epsilon"),
    "--delta": ("privacy", "delta"),
    "--model": ("model", "kind"),
    "--method": ("recalibration", "method"),
    "--group": ("measurement", "group"),
    "--bins": ("measurement", "bins"),
    "--later": ("measurement", "later"),
}


@app.command(epilog="Example:  veracal fit breast-cancer --epsilon 3 --out model")
def fit(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="CSV, TSV, Parquet, Arrow or npz file, or the name of a built-in set.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column to predict; the schema must say the same.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="How much may be told about one person, in all.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="By default 1 over 10 times the declared size.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="TOML file with what is public about a file.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the model; by default DATA's name and '-model'."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Where costs are written; by default --out and '.ledger'."),
    ] = None,
    test: Annotated[
        float | None, typer.Option(help="Share of the records kept for measuring: 0.2.")
    ] = None,
    seed: Annotated[
        str | None, typer.Option(help="Public key that deals records to training and test.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="logistic, objective or output; by default logistic.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Map: auto, temperature, two-temperatures or none.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Group of the schema to tell figures apart by.")
    ] = None,
    bins: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Bins of the calibration error: 10.")
    ] = None,
    later: Annotated[
        int | None, typer.Option(min=0, help="Measurements to keep budget for: 2.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Public mark of the records; change it when they change.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with all of this; options come first.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Put the model in the place of one at --out.")
    ] = False,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print the guarantee in full.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a private classifier on DATA, repair its confidence, and measure both.

    A file needs a schema, which 'veracal schema draft' begins. Everything is
    charged to a ledger before a record is used. A run that broke off, or whose
    model was lost, is run again by the same command, at no further cost.
    """
    typed = {
        "--schema": None if schema is None else str(schema),
        "--test": test,
        "--seed": seed,
        "--version": version,
        "--epsilon": epsilon,
        "--delta": delta,
        "--model": model,
        "--method": method,
        "--group": group,
        "--bins": bins,
        "--later": later,
    }
    chosen = _configured(data, typed, config)
    _check_data(chosen, target)
    place = Path(f"{Path(chosen.data.source).stem}-model") if out is None else out
    made = _run(chosen, place, ledger, force=force)
    _tell(made, whole=statement, json=json)


def _configured(data: str | None, typed: Mapping[str, Any], config: Path | None) -> "Config":
    """Every choice: those of the file, and over them those that were typed."""
    from dataclasses import replace

    from veracal.pipeline import Config
    from veracal.pipeline.config import DataConfig

    if config is None:
        if data is None:
            raise typer.BadParameter("name a file or a built-in set.", param_hint="DATA")
        if typed["--epsilon"] is None:
            raise typer.BadParameter(
                "say how much may be told about one person, as in --epsilon 3 (smaller is more "
                "private).",
                param_hint="--epsilon",
            )
        chosen = Config(DataConfig(data), name=Path(data).stem)
    else:
        chosen = Config.load(config)
        if data is not None:
            chosen = replace(chosen, data=replace(chosen.data, source=data))
    for option, value in typed.items():
        if value is None:
            continue
        section, field = _FIELDS[option]
        try:
            part = replace(getattr(chosen, section), **{field: value})
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=option) from error
        chosen = replace(chosen, **{section: part})
    return chosen


def _check_data(chosen: "Config", target: str | None) -> None:
    """Refuse a file without a schema, a schema for a built-in set, and another target."""
    from veracal.cli._artifacts import is_name
    from veracal.data import Schema
    from veracal.data.limits import readable
    from veracal.data.sets.builtin import SCHEMAS

    source, path = chosen.data.source, Path(chosen.data.source)
    if is_name(source):
        if chosen.data.schema is not None:
            raise typer.BadParameter(f"{source!r} brings its own.", param_hint="--schema")
        declared = SCHEMAS.get(source)
    else:
        if not path.exists():
            readable(path)  # says that nothing is there
        if chosen.data.schema is None:
            _explain(path, target)
            raise typer.Exit(2)
        declared = Schema.load(chosen.data.schema)
    if target is not None and declared is not None and declared.target != target:
        raise typer.BadParameter(
            f"the schema's target is {declared.target!r}, not {target!r}. Say the same in "
            "both, or leave --target out.",
            param_hint="--target",
        )
    _check_norm(chosen, None if declared is None else declared.norm)


def _check_norm(chosen: "Config", norm: float | None) -> None:
    """Refuse a model that needs a bound on rows where none is declared."""
    from veracal.errors import DataError

    if chosen.model.kind != "logistic" and chosen.model.norm is None and norm is None:
        raise DataError(
            chosen.data.source,
            f"a declared bound on the norm of a row, which --model {chosen.model.kind} needs",
            "none",
            "Write norm = … at the top of the schema, or in [model] of --config: longer rows "
            "are scaled down to it. --model logistic needs none.",
        )


def _explain(path: Path, target: str | None) -> None:
    """Say what must be declared about a file, why, and by which command."""
    beside = path.with_suffix(".toml")
    _show.status(
        f"error: {path} needs a schema: the bounds of its numbers, the values of its "
        "categories, its classes and about how many records there are, all by public "
        "knowledge, because whatever is read from the records tells about them. Draft one, "
        "put public knowledge in place of what it read, write size = … at its top, delete its "
        "line 'draft = true', and fit again with --schema:"
    )
    name, toml = shlex.quote(str(path)), shlex.quote(str(beside))
    column = "COLUMN" if target is None else shlex.quote(target)
    if beside.exists():
        _show.status(f"  ({beside} is there; if that is it, add --schema {toml})")
        return
    _show.status(f"  veracal schema draft {name} --target {column} --out {toml}")


def _run(chosen: "Config", place: Path, ledger: Path | None, *, force: bool) -> "Run":
    """Do it all; what cannot be meant is a matter of usage."""
    from veracal.cli._paying import is_there
    from veracal.cli._run_show import step_bars
    from veracal.errors import BudgetError, DataError, VeracalError
    from veracal.pipeline import run

    book = Path(f"{place}.ledger") if ledger is None else ledger
    if is_there(place) and not force:
        raise DataError(
            str(place),
            "a new folder",
            "one that exists",
            f"Add --force to put the new model in its place ({book} stays, and what it has "
            "paid for is not paid again), or name another with --out.",
        )
    fresh = not is_there(book)
    try:
        with step_bars() as tell:
            made = run(chosen, place, ledger=book, force=force, on_progress=tell)
    except KeyboardInterrupt:
        _show.status(
            "Stopped; no model was written. The same command goes on from what is in the "
            f"ledger, {book}, if there is one: nothing is paid twice."
        )
        raise typer.Exit(130) from None  # as everywhere, when somebody stops a program
    except BudgetError as error:
        if fresh:
            raise
        raise BudgetError(
            f"{error} {book} has paid for a run with other settings: --seed, --version, "
            "--schema, or DATA written otherwise. With those, run again, and it costs nothing."
        ) from error
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if fresh:
        _show.status(
            f"Opened {book} with a budget of epsilon {chosen.privacy.epsilon:g}. Keep it: "
            "whatever else is released about these people must be charged to it, too."
        )
    return made


def _tell(made: "Run", *, whole: bool, json: bool) -> None:
    """Print what came out."""
    from veracal.cli import _run_show

    if json:
        _show.print_json(_run_show.facts(made))
    else:
        _run_show.show(made, whole=whole)
