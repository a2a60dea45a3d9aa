"""The command that makes a private, calibrated, measured model of a table."""

from pathlib import Path
from typing import Annotated

import typer

from veracal.cli import _output as _show
from veracal.cli import _run_options as _fitting

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(epilog="Example:  veracal fit breast-cancer --epsilon 3 --out model")
def fit(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="CSV, TSV, Parquet, Arrow or npz file, or a name of 'veracal data list'.",
        ),
    ] = None,
    target: _fitting.Target = None,
    epsilon: _fitting.Epsilon = None,
    delta: _fitting.Delta = None,
    schema: _fitting.SchemaFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the model; by default DATA's name and '-model'."),
    ] = None,
    ledger: _fitting.LedgerFile = None,
    test: _fitting.Test = None,
    seed: _fitting.Seed = None,
    model: _fitting.ModelKind = None,
    method: _fitting.Method = None,
    norm: _fitting.Norm = None,
    group: _fitting.Group = None,
    bins: _fitting.Bins = None,
    later: Annotated[
        int | None, typer.Option(min=0, help="Measurements to keep budget for: 2.")
    ] = None,
    version: _fitting.Version = None,
    at_most: _fitting.AtMost = None,
    config: _fitting.ConfigFile = None,
    force: Annotated[
        bool, typer.Option("--force", help="Put the model in the place of one at --out.")
    ] = False,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal",
            help="Write a second report, of the records as they are, beside the model: not to "
            "be published.",
        ),
    ] = False,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print the guarantee in full.")
    ] = False,
    json: _fitting.Json = False,
) -> None:
    """Train a private classifier on DATA, repair its confidence, and measure both.

    A file needs a schema, which 'veracal schema draft' begins. Everything is
    charged to the data set's ledger before a record is used: all runs on the
    same DATA share one budget, which the first opens with its --epsilon. A run
    that broke off, or whose model was lost, is run again by the same command,
    at no further cost.
    """
    typed = {
        "--schema": None if schema is None else str(schema),
        "--test": test,
        "--seed": seed,
        "--version": version,
        "--at-most": at_most,
        "--epsilon": epsilon,
        "--delta": delta,
        "--model": model,
        "--method": method,
        "--norm": norm,
        "--group": group,
        "--bins": bins,
        "--later": later,
    }
    chosen = _fitting.configured(data, typed, config)
    _fitting.check_data(chosen, target)
    place = Path(f"{Path(chosen.data.source).stem}-model") if out is None else out
    from veracal.workflow import run

    with _fitting.running(chosen, place, ledger, force=force) as (book, tell, notify):
        made = run(
            chosen,
            place,
            ledger=book,
            force=force,
            internal=internal,
            on_progress=tell,
            on_notice=notify,
        )
    from veracal.cli import _run_output as _run_show

    if json:
        _show.print_json(_run_show.facts(made))
    else:
        _run_show.show(made, whole=statement)
