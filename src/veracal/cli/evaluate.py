"""The command that measures calibration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _figures, _predictions
from veracal.cli import _output as _show
from veracal.cli import _payment as _paying

if TYPE_CHECKING:
    from veracal.data import Estimate, Schema, Scores


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
            help="Where PREDICTIONS is a model of 'veracal fit': labeled table to measure it "
            "on, or the name of a built-in set."
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Measure a model of 'veracal fit' once more on its own test records, from its "
            "ledger, and add that to its report.",
        ),
    ] = False,
    classes: _predictions.Classes = None,
    group: _predictions.Groups = None,
    unit: _predictions.UnitColumn = None,
    part: _predictions.Part = None,
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Equal-width bins.")] = _BINS,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = _LEVEL,
    replicates: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100_000,
            help="Bootstrap draws for intervals; by default up to 100, none for huge files.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Read Parquet, Arrow or CSV of any size in one pass; no intervals.",
        ),
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Measure privately: with noise, at this cost, charged first."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="With --epsilon: ask for a curve, too.")
    ] = False,
    ledger: _paying.LedgerFile = None,
    ledger_part: _paying.LedgerPart = None,
    version: _paying.Version = "",
    fail_above: Annotated[
        list[str] | None,
        typer.Option(metavar="FIGURE=LIMIT", help="Exit 1 if a figure is larger; repeats."),
    ] = None,
    json: _predictions.Json = False,
) -> None:
    """Measure how far the probabilities in PREDICTIONS are from frequencies.

    PREDICTIONS holds 'logits' or 'probabilities', as one array or as columns
    logits_0, logits_1, …, and the right answers as 'labels'. Without --epsilon
    figures are those of the records as they are: internal, if records are
    private. With it they are released with noise, and charged to a ledger.
    PREDICTIONS may also be the folder of a model, with --data or --again.
    """
    if again:
        others = (classes, group, unit, part, replicates, epsilon, ledger_part)
        more = stream or curve or version or (bins, level) != (_BINS, _LEVEL)
        _check_again(others, more=bool(more))
        limits = _limits(fail_above or (), _PRIVATE)
        from veracal.cli._run_output import again as measured_again

        _judge(limits, measured_again(predictions, data, ledger, json=json))
        return
    if data is not None or (predictions / "model.json").exists():
        told = _of_model(predictions, data, group, (classes, unit, part, stream or None))
    else:
        told = _predictions.settings(classes, group, unit, part)
    _check_level(level)
    if epsilon is None:
        _check_internal(ledger, ledger_part, version, curve)
    elif replicates is not None:
        raise typer.BadParameter("leave it out with --epsilon.", param_hint="--replicates")
    if stream and (epsilon is not None or unit is not None or replicates):
        raise typer.BadParameter(
            "leave out --epsilon, --unit and --replicates: a stream is measured as it is, "
            "without intervals.",
            param_hint="--stream",
        )
    limits = _limits(fail_above or (), _PRIVATE if epsilon is not None else None)
    if epsilon is not None:
        asked = {"epsilon": epsilon, "bins": bins, "level": level, "curve": curve}
        figures = _release(predictions, told, asked, ledger, ledger_part, version, json=json)
    else:
        figures = _measure(predictions, told, bins, level, replicates, stream, json=json)
    _judge(limits, figures)


def _check_again(others: Sequence[object], *, more: bool) -> None:
    """Refuse options where the run has decided everything."""
    if more or any(other is not None for other in others):
        raise typer.BadParameter(
            "leave out all but --data, --ledger, --fail-above and --json: the run said "
            "what is measured, and laid by what it costs.",
            param_hint="--again",
        )


def _of_model(
    model: Path, data: str | None, groups: Sequence[str] | None, others: Sequence[object]
) -> dict[str, Any]:
    """What there is to know of a model's scores on a table, in place of a file of them."""
    from veracal.artifact import PrivateClassifier

    if data is None:
        raise typer.BadParameter(
            f"{model} is a folder; if it is a model, say what to measure it on, as in --data "
            "visits.csv, or measure it once more on its own test records with --again.",
            param_hint="PREDICTIONS",
        )
    if any(other is not None for other in others):
        raise typer.BadParameter(
            "leave out --classes, --unit, --part and --stream: the model's schema says how to "
            "read the table.",
            param_hint="--data",
        )
    classifier = PrivateClassifier.load(model)
    declared = {} if classifier.schema is None else _declared_groups(classifier.schema)
    for name in groups or ():
        if name not in declared:
            raise typer.BadParameter(
                f"expected the name of a group in the model's schema ("
                f"{_show.listed(declared) or 'it has none'}), got {name!r}.",
                param_hint="--group",
            )
    chosen = {name: declared[name] for name in groups or ()}
    return {"groups": chosen, "model": classifier, "data": data}


def _declared_groups(schema: "Schema") -> dict[str, Sequence[str]]:
    """Groups of a schema, and the names of each."""
    return {
        name: grouping.names(schema.columns[grouping.column])
        for name, grouping in schema.groups.items()
    }


