"""The command that measures calibration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _figures, _output, _payment, _predictions

if TYPE_CHECKING:
    from veracal.data import Estimate, Scores


app = typer.Typer(no_args_is_help=True, add_completion=False)

_PRIVATE = ("accuracy", "ece", "brier")
_BINS, _LEVEL = 15, 0.95


@app.command(
    epilog="Example:  veracal evaluate predictions.npz --group sex=female,male --fail-above "
    "ece=0.05"
)
def evaluate(
    predictions: _predictions.File,
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
    classes: _predictions.Classes = None,
    group: _predictions.Groups = None,
    unit: _predictions.UnitColumn = None,
    part: _predictions.Part = None,
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Equal-width bins.")] = _BINS,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = _LEVEL,
    replicates: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100_000,
            help="Bootstrap replicates for intervals; by default 100, fewer for large files.",
        ),
    ] = None,
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
    ledger: _payment.LedgerFile = None,
    ledger_part: _payment.LedgerPart = None,
    version: _payment.Version = "",
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=LIMIT",
            help="Exit 1 if a figure exceeds its limit; may be repeated.",
        ),
    ] = None,
    json: _predictions.Json = False,
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
        about = _predictions.settings(classes, group, unit, part)
    if epsilon is not None:
        given = {"epsilon": epsilon, "bins": bins, "level": level, "curve": curve}
        figures = _release(predictions, about, given, ledger, ledger_part, version, json=json)
    else:
        figures = _measure(predictions, about, bins, level, replicates, stream, json=json)
    _check_limits(limits, figures)


def _describe_model(
    model: Path, data: str | None, groups: Sequence[str] | None, others: Sequence[object]
) -> dict[str, Any]:
    """A model, its groups and a table, in place of the settings of a file of predictions."""
    from veracal.artifact import PrivateClassifier

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
    classifier = PrivateClassifier.load(model)
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


def _scores(path: Path, about: Mapping[str, Any]) -> "Scores":
    """Labeled scores of a file, or of a model on a table."""
    if "model" not in about:
        return _predictions.load(path, about)
    from veracal.cli._artifacts import labeled_scores

    _output.print_status(
        "If the model was trained on records of this table, the figures are optimistic, and a "
        "release costs those individuals in addition to the model's own ledger."
    )
    return labeled_scores(about["model"], about["data"])


def _parse_limits(texts: Sequence[str], known: Sequence[str] | None) -> dict[str, float]:
    """Parse the limits of figures."""
    import math

    names = tuple(_figures.WORDS) if known is None else known
    limits = {}
    for text in texts:
        name, value = _predictions.pair(text, "--fail-above", "as in ece=0.05")
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
    from veracal.cli._figures import format_number

    failed = False
    for name, limit in limits.items():
        estimate = figures.get(name)
        if estimate is None or estimate.value is None:
            failed = True
            _output.print_status(f"error: {name} is not known, and may be above {limit:g}.")
        elif not estimate.value <= limit:
            failed = True
            _output.print_status(
                f"error: {name} is {format_number(estimate.value)}, above {limit:g}."
            )
    if failed:
        raise typer.Exit(1)


def _measure(
    path: Path,
    about: Mapping[str, Any],
    bins: int,
    level: float,
    replicates: int | None,
    stream: bool,
    *,
    json: bool,
) -> "Mapping[str, Estimate]":
    """Measure without noise, and print."""
    from veracal.cli._measurement import measure_scores, measure_stream, replicates_for

    if stream:
        result = measure_stream(path, about, bins, level)
    else:
        scores = _scores(path, about)
        replicates = replicates_for(scores) if replicates is None else replicates
        with _output.progress_bar(f"Measuring {path.name}"):
            result = measure_scores(scores, bins, level, replicates)
    if json:
        data = {"data": about["data"]} if "model" in about else {}
        _output.print_json(
            {"file": str(path), **data, "kind": result.kind, "internal": result.to_json()}
        )
    else:
        result.show(path.name)
    return result.figures


def _release(
    path: Path,
    about: Mapping[str, Any],
    given: Mapping[str, Any],
    ledger: Path | None,
    partition: str | None,
    version: str,
    *,
    json: bool,
) -> "Mapping[str, Estimate]":
    """Charge a private measurement, measure with noise, and print."""
    from veracal.accounting import format_down
    from veracal.calibration import measure_private
    from veracal.cli import _measurement

    settings = {
        "epsilon": given["epsilon"],
        "figures": (*_measurement.FIGURES, "curve") if given["curve"] else _measurement.FIGURES,
        "bins": given["bins"],
        **_measurement.one_group(about["groups"]),
    }
    plan = _measurement.plan_queries(settings, "--epsilon")
    records = str(about["data"] if "model" in about else path)  # their ledger pays
    ledger_path = _payment.ledger_place(records, ledger)
    scores = _scores(path, about)
    curator = _payment.open_curator(
        ledger_path,
        scores,
        plan.items(),
        epsilon=given["epsilon"],
        partition=partition,
        version=version,
        records=records,
        table="model" in about,
    )
    curator.require(_payment.unpaid_items(curator, scores, plan.queries.values()))
    measured = measure_private(curator, **settings, level=given["level"])
    account = _payment.summarize_account(curator.ledger, partition)
    if json:
        _output.print_json(
            {
                "file": str(path),
                "kind": scores.kind,
                "bins": given["bins"],
                **measured.to_json(),
                "statement": None
                if measured.statement is None
                else measured.statement.to_json(),
                "ledger": account,
            }
        )
    else:
        _measurement.show(f"{path.name}: released with noise, {given['bins']} bins", measured)
        typer.echo("\n" + _payment.format_statement(measured.statement, whole=False))
        left = format_down(account["left"]["epsilon"], 6)
        _output.print_line(f"epsilon {left} is left in {_payment.ledger_name(curator.ledger)}.")
    return _measurement.figures_of(measured.overall)
