"""The command ``evaluate``: the calibration of predictions or of a model, exact or private."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _artifacts, _figures, _options, _output, _payment
from veracal.cli._artifacts import FIGURES
from veracal.errors import BudgetError, DataError

if TYPE_CHECKING:
    from veracal.calibration import CalibrationResult, PrivateMeasurement
    from veracal.data import Estimate, Scores


app = typer.Typer(no_args_is_help=True, add_completion=False)

_PAPER_BINS = 10  # of Zhang et al. 2022, shown beside the usual 15
_STREAMED = (
    "accuracy", "nll", "brier", "top_label_brier", "ece", "mce",
    "over_confidence", "under_confidence", "confidence_gap",
)  # fmt: skip


@app.command(
    epilog="Example:  veracal evaluate predictions.npz --group sex=female,male --fail-above "
    "ece=0.05"
)
def evaluate(
    context: typer.Context,
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
    group: _options.GroupColumns = None,
    unit: _options.UnitColumn = None,
    part: _options.Part = None,
    bins: _options.ConfidenceBins = 15,
    level: _options.Level = 0.95,
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
            help="Epsilon of a private measurement: figures with noise, charged to a ledger "
            "before they are computed."
        ),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="With --epsilon: also release a reliability curve.")
    ] = False,
    ledger: _options.LedgerFile = None,
    partition: _options.Partition = None,
    version: _options.Version = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=LIMIT",
            help="Exit 1 if a figure exceeds its limit. May be repeated.",
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

    def reject(why: str, *names: str) -> None:
        _options.reject_given(context, names, why)

    if remeasure:
        allowed = ("predictions", "remeasure", "data", "ledger", "fail_above", "json")
        others = [name for name in context.params if name not in allowed]
        why = "the run decided what is measured, and reserved its cost"
        reject(f"Leave it out with --remeasure: {why}.", *others)
        limits = _parse_limits(fail_above or (), FIGURES)
        _check_limits(limits, _remeasure(predictions, data, ledger, json=json))
        return
    if epsilon is None:
        reject("This needs --epsilon.", "ledger", "partition", "version")
        reject("This needs --epsilon; without it the curve is always drawn.", "curve")
    else:
        reject("Leave it out with --epsilon.", "replicates")
    if stream:
        why = "a stream is measured exactly, without intervals"
        reject(f"Leave it out with --stream: {why}.", "epsilon", "unit", "replicates")
    limits = _parse_limits(fail_above or (), FIGURES if epsilon is not None else None)
    if data is not None or (predictions / "model.json").exists():
        why = "Leave it out for a model, whose schema defines how to read the table."
        reject(why, "classes", "unit", "part", "stream")
        about = _describe_model(predictions, data, group)
    else:
        about = _options.parse_reading(classes, group, unit, part)
    if epsilon is not None and len(about["groups"]) > 1:
        raise typer.BadParameter(
            "Name at most one, because figures are released with noise.", param_hint="--group"
        )
    if epsilon is None:
        figures = _measure_exactly(
            predictions, about, bins, level, replicates, stream=stream, json=json
        )
    else:
        figures = _measure_privately(
            predictions,
            about,
            epsilon=epsilon,
            bins=bins,
            level=level,
            curve=curve,
            ledger=ledger,
            partition=partition,
            version=version or "",
            json=json,
        )
    _check_limits(limits, figures)


def _describe_model(
    model: Path, data: str | None, groups: Sequence[str] | None
) -> dict[str, Any]:
    """A model, its groups and a table, in place of the settings of a file of predictions."""
    if data is None:
        raise typer.BadParameter(
            f"{model} is a folder. If it is a model, name the records to measure it on, as in "
            "--data visits.csv, or measure it again on its own test records with --remeasure.",
            param_hint="PREDICTIONS",
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


# ---------------------------------------------------------------- exact figures


@dataclass(frozen=True)
class InternalMeasurement:
    """Exact figures of a file: of all records, and of each group."""

    kind: str  # logits or probabilities
    overall: "CalibrationResult"
    paper: "Estimate"  # the calibration error over ten bins
    # By attribute and value; None for a group without records.
    groups: "Mapping[str, Mapping[str, CalibrationResult | None]]"
    gaps: "Mapping[str, Estimate]" = field(default_factory=dict)  # of ece, between groups

    def to_json(self) -> dict[str, Any]:
        """The figures as values that JSON can hold, with a note that they are internal."""
        return {
            "note": _figures.INTERNAL,
            **self.overall.to_json(),
            f"ece_{_PAPER_BINS}_bins": vars(self.paper),
            "groups": {
                name: {value: one and one.to_json() for value, one in each.items()}
                for name, each in self.groups.items()
            },
            "gaps": {name: vars(gap) for name, gap in self.gaps.items()},
        }

    def show(self, file: str) -> None:
        """Print tables, and the curve below them."""
        overall = self.overall
        figures: dict[str, Estimate] = {}
        for name, estimate in overall.figures.items():
            figures[name] = estimate
            if name == "ece" and overall.bins != _PAPER_BINS:
                figures[f"ece, {_PAPER_BINS} bins"] = self.paper
        records = f"{self.kind} of {overall.n:,} records for {overall.n_classes:,} classes"
        title = f"{file}: {records}, {overall.bins} bins"
        _figures.print_figures(title, figures, overall.floors)
        groups = {
            name: {
                value: (one.n, one.figures) if one else (0, {}) for value, one in each.items()
            }
            for name, each in self.groups.items()
        }
        _figures.print_groups(groups, self.gaps)
        _figures.print_curve(overall.curve)


def _measure_exactly(
    path: Path,
    about: Mapping[str, Any],
    bins: int,
    level: float,
    replicates: int | None,
    *,
    stream: bool,
    json: bool,
) -> "Mapping[str, Estimate]":
    """Measure without noise, and print."""
    if stream:
        result = _measure_stream(path, about, bins, level)
    else:
        scores = _load_scores(path, about)
        replicates = _figures.replicates_for(scores) if replicates is None else replicates
        with _output.progress_bar(f"Measuring {path.name}"):
            result = _measure_scores(scores, bins, level, replicates)
    if json:
        data = {"data": about["data"]} if "model" in about else {}
        _output.print_json(
            {"file": str(path), **data, "kind": result.kind, "internal": result.to_json()}
        )
    else:
        result.show(path.name)
    return result.overall.figures


def _load_scores(path: Path, about: Mapping[str, Any]) -> "Scores":
    """Labeled scores of a file, or of a model on a table."""
    if "model" not in about:
        return _options.load_predictions(path, about)
    _output.print_status(
        "If the model was trained on records of this table, the figures are optimistic, and a "
        "release costs those individuals in addition to the model's own ledger."
    )
    return _artifacts.labeled_scores(about["model"], about["data"])


def _measure_scores(
    scores: "Scores", bins: int, level: float, replicates: int
) -> InternalMeasurement:
    """Measure all figures of scores."""
    import numpy as np

    from veracal.calibration import ece, measure
    from veracal.data import by_group

    # A fixed seed: nothing is released, so the randomness need not be secret.
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"level": level, "replicates": replicates, "rng": rng}
    overall = measure(scores, bins=bins, **given)
    gaps = {}
    if replicates:
        of_bins = partial(ece, bins=bins)
        gaps = {name: by_group(of_bins, scores, name, **given).gap() for name in scores.groups}
    paper = measure(scores, figures=["ece"], bins=_PAPER_BINS, **given)["ece"]
    groups: dict[str, dict[str, CalibrationResult | None]] = {}
    for name, attribute in scores.groups.items():
        groups[name] = {}
        for code, value in enumerate(attribute.names):
            rows, some = scores.take(attribute.codes == code), _figures.BY_GROUP
            groups[name][value] = (
                measure(rows, figures=some, bins=bins, **given) if len(rows) else None
            )
    return InternalMeasurement(scores.kind, overall, paper, groups, gaps)


def _measure_stream(
    path: Path, about: Mapping[str, Any], bins: int, level: float
) -> InternalMeasurement:
    """Measure the figures that one pass can compute, without intervals, keeping no records."""
    from veracal.calibration import CalibrationResult, StreamTotals
    from veracal.data import Estimate

    totals: dict[tuple[str, ...], StreamTotals] = {}  # of all, with other bins, of each group
    for block in _options.scan_predictions(path, about):
        slices: dict[tuple[str, ...], tuple[Scores, int]] = {
            (): (block, bins),
            ("paper",): (block, _PAPER_BINS),
        }
        for name, attribute in block.groups.items():
            for code, value in enumerate(attribute.names):
                slices[name, value] = block.take(attribute.codes == code), bins
        for key, (rows, count) in slices.items():
            part = StreamTotals.of(rows, count)
            totals[key] = totals[key] + part if key in totals else part
    if not totals or not totals[()].n:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")

    def result(total: StreamTotals) -> CalibrationResult:
        n, k = total.n, len(total.classes)
        figures = {
            name: Estimate(getattr(total, name), None, None, level, n) for name in _STREAMED
        }
        curve = total.curve(level=level)
        return CalibrationResult(path.name, n, n, k, bins, level, 0, figures, {}, curve)

    groups: dict[str, dict[str, CalibrationResult | None]] = {}
    for key, total in totals.items():
        if len(key) == 2:
            groups.setdefault(key[0], {})[key[1]] = result(total) if total.n else None
    paper = result(totals[("paper",)])["ece"]
    return InternalMeasurement(totals[()].kind, result(totals[()]), paper, groups)


# ---------------------------------------------------------------- private figures


def _measure_privately(
    path: Path,
    about: Mapping[str, Any],
    *,
    epsilon: float,
    bins: int,
    level: float,
    curve: bool,
    ledger: Path | None,
    partition: str | None,
    version: str,
    json: bool,
) -> "Mapping[str, Estimate]":
    """Charge a private measurement, measure with noise, and print."""
    from veracal.accounting import format_down
    from veracal.calibration import measure_private, plan_measurement

    group, group_names = next(iter(about["groups"].items()), (None, ()))
    settings: dict[str, Any] = {
        "epsilon": epsilon,
        "figures": (*FIGURES, "curve") if curve else FIGURES,
        "bins": bins,
        "group": group,
        "group_names": group_names,
    }
    with _output.usage_errors("--epsilon"):
        plan = plan_measurement(**settings)
    records = str(about["data"] if "model" in about else path)  # their ledger pays
    ledger_path = _payment.find_ledger(records, ledger)
    scores = _load_scores(path, about)
    curator = _payment.open_curator(
        ledger_path,
        scores,
        plan.items(),
        epsilon=epsilon,
        partition=partition,
        version=version,
        records=records,
        table="model" in about,
    )
    with _output.usage_errors("--partition"):
        _payment.require_unpaid(curator, scores, plan)
    measured = measure_private(curator, **settings, level=level)
    account = _payment.summarize_ledger(curator.ledger, partition)
    if json:
        statement = None if measured.statement is None else measured.statement.to_json()
        _output.print_json(
            {
                "file": str(path),
                "kind": scores.kind,
                "bins": bins,
                **measured.to_json(),
                "statement": statement,
                "ledger": account,
            }
        )
    else:
        _print_released(f"{path.name}: released with noise, {bins} bins", measured)
        _payment.print_statement(measured.statement, whole=False)
        left = format_down(account["left"]["epsilon"], 6)
        _output.print_line(f"epsilon {left} is left in {_payment.ledger_name(curator.ledger)}.")
    return _figures.figures_of(measured.overall)


def _print_released(title: str, measured: "PrivateMeasurement") -> None:
    """Print the released figures, overall and by group, and the curve if there is one."""
    overall = measured.overall
    note = "Intervals account for the noise and for sampling."
    if overall.ece_floor is not None:
        note += f"\nA calibrated classifier shows an ece of {overall.ece_floor:.4f} at most."
    _figures.print_figures(title, _figures.figures_of(overall), note=note)
    if measured.plan.groups is not None:
        groups = {
            name: (each.count.n, _figures.figures_of(each))
            for name, each in measured.groups.items()
        }
        _figures.print_groups({measured.plan.groups.name: groups}, note="")
    if overall.curve is not None:
        _figures.print_curve(overall.curve)


def _remeasure(
    model: Path, data: str | None, ledger: Path | None, *, json: bool
) -> "Mapping[str, Estimate]":
    """Measure a model again, add it to its report, and print all measurements."""
    from veracal.artifact import encode
    from veracal.workflow import remeasure

    try:
        with _payment.run_bars() as (progress, notify):
            result = remeasure(
                model, source=data, ledger=ledger, on_progress=progress, on_notice=notify
            )
    except KeyboardInterrupt:
        _output.print_status(
            "Stopped. The model's folder is unchanged. Repeat the command to resume from the "
            "ledger: nothing is charged twice."
        )
        raise typer.Exit(1) from None
    except BudgetError as error:
        raise BudgetError(
            f"{error} All reserved measurements were made. 'veracal fit --reserve' sets their "
            "number, before the first."
        ) from error
    measured, left = result.results.measured, _payment.count_measurements_left(result.ledger)
    figures: Mapping[str, Mapping[str, Estimate]]
    figures = _artifacts.facts(result.results, str(model))["measured"]
    if json:
        _output.print_json(
            {
                "model": str(result.folder),
                "when": measured[-1].when,
                "measured": encode(measured),
                "left": left,
                "ledger": str(result.ledger.path),
            }
        )
    else:
        _output.print_table(
            f"{result.folder.name}: all measurements",
            ("measured", *FIGURES),
            [
                (f"{one.when}, {one.date}", *_figures.format_row(figures[one.when]))
                for one in measured
            ],
            note="Released with noise, new each time. Intervals account for the noise.",
        )
        _output.print_line(
            f"It cost what was reserved for it. {_output.format_count(left, 'measurement')} left "
            f"in {result.ledger.path.name}."
        )
    return figures[measured[-1].when]
