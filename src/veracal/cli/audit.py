"""The command ``audit``: how far decisions depend on the randomness of training.

Also options that take several numbers in a row: ``--epsilon 0.5 1 2``.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from click.core import ParameterSource
from typer.core import TyperCommand

from veracal.cli import _options as _fitting
from veracal.cli import _output as _show
from veracal.errors import VeracalError

if TYPE_CHECKING:
    from veracal.multiplicity import AuditSettings
    from veracal.report import AuditResults


def list_command(*names: str) -> type[TyperCommand]:
    """Command class whose given options accept a list of numbers.

    Click supports repeated options and options with a fixed number of values. Here
    ``--epsilon 0.5 1 2`` and ``--epsilon 0.5,1,2`` are both read as the option, three times. A
    word that is not a number ends the list, so that a table may follow.

    Parameters
    ----------
    *names : str
        Options that are declared as lists of numbers.
    """

    class ListCommand(TyperCommand):
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            return super().parse_args(ctx, expand_lists(args, names))

    return ListCommand


def expand_lists(args: Sequence[str], names: Collection[str]) -> list[str]:
    """Words of a command line, with the option repeated before each of its numbers.

    Examples
    --------
    >>> expand_lists(["--epsilon", "0.5", "1,2", "a.csv"], ["--epsilon"])
    ['--epsilon=0.5', '--epsilon=1', '--epsilon=2', 'a.csv']
    """
    expanded: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, given, value = word.partition("=")
        if word == "--":
            return [*expanded, word, *rest]
        if name not in names or not (given or rest):
            expanded.append(word)
            continue
        values = [value if given else rest.pop(0)]
        while rest and _is_number_list(rest[0]):
            values.append(rest.pop(0))
        parts = [part.strip() for each in values for part in each.split(",")]
        expanded += [f"{name}={part}" for part in parts if part] or [f"{name}="]
    return expanded


def _is_number_list(word: str) -> bool:
    """Whether a word is a number, or several separated by commas."""
    parts = [part for part in word.split(",") if part.strip()]
    return bool(parts) and all(map(_is_number, parts))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


app = typer.Typer(no_args_is_help=True, add_completion=False)

# Options that apply to runs that were made elsewhere.
_PREDICTION_OPTIONS = {
    "predictions", "level", "groups", "threshold", "accuracy_levels", "review_above",
    "out", "force", "release", "json",
}  # fmt: skip


@app.command(
    cls=list_command("--epsilon", "--accuracy-levels"),
    epilog="Example:  veracal audit breast-cancer --epsilon 0.5 1 2 --runs 200\n\n"
    "The arbitrariness computed from a released model alone can be published at no cost: "
    "veracal predict MODEL DATA --arbitrariness",
)
def audit(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="CSV, TSV, Parquet, Arrow or npz file, or the name of a built-in set.",
        ),
    ] = None,
    model: _fitting.ModelKind = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(metavar="E…", help="Budgets to audit, one or more: --epsilon 0.5 1 2."),
    ] = None,
    runs: Annotated[
        str,
        typer.Option(metavar="auto|N", help="Number of runs; auto: until --error is reached."),
    ] = "auto",
    error: Annotated[
        float, typer.Option(help="With auto: error of every individual's disagreement.")
    ] = 0.1,
    max_runs: Annotated[int, typer.Option(help="With auto: largest number of runs.")] = 10_000,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            help="Group of the schema to break results down by; repeatable. Intersections: "
            '"age & sex".'
        ),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Of two classes, the second is predicted above it.")
    ] = None,
    accuracy_levels: Annotated[
        list[float] | None,
        typer.Option(metavar="A…", help="Disagreement among runs of at least this accuracy."),
    ] = None,
    review_above: Annotated[
        float, typer.Option(help="Disagreement above which a decision should be reviewed.")
    ] = 0.5,
    varied: Annotated[
        str, typer.Option(help="What differs between runs: noise, 'noise and batches' or all.")
    ] = "all",
    plane: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Two features, for a map of disagreement."),
    ] = None,
    recalibrate: Annotated[
        str | None,
        typer.Option(
            help="Recalibrate every run on half of the test partition, to see the effect on "
            "disagreement: temperature, two-temperatures, platt, beta, isotonic or binning."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Deployed model (folder of 'veracal fit'): audits its settings.",
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="npz file of runs made elsewhere, instead of DATA: 'decisions', "
            "'probabilities' or 'logits' (runs × individuals), and optionally 'labels', "
            "'classes', 'deployed', 'rows', 'group:NAME'."
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Checkpoint file for runs; if it exists, the audit resumes."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Concurrent processes, for models trained one by one."),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Their joblib backend: loky, ray or dask.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray or Dask cluster.")
    ] = None,
    random_state: Annotated[
        int | None, typer.Option(min=0, help="Seed of a repeatable audit.")
    ] = None,
    target: _fitting.Target = None,
    delta: _fitting.Delta = None,
    schema: _fitting.SchemaFile = None,
    test: _fitting.Test = None,
    split_key: _fitting.SplitKey = None,
    norm: _fitting.Norm = None,
    config: _fitting.ConfigFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for audit.html, audit.json and individuals.csv; internal."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an audit at --out.")] = False,
    release: Annotated[
        bool,
        typer.Option("--release", help="Rejected; explains what can be published instead."),
    ] = False,
    json: _fitting.Json = False,
) -> None:
    """Retrain a model many times and measure how far its decisions disagree.

    The records are split as by 'veracal fit': runs are trained on the training
    partition, and the individuals of the test partition are audited. Every run
    reads the records, so the result is internal. Noise would not make it
    releasable: one audited individual changes a mean by 1/n, but one training
    record can change every individual's disagreement at once. No ledger is
    charged, because nothing is released; the guarantee of the audited model is
    unchanged.
    """
    from veracal.cli import _auditing

    if release:
        _auditing.refuse_release()
    settings = _auditing.make_settings(
        runs=runs,
        error=error,
        max_runs=max_runs,
        level=level,
        threshold=threshold,
        groups=tuple(groups or ()),
        accuracy_levels=tuple(accuracy_levels or ()),
        review_above=review_above,
        varied=varied,
    )
    if out is not None:
        _auditing.check_output(out, force=force)
    if predictions is not None:
        results = _audit_predictions_file(context, predictions, settings)
    else:
        options = {
            "--schema": None if schema is None else str(schema),
            "--test": test,
            "--split-key": split_key,
            "--epsilon": None,
            "--delta": delta,
            "--model": model,
            "--norm": norm,
        }
        training = _auditing.AuditedTraining.from_options(
            data, options, epsilon or (), config, against
        )
        run = _auditing.make_run(
            plane, recalibrate, (jobs, backend, address), keep, random_state
        )
        results = _auditing.run_audit(training, target, settings, run)
    _write_and_print(results, out, force=force, json=json)


def _audit_predictions_file(
    context: typer.Context, path: Path, settings: "AuditSettings"
) -> "AuditResults":
    """Audit runs from a file, and reject options that only apply to new runs."""
    from veracal.cli import _audit_output

    for parameter in context.command.params:
        name = str(parameter.name)
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _PREDICTION_OPTIONS:
            raise typer.BadParameter(
                "does not apply to --predictions; omit one of the two.",
                param_hint=name.upper() if name == "data" else parameter.opts[0],
            )
    try:
        return _audit_output.audit_file(path, settings)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _write_and_print(
    results: "AuditResults", out: Path | None, *, force: bool, json: bool
) -> None:
    """Write the files and print the results, even if writing fails."""
    from veracal.cli import _audit_output, _auditing

    try:
        written = None if out is None else _auditing.write_files(results, out, force=force)
    finally:
        if json:
            _show.print_json(results.to_json() | {"out": None if out is None else str(out)})
        else:
            _audit_output.show(results)
    if written is not None:
        names = ", ".join(written)
        _show.print_status(f"Wrote {names} to {out}. Internal: protect it like the records.")
