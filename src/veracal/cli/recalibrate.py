"""The command that recalibrates predictions."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output as _places
from veracal.cli import _output as _show
from veracal.cli import _payment as _paying
from veracal.cli import _predictions

if TYPE_CHECKING:
    from veracal.calibration import BudgetDivision, Figure
    from veracal.cli._recalibrate_local import RunIds


app = typer.Typer(no_args_is_help=True, add_completion=False)


# Options that the id of a run contains by themselves, or that change nothing released.
NAMED_ELSEWHERE = frozenset({"method", "budget", "curve", "internal", "replicates"})


@dataclass(frozen=True)
class FitOptions:
    """Options of the fit.

    Attributes
    ----------
    budget : BudgetDivision or None
        Cost of the map, the guard and the figures; None without privacy.
    """

    method: str
    form: str
    bins: int
    size: int | None
    temperatures: tuple[float, float] | None
    budget: "BudgetDivision | None"
    delta: float = 0.0
    curve: bool = False
    internal: bool = False
    replicates: int | None = None

    @property
    def epsilon(self) -> float:
        """Total cost for a single file, whose two sides cost the same."""
        from veracal.accounting import MICRO

        if self.budget is None:
            return 0.0
        measure = 2 * (self.budget.measure // 2)
        return (self.budget.map + self.budget.guard + measure) / MICRO

    @property
    def figures(self) -> "tuple[Figure, ...]":
        """Figures that are measured before and after on a single file."""
        return ("accuracy", "ece", "brier", *(("curve",) if self.curve else ()))

    def fitter_settings(self) -> dict[str, Any]:
        """Keyword arguments of :func:`veracal.calibration.plan_recalibration`.

        The id of a run in the ledger is made of them and of ``NAMED_ELSEWHERE``. So every other
        option belongs to them: with a new option, no earlier run is taken for the present one.
        """
        names = [each.name for each in fields(self) if each.name not in NAMED_ELSEWHERE]
        settings = {name: getattr(self, name) for name in names}
        return {**settings, "delta": self.delta or None}


@dataclass(frozen=True)
class LedgerOptions:
    """The ledger to charge, and how it identifies the records."""

    path: Path
    records: Path
    partition: str | None
    version: str


def _method_help() -> str:
    """Help of ``--method``, from the registry."""
    from veracal.calibration import METHODS, method_names

    private = [name for name in method_names() if name in METHODS]
    public = [name for name in METHODS if name not in private]
    return (
        "auto (by --size, --epsilon and the number of sources), "
        f"{', '.join(private)}; with --not-private also {', '.join(public)}."
    )


@app.command(
    epilog="Example:  veracal recalibrate predictions.npz --epsilon 0.1 --out calibrated.npz"
)
def recalibrate(
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="PREDICTIONS|MODEL",
            help="npz, Parquet, Arrow or CSV file with logits or probabilities, and labels; "
            "with --sources a model: a folder of 'veracal fit', or any file.",
        ),
    ],
    epsilon: Annotated[
        float | None, typer.Option(help="Cost of the map, charged before it is fitted.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help=_method_help(),
        ),
    ] = "auto",
    form: Annotated[
        str, typer.Option(help="Form of a Platt map: scalar, vector or matrix.")
    ] = "vector",
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Equal-width bins.")] = 15,
    delta: Annotated[
        float | None, typer.Option(help="Failure probability, for descent and platt.")
    ] = None,
    temperatures: Annotated[
        str | None,
        typer.Option(metavar="LOW,HIGH", help="Range of temperatures to search."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Declared total number of records, for auto, descent, platt, acc-t …"
        ),
    ] = None,
    guard: Annotated[
        float | None,
        typer.Option(
            help="Additional epsilon of a noisy query that keeps the map only if it helps."
        ),
    ] = None,
    measure: Annotated[
        float | None,
        typer.Option(help="Additional epsilon for private figures before and after."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="With --measure: also reliability curves.")
    ] = False,
    internal: Annotated[
        bool,
        typer.Option("--internal", help="Also show exact figures of the records."),
    ] = False,
    replicates: Annotated[
        int | None,
        typer.Option(
            min=0, max=100_000, help="Bootstrap replicates of the internal intervals."
        ),
    ] = None,
    not_private: Annotated[
        bool,
        typer.Option("--not-private", help="Fit without privacy, instead of --epsilon."),
    ] = False,
    classes: _predictions.Classes = None,
    group: _predictions.Groups = None,
    unit: _predictions.UnitColumn = None,
    part: _predictions.Part = None,
    ledger: _paying.LedgerFile = None,
    ledger_part: _paying.LedgerPart = None,
    version: _paying.Version = "",
    sources_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[=A,B,…]",
            help="Column with the institution of each record, and the (public) names of the "
            "institutions; by default those in the file. Each institution adds its own noise "
            "and is charged in its own ledger in the folder --ledger; the cost for one record "
            "is also charged to the ledger of PREDICTIONS.",
        ),
    ] = None,
    least: Annotated[
        int | None,
        typer.Option(min=1, help="With several sources: how many must answer; by default all."),
    ] = None,
    at_sources: Annotated[
        int,
        typer.Option(
            min=1, help="With several sources: at how many one individual may have records."
        ),
    ] = 1,
    sources: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="List of remote institutions (federation.toml of 'veracal federation init') "
            "that answer the queries instead of a file.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, help="With --sources, by files: seconds to wait for answers."),
    ] = None,
    give_up: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="With --sources, by files: do not wait for NAME; repeats."
        ),
    ] = None,
    run: Annotated[
        str,
        typer.Option(
            help="With --sources: name of a new run, which queries dropped-out sources again."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the recalibrated predictions (.npz, .parquet or .csv); with --sources "
            "the folder of the model with its new map."
        ),
    ] = None,
    map_out: Annotated[Path | None, typer.Option(help="Write the map as JSON.")] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace --out and --map-out if they exist; with --sources and without --out, "
            "write the map into MODEL itself.",
        ),
    ] = False,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print the guarantee in full.")
    ] = False,
    json: _predictions.Json = False,
) -> None:
    """Fit a calibration map to PREDICTIONS.

    PREDICTIONS is as for 'veracal evaluate'. The map is computed from noisy
    answers, each charged to a ledger before it is given, and may be published.
    Repeating the command returns the same map from the ledger at no cost.
    Mapped predictions are still personal data: protect them like the records.
    With --sources-by several institutions answer, each with its own noise and
    ledger, and the ledger of PREDICTIONS is charged the cost for one record.
    With --sources remote institutions answer, and MODEL gets the map.
    """
    from veracal.cli._methods import RecalibrationFiles

    several = sources_by is not None or sources is not None
    _check_sources(several, least, at_sources, ledger_part, not_private, curve)
    if sources is not None:
        local = (sources_by, classes, group, unit, part, ledger, version, internal, replicates)
        if any(option not in (None, "", False, []) for option in local):
            raise typer.BadParameter(
                "omit --sources-by, --classes, --group, --unit, --part, --ledger, --version, "
                "--internal and --replicates: the institutions have declared these themselves.",
                param_hint="--sources",
            )
    elif wait is not None or give_up or run:
        raise typer.BadParameter("needs --sources.", param_hint="--wait, --give-up or --run")
    budget = None
    if not_private:
        private_options = (epsilon, delta, size, guard, measure, ledger, ledger_part, version)
        if any(option not in (None, "") for option in private_options):
            raise typer.BadParameter(
                "omit --epsilon, --delta, --size, --guard, --measure and the options of the "
                "ledger: nothing is charged.",
                param_hint="--not-private",
            )
    else:
        budget = _budget(epsilon, delta, guard, measure, curve=curve)
    options = FitOptions(
        method,
        form,
        bins,
        size,
        _range(temperatures),
        budget,
        delta or 0.0,
        curve,
        internal,
        replicates,
    )
    _check_method(options)
    if sources is not None:
        from veracal.cli._recalibrate_remote import Outputs, RemoteOptions, recalibrate_remote

        remote = RemoteOptions(sources, least, at_sources, wait, tuple(give_up or ()), run)
        outputs = Outputs(predictions, out, map_out, force)
        recalibrate_remote(outputs, options, remote, whole=statement, json=json)
        return
    reading = _predictions.settings(classes, group, unit, part)
    if sources_by is not None:
        from veracal.cli._recalibrate_sources import SourcesOptions, recalibrate_sources

        folder = Path(f"{predictions}.ledgers") if ledger is None else ledger
        files = RecalibrationFiles(predictions, folder, out, map_out, unit or "unit", force)
        whom = SourcesOptions(sources_by, least, at_sources, version)
        recalibrate_sources(files, reading, options, whom, whole=statement, json=json)
        return
    path = _paying.ledger_place(predictions, ledger)
    charged = LedgerOptions(path, predictions, ledger_part, version)
    files = RecalibrationFiles(predictions, path, out, map_out, unit or "unit", force)
    _recalibrate_file(files, reading, options, charged, whole=statement, json=json)


def _recalibrate_file(
    files: Any,
    reading: Mapping[str, Any],
    options: FitOptions,
    ledger: LedgerOptions,
    *,
    whole: bool,
    json: bool,
) -> None:
    """Recalibrate one file of predictions; write and print the result."""
    from veracal.cli import _recalibrate_local as _local
    from veracal.errors import VeracalError
    from veracal.ledger import Ledger

    files.check()
    try:
        if options.budget is not None and _places.path_exists(ledger.path):
            classes = len(reading["classes"] or ()) or 2  # the cost does not depend on it
            plan = _local.plan_local(options, ledger.path, None, classes)
            ids = _run_ids(options, plan.method, ledger, reading)
            _local.require_recalibration(plan, options, ledger, ids)
        scores = _predictions.load(files.predictions, reading)
        files.check_scores(scores)
        if options.budget is None:
            result, account = _local.recalibrate_public(scores, options), None
        else:
            plan = _local.plan_local(options, ledger.path, scores, 0)
            ids = _run_ids(options, plan.method, ledger, reading)
            result, account = _local.recalibrate_local(scores, plan, options, ledger, ids)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    internal = None
    if options.internal or options.budget is None:
        internal = _local.internal_sides(scores, result.map, options.bins, options.replicates)
    files.write(result.map, scores)
    if json:
        values = _local.local_json(result, options, internal, account)
        _show.print_json({"file": str(files.predictions), **values, **files.to_json()})
        return
    name = "no ledger" if account is None else _paying.ledger_name(Ledger(ledger.path))
    _local.show_local(result, options, files.predictions.name, internal, account, name)
    if result.statement is not None:
        typer.echo("\n" + _paying.format_statement(result.statement, whole=whole))


def _run_ids(
    options: FitOptions, method: str, ledger: LedgerOptions, reading: Mapping[str, Any]
) -> "RunIds":
    """Ids of the runs of a recalibration, from the options alone."""
    from veracal.cli._recalibrate_local import RunIds
    from veracal.ledger import display_name

    budget = options.budget
    assert budget is not None
    settings = options.fitter_settings()
    bins = settings.pop("bins")  # of figures; methods with a delta have no bins
    fit = {
        "records": display_name(ledger.records),
        "reading": {name: reading[name] for name in ("classes", "unit", "part")},
        "method": method,
        "settings": {**settings, "micro_epsilon": budget.map},
        "part": ledger.partition,
        "version": ledger.version,
    }
    extras = {"guard": budget.guard, "measure": budget.measure, "curve": options.curve}
    return RunIds(fit, {**extras, "bins": bins}, options.delta)


def _range(text: str | None) -> tuple[float, float] | None:
    """The range of temperatures of an option."""
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    if not 0 < low < high < float("inf"):
        raise typer.BadParameter(
            f"expected two temperatures, as in 0.5,6, got {text!r}.",
            param_hint="--temperatures",
        )
    return low, high


def _check_sources(
    several: bool,
    least: int | None,
    at_sources: int,
    ledger_part: str | None,
    not_private: bool,
    curve: bool,
) -> None:
    """Reject options of several sources for a single one, and vice versa."""
    if not several:
        if least is not None or at_sources != 1:
            hint = "--least" if least is not None else "--at-sources"
            raise typer.BadParameter("needs --sources-by or --sources.", param_hint=hint)
    elif ledger_part is not None or not_private or curve:
        raise typer.BadParameter(
            "omit --ledger-part, --not-private and --curve: each institution answers with its "
            "own noise.",
            param_hint="--sources-by or --sources",
        )


def _budget(
    epsilon: float | None,
    delta: float | None,
    guard: float | None,
    measure: float | None,
    *,
    curve: bool,
) -> "BudgetDivision":
    """The cost of each part, as given by the options."""
    from veracal.accounting import to_micro
    from veracal.calibration import BudgetDivision

    if epsilon is None:
        raise typer.BadParameter(
            "pass the cost of the map, as in --epsilon 0.1, or --not-private for public "
            "records.",
            param_hint="--epsilon",
        )

    def cost(hint: str, value: float | None) -> int:
        try:
            return 0 if value is None else to_micro(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=hint) from error

    if delta is not None and not 0 < delta < 1:
        raise typer.BadParameter(
            f"expected 0 < delta < 1, got {delta!r}.", param_hint="--delta"
        )
    if curve and measure is None:
        raise typer.BadParameter("needs --measure, which pays for it.", param_hint="--curve")
    return BudgetDivision(
        cost("--epsilon", epsilon), cost("--guard", guard), cost("--measure", measure)
    )


def _check_method(options: FitOptions) -> None:
    """Reject unknown methods, missing settings of Gaussian noise, and unused options."""
    from veracal.calibration import AUTO, METHODS
    from veracal.cli._methods import check_method, methods_with_size, needs_delta

    method = options.method
    check_method(method, options.form, private=options.budget is not None)
    if options.temperatures and method != AUTO and not METHODS[method].searches_temperature:
        raise typer.BadParameter(
            f"{method} does not search for a temperature.", param_hint="--temperatures"
        )
    if options.budget is None:
        return
    gaussian = needs_delta(method)
    if gaussian and not (options.delta and options.size):
        raise typer.BadParameter(
            f"{method} also needs --delta and --size, the declared number of records.",
            param_hint="--method",
        )
    if not gaussian and (options.delta or (options.size and method not in methods_with_size())):
        raise typer.BadParameter(
            f"{method} needs no --delta, and --size is for {', '.join(methods_with_size())}.",
            param_hint="--method",
        )