def _records(predictions: Path, told: Mapping[str, Any]) -> str:
    """Whose ledger pays: that of the records, which for a model are those of the table."""
    return str(told["data"] if "model" in told else predictions)


def _scores(path: Path, told: Mapping[str, Any]) -> "Scores":
    """Labeled scores: those of a file, or of a model on a table."""
    if "model" not in told:
        return _predictions.load(path, told)
    from veracal.cli._artifacts import labeled_scores

    _show.status(
        "If the model was made of records of this table, figures flatter it, and what is "
        "released costs those people on top of what the model's own ledger says."
    )
    return labeled_scores(told["model"], told["data"])


def _check_level(level: float) -> None:
    """Refuse what is no level of an interval."""
    if not 0 < level < 1:
        raise typer.BadParameter(
            f"expected 0 < level < 1, got {level!r}.", param_hint="--level"
        )


def _check_internal(
    ledger: Path | None, ledger_part: str | None, version: str, curve: bool
) -> None:
    """Refuse options of a private measurement where none is wanted."""
    if ledger is not None or ledger_part is not None or version:
        raise typer.BadParameter("needs --epsilon.", param_hint="--ledger")
    if curve:
        raise typer.BadParameter(
            "needs --epsilon; without it the curve is drawn anyway.", param_hint="--curve"
        )


def _limits(texts: Sequence[str], known: Sequence[str] | None) -> dict[str, float]:
    """Largest figures that are allowed."""
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
                f"expected a number for one of {', '.join(names)}, got {text!r}.",
                param_hint="--fail-above",
            )
    return limits


def _judge(limits: Mapping[str, float], figures: "Mapping[str, Estimate]") -> None:
    """Exit 1 if a figure is above its limit, or not known."""
    from veracal.cli._figures import number

    failed = False
    for name, limit in limits.items():
        found = figures.get(name)
        if found is None or found.value is None:
            failed = True
            _show.status(f"error: {name} is not known, and may be above {limit:g}.")
        elif not found.value <= limit:
            failed = True
            _show.status(f"error: {name} is {number(found.value)}, above {limit:g}.")
    if failed:
        raise typer.Exit(1)


def _measure(
    path: Path,
    told: Mapping[str, Any],
    bins: int,
    level: float,
    replicates: int | None,
    stream: bool,
    *,
    json: bool,
) -> "Mapping[str, Estimate]":
    """Measure the records as they are, and print."""
    from veracal.cli._measurement import measured_scores, replicates_for, streamed

    if stream:
        found = streamed(path, told, bins, level)
    else:
        scores = _scores(path, told)
        turns = replicates_for(scores) if replicates is None else replicates
        with _show.progress_bar(f"Measuring {path.name}"):
            found = measured_scores(scores, bins, level, turns)
    if json:
        data = {"data": told["data"]} if "model" in told else {}
        facts = {"file": str(path), **data, "kind": found.kind, "internal": found.to_json()}
        _show.print_json(facts)
    else:
        found.show(path.name)
    return found.figures


def _release(
    path: Path,
    told: Mapping[str, Any],
    asked: Mapping[str, Any],
    ledger: Path | None,
    part: str | None,
    version: str,
    *,
    json: bool,
) -> "Mapping[str, Estimate]":
    """Measure with noise, charged first, and print."""
    from veracal.accounting import rounded_down
    from veracal.calibration import measure_private
    from veracal.cli import _measurement as _released

    given = {
        "epsilon": asked["epsilon"],
        "figures": (*_released.FIGURES, "curve") if asked["curve"] else _released.FIGURES,
        "bins": asked["bins"],
        **_released.one_group(told["groups"]),
    }
    plan = _released.planned(given, "--epsilon")
    place = _paying.ledger_place(_records(path, told), ledger)
    scores = _scores(path, told)
    holder = _paying.paying(
        place,
        scores,
        plan.items(),
        epsilon=asked["epsilon"],
        part=part,
        version=version,
        records=_records(path, told),
        table="model" in told,
    )
    asks = plan.queries.values()
    holder.require(_paying.unanswered(holder, scores, asks))
    measured = measure_private(holder, **given, level=asked["level"])
    account = _paying.left(holder.ledger, part)
    if json:
        _show.print_json(
            {
                "file": str(path),
                "kind": scores.kind,
                "bins": asked["bins"],
                **measured.to_json(),
                "statement": None
                if measured.statement is None
                else measured.statement.to_json(),
                "ledger": account,
            }
        )
    else:
        _released.show(f"{path.name}: released with noise, {asked['bins']} bins", measured)
        typer.echo("\n" + _paying.promise(measured.statement, whole=False))
        left = rounded_down(account["left"]["epsilon"], 6)
        _show.say(f"epsilon {left} is left in {_paying.called(holder.ledger)}.")
    return _released.figures_of(measured.overall)
