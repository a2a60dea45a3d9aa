"""The command ``audit``: how far decisions depend on the randomness of training.

Also options that take several numbers in a row: ``--epsilon 0.5 1 2``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from click.core import ParameterSource
from typer.core import TyperCommand

from veracal.cli import _options, _output

if TYPE_CHECKING:
    from veracal.workflow import Config

RECALIBRATIONS = ("temperature", "two-temperatures", "platt", "beta", "isotonic", "binning")
BACKENDS = ("loky", "ray", "dask")
LISTS = ("--epsilon", "--accuracy-levels")  # options that take several numbers
# Options that apply to runs that were made elsewhere.
_PREDICTION_OPTIONS = {
    "predictions", "level", "groups", "threshold", "accuracy_levels", "review_above",
    "out", "force", "release", "json",
}  # fmt: skip


class ListCommand(TyperCommand):
    """A command some of whose options accept a list of numbers.

    Click supports repeated options and options with a fixed number of values. Here
    ``--epsilon 0.5 1 2`` and ``--epsilon 0.5,1,2`` are both read as the option, three times. A
    word that is not a number ends the list, so that a table may follow.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat each of :data:`LISTS` before its numbers."""
        return super().parse_args(ctx, expand_lists(args, LISTS))


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
    try:
        return bool([float(part) for part in parts])
    except ValueError:
        return False


app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(
    cls=ListCommand,
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
    model: _options.ModelKind = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(metavar="E…", help="Budgets to audit, one or more: --epsilon 0.5 1 2."),
    ] = None,
    runs: Annotated[
        str,
        typer.Option(metavar="auto|N", help="Number of runs; auto: until --error is reached."),
    ] = "auto",
    error: Annotated[
        float,
        typer.Option(min=0, max=1, help="With auto: error of every individual's disagreement."),
    ] = 0.1,
    max_runs: Annotated[
        int, typer.Option(min=2, help="With auto: largest number of runs.")
    ] = 10_000,
    level: Annotated[
        float, typer.Option(min=0, max=1, help="Confidence level of the intervals.")
    ] = 0.95,
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
        float,
        typer.Option(
            min=0, max=1, help="Disagreement above which a decision should be reviewed."
        ),
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
    target: _options.Target = None,
    delta: _options.Delta = None,
    schema: _options.SchemaFile = None,
    test: _options.Test = None,
    split_key: _options.SplitKey = None,
    norm: _options.Norm = None,
    config: _options.ConfigFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for audit.html, audit.json and individuals.csv; internal."),
    ] = None,
    force: _options.Force = False,
    release: Annotated[
        bool,
        typer.Option("--release", help="Rejected; explains what can be published instead."),
    ] = False,
    json: _options.Json = False,
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
    if release:
        _output.print_status(
            "error: figures of an audit cannot be released, with noise or without. Changing "
            "one audited individual changes a mean over n individuals by 1/n, but changing one "
            "training record can change every individual's disagreement at once, so that 1/n "
            "is not the sensitivity, and the training would have to be charged once for every "
            "run. The arbitrariness computed from the released model alone can be published at "
            "no cost:  veracal predict MODEL DATA --arbitrariness"
        )
        raise typer.Exit(1)
    number = runs.strip().replace(",", "")
    if number != "auto" and not number.removeprefix("-").isdecimal():
        raise typer.BadParameter(
            f"expected auto, or a number of runs, got {runs!r}.", param_hint="--runs"
        )
    for option, value, known in (
        ("--recalibrate", recalibrate, RECALIBRATIONS),
        ("--backend", backend, BACKENDS),
    ):
        if value is not None and value not in known:
            raise typer.BadParameter(
                f"expected one of {', '.join(known)}, got {value!r}.", param_hint=option
            )
    if out is not None:
        _output.check_new(out, force=force, what="folder")
    # Everything that needs no training is checked before the slow imports.
    budgets = tuple(dict.fromkeys(epsilon or ()))
    given = {**context.params, "epsilon": next(iter(budgets), None)}
    training: Any = None
    if predictions is not None:
        for parameter in context.command.params:
            name = str(parameter.name)
            typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if typed and name not in _PREDICTION_OPTIONS:
                raise typer.BadParameter(
                    "does not apply to --predictions; omit one of the two.",
                    param_hint=name.upper() if name == "data" else parameter.opts[0],
                )
    else:
        chosen = _choose_training(data, given, budgets, config, against)
        if chosen is not None:
            _options.check_data(chosen, target)
            training = chosen, None, None
    from veracal.cli import _auditing

    settings = {
        "runs": number if number == "auto" else int(number),
        "groups": tuple(groups or ()),
        "accuracy_levels": tuple(accuracy_levels or ()),
        **{n: given[n] for n in ("error", "max_runs", "level", "threshold", "review_above")},
        "varied": varied,
    }
    if out is not None:
        _auditing.check_output(out, force=force)
    if predictions is not None:
        results = _auditing.audit_predictions(predictions, settings)
    else:
        if against is not None:
            training = _auditing.read_deployed(against, data, given, target)
        results = _auditing.audit_training(
            training,
            budgets,
            settings,
            recalibrate,
            plane=plane,
            jobs=jobs,
            backend=backend,
            address=address,
            keep=keep,
            random_state=random_state,
        )
    _auditing.print_results(results, out, force=force, json=json)


def _choose_training(
    data: str | None,
    given: Mapping[str, Any],
    budgets: Sequence[float],
    config: Path | None,
    against: Path | None,
) -> "Config | None":
    """The training that the options describe; None if it is that of a deployed model."""
    from veracal.workflow import PrivacyConfig, RecalibrationConfig

    for each in budgets:
        with _output.usage_errors("--epsilon"):
            PrivacyConfig(each)
    if against is not None:
        if config is not None:
            raise typer.BadParameter(
                "has its own settings; omit --config.", param_hint="--against"
            )
        return None
    if data is None and config is None:
        raise typer.BadParameter(
            "give a file, a built-in set, or --predictions.", param_hint="DATA"
        )
    chosen = _options.build_config(data, given, config)
    if config is None:
        chosen = replace(chosen, recalibration=RecalibrationConfig("none"))
    return chosen
