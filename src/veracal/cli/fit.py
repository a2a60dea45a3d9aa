"""The command ``fit``: a private, calibrated, measured model of a table."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _artifacts, _figures, _options, _output, _payment

if TYPE_CHECKING:
    from veracal.workflow import RunResult

_WIDE = 0.2  # an interval of the accuracy that says too little

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(epilog="Example:  veracal fit breast-cancer --epsilon 3 --out model")
def fit(
    context: typer.Context,
    data: _options.Data = None,
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
    command, with --force if the folder exists: it costs nothing more.
    """
    settings = _options.build_config(data, context.params, config)
    _options.check_data(settings, target)
    folder = Path(f"{Path(settings.data.source).stem}-model") if out is None else out
    _options.check_folder(folder, force=force)
    from veracal.workflow import run

    with _payment.guard_run(settings, folder, ledger) as (path, progress, notify):
        result = run(
            settings,
            folder,
            ledger=path,
            force=force,
            internal=internal,
            on_progress=progress,
            on_notice=notify,
        )
    _print_run(result, whole=statement, json=json)


def _print_run(result: "RunResult", *, whole: bool, json: bool) -> None:
    """Print the settings, the figures, the guarantee and the paths of a run."""
    from veracal.accounting import format_up

    folder, report = result.folder, result.folder / _artifacts.REPORT
    if json:
        _output.print_json(
            {
                "folder": str(folder),
                "report": str(report) if report.exists() else None,
                "internal": None if result.internal is None else str(result.internal),
                "ledger": str(result.ledger.path),
                "results": result.results.to_json(),
            }
        )
        return
    facts = _artifacts.facts(result.results, folder.name)
    paid, test = result.results.ledger, f"{facts['test']:.0%}"
    note = f"; {paid.note}" if paid.note else ""
    path, here = result.ledger.path, Path.cwd()
    path = path.relative_to(here) if path.is_relative_to(here) else path
    left = _output.format_count(
        _payment.count_measurements_left(result.ledger), "more measurement"
    )
    rows = [
        ("protects", _artifacts.protected(facts)),
        ("cost", _artifacts.cost(facts)),
        (
            "all runs",
            f"epsilon {format_up(paid.spent.epsilon)} spent of "
            f"{format_up(paid.caps.epsilon, 6)}, delta {format_up(paid.spent.delta, 3)} of "
            f"{format_up(paid.caps.delta, 3)}, by {_output.format_count(paid.runs, 'run')}{note}",
        ),
        (
            "trained on",
            f"{1 - facts['test']:.0%} of {facts['data']}: {facts['features']} features, "
            f"{len(facts['classes'])} classes",
        ),
        ("measured on", f"the other {test}, with noise"),
        ("model", facts["model"]),
        ("map", facts["map"]),
        ("artifact", str(folder)),
        *([("report", str(report))] if report.exists() else []),
        *(
            [("internal report", f"{result.internal}: do not publish it")]
            if result.internal is not None
            else []
        ),
        ("ledger", f"{path}, which has reserved budget for {left}"),
    ]
    _output.print_table(f"{folder.name}: a private classifier", ("", ""), rows)
    measured = facts["measured"]
    sides = {when: measured[when] for when in ("before", "after") if when in measured}
    title = "before and after the map" if len(sides) > 1 else "figures"
    _figures.print_sides(title, sides, _artifacts.NOISY_NOTE)
    after = result.results.when("after")
    if after is not None and after.groups:
        cells = [
            (name, *_figures.format_row(_artifacts.estimates(one)))
            for name, one in after.groups.items()
        ]
        heads = ("group", *_artifacts.FIGURES)
        _output.print_table(f"by {after.group}, after the map", heads, cells)
    text = facts["text"] if whole else "\n\n".join(facts["text"].split("\n\n")[:2])
    typer.echo("\n" + _output.escape_text(text, keep="\n"))
    accuracy = measured["after"].get("accuracy")
    if accuracy is None or accuracy.low is None or accuracy.high - accuracy.low > _WIDE:
        _output.print_status(
            "The intervals are wide: there are few test records for this epsilon. A larger "
            "--test, fewer --bins or --reserve 0 would have made them narrower. Running again "
            "on the same records costs the same again, and needs 'veracal ledger extend'."
        )
    quoted = shlex.quote(str(folder))
    _output.print_status(f"Next:  veracal predict {quoted} NEW.csv --out predictions.csv")
