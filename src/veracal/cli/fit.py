"""The command ``fit``: a private, calibrated, measured model of a table."""

from pathlib import Path
from typing import Annotated

import typer

from veracal.cli import _options

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(epilog="Example:  veracal fit breast-cancer --epsilon 3 --out model")
def fit(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="CSV, TSV, Parquet, Arrow or npz file, or a name from 'veracal data list'.",
        ),
    ] = None,
    target: _options.Target = None,
    epsilon: _options.Epsilon = None,
    delta: _options.Delta = None,
    schema: _options.SchemaFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the model; by default DATA's name and '-model'."),
    ] = None,
    ledger: _options.LedgerFile = None,
    test: _options.Test = None,
    split_key: _options.SplitKey = None,
    model: _options.ModelKind = None,
    method: _options.Method = None,
    norm: _options.Norm = None,
    group: _options.Group = None,
    bins: _options.Bins = None,
    reserve: Annotated[
        int | None,
        typer.Option(min=0, help="Later measurements to reserve budget for; by default 2."),
    ] = None,
    version: _options.Version = None,
    max_contributions: _options.MaxContributions = None,
    config: _options.ConfigFile = None,
    force: _options.Force = False,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal",
            help="Write a second report with exact figures, which must not be published.",
        ),
    ] = False,
    statement: _options.FullStatement = False,
    json: _options.Json = False,
) -> None:
    """Train a private classifier on DATA, calibrate it, and measure it.

    A file needs a schema; 'veracal schema draft' proposes one. Everything is
    charged to the ledger of DATA before a record is used. All runs on the same
    DATA share one budget, which the first run opens with its --epsilon. To
    resume a run that was interrupted, or whose model was lost, repeat the
    command: it costs nothing more.
    """
    settings = _options.build_config(data, context.params, config)
    _options.check_data(settings, target)
    folder = Path(f"{Path(settings.data.source).stem}-model") if out is None else out
    _options.check_folder(folder, force=force)
    from veracal.cli import _run_output
    from veracal.workflow import run

    with _run_output.guard_run(settings, folder, ledger) as (path, progress, notify):
        result = run(
            settings,
            folder,
            ledger=path,
            force=force,
            internal=internal,
            on_progress=progress,
            on_notice=notify,
        )
    _run_output.print_run(result, whole=statement, json=json)
