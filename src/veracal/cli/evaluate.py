"""The command ``evaluate``: the calibration of predictions or of a model, exact or private."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _artifacts, _figures, _options, _output

if TYPE_CHECKING:
    from veracal.data import Estimate


app = typer.Typer(no_args_is_help=True, add_completion=False)

_PRIVATE = ("accuracy", "ece", "brier")
_BINS, _LEVEL = 15, 0.95


@app.command(
    epilog="Example:  veracal evaluate predictions.npz --group sex=female,male --fail-above "
    "ece=0.05"
)
def evaluate(
    predictions: _options.Predictions,
    data: Annotated[
        str | None,
        typer.Option(
            help="Labeled table or built-in set to measure on, if PREDICTIONS is the folder of "
            "a model."
        ),
    ] = None,
    remeasure: Annotated[
        bool,
        typer.Option(
            "--remeasure",
            help="Measure a model of 'veracal fit' again on its own test records, from its "
            "reserved budget, and add the figures to its report.",
        ),
    ] = False,
    classes: _options.Classes = None,
    group: _options.Groups = None,
    unit: _options.UnitColumn = None,
    part: _options.Part = None,
    bins: _options.Bins15 = _BINS,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = _LEVEL,
    replicates: _options.Replicates = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Read Parquet, Arrow or CSV of any size in one pass, without intervals.",
        ),
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Measure privately at this cost: with noise, charged to a ledger first."
        ),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="With --epsilon: measure a reliability curve, too.")
    ] = False,
    ledger: _options.Payer = None,
    ledger_part: _options.LedgerPart = None,
    version: _options.RecordsVersion = "",
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=LIMIT",
            help="Exit 1 if a figure exceeds its limit; may be repeated.",
        ),
    ] = None,
    json: _options.Json = False,
) -> None:
    """Measure the calibration of PREDICTIONS.

    PREDICTIONS contains 'logits' or 'probabilities', as one array or as columns
    logits_0, logits_1, …, and the true classes as 'labels'. Without --epsilon
    the figures are exact, and internal if the records are private. With it
    they are released with noise, and charged to a ledger. PREDICTIONS may also
    be the folder of a model, with --data or --remeasure.
    """
    if remeasure:
        others = (classes, group, unit, part, replicates, epsilon, ledger_part)
        more = stream or curve or version or (bins, level) != (_BINS, _LEVEL)
        if more or any(other is not None for other in others):
            raise typer.BadParameter(
                "Use only --data, --ledger, --fail-above and --json with it: the run decided "
                "what is measured, and reserved its cost.",
                param_hint="--remeasure",
            )
        limits = _parse_limits(fail_above or (), _PRIVATE)
        from veracal.cli._run_output import remeasure_model

        _check_limits(limits, remeasure_model(predictions, data, ledger, json=json))
        return
    if not 0 < level < 1:
        raise typer.BadParameter(
            f"Expected 0 < level < 1, got {level!r}.", param_hint="--level"
        )
    if epsilon is None:
        if ledger is not None or ledger_part is not None or version:
            raise typer.BadParameter("This needs --epsilon.", param_hint="--ledger")
        if curve:
            raise typer.BadParameter(
                "This needs --epsilon; without it the curve is always drawn.",
                param_hint="--curve",
            )
    elif replicates is not None:
        raise typer.BadParameter("Leave it out with --epsilon.", param_hint="--replicates")
    if stream and (epsilon is not None or unit is not None or replicates):
        raise typer.BadParameter(
            "Leave out --epsilon, --unit and --replicates: a stream is measured exactly, "
            "without intervals.",
            param_hint="--stream",
        )
    limits = _parse_limits(fail_above or (), _PRIVATE if epsilon is not None else None)
    if data is not None or (predictions / "model.json").exists():
        about = _describe_model(predictions, data, group, (classes, unit, part, stream or None))
    else:
        about = _options.parse_reading(classes, group, unit, part)
    if epsilon is not None and len(about["groups"]) > 1:
        raise typer.BadParameter(
            "Name at most one, because figures are released with noise.", param_hint="--group"
        )
    from veracal.cli import _measurement

    figures: Mapping[str, Estimate]
    if epsilon is None:
        figures = _measurement.measure_file(
            predictions, about, bins, level, replicates, stream=stream, json=json
        )
    else:
        figures = _measurement.release_figures(
            predictions,
            about,
            epsilon=epsilon,
            bins=bins,
            level=level,
            curve=curve,
            ledger=ledger,
            part=ledger_part,
            version=version,
            json=json,
        )
    _check_limits(limits, figures)


def _describe_model(
    model: Path, data: str | None, groups: Sequence[str] | None, others: Sequence[object]
) -> dict[str, Any]:
    """A model, its groups and a table, in place of the settings of a file of predictions."""
    if data is None:
        raise typer.BadParameter(
            f"{model} is a folder. If it is a model, name the records to measure it on, as in "
            "--data visits.csv, or measure it again on its own test records with --remeasure.",
            param_hint="PREDICTIONS",
        )
    if any(other is not None for other in others):
        raise typer.BadParameter(
            "Leave out --classes, --unit, --part and --stream: the model's schema defines how "
            "to read the table.",
            param_hint="--data",
        )
    classifier = _artifacts.load_classifier(model)
    declared: dict[str, Sequence[str]] = {}
    if (schema := classifier.schema) is not None:
        declared = {
            name: grouping.names(schema.columns[grouping.column])
            for name, grouping in schema.groups.items()
        }
    for name in groups or ():
        if name not in declared:
            raise typer.BadParameter(
                f"Expected the name of a group in the model's schema ("
                f"{_output.format_list(declared) or 'it has none'}), got {name!r}.",
                param_hint="--group",
            )
    chosen = {name: declared[name] for name in groups or ()}
    return {"groups": chosen, "model": classifier, "data": data}


def _parse_limits(texts: Sequence[str], known: Sequence[str] | None) -> dict[str, float]:
    """Parse the limits of figures."""
    names = tuple(_figures.WORDS) if known is None else known
    limits = {}
    for text in texts:
        name, value = _options.parse_pair(text, "--fail-above", "as in ece=0.05")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = math.nan
        if name not in names or not math.isfinite(limits[name]):
            raise typer.BadParameter(
                f"Expected a number for one of {', '.join(names)}, got {text!r}.",
                param_hint="--fail-above",
            )
    return limits


def _check_limits(limits: Mapping[str, float], figures: "Mapping[str, Estimate]") -> None:
    """Exit 1 if a figure exceeds its limit, or is not known."""
    failed = False
    for name, limit in limits.items():
        estimate = figures.get(name)
        if estimate is None or estimate.value is None:
            failed = True
            _output.print_status(f"error: {name} is not known, and may be above {limit:g}.")
        elif not estimate.value <= limit:
            failed = True
            _output.print_status(
                f"error: {name} is {_figures.format_number(estimate.value)}, above {limit:g}."
            )
    if failed:
        raise typer.Exit(1)
